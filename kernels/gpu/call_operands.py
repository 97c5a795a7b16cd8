"""Operands of the GPU backend's kernel calls, and their element types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.kernels.schema import Operand, choice, real

__all__ = [
    "ACTIVATIONS",
    "BYTES",
    "DTYPES",
    "FLOAT8",
    "FLOATS8",
    "INDICES",
    "NORM_ATTRIBUTES",
    "NORM_OPERANDS",
    "SPLIT_K",
    "SUM_OPERANDS",
    "operand",
    "written",
]

DTYPES = ("f32", "f16", "bf16")
INDICES = ("i32", "i64")
BYTES = ("u8", "i8")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
"""Activations between two matmuls that one kernel computes."""
FLOAT8, _ = FLOATS8 = ("f8e4m3fn", "f8e5m2")


def operand(name: str, shape: str, *types: str, **more: Any) -> Operand:
    """Return an operand whose axes are the words of ``shape``; its type is float32 by default."""
    return Operand(name, tuple(shape.split()), types or ("f32",), **more)


def written(name: str, shape: str, *types: str, **more: Any) -> Operand:
    """Return an operand that the call writes; see :func:`operand`."""
    return replace(operand(name, shape, *types, **more), written=True)


SPLIT_K = (
    written("partial", "T parts E", optional=True),
    written("arrivals", "A", "i32", optional=True),
)
"""Operands of a split-K matmul: partial sums per tile and split; and per tile the number of splits
that have finished, which must be 0 before the call.
"""


NORM_ATTRIBUTES = (
    replace(choice("norm", ("none", "layer", "rms")), default="none"),
    replace(real("epsilon"), default=0.0),
)
"""Attributes of a matmul that normalises the rows of x first."""
NORM_OPERANDS = (
    operand("column_sums", "N", optional=True), written("mean", "M", optional=True),
    written("inverse", "M", optional=True),
)  # fmt: skip
"""Operands of a matmul of normalised rows: the column sums of w (for a layer norm only), and the
outputs that receive each row's mean and the inverse of its standard deviation.
"""
SUM_OPERANDS = (
    operand("x_sums", "M slots two", optional=True),
    written("y_sums", "M slots two", optional=True),
)
"""Operands of a matmul of many rows.  Each row is divided into equal parts; an operand holds the
sum and the sum of squares of each part.  ``x_sums`` are those of x, whose norm the matmul repeats;
``y_sums`` are those of its first result, whose norm another matmul repeats.  Kernels without
``x_sums`` compute the sums from x; kernels for few rows need not write ``y_sums``.
"""
