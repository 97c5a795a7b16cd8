"""Symbolic evaluation of one iteration of a loop, in terms of the rows that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, numpy_helper

from tracea_graph.ir import DType, Extent
from tracea_graph.onnx_io.graph_editor import EditorNode, GraphEditor
from tracea_graph.onnx_io.loop_unrolling import evaluate_node
from tracea_graph.onnx_io.node_conversion import has_subgraph
from tracea_graph.onnx_io.recurrent_cells import (
    Activation,
    Combination,
    LinearRows,
    Rows,
    Symbolic,
    slice_columns,
)
from tracea_graph.onnx_io.tensor_data import constant_value
from tracea_graph.onnx_io.value_facts import INTEGERS, attribute, elements

__all__ = ["LoopStep", "Position", "axes_of"]

Array = npt.NDArray[Any]

_HUGE = (1 << 31) - 1
"""Least maximum number of iterations that stands for no maximum."""


@dataclass(frozen=True)
class Position:
    """The number of the iteration plus ``offset``, as a scalar or (``rank`` 1) a vector."""

    offset: int
    rank: int = 0


@dataclass(frozen=True)
class _Outer:
    """A value from outside the loop, by its name there."""

    name: str


@dataclass(frozen=True)
class _Flag:
    """A condition that holds while the iteration is within ``lengths``; () for always."""

    lengths: tuple[Extent, ...] = ()


@dataclass
class LoopStep:
    """What is known of the values of one iteration, by name in the body.

    ``first`` is the index of the first carried operand, ``count`` the number of carried values.
    """

    call: EditorNode
    body: GraphProto
    editor: GraphEditor
    first: int
    count: int
    values: dict[str, Any] = field(default_factory=dict)
    _writers: dict[str, NodeProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values |= {t.name: numpy_helper.to_array(t) for t in self.body.initializer}
        self._writers = {v: node for node in self.body.node for v in node.output if v}
        self._own = self._writers.keys() | {v.name for v in self.body.input} | {""}

    def run(self) -> None:
        """Evaluate the body's nodes; values that are not understood stay unknown."""
        self._start()
        for node in self.body.node:
            if node.domain not in ("", "ai.onnx") or has_subgraph(node):
                continue
            rule = _RULES.get(node.op_type)
            made: Any = None
            if node.input and all(map(self._is_constant, node.input)):
                given = {v: self.value(v) for v in node.input}
                made = evaluate_node(node, given, self.editor.opsets)
            elif rule is not None:
                made = rule(self, node, [self.value(v) for v in node.input])
            results = made if isinstance(made, list) else [made]
            for name, one in zip(node.output, results, strict=False):
                if name and one is not None:
                    self.values[name] = one

    def value(self, name: str) -> Any:
        """Return what is known of a value of the body or of one outside, else None."""
        if name in self.values:
            return self.values[name]
        return None if name in self._own else self._outside(name)

    def _is_constant(self, name: str) -> bool:
        """Whether a value is an array, which is not read to find out."""
        if name in self.values:
            return isinstance(self.values[name], np.ndarray)
        return name not in self._own and name in self.editor.weights

    def _outside(self, name: str) -> Any:
        weight = self.editor.weights.get(name)
        return _Outer(name) if weight is None else weight.array()

    def next_of(self, state: int) -> Any:
        """Return what is known of a carried value after the iteration."""
        return self.value(self.body.output[self.first // 2 + state].name)

    def _start(self) -> None:
        """Enter the inputs of the iteration."""
        if self.first:
            self.values[self.body.input[0].name] = Position(0)
            self.values[self.body.input[1].name] = _Flag()
        for state in range(self.count):
            name = self.body.input[self.first + state].name
            operand = self.call.proto.input[self.first + state]
            found: Any = None
            if self._passes_on(state):
                found = self._outside(operand)
            elif self._counts(state):
                found = Position(0)
            elif axes := axes_of(operand, self.editor):
                found = LinearRows.of(Rows("state", state, self._width(operand)), axes)
            if found is not None:
                self.values[name] = found

    def _width(self, name: str) -> int:
        """The last extent of a value outside the loop, which is a number."""
        last = (self.editor.facts.shape(name) or (0,))[-1]
        assert isinstance(last, int)
        return last

    def _passes_on(self, state: int) -> bool:
        """Whether a carried value never changes."""
        return bool(self._source(state) == self.body.input[self.first + state].name)

    def _source(self, state: int) -> str:
        """The value that a carried value is after the iteration, through identities."""
        value: str = self.body.output[self.first // 2 + state].name
        while (node := self._writers.get(value)) is not None and node.op_type == "Identity":
            value = node.input[0]
        return value

    def _counts(self, state: int) -> bool:
        """Whether a carried value is the number of the iteration."""
        name = self.body.input[self.first + state].name
        start = self.editor.facts.numbers(self.call.proto.input[self.first + state])
        node = self._writers.get(self._source(state))
        if start != [0] or node is None or node.op_type != "Add" or name not in node.input:
            return False
        (other,) = [v for v in node.input if v != name] or [""]
        writer = self._writers.get(other)
        literal = writer is not None and writer.op_type == "Constant"
        step = constant_value(writer) if literal and writer is not None else self.value(other)
        return isinstance(step, np.ndarray) and step.size == 1 and int(step.reshape(-1)[0]) == 1

    # ---- operators ---------------------------------------------------------------------

    def row(self, source: Any, axis: int, keep: bool) -> Symbolic | None:
        """Return the iteration's row of a sequence, with its axis as one of size 1 if ``keep``."""
        if not isinstance(source, _Outer):
            return None
        shape, facts = self.editor.facts.shape(source.name), self.editor.facts
        if shape is None or facts.dtype(source.name) != DType.F32:
            return None
        axis = axis % len(shape)
        rest = [*shape[:axis], *([1] if keep else []), *shape[axis + 1 :]]
        axes = _letters(rest)
        if axes is None or axis == len(shape) - 1 or not isinstance(shape[-1], int):
            return None
        return LinearRows.of(Rows("sequence", (source.name, axis), shape[-1]), axes)

    def outer_row(self, name: str, axis: int) -> Symbolic | None:
        """Return the iteration's row of a value outside the loop."""
        return self.row(self._outside(name), axis, keep=False)

    def row_axes(self, name: str, axis: int) -> str:
        """Return the axes of a sequence's row."""
        shape = self.editor.facts.shape(name) or ()
        return _letters([*shape[:axis], *shape[axis + 1 :]]) or ""

    def ends_with(self, name: str) -> tuple[Extent, ...] | None:
        """Return the lengths that the iteration after this one must be below, () for any.

        None if the condition ``name`` depends on something else.
        """
        flag = _as_flag(self.value(name))
        return None if flag is None else flag.lengths

    def limits(self, name: str) -> tuple[Extent, ...] | None:
        """Return the maximum number of iterations that a value says, () for any."""
        flag = self.flag(self._outside(name))
        return None if flag is None else flag.lengths

    def lengths_above_zero(self, name: str) -> list[Extent] | None:
        """Return the lengths of which a condition outside the loop says that they are above 0."""
        writers = self.editor.tensors[name].inputs if name in self.editor.tensors else []
        if len(writers) != 1:
            return None
        inputs = [t.name for t in writers[0].inputs]
        if writers[0].op == "And":
            both = [self.lengths_above_zero(v) for v in inputs]
            return None if None in both else [n for part in both for n in part or ()]
        if writers[0].op == "Less" and self.editor.facts.numbers(inputs[0]) == [0]:
            found = self.limits(inputs[1])
            return None if found is None else [*found]
        return None

    def flag(self, limit: Any) -> _Flag | None:
        """Return the condition that the next iteration is below ``limit``."""
        if isinstance(limit, np.ndarray):
            value: Any = int(limit.reshape(-1)[0]) if limit.size == 1 else None
        elif isinstance(limit, _Outer):
            known = self.editor.facts.value(limit.name)
            value = elements(known)[0] if known is not None and known.size == 1 else None
        else:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value >= _HUGE:
            return _Flag()
        return None if value is None else _Flag((value,))


def axes_of(name: str, editor: GraphEditor) -> str | None:
    """Return the axes of a float32 value outside a loop, as ``Symbolic.axes``; None if unknown."""
    shape = editor.facts.shape(name)
    if shape is None or editor.facts.dtype(name) != DType.F32 or not shape:
        return None
    return _letters(shape) if isinstance(shape[-1], int) else None


def _letters(shape: Sequence[Extent]) -> str | None:
    """Return axes for a shape with at most one axis before the last that is not 1."""
    outer = "".join("1" if d == 1 else "b" for d in shape[:-1])
    return f"{outer}c" if shape and outer.count("b") < 2 and len(shape) < 4 else None


# ---- rules: what an operator makes of what is known of its operands --------------------

_Rule = Callable[[LoopStep, NodeProto, list[Any]], Any]


def _constant(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    return constant_value(node)


def _same(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    return given[0]


def _cast(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    """Integers stay the numbers that they are, and float32 stays float32."""
    value, to = given[0], DType.from_onnx(attribute(node, "to"))
    if isinstance(value, Symbolic):
        return value if to is DType.F32 else None
    counts = isinstance(value, Position) or (
        isinstance(value, _Outer) and step.editor.facts.dtype(value.name) in INTEGERS
    )
    return value if counts and to in (DType.I32, DType.I64) else None


def _matmul(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    left, right = given
    if not (isinstance(left, Symbolic) and _is_matrix(right) and len(right) == left.width):
        return None
    return _linear(left).times(np.asarray(right, np.float32))


def _gemm(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    left, right = given[:2]
    if not (isinstance(left, Symbolic) and _is_matrix(right)) or attribute(node, "transA", 0):
        return None
    matrix = np.asarray(right, np.float32)
    matrix = matrix.T if attribute(node, "transB", 0) else matrix
    if len(matrix) != left.width:
        return None
    made = _linear(left).times(matrix * np.float32(attribute(node, "alpha", 1.0)))
    if len(given) < 3 or not node.input[2]:
        return made
    beta = np.float32(attribute(node, "beta", 1.0))
    if isinstance(given[2], np.ndarray):
        return _with_bias(made, given[2] * beta)
    if isinstance(given[2], LinearRows) and given[2].width == made.width and beta == 1.0:
        return _joined("Add", made, given[2])
    return None


def _add(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    left, right = given
    if isinstance(left, np.ndarray):
        left, right = right, left
    if isinstance(left, Position) and isinstance(right, np.ndarray) and right.size == 1:
        return Position(left.offset + int(right.reshape(-1)[0]), max(left.rank, right.ndim))
    if isinstance(left, Symbolic) and isinstance(right, np.ndarray):
        if isinstance(left, LinearRows):
            return _with_bias(left, right)
        bias = _with_bias(LinearRows(left.axes, left.width, (), _zeros(left)), right)
        return bias and Combination(left.axes, left.width, "Add", (left, bias))
    return _joined("Add", left, right)


def _sub(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    left, right = given
    if isinstance(left, np.ndarray) and isinstance(right, Symbolic):
        ones = left.size == 1 or left.shape[-1] == right.width
        if ones and bool(np.all(left == 1)) and left.ndim <= len(right.axes):
            return Combination(right.axes, right.width, "Sub", (None, right))
        return None
    if isinstance(right, np.ndarray):
        return _add(step, node, [left, -right])
    return _joined("Sub", left, right)


def _mul(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    left, right = given
    if isinstance(left, np.ndarray):
        left, right = right, left
    if isinstance(left, LinearRows) and isinstance(right, np.ndarray):
        factor = _vector(left, right)
        return None if factor is None else left.scaled(factor)
    return _joined("Mul", left, right)


def _activation(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    value = given[0]
    if not isinstance(value, Symbolic):
        return None
    return Activation(value.axes, value.width, node.op_type, value)


def _concat(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    if not given or not all(isinstance(v, Symbolic) for v in given):
        return None
    axes = given[0].axes
    last = attribute(node, "axis") in (-1, len(axes) - 1)
    if not last or any(v.axes != axes for v in given):
        return None
    total, at = sum(v.width for v in given), 0
    made = LinearRows(axes, total, (), np.zeros(total, np.float32))
    for value in given:
        part = _linear(value).widened(at, total - at - value.width)
        made, at = made.plus(part, axes), at + value.width
    return made


def _split(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    value = given[0]
    if not isinstance(value, Symbolic):
        return None
    if attribute(node, "axis", 0) not in (-1, len(value.axes) - 1):
        return None
    parts = len(node.output)
    if attribute(node, "split") is not None or len(given) > 1:
        sizes = _numbers(node, given, 1, "split")
    else:
        sizes = None if value.width % parts else [value.width // parts] * parts
    if sizes is None:
        return None
    ends = np.cumsum(sizes).tolist()
    return [slice_columns(value, e - n, e) for e, n in zip(ends, sizes, strict=True)]


def _slice(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    """Columns of a value, or the iteration's row of a sequence."""
    axes, value = _numbers(node, given, 3, "axes"), given[0]
    forward = len(given) < 5 or not node.input[4] or _numbers(node, given, 4, "steps") == [1]
    if axes is None or len(axes) != 1 or not forward:
        return None
    if len(given) > 2 and given[1:3] == [Position(0, 1), Position(1, 1)]:
        return step.row(value, axes[0], keep=True)
    starts, ends = _numbers(node, given, 1, "starts"), _numbers(node, given, 2, "ends")
    if not isinstance(value, Symbolic) or starts is None or ends is None:
        return None
    if axes[0] not in (-1, len(value.axes) - 1):
        return None
    start, end, _ = slice(starts[0], ends[0]).indices(value.width)
    return slice_columns(value, start, end) if start < end else None


def _gather(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    at = given[1]
    if not isinstance(at, Position) or at.offset or at.rank > 1:
        return None
    return step.row(given[0], attribute(node, "axis", 0), keep=at.rank > 0)


def _squeeze(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    value, axes = given[0], _numbers(node, given, 1, "axes")
    if isinstance(value, Position):
        return Position(value.offset, value.rank - len(axes) if axes is not None else 0)
    if not isinstance(value, Symbolic) or axes is None:
        return None
    rank = len(value.axes)
    gone = {a % rank for a in axes}
    if any(value.axes[a] != "1" for a in gone):
        return None
    return _with_axes(value, "".join(c for i, c in enumerate(value.axes) if i not in gone))


def _unsqueeze(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    value, axes = given[0], _numbers(node, given, 1, "axes")
    if isinstance(value, Position) and axes is not None:
        return Position(value.offset, value.rank + len(axes))
    if not isinstance(value, Symbolic) or axes is None:
        return None
    rank = len(value.axes) + len(axes)
    new, old = {a % rank for a in axes}, iter(value.axes)
    made = "".join("1" if i in new else next(old) for i in range(rank))
    return _with_axes(value, made) if made.endswith("c") else None


def _reshape(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    """Positions become vectors of one element, or scalars."""
    value, shape = given[0], given[1] if len(given) > 1 else None
    if isinstance(value, Position) and isinstance(shape, np.ndarray) and shape.size < 2:
        return Position(value.offset, shape.size)
    return None


def _less(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    left, right = given if node.op_type == "Less" else given[::-1]
    return step.flag(right) if isinstance(left, Position) and left.offset == 1 else None


def _and(step: LoopStep, node: NodeProto, given: list[Any]) -> Any:
    flags = [_as_flag(v) for v in given]
    if None in flags:
        return None
    return _Flag(tuple(n for f in flags if f is not None for n in f.lengths))


def _as_flag(value: Any) -> _Flag | None:
    if isinstance(value, np.ndarray):
        return _Flag() if value.size == 1 and bool(value.reshape(-1)[0]) else None
    return value if isinstance(value, _Flag) else None


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "Constant": _constant, "Identity": _same, "Cast": _cast,
        "MatMul": _matmul, "Gemm": _gemm, "Add": _add, "Sub": _sub, "Mul": _mul,
        "Sigmoid": _activation, "Tanh": _activation,
        "Concat": _concat, "Split": _split, "Slice": _slice, "Gather": _gather,
        "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Reshape": _reshape,
        "Less": _less, "Greater": _less, "And": _and,
    }
)  # fmt: skip


# ---- parts of rules --------------------------------------------------------------------


def _is_matrix(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype == np.float32


def _linear(value: Symbolic) -> LinearRows:
    """Return a value as linear rows: of itself, unless it is linear in others."""
    if isinstance(value, LinearRows):
        return value
    return LinearRows.of(Rows("value", value, value.width), value.axes)


def _zeros(value: Symbolic) -> npt.NDArray[np.float32]:
    return np.zeros(value.width, np.float32)


def _vector(value: Symbolic, array: Array) -> npt.NDArray[np.float32] | None:
    """Return a constant as a number for each column; None if it has more than one row."""
    fits = array.size == 1 or (array.size == value.width == array.shape[-1])
    if not fits or array.dtype != np.float32 or array.ndim > len(value.axes):
        return None
    return np.broadcast_to(array.reshape(-1), (value.width,)).astype(np.float32)


def _with_bias(value: LinearRows, array: Array) -> LinearRows | None:
    bias = _vector(value, array)
    if bias is None:
        return None
    return LinearRows(value.axes, value.width, value.terms, value.bias + bias)


def _joined(op: str, left: Any, right: Any) -> Symbolic | None:
    """Return the combination of two values of equal rows and widths; sums of linear ones add."""
    if not (isinstance(left, Symbolic) and isinstance(right, Symbolic)):
        return None
    axes = max(left.axes, right.axes, key=len)
    pairs = zip(left.axes.rjust(len(axes)), right.axes.rjust(len(axes)), strict=True)
    if left.width != right.width or any(p != q and {p, q} != {" ", "1"} for p, q in pairs):
        return None
    if op == "Add" and isinstance(left, LinearRows) and isinstance(right, LinearRows):
        return left.plus(right, axes)
    return Combination(axes, left.width, op, (left, right))


def _with_axes(value: Symbolic, axes: str) -> Symbolic:
    """Return a value with other axes of size 1."""
    if isinstance(value, LinearRows):
        return LinearRows(axes, value.width, value.terms, value.bias)
    if isinstance(value, Activation):
        return Activation(axes, value.width, value.name, value.of)
    assert isinstance(value, Combination)
    return Combination(axes, value.width, value.name, value.sides)


def _numbers(node: NodeProto, given: list[Any], operand: int, name: str) -> list[int] | None:
    """Return constant integers, an operand or in early opsets an attribute; None if unknown."""
    if len(given) > operand and node.input[operand]:
        found = given[operand]
        return [int(n) for n in found.reshape(-1)] if isinstance(found, np.ndarray) else None
    held = attribute(node, name)
    return None if held is None else [*held]
