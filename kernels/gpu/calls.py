"""The kernel calls of the GPU backend: one record each (see ``kernels/schema.py``).

Activations lie as the graph has them, images with channels last.  A call's ``dtype`` is that of
what it reads and writes where no chain says otherwise; gamma, beta and biases are float32.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tracea_graph.kernels.schema import (
    Attribute,
    Calls,
    CallSchema,
    Operand,
    Sizes,
    choice,
    flag,
    real,
)
from tracea_graph.ops.attention import CAUSAL, MASKS, ZERO_ROWS

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


def _product_size(s: Sizes) -> tuple[int, ...]:
    """How many products, and rows, columns and depth of each."""
    *outer, rows, cols = s.of("y")
    return prod(outer), rows, cols, s.of("x")[-1]


def _gemm(dtype: str) -> CallSchema:
    """``y = epilogue(x · w + bias)``, w stored as ``[N, K]`` or ``[K, N]``; leading axes alike, or
    missing where all products share an operand."""
    own = "f32" if dtype == "tf32x3" else dtype
    return CallSchema(
        "gemm",
        (
            _op("x", "... M K", own), _op("w", "*", own), _op("bias", "N", optional=True),
            _op("inputs", "... M N", "chain", many="inputs"),
            _out("y", "... M N", "chain", many="results"),
        ),
        (choice("layout", ("nk", "kn")),),
        dtype,
        chain="epilogue",
        problem=_product_size,
    )  # fmt: skip


def _attention_size(s: Sizes) -> tuple[int, ...]:
    """Both products as one: queries × keys × the depths of keys and of values."""
    batch, heads, queries, depth = s.of("q")
    return batch * heads, queries, s.of("k")[2], depth + s.of("v")[3]


def _attention(dtype: str) -> CallSchema:
    """As ``ops/attention.py`` says; ``fill`` is the score of a key that is masked or too late."""
    return CallSchema(
        "attention",
        (
            _op("q", "B H S D", dtype), _op("k", "B Hkv T D", dtype),
            _op("v", "B Hkv T Dv", dtype),
            _op("mask", "B H S T", "f32", "bool", optional=True), _out("y", "B H S Dv", dtype),
        ),
        (
            choice("mask_kind", MASKS), choice("order", CAUSAL[:3]),
            choice("zero_rows", ZERO_ROWS[:2]), *map(real, ("scale", "fill", "softcap")),
        ),
        dtype,
        problem=_attention_size,
    )  # fmt: skip


def _copy(dtype: str) -> CallSchema:
    """Elements of so many bytes, whatever they are."""
    return CallSchema("copy", (_op("x", "...", "any"), _out("y", "...", "any")), dtype=dtype)


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
        *map(_gemm, (*DTYPES, "tf32x3")),
        *map(_attention, DTYPES[1:]),
        *map(_copy, ("b1", "b2", "b4", "b8")),
    )
)
"""By name; an op on what is not float32 is called ``<op>_<dtype>``."""
