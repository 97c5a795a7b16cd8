"""Element types of values, and the nodes that could compute in float32 instead of a half type.

The onnx package's shape inference forgets what an operator of another domain returns, and does not
say which operands share a type.  Both follow from the operators' signatures; contributed operators
have a table of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import onnx
from onnx import NodeProto, TensorProto

from tracea_graph.onnx_io.value_facts import attribute

__all__ = ["HALF_TYPES", "Types", "can_widen", "result_types"]

HALF_TYPES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
Types = Mapping[str, int | None]
"""``TensorProto`` codes of values by name; None if it is not known."""

_HALF_NAMES = frozenset({"tensor(float16)", "tensor(bfloat16)"})
_FLOAT_NAME = "tensor(float)"
_CODES = {
    f"tensor({name.lower()})": code for name, code in TensorProto.DataType.items() if code
} | {"tensor(float)": TensorProto.FLOAT, "tensor(double)": TensorProto.DOUBLE}

_CONTRIBUTED: Mapping[str, tuple[int, ...]] = MappingProxyType({
    "Attention": (0, 1), "BiasAdd": (0,), "BiasGelu": (0,), "BiasSoftmax": (0,),
    "EmbedLayerNormalization": (0, 2), "FastGelu": (0,), "FusedConv": (0,), "FusedGemm": (0,),
    "FusedMatMul": (0,), "Gelu": (0,), "GatherBlockQuantized": (0,),
    "GroupQueryAttention": (0, 1, 2), "LayerNormalization": (0,), "MatMulNBits": (0,),
    "MultiHeadAttention": (0, 1, 2), "QuickGelu": (0,), "RotaryEmbedding": (0,),
    "SimplifiedLayerNormalization": (0,), "SkipLayerNormalization": (0, 3),
    "SkipSimplifiedLayerNormalization": (0, 3),
})  # fmt: skip
"""Operators of ONNX Runtime that compute in the type of their float operands, and the indices of
the results that have this type.  Other operators are not widened.
"""
_FROM_BF16 = frozenset({"GatherBlockQuantized", "GroupQueryAttention"})
"""Those that are widened from bf16 alone.

ONNX Runtime has them in fp16; widening converts whole tables and caches in every execution.
"""
_OTHERWISE_TYPED = frozenset({
    "Bernoulli", "BitCast", "Constant", "EyeLike", "Multinomial", "RandomNormal",
    "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
"""Operators whose result depends on its type, not only on the operands' numbers."""


def result_types(node: NodeProto, types: Types, opsets: Mapping[str, int]) -> list[int | None]:
    """Return the element types of a node's results; None where its signature leaves them open."""
    if node.op_type == "Cast" and _standard(node):
        return [attribute(node, "to")]
    if node.op_type == "Constant" and _standard(node):
        return [_constant_type(node)]
    if node.op_type == "ConstantOfShape" and _standard(node):
        value = attribute(node, "value")
        return [TensorProto.FLOAT if value is None else value.data_type]
    signature = _signature(node.op_type, _standard(node), opsets.get("", 1))
    if signature is None:
        return _contributed_results(node, types)
    inputs, outputs = signature
    bound: dict[str, int] = {}
    for value, (name, _) in zip(node.input, _stretched(inputs, len(node.input)), strict=True):
        if value and (code := types.get(value)) is not None:
            bound.setdefault(name, code)
    found: list[int | None] = []
    for name, allowed in _stretched(outputs, len(node.output)):
        only = next(iter(allowed)) if len(allowed) == 1 else ""
        found.append(bound.get(name, _CODES.get(only)))
    return found


def can_widen(
    node: NodeProto, types: Types, results: Sequence[int | None], opsets: Mapping[str, int]
) -> bool:
    """Return whether a node accepts float32 in place of its half operands and results."""
    if any(a.HasField("g") or a.graphs for a in node.attribute):
        return False
    halves = [c in HALF_TYPES for c in (*(types.get(v) for v in node.input if v), *results)]
    if not any(halves) or (_standard(node) and node.op_type in _OTHERWISE_TYPED):
        return False
    if any(a.name.endswith("dtype") and a.i in HALF_TYPES for a in node.attribute):
        return False
    if _standard(node) and node.op_type in ("Cast", "ConstantOfShape"):
        return True
    signature = _signature(node.op_type, _standard(node), opsets.get("", 1))
    if signature is None:
        bf16 = TensorProto.BFLOAT16 in (*(types.get(v) for v in node.input if v), *results)
        return _contributed(node) is not None and (bf16 or node.op_type not in _FROM_BF16)
    inputs, outputs = signature
    operands = zip(node.input, _stretched(inputs, len(node.input)), strict=True)
    pairs = [(types.get(v), allowed) for v, (_, allowed) in operands if v]
    made = zip(node.output, results, _stretched(outputs, len(node.output)), strict=True)
    pairs += [(code, allowed) for v, code, (_, allowed) in made if v]
    return all(_accepts(code, allowed) for code, allowed in pairs)


def _accepts(code: int | None, allowed: frozenset[str]) -> bool:
    """Whether a place for a value of this type also takes it in float32, if it is a half."""
    if code is None:  # a sequence of halves, for all that is known
        return not any("float16" in name for name in allowed)
    return code not in HALF_TYPES or _FLOAT_NAME in allowed


def _standard(node: NodeProto) -> bool:
    return node.domain in ("", "ai.onnx")


def _contributed(node: NodeProto) -> tuple[int, ...] | None:
    known = node.domain in ("", "ai.onnx", "com.microsoft")
    return _CONTRIBUTED.get(node.op_type) if known else None


def _contributed_results(node: NodeProto, types: Types) -> list[int | None]:
    """Result types of an operator that the onnx package does not know."""
    typed = _contributed(node) or ()
    floats = (*HALF_TYPES, TensorProto.FLOAT, TensorProto.DOUBLE)
    code = next((c for v in node.input if (c := types.get(v)) in floats), None)
    found = [code if i in typed else None for i in range(len(node.output))]
    if node.op_type == "GroupQueryAttention" and len(node.input) > 4 and node.input[3]:
        found[1:3] = [types.get(v) for v in node.input[3:5]][: len(found) - 1]  # of the caches
    return found


def _constant_type(node: NodeProto) -> int | None:
    value = attribute(node, "value")
    if value is not None:
        return int(value.data_type)
    names = {a.name for a in node.attribute}
    if names & {"value_int", "value_ints"}:
        return TensorProto.INT64
    return TensorProto.FLOAT if names & {"value_float", "value_floats"} else None


_Formals = tuple[tuple[str, frozenset[str]], ...]
"""Type parameter and permitted types of each formal parameter."""


@lru_cache(maxsize=4096)
def _signature(op: str, standard: bool, opset: int) -> tuple[_Formals, _Formals] | None:
    try:
        schema = onnx.defs.get_schema(op, opset, "") if standard else None
    except onnx.defs.SchemaError:
        return None
    if schema is None:
        return None
    sides = (schema.inputs, schema.outputs)
    inputs, outputs = (tuple((p.type_str, frozenset(p.types)) for p in side) for side in sides)
    return inputs, outputs


def _stretched(formals: _Formals, count: int) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield a formal parameter per operand; the last one repeats."""
    nothing = ("", frozenset[str]())
    for i in range(count):
        yield formals[min(i, len(formals) - 1)] if formals else nothing
