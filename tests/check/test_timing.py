"""The bounds of a ratio hold, and a busy machine is noticed."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from tracea_graph.check.timing_statistics import (
    PairedTimes,
    other_processes_busy,
    pool_timings,
    speed_ratio,
)


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
