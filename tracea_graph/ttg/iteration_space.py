"""Iteration spaces and the affine box accesses that connect them to tensors.

A region is a loop nest over named axes.  Each dimension of a tensor is indexed by an affine form
of those axes, and every point touches a window of elements from that index on (a halo if windows
of neighboring tiles overlap)::

    index = Σ coefficient · axis + offset        touched: [index, index + window)

The image of a tile (a box of the space) is then a box of the tensor, and a box of a result is
written by a box of points.  Both directions are arithmetic on arrays, which maps a million tiles
in one call.  Source: Shi et al., "Welder", OSDI 2023 (tile propagation); Verdoolaege's isl solves
the general problem, of which tiling needs only boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.errors import GraphError
from tracea_graph.ir import Extent, combine, evaluate, symbols_of

__all__ = [
    "AccessMap",
    "Axis",
    "BoundAccess",
    "DimIndex",
    "Ints",
    "IterationSpace",
    "index_along",
    "index_whole",
]

Ints = npt.NDArray[np.int64]
Ranges = tuple[Ints, Ints]
"""Starts and stops, both ``[..., axes]`` or ``[..., rank]``."""


@dataclass(frozen=True)
class Axis:
    """A loop of ``extent`` steps; a reduction axis accumulates into its results."""

    name: str
    extent: Extent
    reduction: bool = False


@dataclass(frozen=True)
class IterationSpace:
    """The axes of a region, outermost first; raises GraphError if two share a name."""

    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise GraphError(f"iteration space {self.names} names an axis twice")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.axes)

    @property
    def reductions(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.axes if a.reduction)

    def index(self, name: str) -> int:
        """Return the position of an axis; raises GraphError for an unknown name."""
        if name not in self.names:
            raise GraphError(f"there is no axis {name!r} in {self.names}")
        return self.names.index(name)

    def extents(self, bindings: Mapping[str, int]) -> tuple[int, ...]:
        """Return the number of steps of each axis; raises GraphError naming an unbound symbol."""
        return tuple(extent_value(a.extent, bindings) for a in self.axes)

    def points(self, bindings: Mapping[str, int]) -> int:
        """Return the number of points."""
        return int(np.prod(self.extents(bindings), dtype=np.int64))


def extent_value(extent: Extent, bindings: Mapping[str, int]) -> int:
    """Return the value of an extent; raises GraphError naming unbound symbols."""
    if missing := sorted(set(symbols_of(extent)) - set(bindings)):
        raise GraphError(f"no binding for {', '.join(map(repr, missing))}: pass its value")
    return evaluate(extent, bindings)


@dataclass(frozen=True)
class DimIndex:
    """Index of one tensor dimension: ``offset`` plus the sum of ``terms`` (axis, coefficient).

    An access touches ``window`` elements from there on.  If ``indirect`` is not None, data select
    elements of the window (Gather): any of them may be read, but at most one per point of the
    ``indirect`` axes, and a single one if the tuple is empty.
    """

    terms: tuple[tuple[str, Extent], ...] = ()
    offset: Extent = 0
    window: Extent = 1
    indirect: tuple[str, ...] | None = None


def index_along(*names: str, extents: Sequence[Extent] = (), offset: Extent = 0) -> DimIndex:
    """Return the index by one axis, or by several axes that are the digits of one number.

    ``extents`` are the radices of these digits.
    """
    terms: list[tuple[str, Extent]] = []
    stride: Extent = 1
    for name, extent in zip(reversed(names), reversed(tuple(extents) or (1,)), strict=True):
        terms.insert(0, (name, stride))
        stride = combine("mul", extent, stride)
    return DimIndex(tuple(terms), offset)


def index_whole(extent: Extent, indirect: tuple[str, ...] | None = None) -> DimIndex:
    """Return the index that reads every element of a dimension, whatever the tile."""
    return DimIndex(window=extent, indirect=indirect)


@dataclass(frozen=True)
class AccessMap:
    """Map from each point of an iteration space to the box of a value that it touches.

    ``shape`` is that of the value, or of a view with equal elements (a packed weight is described
    by its logical matrix); ``item`` is the bytes per element.
    """

    value: str
    dims: tuple[DimIndex, ...]
    shape: tuple[Extent, ...]
    item: float = 4.0

    def __post_init__(self) -> None:
        if len(self.dims) != len(self.shape):
            raise GraphError(f"{self.value!r} has rank {len(self.shape)}, not {len(self.dims)}")

    def box(
        self,
        space: IterationSpace,
        tile: Mapping[str, tuple[int, int]],
        bindings: Mapping[str, int] | None = None,
    ) -> tuple[tuple[int, int], ...]:
        """Return the range (start, stop) of each dimension that a tile touches.

        ``tile`` gives ranges of axes; the tile covers axes that are not given as a whole.
        """
        bound = self.bind(space, bindings or {})
        ranges = [
            tile.get(n, (0, e)) for n, e in zip(space.names, bound.extents.tolist(), strict=True)
        ]
        lo, hi = bound.box(*np.array(ranges, np.int64).reshape(-1, 2).T)
        return tuple(zip(lo.tolist(), hi.tolist(), strict=True))

    def bind(self, space: IterationSpace, bindings: Mapping[str, int]) -> BoundAccess:
        """Return the map with every symbol replaced by its value."""

        def value(extent: Extent) -> int:
            return extent_value(extent, bindings)

        shape = _ints(map(value, self.shape))
        matrix = np.zeros((len(self.dims), len(space.axes)), np.int64)
        indirect: list[tuple[int, list[int]]] = []
        for d, dim in enumerate(self.dims):
            for name, coefficient in dim.terms:
                matrix[d, space.index(name)] += value(coefficient)
            if dim.indirect is not None:
                indirect.append((d, [space.index(name) for name in dim.indirect]))
            if shape[d] == 1 and len(dim.terms) == 1 and dim.offset == 0 and dim.window == 1:
                matrix[d] = 0  # a symbol bound to 1 broadcasts
        return BoundAccess(
            self.value, matrix, _ints(value(d.offset) for d in self.dims),
            _ints(value(d.window) for d in self.dims), shape,
            _ints(space.extents(bindings)), tuple(indirect), self.item,
        )  # fmt: skip


def _ints(values: Any) -> Ints:
    return np.fromiter(values, np.int64)


@dataclass(frozen=True, eq=False)
class BoundAccess:
    """An access map in which numbers replace all symbols.

    Its arrays are ``matrix [rank, axes]``, and ``offset``, ``window`` and ``shape``, each
    ``[rank]``.  The methods represent tiles as (starts, stops) arrays ``[..., axes]`` and boxes as
    (lo, hi) arrays ``[..., rank]``.
    """

    value: str
    matrix: Ints
    offset: Ints
    window: Ints
    shape: Ints
    extents: Ints
    indirect: tuple[tuple[int, list[int]], ...] = ()
    item: float = 4.0

    def box(self, starts: Ints, stops: Ints) -> Ranges:
        """Return the smallest box that contains what a tile touches, clipped to the tensor.

        The box may be empty.
        """
        last = stops - 1
        up, down = np.maximum(self.matrix, 0).T, np.minimum(self.matrix, 0).T
        lo = starts @ up + last @ down + self.offset
        hi = last @ up + starts @ down + self.offset + self.window
        lo = np.clip(lo, 0, self.shape)
        hi = np.clip(hi, lo, self.shape)
        empty = (stops <= starts).any(-1, keepdims=True)
        return lo, np.where(empty, lo, hi)

    def preimage(self, lo: Ints, hi: Ints) -> Ranges:
        """Return, for each box of elements, a box of points that contains all points touching it.

        A returned box is as small as possible along axes that index a dimension, alone or as
        digits of a mixed-radix number; other axes are whole.  An empty box has an empty preimage.
        """
        starts = np.zeros((*lo.shape[:-1], len(self.extents)), np.int64)
        stops = np.broadcast_to(self.extents, starts.shape).copy()
        for d in range(len(self.shape)):
            axes = np.flatnonzero(self.matrix[d])
            if not len(axes):
                continue
            first = lo[..., d] - self.window[d] + 1 - self.offset[d]
            end = hi[..., d] - self.offset[d]
            for axis, (a, b) in zip(*self._digits(d, axes, first, end), strict=True):
                starts[..., axis] = np.maximum(starts[..., axis], a)
                stops[..., axis] = np.minimum(stops[..., axis], b)
        stops = np.maximum(stops, starts)
        stops[(hi <= lo).any(-1)] = starts[(hi <= lo).any(-1)]
        return starts, stops

    def _digits(self, d: int, axes: Ints, first: Ints, end: Ints) -> tuple[Ints, list[Ranges]]:
        """Axes that index dimension ``d``, outermost first, with the range each runs over."""
        row = self.matrix[d]
        if len(axes) == 1 and row[axes[0]] < 0:
            first, end, row = 1 - end, 1 - first, -row
        order = axes[np.lexsort((self.extents[axes], row[axes]))[::-1]]
        unit, sizes = int(row[order[-1]]), self.extents[order]
        strides = np.append(np.cumprod(sizes[:0:-1])[::-1], 1) * unit
        if unit < 1 or not np.array_equal(strides, row[order]):
            return order, [(np.zeros_like(first), np.full_like(end, e)) for e in sizes]
        lo = np.clip(-(-first // unit), 0, sizes.prod())
        return order, mixed_radix_digits(lo, np.clip(-(-end // unit), 0, sizes.prod()), sizes)

    def touched(self, starts: Ints, stops: Ints) -> Ints:
        """Return how many elements each tile touches: those in its box, or fewer.

        It touches fewer if data select the elements.
        """
        lo, hi = self.box(starts, stops)
        sizes = hi - lo
        for d, axes in self.indirect:
            points = (stops - starts)[..., axes].prod(-1, dtype=np.int64)
            sizes[..., d] = np.minimum(sizes[..., d], points)
        return np.asarray(sizes.prod(-1), np.int64)


def mixed_radix_digits(lo: Ints, hi: Ints, extents: Ints) -> list[Ranges]:
    """Return, for each digit, its range over the mixed-radix numbers in ``[lo, hi)``.

    ``extents`` are the radices, outermost first.
    """
    last, same = np.maximum(hi - 1, lo), np.ones(np.shape(lo), bool)
    stride, digits = int(extents.prod()), []
    for extent in extents.tolist():
        stride //= max(extent, 1)
        a, b = lo // max(stride, 1) % max(extent, 1), last // max(stride, 1) % max(extent, 1)
        start, stop = np.where(same, a, 0), np.where(same, b + 1, extent)
        digits.append((start, np.where(hi > lo, stop, start)))
        same = same & (a == b)
    return digits


def mixed_radix_numbers(starts: Ints, stops: Ints, extents: Ints) -> Ranges:
    """Return the range of the mixed-radix numbers whose digits lie in a box ``[..., axes]``."""
    strides = np.append(np.cumprod(extents[:0:-1])[::-1], 1)[: len(extents)]
    lo, hi = starts @ strides, (stops - 1) @ strides + 1
    return lo, np.where((stops <= starts).any(-1), lo, hi)
