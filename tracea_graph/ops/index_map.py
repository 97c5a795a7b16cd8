"""Index maps: views of a tensor (transposed, sliced, reshaped) that move no data.

A map is a short list of moves.  Each move has three forms, which tests compare: an ONNX operator
(the body), a NumPy expression (the reference), and arithmetic on dims, strides and offset (the
lowering).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Expr, Extent, combine, product
from tracea_graph.ops.function_body import BodyBuilder

__all__ = [
    "HUGE",
    "IndexMap",
    "StridedLayout",
    "ViewMove",
    "dense_strides",
    "resolve_target",
    "size_factors",
]

HUGE = 2**31 - 1
"""Larger than every index: a slice with this end runs to the end of its axis."""

_MANY = 1 << 16
"""Size of the cache of views, which planning requests repeatedly."""

Array = npt.NDArray[Any]
Shape = tuple[Extent, ...]
Factors = tuple[int, Counter[Extent]]


@dataclass(frozen=True)
class StridedLayout:
    """Dims, strides and offset of a view in its buffer; strides and offset count elements."""

    dims: Shape
    strides: Shape
    offset: Extent = 0

    @classmethod
    def dense(cls, shape: Shape) -> StridedLayout:
        return cls(tuple(shape), dense_strides(shape))


@dataclass(frozen=True)
class ViewMove:
    """One step of a map.

    ===========  ===============================================================================
    op           ints
    ===========  ===============================================================================
    transpose    the permutation
    reshape      the target: 0 copies the dimension of that index, at most one −1 is inferred
    slice        axis, start, end, step, as ONNX counts them (negative from the end, clamped)
    select       axis, index: the axis is removed
    squeeze      axes
    unsqueeze    axes of the result
    expand       the target, of the same rank; 1 keeps the dimension
    ===========  ===============================================================================

    Axes are not negative.
    """

    op: str
    ints: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.op not in _MOVES:
            raise ValueError(f"unknown view move {self.op!r}")


@dataclass(frozen=True)
class IndexMap:
    """A view of a stored tensor: the view operations, in order, that yield what a chain reads."""

    moves: tuple[ViewMove, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.moves)

    def then(self, *moves: ViewMove) -> IndexMap:
        """Append view operations; adjacent ones that cancel are removed."""
        done = list(self.moves)
        for move in moves:
            if done and move.op == done[-1].op == "transpose":
                first = done.pop().ints
                move = ViewMove("transpose", tuple(first[i] for i in move.ints))
                if move.ints == tuple(range(len(move.ints))):
                    continue
            done.append(move)
        return IndexMap(tuple(done))

    def layout(self, start: StridedLayout) -> StridedLayout:
        """Return the layout of the view; raises ValueError if it is not strided."""
        for move in self.moves:
            start = _MOVES[move.op].layout(start, move.ints)
        return start

    def shape(self, shape: Shape) -> Shape:
        """Return the dimensions of the view; raises ValueError if the view is not strided."""
        return _view(self.moves, tuple(shape)).dims if self.moves else tuple(shape)

    def view(self, shape: Shape) -> StridedLayout:
        """Return this view's layout in a dense tensor; raises ValueError if it is not strided."""
        return _view(self.moves, tuple(shape))

    def reference(self, array: Array) -> Array:
        for move in self.moves:
            array = _MOVES[move.op].numpy(array, move.ints)
        return array

    def to_onnx(self, b: BodyBuilder, value: str) -> str:
        """Write the view operations as ONNX nodes; return the name of the view."""
        for move in self.moves:
            value = _MOVES[move.op].to_onnx(b, value, move.ints)
        return value


@lru_cache(_MANY)
def _view(moves: tuple[ViewMove, ...], shape: Shape) -> StridedLayout:
    return IndexMap(moves).layout(StridedLayout.dense(shape))


def dense_strides(shape: Sequence[Extent]) -> Shape:
    """Return the strides of a dense tensor, in elements."""
    return _strides(tuple(shape))


@lru_cache(_MANY)
def _strides(shape: Shape) -> Shape:
    strides: list[Extent] = []
    step: Extent = 1
    for dim in reversed(shape):
        strides.insert(0, step)
        step = combine("mul", step, dim)
    return tuple(strides)


# ---- transpose, squeeze, unsqueeze, expand ---------------------------------------------


Ints = tuple[int, ...]


def _transpose(at: StridedLayout, perm: Ints) -> StridedLayout:
    if sorted(perm) != list(range(len(at.dims))):
        raise ValueError(f"{perm} does not permute {len(at.dims)} axes")
    return StridedLayout(
        tuple(at.dims[i] for i in perm), tuple(at.strides[i] for i in perm), at.offset
    )


def _squeeze(at: StridedLayout, axes: Ints) -> StridedLayout:
    if any(at.dims[i] != 1 for i in axes):
        raise ValueError("a squeezed axis does not have size 1")
    kept = [i for i in range(len(at.dims)) if i not in axes]
    return StridedLayout(
        tuple(at.dims[i] for i in kept), tuple(at.strides[i] for i in kept), at.offset
    )


