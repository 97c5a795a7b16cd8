"""What ONNX Runtime's own operators compute, in vector instructions: its strong and weak spots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tracea_graph.policy.tables import Tables

__all__ = ["instructions"]

Dims = Sequence[float]

_REDUCING = frozenset(
    ("ArgMax", "ArgMin", "GlobalAveragePool", "GlobalMaxPool", "ReduceL1", "ReduceL2",
     "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
     "ReduceSumSquare", "TopK")
)  # fmt: skip
_POOLS = frozenset(("AveragePool", "LpPool", "MaxPool"))


def instructions(
    tables: Tables, op: str, attrs: Mapping[str, Any], operands: Sequence[Dims], result: Dims
) -> float:
    """Vector instructions of one run of an operator, from the dims of its operands and result."""
    known, data = tables.instructions, operands[0] if operands else ()
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
    """Whether an operator runs along another axis than the last."""
    if op.startswith("Reduce"):
        return bool(data and result) and data[-1] == result[-1] != 1
    return attrs.get("axis", -1) not in (-1, len(data) - 1)
