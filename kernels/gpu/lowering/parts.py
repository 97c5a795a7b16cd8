"""The depth of products with fewer tiles than a GPU has room for is cut into parts.

How many follows from the sizes of a run: one record serves a batch of any size.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Any

from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.kernels import variant_of
from tracea_graph.kernels.gpu.lowering.writer import Writer
from tracea_graph.kernels.program import Call

__all__ = ["cut"]

_ROOM = 264
"""Tiles that are computed at the same time: two on each of 132 multiprocessors."""
_LEAST = {"gemm": 16, "conv": 9}
"""Steps of a depth that are worth cutting: what the parts of a tile wait for each other."""
_MOST_SIDE = 64
"""Larger tiles are for products with enough of them."""


def cut(w: Writer, call: Call) -> Call:
    """The call with room for parts of its depth, if that is long and its tiles small."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    taps = named["w"].dims[1:] if call.op == "conv" else (named["x"].dims[-1],)
    depth, tile = product(tuple(taps)), variant_of(call).params
    if call.dtype == "f32" or max(tile["m"], tile["n"]) > _MOST_SIDE or not isinstance(depth, int):
        return call
    steps = -(-depth // (tile["k_bytes"] // 2))
    if steps < _LEAST[call.op]:
        return call
    *outer, cols = named["y"][0].dims
    # what is left of the loop and the sums that the last block adds up take equally long
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
