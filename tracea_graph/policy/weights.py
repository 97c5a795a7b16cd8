"""What ONNX Runtime's own operators compute, in vector instructions: its strong and weak spots.

How the numbers were found: ONNX Runtime 1.31, one thread of a Zen 4 core with AVX-512 (59 billion
vector instructions a second), nothing else running.  Chains of 4 and of 12 equal nodes (parallel
nodes where the result is smaller) over 128×384 or 1×64×56×56 floats, optimizations off; least time
of a tenth of a second of runs; a node's time is an eighth of the difference.  From it go what
``CostModel`` says of the node and its traffic; the rest, in instructions per element, is the
weight, 1 where nothing is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

__all__ = ["LIGHT", "WEIGHTS", "instructions"]

Dims = Sequence[float]

LIGHT = 2.0
"""Per element of an operator without a weight."""

WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        # elementwise
        **dict.fromkeys(
            ("Abs", "Add", "Clip", "HardSigmoid", "LeakyRelu", "Max", "Min", "Mul", "Neg", "Relu",
             "Sub", "ThresholdedRelu"), 1,
        ),
        "Celu": 108, "Ceil": 8, "Cos": 100, "Div": 3, "Elu": 95, "Equal": 4, "Erf": 20, "Exp": 1,
        "FastGelu": 20, "Floor": 6, "Gelu": 26, "Greater": 4, "HardSwish": 7, "IsNaN": 4,
        "Less": 4, "Log": 88, "Mish": 680, "Mod": 325, "PRelu": 11, "Pow": 240, "QuickGelu": 12,
        "Reciprocal": 3, "Round": 2, "Selu": 98, "Sigmoid": 7, "Sign": 50, "Sin": 100,
        "Softplus": 1245, "Softsign": 3, "Sqrt": 11, "Tan": 650, "Tanh": 6, "Where": 9,
        # rows
        "CumSum": 172, "GroupNormalization": 43, "InstanceNormalization": 7, "LRN": 1466,
        "BatchNormalization": 1, "LayerNormalization": 18, "LogSoftmax": 8, "LpNormalization": 48,
        "MeanVarianceNormalization": 35, "RMSNormalization": 4, "Softmax": 7,
        "SimplifiedLayerNormalization": 4, "SkipLayerNormalization": 18,
        # reductions, per element reduced
        "ArgMax": 42, "ArgMin": 42, "GlobalAveragePool": 9, "GlobalMaxPool": 5, "ReduceL1": 42,
        "ReduceL2": 40, "ReduceLogSumExp": 230, "ReduceMax": 1, "ReduceMean": 2, "ReduceMin": 1,
        "ReduceProd": 45, "ReduceSum": 2, "ReduceSumSquare": 39, "TopK": 60,
        # pools, per element of a window
        "AveragePool": 5, "LpPool": 5, "MaxPool": 4,
        # movement
        "Concat": 1, "DepthToSpace": 97, "Einsum": 119, "Expand": 1, "GatherElements": 25,
        "Pad": 5, "Resize": 27, "Slice": 1, "SpaceToDepth": 14, "Split": 1, "Tile": 1,
        "Transpose": 4, "Upsample": 27,
    }
)  # fmt: skip

_REDUCING = frozenset(
    ("ArgMax", "ArgMin", "GlobalAveragePool", "GlobalMaxPool", "ReduceL1", "ReduceL2",
     "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
     "ReduceSumSquare", "TopK")
)  # fmt: skip
_POOLS = frozenset(("AveragePool", "LpPool", "MaxPool"))
_ACROSS = MappingProxyType({"ReduceMax": 32, "ReduceMin": 32, "Softmax": 446, "LogSoftmax": 446})
"""Weights along another axis than the last."""
_SMOOTH_RESIZE = 77
_COPY = 420.0
"""For each run of elements a ``Gather`` copies."""


def instructions(
    op: str, attrs: Mapping[str, Any], operands: Sequence[Dims], result: Dims
) -> float:
    """Vector instructions of one run of an operator, from the dims of its operands and result."""
    weight, data = WEIGHTS.get(op, LIGHT), operands[0] if operands else ()
    if op == "Gather":
        axis = attrs.get("axis", 0) % max(len(data), 1)
        return prod(result) + _COPY * prod(result) / max(prod(data[axis + 1 :]), 1.0)
    if op in ("Resize", "Upsample") and attrs.get("mode", "nearest") not in (
        "nearest",
        b"nearest",
    ):
        weight = _SMOOTH_RESIZE
    if op in _ACROSS and _across(op, attrs, data, result):
        weight = _ACROSS[op]
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
