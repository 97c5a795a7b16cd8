"""Partial evaluation of shape arithmetic: contents of small integer (and integral float) tensors.

Each rule takes a node, the contents of its inputs (None: unknown) and the facts, and returns the
contents of the node's output, or None.  Elements are extents, booleans, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import NodeProto

from tracea_graph.ir import DType, Expr, Extent
from tracea_graph.onnx_io import symbolic_arithmetic as sym
from tracea_graph.onnx_io.tensor_data import tensor_attribute_array
from tracea_graph.onnx_io.value_facts import (
    FLOATS,
    INTEGERS,
    SMALL,
    Shape,
    Value,
    ValueFacts,
    attribute,
    elements,
)

__all__ = ["evaluate_shape_node", "extent_vector"]

Args = Sequence[Value | None]
Rule = Callable[[NodeProto, Args, ValueFacts], Value | None]


_WHOLE = frozenset((
    "Add", "Cast", "Ceil", "Concat", "Expand", "Floor", "Gather", "Identity", "Mul", "Reshape",
    "Round", "Slice", "Squeeze", "Sub", "Unsqueeze",
))  # fmt: skip
"""Operators that map integral floats to integral floats."""


def evaluate_shape_node(node: NodeProto, facts: ValueFacts) -> Value | None:
    """Return the contents of a node's only output; None if they are not known or not small."""
    rule = RULES.get(node.op_type)
    if facts.dtype(node.output[0]) in FLOATS and node.op_type not in _WHOLE:
        return None
    if rule is None or node.domain not in ("", "ai.onnx") or not len(node.output):
        return None
    value = rule(node, [facts.value(name) for name in node.input], facts)
    return value if value is not None and value.size <= SMALL else None


def extent_vector(items: Sequence[Any]) -> Value:
    """Return a vector of extents."""
    out = np.empty(len(items), object)
    out[:] = list(items)
    return out


