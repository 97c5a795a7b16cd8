"""Lower attention, and appending to the key and value caches."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.kernels.cpu.lowering.gemm import as_bf16_matrix
from tracea_graph.kernels.cpu.lowering.region_writer import (
    RegionWriter,
    Shape,
    Slot,
    as_matrix,
    broadcast_view,
)
from tracea_graph.kernels.program import Buffer, View
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams

__all__ = ["lower_append", "lower_attention"]


def lower_attention(
    w: RegionWriter, p: AttentionParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    batch, queries = p.extents(0, operands[0].spec)
    keys = p.extents(1, operands[1].spec)[1]
    if p.in_bf16 and not p.whole:
        operands = [*_in_pairs(w, operands[:3]), *operands[3:]]
    q = _heads(operands[0], p.layouts[0], queries, p.heads, p.head, p.widths[0], p.offsets[0])
    k = _heads(operands[1], p.layouts[1], keys, p.shared_heads, p.head, p.widths[1], p.offsets[1])
    v = _heads(
        operands[2], p.layouts[2], keys, p.shared_heads, p.head_v, p.widths[2], p.offsets[2]
    )
    y = _heads(results[0], p.layouts[3], queries, p.heads, p.head_v, p.heads * p.head_v)
    full: Shape = (batch, p.heads, queries, keys)
    mask = broadcast_view(operands[3], full) if p.mask != "none" else None
    if p.causal == "placed":
        mask = operands[3].view
    left, right = p.reach
    tiles = operands[-1].view if p.tiles else None
    grid, kind, beyond = (0, 0, 0, 0), "none", 0.0
    if p.tiles:
        grid, kind = p.tiles.sizes, "mask" if p.tiles.beyond is None else "bound"
        beyond = p.tiles.beyond or 0.0
    w.call(
        "attention", _multiplied(p),
        q=q, k=k, v=v, mask=mask, tiles=tiles, y=y, mask_kind=p.mask,
        zero_rows=p.zero_rows, order=p.causal,
        window_left=left, window_right=right, global_keys=p.global_keys,
        scale=p.scale, fill=p.fill, softcap=p.softcap,
        tile_kind=kind, tile_grid=grid, beyond=beyond,
    )  # fmt: skip
    if results[0].rounded:
        half = results[0].in_bf16
        assert half is not None
        w.call("round", "bf16", x=as_matrix(results[0]), y=as_matrix(half))


def lower_append(
    w: RegionWriter, p: KvCacheAppendParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    new, *past, positions, _ = operands
    rows = p.extents(new.spec)[1]
    heads = _heads(new, p.layout, rows, p.heads, p.size, p.width, p.offset)
    held = past[0].view if past else None
    w.call("kv_append", p.stored, x=heads, past=held, positions=positions.view, y=results[0].view)


def _multiplied(p: AttentionParams) -> str:
    """The element type of a call, as ``calls`` spells it."""
    if p.stored != "f32":
        return f"f32_by_{p.stored}"
    return "f32_as_bf16" if p.whole else "bf16" if p.in_bf16 else "f32"


def _in_pairs(w: RegionWriter, operands: Sequence[Slot]) -> list[Slot]:
    """Round the operands to bf16; operands that share a buffer are rounded once."""
    made: dict[Buffer, Slot] = {}
    for slot in operands:
        if slot.buffer not in made:
            view = as_bf16_matrix(w, slot, slot.shape[-1])
            made[slot.buffer] = Slot(view.buffer, TensorSpec(DType.BF16, slot.shape))
    return [made[slot.buffer] for slot in operands]


def _heads(
    slot: Slot, layout: str, rows: Extent, count: int, size: int, width: int, first: int = 0
) -> View:
    """View a tensor as ``[B, H, rows, size]``.

    ``width`` and ``first`` apply to the layout "rows": the columns of a row, and the first column
    of head 0.
    """
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
