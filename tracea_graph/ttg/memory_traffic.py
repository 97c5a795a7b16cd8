"""Analytic footprint, traffic and arithmetic intensity of fused regions.

A connected set of regions is staged at a memory level with a tile of its last result.  The tile is
propagated backwards; values between the regions stay in the level, everything else moves:

    footprint  = Σ boxes of one tile: operands, intermediates and results           (bytes)
    traffic    = Σ over tiles and outside tensors of boxes that are not resident    (bytes)
    intensity  = operations / traffic                                               (FLOP/byte)

A box is resident if it was used within the last ``w`` tiles, where ``w`` is the longest window
whose mean working set fits the level.  The mean over all windows of a sequence of T tiles is
exact::

    s(w) = Σ bytes of distinct boxes - Σ bytes · max(gap - w, 0) / (T - w + 1)

over the gaps between uses of a box, before its first and after its last.  Partly overlapping boxes
(halos) are moved whole, and producers are recomputed for every tile that needs them: both are
costs of the tile shape and are counted.  A producer's own sum is not sliced: all its operands
count towards the footprint.

Sources: Shi et al., "Welder", OSDI 2023 (tile propagation, footprint and traffic per level);
Denning and Schwartz, "Properties of the working-set model", CACM 1972, with the finite-length form
of Xiang et al., "HOTL", ASPLOS 2013; Williams et al., "Roofline", CACM 2009.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracea_graph.errors import GraphError
from tracea_graph.ttg.iteration_space import BoundAccess, Ints, Ranges
from tracea_graph.ttg.loop_nest_model import BoundModel, RegionModel
from tracea_graph.ttg.tile_set import Shape, TileSet, expand_tiles

__all__ = ["MemoryLevel", "StagedRegions", "TensorStream", "innermost_level"]

Floats = npt.NDArray[np.float64]
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class MemoryLevel:
    """A memory with its capacity in bytes and its fill bandwidth from outside in bytes per second.

    A value is assumed to stay resident until it is read again if its size is at most the capacity
    divided by ``parts``; the remaining capacity is left to other data.
    """

    name: str
    bytes: float
    bandwidth: float = float("inf")
    parts: float = 2.0


def innermost_level(size: float, levels: Sequence[MemoryLevel]) -> MemoryLevel | None:
    """Return the innermost level in which ``size`` bytes stay until they are read, or None."""
    return next((level for level in levels if size * level.parts <= level.bytes), None)


@dataclass(frozen=True, eq=False)
class TensorStream:
    """The boxes of one tensor that tiles touch, in launch order, with their bytes.

    ``age`` is the number of tiles since the box was last used (1: by the previous tile), or
    :data:`NEVER` for the first use; ``last`` is true if the box is not used again.
    """

    value: str
    written: bool
    bytes: Floats
    age: Ints
    last: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, access: BoundAccess, written: bool, size: Floats, box: Ranges) -> TensorStream:
        """Build a stream from boxes in launch order; empty boxes have no bytes."""
        strides = np.append(np.cumprod(access.shape[:0:-1])[::-1], 1)[: len(access.shape)]
        first, end = box[0] @ strides, (box[1] - 1) @ strides
        path = np.lexsort((end, first))
        again = (first[path[1:]] == first[path[:-1]]) & (end[path[1:]] == end[path[:-1]])
        age, last = np.full(len(first), NEVER), np.ones(len(first), bool)
        age[path[1:][again]] = path[1:][again] - path[:-1][again]
        last[path[:-1][again]] = False
        return cls(access.value, written, size, age, last)

    def moved(self, window: int) -> float:
        """Return the bytes that cross the level's border if boxes stay for ``window`` tiles.

        A result evicted before its sum is complete is written and read back.
        """
        missed = float(self.bytes[self.age > window].sum())
        return 2 * missed - self.distinct if self.written else missed

    @property
    def distinct(self) -> float:
        """Bytes of all distinct boxes."""
        return float(self.bytes[self.age == NEVER].sum())

    def gaps(self) -> tuple[Ints, Floats]:
        """Return the gaps between uses of boxes, in tiles, and the bytes of these boxes.

        Gaps before the first use and after the last use are included.
        """
        place = np.arange(1, len(self.age) + 1)
        before = np.where(self.age == NEVER, place, self.age)
        after = len(self.age) + 1 - place[self.last]
        return np.append(before, after), np.append(self.bytes, self.bytes[self.last])


@dataclass(frozen=True, eq=False)
class TileTraffic:
    """What all tiles of staged regions read, write and compute at one memory level."""

    tiles: TileSet
    streams: tuple[TensorStream, ...]
    resident: Floats
    """Bytes of intermediates of each tile."""
    flops: float

    @property
    def footprint(self) -> float:
        """Bytes that the largest tile touches, intermediate values included."""
        total = self.resident + sum(s.bytes for s in self.streams)
        return float(total.max(initial=0.0))

    def window(self, capacity: float) -> int:
        """Return the largest number of consecutive tiles whose mean working set fits, or 0."""
        if self.footprint > capacity or not len(self.resident):
            return 0
        fits = self.working_set + self.resident.mean() <= capacity
        return max(int(np.count_nonzero(fits)), 1)

    @cached_property
    def working_set(self) -> Floats:
        """Mean bytes of distinct boxes in windows of 1, 2, … tiles, a non-decreasing sequence."""
        tiles = len(self.resident)
        pairs = [stream.gaps() for stream in self.streams]
        gaps, sizes = (np.concatenate(part) for part in zip(*pairs, strict=True))
        longer = np.bincount(gaps, sizes, minlength=tiles + 2)[::-1].cumsum()[::-1]
        missing = longer[::-1].cumsum()[::-1]  # [w + 1]: Σ bytes · (gap - w) over gaps > w
        windows = np.arange(1, tiles + 1)
        return sum(s.distinct for s in self.streams) - missing[2:] / (tiles - windows + 1)


class StagedRegions:
    """A connected set of regions with one tile shape per memory level.

    ``tiles`` maps the name of a level to the last region's tile (m, n, k), or to a set of its
    tiles; at a level that is not named, one tile is the whole problem.  Regions are given
    producers first.  ``kept`` are values between regions that are also needed outside; these are
    written out too.
    """

    def __init__(
        self,
        models: Sequence[RegionModel],
        bindings: Mapping[str, int],
        tiles: Mapping[str, Shape | TileSet],
        order: str = "row-major",
        kept: Collection[str] = (),
    ) -> None:
        """Raise GraphError if the regions are not connected or a symbol has no binding."""
        self.models = tuple(models)
        self.bindings, self.tiles, self.order = dict(bindings), dict(tiles), order
        self._bound = [m.bind(bindings) for m in models]
        self._inner, self._kept = _inner_values(self.models), frozenset(kept)
        self._walks: dict[str, TileTraffic] = {}

    def footprint(self, level: MemoryLevel) -> float:
        """Return the bytes that one tile occupies in the level."""
        return self._walk(level).footprint

    def fits(self, level: MemoryLevel) -> bool:
        return self.footprint(level) <= level.bytes

    def traffic(self, level: MemoryLevel) -> float:
        """Return the bytes moved between the level and the next one outside it."""
        return sum(self.traffic_of(level).values())

    def traffic_of(self, level: MemoryLevel) -> dict[str, float]:
        """Return the traffic of each tensor."""
        walk = self._walk(level)
        window = walk.window(level.bytes)
        result: dict[str, float] = {}
        for stream in walk.streams:
            result[stream.value] = result.get(stream.value, 0.0) + stream.moved(window)
        return result

    @cached_property
    def least_traffic(self) -> float:
        """Return the bytes of all outside tensors, each moved once: a lower bound of traffic."""
        walk = self._walk(MemoryLevel("", 0.0))
        return sum(stream.moved(NEVER - 1) for stream in walk.streams)

    def flops(self, level: MemoryLevel) -> float:
        """Return the operations; a producer tile counts once for each tile that needs it."""
        return self._walk(level).flops

    def intensity(self, level: MemoryLevel) -> float:
        """Return operations per byte of traffic; infinite if nothing moves."""
        moved = self.traffic(level)
        return self.flops(level) / moved if moved else float("inf")

    def roofline_seconds(self, level: MemoryLevel, peak: float) -> float:
        """Return the roofline time: the longer of arithmetic at ``peak`` FLOP/s and traffic."""
        return max(self.flops(level) / peak, self.traffic(level) / level.bandwidth)

    def _walk(self, level: MemoryLevel) -> TileTraffic:
        if level.name not in self._walks:
            chosen = self.tiles.get(level.name, (0, 0, 0))
            if not isinstance(chosen, TileSet):
                chosen = expand_tiles(self._bound[-1], chosen, self.order)
            self._walks[level.name] = _walk(self._bound, self._inner, self._kept, chosen)
        return self._walks[level.name]


def _inner_values(models: Sequence[RegionModel]) -> frozenset[str]:
    """Values passed between regions of the set; every region but the last passes some."""
    if not models:
        raise GraphError("a staging needs at least one region")
    inner: set[str] = set()
    for i, model in enumerate(models[:-1]):
        later = {a.value for m in models[i + 1 :] for a in m.reads}
        passed_on = {a.value for a in model.writes} & later
        if not passed_on:
            raise GraphError(f"region {model.name!r} passes no value to those after it in the set")
        inner |= passed_on
    return frozenset(inner)


def _walk(
    models: Sequence[BoundModel], inner: frozenset[str], kept: frozenset[str], tiles: TileSet
) -> TileTraffic:
    """Propagate every tile from the last region to the outside operands."""
    needed: dict[str, Ranges] = {}
    streams: list[TensorStream] = []
    seen: dict[tuple[str, bool], list[Ranges]] = {}
    resident = np.zeros(len(tiles.order))
    ranges, flops = tiles.ranges(), float(models[-1].tile_flops(tiles.flat_ranges()).sum())
    for model in reversed(models):
        if model is not models[-1]:
            ranges = _needed_points(model, needed)
            flops += float(model.box_flops(*ranges).sum())
        pairs = [(a, True) for a in model.writes] + [(a, False) for a in model.reads]
        for access, written in pairs:
            box = access.box(*ranges)
            size = access.item * access.touched(*ranges).astype(np.float64)
            if access.value in inner - kept and written:
                resident = resident + size
            elif access.value in inner and not written:
                needed[access.value] = _hull(needed.get(access.value), box)
            elif not any(_within(box, other) for other in seen.get((access.value, written), ())):
                seen.setdefault((access.value, written), []).append(box)
                streams.append(TensorStream.of(access, written, size, box))
    return TileTraffic(tiles, tuple(streams), resident, flops)


def _within(box: Ranges, other: Ranges) -> bool:
    """Whether each tile's box lies inside the other box of that tile."""
    return bool((box[0] >= other[0]).all() and (box[1] <= other[1]).all())


def _needed_points(model: BoundModel, needed: Mapping[str, Ranges]) -> Ranges:
    """Points of a producer whose results later regions need, ``[tiles, axes]``."""
    points: Ranges | None = None
    for access in model.writes:
        if access.value in needed:
            points = _hull(points, access.preimage(*needed[access.value]))
    assert points is not None
    return points


def _hull(a: Ranges | None, b: Ranges) -> Ranges:
    """Smallest boxes that contain both; an empty box adds nothing."""
    if a is None:
        return b
    void_a, void_b = ((r[1] <= r[0]).any(-1, keepdims=True) for r in (a, b))
    lo, hi = np.minimum(a[0], b[0]), np.maximum(a[1], b[1])
    lo = np.where(void_a, b[0], np.where(void_b, a[0], lo))
    return lo, np.where(void_a, b[1], np.where(void_b, a[1], hi))
