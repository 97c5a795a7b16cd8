"""Writing a program for any backend: values as views of any strides, scratch, and calls.

Kernels read any strides, so most moves are another view of what lies there.  What no view says is
copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tracea_graph.ir import DType, Extent, TensorSpec, combine, product
from tracea_graph.kernels.program import Buffer, Call, Program, Temp, View
from tracea_graph.ops.chain import COL, FULL, Chain
from tracea_graph.ops.index_map import IndexMap, Move, StridedLayout, dense_strides, factors

__all__ = ["IDENTITY", "LackingError", "ProgramWriter", "Shape", "Value"]

Shape = tuple[Extent, ...]
IDENTITY = Chain((FULL,), (), (0,))


class LackingError(Exception):
    """A backend has no code for a region; the message says what it lacks."""


@dataclass(frozen=True)
class Value:
    """Where a value lies: a view whose dims are its shape, and its element type."""

    view: View
    dtype: DType

    @property
    def shape(self) -> Shape:
        return self.view.dims

    def moved(self, *moves: Move) -> Value:
        """The value through moves.  Raises ValueError where no strides say it."""
        return self.through(IndexMap(moves))

    def through(self, moves: IndexMap) -> Value:
        """The value through a map.  Raises ValueError where no strides say it."""
        at = moves.layout(StridedLayout(self.view.dims, self.view.strides, self.view.offset))
        return replace(self, view=View(self.view.buffer, at.dims, at.strides, at.offset))

    def turned(self, order: Sequence[int]) -> Value:
        """The value with its axes in another order."""
        dims = tuple(self.view.dims[a] for a in order)
        steps = tuple(self.view.strides[a] for a in order)
        return replace(self, view=replace(self.view, dims=dims, strides=steps))

    def stretched(self, full: Shape) -> Value:
        """The value repeated to a larger shape."""
        return replace(self, view=self.view.stretched(full))

    def part(self, axis: int, start: Extent, count: Extent) -> Value:
        """``count`` positions of an axis from ``start`` on."""
        dims = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        shift = combine("mul", self.view.strides[axis], start)
        offset = combine("add", self.view.offset, shift)
        return replace(self, view=replace(self.view, dims=dims, offset=offset))

    def flat(self, *groups: int) -> Value:
        """Axes merged into as many as there are groups, of so many axes each.

        Raises ValueError where those of a group do not follow each other in one step.
        """
        dims, steps, at = list[Extent](), list[Extent](), 0
        for count in groups:
            own = [a for a in range(at, at + count) if self.shape[a] != 1]
            for a, b in pairwise(own):
                if not _together(self.view, a, b):
                    raise ValueError("axes do not follow each other in one step")
            dims.append(product(self.shape[at : at + count]))
            steps.append(self.view.strides[own[-1]] if own else 0)
            at += count
        return replace(self, view=replace(self.view, dims=tuple(dims), strides=tuple(steps)))


def _follows(view: View, a: int, b: int) -> bool:
    """True if a step of axis a is a walk through all of axis b."""
    return factors([view.strides[a]]) == factors([view.dims[b], view.strides[b]])


@dataclass
class ProgramWriter(ABC):
    """Collects a program; a backend says what its elementwise and copying calls are."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    temps: list[tuple[DType, Extent]] = field(default_factory=list, init=False)
    calls: list[Call] = field(default_factory=list, init=False)
    made: dict[tuple[object, ...], Value] = field(default_factory=dict, init=False)

    def slots(self, kind: str) -> list[Value]:
        """Inputs or outputs, dense."""
        specs = self.inputs if kind == "input" else self.outputs
        return [
            Value(View.dense(Buffer(kind, i), s.shape or ()), s.dtype or DType.F32)
            for i, s in enumerate(specs)
        ]

    def temp(self, dtype: DType, shape: Shape, order: Sequence[int] = ()) -> Value:
        """Dense scratch; its axes are stored in an ``order``, the last one innermost."""
        order = order or range(len(shape))
        self.temps.append((dtype, product(shape)))
        steps = dict(zip(order, dense_strides([shape[a] for a in order]), strict=True))
        buffer = Buffer("temp", len(self.temps) - 1)
        return Value(View(buffer, shape, tuple(steps[a] for a in range(len(shape)))), dtype)

    @abstractmethod
    def elementwise_call(self, chain: Chain, views: Sequence[View]) -> None:
        """Append the call of a chain: views of its operands, then of its results, of one shape."""

    @abstractmethod
    def copy_call(self, source: View, target: View, dtype: DType) -> None:
        """Append a copy between views of one shape."""

    def chain(self, chain: Chain, operands: Sequence[Value], results: Sequence[Value]) -> None:
        """A chain over operands in the shape of its results, each stored in its own type."""
        seen = _merged([*operands, *results])
        operands, results = seen[: len(operands)], seen[len(operands) :]
        chain = self.typed(chain, operands, results)
        if len(chain.operands) == 1 and not chain.steps and operands[0].dtype is results[0].dtype:
            self.copy_call(operands[0].view, results[0].view, results[0].dtype)
        else:
            self.elementwise_call(chain, [v.view for v in (*operands, *results)])

    @staticmethod
    def typed(chain: Chain, operands: Sequence[Value], results: Sequence[Value]) -> Chain:
        """The chain with the types its operands and results are stored in, and kinds that say
        whether operands move along the last axis."""
        return replace(
            chain, operands=_kinds_of(operands), dtypes=tuple(v.dtype for v in operands),
            stores=tuple(v.dtype for v in results), fast_math=False,
        )  # fmt: skip

    def copy(self, source: Value, target: Value) -> None:
        """Bring a value of the same shape where it belongs, in the type it has there."""
        if source.dtype is target.dtype:
            a, b = _merged([source, target])
            self.copy_call(a.view, b.view, target.dtype)
        else:
            self.chain(IDENTITY, [source], [target])

    def dense(self, value: Value, dtype: DType | None = None) -> Value:
        """The value without gaps, its axes in order, in a type; copied once where it is not."""
        dtype = dtype or value.dtype
        if value.dtype is dtype and value.view.strides == dense_strides(value.shape):
            return value
        return self.again(value, dtype, tuple(range(len(value.shape))))

    def again(self, value: Value, dtype: DType, order: tuple[int, ...]) -> Value:
        """A copy in a type, its axes stored in an order; one of each."""
        key = value, dtype, order
        if key not in self.made:
            target = self.temp(dtype, value.shape, order)
            self.copy(value, target)
            self.made[key] = target
        return self.made[key]

    def typed_as(self, value: Value, dtype: DType) -> Value:
        """The value in a type, stored as it is where it has it."""
        if value.dtype is dtype:
            return value
        return self.again(value, dtype, tuple(range(len(value.shape))))

    def flat(self, value: Value, *groups: int) -> Value:
        """Axes merged; copied where they do not follow each other."""
        try:
            return value.flat(*groups)
        except ValueError:
            return self.dense(value).flat(*groups)

    def matrix(self, value: Value) -> Value:
        """Rows by the last axis."""
        return self.flat(value, len(value.shape) - 1, 1)

    def through(self, value: Value, moves: IndexMap) -> Value:
        """The value through a map; copied where no strides say it."""
        for move in moves.moves:
            try:
                value = value.moved(move)
            except ValueError:
                value = self.dense(value).moved(move)
        return value

    def program(self, symbols: Mapping[str, tuple[int, int]]) -> Program:
        """The program, every scratch buffer alive from its first call to its last."""
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
    """Values of one shape with as few axes as they have in common, stored innermost last as the
    last one is."""
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
    """Axes from the widest step to the narrowest, where that is known; else as they are."""
    found = list(axes)
    for place in range(len(found)):  # an axis comes before those whose walk is its step
        for later in range(place + 1, len(found)):
            if _inside(view, found[place], found[later]):
                found.insert(place, found.pop(later))
    return found


def _inside(view: View, a: int, b: int) -> bool:
    """True if axis a lies within a step of axis b, by the factors of both steps."""
    p, q = factors([view.strides[a]]), factors([view.strides[b]])
    if view.strides[b] == 0 or view.strides[a] == 0:
        return False
    number = q[0] % p[0] == 0 if p[0] else False
    return number and p[1] <= q[1] and p != q


def _kinds_of(values: Iterable[Value]) -> tuple[str, ...]:
    """How operands lie over the last axis: they move along it, or do not."""
    return tuple(FULL if v.view.strides and v.view.strides[-1] != 0 else COL for v in values)
