"""Row tiling: which neighboring regions to fuse over tiles of rows, and how many rows per tile.

Regions that run one after another pass whole values; a value larger than the near memory level has
been evicted when the next region reads it.  If the regions run in one loop over tiles of rows
instead, the values between them stay near.  A tile of the last region's rows is propagated
backwards through the access maps; rows that windows share with the next iteration are carried, not
recomputed.  In bytes that cross the border of the near level:

    saved     (2 + passes) · (value − level)   of each value in between: the part that does not fit
                                               is fetched to be written, written, and read once
                                               for every pass of its reader
    streamed  constants · (iterations − 1)     constants are read again in every iteration, which
                                               is mostly hidden behind arithmetic
    overhead  per region and iteration         one more kernel call

Row tiling pays if the bytes saved exceed the visible part of the others, and if the values of one
iteration fit beside a strip of each constant; both depend on shapes alone. Sources: Alwani et al.,
"Fused-layer CNN accelerators", MICRO 2016 (depth-first with reuse); Shi et al., "Welder", OSDI
2023.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracea_graph.errors import GraphError
from tracea_graph.ttg.iteration_space import BoundAccess, Ranges
from tracea_graph.ttg.loop_nest_model import BoundModel
from tracea_graph.ttg.memory_traffic import MemoryLevel
from tracea_graph.ttg.region import Region
from tracea_graph.ttg.region_graph import TileGraph

__all__ = [
    "CACHE_FRACTIONS",
    "RowReuse",
    "RowReuseOf",
    "RowTiling",
    "row_tiling_of",
    "row_tilings",
    "row_tilings_by_size",
]

_EXPOSED = 0.25
"""Fraction of streamed bytes whose latency is exposed: kernels prefetch weights."""
_CALL_BYTES = 128e3
"""Cost of one more kernel call, as bytes moved in that time."""
_STRIP_COLUMNS = 64
"""Columns of a constant that occupy the near level at a time."""
_MAX_REGIONS = 8
"""Maximum number of regions in one loop: each adds rows that iterations share."""
_MANY_LINES = 1 << 16
"""Lines from which on the largest tile that fits is found by halving: larger tiles hold more."""


CACHE_FRACTIONS = (2.5, 1.25, 0.6)
"""Fractions of the near level that one iteration may occupy, largest first.

The largest exceeds the level: values are read in the order in which they were written, and
their start may be evicted first.  It moves the fewest bytes.  Smaller tiles are measured too,
because the level's other contents and the effect of prefetching are unknown."""


@dataclass(frozen=True)
class RowReuse:
    """How often a kernel passes over its input rows, and how many rows it processes at once."""

    passes: int = 1
    granularity: int = 1


RowReuseOf = Callable[[Region], RowReuse | None]
"""Returns how a region reuses rows; None if it cannot be tiled by rows."""


@dataclass(frozen=True)
class RowTiling:
    """Regions fused in one loop over tiles of ``rows`` rows of the last region.

    ``held`` maps each value passed between the regions to its bytes per iteration.  ``resident``
    is the sum of these bytes and a strip of each constant.  The module's docstring defines
    ``saved`` and ``streamed``.
    """

    regions: tuple[str, ...]
    rows: int
    iterations: int
    held: Mapping[str, float]
    resident: float
    saved: float
    streamed: float

    @property
    def gain(self) -> float:
        """Saved bytes, minus the exposed streamed bytes, minus the calls' cost as bytes."""
        return (
            self.saved
            - _EXPOSED * self.streamed
            - _CALL_BYTES * self.iterations * len(self.regions)
        )


def row_tilings(
    graph: TileGraph, bindings: Mapping[str, int], near: MemoryLevel, row_reuse: RowReuseOf,
    cache_fraction: float = CACHE_FRACTIONS[0],
) -> list[RowTiling]:  # fmt: skip
    """Choose the row tilings of consecutive regions (in graph order) with the largest total gain.

    One iteration occupies up to ``cache_fraction`` of the near level.  Raises GraphError if a
    symbol has no value.
    """
    return next(row_tilings_by_size(graph, bindings, near, row_reuse, (cache_fraction,)))


