"""Benchmarks of models and runtimes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.check.tiny_models import save
from tests.commands.samples import result
from tracea_graph.check.baseline_runtimes import BASELINES, BaselineWorker, baselines_named
from tracea_graph.check.worker_process import RejectedByRuntime
from tracea_graph.cli.arguments import tool_parser
from tracea_graph.cli.bench import run_bench
from tracea_graph.commands.bench import (
    BenchOptions,
    bench,
    busy_warning,
    model_subject,
    result_beside,
)
from tracea_graph.errors import TraceaError, UsageError
from tracea_graph.views.bench import BenchReport, BenchRow, render_bench

PRODUCT = "g (float[n, 64] x) => (float[n, 64] y) { h = MatMul(x, w) y = Relu(h) }"
TEXT = "g (float[n, 64] x) => (int64[n] i) {{ i = {op}<axis = 1, keepdims = 0>(x) }}"
QUICK = BenchOptions(threads=(1,), shapes=({"n": 32},), pairs=8, seconds=300.0, baselines=())


@pytest.fixture
def product(tmp_path: Path) -> Path:
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    return save(tmp_path, "product.onnx", PRODUCT, w=weight)


def run(*words: str) -> tuple[int, str]:
    parser = tool_parser()
    console = Console(width=160)
    with console.capture() as capture:
        code = run_bench(parser.parse_args(["bench", *words]), console)
    return code, capture.get()


# ---- the worker ------------------------------------------------------------------------


def test_any_number_of_sessions_run_in_turn(product: Path) -> None:
    feeds = {"x": np.ones((4, 64), np.float32)}
    with BaselineWorker() as worker:
        for name in "abc":
            worker.open(name, product)
        times = worker.time_rounds(["a", "b", "c"], feeds, pairs=5, seconds=300.0)
    assert [len(ms) for ms in times.ms] == [5, 5, 5]
    assert min(map(min, times.ms)) > 0


@pytest.mark.skipif(not BASELINES[0].version, reason="OpenVINO is not installed")
@pytest.mark.parametrize("baseline", BASELINES, ids=lambda p: str(p.name))
def test_openvino_computes_the_same_in_turn_with_onnxruntime(
    product: Path, baseline: object
) -> None:
    feeds = {"x": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)}
    with BaselineWorker() as worker:
        worker.open("ort", product)
        worker.open_baseline("baseline", baseline, product, feeds, ["y"])  # type: ignore[arg-type]
        wanted, found = worker.run("ort", feeds)["y"], worker.run("baseline", feeds)["y"]
        times = worker.time_rounds(["ort", "baseline"], feeds, pairs=4, seconds=300.0)
    assert np.abs(found - wanted).max() < 2e-2 * np.abs(wanted).max()
    assert len(times.ms[1]) == 4


@pytest.mark.skipif(not BASELINES[0].version, reason="OpenVINO is not installed")
def test_what_a_peer_refuses_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with BaselineWorker() as worker, pytest.raises(RejectedByRuntime):
        worker.open_baseline("p", BASELINES[0], broken, {}, [])


@pytest.mark.skipif(not BASELINES[0].version, reason="OpenVINO is not installed")
def test_what_a_peer_compiles_and_cannot_run_is_told(
    product: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, name = BaselineWorker.run, BASELINES[0].name

    def run(self: BaselineWorker, session: str, feeds: Any) -> Any:
        if session == name:
            raise RejectedByRuntime("an index is outside")
        return plain(self, session, feeds)

    monkeypatch.setattr(BaselineWorker, "run", run)
    report = bench([product], dataclasses.replace(QUICK, baselines=(name,)))
    assert f"{name} refuses product.onnx: an index is outside" in report.warnings
    assert {row.subject for row in report.rows} == {"ONNX Runtime"}


def test_unknown_peers_are_refused() -> None:
    with pytest.raises(UsageError, match="no baseline 'tensorrt'"):
        baselines_named(["tensorrt"])


# ---- runs ------------------------------------------------------------------------------


def test_a_model_races_its_twin_and_makes_no_error(product: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin.onnx"
    twin.write_bytes(product.read_bytes())
    report = bench([product, twin], QUICK)
    base, other = report.rows
    assert (base.subject, other.subject) == ("ONNX Runtime", "twin.onnx")
    assert (base.ratio, other.error) == (1.0, 0.0)
    assert other.low <= other.ratio <= other.high
    assert report.gflop["n=32"] == pytest.approx(2 * 32 * 64 * 64 / 1e9, rel=0.05)
    assert report.rounds == 8


def test_integers_that_differ_are_told_in_words(tmp_path: Path) -> None:
    """They have no error: the table says so, a sentence says where, and JSON stays JSON."""
    wanted, other = (
        save(tmp_path, f"{op}.onnx", TEXT.format(op=op)) for op in ("ArgMax", "ArgMin")
    )
    report = bench([wanted, other], QUICK)
    said = (
        "ArgMin.onnx computes something else than ONNX Runtime: output 'i' with n=32: "
        "32 of 32 elements"
    )
    assert [w for w in report.warnings if w.startswith(said)] == [f"{said} differ"]
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render_bench(report))
    assert " differs " in capture.get() and "inf" not in capture.get()
    first, second = json.loads(report.to_json())["rows"]
    assert (first["error"], second["error"]) == (0.0, None)


def test_a_lone_model_meets_the_result_beside_it(product: Path) -> None:
    assert result_beside(product) == ()
    beside = product.with_name("product.tracea.onnx")
    beside.write_bytes(product.read_bytes())
    assert [r.subject for r in bench([product], QUICK).rows][1] == beside.name


def test_a_missing_library_is_told(tmp_path: Path) -> None:
    path = result(tmp_path)
    assert model_subject(path).library is None
    options = BenchOptions(threads=(1,), pairs=2, baselines=())
    report = bench([path], options)
    assert "result.onnx has no library of its own beside it" in report.warnings[0]


def test_another_models_library_is_refused(tmp_path: Path) -> None:
    import onnx

    path = result(tmp_path)
    model = onnx.load(path)
    model.metadata_props.add(key="tracea.library.sha256", value="0" * 64)
    onnx.save(model, path)
    path.with_suffix(".so").write_bytes(b"something else")
    with pytest.raises(UsageError, match="not the library"):
        model_subject(path)


def test_a_busy_machine_is_told() -> None:
    assert busy_warning(0.1) == ()
    assert "150%" in busy_warning(1.5)[0]


def test_the_table_states_threads_bounds_and_versions() -> None:
    rows = (
        BenchRow("ONNX Runtime", 1, "n=1", 10.0, 9.0, 1.0, 1.0, 1.0, 0.0),
        BenchRow("[b]r.onnx", 1, "n=1", 5.0, 4.5, 2.0, 1.9, 2.1, 3e-7, 4, 6),
    )
    report = BenchReport(
        "m.onnx", rows, {"n=1": 1.5}, 30, ("busy",), {"tracea": "1", "onnxruntime": "1.31"},
        {"model": "Some CPU", "threads": 2},
    )  # fmt: skip
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render_bench(report))
    said = capture.get()
    for part in ("2.00×", "1.90–2.10", "3.0e-07", "4 of 6", "[b]r.onnx", "warning: busy", "30"):
        assert part in said
    assert "Some CPU, 2 threads, tracea 1, onnxruntime 1.31" in said


# ---- the command -----------------------------------------------------------------------


def test_the_command_prints_json(product: Path) -> None:
    code, said = run(
        str(product), "--threads", "1", "--pairs", "8", "--baselines", "ort", "--json"
    )
    assert code == 0
    assert [r["subject"] for r in json.loads(said)["rows"]] == ["ONNX Runtime"]


@pytest.mark.parametrize(
    "words",
    [
        ["a.onnx", "--svg", "a.svg"],
        ["a.onnx", "b.onnx", "--profile"],
        ["a.onnx", "--seconds", "0"],
        ["a.onnx", "--baselines", "nobody"],
        ["missing.onnx"],
    ],
)
def test_impossible_arguments_are_one_sentence(words: list[str]) -> None:
    with pytest.raises(TraceaError) as caught:
        run(*words)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", [["--threads", "0"], ["--shape", "=3"], ["--pairs", "x"]])
def test_malformed_values_are_usage_errors(words: list[str]) -> None:
    with pytest.raises((SystemExit, UsageError)) as caught:
        run("a.onnx", *words)
    error = caught.value
    assert (error.exit_code if isinstance(error, UsageError) else error.code) == 2


def test_models_of_other_inputs_do_not_race(product: Path, tmp_path: Path) -> None:
    other = save(
        tmp_path, "other.onnx", "g (float[n] a, float[n] b) => (float[n] y) {y = Add(a, b)}"
    )
    with pytest.raises(
        UsageError, match=r"other.onnx takes a, b, and .*product.onnx x: they cannot"
    ):
        bench([product, other], QUICK)


@pytest.mark.parametrize(
    ("gflop", "said"), [(2.5, "n=1; 2.5 GFLOP"), (0.000088, "n=1; 0.088 MFLOP"), (0.0, "n=1")]
)
def test_little_work_is_said_in_smaller_units(gflop: float, said: str) -> None:
    row = BenchRow("m.onnx", 1, "n=1", 1.0, 0.9, 1.0, 1.0, 1.0, 0.0)
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render_bench(BenchReport("m.onnx", (row,), {"n=1": gflop}, 30)))
    assert f"\n{said}\n" in capture.get()
