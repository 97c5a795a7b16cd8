"""Compute a matmul of 8-bit integers and the norm of its rows in one launch, if rows are many.

    h = f((x - zero) · w), y = levels(norm(h))

Both remain calls, which architectures without the kernel and few rows use: each becomes a part of
the call that stands for both (``families/normed_integers.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS, NORMED_PARTS
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.call_parts import replace_by_parts, stands_for
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.row_choice import normed_choices
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import FULL, Chain

__all__ = ["fold_norms_of_integers"]

_OPERANDS = ("x", "w", "x_zero", "column_sums", "inputs")
_WEIGHTS = ("gamma", "beta")


def fold_norms_of_integers(w: GpuProgramWriter) -> None:
    """Make a norm that stores bytes and the matmul that it alone reads parts of one call."""
    for norm in [c for c in w.calls if c.op == "norm"]:
        x = norm.views[0]
        product = BufferUses(w.calls).only_for(x, norm) if x else None
        made = product and _call_of(product, norm)
        if not product or not made or not normed_choices(made):
            continue
        pair = product, replace(norm, chain=None)
        if stands_for(made, NORMED_PARTS, pair) and not _is_written_between(
            w.calls, product, norm
        ):
            replace_by_parts(w, made, NORMED_PARTS, (product, norm))


def _call_of(product: Call, norm: Call) -> Call | None:
    """Return the call that a matmul and a norm may become; None if it cannot stand for them."""
    if product.op != "integer_gemm" or product.chain is None or not _reads_rows(norm):
        return None
    n, own, a = CALLS.of(product).named(product), CALLS.of(norm).named(norm), norm.attributes
    named: dict[str, Any] = {**{one: n[one] for one in _OPERANDS},
                             **{one: own[one] for one in _WEIGHTS}}  # fmt: skip
    results: Any = n["y"]
    if None in (own["gamma"], own["beta"], own["rounded"]) or len(results) != 1:
        return None
    if (rounded := str(a["rounded_type"])) not in (DType.U8.short, DType.I8.short):
        return None
    return CALLS.make(
        "normed_integer_gemm", product.dtype, **named, middle=results[0], y=own["rounded"],
        part=NORMED_PARTS[-1], epsilon=a["epsilon"], rounded_type=rounded, level=a["step"],
        level_zero=a["zero"], low=a["low"], high=a["high"], chain=product.chain,
        **product.attributes,
    )  # fmt: skip


def _reads_rows(norm: Call) -> bool:
    """Whether a norm reads one matrix as it is."""
    return norm.chain in (None, Chain((FULL,), (), (0,), (DType.from_short(norm.dtype),)))


def _is_written_between(calls: Sequence[Call], product: Call, norm: Call) -> bool:
    """Whether what the matmul reads is written again before the norm."""
    first, last = (next(i for i, c in enumerate(calls) if c is one) for one in (product, norm))
    writers = BufferUses(list(calls[first + 1 : last])).writers
    return any(v is not None and not o.written and v.buffer in writers
               for o, v in CALLS.of(product).each(product))  # fmt: skip
