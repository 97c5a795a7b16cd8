"""Types and symbolic shapes of every value, in terms of the model's own symbols.

ONNX's inference runs node by node on what is known so far, so that symbols survive; rules here
take over where it loses them (``Reshape`` by computed sizes, ``Concat`` of symbolic extents …).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import onnx
from onnx import NodeProto, OperatorSetIdProto, TypeProto, ValueInfoProto
from onnx.shape_inference import InferenceError, infer_node_outputs

from tracea_graph.ir import Extent, TensorSpec, Weight, combine
from tracea_graph.onnx_io import symbolic as sym
from tracea_graph.onnx_io.facts import INTEGERS, Facts, Partial, Shape, attribute, elements
from tracea_graph.onnx_io.values import evaluate, slice_parameters

__all__ = ["infer"]

Rule = Callable[[NodeProto, Facts], Partial]

T = TypeVar("T")

_REFUSALS = (
    InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError, TypeError, KeyError,
)  # fmt: skip

_FAR = 1 << 30
"""An end of a slice from here on means "to the end"."""


def infer(
    nodes: Iterable[NodeProto],
    inputs: Iterable[ValueInfoProto],
    weights: Mapping[str, Weight],
    opsets: Mapping[str, int],
    known: Mapping[str, TypeProto],
) -> Facts:
    """Facts about every value.  ``nodes`` come sorted.

    ``known`` are types from whole-model inference or declared by the model: the last resort for
    operators that cannot be inferred alone.
    """
    facts = Facts()
    for info in inputs:
        facts.declare(info)
    for weight in weights.values():
        facts.weight(weight)
    imports = [onnx.helper.make_opsetid(d, v) for d, v in opsets.items()]
    for node in nodes:
        _visit(node, facts, opsets, imports, known)
    return facts


def _visit(
    node: NodeProto,
    facts: Facts,
    opsets: Mapping[str, int],
    imports: Sequence[OperatorSetIdProto],
    known: Mapping[str, TypeProto],
) -> None:
    types = _infer_types(node, facts, opsets, imports)
    standard = node.domain in ("", "ai.onnx")
    rule = RULES.get(node.op_type) if standard else None
    if node.op_type in LIKE_INPUT and node.input:
        types.setdefault(node.output[0], facts.type_of(node.input[0]))
    for i, name in enumerate(node.output):
        if not name:
            continue
        kind = types.get(name)
        if kind is None or not kind.WhichOneof("value"):
            kind = known.get(name, TypeProto())
        facts.learn(name, kind, _try(rule, node, facts) if rule and not i else None)
        if facts.shape(name) is None and (type_shape := known.get(name)) is not None:
            facts.learn(name, type_shape)
    if len(node.output) == 1 and facts.dtype(node.output[0]) in INTEGERS:
        value = _try(evaluate, node, facts)
        if value is not None:
            facts.values[node.output[0]] = value
            facts.specs[node.output[0]] = TensorSpec(facts.dtype(node.output[0]), value.shape)


def _infer_types(
    node: NodeProto,
    facts: Facts,
    opsets: Mapping[str, int],
    imports: Sequence[OperatorSetIdProto],
) -> dict[str, TypeProto]:
    """What ONNX's own rule for one operator says; nothing where it has none or fails."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain not in opsets or any(a.HasField("g") or a.graphs for a in node.attribute):
        return {}
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets[domain], domain)
    except onnx.defs.SchemaError:
        return {}
    types = {name: facts.type_of(name) for name in node.input if name}
    data = {name: tensor for name in types if (tensor := facts.data_of(name)) is not None}
    try:
        return infer_node_outputs(schema, node, types, data, None, list(imports))
    except _REFUSALS:
        return {}


def _try(rule: Callable[[NodeProto, Facts], T], node: NodeProto, facts: Facts) -> T | None:
    """What a rule says; nothing of a node whose operands or attributes make no sense."""
    try:
        return rule(node, facts)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _broadcast(node: NodeProto, facts: Facts) -> Partial:
    return _together([facts.shape(name) for name in node.input if name])


def _together(shapes: Sequence[Shape | None]) -> Partial:
    if any(s is None for s in shapes):
        return None
    known = [s for s in shapes if s is not None]
    rank = max(map(len, known), default=0)
    out: list[Extent | None] = [1] * rank
    for shape in known:
        for axis, extent in enumerate(shape, rank - len(shape)):
            old = out[axis]
            out[axis] = None if old is None else sym.broadcast(old, extent)
    return out


def _matmul(node: NodeProto, facts: Facts) -> Partial:
    a, b = (facts.shape(name) for name in node.input[:2])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    batch = _together([a[:-2], b[:-2]])
    return None if batch is None else [*batch, a[-2], b[-1]]


