"""Schemas of calls that stand for one of several calls, which one kernel can compute together."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tracea_graph.kernels.gpu.call_operands import ACTIVATIONS, BYTES, DTYPES
from tracea_graph.kernels.gpu.call_operands import operand as _op
from tracea_graph.kernels.gpu.call_operands import written as _out
from tracea_graph.kernels.schema import (
    CallSchema,
    Sizes,
    choice,
    flag,
    number,
    numbers,
    real,
    reals,
)
from tracea_graph.ops.chain import MAX_OPERANDS

__all__ = [
    "COMPOSED_CALLS",
    "EXPANDED",
    "EXPANSIONS",
    "GROUP_PARTS",
    "MLP_PARTS",
    "NORMED_PARTS",
    "PROJECTION_PARTS",
    "RESULT_FORMS",
    "ROUNDED_PARTS",
]

_MOST_STEP = 1 << 16
"""Upper bound of strides and pads."""
_MOST_VECTORS = 3 * MAX_OPERANDS
"""Maximum operands of the epilogues of all matmuls of a group."""
MLP_PARTS = ("norm", "up", "down")
"""The calls that a call of two matmuls behind a norm may stand for, in order."""
PROJECTION_PARTS = ("attention", "projection")
"""The calls that a call of attention and its projection may stand for, in order."""
ROUNDED_PARTS = ("scores", "weights", "values")
"""The calls that a call of attention of 8-bit integers may stand for, in order."""
GROUP_PARTS = ("first", "second", "third")
"""The matmuls of the same rows that a call may stand for, in order."""
NORMED_PARTS = ("product", "norm")
"""The calls that a call of a matmul and the norm of its rows may stand for, in order."""
RESULT_FORMS = ("plain", "steps", "u8", "i8")
"""How attention of 8-bit integers stores its results: as they are, rounded to multiples of a
number, or as such multiples in bytes.
"""
EXPANSIONS = ("expansion", "depthwise")
"""The calls that a call of a depthwise convolution behind a 1×1 one may stand for, in order."""
EXPANDED = ("none", "relu", "relu6", "silu")
"""Activations between both convolutions."""


def _mlp_size(s: Sizes) -> tuple[int, ...]:
    """Return the size of the matmul that a call stands for; a norm's has a depth of 1."""
    rows, depth = s.of("x")
    hidden, columns = s.of("w1")[0], s.of("w2")[0]
    n, k = {"norm": (depth, 1), "up": (hidden, depth)}.get(s["part"], (columns, hidden))
    return 1, rows, n, k


def _mlp(dtype: str) -> CallSchema:
    """Schema of one ``part`` of ``y = epilogue(w2 · activation(w1 · norm(x) + bias1) + bias2)``.

    The parts are the layer norm, which writes ``normed``, the first matmul, which writes
    ``hidden``, and the second one, which writes y.  A kernel that computes all of y from x is
    launched by the last part, and the others launch nothing; all have the same operands.
    ``turned1`` is w1 and ``turned2`` w2 with the columns, and rows, in the kernel's order
    (``lowering/row_mlp.py``).
    """
    return CallSchema(
        "mlp",
        (
            _op("x", "M K", dtype), _op("gamma", "K"), _op("beta", "K"), _op("w1", "H K", dtype),
            _op("bias1", "H"), _op("w2", "N H", dtype), _op("bias2", "N"),
            _op("turned1", "H K", dtype), _op("turned2", "N H", dtype),
            _op("inputs", "M N", "chain", many="inputs"), _out("normed", "M K", dtype),
            _out("hidden", "M H", dtype), _out("y", "M N", "chain", many="results"),
        ),
        (choice("part", MLP_PARTS), choice("activation", ACTIVATIONS), real("epsilon")),
        dtype,
        chain="epilogue",
        problem=_mlp_size,
    )  # fmt: skip


def _projection_size(s: Sizes) -> tuple[int, ...]:
    """Return the size of the attention or the matmul that a call stands for."""
    batch, heads, queries, depth = s.of("q")
    rows, columns = s.of("y")
    attends = s["part"] == PROJECTION_PARTS[0]
    return (batch * heads, queries, queries, 2 * depth) if attends else (1, rows, columns, columns)