def _unsqueeze(at: StridedLayout, axes: Ints) -> StridedLayout:
    dims, strides = list(at.dims), list(at.strides)
    for axis in sorted(axes):
        dims.insert(axis, 1)
        strides.insert(axis, 0)
    return StridedLayout(tuple(dims), tuple(strides), at.offset)


def _axes_to_onnx(op: str) -> Callable[[BodyBuilder, str, Ints], str]:
    def to_onnx(b: BodyBuilder, value: str, axes: Ints) -> str:
        return b(op, value, axes=axes) if b.opset < 13 else b(op, value, b.ints(*axes))

    return to_onnx


def _expand(at: StridedLayout, target: Ints) -> StridedLayout:
    if len(target) != len(at.dims):
        raise ValueError("expanding a view must keep its rank")
    repeated = [t != 1 and d == 1 for t, d in zip(target, at.dims, strict=True)]
    if any(t not in (1, d) and d != 1 for t, d in zip(target, at.dims, strict=True)):
        raise ValueError("an expanded axis does not have size 1")
    dims = tuple(t if r else d for t, d, r in zip(target, at.dims, repeated, strict=True))
    strides = tuple(0 if r else s for s, r in zip(at.strides, repeated, strict=True))
    return StridedLayout(dims, strides, at.offset)


def _expand_to_onnx(b: BodyBuilder, value: str, target: Ints) -> str:
    """Write Expand, or Tile before opset 8: only axes of size 1 are expanded."""
    return b("Expand" if b.opset >= 8 else "Tile", value, b.ints(*target))


# ---- slices ----------------------------------------------------------------------------


def _slice(at: StridedLayout, ints: Ints) -> StridedLayout:
    axis, start, end, step = ints
    dim, stride = at.dims[axis], at.strides[axis]
    first, last = _ends(dim, start, end, step)
    span = _minus(last, first) if step > 0 else _minus(first, last)
    count = _at_least_zero(combine("ceildiv", span, abs(step)), step, start, end)
    offset = _plus(at.offset, combine("mul", stride, first) if first != 0 else 0)
    dims, strides = list(at.dims), list(at.strides)
    dims[axis], strides[axis] = count, combine("mul", stride, step)
    return StridedLayout(tuple(dims), tuple(strides), offset)


def _ends(dim: Extent, start: int, end: int, step: int) -> tuple[Extent, Extent]:
    """Return the first index and the end of a slice; they are equal on an empty axis."""
    if step > 0:
        return _clamped(start, dim, 0, dim), _clamped(end, dim, 0, dim)
    top = combine("sub", dim, 1)
    return _clamped(start, dim, 0, top), _clamped(end, dim, -1, top)


def _clamped(place: int, dim: Extent, low: int, top: Extent) -> Extent:
    """Return min(max(place, low), top) by ONNX's rules: a negative place counts from the end."""
    if isinstance(dim, int) and isinstance(top, int):
        return min(max(place + dim if place < 0 else place, low), top)
    if place >= HUGE or (place == -1 and top != dim):
        return top
    if place <= -HUGE or place == low == 0:
        return low if top == dim or low < 0 else combine("min", low, top)
    if place > 0 or (place == 0 and low < 0):
        return combine("min", place, top)
    counted = combine("max", combine("add", dim, place), low)
    return counted if top == dim else combine("min", counted, top)


def _minus(a: Extent, b: Extent) -> Extent:
    """Return a − b, with (x − c) − d and x − x folded."""
    if a == b:
        return 0
    if b == -1 and isinstance(a, Expr) and a.op == "sub" and a.args[1] == 1:
        return a.args[0]
    return combine("sub", a, b)


def _plus(a: Extent, b: Extent) -> Extent:
    return combine("add", a, b)


def _at_least_zero(count: Extent, step: int, start: int, end: int) -> Extent:
    if isinstance(count, int):
        return max(count, 0)
    never_negative = step > 0 and start == 0
    never_negative |= step < 0 and end <= -HUGE
    return count if never_negative else combine("max", count, 0)


def _numpy_slice(x: Array, ints: Ints) -> Array:
    axis, start, end, step = ints
    first, last = _ends(x.shape[axis], start, end, step)
    assert isinstance(last, int)
    return x[(slice(None),) * axis + (slice(first, None if last < 0 else last, step),)]


def _slice_to_onnx(b: BodyBuilder, value: str, ints: Ints) -> str:
    axis, start, end, step = ints
    if step == 1:
        return b.slice_last(value, start, end, axis)
    return b("Slice", value, b.ints(start), b.ints(end), b.ints(axis), b.ints(step))


def _select(at: StridedLayout, ints: Ints) -> StridedLayout:
    axis, index = ints
    dim = at.dims[axis]
    place: Extent = combine("add", dim, index) if index < 0 else index
    if isinstance(dim, int) and not -dim <= index < dim:
        raise ValueError("the index is outside its axis")
    offset = _plus(at.offset, combine("mul", at.strides[axis], place))
    kept = [i for i in range(len(at.dims)) if i != axis]
    return StridedLayout(
        tuple(at.dims[i] for i in kept), tuple(at.strides[i] for i in kept), offset
    )


