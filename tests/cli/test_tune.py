"""``tracea tune``: what it prints, what it leaves, and how it stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracea_graph import AutoTuner, Options, ProblemDescriptor
from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.cli import main
from tracea_graph.cli import tune as command
from tracea_graph.commands.autotuner import TunedProblem
from tracea_graph.commands.tune import TunedModel
from tracea_graph.errors import UsageError
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.tuning import Case, CaseFinished, TrialMeasured, TuningResult, TuningStarted

CASE = Case(GemmProblem(768, 3072), 128)
FOUND = TuningResult(CASE, GemmSchedule(512, 2, 64), 1.25, "measured", share=0.5)


def fake(path: Path, options: Any, *, listen: Any, **more: Any) -> TunedModel:
    listen(
        TuningStarted(
            (TuningResult(CASE, FOUND.schedule, 1.0, "default", "never measured"),), (), 1.0
        )
    )
    listen(TrialMeasured(CASE, FOUND.schedule, 1, "search", PairedTimes((1.25,) * 3, (1.0,) * 3)))
    listen(CaseFinished(FOUND, 1.0, 1))
    return TunedModel(path, (FOUND,), {CASE: 12})


@pytest.fixture(autouse=True)
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "tune_model", fake)
    monkeypatch.chdir(tmp_path)


def test_a_run_is_printed_saved_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    cache = ("--cache", "cache")
    assert main(["tune", "m.onnx", "--budget", "1m", "--save-config", "c.yaml", *cache]) == 0
    out = capsys.readouterr().out
    assert "gemm 768x3072, 128 rows" in out and "miss, measured" in out and "1.250×" in out
    assert "predicted saving, end to end: 10.0%" in out
    assert "gemm 768x3072" in Path("c.yaml").read_text()
    assert main(["tune", "report", "--csv", "t.csv", "--svg", "t.svg", *cache]) == 0
    assert "1.250×" in capsys.readouterr().out
    assert Path("t.svg").read_text().startswith("<svg") and "gflops" in Path("t.csv").read_text()
    assert main(["tune", "m.onnx", "--json", "--config", "c.yaml", *cache]) == 0
    (model,) = json.loads(capsys.readouterr().out)
    assert model["cases"][0]["nodes"] == 12 and model["saved"] == pytest.approx(0.1)


def test_an_interrupt_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(path: Path, options: Any, **more: Any) -> TunedModel:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "tune_model", stopped)
    assert main(["tune", "m.onnx", "--cache", "cache"]) == 130
    assert "measured is kept" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "--cache", "empty"), "nothing was tuned yet"),
        (("report", "gone.jsonl"), "gone.jsonl cannot be read"),
        (("m.onnx", "--budget", "soon"), "'soon' is not a time such as 60"),
        (("worker",), "the following arguments are required: --storage"),
        (("worker", "--storage", "ftp://x"), "--storage takes a URL"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["tune", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_problem_is_tuned_without_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def tuned_problem(problem: Any, options: Any, **more: Any) -> TunedProblem:
        asked.append(problem)
        return TunedProblem(problem, fake(Path(), options, listen=more["listen"]))

    monkeypatch.setattr(command, "tune_problem", tuned_problem)
    text = "gemm:128x3072x768"
    assert main(["tune", "--problem", text, "--cache", "c", "--budget", "5"]) == 0
    assert asked == [ProblemDescriptor("gemm", (128, 3072, 768))]
    out = capsys.readouterr().out
    assert out.startswith(text) and "gemm 768x3072, 128 rows" in out
    assert main(["tune", "--cache", "c"]) == 2
    assert "name a model or a --problem" in capsys.readouterr().err
    assert main(["tune", "--problem", "gemn:1x2x3"]) == 2
    assert "did you mean gemm?" in capsys.readouterr().err


@pytest.mark.slow  # builds four models
@pytest.mark.compiler
def test_problems_become_cases_of_models(tmp_path: Path) -> None:
    """No time to measure: which kernel calls take schedules is known nevertheless."""
    options = Options(cache=tmp_path)
    tuner = AutoTuner(threads=(1,), budget=1e-9, options=options)
    gemm = tuner.optimize(ProblemDescriptor("gemm", (128, 96, 80), {"epilogue": "relu"}))
    assert [str(t.case) for t in gemm.tuned.tuned if t.case in gemm.tuned.counts] == [
        "gemm 80x96 + epilogue, 128 rows"
    ]
    assert gemm.gain == 1.0
    conv = tuner.optimize(ProblemDescriptor("conv", (1, 32, 14, 14, 48, 3), {"stride": 2}))
    assert [str(case) for case in conv.tuned.counts] == ["conv 32x3x3 to 48x7x7, 1 image"]
    with pytest.raises(UsageError, match=r"30 channels and .* do not divide into 4 groups"):
        tuner.optimize(ProblemDescriptor("conv", (1, 30, 14, 14, 48, 3), {"groups": 4}))
