"""The kernel calls of matrix products and of what prepares their operands (see ``calls``)."""

from __future__ import annotations

from math import prod

from tracea_graph.kernels.cpu.operand_schemas import BLOCK, BYTES, F32_OR_BF16, LIMITS, NARROW
from tracea_graph.kernels.cpu.operand_schemas import operand as _op
from tracea_graph.kernels.cpu.operand_schemas import result as _out
from tracea_graph.kernels.cpu.schedule import GemmSchedule, TaskSchedule
from tracea_graph.kernels.schema import (
    CallSchema,
    Operand,
    Problem,
    Sizes,
    choice,
    flag,
    number,
    numbers,
)
from tracea_graph.ops.block_quantized import MAX_BLOCK, ZEROS

__all__ = [
    "BITMAP", "BITMAP_BF16", "BLOCK_SPARSE", "BLOCK_SPARSE_BF16", "CONV_NHWC", "GATHER_NBITS",
    "MATMUL_BYTES", "NBITS", "ROUND_INT8", "SUM_ROWS", "epilogue", "gemm", "gemm_problem",
    "round_rows",
]  # fmt: skip

_BIAS = _op("bias", "N", optional=True, rows="all")


def epilogue(shape: str) -> tuple[Operand, Operand]:
    """Return the epilogue operands of a matrix product (without the product), and its results."""
    inputs = _op("inputs", shape, "chain", many="inputs")
    return inputs, _out("y", shape, "chain", many="results")


def _columns(s: Sizes) -> int:
    return sum(dims[-1] for dims in s.each("y"))


def gemm_problem(s: Sizes) -> tuple[int, ...]:
    *outer, rows, depth = s.of("x")
    return prod(outer), rows, _columns(s), depth


def _gemm_bf16x2_problem(s: Sizes) -> tuple[int, ...]:
    """A row of x holds both terms of each element."""
    count, rows, columns, depth = gemm_problem(s)
    return count, rows, columns, depth // 2


def _stored_blocks(s: Sizes) -> tuple[int, ...]:
    """Only stored blocks are multiplied: 16 columns by all their steps of k."""
    return 1, s.of("x")[0], BLOCK, prod(s.of("w")) // BLOCK


def gemm(dtype: str, layouts: dict[str, int], x: tuple[str, ...]) -> CallSchema:
    """``y = epilogue(x · w + bias)``, with the columns in one or several results.

    For 8-bit integers, the zero point of x is subtracted from x; row sums of x are needed if the
    columns of w have zero points.
    """
    beside = {
        "int16": (_op("row_scales", "M"), _op("column_scales", "16*Np", rows="all")),
        "int8": (
            _op("x_zero", "1", *BYTES, optional=True, rows="all"),
            _op("row_sums", "M", "i32", optional=True),
        ),
    }
    zero = (number("zero", -128, 255),) if dtype == "int8" else ()
    return CallSchema(
        "gemm",
        (
            _op("x", "... M K", *x),
            _op("w", "*", NARROW.get(dtype, "f32"), rows="all"),
            _BIAS,
            *beside.get(dtype, ()),
            *epilogue("... M N"),
        ),
        (choice("layout", layouts), number("parts", 1, LIMITS["kMaxParts"], default=1), *zero),
        dtype,
        chain="epilogue",
        schedule=GemmSchedule,
        kernels=("gemm",),
        problem=_gemm_bf16x2_problem if dtype == "bf16x2" else gemm_problem,
        row_tiled=dtype in (*F32_OR_BF16, "int8"),
    )


SUM_ROWS = CallSchema(
    "sum_rows",
    (
        _op("x", "M K", *BYTES),
        _out("sums", "M", "i32", optional=True),
        _out("y", "M K'", *BYTES, optional=True),
    ),
    kernels=(("gemm", "int8"),),
    row_tiled=True,
)
"""Sum rows of bytes, as unsigned numbers, and pad the rows to whole lanes of four bytes."""


MATMUL_BYTES = CallSchema(
    "matmul_bytes",
    (_op("x", "... M K", *BYTES), _op("w", "... K N", *BYTES, rows="all"), *epilogue("... M N")),
    (number("zero", -128, 255), number("w_zero", -128, 255)),
    chain="epilogue",
    kernels=(("gemm", "int8"),),
    problem=gemm_problem,
)
"""A product of two computed matrices of bytes; zero points are subtracted from both."""


ROUND_INT8 = CallSchema(
    "round",
    (
        _op("x", "M K"),
        _op("factors", "K", optional=True, rows="all"),
        _out("y", "M K", "u8"),
        _out("scales", "M"),
    ),
    dtype="int8",
    kernels=("gemm",),
    row_tiled=True,
)
"""Multiply columns by ``factors``, then round rows to bytes: zero point 128, a scale per row."""


