"""Diagnosis of shape errors: operators whose operands are incompatible, and false declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx
from onnx import ModelProto, NodeProto, TypeProto
from onnx.shape_inference import InferenceError, infer_node_outputs

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.onnx_io.value_facts import ValueFacts, attribute

__all__ = [
    "Contradiction",
    "false_declarations",
    "first_contradiction",
    "incompatible_operands",
    "unknown_shapes",
]


@dataclass(frozen=True)
class Contradiction:
    """One contradiction, of a ``kind`` that ``views.shape_check.ShapeRow`` lists.

    ``node`` is the operator's name, or its type if it has no name; ``value`` is the tensor
    concerned.
    """

    kind: str
    node: str
    value: str
    reason: str


def first_contradiction(shell: ModelProto) -> str:
    """Describe the first operator with incompatible operands; empty if there is none.

    ``shell`` holds the types that shape inference found before it failed.
    """
    graph = shell.graph
    known: dict[str, TypeProto] = {
        v.name: v.type for v in (*graph.value_info, *graph.output, *graph.input)
    }
    for tensor in graph.initializer:
        known[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    opsets = {i.domain: i.version for i in shell.opset_import}
    for node in graph.node:
        names = [v for v in dict.fromkeys(node.input) if v]
        if len(names) < 2 or any(v not in known for v in names):
            continue
        if _refusal(node, {v: known[v] for v in names}, opsets) is not None:
            operands = " and ".join(f"{v!r} is {_spec(known[v])}" for v in names)
            return f"node {node.name or node.op_type!r}: {operands}"
    return ""


def _refusal(
    node: NodeProto, types: Mapping[str, TypeProto], opsets: Mapping[str, int]
) -> str | None:
    """Return onnx's reason against a node's operands; None if it has none."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain not in opsets:
        return None
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets[domain], domain)
        infer_node_outputs(schema, node, dict(types))
    except onnx.defs.SchemaError:
        return None
    except (InferenceError, onnx.checker.ValidationError) as error:
        return str(error).split("\n")[0]
    except (RuntimeError, ValueError, TypeError):
        return None
    return None


def _spec(kind: TypeProto) -> TensorSpec:
    tensor = kind.tensor_type
    dims = (
        d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim
    )
    shape = tuple(dims) if tensor.HasField("shape") else None
    return TensorSpec(DType.from_onnx(tensor.elem_type), shape)


# ---- every contradiction of a model ------------------------------------------------------


def incompatible_operands(
    node: NodeProto, facts: ValueFacts, opsets: Mapping[str, int]
) -> Iterator[Contradiction]:
    """Yield the contradictions between a node's operands, whose shapes are in ``facts``."""
    names = [v for v in dict.fromkeys(node.input) if v]
    if not names or any(facts.shape(v) is None for v in names):
        return
    label = node.name or node.op_type
    listed = " and ".join(f"{v!r} is {facts.specs[v]}" for v in names)
    if _refusal(node, {v: facts.type_of(v) for v in names}, opsets) is not None:
        yield Contradiction("operands", label, node.output[0], f"{node.op_type}: {listed}")
        return
    for first, second, what in _EQUAL.get(node.op_type, _nothing)(node, facts):
        if isinstance(first, int) and isinstance(second, int) and first != second:
            reason = f"{node.op_type}: {first} {what} {second}; {listed}"
            yield Contradiction("operands", label, node.output[0], reason)


def false_declarations(
    name: str, declared: TypeProto, facts: ValueFacts, maker: str, strict: bool
) -> Iterator[Contradiction]:
    """Yield how a declared type differs from the inferred one.

    Without ``strict``, yields only differences that remain for all sizes.
    """
    if not declared.HasField("tensor_type") or name not in facts.specs:
        return
    said, found = _spec(declared), facts.specs[name]
    if said.dtype is not None and found.dtype is not None and said.dtype is not found.dtype:
        reason = f"declared as {said.dtype.short}, computed as {found.dtype.short}"
        yield Contradiction("type", maker, name, reason)
    if said.shape is None or found.shape is None:
        return
    both = f"declared as {said}, computed as {found}"
    if len(said.shape) != len(found.shape):
        yield Contradiction("declared", maker, name, f"{both}: the ranks differ")
        return
    for axis, (a, b) in enumerate(zip(said.shape, found.shape, strict=True)):
        if isinstance(a, int) and isinstance(b, int) and a != b:
            yield Contradiction("declared", maker, name, f"{both}: axis {axis} is {b}, not {a}")
        elif strict and a != "?" and not str(b).startswith("?") and _extent(a, facts) != b:
            reason = f"{both}: axis {axis} is {b}, which is {a} only for some sizes"
            yield Contradiction("sizes", maker, name, reason)


def _extent(declared: Extent, facts: ValueFacts) -> Extent:
    return facts.named(declared) if isinstance(declared, str) else declared


def unknown_shapes(node: NodeProto, facts: ValueFacts) -> Iterator[Contradiction]:
    """Yield a contradiction for each result of a node whose rank inference does not find."""
    for name in node.output:
        spec = facts.specs.get(name)
        if name and name not in facts.types and (spec is None or spec.shape is None):
            label = node.name or node.op_type
            reason = f"the rank of the result of {node.op_type} is not known"
            yield Contradiction("unknown", label, name, reason)


Pair = tuple[Extent, Extent, str]
_Pairs = Callable[[NodeProto, ValueFacts], Sequence[Pair]]


def _nothing(node: NodeProto, facts: ValueFacts) -> Sequence[Pair]:
    return ()


def _conv(node: NodeProto, facts: ValueFacts) -> Sequence[Pair]:
    """Channels: those of the filters of one group, times the groups."""
    x, w = facts.shape(node.input[0]), facts.shape(node.input[1])
    groups = int(attribute(node, "group", 1))
    if not x or not w or len(x) < 3 or len(w) != len(x) or not isinstance(w[1], int):
        return ()
    found: list[Pair] = [(x[1], w[1] * groups, "input channels, but filters take")]
    if len(node.input) > 2 and node.input[2] and (bias := facts.shape(node.input[2])):
        found.append((bias[0], w[0], "biases, but the number of filters is"))
    return found


def _per_channel(node: NodeProto, facts: ValueFacts) -> Sequence[Pair]:
    """One scale, offset, mean and variance a channel."""
    x = facts.shape(node.input[0])
    others = [facts.shape(v) for v in node.input[1:] if v]
    if not x or len(x) < 2:
        return ()
    return [(x[1], one[0], "channels, but parameters for") for one in others if one]


def _last_axis(node: NodeProto, facts: ValueFacts) -> Sequence[Pair]:
    """A scale for each element of the normalized axis, if that is the last one."""
    x, axis = facts.shape(node.input[0]), int(attribute(node, "axis", -1))
    others = [facts.shape(v) for v in node.input[1:] if v]
    if not x or axis not in (-1, len(x) - 1):
        return ()
    return [(x[-1], o[-1], "columns, but parameters for") for o in others if o and o[-1] != 1]


_EQUAL: Mapping[str, _Pairs] = MappingProxyType(
    {
        "Conv": _conv,
        "BatchNormalization": _per_channel,
        "InstanceNormalization": _per_channel,
        "LayerNormalization": _last_axis,
    }
)
"""Sizes that must be equal and that onnx does not compare, by operator."""
