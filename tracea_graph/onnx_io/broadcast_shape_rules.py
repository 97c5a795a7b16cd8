"""Shape rules for results whose sizes onnx's inference loses: broadcasting, layout, selection.

Each rule takes a node and the facts about its operands and returns the sizes of its first output
(``RULES``) or of every output (``ALL``), with None for unknown ones.  Malformed nodes may raise;
the caller then treats the sizes as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from onnx import NodeProto

from tracea_graph.ir import Extent, evaluate, symbols_of
from tracea_graph.onnx_io import symbolic_arithmetic as sym
from tracea_graph.onnx_io.conv_shape_rules import WINDOWS
from tracea_graph.onnx_io.shape_values import slice_parameters
from tracea_graph.onnx_io.value_facts import Partial, Shape, ValueFacts, attribute, elements

__all__ = ["ALL", "RULES", "Rule", "broadcast_of", "product_of"]

Rule = Callable[[NodeProto, ValueFacts], Partial]
Rules = Callable[[NodeProto, ValueFacts], Sequence[Partial]]

_FAR = 1 << 30
"""Smallest value of a slice's end that means the end of the axis."""


def _broadcast(node: NodeProto, facts: ValueFacts) -> Partial:
    return broadcast_of([facts.shape(name) for name in node.input if name])


def broadcast_of(shapes: Sequence[Shape | None]) -> Partial:
    """Return the shape that ``shapes`` broadcast to by NumPy's rules, unknown extents as None."""
    if any(s is None for s in shapes):
        return None
    known = [s for s in shapes if s is not None]
    rank = max(map(len, known), default=0)
    out: list[Extent | None] = [1] * rank
    for shape in known:
        for axis, extent in enumerate(shape, rank - len(shape)):
            old = out[axis]
            out[axis] = None if old is None else sym.broadcast_size(old, extent)
    return out


def _matmul(node: NodeProto, facts: ValueFacts) -> Partial:
    return product_of(*(facts.shape(name) for name in node.input[:2]))


def product_of(a: Shape | None, b: Shape | None) -> Partial:
    """Return the shape of a product of two matrices or stacks of matrices."""
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    batch = broadcast_of([a[:-2], b[:-2]])
    return None if batch is None else [*batch, a[-2], b[-1]]


def _reshape(node: NodeProto, facts: ValueFacts) -> Partial:
    data, target = facts.shape(node.input[0]), facts.value(node.input[1])
    if target is None:
        count = facts.shape(node.input[1])
        return [None] * count[0] if count and isinstance(count[0], int) else None
    wanted = elements(target)
    if not attribute(node, "allowzero", 0):
        for axis, extent in enumerate(wanted):
            if extent == 0 and not isinstance(extent, bool):
                wanted[axis] = data[axis] if data is not None and axis < len(data) else None
    holes = [i for i, e in enumerate(wanted) if e is None or e == -1]
    if len(holes) == 1 and data is not None:
        rest = sym.product(tuple(e for i, e in enumerate(wanted) if i != holes[0]))
        wanted[holes[0]] = None if rest == 0 else sym.div(sym.product(data), rest)
    return [None if e == -1 else e for e in wanted]


def _flatten(node: NodeProto, facts: ValueFacts) -> Partial:
    data = facts.shape(node.input[0])
    if data is None:
        return [None, None]
    axis = attribute(node, "axis", 1)
    axis += len(data) if axis < 0 else 0
    return [sym.product(data[:axis]), sym.product(data[axis:])]


def _expand(node: NodeProto, facts: ValueFacts) -> Partial:
    data, target = facts.shape(node.input[0]), facts.value(node.input[1])
    if data is None or target is None:
        return None
    wanted = elements(target)
    rank = max(len(data), len(wanted))
    left = [1] * (rank - len(data)) + [*data]
    right = [1] * (rank - len(wanted)) + wanted
    pairs = zip(left, right, strict=True)
    return [None if b is None else sym.broadcast_size(a, b) for a, b in pairs]


def _constant_of_shape(node: NodeProto, facts: ValueFacts) -> Partial:
    value = facts.value(node.input[0])
    return None if value is None else elements(value)


def _concat(node: NodeProto, facts: ValueFacts) -> Partial:
    shapes = [facts.shape(name) for name in node.input]
    known = [s for s in shapes if s is not None]
    if len(known) != len(shapes) or len({len(s) for s in known}) != 1:
        return None
    axis = attribute(node, "axis", 0) % len(known[0])
    out: list[Extent | None] = list(known[0])
    for shape in known[1:]:
        for i, extent in enumerate(shape):
            old = out[i]
            assert old is not None
            out[i] = sym.add(old, extent) if i == axis else sym.merge_sizes(old, extent)
    return out


def _slice(node: NodeProto, facts: ValueFacts) -> Partial:
    data, parts = facts.shape(node.input[0]), slice_parameters(node, facts)
    if data is None:
        return None
    if parts is None:
        return [None] * len(data)
    out: list[Extent | None] = list(data)
    stored = node.input[0] in facts.constants
    for start, end, axis, step in parts:
        size = data[axis]
        centred = _centred(facts, size, start, end) if stored and step == 1 else None
        out[axis] = centred or _slice_extent(facts, size, start, end, step)
    return out


