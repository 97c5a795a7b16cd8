"""Dynamic topological order of a graph's regions, maintained while regions come and go.

Every region has a *rank*, its place in the original model, which breaks ties, and a *position*, a
number that never decreases along an edge.  A new cycle returns to the newest regions, so none of
its regions has a higher position than these: a replacement examines its neighborhood, not the
whole graph.  Source: Pearce and Kelly, "A dynamic topological sort algorithm", JEA 2006, with ties
allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from networkx import MultiDiGraph

from tracea_graph.errors import GraphError

__all__ = ["Rank", "TopologicalOrder"]

Rank = tuple[int, int]


class TopologicalOrder:
    """An incremental topological order of a graph's regions: a rank and a position for each name.

    The code that changes the graph calls :meth:`enter` for each region added and :meth:`leave` for
    each region removed.
    """

    def __init__(self, graph: MultiDiGraph) -> None:
        # raw adjacency dicts: networkx views dominate the time of a traversal
        self._next, self._before = graph._succ, graph._pred
        self.rank: dict[str, Rank] = {}
        self._position: dict[str, int] = {}
        self._order: list[str] | None = None
        self._places: dict[str, int] = {}

    def sources(self, name: str) -> Iterator[str]:
        """Yield regions that have an edge to the given one."""
        return (near for near in self._before[name] if near in self.rank)

    def readers(self, name: str) -> Iterator[str]:
        """Yield regions that have an edge from the given one."""
        return (near for near in self._next[name] if near in self.rank)

    def order(self) -> list[str]:
        """Return all regions, sources first, otherwise by rank; raises GraphError on a cycle."""
        if self._order is None:
            self._order = self._sorted(self.rank)
            self._places = {name: i for i, name in enumerate(self._order)}
            self._position = dict(self._places)
        return self._order

    def places(self) -> Mapping[str, int]:
        """Index of each region in :meth:`order`."""
        self.order()
        return self._places

    def order_of_convex(self, names: Collection[str]) -> list[str]:
        """Return a convex set in the order of :meth:`order`, without looking outside the set."""
        return self._sorted(names)

    def _sorted(self, names: Collection[str]) -> list[str]:
        """Sort regions by the edges among them, and by rank where those leave a choice."""
        waiting = {name: sum(s in names for s in self._before[name]) for name in names}
        ready = [(self.rank[name], name) for name, count in waiting.items() if not count]
        heapify(ready)
        found: list[str] = []
        while ready:
            found.append(heappop(ready)[1])
            for name in self._next[found[-1]]:
                if name not in names:
                    continue
                waiting[name] -= 1
                if not waiting[name]:
                    heappush(ready, (self.rank[name], name))
        if len(found) < len(names):
            raise GraphError("the graph has a cycle")
        return found

    def enter(self, name: str, rank: Rank) -> None:
        """Add a region."""
        self.rank[name], self._order = rank, None

    def leave(self, name: str) -> tuple[Rank, int | None]:
        """Remove a region; returns its rank, and its position if it had one, for :meth:`back`."""
        self._order = None
        return self.rank.pop(name), self._position.pop(name, None)

    def back(self, name: str, was: tuple[Rank, int | None]) -> None:
        """Restore a removed region."""
        rank, position = was
        self.enter(name, rank)
        if position is not None:
            self._position[name] = position

    def update_positions(self) -> None:
        """Compute the positions of all regions in topological order, if any are missing."""
        if len(self._position) != len(self.rank):
            self.order()

    def place(self, new: Collection[str], least: int) -> bool:
        """Place new regions behind their sources, and readers behind new regions.

        Positions are at least ``least``.  Returns False if there is a cycle.
        """
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
        """Return the regions and everything on paths from one of them to another."""
        self.update_positions()
        places = [self._position[name] for name in names]
        low, high = min(places, default=0), max(places, default=0)
        below = self._reached(names, self.readers, lambda at: at <= high)
        above = self._reached(names, self.sources, lambda at: at >= low)
        return {*names} | (below & above)

    def convex_closure(self, inside: Collection[str], near: str) -> set[str]:
        """Return the regions on paths between ``near`` and the convex set ``inside``.

        ``near`` is not in the set.  Because the set is convex, the search stays around ``near``.
        """
        self.update_positions()
        places = [self._position[name] for name in inside]
        low, high = min(places), max(places)
        found = self._leading(inside, near, self.sources, lambda at: at >= low)
        return found | self._leading(inside, near, self.readers, lambda at: at <= high)

    def _leading(
        self, inside: Collection[str], near: str,
        step: Callable[[str], Iterable[str]], close: Callable[[int], bool],
    ) -> set[str]:  # fmt: skip
        """Regions on walks by ``step`` from ``near`` to ``inside``, limited to close positions."""
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
        """Regions reachable by ``step`` from ``start``, limited to near positions."""
        found, waiting = set[str](), list(start)
        while waiting:
            for name in step(waiting.pop()):
                if name not in found and near(self._position[name]):
                    found.add(name)
                    waiting.append(name)
        return found
