"""Schemas of the GPU backend's matmuls with structured matrices (see ``calls.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tracea_graph.kernels.gpu.call_operands import (
    DTYPES,
    NORM_ATTRIBUTES,
    NORM_OPERANDS,
    SUM_OPERANDS,
)
from tracea_graph.kernels.gpu.call_operands import operand as _op
from tracea_graph.kernels.gpu.call_operands import written as _out
from tracea_graph.kernels.schema import Attribute, CallSchema, Operand, Problem, Sizes

__all__ = ["STRUCTURED"]


def _structured(
    op: str, dtype: str, operands: Sequence[Operand], problem: Problem,
    more: Sequence[Operand] = (), attributes: Sequence[Attribute] = (),
) -> CallSchema:  # fmt: skip
    """Schema of a matmul whose matrix is in several operands, with a bias and an epilogue."""
    bias, inputs = _op("bias", "N", optional=True), _op("inputs", "M N", "chain", many="inputs")
    results = _out("y", "M N", "chain", many="results")
    own = (*operands, bias, inputs, results, *more)
    return CallSchema(op, own, tuple(attributes), dtype=dtype, chain="epilogue", problem=problem)


def _blocks_size(s: Sizes) -> tuple[int, ...]:
    rows, cols = s.of("y")
    return 1, rows, cols, prod(s.of("w")) // max(cols, 1)


def _gemm_blocks(dtype: str) -> CallSchema:
    """Schema of a matmul over the blocks of w that are not zero (``zero_block_storage.py``).

    ``odd`` has one element for each row of x: NaN if the row holds an infinity or a NaN, else 0.
    """
    own = "f32" if dtype.startswith("tf32") else dtype
    operands = (
        _op("x", "M K", own), _op("w", "T columns steps", own), _op("map", "E", "i32"),
        _op("odd", "M"),
    )  # fmt: skip
    return _structured("gemm_blocks", dtype, operands, _blocks_size)


def _kept_size(s: Sizes) -> tuple[int, ...]:
    return 1, *s.of("y"), s.of("x")[-1]


def _gemm_two_of_four(dtype: str) -> CallSchema:
    """Schema of a matmul with a 2:4 sparse matrix, stored as ``two_of_four_storage.py`` says.

    The norm and the sums of rows are those of ``gemm``.
    """
    operands = (
        _op("x", "M K", dtype), _op("values", "slices lines steps", dtype),
        _op("positions", "slices blocks bytes", "u8"),
    )  # fmt: skip
    more = *NORM_OPERANDS, *SUM_OPERANDS
    return _structured("gemm_two_of_four", dtype, operands, _kept_size, more, NORM_ATTRIBUTES)


def _scaled_two_of_four(dtype: str) -> CallSchema:
    """Schema of a 2:4 sparse matrix whose rows are multiplied by the numbers of ``gamma``."""
    values = "slices lines steps"
    return CallSchema(
        "scaled_two_of_four",
        (
            _op("values", values, dtype), _op("positions", "slices blocks bytes", "u8"),
            _op("gamma", "K"), _out("y", values, dtype),
        ),
        dtype=dtype,
    )  # fmt: skip


STRUCTURED = (
    *map(_gemm_blocks, (*DTYPES[1:], "tf32", "tf32x3")),
    *map(_gemm_two_of_four, DTYPES[1:]),
    *map(_scaled_two_of_four, DTYPES[1:]),
)
"""Schemas of matmuls over blocks that are not zero, and of 2:4 sparse ones."""
