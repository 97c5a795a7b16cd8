"""Constraints of operators on input sizes: which must be equal, and which must not broadcast.

Every input axis that shares its symbol with other axes has a *variant* of the symbol
(``symbolic_arithmetic.VARIANT``).  A size is represented by the set of the variants that broadcast
to it, called :data:`Sizes` here.  An operator may force two sizes to be equal, or depend on an
axis in a way that makes its size observable: that size must then be the one that all variants
broadcast to (``whole``).  Broadcasting does neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType

from onnx import NodeProto

from tracea_graph.ir import Expr, Extent
from tracea_graph.onnx_io.shape_values import slice_parameters
from tracea_graph.onnx_io.symbolic_arithmetic import (
    add,
    broadcast_variants,
    equal_up_to_variants,
    variants_symbol,
)
from tracea_graph.onnx_io.value_facts import Shape, ValueFacts, attribute, elements
from tracea_graph.ops.elementwise_steps import OPERATORS

__all__ = ["SizeConstraints", "Sizes"]

Sizes = frozenset[str]
"""Variants of a symbol that broadcast to one size."""

_POINTWISE = frozenset(OPERATORS) | frozenset((
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "Cast", "CastLike", "Clip",
    "ConstantOfShape", "Cosh", "Expand", "Gelu", "Greater", "GreaterOrEqual", "Identity",
    "IsInf", "Max", "Mean", "Min", "Mod", "Pow", "Shape", "Sinh", "Sum", "Tan", "Transpose",
    "Unsqueeze",
))  # fmt: skip
"""Operators that commute with repeating an operand along an axis."""
_SIZED = ("Expand", "ConstantOfShape", "Reshape")
"""Operators whose last operand gives sizes of the result."""
_ALONE_SINCE = 13
"""Opset from which softmax works along one axis; before, along all axes from that one on."""

SizeConstraint = Callable[[NodeProto, Sequence[Shape], "SizeConstraints"], Iterable[int] | None]
"""Returns the axes of the first operand whose sizes an operator makes observable, or None if they
are unknown; adds the operator's other constraints.
"""


@dataclass
class SizeConstraints:
    """Constraints found so far.

    * ``equal``: pairs of sizes that must be equal;
    * ``whole``: observable sizes, that is, sizes that an operator or the caller sees;
    * ``met``: sets of variants that broadcast together;
    * ``attends``: whether there is attention, or a sign of it: a product of stacks of matrices
      whose batch sizes broadcast, or a broadcast size that must equal one of its members, as for
      an added mask.
    """

    facts: ValueFacts
    opset: int
    equal: list[tuple[Sizes, Sizes]] = field(default_factory=list)
    whole: set[Sizes] = field(default_factory=set)
    met: set[Sizes] = field(default_factory=set)
    attends: bool = False
    caches: dict[tuple[str, str], Sizes] = field(default_factory=dict)

    def output(self, name: str) -> None:
        """Mark the sizes of a model output as observable."""
        self.whole |= self._of_shape(name) | self._of_contents(name)

    def node(self, node: NodeProto) -> None:
        """Add the constraints of one node."""
        reads = [name for name in node.input if name]
        every = {d for name in reads for d in self._of_shape(name) | self._of_contents(name)}
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            # its bodies may read any value
            self.whole |= {d for name in self.facts.specs for d in self._of_shape(name)}
            self.whole |= {d for name in self.facts.values for d in self._of_contents(name)}
            return
        self.met |= {d for name in node.output for d in self._of_shape(name)}
        if not every:
            return
        shapes = [self.facts.shape(name) for name in reads]
        known = [shape for shape in shapes if shape is not None]
        rule = _CONSTRAINTS.get(
            f"{node.domain}::{node.op_type}".removeprefix("ai.onnx").lstrip(":")
        )
        axes: Iterable[int] | None = None
        if rule is not None and len(known) == len(shapes) and not self._lost(node, known):
            axes = rule(node, known, self)
        if axes is not None:
            self.look_along(known[0], axes)
            self._compute(node, reads)
            return
        self.whole |= every
        self._align(known)
        if node.op_type == "GroupQueryAttention":
            self._cached(node)

    def look_along(self, shape: Shape, axes: Iterable[int]) -> None:
        """Mark the sizes of ``shape`` along these axes as observable (``whole``)."""
        inside = (a for a in axes if -len(shape) <= a < len(shape))
        self.whole |= {d for a in inside for d in _parts(shape[a])}

    def same(self, a: Extent, b: Extent) -> None:
        """Require two sizes to be equal."""
        one, other = broadcast_variants(a), broadcast_variants(b)
        if one and other and variants_symbol(a) == variants_symbol(b):
            self.equal.append((one, other))
            self.attends |= len(one) != len(other)
        elif a != b:
            self.whole |= {*_parts(a), *_parts(b)}
            self._align([(a,), (b,)])

    def _lost(self, node: NodeProto, shapes: Sequence[Shape]) -> bool:
        """Whether results have sizes of unknown origin."""
        before = {e for shape in shapes for e in shape}
        for shape in (self.facts.shape(name) for name in node.output if name):
            if shape is None or any(str(e).startswith("?") for e in set(shape) - before):
                return True
        return False

    def _compute(self, node: NodeProto, reads: Sequence[str]) -> None:
        """Require sizes used in computations to remain tracked."""
        if node.op_type in _SIZED:
            value = self.facts.value(reads[-1])
            held = elements(value) if value is not None else []
            self.whole |= {d for e in held if broadcast_variants(e) is None for d in _parts(e)}
            reads = reads[:-1]
        made = [self.facts.value(name) for name in node.output]
        if not all(value is not None and None not in elements(value) for value in made):
            self.whole |= {d for name in reads for d in self._of_contents(name)}

    def meet(self, a: Extent, b: Extent) -> None:
        """Record that two sizes broadcast with each other."""
        one, other = broadcast_variants(a), broadcast_variants(b)
        if one and other and variants_symbol(a) == variants_symbol(b):
            self.met.add(one | other)

    def nested(self, extents: Iterable[Extent]) -> None:
        """Require two extents to be equal if the variants of one include those of the other."""
        every = {d for e in extents for d in _parts(e)}
        pairs = [(a, b) for a in every for b in every if a < b]
        self.equal += pairs
        self.attends |= bool(pairs)

    def _align(self, shapes: Iterable[Shape]) -> None:
        """Require equality of sizes of one symbol at one axis of several values."""
        first: dict[tuple[int, str | None, int], Sizes] = {}
        for shape in shapes:
            for axis, extent in enumerate(shape):
                counts = Counter[str | None]()
                for sizes in _parts(extent):
                    symbol = variants_symbol(min(sizes))
                    known = first.setdefault((axis, symbol, counts[symbol]), sizes)
                    counts[symbol] += 1
                    self.equal.append((known, sizes))
                    self.attends |= len(known) != len(sizes)

    def _cached(self, node: NodeProto) -> None:
        """Require equal lengths of caches whose nodes read one total length."""
        past, total = [*node.input, *[""] * 7][3:7:3]
        for sizes in self._of_shape(past) if past and total else ():
            known = self.caches.setdefault((total, variants_symbol(min(sizes)) or ""), sizes)
            self.equal.append((known, sizes))

    def _of_shape(self, name: str) -> set[Sizes]:
        return {d for e in self.facts.shape(name) or () for d in _parts(e)}

    def _of_contents(self, name: str) -> set[Sizes]:
        value = self.facts.value(name)
        return set() if value is None else {d for e in elements(value) for d in _parts(e)}


def _parts(extent: object) -> Iterator[Sizes]:
    """Sizes from which an extent is computed."""
    if not isinstance(extent, (str, Expr)):
        return
    if (whole := broadcast_variants(extent)) is not None:
        yield whole
    elif isinstance(extent, Expr):
        for arg in extent.args:
            yield from _parts(arg)


# ---- single operators ----------------------------------------------------------------------


def _pointwise(
    node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints
) -> Iterable[int]:
    """Broadcast; computed sizes broadcast too, but are not tracked and must be equal."""
    for shape in shapes[1:]:
        for a, b in zip(shapes[0][::-1], shape[::-1], strict=False):
            if (
                isinstance(a, Expr)
                and isinstance(b, Expr)
                and not (broadcast_variants(a) or broadcast_variants(b))
            ):
                constraints.same(a, b)
    return ()


def _along(default: int) -> SizeConstraint:
    return lambda node, shapes, constraints: (attribute(node, "axis", default),)


def _softmax(
    node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints
) -> Iterable[int]:
    if constraints.opset >= _ALONE_SINCE:
        return (attribute(node, "axis", -1),)
    return _from_axis(attribute(node, "axis", 1), shapes[0])


def _norm(node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints) -> Iterable[int]:
    return _from_axis(attribute(node, "axis", -1), shapes[0])


def _from_axis(axis: int, shape: Shape) -> range:
    return range(axis % max(len(shape), 1), len(shape))


def _named_axes(
    node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints
) -> Iterable[int] | None:
    """Axes given by an attribute or the second operand; all if neither is present."""
    axes = attribute(node, "axes")
    if axes is None and len(node.input) > 1 and node.input[1]:
        axes = constraints.facts.numbers(node.input[1])
        return axes or None
    return range(len(shapes[0])) if axes is None else axes


def _slice(
    node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints
) -> Iterable[int] | None:
    parts = slice_parameters(node, constraints.facts)
    return None if parts is None else [axis for _, _, axis, _ in parts]


def _cumsum(
    node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints
) -> Iterable[int] | None:
    return constraints.facts.numbers(node.input[1])


def _channels(
    node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints
) -> Iterable[int]:
    """All axes but the batch."""
    return range(1, len(shapes[0]))


def _product(
    node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints
) -> Iterable[int]:
    a, b = shapes[:2]
    if a and b:
        constraints.same(a[-1], b[-2] if len(b) > 1 else b[-1])
    for one, other in zip(a[-3::-1], b[-3::-1], strict=False):
        symbol = variants_symbol(one)
        constraints.attends |= (
            symbol is not None and symbol == variants_symbol(other) and one != other
        )
    return ()


def _gemm(node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints) -> Iterable[int]:
    a, b = shapes[:2]
    constraints.same(a[0 if attribute(node, "transA", 0) else 1],
                 b[1 if attribute(node, "transB", 0) else 0])  # fmt: skip
    return ()


def _reshaped(
    node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints
) -> Iterable[int] | None:
    """Require kept leading and trailing axes to be equal; mark the axes between as observable."""
    x, y = shapes[0], constraints.facts.shape(node.output[0])
    if y is None:
        return None
    first = _stay(x, y)
    last = min(_stay(x[::-1], y[::-1]), len(x) - first, len(y) - first)
    for axis in (*range(first), *range(-last, 0)):
        constraints.same(x[axis], y[axis])
    between, made = range(first, len(x) - last), range(first, len(y) - last)
    constraints.look_along(y, made)
    constraints.nested([x[i] for i in between] + [y[i] for i in made])
    return between


def _stay(x: Shape, y: Shape) -> int:
    """Number of leading axes whose sizes are equal or differ only in variants."""
    return sum(
        1 for _ in takewhile(lambda pair: equal_up_to_variants(*pair), zip(x, y, strict=False))
    )


def _attention(
    node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints
) -> Iterable[int] | None:
    """Constraints of attention over rows or heads: batch items and a mask's axes may broadcast."""
    mask, past = (5, 6) if node.domain else (3, 4)
    inputs = [constraints.facts.shape(name) for name in node.input]
    q, k, v = inputs[:3] if len(inputs) > 2 else (None, None, None)
    if q is None or k is None or v is None or not {len(q), len(k), len(v)} <= {3, 4}:
        return None
    constraints.attends = True
    constraints.same(q[0], k[0])
    constraints.same(k[0], v[0])
    keys = k[len(k) - 2]
    constraints.same(keys, v[len(v) - 2])
    for shape in (k, v):
        constraints.look_along(shape, range(1, len(shape)))
    before = [shape for shape in inputs[past : past + 2] if shape]
    for shape in before:
        constraints.same(shape[2], before[0][2])
    total = add(before[0][2], keys) if before else keys
    for i, other in enumerate(inputs[3:], 3):
        if other and i != mask:
            constraints.look_along(other, range(len(other)))
            constraints.same(other[0], q[0])
        elif other:
            constraints.same(other[-1], total)
            for a, b in zip(other[-2::-1], (q[len(q) - 2], 1, q[0]), strict=False):
                constraints.meet(a, b)
    return range(1, len(q))


