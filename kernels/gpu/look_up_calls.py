"""Schemas of the GPU backend's look-ups, and of choices among numbers (see ``calls.py``)."""

from __future__ import annotations

from tracea_graph.kernels.gpu.call_operands import BYTES, DTYPES, INDICES
from tracea_graph.kernels.gpu.call_operands import operand as _op
from tracea_graph.kernels.gpu.call_operands import written as _out
from tracea_graph.kernels.schema import CallSchema, choice, flag, number
from tracea_graph.ops.indexed_slices import SCATTERS
from tracea_graph.ops.integer_step import INTEGER_STEPS

__all__ = ["LOOK_UPS"]


def _embedding(dtype: str) -> CallSchema:
    """Schema of a sum of embedding rows: one row of each table, selected by 2-D indices."""
    return CallSchema(
        "embedding",
        (
            _op("tables", "V N", *DTYPES, *BYTES, many="count", touched="picks"),
            _op("ids", "A B", "i32", "i64", many="count"), _out("y", "M N", dtype),
        ),
        (
            number("count", 1, 4), choice("table_type", (*DTYPES, *BYTES)),
            choice("index_type", INDICES),
        ),
        dtype,
    )  # fmt: skip


def _arg(dtype: str) -> CallSchema:
    """Schema of ArgMax and ArgMin: for each row, the index of its first or last extremum."""
    operands = _op("x", "M N", dtype), _out("y", "M", "i64")
    kinds = choice("kind", ("max", "min"))
    return CallSchema("arg", operands, (kinds, flag("last", False)), dtype)


def _picked(op: str, dtype: str, x: str, ids: str, y: str) -> CallSchema:
    """Schema of a look-up in x by int32 or int64 indices, with the axes of x, ids and y."""
    operands = _op("x", x, dtype, touched="picks"), _op("ids", ids, *INDICES), _out("y", y, dtype)
    return CallSchema(op, operands, (choice("index_type", INDICES),), dtype)


def _take(dtype: str) -> CallSchema:
    """Schema of ``y[…, j] = x[…, ids[…, j]]``; negative indices count from the end."""
    return _picked("take", dtype, "A B C P", "A B C T", "A B C T")


def _gather_nd(dtype: str) -> CallSchema:
    """Schema of slices of x, ``[items, …, columns]``, that index tuples name."""
    return _picked("gather_nd", dtype, "...", "B M K", "B M N")


_UPDATE_ORDER = CallSchema(
    "update_order",
    (
        _op("ids", "M K", "i32", "i64"), _out("ends", "...", "i32"), _out("slices", "M", "i32"),
    ),
    (choice("index_type", INDICES),),
    "i32",
)  # fmt: skip
"""Schema of the first half of ScatterND: the slice that each tuple names, and the first and last
tuple of each slice.  ``ends`` has the indexed axes and one of size 2, and holds zeros before.
"""


def _scatter_nd(dtype: str) -> CallSchema:
    """Schema of the second half of ScatterND: updates of each slice of x, in order."""
    return CallSchema(
        "scatter_nd",
        (
            _op("x", "S N", dtype), _op("updates", "M N", dtype), _op("ends", "S two", "i32"),
            _op("slices", "M", "i32"), _out("y", "S N", dtype),
        ),
        (choice("reduction", SCATTERS),),
        dtype,
    )  # fmt: skip


def _scatter_elements(dtype: str) -> CallSchema:
    """Schema of ScatterElements along the last axis; updates are combined in order."""
    return CallSchema(
        "scatter_elements",
        (
            _op("x", "A B C P", dtype), _op("ids", "A B C T", *INDICES),
            _op("updates", "A B C T", dtype), _out("y", "A B C P", dtype),
        ),
        (choice("reduction", SCATTERS), choice("index_type", INDICES)),
        dtype,
    )  # fmt: skip


def _cumulative_sum(dtype: str) -> CallSchema:
    """Schema of the sums of all elements up to each one, along the last axis.

    They are added up from the end if ``reverse``, and without the element itself if ``exclusive``.
    """
    operands = _op("x", "A B N", dtype), _out("y", "A B N", dtype)
    return CallSchema(
        "cumulative_sum", operands, (flag("exclusive", False), flag("reverse", False)), dtype
    )


def _integer_step(dtype: str) -> CallSchema:
    """Schema of an elementwise step on integers; the first operand of Where is bool."""
    return CallSchema(
        "integer_step",
        (
            _op("x", "...", dtype, "bool", many="count"), _out("y", "...", *INDICES, "bool"),
        ),
        (
            choice("step", INTEGER_STEPS), number("count", 1, 3),
            choice("y_type", (*INDICES, "bool")),
        ),
        dtype,
    )  # fmt: skip


def _top_k(dtype: str) -> CallSchema:
    """Schema of the k largest or smallest elements of each row, and their indices."""
    operands = _op("x", "M N", dtype), _out("y", "M k", dtype), _out("index", "M k", "i64")
    return CallSchema("top_k", operands, (flag("smallest", False),), dtype)


_NUMBERS = (*DTYPES, *INDICES)
LOOK_UPS = (
    *map(_embedding, (*DTYPES, *BYTES)),
    *(make(d) for make in (_take, _gather_nd, _scatter_nd, _arg, _top_k) for d in _NUMBERS),
    *(make(d) for make in (_scatter_elements, _cumulative_sum) for d in _NUMBERS),
    *map(_integer_step, INDICES),
    _UPDATE_ORDER,
)