def _shape(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    shape = facts.shape(node.input[0])
    if shape is None:
        return None
    return extent_vector(shape[slice(attribute(node, "start", 0), attribute(node, "end"))])


def _size(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    shape = facts.shape(node.input[0])
    return None if shape is None else _scalar(sym.product(shape))


def _scalar(value: Any) -> Value:
    out = np.empty((), object)
    out[()] = value
    return out


def _same(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    return args[0]


def _cast(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    to = DType.from_onnx(attribute(node, "to", 0))
    if args[0] is None or to not in INTEGERS | FLOATS:
        return None
    if to is DType.BOOL:
        return _each(_truth, args[0])
    return _each(lambda v: int(v) if isinstance(v, bool) else v, args[0])


def _truth(element: Any) -> bool | None:
    if element is None or _symbolic(element):
        return True if element is not None and sym.is_at_least(element, 1) else None
    return bool(element)


def _gather(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    data, index = args[0], facts.numbers(node.input[1])
    if data is None or index is None or args[1] is None or not data.ndim:
        return None
    where = np.array(index, np.int64).reshape(args[1].shape)
    axis = attribute(node, "axis", 0)
    if where.size and not -data.shape[axis] <= where.min() <= where.max() < data.shape[axis]:
        return None
    return np.asarray(np.take(data, where, axis=axis), object)


def _slice(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    data = args[0]
    parts = slice_parameters(node, facts)
    if data is None or parts is None:
        return None
    index = [slice(None)] * data.ndim
    for start, end, axis, step in parts:
        if not all(isinstance(v, int) for v in (start, end)) or not -data.ndim <= axis < data.ndim:
            return None
        assert isinstance(start, int) and isinstance(end, int)
        stop = None if step < 0 and end < -data.shape[axis] else end
        index[axis] = slice(start, stop, step)
    return data[tuple(index)]


def slice_parameters(
    node: NodeProto, facts: ValueFacts
) -> list[tuple[Extent | None, Extent | None, int, int]] | None:
    """Return ``(start, end, axis, step)`` per sliced axis; None if axes or steps are unknown."""
    if len(node.input) == 1:
        starts, ends = attribute(node, "starts", []), attribute(node, "ends", [])
        axes = attribute(node, "axes", range(len(starts)))
        return [(s, e, a, 1) for s, e, a in zip(starts, ends, axes, strict=False)]
    axes_name, steps_name = [*node.input[3:5], "", ""][:2]
    start, end = facts.value(node.input[1]), facts.value(node.input[2])
    shape = next((facts.shape(n) for n in node.input[1:4] if n and facts.shape(n)), None)
    if not shape or not isinstance(shape[0], int):
        return None
    count = shape[0]
    axes = facts.numbers(axes_name) if axes_name else list(range(count))
    steps = facts.numbers(steps_name) if steps_name else [1] * count
    if axes is None or steps is None:
        return None
    firsts = [None] * count if start is None else elements(start)
    lasts = [None] * count if end is None else elements(end)
    return list(zip(firsts, lasts, axes, steps, strict=False))


def _concat(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    parts = [
        _unknown(facts.shape(n)) if a is None else a for n, a in zip(node.input, args, strict=True)
    ]
    if any(p is None or p.ndim == 0 for p in parts):
        return None
    return np.concatenate([p for p in parts if p is not None], attribute(node, "axis", 0))


def _unknown(shape: Shape | None) -> Value | None:
    """Contents of known length and unknown elements."""
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int) or shape[0] > SMALL:
        return None
    return np.empty(shape[0], object)


def _reshaped(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    shape = facts.shape(node.output[0])
    data = args[0]
    if data is None or shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return data.reshape([d for d in shape if isinstance(d, int)])


def _transposed(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    return None if args[0] is None else args[0].transpose(attribute(node, "perm"))


def _expand(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    shape = facts.shape(node.output[0])
    if args[0] is None or shape is None or not all(isinstance(d, int) for d in shape):
        return None
    target = tuple(d for d in shape if isinstance(d, int))
    return np.broadcast_to(args[0], target) if np.prod(target) <= SMALL else None


def _constant_of_shape(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    shape = facts.numbers(node.input[0])
    fill = attribute(node, "value")
    if shape is None or fill is None or np.prod(shape) > SMALL:
        return None
    filling = tensor_attribute_array(fill, node.output[0])
    if filling.size != 1:
        return None
    element = filling.item()
    return np.full(shape, element, object) if isinstance(element, (int, bool)) else None


def _range(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    ends = [facts.numbers(name) for name in node.input]
    if any(e is None for e in ends):
        return None
    start, stop, step = (e[0] for e in ends if e is not None)
    span = range(start, stop, step) if step else range(0)
    return extent_vector(span) if len(span) <= SMALL else None


def _where(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    condition, yes, no = args
    if condition is None or yes is None or no is None:
        return None

    def choose(c: Any, y: Any, n: Any) -> Any:
        return (y if c else n) if c is not None else (y if _equal(y, n) else None)

    return _each(choose, condition, yes, no)


def _arith(function: Callable[[Any, Any], Any]) -> Rule:
    def rule(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
        if any(a is None for a in args):
            return None
        result = args[0]
        for other in args[1:]:
            result = _each(lambda a, b: None if None in (a, b) else function(a, b), result, other)
        return result

    return rule


def _reduce(function: Callable[[Any, Any], Any], start: Extent) -> Rule:
    def rule(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
        data = args[0]
        axes = attribute(node, "axes") or (
            facts.numbers(node.input[1]) if len(node.input) > 1 and node.input[1] else None
        )
        if data is None or data.ndim != 1 or (len(node.input) > 1 and axes is None):
            return None
        result: Any = start
        for item in data:
            result = None if None in (item, result) else function(result, item)
        keep = attribute(node, "keepdims", 1)
        return extent_vector([result]) if keep else _scalar(result)

    return rule


def _each(function: Callable[..., Any], *arrays: Any) -> Value:
    wide = np.broadcast_arrays(*arrays)
    out = np.empty(wide[0].shape, object)
    for index in np.ndindex(out.shape):
        out[index] = function(*(a[index] for a in wide))
    return out


def _symbolic(value: Any) -> bool:
    return isinstance(value, (str, Expr))


def _div(a: Any, b: Any) -> Any:
    """Divide; ONNX truncates and extents round down, which is equal unless a sign is negative.

    Division by 0 has no result in either.
    """
    return sym.div(a, b) if sym.is_at_least(a, 0) and sym.is_at_least(b, 1, least=1) else None


def _mod(a: Any, b: Any) -> Any:
    return a % b if isinstance(a, int) and isinstance(b, int) and b > 0 <= a else None


def _equal(a: Any, b: Any) -> bool | None:
    """Whether two elements are equal; None if that depends on the inputs."""
    if a is None or b is None:
        return None
    if not (_symbolic(a) or _symbolic(b)):
        return bool(a == b)
    difference = sym.sub(a, b)
    if isinstance(difference, int):
        return difference == 0
    return False if sym.is_at_least(difference, 1) or sym.is_at_least(sym.sub(b, a), 1) else None


def _less(a: Any, b: Any) -> bool | None:
    if sym.is_at_least(sym.sub(b, a), 1):
        return True
    return False if sym.is_at_least(sym.sub(a, b), 0) else None


def _bool(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: function(a, b) if isinstance(a, bool) and isinstance(b, bool) else None


def _not(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    return None if args[0] is None else _each(lambda v: None if v is None else not v, args[0])


def _neg(node: NodeProto, args: Args, facts: ValueFacts) -> Value | None:
    return (
        None
        if args[0] is None
        else _each(lambda v: None if v is None else sym.mul(v, -1), args[0])
    )


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "Shape": _shape,
        "Size": _size,
        **dict.fromkeys(("Identity", "Ceil", "Floor", "Round"), _same),
        "Cast": _cast,
        "Gather": _gather,
        "Slice": _slice,
        "Concat": _concat,
        "Reshape": _reshaped,
        "Unsqueeze": _reshaped,
        "Squeeze": _reshaped,
        "Flatten": _reshaped,
        "Expand": _expand,
        "Transpose": _transposed,
        "ConstantOfShape": _constant_of_shape,
        "Range": _range,
        "Where": _where,
        "Add": _arith(sym.add),
        "Sub": _arith(sym.sub),
        "Mul": _arith(sym.mul),
        "Div": _arith(_div),
        "Mod": _arith(_mod),
        "Min": _arith(sym.minimum),
        "Max": _arith(sym.maximum),
        "Equal": _arith(_equal),
        "Less": _arith(_less),
        "Greater": _arith(lambda a, b: _less(b, a)),
        "And": _arith(_bool(lambda a, b: a and b)),
        "Or": _arith(_bool(lambda a, b: a or b)),
        "Not": _not,
        "Neg": _neg,
        "ReduceProd": _reduce(sym.mul, 1),
        "ReduceSum": _reduce(sym.add, 0),
    }
)  # fmt: skip