def row_tilings_by_size(
    graph: TileGraph, bindings: Mapping[str, int], near: MemoryLevel, row_reuse: RowReuseOf,
    cache_fractions: Iterable[float],
) -> Iterator[list[RowTiling]]:  # fmt: skip
    """Yield :func:`row_tilings` for each cache fraction; the graph is analysed once."""
    chain = graph.regions()
    reuses = {r.id: row_reuse(r) for r in chain}
    bound = [_bind(graph, r, bindings) if reuses[r.id] else None for r in chain]
    made: dict[tuple[int, int], _Candidate | None] = {}

    def between(start: int, end: int) -> _Candidate | None:
        at = start, end
        if at not in made:
            made[at] = _Candidate.of(
                graph, chain[start:end], bound[start:end], near, lambda r: reuses[r.id]
            )
        return made[at]

    for cache_fraction in cache_fractions:
        yield _select(bound, between, cache_fraction)


def _select(
    bound: Sequence[BoundModel | None],
    between: Callable[[int, int], _Candidate | None],
    cache_fraction: float,
) -> list[RowTiling]:
    """Choose the candidates that do not overlap and together gain most (dynamic programming)."""
    best: list[tuple[float, int, RowTiling | None]] = [(0.0, 0, None)]
    for end in range(1, len(bound) + 1):
        best.append((best[-1][0], end - 1, None))
        for start in range(end - 2, max(end - _MAX_REGIONS, 0) - 1, -1):
            if bound[end - 1] is None or bound[start] is None:
                break
            found = _largest_fitting(between(start, end), cache_fraction)
            if found is not None and best[start][0] + found.gain > best[end][0]:
                best[end] = best[start][0] + found.gain, start, found
    chosen, at = list[RowTiling](), len(bound)
    while at:
        _, at, tiling = best[at]
        chosen += [tiling] if tiling else []
    return chosen[::-1]


def row_tiling_of(
    graph: TileGraph, regions: Sequence[Region], bindings: Mapping[str, int], rows: int,
    near: MemoryLevel, row_reuse: RowReuseOf,
) -> RowTiling | None:  # fmt: skip
    """Return the row tiling of ``regions`` by ``rows`` rows; None if a region is opaque.

    Raises GraphError if a symbol has no value.
    """
    bound = [_bind(graph, r, bindings) for r in regions]
    made = _Candidate.of(graph, regions, bound, near, row_reuse)
    return made.tiling(rows) if made else None


def _bind(graph: TileGraph, region: Region, bindings: Mapping[str, int]) -> BoundModel | None:
    model = graph.model(region)
    return model.bind(bindings) if model and model.rows else None


def _largest_fitting(made: _Candidate | None, cache_fraction: float) -> RowTiling | None:
    """Return the tiling with the largest tile that fits; None if it saves nothing."""
    if made is None or made.saved <= 0:
        return None

    def fits(rows: int) -> bool:
        return made.resident(rows) <= cache_fraction * made.near.bytes

    choices: Iterable[int] = made.choices()
    if made.lines > _MANY_LINES:
        every = list(choices)
        choices = every[bisect_left(every, True, key=fits) :]
    for rows in choices:
        if fits(rows):
            tiling = made.tiling(rows)
            return tiling if tiling.gain > 0 else None
    return None


