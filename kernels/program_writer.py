"""Backend-independent construction of programs: strided values, scratch buffers and calls.

Kernels read operands of any strides, hence most layout ops only make another view.  An op that no
view can express becomes a copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tracea_graph.ir import DType, Extent, TensorSpec, combine, product
from tracea_graph.kernels.program import Buffer, Call, Program, Temp, View
from tracea_graph.ops.chain import COL, FULL, Chain
from tracea_graph.ops.index_map import (
    IndexMap,
    StridedLayout,
    ViewMove,
    dense_strides,
    resolve_target,
    size_factors,
)

__all__ = ["IDENTITY", "LackingError", "ProgramWriter", "Shape", "Value"]

Shape = tuple[Extent, ...]
IDENTITY = Chain((FULL,), (), (0,))


class LackingError(Exception):
    """Raised when a backend cannot lower a region; the message names what is missing."""


@dataclass(frozen=True)
class Value:
    """A value in memory: a view whose dims are the value's shape, and its element type."""

    view: View
    dtype: DType

    @property
    def shape(self) -> Shape:
        return self.view.dims

    def moved(self, *moves: ViewMove) -> Value:
        """Apply index moves to the view.  Raises ValueError if no strides express the result."""
        return self.through(IndexMap(moves))

    def through(self, moves: IndexMap) -> Value:
        """Apply an index map to the view.  Raises ValueError if no strides express the result."""
        at = moves.layout(StridedLayout(self.view.dims, self.view.strides, self.view.offset))
        return replace(self, view=View(self.view.buffer, at.dims, at.strides, at.offset))

    def reshaped(self, target: Sequence[int]) -> Value:
        """View a contiguous value in another shape, whose axes may split and merge its own.

        Raises LackingError if the shapes are not proven to have equally many elements.
        """
        assert self.view.strides == dense_strides(self.shape)
        dims = resolve_target(self.shape, tuple(target))
        if size_factors(dims) != size_factors(self.shape):
            was, new = (f"[{', '.join(map(str, shape))}]" for shape in (self.shape, dims))
            raise LackingError(f"a Reshape is not proven to keep all elements of {was} in {new}")
        return replace(self, view=replace(self.view, dims=dims, strides=dense_strides(dims)))

    def transposed(self, order: Sequence[int]) -> Value:
        """Permute the axes of the view."""
        dims = tuple(self.view.dims[a] for a in order)
        steps = tuple(self.view.strides[a] for a in order)
        return replace(self, view=replace(self.view, dims=dims, strides=steps))

    def stretched(self, full: Shape) -> Value:
        """Broadcast the value to a larger shape."""
        return replace(self, view=self.view.stretched(full))

    def part(self, axis: int, start: Extent, count: Extent) -> Value:
        """Restrict an axis to the ``count`` positions from ``start`` on."""
        dims = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        shift = combine("mul", self.view.strides[axis], start)
        offset = combine("add", self.view.offset, shift)
        return replace(self, view=replace(self.view, dims=dims, offset=offset))

    def flat(self, *groups: int) -> Value:
        """Merge axes; each of ``groups`` is the number of adjacent axes merged into one.

        Raises ValueError if the axes of a group are not contiguous.
        """
        dims, steps, at = list[Extent](), list[Extent](), 0
        for count in groups:
            own = [a for a in range(at, at + count) if self.shape[a] != 1]
            for a, b in pairwise(own):
                if not _together(self.view, a, b):
                    raise ValueError("the axes to merge are not contiguous")
            dims.append(product(self.shape[at : at + count]))
            steps.append(self.view.strides[own[-1]] if own else 0)
            at += count
        return replace(self, view=replace(self.view, dims=tuple(dims), strides=tuple(steps)))

    def split(self, axis: int, size: int) -> Value:
        """Split an axis into two, the second of ``size`` elements, which divides its extent."""
        dims, steps = list(self.shape), list(self.view.strides)
        dims[axis : axis + 1] = [combine("floordiv", dims[axis], size), size]
        steps.insert(axis, combine("mul", steps[axis], size))
        return replace(self, view=replace(self.view, dims=tuple(dims), strides=tuple(steps)))


def _follows(view: View, a: int, b: int) -> bool:
    """Whether axis ``a`` has the stride that makes it contiguous with axis ``b``."""
    return size_factors([view.strides[a]]) == size_factors([view.dims[b], view.strides[b]])