def _attention_projection(dtype: str) -> CallSchema:
    """Schema of one ``part`` of ``y = w · attention(q, k, v) + bias + normalised rows of x``.

    The parts are attention, which writes ``attended``, and the matmul that reads it as ``rows``.
    A kernel that computes y from q, k and v is launched by the latter, and attention launches
    nothing; both have the same operands.
    """
    return CallSchema(
        "attention_projection",
        (
            _op("q", "B H S D", dtype), _op("k", "B H T D", dtype), _op("v", "B H T D", dtype),
            _op("mask", "B H S T", optional=True), _out("attended", "B H S D", dtype),
            _op("rows", "M N", dtype), _op("w", "N N", dtype), _op("bias", "N"),
            _op("x", "M N", dtype), _op("mean", "M N"), _op("inverse", "M N"),
            _op("gamma", "M N"), _op("beta", "M N"), _out("y", "M N", dtype),
        ),
        (choice("part", PROJECTION_PARTS), real("scale")),
        dtype,
        chain="epilogue",
        problem=_projection_size,
    )  # fmt: skip


def _rounded_size(s: Sizes) -> tuple[int, ...]:
    """Return the size of the product or the softmax that a call stands for."""
    batch, heads, queries, depth = s.of("q")
    keys, columns = s.of("v")[-2:]
    first, second, _ = ROUNDED_PARTS
    n, k = {first: (keys, depth), second: (keys, 1)}.get(s["part"], (columns, keys))
    return batch * heads, queries, n, k


def _quantized_attention(dtype: str) -> CallSchema:
    """Schema of one ``part`` of ``y = form(weights(softmax(chain(q · k))) · v · factor)``.

    The parts are the product that writes ``scores``, which its chain may round, the softmax that
    reads them as ``score_rows`` and rounds its ``weight_rows`` to multiples of ``weight_step``,
    and the product of these as ``weights`` with v.  Its results are stored in a ``form``: rounded
    to multiples of ``step``, the multiples plus ``zero`` lie between ``low`` and ``high``.  A
    kernel that computes y from q, k and v is launched by the last part, and the others launch
    nothing; all have the same operands.
    """
    scores = (_out("scores", "B H S T", dtype), _op("score_rows", "M T", dtype))
    weights = (_out("weight_rows", "M T", dtype), _op("weights", "B H S T", dtype))
    rounding = ("weight_step", "weight_low", "weight_high")
    form = ("factor", "step", "zero", "low", "high")
    return CallSchema(
        "quantized_attention",
        (
            _op("q", "B H S D", dtype), _op("k", "B H T D", dtype), _op("v", "B H T E", dtype),
            _op("inputs", "B H S T", "chain", many="inputs"), *scores, *weights,
            _out("y", "B H S E", dtype, *BYTES),
        ),
        (choice("part", ROUNDED_PARTS), choice("form", RESULT_FORMS), *map(real, rounding),
         *map(real, form)),
        dtype,
        chain="epilogue",
        problem=_rounded_size,
    )  # fmt: skip


def _grouped_size(s: Sizes) -> tuple[int, ...]:
    """Return the size of the matmul that a call stands for."""
    (rows, columns), (_, depth) = s.of("y"), s.of("x")
    return 1, rows, columns, depth


def _grouped_integer_gemm(dtype: str) -> CallSchema:
    """Schema of one ``part`` of several matmuls ``y = epilogue((x - zero) · w)`` of one x.

    Attributes and operands are those of ``integer_gemm``, ``inputs`` those of one matmul after
    another.  The epilogue is the part's own.  ``numbers`` are those of all epilogues, which
    differ in nothing else.  A kernel that computes all results is launched by the last part, and
    the others launch nothing.
    """
    return CallSchema(
        "grouped_integer_gemm",
        (
            _op("x", "M K", dtype), _op("w", "N K", "i8", many="matrices"),
            _op("x_zero", "one", dtype, optional=True), _op("column_sums", "N", many="summed"),
            _op("inputs", "M N", "chain", many="vectors"),
            _out("y", "M N", "chain", many="matrices"),
        ),
        (
            choice("part", GROUP_PARTS), number("matrices", 2, len(GROUP_PARTS)),
            number("summed", 0, len(GROUP_PARTS)), number("vectors", 0, _MOST_VECTORS),
            flag("shifted"), number("zero", -128, 255), reals("numbers", 0),
        ),
        dtype,
        chain="required",
        problem=_grouped_size,
    )  # fmt: skip


