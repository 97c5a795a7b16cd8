"""The bounds of a ratio hold, and a busy machine is noticed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracea_graph.check.timing_statistics import (
    PairedTimes,
    other_processes_busy,
    pool_timings,
    speed_ratio,
)
from tracea_graph.check.worker_main import node_times


def test_ratio_is_the_median_of_pairs():
    found = speed_ratio(PairedTimes((10.0, 20.0, 33.0), (5.0, 5.0, 11.0)))
    assert (found.median, found.pairs) == (3.0, 3)
    assert (found.a_ms, found.b_ms, found.a_min, found.b_min) == (20.0, 5.0, 10.0, 5.0)


def test_under_eight_pairs_there_are_no_bounds():
    seven, eight = (speed_ratio(PairedTimes((2.0,) * n, (1.0,) * n)) for n in (7, 8))
    assert (seven.low, seven.high) == (0.0, math.inf)
    assert (eight.low, eight.high) == (2.0, 2.0)


@pytest.mark.parametrize(("pairs", "rank"), [(8, 1), (15, 3), (30, 8), (60, 20)])
def test_bounds_are_the_order_statistics_of_the_binomial(pairs, rank):
    values = tuple(float(i) for i in range(1, pairs + 1))
    found = speed_ratio(PairedTimes(values, (1.0,) * pairs))
    assert (found.low, found.high) == (rank, pairs + 1 - rank)


@pytest.mark.parametrize("pairs", [8, 15, 45])
def test_bounds_cover_the_true_median_99_times_in_100(pairs):
    rng, misses, trials = np.random.default_rng(0), 0, 3000
    for _ in range(trials):
        noise = np.exp(rng.standard_cauchy(pairs) * 0.01)
        found = speed_ratio(PairedTimes(tuple(1.1 * noise), (1.0,) * pairs))
        misses += not found.low <= 1.1 <= found.high
    assert misses / trials <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / trials)


def test_pooled_races_add_pairs():
    assert speed_ratio(pool_timings([PairedTimes((1.0,) * 4, (2.0,) * 4)] * 2)).pairs == 8


def test_a_race_without_pairs_has_no_ratio():
    with pytest.raises(ValueError, match="median"):
        speed_ratio(PairedTimes((), ()))


def test_a_busy_neighbour_is_noticed():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert any(other_processes_busy(0.2) for _ in range(300)), "not once in a minute"
        finally:
            busy.kill()
    assert not other_processes_busy(0.01, share=1e9)


def test_what_a_loop_runs_inside_is_no_part_of_its_own_time(tmp_path: Path) -> None:
    def event(name: str, start: int, duration: int) -> dict[str, Any]:
        args = {"node_index": name, "op_name": name}
        return {"cat": "Node", "name": f"{name}_kernel_time", "tid": 1, "ts": start,
                "dur": duration, "args": args}  # fmt: skip

    found = [event("Add", 10, 5), event("Mul", 21, 4), event("Mul", 26, 3), event("Scan", 20, 30)]
    found.append(event("Relu", 50, 2))
    (tmp_path / "trace.json").write_text(json.dumps(found))
    times = {
        name: median for name, _, _, median, _ in node_times(tmp_path / "trace.json", 1, 1, {})
    }
    assert times == {"Add": 5, "Mul": 7, "Scan": 30 - 7, "Relu": 2}
