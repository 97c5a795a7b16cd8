"""Program boundaries: which regions run as one, in one arena.

A program grows from a region that is worth one (a core) to everything around it that can be a
step.  It stays convex: no path leaves it and comes back, so that it can run as a whole.  What has
no core before it, or follows the last core without finishing its work, stays outside; the former
is never taken in, lest a path from it that comes back should keep others out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tracea_graph.ttg.graph import TileGraph
from tracea_graph.ttg.region import Region

__all__ = ["Joining", "program_from"]


@dataclass(frozen=True)
class Joining:
    """What is known of the kernels that could run as one.

    ``steps`` is how many a region would be, 0 if it cannot be one; ``core`` says which are worth a
    program; ``ends`` which are better its last step than left outside.
    """

    steps: Callable[[Region], int]
    core: Callable[[Region], bool]
    ends: Callable[[Region], bool]
    most_steps: int
    most_operands: int


def program_from(
    graph: TileGraph, seed: Region, joining: Joining, without: Collection[str] = ()
) -> list[Region]:
    """The regions that run with a core, the first of them all, producers first.

    Empty if an earlier core would run with it: that one's program is theirs.  ``without`` names
    regions that stay outside.
    """
    growing = _Growing(graph, seed, joining, without)
    return growing.trimmed() if growing.grow() else []


class _Growing:
    """The regions chosen so far around a core."""

    def __init__(
        self, graph: TileGraph, seed: Region, joining: Joining, without: Collection[str]
    ) -> None:
        self.graph, self.seed, self.joining, self.without = graph, seed, joining, without
        self.chosen = {seed.id: seed}
        self._steps: dict[str, int] = {}
        self._count = self.steps(seed)
        self._reads, self._writes = {*seed.reads}, {*seed.writes}
        self._leading = set[str]()

    def steps(self, region: Region) -> int:
        if region.id not in self._steps:
            fits = region.id not in self.without
            self._steps[region.id] = self.joining.steps(region) if fits else 0
        return self._steps[region.id]

    def grow(self) -> bool:
        """Take in all that fits, nearest first; False as soon as an earlier core does."""
        graph, waiting, refused = self.graph, [self.seed], set[str]()
        while waiting:
            at = waiting.pop(0)
            for near in (*graph.sources(at), *graph.in_order(graph.readers(at))):
                if near.id in self.chosen or near.id in refused or not self.steps(near):
                    continue
                if not self._follows(near):
                    continue
                more = self._closure(near)
                if more is None:
                    refused.add(near.id)
                    continue
                cores = [self.seed, *(r for r in more if self.joining.core(r))]
                if graph.in_order(cores)[0] is not self.seed:
                    return False
                self._take(more)
                waiting += more
        return True

    def _follows(self, region: Region) -> bool:
        """True of a core, and of what follows one by way of steps: nothing else would stay, and
        a path from it could bar others."""
        if self.joining.core(region):
            return True
        waiting, seen = [region], {region.id}
        while waiting and region.id not in self._leading:
            for source in self.graph.sources(waiting.pop()):
                if not self.steps(source) or source.id in seen or source.id in self._leading:
                    continue
                if source.id in self.chosen or self.joining.core(source):
                    return True
                seen.add(source.id)
                waiting.append(source)
        self._leading |= seen
        return False

    def _closure(self, near: Region) -> list[Region] | None:
        """A region and everything on paths between it and the chosen; None if not all can join."""
        more = self.graph.joining(self.chosen, near)
        if not all(map(self.steps, more)):
            return None
        reads = self._reads.union(*(r.reads for r in more))
        operands = reads.difference(self._writes, *(r.writes for r in more))
        fits = self._count + sum(map(self.steps, more)) <= self.joining.most_steps
        return more if fits and len(operands) <= self.joining.most_operands else None

    def _take(self, more: Sequence[Region]) -> None:
        self.chosen |= {r.id: r for r in more}
        self._count += sum(map(self.steps, more))
        self._reads.update(*(r.reads for r in more))
        self._writes.update(*(r.writes for r in more))

    def trimmed(self) -> list[Region]:
        """Without what has no core before it, and what follows the last core in vain.

        The chosen are convex: what lies before or behind one of them does so inside.
        """
        graph, core = self.graph, self.joining.core
        chosen = graph.in_order(self.chosen.values())
        after = _with_core(chosen, core, graph.sources)
        before = _with_core(chosen[::-1], core, graph.readers)
        kept: dict[str, Region] = {}
        for region in chosen:
            behind = region.id in after
            sources = (s.id for s in graph.sources(region) if s.id in self.chosen)
            tail = behind and self.joining.ends(region) and all(s in kept for s in sources)
            if core(region) or (behind and region.id in before) or tail:
                kept[region.id] = region
        return list(kept.values())


def _with_core(
    regions: Sequence[Region],
    core: Callable[[Region], bool],
    near: Callable[[Region], Sequence[Region]],
) -> set[str]:
    """Of regions in order those that a core comes before, by way of ``near``."""
    found, reached = set[str](), set[str]()
    for region in regions:
        if not reached.isdisjoint(r.id for r in near(region)):
            found.add(region.id)
        if region.id in found or core(region):
            reached.add(region.id)
    return found
