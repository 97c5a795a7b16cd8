"""Searches over what to undo: reduced precision that costs too much accuracy, slow row tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tracea_graph.check.paired_benchmark import PairedBenchmark
from tracea_graph.check.rewrite_selection import ModelWithLibrary, is_clear_gain
from tracea_graph.errors import BuildError, OutOfTime, WorkerError

__all__ = ["TILE_SIZES_SHARE", "fastest_tile_sizes", "precision_fallback"]

_RESOLUTION = 32  # fraction of the model (1/32) to which the end of the exact prefix is located

Keys = Mapping[str, Sequence[str]]
"""For each rule, the keys that drop its first region, its first two, … all of them."""


def precision_fallback(
    fallbacks: Sequence[Sequence[str]],
    keys: Keys,
    dropped: frozenset[str],
    error: Callable[[frozenset[str]], float],
    now: float,
    most: float,
    has_time: Callable[[], bool],
) -> Mapping[str, int]:
    """Choose which reduced-precision rewrites to undo, at the smallest cost in run time.

    Returns, for each rule, the number of its first regions to keep exact in addition to
    ``dropped``; empty if nothing brings the error within tolerance.  ``error`` returns the error
    without given rewrites, as a share of the tolerance, and ``now`` is the error without
    ``dropped``.  Where only a part of a rule's regions is kept exact, the error must be at most
    ``most``.

    ``fallbacks`` are sets of rules, cheapest first.  The first set that suffices is searched: it
    keeps as many rewrites as possible of its last rule, the most expensive one to undo, then of
    the others.
    """
    known = {dropped: now}

    def measured(counts: Mapping[str, int]) -> float:
        without = dropped | _ends(keys, counts)
        if without not in known:
            known[without] = error(without)
        return known[without]

    def keeping(others: Mapping[str, int], rule: str, count: int) -> float:
        return measured({**others, rule: count})

    present = (tuple(rule for rule in rules if keys[rule]) for rules in fallbacks)
    for rules in dict.fromkeys(filter(None, present)):
        counts = {rule: len(keys[rule]) for rule in rules}
        if keys[rules[-1]][-1] in dropped or measured(counts) > 1.0:
            continue
        for rule in reversed(rules):
            others = {r: n for r, n in counts.items() if r != rule}
            whole = {r: len(keys[r]) for r in others}  # measured before, as a fallback by itself
            none = known.get(dropped | _ends(keys, whole))
            end = partial(keeping, others, rule)
            counts[rule] = _fewest(end, len(keys[rule]), none, most, has_time)
        return counts
    return {}


def _fewest(
    error: Callable[[int], float],
    count: int,
    none: float | None,
    most: float,
    has_time: Callable[[], bool],
) -> int:
    """Return the fewest leading regions to keep exact for an error of at most ``most``.

    All ``count`` suffice; ``none`` is an estimate of the error if none is kept exact.  Errors of
    regions are independent, so their squares add up.  The first two measurements are therefore
    placed where interpolation between both ends predicts the limit; later ones halve the range.
    """
    low, high, step = 0, count, max(1, count // _RESOLUTION)  # undoing `low` is not enough
    below, above, asked = none, error(count), 0
    while high - low > step and has_time():
        middle = (low + high) // 2
        if below is not None and below > most > above and math.isfinite(below) and asked < 2:
            share = (below**2 - most**2) / (below**2 - above**2)
            nearest = low + math.ceil(share * (high - low))
            middle = min(max(nearest, low + step), high - step)
        found, asked = error(middle), asked + 1
        low, below, high, above = (
            (middle, found, high, above) if found > most else (low, below, middle, found)
        )
    return high


def _ends(keys: Keys, counts: Mapping[str, int]) -> frozenset[str]:
    """Keys that drop the first ``counts`` regions of each rule."""
    return frozenset(keys[rule][count - 1] for rule, count in counts.items() if count)


TILE_SIZES_SHARE = 0.1
"""Share of the budget for timing row-tile sizes."""


def fastest_tile_sizes(
    choices: Sequence[Sequence[str]],
    build: Callable[[frozenset[str]], ModelWithLibrary],
    bench: PairedBenchmark,
) -> frozenset[str]:
    """Return the keys to drop so that each program has its fastest row tiles.

    ``choices`` holds, for each program, keys that drop its largest row tiles.  ``build`` makes the
    model without the rewrites of some keys.  Models that cannot be built or run are skipped.
    """
    chosen = frozenset[str]()
    end = bench.now() + TILE_SIZES_SHARE * bench.budget
    comparisons = [(keys, key) for keys in choices for key in keys]
    for i, (keys, key) in enumerate(comparisons):
        seconds = (end - bench.now()) / (len(comparisons) - i)
        if seconds <= 0:
            break
        other = chosen - {*keys} | {key}
        try:
            ratios = bench.compare_all(build(chosen), build(other), seconds)
        except (BuildError, OutOfTime, WorkerError):
            continue
        if is_clear_gain(ratios, bench.keys):
            chosen = other
    return chosen
