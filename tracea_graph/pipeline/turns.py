"""How long turns are: the few lengths a plan hands on are raced, and the fastest stays.

The plan's first choice moves the fewest bytes; a shorter turn takes its place where it is a clear
gain over it by the rule of ``check.decide``.  Whether turns pay at all is judged after that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracea_graph.check.bench import Bench, Candidate
from tracea_graph.check.decide import clear_gain
from tracea_graph.errors import BuildError, OutOfTime, WorkerError

__all__ = ["fastest_lengths"]

LENGTHS_SHARE = 0.1
"""Of the budget, for these races."""


def fastest_lengths(
    choices: Sequence[Sequence[str]], build: Callable[[frozenset[str]], Candidate], bench: Bench
) -> frozenset[str]:
    """The keys to drop; ``choices`` are, for each program, those its longest turns are dropped by.

    ``build`` makes the model without some keys.  What cannot be built or run stays out.
    """
    chosen = frozenset[str]()
    end = bench.now() + LENGTHS_SHARE * bench.budget
    contests = [(keys, key) for keys in choices for key in keys]
    for i, (keys, key) in enumerate(contests):
        seconds = (end - bench.now()) / (len(contests) - i)
        if seconds <= 0:
            break
        other = chosen - {*keys} | {key}
        try:
            ratios = bench.against(build(chosen), build(other), seconds)
        except (BuildError, OutOfTime, WorkerError):
            continue
        if clear_gain(ratios, bench.keys):
            chosen = other
    return chosen
