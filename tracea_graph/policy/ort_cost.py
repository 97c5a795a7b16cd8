"""Costs of ONNX Runtime's own operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ops.recurrent import cell_cost

__all__ = ["SHAPE_ONLY", "ort_cost", "vector_instructions"]

SHAPE_ONLY = frozenset(
    ("Shape", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Constant", "ConstantOfShape",
     "Flatten")
)  # fmt: skip
_PAST = MappingProxyType(
    {
        "Attention": 4, "com.microsoft::GroupQueryAttention": 3,
        "com.microsoft::MultiHeadAttention": 6,
    }
)  # fmt: skip
"""Operators that compute attention, and the operand that is their key cache."""
_OF_INTEGERS = frozenset(
    ("MatMulInteger", "QLinearMatMul", "com.microsoft::DynamicQuantizeMatMul",
     "com.microsoft::MatMulIntegerToFloat", "com.microsoft::QGemm")
)  # fmt: skip
"""Products of 8-bit integers."""
_CONV_INTEGER = 0.1
"""Share of the float32 peak that ConvInteger reaches, which multiplies unfolded images."""
_ROUNDED_LEVEL = 4
"""Accuracy level at which MatMulNBits multiplies integers."""
_MANY_ROWS = 64
"""Rows from which ONNX Runtime's products run at full speed."""

_REDUCING = frozenset(
    ("ArgMax", "ArgMin", "GlobalAveragePool", "GlobalMaxPool", "ReduceL1", "ReduceL2",
     "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
     "ReduceSumSquare", "TopK")
)  # fmt: skip
_POOLS = frozenset(("AveragePool", "LpPool", "MaxPool"))


def ort_cost(
    fit: FittedCoefficients,
    op: str,
    attrs: Mapping[str, Any],
    operands: Sequence[Dims],
    result: Dims,
) -> OpCost:
    """Return the cost of one run of an operator of ONNX Runtime.

    Dims of an operand of unknown rank are empty.
    """
    if op in SHAPE_ONLY:
        return OpCost()
    if op == "Conv":
        taps = prod(operands[1][1:])
        depthwise = [*operands[1][1:2]] == [1] and attrs.get("group", 1) > 1
        share = fit.shares["depthwise product"] if depthwise else fit.shares["product"]
        return OpCost(2.0 * prod(result) * taps / share, one_pass=True)
    if op == "ConvTranspose":
        return OpCost(2.0 * prod(operands[0]) * prod(operands[1][1:]) / fit.shares["flat product"])
    if op == "ConvInteger":
        return OpCost(2.0 * prod(result) * prod(operands[1][1:]) / _CONV_INTEGER)
    if op in _OF_INTEGERS:
        return OpCost(2.0 * prod(result) * _depth(operands) / fit.shares["product int8"])
    if op == "com.microsoft::MatMulNBits":
        rounded = attrs.get("accuracy_level", 0) == _ROUNDED_LEVEL
        share = fit.shares["product nbits int8" if rounded else "product nbits"]
        return OpCost(2.0 * prod(result) * _depth(operands) / share)
    if op in ("MatMul", "Gemm"):
        depth, columns = _depth(operands), result[-1] if result else 1.0
        rows = prod(result) / max(1.0, columns)
        share = fit.shares["product"] if rows >= _MANY_ROWS else fit.shares["flat product"]
        return OpCost(2.0 * prod(result) * depth / share, one_pass=True)
    if op in ("LSTM", "GRU"):
        ahead, back = fit.shares["product"], fit.shares["state product"]
        cost = cell_cost(fit, operands, ahead, back, fit.us["recurrent step"])
        return replace(cost, one_pass=True)
    if op in _PAST and len(operands[0]) in (3, 4):
        return _one_attention(fit, op, attrs, operands)
    return OpCost(vector=vector_instructions(fit, op.rpartition("::")[2], attrs, operands, result))


def _depth(operands: Sequence[Dims]) -> float:
    """Columns of a product's left operand, of which the rank may be unknown."""
    return operands[0][-1] if operands[0] else 1.0


def _one_attention(
    fit: FittedCoefficients, op: str, attrs: Mapping[str, Any], operands: Sequence[Dims]
) -> OpCost:
    """Cost of Attention-23, MultiHeadAttention or GroupQueryAttention, every query on every key.

    Packed queries, keys and values count as if all of them were queries.
    """
    q, k = operands[0], operands[1] if len(operands) > 1 else ()
    past = operands[_PAST[op]] if len(operands) > _PAST[op] else ()
    heads = q[1] if len(q) == 4 else float(attrs.get("num_heads", attrs.get("q_num_heads", 1)))
    rows = q[2] if len(q) == 4 else q[1]
    keys = (k[2] if len(k) == 4 else k[1] if k else rows) + (past[2] if len(past) == 4 else 0.0)
    scores = q[0] * heads * rows * keys
    product = 4.0 * prod(q) * keys / fit.shares["flat product"]
    return OpCost(product, scores * fit.instructions["Softmax"])


def vector_instructions(
    fit: FittedCoefficients,
    op: str,
    attrs: Mapping[str, Any],
    operands: Sequence[Dims],
    result: Dims,
) -> float:
    """Return the vector instructions of one run of an operator."""
    known, data = fit.instructions, operands[0] if operands else ()
    if op == "Gather":
        axis = attrs.get("axis", 0) % max(len(data), 1)
        return prod(result) + known["Gather run"] * prod(result) / max(prod(data[axis + 1 :]), 1.0)
    weight = known[op if op in known else "other"]
    if op in ("Resize", "Upsample") and attrs.get("mode", "nearest") not in (
        "nearest",
        b"nearest",
    ):
        weight = known["Resize smooth"]
    if f"{op} across" in known and _across(op, attrs, data, result):
        weight = known[f"{op} across"]
    if op in _POOLS:
        kernel = attrs.get("kernel_shape", (1,))
        sides = data[len(data) - len(kernel) :] or kernel
        weight *= prod(min(float(k), side) for k, side in zip(kernel, sides, strict=False))
    return weight * prod(data if op in _REDUCING else result)


def _across(op: str, attrs: Mapping[str, Any], data: Dims, result: Dims) -> bool:
    """Whether an operator works along another axis than the last."""
    if op.startswith("Reduce"):
        return bool(data and result) and data[-1] == result[-1] != 1
    return attrs.get("axis", -1) not in (-1, len(data) - 1)
