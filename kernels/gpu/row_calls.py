"""Schemas of the GPU backend's norms, softmax and reductions of rows (see ``calls.py``)."""

from __future__ import annotations

from dataclasses import replace

from tracea_graph.kernels.gpu.call_operands import BYTES, DTYPES, FLOAT8
from tracea_graph.kernels.gpu.call_operands import operand as _op
from tracea_graph.kernels.gpu.call_operands import written as _out
from tracea_graph.kernels.schema import Attribute, CallSchema, choice, flag, real

__all__ = ["REDUCTIONS", "ROWS"]

REDUCTIONS = ("sum", "absolutes", "squares", "max", "min", "product")


def _rows(op: str, dtype: str, y: str, *attributes: Attribute) -> CallSchema:
    """Schema of an op over the last axis of x, or over the rows that a chain computes.

    ``also`` stores the second result of the chain unchanged, for example the residual sum that is
    then normalised.
    """
    return CallSchema(
        op,
        (
            _op("x", "M N", "chain", many="operands"), _out("y", y, dtype),
            _out("also", "M N", "chain", optional=True),
        ),
        attributes,
        dtype,
        chain="prologue",
    )  # fmt: skip


def _norm(dtype: str) -> CallSchema:
    """Schema of a norm, whose results are y, or the same numbers in 8 bits, or both.

    8-bit floats are y times ``factor``; integers are y / ``step`` rounded to even, plus ``zero``,
    between ``low`` and ``high``.  With ``scales``, 8-bit floats are y divided by the scale of
    their row: its largest magnitude by ``step``, or ``low`` if that is larger.
    """
    x, y, also = _rows("norm", dtype, "M N").operands
    weights = (_op("gamma", "N", optional=True), _op("beta", "N", optional=True))
    return CallSchema(
        "norm",
        (
            x, *weights, replace(y, optional=True), also,
            _out("rounded", "M N", FLOAT8, *BYTES, optional=True),
            _out("scales", "M", optional=True),
        ),
        (
            choice("kind", ("layer", "rms")), real("epsilon"),
            replace(choice("rounded_type", (FLOAT8, *BYTES)), default=FLOAT8),
            replace(real("factor"), default=1.0),
            *(replace(real(name), default=0.0) for name in ("step", "zero", "low", "high")),
        ),
        dtype,
        chain="prologue",
    )  # fmt: skip


def _softmax(dtype: str) -> CallSchema:
    """Schema of a softmax; if ``stepped``, results are multiples of ``step``.

    The multiples, rounded to even, lie between ``low`` and ``high``, as bytes do.
    """
    numbers = (replace(real(name), default=0.0) for name in ("step", "low", "high"))
    return _rows("softmax", dtype, "M N", flag("log", False), flag("stepped", False), *numbers)


ROWS = (
    *map(_norm, DTYPES),
    *map(_softmax, DTYPES),
    *(_rows("reduce", d, "M", choice("kind", REDUCTIONS), flag("mean", False)) for d in DTYPES),
)
"""Schemas of all types, norms first."""