def _normed_size(s: Sizes) -> tuple[int, ...]:
    """Return the size of the matmul or the norm that a call stands for."""
    (rows, columns), (_, depth) = s.of("y"), s.of("x")
    return 1, rows, columns, depth if s["part"] == NORMED_PARTS[0] else 1


def _normed_integer_gemm(dtype: str) -> CallSchema:
    """Schema of one ``part`` of ``y = levels(norm(epilogue((x - zero) · w)))``.

    The parts are ``integer_gemm``, which writes the ``middle``, and the layer norm of its rows,
    whose results are stored as bytes: divided by ``level`` and rounded to even, plus
    ``level_zero``, between ``low`` and ``high``.  A kernel that computes y from x is launched by
    the norm, and the matmul launches nothing; both have the same operands.
    """
    return CallSchema(
        "normed_integer_gemm",
        (
            _op("x", "M K", dtype), _op("w", "N K", "i8"),
            _op("x_zero", "one", dtype, optional=True), _op("column_sums", "N", optional=True),
            _op("inputs", "M N", "chain", many="inputs"), _op("gamma", "N"), _op("beta", "N"),
            _out("middle", "M N", *DTYPES),
            _out("y", "M N", *BYTES),
        ),
        (
            choice("part", NORMED_PARTS), flag("shifted"), number("zero", -128, 255),
            real("epsilon"), choice("rounded_type", BYTES), real("level"),
            *(replace(real(name), default=0.0) for name in ("level_zero", "low", "high")),
        ),
        dtype,
        chain="required",
        problem=_normed_size,
    )  # fmt: skip


def _expansion_size(s: Sizes) -> tuple[int, ...]:
    """Return the size of the convolution that a call stands for, as one matmul."""
    *image, depth = s.of("x")
    *pixels, channels = s.of("y")
    if s["part"] == EXPANSIONS[0]:
        return 1, prod(image), channels, depth
    return channels, prod(pixels), 1, prod(s.of("w")[:2])


def _expanded_depthwise(dtype: str) -> CallSchema:
    """Schema of one ``part`` of ``y = epilogue(w * activation(w1 · x + bias1) + bias)``.

    Images are channels-last.  The parts are a 1×1 convolution, which writes ``expanded``, and the
    depthwise one that reads it.  A kernel that computes y from x is launched by the latter, and
    the former launches nothing; both have the same operands.
    """
    return CallSchema(
        "expanded_depthwise",
        (
            _op("x", "N H W I", dtype), _op("w1", "C kh1 kw1 I", dtype),
            _op("bias1", "C", optional=True), _op("w", "kh kw C", dtype),
            _op("bias", "C", optional=True), _op("inputs", "N P Q C", "chain", many="inputs"),
            _out("expanded", "N H W C", dtype), _out("y", "N P Q C", "chain", many="results"),
        ),
        (
            choice("part", EXPANSIONS), choice("activation", EXPANDED),
            numbers("strides", 2, 1, _MOST_STEP), numbers("pads", 2, 0, _MOST_STEP),
        ),
        dtype,
        chain="epilogue",
        problem=_expansion_size,
    )  # fmt: skip


COMPOSED_CALLS = tuple(
    schema(dtype)
    for schema in (_mlp, _attention_projection, _quantized_attention, _expanded_depthwise)
    for dtype in DTYPES[1:]
) + tuple(s(dtype) for s in (_grouped_integer_gemm, _normed_integer_gemm) for dtype in BYTES)