def _select_to_onnx(b: BodyBuilder, value: str, ints: Ints) -> str:
    axis, index = ints
    return b("Gather", value, b("Constant", value=np.asarray(index, np.int64)), axis=axis)


# ---- reshapes --------------------------------------------------------------------------


def resolve_target(shape: Shape, target: Ints) -> Shape:
    """Return the dimensions a Reshape yields; raises ValueError if the −1 cannot be inferred."""
    dims: list[Extent] = []
    for i, t in enumerate(target):
        if t == 0 and i >= len(shape):
            raise ValueError("a Reshape copies a dimension that is not there")
        dims.append(shape[i] if t == 0 else t)
    if -1 in target:
        hole = target.index(-1)
        dims[hole] = _quotient(size_factors(shape), size_factors([d for d in dims if d != -1]))
    return tuple(dims)


def size_factors(extents: Sequence[Extent]) -> Factors:
    """Factor the product of some extents into a number and a multiset of symbols.

    An extent that is neither a number nor a product counts as a symbol.
    """
    number, symbols = 1, Counter[Extent]()
    stack = list(reversed(extents))
    while stack:
        extent = stack.pop()
        if isinstance(extent, int):
            number *= extent
        elif isinstance(extent, Expr) and extent.op == "mul":
            stack += reversed(extent.args)
        else:
            symbols[extent] += 1
    return number, symbols


def _quotient(a: Factors, b: Factors) -> Extent:
    """Return a / b; raises ValueError unless the division is provably exact."""
    if b[0] == 0 or a[0] % b[0] or not b[1] <= a[1]:
        raise ValueError("the symbols do not determine a dimension")
    rest = tuple((a[1] - b[1]).elements())
    return combine("mul", product(rest), a[0] // b[0])


def _reshape(at: StridedLayout, target: Ints) -> StridedLayout:
    """Split and merge axes; merged axes must be evenly strided."""
    dims = resolve_target(at.dims, target)
    strides: list[Extent] = [0] * len(dims)
    old = [i for i, d in enumerate(at.dims) if d != 1]
    new = [i for i, d in enumerate(dims) if d != 1]
    while old and new:
        a, b = [old.pop(0)], [new.pop(0)]
        while (p := size_factors([at.dims[i] for i in a])) != (
            q := size_factors([dims[i] for i in b])
        ):
            if _divides(p, q) and old:
                a.append(old.pop(0))
            elif _divides(q, p) and new:
                b.append(new.pop(0))
            else:
                raise ValueError("a Reshape splits and merges the same axes")
        if not all(_follows(at, i, j) for i, j in pairwise(a)):
            raise ValueError("the axes that a Reshape merges are not evenly strided")
        step = at.strides[a[-1]]
        for j in reversed(b):
            strides[j] = step
            step = combine("mul", step, dims[j])
    if old or new:
        raise ValueError("a Reshape changes the number of elements")
    return StridedLayout(dims, tuple(strides), at.offset)


def _divides(p: Factors, q: Factors) -> bool:
    return p[0] > 0 and q[0] % p[0] == 0 and p[1] <= q[1]


def _follows(at: StridedLayout, i: int, j: int) -> bool:
    """Return True if one step of axis i equals a full pass over axis j."""
    return size_factors([at.strides[i]]) == size_factors([at.dims[j], at.strides[j]])


def _numpy_reshape(x: Array, target: Ints) -> Array:
    return x.reshape([x.shape[i] if t == 0 else t for i, t in enumerate(target)])


@dataclass(frozen=True)
class _Kind:
    """The three forms of one kind of move: on a layout, on an array, in ONNX."""

    layout: Callable[[StridedLayout, Ints], StridedLayout]
    numpy: Callable[[Array, Ints], Array]
    to_onnx: Callable[[BodyBuilder, str, Ints], str]


_MOVES: Mapping[str, _Kind] = MappingProxyType(
    {
        "transpose": _Kind(_transpose, np.transpose, lambda b, v, p: b("Transpose", v, perm=p)),
        "reshape": _Kind(_reshape, _numpy_reshape, lambda b, v, t: b("Reshape", v, b.ints(*t))),
        "slice": _Kind(_slice, _numpy_slice, _slice_to_onnx),
        "select": _Kind(_select, lambda x, i: np.take(x, i[1], i[0]), _select_to_onnx),
        "squeeze": _Kind(_squeeze, np.squeeze, _axes_to_onnx("Squeeze")),
        "unsqueeze": _Kind(_unsqueeze, np.expand_dims, _axes_to_onnx("Unsqueeze")),
        "expand": _Kind(
            _expand,
            lambda x, t: np.broadcast_to(x, np.broadcast_shapes(x.shape, t)),
            _expand_to_onnx,
        ),
    }
)
