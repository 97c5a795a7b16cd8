"""The kernel calls of the GPU backend: one record each (see ``kernels/schema.py``).

Activations lie as the graph has them, images with channels last.  A call's ``dtype`` is that of
what it reads and writes where no chain says otherwise; gamma, beta and biases are float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.kernels.schema import Attribute, Calls, CallSchema, Operand, choice, flag, real

__all__ = ["CALLS", "REDUCTIONS"]

DTYPES = ("f32", "f16", "bf16")
REDUCTIONS = ("sum", "absolutes", "squares", "max", "min", "product")


def _op(name: str, shape: str, *types: str, **more: Any) -> Operand:
    return Operand(name, tuple(shape.split()), types or ("f32",), **more)


def _out(name: str, shape: str, *types: str, **more: Any) -> Operand:
    return replace(_op(name, shape, *types, **more), written=True)


_ELEMENTWISE = CallSchema(
    "elementwise",
    (_op("x", "...", "chain", many="operands"), _out("y", "...", "chain", many="results")),
    chain="required",
)


def _rows(op: str, dtype: str, y: str, *attributes: Attribute, scaled: bool = False) -> CallSchema:
    """Something over the last axis of x, or of what a chain makes of several operands.

    ``also`` takes the chain's second result as it is: the sum of a residual and its norm.
    """
    weights = (_op("gamma", "N", optional=True), _op("beta", "N", optional=True))
    return CallSchema(
        op,
        (
            _op("x", "M N", "chain", many="operands"),
            *(weights if scaled else ()),
            _out("y", y, dtype),
            _out("also", "M N", "chain", optional=True),
        ),
        attributes,
        dtype,
        chain="prologue",
    )


_KINDS = choice("kind", ("layer", "rms"))

CALLS = Calls(
    (
        _ELEMENTWISE,
        *(_rows("norm", d, "M N", _KINDS, real("epsilon"), scaled=True) for d in DTYPES),
        *(_rows("softmax", d, "M N", flag("log", False)) for d in DTYPES),
        *(
            _rows("reduce", d, "M", choice("kind", REDUCTIONS), flag("mean", False))
            for d in DTYPES
        ),
    )
)
"""By name; an op on what is not float32 is called ``<op>_<dtype>``."""