def _concat(
    node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints
) -> Iterable[int]:
    along = attribute(node, "axis", 0) % len(shapes[0])
    for shape in shapes:
        constraints.look_along(shape, (along,))
        for axis, (a, b) in enumerate(zip(shapes[0], shape, strict=False)):
            if axis != along:
                constraints.same(a, b)
    return ()


def _recurrent(
    node: NodeProto, shapes: Sequence[Shape], constraints: SizeConstraints
) -> Iterable[int]:
    """Lengths and initial states have the batch size of the sequences, ``[time, batch, size]``."""
    x = shapes[0]
    for name, axis in zip(node.input[4:], (0, 1, 1), strict=False):
        other = constraints.facts.shape(name) if name else None
        if other and len(x) == 3 and not attribute(node, "layout", 0):
            constraints.same(x[1], other[axis])
            constraints.look_along(other, range(len(other)))
    return range(len(x))


_CONSTRAINTS: Mapping[str, SizeConstraint] = MappingProxyType(
    {
        **dict.fromkeys(_POINTWISE, _pointwise),
        **dict.fromkeys(("ArgMax", "ArgMin", "Gather", "Split"), _along(0)),
        **dict.fromkeys(("LpNormalization", "TopK"), _along(-1)),
        **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _softmax),
        **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _norm),
        **dict.fromkeys(
            ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
             "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Squeeze"), _named_axes,
        ),
        **dict.fromkeys(
            ("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GlobalAveragePool",
             "GlobalMaxPool", "InstanceNormalization", "MaxPool"), _channels,
        ),
        **dict.fromkeys(("MatMul", "MatMulInteger"), _product),
        **dict.fromkeys(("Attention", "com.microsoft::MultiHeadAttention"), _attention),
        **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
        "Concat": _concat,
        "CumSum": _cumsum,
        "Gemm": _gemm,
        "Reshape": _reshaped,
        "Slice": _slice,
    }
)  # fmt: skip
