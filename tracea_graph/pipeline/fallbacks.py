"""Searches over what to undo: reduced precision that costs too much accuracy, slow row tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tracea_graph.check.comparison import PairedBenchmark
from tracea_graph.check.selection import ModelWithLibrary, clear_gain
from tracea_graph.errors import BuildError, OutOfTime, WorkerError

__all__ = ["TILE_SIZES_SHARE", "fastest_tile_sizes", "precision_fallback"]

_RESOLUTION = 32  # fraction of the model (1/32) to which the end of the exact prefix is located

Keys = Mapping[str, Sequence[str]]
"""For each rule, the keys that drop its first region, its first two, … all of them."""


def precision_fallback(
    fallbacks: Sequence[Sequence[str]],
    keys: Keys,
    dropped: frozenset[str],
    wrong: Callable[[frozenset[str]], bool],
    coarse: Callable[[frozenset[str]], bool],
    has_time: Callable[[], bool],
) -> Mapping[str, int]:
    """Choose which reduced-precision rewrites to undo, at the smallest cost in run time.

    Returns, by rule, the number of leading regions to keep exact in addition to ``dropped``; empty
    if no fallback brings the error within tolerance.  ``coarse`` is stricter than ``wrong``.

    ``fallbacks`` are sets of rules, cheapest first.  The first set that suffices is searched: it
    keeps as many rewrites as possible of its last rule, the most expensive one to undo, then of
    the others.
    """
    present = (tuple(rule for rule in rules if keys[rule]) for rules in fallbacks)
    for rules in dict.fromkeys(filter(None, present)):
        counts = {rule: len(keys[rule]) for rule in rules}
        if keys[rules[-1]][-1] in dropped or wrong(dropped | _ends(keys, counts)):
            continue
        for rule in reversed(rules):
            low, high = 0, len(keys[rule])  # undoing `low` is not enough, undoing `high` is
            while high - low > max(1, len(keys[rule]) // _RESOLUTION) and has_time():
                middle = (low + high) // 2
                less = _ends(keys, {**counts, rule: middle})
                low, high = (middle, high) if coarse(dropped | less) else (low, middle)
            counts[rule] = high
        return counts
    return {}


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
    """Return the keys to drop; ``choices`` are the keys of each program's largest row tiles.

    ``build`` makes the model without some keys.  Models that cannot be built or run are skipped.
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
        if clear_gain(ratios, bench.keys):
            chosen = other
    return chosen