def _centred(facts: ValueFacts, size: Extent, start: Any, end: Any) -> Extent | None:
    """Return the length of a slice about the middle of a table, ``T[m − s : m + s − 1]``.

    Relative positions are read so.  The slice ends in the table if it begins there.  If s exceeds
    m, its start counts from the end, which no such slice intends: kernels refuse the length then.
    """
    if not isinstance(size, int) or any(e is None or isinstance(e, int) for e in (start, end)):
        return None
    length, beyond = sym.sub(end, start), sym.sub(sym.sub(size, end), start)
    more = sym.add(length, 1)
    grows = sym.is_at_least(length, 0, least=1) or any(sym.mul(s, 2) == more for s in facts.sizes)
    if not (grows and sym.is_at_least(beyond, 0)):
        return None
    smallest = dict.fromkeys(symbols_of(start), 1)
    return sym.maximum(length, 0) if evaluate(start, smallest) > 0 else None


def _slice_extent(
    facts: ValueFacts, size: Extent, start: Any, end: Any, step: int
) -> Extent | None:
    if start is None or end is None or step == 0:
        return None
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*slice(start, None if end < -size else end, step).indices(size)))
    if step < 0:
        whole = start == -1 and isinstance(end, int) and end < -_FAR
        return sym.ceil_div(size, -step) if whole else None
    reach = _reach(facts, size, start, end)
    if reach is None:
        return None
    length = sym.ceil_div(reach, step)
    return length if facts.not_negative(length) else sym.maximum(length, 0)


def _reach(facts: ValueFacts, size: Extent, start: Any, end: Any) -> Extent | None:
    """Distance from the start of a slice to its end; negative if the end comes first."""
    to_the_end = isinstance(end, int) and end >= _FAR
    # x[-n:] is all of x if n is 0, which slices of the last n elements never intend
    if not isinstance(start, int) and sym.is_at_least(back := sym.sub(0, start), 1, least=1):
        return sym.minimum(back, size) if to_the_end else None
    if isinstance(start, int) and start < 0 and to_the_end:
        return sym.minimum(-start, size)
    first, last = _from_front(size, start), size if to_the_end else _from_front(size, end)
    if not (facts.not_negative(first) and facts.not_negative(last)):
        return None
    if not isinstance(end, int) or 0 <= end < _FAR:
        last = sym.minimum(last, size)
    return sym.sub(last, first)


def _from_front(size: Extent, place: Extent) -> Extent:
    """Position along an axis; a negative number counts from the end and is clamped at 0."""
    behind = isinstance(place, int) and place < 0
    return sym.maximum(sym.add(size, place), 0) if behind else place


def _range(node: NodeProto, facts: ValueFacts) -> Partial:
    ends_told = [facts.reals(name) for name in node.input]
    if all(end is not None and len(end) == 1 for end in ends_told):
        first, last, by = (end[0] for end in ends_told if end is not None)
        return [max(math.ceil((last - first) / by), 0)] if by else [None]
    ends = [facts.value(name) for name in node.input]
    numbers = [e for end in ends if end is not None for e in elements(end)]
    if len(numbers) != 3 or None in numbers or not isinstance(numbers[2], int) or not numbers[2]:
        return [None]
    start, stop, step = numbers
    way = sym.sub(stop, start) if step > 0 else sym.sub(start, stop)
    if abs(step) == 1 and facts.not_negative(way):
        return [way]
    return [sym.maximum(sym.ceil_div(way, abs(step)), 0)]


def _split(node: NodeProto, facts: ValueFacts) -> Sequence[Partial]:
    """Sizes of given parts, or of equal parts of which the last may be smaller."""
    data, count = facts.shape(node.input[0]), len(node.output)
    if data is None:
        return [None] * count
    axis = attribute(node, "axis", 0) % len(data)
    parts: list[Extent | None]
    given = attribute(node, "split")
    told = facts.value(node.input[1]) if len(node.input) > 1 and node.input[1] else None
    if given or told is not None:
        parts = list(given) if given else elements(told) if told is not None else []
    elif len(node.input) > 1 and node.input[1]:
        parts = [None] * count
    else:
        uneven = attribute(node, "num_outputs") is not None
        part = sym.ceil_div(data[axis], count) if uneven else sym.div(data[axis], count)
        last = sym.sub(data[axis], sym.mul(part, count - 1)) if uneven else part
        parts = [*[part] * (count - 1), last]
    return [[*data[:axis], part, *data[axis + 1 :]] for part in parts]


def _values_and_indices(node: NodeProto, facts: ValueFacts) -> Sequence[Partial]:
    """Sizes of a pool's values and of their indices."""
    return [WINDOWS["MaxPool"](node, facts)] * 2


def _tile(node: NodeProto, facts: ValueFacts) -> Partial:
    data, repeats = facts.shape(node.input[0]), facts.value(node.input[1])
    if data is None or repeats is None:
        return None
    pairs = zip(data, elements(repeats), strict=True)
    return [None if r is None else sym.mul(d, r) for d, r in pairs]


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(
            ("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Where", "Equal", "Less", "Greater",
             "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor", "Min", "Max", "Sum", "Mean"),
            _broadcast,
        ),
        "Concat": _concat,
        "ConstantOfShape": _constant_of_shape,
        "Expand": _expand,
        "Flatten": _flatten,
        "MatMul": _matmul,
        "Range": _range,
        "Reshape": _reshape,
        "Slice": _slice,
        "Tile": _tile,
        **WINDOWS,
    }
)  # fmt: skip

ALL: Mapping[str, Rules] = MappingProxyType({"MaxPool": _values_and_indices, "Split": _split})