@dataclass(frozen=True, eq=False)
class _Candidate:
    """Regions that could share a loop; ``unit`` rows of the last region form one line."""

    names: tuple[str, ...]
    bound: tuple[BoundModel, ...]
    inner: frozenset[str]
    lines: int
    unit: int
    granularity: int
    saved: float
    near: MemoryLevel

    @classmethod
    def of(
        cls, graph: TileGraph, regions: Sequence[Region], bound: Sequence[BoundModel | None],
        near: MemoryLevel, row_reuse: RowReuseOf,
    ) -> _Candidate | None:  # fmt: skip
        """Return a candidate for fusing ``regions``; None if they cannot be fused.

        They cannot if a region is opaque, cannot be tiled by rows, passes nothing on, or has a
        result that others read.
        """
        known = [b for b in bound if b is not None]
        reuses = [reuse for r in regions if (reuse := row_reuse(r)) is not None]
        if min(len(known), len(reuses)) < len(regions):
            return None
        members = {r.id for r in regions}
        passed = [_intermediates(graph, region, members) for region in regions[:-1]]
        if not all(passed):
            return None
        inner = frozenset(v for values in passed for v in values)
        last = known[-1]
        rows = last.problem[1]
        # an image line has several rows of the flattened space, a matrix row is a line of its own
        unit = rows // max(int(last.extents[last.groups[1][0]]), 1) if last.model.batch else 1
        saved = 0.0
        for reuse, model in zip(reuses, known, strict=True):
            for access in model.reads:
                size = access.item * float(access.shape.prod())
                if access.value in inner and size > near.bytes:
                    saved += (size - near.bytes) * (2 + reuse.passes)
        return cls(
            tuple(r.id for r in regions), tuple(known), inner, rows // max(unit, 1), unit,
            max(reuse.granularity for reuse in reuses), saved, near,
        )  # fmt: skip

    def choices(self) -> Iterator[int]:
        """Tile sizes in rows, the largest first; at most twice the root of the lines."""
        step, count, last = self.granularity, 2, 0
        while count <= self.lines:
            rows = -(-self.lines // count)
            if (rounded := -(-rows // step) * step) != last:
                yield rounded
            if rows == 1:
                return
            last, count = rounded, -(-self.lines // (rows - 1))  # the next with smaller tiles

    def tiling(self, rows: int) -> RowTiling:
        iterations = -(-self.lines // rows)
        constant = sum(self._constants().values())
        streamed = constant * (iterations - 1) if constant > self.near.bytes / 4 else 0.0
        sizes = self._sizes(rows)
        held = {value: size for value, size in sizes.items() if value in self.inner}
        return RowTiling(
            self.names, rows, iterations, held, sum(sizes.values()), self.saved, streamed
        )

    def resident(self, rows: int) -> float:
        """Bytes one iteration must keep in the near level."""
        return sum(self._sizes(rows).values())

    def _sizes(self, rows: int) -> dict[str, float]:
        """Bytes of one iteration: rows of values between regions, and a strip of each constant."""
        constants = self._constants()
        sizes: dict[str, float] = {}
        for model, points in self._points(rows):
            for access in (*model.reads, *model.writes):
                size = access.item * float(access.touched(*points)[0])
                if access.value in constants:
                    size *= min(1.0, _STRIP_COLUMNS / _columns(access, model))
                elif access.value not in self.inner:
                    continue
                sizes[access.value] = max(sizes.get(access.value, 0.0), size)
        return sizes

    def _constants(self) -> dict[str, float]:
        """Bytes of each value that every iteration reads whole."""
        found = {}
        for model in self.bound:
            rows = {model.model.rows.index(r): r for r in model.model.rows}
            for access in model.reads:
                if access.value not in self.inner and not _row_dependent(access, model, len(rows)):
                    found[access.value] = access.item * float(access.shape.prod())
        return found

    def _points(self, rows: int) -> Iterable[tuple[BoundModel, Ranges]]:
        """Ranges of each region that a middle iteration computes, the last region first."""
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
                points = _required(model.writes, needed)
            if points is None:
                raise GraphError(f"no result of {model.model.name!r} is needed")
            for access in model.reads:
                if access.value in self.inner:
                    box = access.box(*points)
                    old = needed.get(access.value, box)
                    needed[access.value] = np.minimum(old[0], box[0]), np.maximum(old[1], box[1])
            yield model, points


def _intermediates(graph: TileGraph, region: Region, inside: set[str]) -> list[str]:
    """Values a region passes to the others; empty if another region or an output needs one."""
    for value in region.writes:
        if graph.is_output(value) or any(u.region.id not in inside for u in graph.uses(value)):
            return []
    return [v for v in region.writes if graph.uses(v)]


def _row_dependent(access: BoundAccess, model: BoundModel, rows: int) -> bool:
    """Whether the access depends on the first row axis longer than one."""
    axes = [a for a in model.groups[1] if model.extents[a] > 1][:1]
    return any(access.matrix[:, a].any() for a in axes)


def _columns(access: BoundAccess, model: BoundModel) -> int:
    """Columns of a constant: its extent along axes that are not reductions."""
    summed = {model.model.space.index(a) for a in model.model.depth}
    axes = [i for i in range(len(model.extents)) if access.matrix[:, i].any() and i not in summed]
    return max(1, int(model.extents[axes].prod()))


def _required(writes: Sequence[BoundAccess], needed: Mapping[str, Ranges]) -> Ranges | None:
    points: Ranges | None = None
    for access in writes:
        if access.value in needed:
            lo, hi = access.preimage(*needed[access.value])
            points = (lo, hi) if points is None else (
                np.minimum(points[0], lo), np.maximum(points[1], hi)
            )  # fmt: skip
    return points
