"""Choose the kernels of norms, softmax and reductions over rows whose length varies."""

from __future__ import annotations

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.gpu.tile_choice import LONG_ROWS, choose_tile
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import Call

__all__ = ["row_choices"]


def row_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernel for short rows, for a call whose rows have a length that varies."""
    x = call.views[0]
    columns = x.dims[-1] if x else 0
    if isinstance(columns, int):
        return []
    operands = len(call.chain.operands) if call.chain else 1
    tiles = [choose_tile(call.op, call.dtype, 0, most, operands)[0] for most in (LONG_ROWS, 0)]
    if tiles[0] == tiles[1]:
        return []
    short = next(v for v in VARIANTS if (v.op, v.dtype, v.tile) == (call.op, call.dtype, tiles[0]))
    return [(short, combine("sub", LONG_ROWS + 1, columns))]
