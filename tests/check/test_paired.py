"""Paired timing of calls: neither order nor what lies in caches decides them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial

import pytest

from tracea_graph.check.worker_main import BRIEF_NS, time_paired


class Clock:
    """Time that passes where somebody spends it, and nowhere else."""

    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter_ns", made)
    return made


def calls_of(
    clock: Clock, microseconds: float, callers: int = 2
) -> tuple[list[Callable[[], None]], list[int]]:
    """Some alike, each of which takes half as long where it ran last; and who ran."""
    ran: list[int] = []

    def call(own: int) -> None:
        clock.now += int(microseconds * (500 if ran[-1:] == [own] else 1000))
        ran.append(own)

    return [partial(call, own) for own in range(callers)], ran


def test_of_brief_calls_either_runs_last_as_often(clock: Clock) -> None:
    calls, ran = calls_of(clock, 100.0)
    a, b = time_paired(calls, 9, 60.0)
    assert len(a) == len(b) == 9
    assert len(ran) % (4 * 2 * 9) == 0 and len(ran) >= 9 * BRIEF_NS / 200e3
    assert ran.count(0) == ran.count(1)
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    assert ratios[1:] == [1.0] * 8, "alone, rounds are 2:1 and 1:2"


def test_long_calls_run_once_for_a_pair_and_end_with_the_time(clock: Clock) -> None:
    calls, ran = calls_of(clock, BRIEF_NS / 1e3)
    a, _ = time_paired(calls, 3, 60.0)
    assert len(a) == 3 and ran == [0, 1, 1, 0, 1, 0]
    a, _ = time_paired(calls, 1000, 0.02)
    assert 1 <= len(a) < 50


@pytest.mark.parametrize("callers", [2, 3, 5])
def test_nobody_finds_its_own_caches_more_often_than_the_others(
    clock: Clock, callers: int
) -> None:
    calls, ran = calls_of(clock, BRIEF_NS / 1e3, callers)
    time_paired(calls, 2 * callers, 60.0)
    pairs = list(itertools.pairwise(ran))
    assert [pairs.count((i, i)) for i in range(callers)] == [1] * callers
