"""Depth first: which neighbours run together for some rows at a time, and for how many.

Regions that run one after another pass whole values on; a value larger than a core's own memory
has left it by the time the next region reads it.  If they take turns instead, a band of rows each,
what lies between them stays near.  A band of the last region's rows is propagated backwards
through the access maps; rows that windows share with the next turn are kept, not computed again.
In bytes that cross the border of the near level:

    saved     (2 + walks) · (value − level)    of each value in between: what does not stay of it
                                               is fetched to be written, written, and read once
                                               for every walk of its reader
    streamed  constants · (turns − 1)          they pass through again in every turn, which is
                                               mostly hidden behind arithmetic
    a price   for every region of every turn   its kernel has to be called again

Bands pay where the first exceeds what is seen of the others, and the values in between of one turn
fit beside a strip of each constant: that depends on shape alone.
Sources: Alwani et al., "Fused-layer CNN accelerators", MICRO 2016 (depth-first bands with reuse);
Shi et al., "Welder", OSDI 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracea_graph.errors import GraphError
from tracea_graph.ttg.graph import TileGraph
from tracea_graph.ttg.model import BoundModel
from tracea_graph.ttg.region import Region
from tracea_graph.ttg.space import BoundAccess, Ranges
from tracea_graph.ttg.traffic import MemoryLevel

__all__ = ["ROOMS", "Band", "Walk", "Walks", "band_of", "bands", "bands_by_room"]

_WAITED = 0.25
"""Of the bytes that pass through, the share that is waited for: kernels prefetch weights."""
_TURN = 128e3
"""Bytes that move in the time it takes to call a kernel for the next rows."""
_STRIP = 64
"""Columns of a constant that are near at once."""
_LONGEST = 8
"""Regions of a band: a longer chain shares ever more rows between turns."""


ROOMS = (2.5, 1.25, 0.6)
"""Of the near level for one turn.  The most is more than there is: a turn is read in the order in
which it was written, and its start goes first.  It moves the fewest bytes; what else lies there,
and what prefetching hides, is not known, so shorter turns are handed to measurement too."""


@dataclass(frozen=True)
class Walk:
    """How a region's kernel goes through the rows it reads: how often, and how many together."""

    times: int = 1
    together: int = 1


Walks = Callable[[Region], Walk | None]
"""The walk of a region; None if it cannot run in bands."""


@dataclass(frozen=True)
class Band:
    """Regions that take turns, ``rows`` of the last one's rows each, and bytes as above.

    ``held`` are the bytes of a turn that are handed on inside, by value; a turn needs them and a
    strip of each constant, ``resident`` in all.
    """

    regions: tuple[str, ...]
    rows: int
    turns: int
    held: Mapping[str, float]
    resident: float
    saved: float
    streamed: float

    @property
    def gain(self) -> float:
        """Bytes that are not waited for."""
        return self.saved - _WAITED * self.streamed - _TURN * self.turns * len(self.regions)


def bands(
    graph: TileGraph, bindings: Mapping[str, int], near: MemoryLevel, walks: Walks,
    room: float = ROOMS[0],
) -> list[Band]:  # fmt: skip
    """The bands that save most, of regions that follow each other in the graph's order.

    A turn takes up to ``room`` times the near level.  Raises GraphError if a symbol has no value.
    """
    return next(bands_by_room(graph, bindings, near, walks, (room,)))


def bands_by_room(
    graph: TileGraph, bindings: Mapping[str, int], near: MemoryLevel, walks: Walks,
    rooms: Iterable[float],
) -> Iterator[list[Band]]:  # fmt: skip
    """:func:`bands` for one room after another, of one look at the graph."""
    chain = graph.regions()
    ways = {r.id: walks(r) for r in chain}
    bound = [_bound(graph, r, bindings) if ways[r.id] else None for r in chain]
    made: dict[tuple[int, int], _Chain | None] = {}

    def between(start: int, end: int) -> _Chain | None:
        at = start, end
        if at not in made:
            made[at] = _Chain.of(
                graph, chain[start:end], bound[start:end], near, lambda r: ways[r.id]
            )
        return made[at]

    for room in rooms:
        yield _chosen(bound, between, room)


