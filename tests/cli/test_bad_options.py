"""Options and data that make no sense, and bugs: one clear line each."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.support import COMMAND, UNTIMED, complaints, refused
from tests.graphs import Net
from tests.tiny import ROOT, transformer
from tracea_graph import Options
from tracea_graph.cli import main, optimize_main
from tracea_graph.errors import UsageError
from tracea_graph.pipeline import stages


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "the following arguments are required: MODEL.onnx"),
        (("good.onnx", "--nonsense"), "there is no option --nonsense"),
        (("good.onnx", "--budget", "0"), "--budget must be a number of seconds above 0"),
        (("good.onnx", "--budget", "inf"), "'inf' is not a time such as 60, 60s or 5m"),
        (("good.onnx", "--budget", "soon"), "'soon' is not a time such as 60"),
        (("good.onnx", "--seed", "-1"), "--seed must be 0 or more"),
        (("good.onnx", "--rtol", "nan"), "--rtol must be 0 or more"),
        (("good.onnx", "--max-error", "-1"), "--max-error must be 0 or more"),
        (("good.onnx", "--threads", "0"), "--threads must be 1 to 1024"),
        (("good.onnx", "--threads", "two"), "--threads takes numbers such as 1 or 1,4"),
        (("good.onnx", "--shape", "rows"), "--shape takes NAME=N[,NAME=N]"),
        (("good.onnx", "--shape", "rows=²"), "--shape takes NAME=N[,NAME=N]"),
        (("good.onnx", "--shape", "rows=0"), "--shape must be at least 1"),
        (("good.onnx", "--shape", "seq=4"), "the model has no dim 'seq'; its symbols are: rows"),
        (
            ("good.onnx", "--only", "magic"),
            "there is no rule 'magic'; the rules are arg-reduce",
        ),
        (("good.onnx", "--skip", "gemm-epilog"), "'gemm-epilog'; did you mean gemm-epilogue?"),
        (("good.onnx", "--shape", "row=4"), "the model has no dim 'row'; did you mean rows?"),
        (
            ("good.onnx", "--target", "cpu:avx3"),
            "there is no target 'cpu:avx3'; did you mean",
        ),
        (("good.onnx", "--keap", "all"), "there is no option --keap; did you mean --keep?"),
        (("good.onnx", "--fresh"), "there is no option --fresh; did you mean --no-cache?"),
        (("good.onnx", "--plain-weight"), "--plain-weight; did you mean --no-prepack?"),
        (("good.onnx", "--zzz"), "there is no option --zzz; tracea-optimize --help lists all"),
        (("good.onnx", "--target", "abacus"), "there is no target 'abacus'; use host"),
        (("good.onnx", "--until", "end"), "invalid choice: 'end'"),
        (("good.onnx", "--precision", "bf61"), "did you mean bf16?"),
        (("good.onnx", "--max-error", "abc"), "--max-error takes a number, not 'abc'"),
        (("good.onnx", "--no-custom-ops", "--require-library"), "contradict each other"),
        (("good.onnx", "--low-rank", "2"), "--low-rank takes an error above 0, at most 1"),
        (("good.onnx", "--prune", "1.5"), "--prune takes 0.6, 2:4, block:16x4:0.7 or"),
        (("good.onnx", "--prune", "channels:1.5"), "--prune takes 0.6, 2:4, block:16x4:0.7 or"),
        (("good.onnx", "--prune", "4:4"), "prunes nothing: keep fewer than 4"),
        (("good.onnx", "--prune", "block:8x8:0.5"), "--prune takes blocks of 16 columns"),
        (("good.onnx", "--prune", "0.5", "--max-error", "0"), "needs a --max-error above 0"),
        (("good.onnx", "--report", "gone/r.html"), "its folder does not exist"),
        (("good.onnx", "--report", "good.onnx"), "is an input"),
        (("good.onnx", "--report", "."), "is a folder; name a file"),
        (("good.onnx", "--keep-sources", "good.onnx"), "is a file; name a folder"),
    ],
)
def test_options_that_make_no_sense(
    home: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, *args)


def test_a_lock_of_an_older_version_says_what_to_do(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("old.json").write_text('{"format": 2}')
    said = refused(capsys, "good.onnx", "--lock", "old.json")
    assert "the plan lock old.json has no schema_version: an older version of this tool" in said
    assert "make a new one with --save-lock" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"budget": 0.0}, "--budget must be a number of seconds above 0, not 0"),
        ({"budget": float("nan")}, "--budget must be a number of seconds above 0, not nan"),
        ({"keep": "legal"}, "--keep must be faster or all, not 'legal'"),
        (
            {"precision": "fp4"},
            "--precision must be fp32 or tf32 or fp16 or bf16 or bf16-weights or bf16x2 or int16 "
            "or int8 or fp8 or int4-weights, not",
        ),
    ],
)
def test_the_same_options_make_no_sense_from_python(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Options(**values)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (None, "No such file"),
        ({}, "missing: x, unknown: none"),
        ({"x": np.ones((2, 32), np.float32), "z": np.ones(1)}, "missing: none, unknown: z"),
        ({"x": np.ones((2, 5), np.float32)}, "has dims (2, 5); the model takes"),
        ({"x": np.full((2, 32), "a")}, "the model takes"),
        ({"x": np.array([None, {}], object)}, "Object arrays cannot be loaded"),
    ],
    ids=["gone", "empty", "too many", "dims", "dtype", "objects"],
)
def test_data_that_does_not_fit(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    arrays: dict[str, np.ndarray] | None,
    said: str,
) -> None:
    if arrays is not None:
        np.savez("data.npz", **arrays)
    assert said in refused(capsys, "good.onnx", *UNTIMED, "--data", "data.npz")


def test_data_that_is_no_npz(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "good.onnx", "--data", "good.onnx")
    assert "from good.onnx: it is not an .npz file" in said


def test_a_bug_is_one_line_and_how_to_report_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **named: object) -> None:
        raise IndexError("list index\nout of range")

    monkeypatch.setattr(stages, "load", broken)
    assert optimize_main(["good.onnx"]) == 1
    said, report, rest = complaints(capsys.readouterr().err).split("\n")
    assert said == "error: IndexError: list index out of range (a bug; -v shows where)"
    assert report.startswith("to report this: ") and not rest
    assert optimize_main(["good.onnx", "-v"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_stdout_on_a_full_disk(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["explain", "good.onnx"]) == 2
        assert main(["explain", "good.onnx"]) == 0, "the rest goes nowhere"
    said = "error: the output cannot be written: No space left on device\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_an_error_nobody_can_read_has_its_code(home: Path, streams: str) -> None:
    command = shlex.join([*COMMAND, str(home / "gone.onnx")])
    done = subprocess.run(["sh", "-c", f"{command} {streams}"], cwd=ROOT, check=False)
    assert done.returncode == 2


@pytest.mark.compiler
def test_one_bad_model_does_not_spoil_the_others(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "bad.onnx").write_bytes((home / "good.onnx").read_bytes()[:99])
    transformer(home)
    args = ("bad.onnx", "tiny-bert.onnx", "good.onnx", "-o", "out/", *UNTIMED)
    assert optimize_main([*args]) == 2
    out, err = capsys.readouterr()
    err = complaints(err)
    assert err.startswith("error: bad.onnx: ") and err.count("\n") == 1
    assert out.count("rewritten: ") == 2
    stems = ("tiny-bert.tracea", "good.tracea")
    assert {path.name for path in (home / "out").iterdir()} == {
        f"{stem}.{ending}" for stem in stems for ending in ("onnx", "so", "json")
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench", "m.onnx", "--settle"), "there is no option --settle; did you mean --retune?"),
        (("verify", "a.onnx", "b.onnx", "--thread", "1"), "--thread; did you mean --threads?"),
        (("explain", "m.onnx", "--settle"), "--settle; tracea explain --help lists all options"),
    ],
)
def test_a_subcommand_names_the_flag_that_may_be_meant(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words]) == 2
    assert said in capsys.readouterr().err


def test_a_model_of_fixed_sizes_has_no_symbols(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net()
    net.save(home / "fixed.onnx", net("Relu", net.input("x", 2, 3)))
    said = refused(capsys, "fixed.onnx", "--shape", "n=2")
    assert "the model has no dim 'n'; all are fixed" in said
