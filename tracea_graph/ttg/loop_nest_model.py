"""Model of a region, independent of its operator: loops, accesses and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from tracea_graph.errors import GraphError
from tracea_graph.ttg.iteration_space import (
    AccessMap,
    BoundAccess,
    Ints,
    IterationSpace,
    Ranges,
    mixed_radix_digits,
    mixed_radix_numbers,
)

__all__ = ["BoundModel", "LoopWork", "RegionModel", "Tiles"]

Floats = npt.NDArray[np.float64]
Tiles = tuple[Ranges, Ranges, Ranges, Ranges]
"""Ranges ``[tiles]`` of flattened batch, rows, columns and depth."""


@dataclass(frozen=True)
class LoopWork:
    """``flops`` operations at each point of the sub-space spanned by the named axes."""

    axes: tuple[str, ...]
    flops: float


@dataclass(frozen=True)
class RegionModel:
    """The iteration space of a region with one access map per operand and result.

    Tiles split three groups of axes, each flattened row-major: ``rows``, ``cols`` and ``depth``
    (reductions).  ``batch`` axes number independent problems: no tile spans two.  Axes in no group
    are whole in every tile.  Absent operands have no map.
    """

    name: str
    space: IterationSpace
    reads: tuple[AccessMap, ...]
    writes: tuple[AccessMap, ...]
    work: tuple[LoopWork, ...] = ()
    rows: tuple[str, ...] = ()
    cols: tuple[str, ...] = ()
    depth: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise GraphError if a group names an unknown axis or an axis is in two groups."""
        grouped = (*self.batch, *self.rows, *self.cols, *self.depth)
        for name in grouped:
            self.space.index(name)
        if len(set(grouped)) != len(grouped):
            raise GraphError(f"region {self.name!r} puts an axis into two tile groups: {grouped}")

    def bind(self, bindings: Mapping[str, int]) -> BoundModel:
        """Return the model with numbers for symbols; raises GraphError if one is not bound."""
        return BoundModel(
            self,
            np.array(self.space.extents(bindings), np.int64),
            tuple(a.bind(self.space, bindings) for a in self.reads),
            tuple(a.bind(self.space, bindings) for a in self.writes),
        )

    def flops(self, bindings: Mapping[str, int]) -> float:
        """Return the operations of the whole region; a function like ``exp`` counts as several."""
        sizes = dict(zip(self.space.names, self.space.extents(bindings), strict=True))
        return float(sum(w.flops * prod(sizes[a] for a in w.axes) for w in self.work))


@dataclass(frozen=True, eq=False)
class BoundModel:
    """A region model whose extents are numbers."""

    model: RegionModel
    extents: Ints
    reads: tuple[BoundAccess, ...]
    writes: tuple[BoundAccess, ...]

    @cached_property
    def groups(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Axis positions of batch, rows, columns and depth."""
        m = self.model
        index = m.space.index
        batch, rows, cols, depth = (
            np.array([index(a) for a in axes], np.int64)
            for axes in (m.batch, m.rows, m.cols, m.depth)
        )
        return batch, rows, cols, depth

    @property
    def problem(self) -> tuple[int, int, int, int]:
        """Flattened extents: batch, m, n, k."""
        b, m, n, k = (int(self.extents[g].prod()) for g in self.groups)
        return b, m, n, k

    def ranges(self, tiles: Tiles) -> Ranges:
        """Convert flat (batch, m, n, k) ranges ``[tiles]`` to ranges of axes ``[tiles, axes]``."""
        count = len(tiles[0][0])
        starts = np.zeros((count, len(self.extents)), np.int64)
        stops = np.broadcast_to(self.extents, starts.shape).copy()
        for group, (lo, hi) in zip(self.groups, tiles, strict=True):
            digits = mixed_radix_digits(lo, hi, self.extents[group])
            for axis, (a, b) in zip(group, digits, strict=True):
                starts[:, axis], stops[:, axis] = a, b
        return starts, stops

    def flatten(self, starts: Ints, stops: Ints) -> Tiles:
        """Return the flat (batch, m, n, k) ranges that contain axis ranges ``[tiles, axes]``."""
        b, m, n, k = (
            mixed_radix_numbers(starts[:, g], stops[:, g], self.extents[g]) for g in self.groups
        )
        return b, m, n, k

    def box_flops(self, starts: Ints, stops: Ints) -> Floats:
        """Return the operations ``[tiles]`` in boxes of points ``[tiles, axes]``."""
        names, sizes = self.model.space.names, (stops - starts).astype(np.float64)
        total = np.zeros(len(starts))
        for work in self.model.work:
            total += work.flops * sizes[:, [names.index(a) for a in work.axes]].prod(-1)
        return total

    def tile_flops(self, tiles: Tiles) -> Floats:
        """Return each tile's number of operations ``[tiles]``; all tiles add up to the region's.

        Work outside the reductions (an epilogue) counts for the tile that ends the reductions.
        """
        model, depth = self.model, int(self.extents[self.groups[3]].prod())
        sizes = dict(zip(model.space.names, self.extents.astype(np.float64), strict=True))
        total = np.zeros(len(tiles[0][0]))
        for work in model.work:
            points = np.ones(len(total))
            left = set(work.axes)
            groups = (model.batch, model.rows, model.cols, model.depth)
            for axes, (lo, hi) in zip(groups, tiles, strict=True):
                if axes and left.issuperset(axes):
                    points *= hi - lo
                    left -= set(axes)
            if model.depth and not left.union(work.axes).intersection(model.depth):
                points *= tiles[3][1] == depth
            total += work.flops * points * prod(sizes[a] for a in left)
        return total
