"""Inputs and outputs larger than pinned memory, on a double of the driver that copies late."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.backends.double import DOUBLE, driver
from tests.backends.test_double import HERE, close, run
from tests.graphs import Net, normal
from tracea_graph import Report, api, target

pytestmark = pytest.mark.compiler
STAGED = 2 << 20
"""Bytes of inputs, and of outputs, that pinned memory holds in first runs: ``kMostStaged``."""
COLUMNS = 1 << 10
ROW = 4 * COLUMNS
WHOLE = STAGED // ROW // 2
"""Rows of both tensors that fit pinned memory."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Report of a net with two inputs and two outputs as large as its inputs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "BACKENDS", (*target.BACKENDS, DOUBLE))
        patch.setenv("LD_LIBRARY_PATH", str(driver()))
        net = Net()
        x, y = (net.input(name, "rows", COLUMNS) for name in "xy")
        both = net("Mul", net("Add", x, net.weight(COLUMNS)), net("Tanh", y))
        outputs = [net("Add", both, x), net("Relu", both)]
        return api.optimize(net.save(tmp_path_factory.mktemp("m") / "m.onnx", *outputs), HERE)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver()))


def feeds(*rows: int) -> dict[str, dict[str, Any]]:
    return {
        f"{i}": {"x": normal(n, COLUMNS, seed=i), "y": normal(n, COLUMNS, seed=99 - i)}
        for i, n in enumerate(rows)
    }  # fmt: skip


@pytest.mark.parametrize(("threads", "pool"), [(1, 1), (1, 4), (3, 2)])
def test_tensors_pass_pinned_memory_in_parts(
    made: Report, tmp_path: Path, threads: int, pool: int
) -> None:
    """Sizes around one and several parts."""
    assert made.nodes_after == 1
    given = feeds(3, WHOLE, WHOLE + 1, 1000, 777)
    found, told = run(made, given, tmp_path, threads=threads, pool=pool)
    assert not told["error"] and told["wrong"] == 0
    assert close(made, found, given)
    assert threads > 1 or told["most_pinned"] <= 2 * STAGED, "threads may share contexts"
    assert told["live"] == 0


@pytest.mark.parametrize(("threads", "pool"), [(1, 1), (1, 4), (3, 2)])
def test_pinned_memory_holds_all_of_sizes_that_repeat(
    made: Report, tmp_path: Path, threads: int, pool: int
) -> None:
    """The second run of a size makes its graph, with copies of all inputs and outputs."""
    given = feeds(3, WHOLE, WHOLE + 1, 1000, 1000, 777, 1000, WHOLE, WHOLE + 1, 3, 1000, 777)
    found, told = run(made, given, tmp_path, threads=threads, pool=pool)
    assert not told["error"] and told["wrong"] == 0
    assert close(made, found, given)
    assert told["replays"] >= 2
    all_of_it = 2 * 1000 * 2 * ROW  # inputs and outputs of the largest
    assert all_of_it <= told["most_pinned"] <= threads * (all_of_it + (512 << 10))
    assert told["live"] == 0


def test_an_input_that_repeats_passes_in_parts(made: Report, tmp_path: Path) -> None:
    given = feeds(900, 900)
    for feed in given.values():
        feed["y"] = feed["y"][:1]
    found, told = run(made, given, tmp_path)
    assert not told["error"]
    assert close(made, found, given)


def test_sizes_that_rise_lock_pages_seldom(made: Report, tmp_path: Path) -> None:
    """Pinned memory grows by factors of two."""
    given = feeds(*(n for n in range(40, 60) for _ in range(2)), 40)
    found, told = run(made, given, tmp_path)
    assert not told["error"] and close(made, found, given)
    assert told["most_pinned"] <= 2 * (512 << 10), "inputs of 40 rows take 320 KB, of 59 rows 472"


@pytest.mark.parametrize("copies", [5, 20, 50, 70])
def test_a_copy_that_fails_is_a_status(made: Report, tmp_path: Path, copies: int) -> None:
    """Inputs of 1000 rows are 32 parts, and so are outputs; both first runs make 128 copies."""
    environment = {"DOUBLE_COPIES": f"{copies}"}
    _, told = run(made, feeds(1000, 999), tmp_path, environment, pool=4)
    assert re.search("could not (take inputs|give results|finish a run)", told["error"])
    assert "could not go on since a kernel or the GPU failed" in told["again"]
