"""Split-K: divide the depth of a matmul that has fewer tiles than the GPU runs at a time.

The number of splits depends on the sizes of a run, so that one plan serves every batch size.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Any

from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.kernel_selection import variant_of
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program import Call

__all__ = ["add_split_k"]

_ROOM = 264
"""Tiles in flight at a time: two on each of the 132 SMs of an H100."""
_LEAST = {"gemm": 16, "conv": 9}
"""Minimum number of depth steps that outweighs the synchronization of the splits."""
_MOST_SIDE = 64
"""Maximum side of a tile that is split; matmuls with larger tiles have enough of them."""


def add_split_k(w: GpuProgramWriter, call: Call) -> Call:
    """Return a call with the buffers of split-K if its tiles are small and its depth is long.

    Other calls are returned unchanged.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    taps = named["w"].dims[1:] if call.op == "conv" else (named["x"].dims[-1],)
    depth, tile = product(tuple(taps)), variant_of(call).params
    if call.dtype == "f32" or max(tile["m"], tile["n"]) > _MOST_SIDE or not isinstance(depth, int):
        return call
    steps = -(-depth // (tile["k_bytes"] // int(TYPES[call.dtype].size)))
    if steps < _LEAST[call.op]:
        return call
    *outer, cols = named["y"][0].dims
    # balances the remaining loop iterations against the sums that the last block adds up
    most = isqrt(7 * steps // 4)
    if call.op == "conv":
        rows: Extent = combine("ceildiv", product(tuple(outer)), tile["m"])
    else:
        rows = product((*outer[:-1], combine("ceildiv", outer[-1], tile["m"])))
    tiles = combine("mul", rows, combine("ceildiv", cols, tile["n"]))
    fitting = combine("floordiv", _ROOM, combine("max", tiles, 1))
    parts = combine("max", combine("min", fitting, most), 1)
    size = tile["m"] * tile["n"]
    used = combine("mul", tiles, combine("min", combine("sub", parts, 1), 1))
    partial = w.temp(DType.F32, (used, parts, size)).view
    views = {**named, "partial": partial, "arrivals": w.arrivals(_ROOM)}
    schema = CALLS.of(call)
    places = schema.slices(call)
    listed = list(call.views)
    for name in ("partial", "arrivals"):
        listed[places[name].start] = views[name]
    return replace(call, views=tuple(listed))