def _chosen(
    bound: Sequence[BoundModel | None], between: Callable[[int, int], _Chain | None], room: float
) -> list[Band]:
    """Of chains that do not overlap those that save most."""
    best: list[tuple[float, int, Band | None]] = [(0.0, 0, None)]
    for end in range(1, len(bound) + 1):
        best.append((best[-1][0], end - 1, None))
        for start in range(end - 2, max(end - _LONGEST, 0) - 1, -1):
            if bound[end - 1] is None or bound[start] is None:
                break
            found = _best(between(start, end), room)
            if found is not None and best[start][0] + found.gain > best[end][0]:
                best[end] = best[start][0] + found.gain, start, found
    chosen, at = list[Band](), len(bound)
    while at:
        _, at, band = best[at]
        chosen += [band] if band else []
    return chosen[::-1]


def band_of(
    graph: TileGraph, regions: Sequence[Region], bindings: Mapping[str, int], rows: int,
    near: MemoryLevel, walks: Walks,
) -> Band | None:  # fmt: skip
    """What regions in order move if they take turns of so many rows; None if one is opaque.

    Raises GraphError if a symbol has no value.
    """
    bound = [_bound(graph, r, bindings) for r in regions]
    made = _Chain.of(graph, regions, bound, near, walks)
    return made.band(rows) if made else None


def _bound(graph: TileGraph, region: Region, bindings: Mapping[str, int]) -> BoundModel | None:
    model = graph.model(region)
    return model.bind(bindings) if model and model.rows else None


def _best(made: _Chain | None, room: float) -> Band | None:
    """The largest band of which one turn fits, if it saves anything."""
    if made is None or made.saved <= 0:
        return None
    for rows in made.choices():
        if made.resident(rows) <= room * made.near.bytes:
            band = made.band(rows)
            return band if band.gain > 0 else None
    return None


