"""Partitioning: which regions run as one program, with one arena.

A program grows from an anchor (a region that is worth a program) to all neighbors that can be
members.  It stays convex, which lets it run as a whole: no path leaves it and comes back.  Regions
before the first anchor stay outside, and so do regions after the last anchor that do not finish
its work.  The former are never added, because a path from them back into the program would keep
other regions out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tracea_graph.ttg.region import Region
from tracea_graph.ttg.region_graph import TileGraph

__all__ = ["PartitionRules", "partition_from"]


@dataclass(frozen=True)
class PartitionRules:
    """Predicates and limits of the partitioner.

    * ``steps``: returns how many steps of a program a region would become, 0 if it cannot join;
    * ``anchor``: whether a region is worth a program;
    * ``may_end``: whether a region that follows the last anchor should join.
    """

    steps: Callable[[Region], int]
    anchor: Callable[[Region], bool]
    may_end: Callable[[Region], bool]
    max_steps: int
    max_operands: int


def partition_from(
    graph: TileGraph, seed: Region, rules: PartitionRules, without: Collection[str] = ()
) -> list[Region]:
    """Return the members of the program whose first anchor is ``seed``, producers first.

    Empty if an earlier anchor would be a member: the program is then found from that anchor.
    ``without`` names regions that stay outside.
    """
    growing = _Partitioner(graph, seed, rules, without)
    return growing.trimmed() if growing.grow() else []


class _Partitioner:
    """The members chosen so far around an anchor."""

    def __init__(
        self, graph: TileGraph, seed: Region, rules: PartitionRules, without: Collection[str]
    ) -> None:
        self.graph, self.seed, self.rules, self.without = graph, seed, rules, without
        self.chosen = {seed.id: seed}
        self._steps: dict[str, int] = {}
        self._count = self.steps(seed)
        self._reads, self._writes = {*seed.reads}, {*seed.writes}
        self._leading = set[str]()

    def steps(self, region: Region) -> int:
        if region.id not in self._steps:
            fits = region.id not in self.without
            self._steps[region.id] = self.rules.steps(region) if fits else 0
        return self._steps[region.id]

    def grow(self) -> bool:
        """Add all regions that can join, nearest first; return False if an earlier anchor can."""
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
                anchors = [self.seed, *(r for r in more if self.rules.anchor(r))]
                if graph.in_order(anchors)[0] is not self.seed:
                    return False
                self._take(more)
                waiting += more
        return True

    def _follows(self, region: Region) -> bool:
        """Whether a region is an anchor or follows one through members.

        Other regions would be trimmed later, and a path from them could keep members out.
        """
        if self.rules.anchor(region):
            return True
        waiting, seen = [region], {region.id}
        while waiting and region.id not in self._leading:
            for source in self.graph.sources(waiting.pop()):
                if not self.steps(source) or source.id in seen or source.id in self._leading:
                    continue
                if source.id in self.chosen or self.rules.anchor(source):
                    return True
                seen.add(source.id)
                waiting.append(source)
        self._leading |= seen
        return False

    def _closure(self, near: Region) -> list[Region] | None:
        """A region and everything on paths between it and the chosen; None if not all can join."""
        more = self.graph.convex_closure(self.chosen, near)
        if not all(map(self.steps, more)):
            return None
        reads = self._reads.union(*(r.reads for r in more))
        operands = reads.difference(self._writes, *(r.writes for r in more))
        fits = self._count + sum(map(self.steps, more)) <= self.rules.max_steps
        return more if fits and len(operands) <= self.rules.max_operands else None

    def _take(self, more: Sequence[Region]) -> None:
        self.chosen |= {r.id: r for r in more}
        self._count += sum(map(self.steps, more))
        self._reads.update(*(r.reads for r in more))
        self._writes.update(*(r.writes for r in more))

    def trimmed(self) -> list[Region]:
        """Return the anchors, the members between them, and followers that may end the program.

        The chosen set is convex: paths between two of its regions lie inside.
        """
        graph, anchor = self.graph, self.rules.anchor
        chosen = graph.in_order(self.chosen.values())
        after = _with_anchor(chosen, anchor, graph.sources)
        before = _with_anchor(chosen[::-1], anchor, graph.readers)
        kept: dict[str, Region] = {}
        for region in chosen:
            behind = region.id in after
            sources = (s.id for s in graph.sources(region) if s.id in self.chosen)
            tail = behind and self.rules.may_end(region) and all(s in kept for s in sources)
            if anchor(region) or (behind and region.id in before) or tail:
                kept[region.id] = region
        return list(kept.values())


def _with_anchor(
    regions: Sequence[Region],
    anchor: Callable[[Region], bool],
    near: Callable[[Region], Sequence[Region]],
) -> set[str]:
    """Ids of the regions, given in order, that ``near`` connects to an earlier anchor."""
    found, reached = set[str](), set[str]()
    for region in regions:
        if not reached.isdisjoint(r.id for r in near(region)):
            found.add(region.id)
        if region.id in found or anchor(region):
            reached.add(region.id)
    return found
