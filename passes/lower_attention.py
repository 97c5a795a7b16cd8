"""Lowering of attention."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import Extent, combine
from tracea_graph.ops.attention import CAUSAL, MASKS, AttentionParams
from tracea_graph.ops.program import View
from tracea_graph.passes.writer import Shape, Slot, Writer, broadcast

__all__ = ["lower_attention"]


def lower_attention(
    w: Writer, p: AttentionParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    batch, queries = p.extents(0, operands[0].spec)
    keys = p.extents(1, operands[1].spec)[1]
    q = _heads(operands[0], p.layouts[0], queries, p.heads, p.head, p.widths[0], p.offsets[0])
    k = _heads(operands[1], p.layouts[1], keys, p.shared_heads, p.head, p.widths[1], p.offsets[1])
    v = _heads(
        operands[2], p.layouts[2], keys, p.shared_heads, p.head_v, p.widths[2], p.offsets[2]
    )
    y = _heads(results[0], p.layouts[3], queries, p.heads, p.head_v, p.heads * p.head_v)
    full: Shape = (batch, p.heads, queries, keys)
    kinds = MASKS.index(p.mask), int(p.zero_rows), CAUSAL.index(p.causal)
    w.call(
        "attention", q, k, v, broadcast(operands[3], full) if p.mask != "none" else None, y,
        ints=(*kinds, *p.reach, p.everywhere),
        floats=(p.scale, p.fill, p.softcap),
    )  # fmt: skip


def _heads(
    slot: Slot, layout: str, rows: Extent, count: int, size: int, width: int, first: int = 0
) -> View:
    """A tensor as ``[B, H, rows, size]``; in rows, ``width`` columns lie side by side."""
    dims: Shape = (slot.shape[0], count, rows, size)
    plane = combine("mul", rows, size)
    if layout in ("rows", "split"):
        width = width if layout == "rows" else count * size
        strides: Shape = (combine("mul", rows, width), size, width, 1)
    elif layout == "heads":
        strides = (combine("mul", plane, count), plane, size, 1)
    else:
        strides = (combine("mul", plane, count), plane, 1, rows)
    return View(slot.buffer, dims, strides, first if layout == "rows" else 0)
