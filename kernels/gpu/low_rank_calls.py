"""Schema of two matmuls by the factors of one matrix of low rank (see ``calls.py``)."""

from __future__ import annotations

from tracea_graph.kernels.gpu.call_operands import (
    DTYPES,
    NORM_ATTRIBUTES,
    NORM_OPERANDS,
    SPLIT_K,
    SUM_OPERANDS,
)
from tracea_graph.kernels.gpu.call_operands import operand as _op
from tracea_graph.kernels.gpu.call_operands import written as _out
from tracea_graph.kernels.schema import CallSchema, Sizes, choice

__all__ = ["LOW_RANK", "LOW_RANK_PARTS"]

LOW_RANK_PARTS = ("down", "up")
"""The calls that a call of a low-rank pair may stand for, in order: to its rank, and back."""


def _pair_size(s: Sizes) -> tuple[int, ...]:
    """Return the size of the matmul that a call stands for."""
    (rows, depth), rank, columns = s.of("x"), s.of("middle")[-1], s.of("y")[-1]
    return (1, rows, rank, depth) if s["part"] == LOW_RANK_PARTS[0] else (1, rows, columns, rank)


def _low_rank_gemm(dtype: str) -> CallSchema:
    """Schema of one ``part`` of ``y = epilogue((x · w1 + bias1) · w2 + bias)``.

    The parts are the matmul that writes the ``middle``, of as many columns as the rank, and the
    one that reads it.  The norm and the sums of rows are those of ``gemm``: rows of x may be
    normalised, and sums of rows of the first result written.  A kernel that computes y from x is
    launched by the last part, and the first one launches nothing; both have the same operands,
    but those of split-K are each part's own.
    """
    return CallSchema(
        "low_rank_gemm",
        (
            _op("x", "M K", dtype), _op("w1", "*", dtype), _op("bias1", "R", optional=True),
            _op("w2", "*", dtype), _op("bias", "N", optional=True),
            _op("inputs", "M N", "chain", many="inputs"), _out("middle", "M R", dtype),
            _out("y", "M N", "chain", many="results"), *SPLIT_K,
            _op("column_sums", "R", optional=True), *NORM_OPERANDS[1:], *SUM_OPERANDS,
        ),
        (choice("part", LOW_RANK_PARTS), choice("layout1", ("nk", "kn")),
         choice("layout2", ("nk", "kn")), *NORM_ATTRIBUTES),
        dtype,
        chain="epilogue",
        problem=_pair_size,
    )  # fmt: skip


LOW_RANK = tuple(map(_low_rank_gemm, DTYPES[1:]))
