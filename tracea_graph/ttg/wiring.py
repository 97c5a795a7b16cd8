"""Who writes and who reads each value of a region graph, and an order that follows the edges.

Every region has a *rank*, its place in the original model, which orders what edges leave open,
and a *position*, a number that never falls along an edge.  A cycle would have to come back to
where it began, so that only regions of no higher position than the newest ones can be on it: a
replacement looks at its neighbourhood, not at the graph.
Source: Pearce and Kelly, "A dynamic topological sort algorithm", JEA 2006, with ties allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush

from tracea_graph.errors import CycleError, GraphError
from tracea_graph.ttg.region import Region, Use

__all__ = ["History", "Rank", "Wiring"]

Rank = tuple[int, int]
History = dict[tuple[int, Region | None, bool], int]
"""Numbers of states: from the state before, and what came or went."""

_ALL, _KNOWN = "", " "
"""Stand for the whole graph, and for what is known of values that are there, where others stand
for a value; none has such a name."""


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
        self._history: History | None = None
        self._states: dict[str, int] = {}
        self._seen: set[str] | None = None

    # ---- what an answer depends on -----------------------------------------------------

    def record(self, history: History) -> None:
        """Number the states of values from here on; wirings that share a history have the same
        number where the same happened to what was equal when recording began."""
        self._history, self._states = history, {}

    def states(self, values: Iterable[str]) -> list[int]:
        """The numbers of values' states: who writes one, who reads it, what is known of it."""
        known = self._states
        return [known.get(value, 0) for value in values]

    @contextmanager
    def watched(self) -> Iterator[set[str]]:
        """What is asked for meanwhile: as long as these are in the same state, so are answers."""
        before, self._seen = self._seen, {_KNOWN}
        try:
            yield self._seen
        finally:
            self._seen = before

    def relearn(self) -> None:
        """Something else is known of a value that was there before."""
        self._touch((_KNOWN,), None, came=True)

    def _touch(self, values: Iterable[str], by: Region | None, came: bool) -> None:
        """Values, and with them the whole, are in another state."""
        if self._history is not None:
            for value in (_ALL, *values):
                step = self._states.get(value, 0), by, came
                self._states[value] = self._history.setdefault(step, len(self._history) + 1)

    # ---- questions ---------------------------------------------------------------------

    def region(self, name: str) -> Region | None:
        """The region of that name."""
        if self._seen is not None:
            self._seen.add(_ALL)
        return self.regions.get(name)

    def writer(self, value: str) -> Region | None:
        """The region that writes a value."""
        if self._seen is not None:
            self._seen.add(value)
        return self.producer.get(value)

    def uses(self, value: str) -> Iterable[Use]:
        """The operands that read a value, in the order in which they came."""
        if self._seen is not None:
            self._seen.add(value)
        return self._uses.get(value, _NOBODY).values()

    def read(self, value: str) -> bool:
        """True if a region reads the value."""
        if self._seen is not None:
            self._seen.add(value)
        return bool(self._uses.get(value))

    def sources(self, region: Region) -> Iterator[Region]:
        """Regions that write what a region reads; one may come several times."""
        if self._seen is not None:
            self._seen.update(region.reads)
        return (self.producer[v] for v in region.reads if v in self.producer)

    def readers(self, region: Region) -> Iterator[Region]:
        """Regions that read what a region writes; one may come several times."""
        return (use.region for v in region.writes for use in self.uses(v))

    def order(self) -> list[Region]:
        """Producers before consumers, by rank otherwise.  Raises GraphError on a cycle."""
        if self._seen is not None:
            self._seen.add(_ALL)
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
        if self._seen is not None:
            self._seen.add(_ALL)
        self._settled()
        inside = list(regions)
        places = [self._position[r.id] for r in inside]
        low, high = min(places, default=0), max(places, default=0)
        below = self._reached(inside, self.readers, lambda at: at <= high)
        above = self._reached(inside, self.sources, lambda at: at >= low)
        return {r.id for r in inside} | (below & above)

    def joining(self, inside: Mapping[str, Region], near: Region) -> set[str]:
        """Names of what lies on paths between ``near`` and regions ``inside``, which lie apart
        from it and have all that is between them among them: only what is around ``near`` is
        looked at.
        """
        if self._seen is not None:
            self._seen.add(_ALL)
        self._settled()
        places = [self._position[name] for name in inside]
        low, high = min(places), max(places)
        found = self._leading(inside, near, self.sources, lambda at: at >= low)
        return found | self._leading(inside, near, self.readers, lambda at: at <= high)

    def _leading(
        self, inside: Mapping[str, Region], near: Region,
        step: Callable[[Region], Iterable[Region]], close: Callable[[int], bool],
    ) -> set[str]:  # fmt: skip
        """What steps from a region pass through that come to one inside, as far as is close."""
        behind: dict[str, list[str]] = {}
        waiting, ends = [near], list[str]()
        while waiting:
            at = waiting.pop()
            for region in step(at):
                if region.id in inside:
                    ends.append(at.id)
                elif region.id in behind:
                    behind[region.id].append(at.id)
                elif close(self._position[region.id]):
                    behind[region.id] = [at.id]
                    waiting.append(region)
        found = set[str]()
        while ends:
            name = ends.pop()
            if name not in found and name != near.id:
                found.add(name)
                ends += behind[name]
        return found

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
            self._touch((*region.reads, *region.writes), region, came=True)
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
            self._touch((*region.reads, *region.writes), region, came=False)
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
