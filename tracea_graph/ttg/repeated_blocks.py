"""Repeated blocks, such as the layers of a deep network, found as tandem repeats of regions.

The regions in topological order are a string whose letters are structural signatures (operator,
parameters, shapes).  A run of equal consecutive substrings is a block and its copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["RepeatedBlock", "region_signature", "repeated_blocks"]

_SHORTEST, _LONGEST = 2, 4096
"""Shortest and longest block, in regions."""
_LEAST = 8
"""Number of regions a repeat must hide to be worth a group box."""

Letters = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RepeatedBlock:
    """Ids of the regions of each copy, in order; at least two copies of equal length."""

    copies: tuple[tuple[str, ...], ...]

    @property
    def shown(self) -> tuple[str, ...]:
        """The copy that is drawn in place of all copies."""
        return self.copies[0]


def region_signature(graph: TileGraph, region: Region) -> str:
    """Return a string that is equal for regions of equal operator, parameters and shapes."""
    operands = (str(graph.spec(v)) + "w" * (v in graph.weights) for v in region.operands)
    results = (str(graph.spec(v)) for v in region.results)
    attrs = ",".join(f"{k}={v!r}" for n in region.nodes[:1] for k, v in sorted(n.attrs.items()))
    what = repr(region.params) if region.fused else attrs[:200]
    return "|".join((region.op, region.rule, what, ",".join(operands), ",".join(results)))


def repeated_blocks(graph: TileGraph) -> list[RepeatedBlock]:
    """Return disjoint repeated blocks in graph order, preferring those that hide most regions."""
    regions = graph.regions()
    known: dict[str, int] = {}
    letters = np.array(
        [known.setdefault(region_signature(graph, r), len(known)) for r in regions], np.int64
    )
    spans = _spans(letters, 0)
    names = [r.id for r in regions]
    return [
        RepeatedBlock(_cut(names, start, period, count)) for start, period, count in sorted(spans)
    ]


def _cut(names: Sequence[str], start: int, period: int, count: int) -> tuple[tuple[str, ...], ...]:
    edges = range(start, start + period * count, period)
    return tuple(tuple(names[i : i + period]) for i in edges)


def _spans(letters: Letters, offset: int) -> list[tuple[int, int, int]]:
    """(start, period, copies) of the best repeat and, recursively, of the text around it."""
    found: list[tuple[int, int, int]] = []
    waiting = [(letters, offset)]
    while waiting:
        part, base = waiting.pop()
        best = _best(part)
        if best is None:
            continue
        start, period, count = best
        found.append((base + start, period, count))
        end = start + period * count
        waiting += [(part[:start], base), (part[end:], base + end)]
    return found


def _best(letters: Letters) -> tuple[int, int, int] | None:
    """The repeat that hides most regions; ties go to the shortest period, then to the first."""
    best, saved = None, _LEAST - 1
    for period in range(_SHORTEST, min(len(letters) // 2, _LONGEST) + 1):
        if (len(letters) // period - 1) * period <= saved:
            continue
        equal = np.concatenate(([0], letters[:-period] == letters[period:], [0])).astype(np.int8)
        edges = np.flatnonzero(np.diff(equal))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        if not len(lengths):
            continue
        longest = int(np.argmax(lengths // period))
        copies = int(lengths[longest]) // period + 1
        if copies > 1 and (copies - 1) * period > saved:
            best, saved = (int(starts[longest]), period, copies), (copies - 1) * period
    return best