def _reshape(node: NodeProto, facts: Facts) -> Partial:
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


def _flatten(node: NodeProto, facts: Facts) -> Partial:
    data = facts.shape(node.input[0])
    if data is None:
        return [None, None]
    axis = attribute(node, "axis", 1)
    axis += len(data) if axis < 0 else 0
    return [sym.product(data[:axis]), sym.product(data[axis:])]


def _expand(node: NodeProto, facts: Facts) -> Partial:
    data, target = facts.shape(node.input[0]), facts.value(node.input[1])
    if data is None or target is None:
        return None
    wanted = elements(target)
    rank = max(len(data), len(wanted))
    left = [1] * (rank - len(data)) + [*data]
    right = [1] * (rank - len(wanted)) + wanted
    pairs = zip(left, right, strict=True)
    return [None if b is None else sym.broadcast(a, b) for a, b in pairs]


def _constant_of_shape(node: NodeProto, facts: Facts) -> Partial:
    value = facts.value(node.input[0])
    return None if value is None else elements(value)


def _concat(node: NodeProto, facts: Facts) -> Partial:
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
            out[i] = sym.add(old, extent) if i == axis else sym.merge(old, extent)
    return out


def _slice(node: NodeProto, facts: Facts) -> Partial:
    data, parts = facts.shape(node.input[0]), slice_parameters(node, facts)
    if data is None:
        return None
    if parts is None:
        return [None] * len(data)
    out: list[Extent | None] = list(data)
    for start, end, axis, step in parts:
        out[axis] = _slice_extent(data[axis], start, end, step)
    return out


def _slice_extent(size: Extent, start: Any, end: Any, step: int) -> Extent | None:
    if start is None or end is None or step == 0:
        return None
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*slice(start, None if end < -size else end, step).indices(size)))
    if step != 1:
        return (
            size if step == -1 and start == -1 and isinstance(end, int) and end < -_FAR else None
        )
    first = sym.add(size, start) if isinstance(start, int) and start < 0 else start
    if isinstance(end, int) and end >= _FAR:
        last = end = size
    elif isinstance(end, int) and end < 0:
        last = end = sym.add(size, end)
    else:
        last = sym.minimum(end, size)
    if not (sym.at_least(first, 0) and sym.at_least(end, 0)):
        return None
    length = sym.sub(last, first)
    if sym.at_least(length, 0) or first == 0 or sym.at_least(sym.sub(end, first), 0):
        return length
    return combine("max", length, 0) if last == size else None


def _range(node: NodeProto, facts: Facts) -> Partial:
    ends = [facts.value(name) for name in node.input]
    numbers = [e for end in ends if end is not None for e in elements(end)]
    if len(numbers) != 3 or None in numbers:
        return [None]
    start, stop, step = numbers
    length = sym.sub(stop, start)
    return [length] if step == 1 and sym.at_least(length, 0) else [None]


def _tile(node: NodeProto, facts: Facts) -> Partial:
    data, repeats = facts.shape(node.input[0]), facts.value(node.input[1])
    if data is None or repeats is None:
        return None
    pairs = zip(data, elements(repeats), strict=False)
    return [None if r is None else sym.mul(d, r) for d, r in pairs]


def _pad(node: NodeProto, facts: Facts) -> Partial:
    data = facts.shape(node.input[0])
    pads = attribute(node, "pads") or (facts.numbers(node.input[1]) if node.input[1:] else None)
    if data is None or pads is None or len(pads) != 2 * len(data) or any(node.input[3:]):
        return None
    ends = zip(data, pads[: len(data)], pads[len(data) :], strict=True)
    return [sym.add(d, int(a + b)) for d, a, b in ends]


def _resize(node: NodeProto, facts: Facts) -> Partial:
    sizes = facts.value(node.input[3]) if len(node.input) > 3 else None
    data = facts.shape(node.input[0])
    policy = attribute(node, "keep_aspect_ratio_policy", b"stretch")
    if sizes is None or data is None or len(data) != sizes.size or policy != b"stretch":
        return None
    return elements(sizes)


LIKE_INPUT = frozenset({
    "BiasGelu", "FastGelu", "Gelu", "LayerNormalization", "QuickGelu",
    "SimplifiedLayerNormalization", "SkipLayerNormalization",
})  # fmt: skip
"""Operators ONNX Runtime knows in any opset, whose first output is like their first input."""

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
        "Pad": _pad,
        "Range": _range,
        "Reshape": _reshape,
        "Resize": _resize,
        "Slice": _slice,
        "Tile": _tile,
    }
)  # fmt: skip