NBITS = CallSchema(
    "gemm_nbits",
    (
        _op("x", "M K"),
        _op("w", "Np bytes", "u8", rows="all"),
        _BIAS,
        _op("scales", "Np blocks 1|2 16", rows="all"),
        *epilogue("M N"),
    ),
    (
        number("parts", 1, LIMITS["kMaxParts"], default=1),
        choice("bits", {2: 2, 4: 4, 8: 8}),
        number("block", 16, MAX_BLOCK),
        choice("zeros", ZEROS),
        flag("int8_rows"),
    ),
    chain="epilogue",
    schedule=TaskSchedule,
    kernels=(("gemm", "f32"), "gemm_nbits"),
    problem=gemm_problem,
)
"""A product with a matrix of 2- to 8-bit codes; each column of a block of k has a scale."""


def _conv_nhwc_problem(s: Sizes) -> tuple[int, ...]:
    rows, filters = s.of("y")
    taps = prod(s["kernel"]) * (s.of("x")[3] // s["groups"])
    return s["groups"], rows, filters // s["groups"], taps


_STEP = LIMITS["kMaxStep"]
CONV_NHWC = CallSchema(
    "conv_nhwc",
    (
        _op("x", "N H W C", *BYTES),
        _op("w", "Np K 16 4", "i8", rows="all"),
        _op("x_zero", "1", *BYTES, optional=True, rows="all"),
        *epilogue("M F"),
    ),
    (
        numbers("kernel", 2, 1, _STEP), numbers("strides", 2, 1, _STEP),
        numbers("dilations", 2, 1, _STEP), numbers("pads", 4, 0, _STEP),
        number("groups", 1, _STEP), number("zero", -128, 255),
    ),
    "int8",
    chain="epilogue",
    kernels=("gemm",),
    problem=_conv_nhwc_problem,
)  # fmt: skip
"""``y = epilogue(patches(x) · w)`` on bytes.  The zero point of x is subtracted from x, and also
pads x.  M counts the windows' positions in all images."""


GATHER_NBITS = CallSchema(
    "gather_nbits",
    (
        _op("w", "Np bytes", "u8", touched="picks"),
        _op("scales", "Np blocks 1|2 16", touched="picks"),
        _op("ids", "R", "i32", "i64"),
        _out("y", "R K"),
    ),
    (
        number("columns", 1, 2**31 - 1),
        choice("bits", {2: 2, 4: 4, 8: 8}),
        number("block", 16, MAX_BLOCK),
        choice("zeros", ZEROS),
    ),
)
"""Columns of a matrix that is stored as for ``gemm_nbits``, as rows of float32."""


def _sparse(op: str, dtype: str, x: str, w: str, index: str, problem: Problem) -> CallSchema:
    """A product with sparse weights; ``index`` holds the positions of stored weights."""
    return CallSchema(
        op,
        (
            _op("x", "M K", x),
            _op("w", w, NARROW.get(dtype, "f32"), rows="all"),
            _BIAS,
            _op("index", index, "i32", rows="all"),
            *epilogue("M N"),
        ),
        (number("parts", 1, LIMITS["kMaxParts"], default=1),),
        dtype,
        chain="epilogue",
        schedule=TaskSchedule if op == "gemm_block_sparse" else None,
        kernels=(("gemm", "f32"), op) if op == "gemm_block_sparse" else (op,),
        problem=problem,
        row_tiled=op == "gemm_block_sparse" and dtype == "f32",
    )  # fmt: skip


BLOCK_SPARSE = _sparse("gemm_block_sparse", "f32", "f32", "T block 16", "T", _stored_blocks)
_STORED16 = "T block/2 16 2"
BLOCK_SPARSE_BF16 = _sparse("gemm_block_sparse", "bf16", "bf16", _STORED16, "T", _stored_blocks)
BITMAP = _sparse("gemm_bitmap", "f32", "f32", "numbers", "Np 1+K/2", gemm_problem)
BITMAP_BF16 = _sparse("gemm_bitmap", "bf16", "f32", "numbers", "Np 1+K/2", gemm_problem)


def round_rows(dtype: str, *more: Operand) -> CallSchema:
    """Round rows of float32 to a narrower type."""
    y = _out("y", "M K'", NARROW[dtype])
    return CallSchema(
        "round", (_op("x", "M K"), y, *more), dtype=dtype, kernels=("gemm",),
        row_tiled=dtype == "bf16",
    )  # fmt: skip
