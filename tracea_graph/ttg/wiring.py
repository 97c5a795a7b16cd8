"""Who writes and who reads each value of a region graph, and an order that follows the edges.

Every region has a *rank*, its place in the original model, which orders what edges leave open,
and a *position*, a number that never falls along an edge.  A cycle would have to come back to
where it began, so that only regions of no higher position than the newest ones can be on it: a
replacement looks at its neighbourhood, not at the graph.
Source: Pearce and Kelly, "A dynamic topological sort algorithm", JEA 2006, with ties allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from tracea_graph.errors import CycleError, GraphError
from tracea_graph.ttg.region import Region, Use

__all__ = ["Rank", "Wiring"]

Rank = tuple[int, int]


class Wiring:
    """Regions by id, and the two ends of every value between them."""

    def __init__(self) -> None:
        self.regions: dict[str, Region] = {}
        self.rank: dict[str, Rank] = {}
        self.producer: dict[str, Region] = {}
        self._uses: dict[str, dict[tuple[str, int], Use]] = {}
        self._position: dict[str, int] = {}
        self._order: list[Region] | None = None
        self._index: dict[str, int] = {}

    def uses(self, value: str) -> Iterable[Use]:
        """The operands that read a value, in the order in which they came."""
        return self._uses.get(value, _NOBODY).values()

    def read(self, value: str) -> bool:
        """True if a region reads the value."""
        return bool(self._uses.get(value))

    def sources(self, region: Region) -> Iterator[Region]:
        """Regions that write what a region reads; one may come several times."""
        return (self.producer[v] for v in region.reads if v in self.producer)

    def readers(self, region: Region) -> Iterator[Region]:
        """Regions that read what a region writes; one may come several times."""
        return (use.region for v in region.writes for use in self.uses(v))

    def order(self) -> list[Region]:
        """Producers before consumers, by rank otherwise.  Raises GraphError on a cycle."""
        if self._order is None:
            self._order = self._sorted()
            self._index = {r.id: i for i, r in enumerate(self._order)}
            self._position = dict(self._index)
        return self._order

    def places(self) -> Mapping[str, int]:
        """By name, where a region stands in :meth:`order`."""
        self.order()
        return self._index

    def _sorted(self) -> list[Region]:
        waiting = {r.id: len({s.id for s in self.sources(r)}) for r in self.regions.values()}
        ready = [(self.rank[name], name) for name, count in waiting.items() if not count]
        heapify(ready)
        found: list[Region] = []
        while ready:
            region = self.regions[heappop(ready)[1]]
            found.append(region)
            for name in {r.id for r in self.readers(region)}:
                waiting[name] -= 1
                if not waiting[name]:
                    heappush(ready, (self.rank[name], name))
        if len(found) < len(self.regions):
            raise GraphError("the graph has a cycle")
        return found

    def between(self, regions: Iterable[Region]) -> set[str]:
        """Names of the regions, and of all that lie on paths from one of them to another."""
        self._settled()
        inside = list(regions)
        places = [self._position[r.id] for r in inside]
        low, high = min(places, default=0), max(places, default=0)
        below = self._reached(inside, self.readers, lambda at: at <= high)
        above = self._reached(inside, self.sources, lambda at: at >= low)
        return {r.id for r in inside} | (below & above)

    def _reached(
        self, start: Iterable[Region], step: Callable[[Region], Iterable[Region]],
        near: Callable[[int], bool],
    ) -> set[str]:  # fmt: skip
        """What follows (or comes before) some regions, as far as positions are near."""
        found, waiting = set[str](), list(start)
        while waiting:
            for region in step(waiting.pop()):
                if region.id not in found and near(self._position[region.id]):
                    found.add(region.id)
                    waiting.append(region)
        return found

    def add(self, ranked: Sequence[tuple[Rank, Region]]) -> None:
        """New regions.  Raises GraphError if a value or a name of theirs is there already."""
        self._order = None
        for rank, region in ranked:
            if region.id in self.regions:
                raise GraphError(f"two regions are called {region.id!r}")
            self.regions[region.id], self.rank[region.id] = region, rank
            for value in region.writes:
                if value in self.producer:
                    raise GraphError(f"value {value!r} is written twice")
                self.producer[value] = region
            operands = [(v, i) for i, v in enumerate(region.operands) if v]
            for value, operand in operands + [(v, -1) for v in region.captures]:
                readers = self._uses.setdefault(value, {})
                readers[region.id, operand] = Use(region, operand)

    def remove(self, regions: Iterable[Region]) -> None:
        """Regions leave; what they read and wrote stays for others to name."""
        self._order = None
        for region in regions:
            for value in region.captures:
                del self._uses[value][region.id, -1]
            for operand, value in enumerate(region.operands):
                if value:
                    del self._uses[value][region.id, operand]
            for value in region.writes:
                del self.producer[value]
            del self.regions[region.id], self.rank[region.id]

    def exchange(self, old: Sequence[Region], new: Sequence[Region]) -> None:
        """Put ``new`` in the place of ``old``.

        Raises GraphError, leaving everything as it was, if the result would have a cycle.
        """
        self._settled()
        ranked = [(self.rank[r.id], r) for r in old]
        last = max((rank for rank, _ in ranked), default=(len(self.regions), 0))
        places = {r.id: self._position.pop(r.id) for r in old}
        self.remove(old)
        self.add([((last[0], last[1] + 1 + i), r) for i, r in enumerate(new)])
        if not self._place(new, max(places.values(), default=0)):
            self.remove(new)
            for region in new:
                del self._position[region.id]
            self.add(ranked)
            self._position |= places
            raise CycleError(f"fusing {sorted(places)} would make a cycle")

    def _settled(self) -> None:
        """Know a position of every region."""
        if len(self._position) != len(self.regions):
            self.order()

    def drop(self, regions: Sequence[Region]) -> None:
        """Remove regions that nobody reads."""
        self.remove(regions)
        for region in regions:
            self._position.pop(region.id, None)

    def _place(self, new: Sequence[Region], least: int) -> bool:
        """Give new regions positions, and move up what follows them; False on a cycle."""
        sources = (self._position.get(s.id, 0) for r in new for s in self.sources(r))
        here = max((least, *sources))
        self._position |= {r.id: here for r in new}
        moved = set[str]()
        for region in new:
            after = self._reached((region,), self.readers, lambda at: at <= here)
            if region.id in after:
                return False
            moved |= after
        self._position |= dict.fromkeys(moved, here)
        return True


_NOBODY: Mapping[tuple[str, int], Use] = {}
