"""Many sessions at once, against one session of many threads."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.check.tiny_models import save
from tracea_graph.check.worker_process import Worker
from tracea_graph.cli.arguments import tool_parser
from tracea_graph.cli.bench import run_bench
from tracea_graph.commands import serving
from tracea_graph.commands.bench import BenchOptions
from tracea_graph.commands.serving import compare_serving
from tracea_graph.errors import UsageError
from tracea_graph.views.serving import ServingReport, ServingRow, quantile, render_serving

PRODUCT = "g (float[n, 64] x) => (float[n, 64] y) { h = MatMul(x, w) y = Relu(h) }"
SHORT = BenchOptions(shapes=({"n": 8},), seconds=0.1)
MANY = ServingRow("m.onnx", 4, 1, 400.0, 390.0, 410.0, 9.0, 11.0, 12.0, 800)
ONE = ServingRow("m.onnx", 1, 4, 300.0, 290.0, 310.0, 3.0, 4.0, 5.0, 600)


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second a turn would be 12 s of waiting here, where no figure is judged."""
    monkeypatch.setattr(serving, "_SLICE", 0.05)


@pytest.fixture
def product(tmp_path: Path) -> Path:
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    return save(tmp_path, "product.onnx", PRODUCT, w=weight)


def shown(report: ServingReport) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(render_serving(report))
    return capture.get()


def test_sessions_run_at_once_each_at_least_once(product: Path) -> None:
    with Worker() as worker:
        for name in "abc":
            worker.open(name, product)
        served = worker.serve("abc", {"x": np.ones((4, 64), np.float32)}, seconds=0.0)
    assert len(served.ms) == 3 and min(served.ms) > 0 and served.wall > 0 and served.cpu >= 0


def test_both_ways_of_a_model_and_its_result_are_measured(product: Path) -> None:
    shutil.copy(product, product.with_name("product.tracea.onnx"))
    found = compare_serving([product], 2, SHORT)
    assert [(r.subject, r.sessions, r.threads) for r in found.rows] == [
        ("product.onnx", 2, 1), ("product.onnx", 1, 2),
        ("product.tracea.onnx", 2, 1), ("product.tracea.onnx", 1, 2),
    ]  # fmt: skip
    assert all(r.runs >= found.rounds * r.sessions for r in found.rows)
    assert all(r.least <= r.per_second <= r.most for r in found.rows)
    assert all(0 < r.p50 <= r.p95 <= r.p99 for r in found.rows)


def test_all_sizes_are_measured_and_the_best_way_for_each_is_named(product: Path) -> None:
    both = BenchOptions(shapes=({"n": 8}, {"n": 64}), seconds=0.1)
    found = compare_serving([product], 2, both)
    assert [(r.binding, r.sessions) for r in found.rows] == [
        ("n=8", 2), ("n=8", 1), ("n=64", 2), ("n=64", 1),
    ]  # fmt: skip
    said = shown(found)
    assert said.count("most runs per second with") == 2
    assert "product.onnx, n=8" in said and "product.onnx, n=64" in said


def test_one_session_of_one_thread_is_one_way(product: Path) -> None:
    assert [(r.sessions, r.threads) for r in compare_serving([product], 1, SHORT).rows] == [(1, 1)]
    with pytest.raises(UsageError, match="--sessions must be at least 1, not 0"):
        compare_serving([product], 0, SHORT)


def test_the_best_way_is_named_with_its_price() -> None:
    said = shown(ServingReport("m.onnx", "n=8", (MANY, ONE), 4))
    assert "most runs per second with 4 sessions of 1 thread" in said
    assert "run is 3.00× as fast with 1 session of 4 threads" in " ".join(said.split())
    single = shown(ServingReport("m.onnx", "n=8", (ONE,), 4))
    assert "with 1 session of 4 threads, which also has the shortest median run" in " ".join(
        single.split()
    )
    assert max(map(len, said.splitlines())) <= 80


def test_quantiles_are_entries() -> None:
    entries = [float(i) for i in range(1, 101)]
    assert [quantile(entries, share) for share in (0.0, 0.5, 0.95, 0.99, 1.0)] == [
        1.0, 50.0, 95.0, 99.0, 100.0,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no entries"):
        quantile([], 0.5)


def test_the_command(product: Path) -> None:
    console = Console(width=80)
    words = ["bench", str(product), "--sessions", "2", "--seconds", "0.1"]
    with console.capture() as capture:
        assert run_bench(tool_parser().parse_args(words), console) == 0
    assert "runs/s" in capture.get() and "most runs per second with" in capture.get()
    with pytest.raises(UsageError, match="leave --profile out"):
        run_bench(tool_parser().parse_args([*words, "--profile"]), console)