@dataclass
class ProgramWriter(ABC):
    """Base class of program builders; a backend implements the elementwise and copy calls."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    temps: list[tuple[DType, Extent]] = field(default_factory=list, init=False)
    calls: list[Call] = field(default_factory=list, init=False)
    made: dict[tuple[object, ...], Value] = field(default_factory=dict, init=False)

    def slots(self, kind: str) -> list[Value]:
        """The node's inputs or outputs as contiguous values."""
        specs = self.inputs if kind == "input" else self.outputs
        return [
            Value(View.dense(Buffer(kind, i), s.shape or ()), s.dtype or DType.F32)
            for i, s in enumerate(specs)
        ]

    def temp(self, dtype: DType, shape: Shape, order: Sequence[int] = ()) -> Value:
        """Allocate contiguous scratch whose axes are stored in ``order``, innermost last."""
        order = order or range(len(shape))
        self.temps.append((dtype, product(shape)))
        steps = dict(zip(order, dense_strides([shape[a] for a in order]), strict=True))
        buffer = Buffer("temp", len(self.temps) - 1)
        return Value(View(buffer, shape, tuple(steps[a] for a in range(len(shape)))), dtype)

    @abstractmethod
    def elementwise_call(self, chain: Chain, views: Sequence[View]) -> None:
        """Append an elementwise call on ``views``: operands, then results, all of one shape."""

    @abstractmethod
    def copy_call(self, source: View, target: View, dtype: DType) -> None:
        """Append a copy between views of equal shapes."""

    def chain(self, chain: Chain, operands: Sequence[Value], results: Sequence[Value]) -> None:
        """Append an elementwise expression; operands and results all have the same shape."""
        seen = _merged([*operands, *results])
        operands, results = seen[: len(operands)], seen[len(operands) :]
        chain = self.typed(chain, operands, results)
        if len(chain.operands) == 1 and not chain.steps and operands[0].dtype is results[0].dtype:
            self.copy_call(operands[0].view, results[0].view, results[0].dtype)
        else:
            self.elementwise_call(chain, [v.view for v in (*operands, *results)])

    @staticmethod
    def typed(chain: Chain, operands: Sequence[Value], results: Sequence[Value]) -> Chain:
        """The chain with the stored types of its operands and results, and its operand kinds."""
        return replace(
            chain, operands=_kinds_of(operands), dtypes=tuple(v.dtype for v in operands),
            stores=tuple(v.dtype for v in results), fast_math=False,
        )  # fmt: skip

    def copy(self, source: Value, target: Value) -> None:
        """Copy a value to a target of equal shape, converting to the target's type."""
        if source.dtype is target.dtype:
            a, b = _merged([source, target])
            self.copy_call(a.view, b.view, target.dtype)
        else:
            self.chain(IDENTITY, [source], [target])

    def dense(self, value: Value, dtype: DType | None = None) -> Value:
        """Return the value as a contiguous tensor of type ``dtype``; it is copied at most once."""
        dtype = dtype or value.dtype
        if value.dtype is dtype and value.view.strides == dense_strides(value.shape):
            return value
        return self.again(value, dtype, tuple(range(len(value.shape))))

    def again(self, value: Value, dtype: DType, order: tuple[int, ...]) -> Value:
        """Return a copy of the value in a type and axis order; equal requests share one copy."""
        key = value, dtype, order
        if key not in self.made:
            target = self.temp(dtype, value.shape, order)
            self.copy(value, target)
            self.made[key] = target
        return self.made[key]

    def typed_as(self, value: Value, dtype: DType) -> Value:
        """The value with element type ``dtype``; converted only if its own type differs."""
        if value.dtype is dtype:
            return value
        return self.again(value, dtype, tuple(range(len(value.shape))))

    def flat(self, value: Value, *groups: int) -> Value:
        """Merge axes (see :meth:`Value.flat`); copy the value first if they are not contiguous."""
        try:
            return value.flat(*groups)
        except ValueError:
            return self.dense(value).flat(*groups)

    def matrix(self, value: Value) -> Value:
        """The value as a matrix: all axes but the last are merged into rows."""
        return self.flat(value, len(value.shape) - 1, 1)

    def through(self, value: Value, moves: IndexMap) -> Value:
        """Apply an index map; copy the value where no strides express the result."""
        for move in moves.moves:
            try:
                value = value.moved(move)
            except ValueError:
                value = self.dense(value)
                value = value.reshaped(move.ints) if move.op == "reshape" else value.moved(move)
        return value

    def program(self, symbols: Mapping[str, tuple[int, int]]) -> Program:
        """Build the program; each scratch buffer lives from its first to its last use."""
        used: dict[Buffer, list[int]] = {}
        for i, call in enumerate(self.calls):
            for view in call.views:
                if view is not None:
                    used.setdefault(view.buffer, []).append(i)
        uses = [used.get(Buffer("temp", t), [0]) for t in range(len(self.temps))]
        temps = tuple(
            Temp(dtype, count, at[0], at[-1])
            for (dtype, count), at in zip(self.temps, uses, strict=True)
        )
        return Program(self.inputs, self.outputs, symbols, temps, tuple(self.calls))


def _merged(values: Sequence[Value]) -> list[Value]:
    """Merge axes that are contiguous in all values, ordered by the strides of the last value."""
    rank = len(values[-1].shape)
    kept = [a for a in range(rank) if values[-1].shape[a] != 1]
    order = _order(values[-1].view, kept)
    groups: list[list[int]] = []
    for axis in order:
        if groups and all(_together(v.view, groups[-1][-1], axis) for v in values):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    made = []
    for value in values:
        view = value.view
        dims = tuple(product(tuple(view.dims[a] for a in group)) for group in groups) or (1,)
        steps = tuple(view.strides[group[-1]] for group in groups) or (0,)
        made.append(replace(value, view=View(view.buffer, dims, steps, view.offset)))
    return made


def _together(view: View, a: int, b: int) -> bool:
    return view.strides[a] == view.strides[b] == 0 or _follows(view, a, b)


def _order(view: View, axes: Sequence[int]) -> list[int]:
    """Sort axes by descending stride where strides are comparable; keep the order otherwise."""
    found = list(axes)
    for place in range(len(found)):  # an axis comes before those whose walk is its step
        for later in range(place + 1, len(found)):
            if _inside(view, found[place], found[later]):
                found.insert(place, found.pop(later))
    return found


def _inside(view: View, a: int, b: int) -> bool:
    """Whether the stride of axis ``a`` divides that of axis ``b``."""
    p, q = size_factors([view.strides[a]]), size_factors([view.strides[b]])
    if view.strides[b] == 0 or view.strides[a] == 0:
        return False
    number = q[0] % p[0] == 0 if p[0] else False
    return number and p[1] <= q[1] and p != q


def _kinds_of(values: Iterable[Value]) -> tuple[str, ...]:
    """The chain kind of each operand: FULL if it varies along the last axis, else COL."""
    return tuple(FULL if v.view.strides and v.view.strides[-1] != 0 else COL for v in values)
