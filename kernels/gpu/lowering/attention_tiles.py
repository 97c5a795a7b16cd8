"""Lower active tiles of attention scores to an additive mask: 0 inside of them, −∞ elsewhere.

A map of tiles is a constant, so the mask is written once, when the first session opens.  Kernels
that use tensor cores read a list by rows of the tiles of a mask as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tracea_graph.ir import DType, Extent
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.lowering.row_ops import rows_call
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import LackingError, Shape, Value
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.attention_tiles import TileGrid
from tracea_graph.ops.chain import FULL, Chain, Step

__all__ = ["without_tiles"]

_IS_ACTIVE = Chain(
    (FULL, FULL), (Step("equal", (0, 1)), Step("where", (2, 1.0, 0.0))), (3,)
)  # fmt: skip
_ADDED = Chain((FULL,), (Step("less", (0.5, 0)), Step("where", (1, 0.0, -inf))), (2,))
_BOTH_ADDED = Chain((FULL, FULL), (Step("add", (0, 1)),), (2,))
_KEPT = Chain((FULL, FULL), (Step("where", (1, 0, -inf)),), (2,), (DType.F32, DType.BOOL))


def without_tiles(
    w: GpuProgramWriter,
    p: AttentionParams,
    operands: Sequence[Value],
    sides: tuple[Extent, Extent],
) -> tuple[AttentionParams, list[Value]]:
    """Return an equal attention without tiles, and its operands.

    ``sides`` are the numbers of queries and keys.  Tiles that summarize a mask are left out, since
    the mask is an operand too.  Raises LackingError for a boolean mask in whose place a finite
    score stands, which no sum with a mask can be.
    """
    grid, plain = p.tiles, replace(p, tiles=None)
    assert grid is not None
    if not grid.masks:
        return plain, list(operands[:-1])
    if p.mask == "bool" and p.fill != -inf:
        raise LackingError(
            "GPU attention kernels combine tiles set by hand with a boolean mask only if the mask "
            "drops keys by −∞"
        )
    tiles = _added(w, grid, operands[-1], sides)
    if p.mask != "none":
        held = operands[3]
        held = held if held.dtype is DType.BOOL else w.typed_as(held, DType.F32)
        lead: Shape = (1,) * (4 - len(held.shape)) + tuple(held.shape[:-2])
        both = w.temp(DType.F32, (*lead[:2], *sides))
        chain = _KEPT if p.mask == "bool" else _BOTH_ADDED
        w.chain(chain, [v.stretched(both.shape) for v in (tiles, held)], [both])
        tiles = both
    return replace(plain, mask="add"), [*operands[:3], tiles]


def _added(
    w: GpuProgramWriter, grid: TileGrid, active: Value, sides: tuple[Extent, Extent]
) -> Value:
    """Write the mask ``[queries, keys]`` from the numbers of active tiles."""
    down, across = grid.row_tiles, grid.key_tiles
    numbers = w.temp(DType.F32, (grid.count, 1))
    w.call("iota", y=numbers.view, y_type="f32", start=0.0, steps=(1.0, 0.0))
    found = w.temp(DType.F32, (grid.count,))
    full: Shape = (grid.count, active.shape[0])
    pairs = [v.stretched(full) for v in (w.typed_as(active, DType.F32), numbers)]
    rows_call(w, "reduce", pairs, _IS_ACTIVE, found, kind="max", mean=False)
    mask = w.temp(DType.F32, (down * grid.rows, across * grid.keys))
    spread = View(found.view.buffer, (down, grid.rows, across, grid.keys), (across, 0, 1, 0))
    parts = mask.split(1, grid.keys).split(0, grid.rows)
    w.chain(_ADDED, [Value(spread, DType.F32)], [parts])
    return mask.part(0, 0, sides[0]).part(1, 0, sides[1])
