"""An order of a graph's regions that follows its edges, kept while regions come and go.

Every region has a *rank*, its place in the original model, which orders what edges leave open,
and a *position*, a number that never falls along an edge.  A cycle would have to come back to
where it began, so that only regions of no higher position than the newest ones can be on it: a
replacement looks at its neighbourhood, not at the graph.
Source: Pearce and Kelly, "A dynamic topological sort algorithm", JEA 2006, with ties allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from networkx import MultiDiGraph

from tracea_graph.errors import GraphError

__all__ = ["Rank", "Topology"]

Rank = tuple[int, int]


class Topology:
    """Ranks and positions of those nodes of a graph that are regions, by name.

    Whoever changes the graph says so: :meth:`enter` and :meth:`leave`.
    """

    def __init__(self, graph: MultiDiGraph) -> None:
        # the dicts themselves: views on them take most of the time of a walk
        self._next, self._before = graph._succ, graph._pred
        self.rank: dict[str, Rank] = {}
        self._position: dict[str, int] = {}
        self._order: list[str] | None = None
        self._places: dict[str, int] = {}

    def sources(self, name: str) -> Iterator[str]:
        """Regions that an edge leads from."""
        return (near for near in self._before[name] if near in self.rank)

    def readers(self, name: str) -> Iterator[str]:
        """Regions that an edge leads to."""
        return (near for near in self._next[name] if near in self.rank)

    def order(self) -> list[str]:
        """Sources before readers, by rank otherwise.  Raises GraphError on a cycle."""
        if self._order is None:
            self._order = self._sorted()
            self._places = {name: i for i, name in enumerate(self._order)}
            self._position = dict(self._places)
        return self._order

    def places(self) -> Mapping[str, int]:
        """Where each region stands in :meth:`order`."""
        self.order()
        return self._places

    def _sorted(self) -> list[str]:
        waiting = {name: sum(1 for _ in self.sources(name)) for name in self.rank}
        ready = [(self.rank[name], name) for name, count in waiting.items() if not count]
        heapify(ready)
        found: list[str] = []
        while ready:
            found.append(heappop(ready)[1])
            for name in self.readers(found[-1]):
                waiting[name] -= 1
                if not waiting[name]:
                    heappush(ready, (self.rank[name], name))
        if len(found) < len(self.rank):
            raise GraphError("the graph has a cycle")
        return found

    def enter(self, name: str, rank: Rank) -> None:
        """A region came."""
        self.rank[name], self._order = rank, None

    def leave(self, name: str) -> tuple[Rank, int | None]:
        """A region went; its rank, and its position if it had one, for :meth:`back`."""
        self._order = None
        return self.rank.pop(name), self._position.pop(name, None)

    def back(self, name: str, was: tuple[Rank, int | None]) -> None:
        """A region that had left came back as it was."""
        rank, position = was
        self.enter(name, rank)
        if position is not None:
            self._position[name] = position

    def settle(self) -> None:
        """Know a position of every region."""
        if len(self._position) != len(self.rank):
            self.order()

    def place(self, new: Collection[str], least: int) -> bool:
        """Give new regions positions, and move up what follows them; False on a cycle."""
        sources = (self._position.get(s, 0) for name in new for s in self.sources(name))
        here = max((least, *sources))
        self._position |= dict.fromkeys(new, here)
        moved = set[str]()
        for name in new:
            after = self._reached((name,), self.readers, lambda at: at <= here)
            if name in after:
                return False
            moved |= after
        self._position |= dict.fromkeys(moved, here)
        return True

    def between(self, names: Collection[str]) -> set[str]:
        """The regions, and all that lie on paths from one of them to another."""
        self.settle()
        places = [self._position[name] for name in names]
        low, high = min(places, default=0), max(places, default=0)
        below = self._reached(names, self.readers, lambda at: at <= high)
        above = self._reached(names, self.sources, lambda at: at >= low)
        return {*names} | (below & above)

    def convex_closure(self, inside: Collection[str], near: str) -> set[str]:
        """What lies on paths between ``near`` and regions ``inside``.

        Those lie apart from it, and have all that is between them among them: only what is around
        ``near`` is looked at.
        """
        self.settle()
        places = [self._position[name] for name in inside]
        low, high = min(places), max(places)
        found = self._leading(inside, near, self.sources, lambda at: at >= low)
        return found | self._leading(inside, near, self.readers, lambda at: at <= high)

    def _leading(
        self, inside: Collection[str], near: str,
        step: Callable[[str], Iterable[str]], close: Callable[[int], bool],
    ) -> set[str]:  # fmt: skip
        """What steps from a region pass through that come to one inside, as far as is close."""
        behind: dict[str, list[str]] = {}
        waiting, ends = [near], list[str]()
        while waiting:
            at = waiting.pop()
            for name in step(at):
                if name in inside:
                    ends.append(at)
                elif name in behind:
                    behind[name].append(at)
                elif close(self._position[name]):
                    behind[name] = [at]
                    waiting.append(name)
        found = set[str]()
        while ends:
            name = ends.pop()
            if name not in found and name != near:
                found.add(name)
                ends += behind[name]
        return found

    def _reached(
        self, start: Iterable[str], step: Callable[[str], Iterable[str]],
        near: Callable[[int], bool],
    ) -> set[str]:  # fmt: skip
        """What follows (or comes before) some regions, as far as positions are near."""
        found, waiting = set[str](), list(start)
        while waiting:
            for name in step(waiting.pop()):
                if name not in found and near(self._position[name]):
                    found.add(name)
                    waiting.append(name)
        return found
