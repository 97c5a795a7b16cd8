"""Lowering of attention."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import Extent, combine
from tracea_graph.ops.attention import MASKS, AttentionParams
from tracea_graph.ops.program import View
from tracea_graph.passes.writer import Shape, Slot, Writer, broadcast

__all__ = ["lower_attention"]


def lower_attention(
    w: Writer, p: AttentionParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    batch, queries = operands[0].shape[:2]
    keys = operands[1].shape[1]

    def heads(index: int, rows: Extent, size: int) -> View:
        width = p.widths[index]
        strides: Shape = (combine("mul", rows, width), size, width, 1)
        dims = (batch, p.heads, rows, size)
        return View(operands[index].buffer, dims, strides, p.offsets[index])

    full: Shape = (batch, p.heads, queries, keys)
    mask = broadcast(operands[3], full) if p.mask != "none" else None
    width = p.heads * p.head_v
    y = View(
        results[0].buffer,
        (batch, p.heads, queries, p.head_v),
        (combine("mul", queries, width), p.head_v, width, 1),
    )
    w.call(
        "attention",
        heads(0, queries, p.head),
        heads(1, keys, p.head),
        heads(2, keys, p.head_v),
        mask,
        y,
        ints=(MASKS.index(p.mask), int(p.zero_rows)),
        floats=(p.scale,),
    )
