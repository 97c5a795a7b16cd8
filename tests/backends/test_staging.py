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
"""Bytes of inputs, and of outputs, that pinned memory holds in first runs: ``kBlock``."""
COLUMNS = 1 << 10
ROW = 4 * COLUMNS
ENDED = 256
"""Bytes of pinned memory in which a stream counts the runs that have ended."""
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
    few = ENDED + (32 << 10)  # held by three rows, until there is more
    assert threads > 1 or told["most_pinned"] <= 2 * STAGED + few, "threads may share contexts"
    assert told["live"] == 0


@pytest.mark.parametrize(
    ("threads", "pool"), [(1, 1), pytest.param(1, 4, marks=pytest.mark.slow), (3, 2)]
)
def test_pinned_memory_holds_all_of_sizes_that_repeat(
    made: Report, tmp_path: Path, threads: int, pool: int
) -> None:
    """Sizes in turn, while blocks are added for them and after that."""
    given = feeds(3, WHOLE, WHOLE + 1, *[1000] * 7, 777, 1000, WHOLE, WHOLE + 1, 3, 1000, 777)
    found, told = run(made, given, tmp_path, threads=threads, pool=pool)
    assert not told["error"] and told["wrong"] == 0
    assert close(made, found, given)
    assert told["replays"] >= 8
    all_of_it = 2 * 1000 * 2 * ROW  # inputs and outputs of the largest
    assert threads > 1 or told["most_pinned"] >= all_of_it
    assert told["most_pinned"] <= threads * (all_of_it + 2 * STAGED)
    assert told["live"] == 0


@pytest.mark.parametrize("runs", [1, 2, 4, 10])
def test_a_run_locks_one_block_at_most(made: Report, tmp_path: Path, runs: int) -> None:
    """Inputs and outputs of 1000 rows are four blocks each, of which two runs have one each."""
    given = feeds(*[1000] * runs)
    found, told = run(made, given, tmp_path, pool=2)
    assert not told["error"] and close(made, found, given)
    assert told["most_pinned"] == STAGED * (2 + min(max(runs - 2, 0), 6))


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
    # inputs of 40 rows take 320 KB, of 59 rows 472
    assert told["most_pinned"] <= ENDED + 2 * (512 << 10)


def test_pinned_memory_that_grows_is_given_back_last(made: Report, tmp_path: Path) -> None:
    """The driver would unlock and lock again the pages in which both lie."""
    found, told = run(made, feeds(3, 40), tmp_path)
    assert not told["error"] and close(made, found, feeds(3, 40))
    assert told["most_pinned"] == ENDED + 2 * (512 << 10) + (32 << 10)
    assert told["live"] == 0


@pytest.mark.parametrize("copies", [5, 20, 50, 70])
def test_a_copy_that_fails_is_a_status(made: Report, tmp_path: Path, copies: int) -> None:
    """Inputs of 1000 rows are 32 parts, and so are outputs; both first runs make 128 copies."""
    environment = {"DOUBLE_COPIES": f"{copies}"}
    _, told = run(made, feeds(1000, 999), tmp_path, environment, pool=4)
    assert re.search("could not (take inputs|give results|finish a run)", told["error"])
    assert "could not go on since a kernel or the GPU failed" in told["again"]