@dataclass(frozen=True, eq=False)
class _Chain:
    """Regions that could take turns.  ``unit`` numbers of the last one's rows are one line."""

    names: tuple[str, ...]
    bound: tuple[BoundModel, ...]
    inner: frozenset[str]
    lines: int
    unit: int
    together: int
    saved: float
    near: MemoryLevel

    @classmethod
    def of(
        cls, graph: TileGraph, regions: Sequence[Region], bound: Sequence[BoundModel | None],
        near: MemoryLevel, walks: Walks,
    ) -> _Chain | None:  # fmt: skip
        """None if one is opaque, hands nothing on, or makes what others need too."""
        known = [b for b in bound if b is not None]
        ways = [way for r in regions if (way := walks(r)) is not None]
        if min(len(known), len(ways)) < len(regions):
            return None
        inside = {r.id for r in regions}
        passed = [_passed(graph, region, inside) for region in regions[:-1]]
        if not all(passed):
            return None
        inner = frozenset(v for values in passed for v in values)
        last = known[-1]
        rows = last.problem[1]
        # rows of images come in lines; those of matrices are numbered through
        unit = rows // max(int(last.extents[last.groups[1][0]]), 1) if last.model.batch else 1
        saved = 0.0
        for way, model in zip(ways, known, strict=True):
            for access in model.reads:
                size = access.item * float(access.shape.prod())
                if access.value in inner and size > near.bytes:
                    saved += (size - near.bytes) * (2 + way.times)
        return cls(
            tuple(r.id for r in regions), tuple(known), inner, rows // max(unit, 1), unit,
            max(way.together for way in ways), saved, near,
        )  # fmt: skip

    def choices(self) -> Iterable[int]:
        """Rows of a turn, the most first, in ever more turns."""
        step = self.together
        tried = (-(-self.lines // turns) for turns in range(2, self.lines + 1))
        return dict.fromkeys(-(-rows // step) * step for rows in tried)

    def band(self, rows: int) -> Band:
        turns = -(-self.lines // rows)
        constant = sum(self._constants().values())
        streamed = constant * (turns - 1) if constant > self.near.bytes / 4 else 0.0
        sizes = self._sizes(rows)
        held = {value: size for value, size in sizes.items() if value in self.inner}
        return Band(self.names, rows, turns, held, sum(sizes.values()), self.saved, streamed)

    def resident(self, rows: int) -> float:
        """Bytes of one turn that have to stay."""
        return sum(self._sizes(rows).values())

    def _sizes(self, rows: int) -> dict[str, float]:
        """Bytes of one turn: rows of what is handed on inside, and a strip of each constant."""
        constants = self._constants()
        sizes: dict[str, float] = {}
        for model, points in self._points(rows):
            for access in (*model.reads, *model.writes):
                size = access.item * float(access.touched(*points)[0])
                if access.value in constants:
                    size *= min(1.0, _STRIP / _columns(access, model))
                elif access.value not in self.inner:
                    continue
                sizes[access.value] = max(sizes.get(access.value, 0.0), size)
        return sizes

    def _constants(self) -> dict[str, float]:
        """Bytes of what every turn reads whole."""
        found = {}
        for model in self.bound:
            rows = {model.model.rows.index(r): r for r in model.model.rows}
            for access in model.reads:
                if access.value not in self.inner and not _follows(access, model, len(rows)):
                    found[access.value] = access.item * float(access.shape.prod())
        return found

    def _points(self, rows: int) -> Iterable[tuple[BoundModel, Ranges]]:
        """What a turn in the middle computes of each region, the last one first."""
        last = self.bound[-1]
        first = max(0, (self.lines - rows) // 2) * self.unit
        spans = [(0, n) for n in last.problem]
        spans[1] = first, min(first + rows * self.unit, last.problem[1])
        lo, hi = ([np.array([s[i]], np.int64) for s in spans] for i in (0, 1))
        tiles = tuple(zip(lo, hi, strict=True))
        assert len(tiles) == 4
        needed: dict[str, Ranges] = {}
        points: Ranges | None = last.ranges(tiles)
        for model in reversed(self.bound):
            if model is not last:
                points = _wanted(model.writes, needed)
            if points is None:
                raise GraphError(f"nothing needs what {model.model.name!r} makes")
            for access in model.reads:
                if access.value in self.inner:
                    box = access.box(*points)
                    old = needed.get(access.value, box)
                    needed[access.value] = np.minimum(old[0], box[0]), np.maximum(old[1], box[1])
            yield model, points


def _passed(graph: TileGraph, region: Region, inside: set[str]) -> list[str]:
    """What a region hands to the others; nothing if somebody else needs it too."""
    for value in region.writes:
        if graph.is_output(value) or any(u.region.id not in inside for u in graph.uses(value)):
            return []
    return [v for v in region.writes if graph.uses(v)]


def _follows(access: BoundAccess, model: BoundModel, rows: int) -> bool:
    """True if the first of its row axes that is longer than one says what is read."""
    axes = [a for a in model.groups[1] if model.extents[a] > 1][:1]
    return any(access.matrix[:, a].any() for a in axes)


def _columns(access: BoundAccess, model: BoundModel) -> int:
    """Columns of a constant: all it has along axes that are not summed over."""
    summed = {model.model.space.index(a) for a in model.model.depth}
    axes = [i for i in range(len(model.extents)) if access.matrix[:, i].any() and i not in summed]
    return max(1, int(model.extents[axes].prod()))


def _wanted(writes: Sequence[BoundAccess], needed: Mapping[str, Ranges]) -> Ranges | None:
    points: Ranges | None = None
    for access in writes:
        if access.value in needed:
            lo, hi = access.preimage(*needed[access.value])
            points = (lo, hi) if points is None else (
                np.minimum(points[0], lo), np.maximum(points[1], hi)
            )  # fmt: skip
    return points
