"""Schema of a gate and the matmul that it multiplies (see ``calls.py``)."""

from __future__ import annotations

from tracea_graph.kernels.gpu.call_operands import ACTIVATIONS, DTYPES, SPLIT_K
from tracea_graph.kernels.gpu.call_operands import operand as _op
from tracea_graph.kernels.gpu.call_operands import written as _out
from tracea_graph.kernels.schema import CallSchema, Sizes, choice

__all__ = ["GATES", "GATE_PARTS"]

GATE_PARTS = ("gate", "product")
"""The calls that a call of a gate and the matmul that it multiplies may stand for, in order."""


def _gated_size(s: Sizes) -> tuple[int, ...]:
    """Return the size of the matmul that a call stands for."""
    (rows, depth), (_, columns) = s.of("x"), s.of("y")
    return 1, rows, columns, depth


def _gated_gemm(dtype: str) -> CallSchema:
    """Schema of one ``part`` of ``y = (x · v) activation(x · w)``.

    The parts are the matmul that writes the activated ``gate``, and the one that multiplies its
    sums by it.  A kernel that computes y from x is launched by the last part, and the first one
    launches nothing; both have the same operands, but those of split-K are each part's own.
    """
    return CallSchema(
        "gated_gemm",
        (
            _op("x", "M K", dtype), _op("w", "*", dtype), _op("v", "*", dtype),
            _out("gate", "M N", dtype), _out("y", "M N", dtype), *SPLIT_K,
        ),
        (choice("part", GATE_PARTS), choice("activation", ACTIVATIONS),
         choice("layout", ("nk", "kn"))),
        dtype,
        problem=_gated_size,
    )  # fmt: skip


GATES = tuple(map(_gated_gemm, DTYPES[1:]))
