"""Channels-last images, sampled at the positions of a grid."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]


_PIXELS = 128
"""Pixels of a block whose threads compute weights for each other."""


def name(call: Call) -> str:
    a = call.attributes
    return f"grid_sample_{a['sampling']}_{a['beyond']}" + "_aligned" * bool(a["aligned"])


def _run(call: Call) -> int:
    return chain_parameters.vector_length(TYPES[call.dtype])


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    element = chain_parameters.ELEMENTS[TYPES[call.dtype]]
    own = {key: call.attributes[key] for key in ("sampling", "beyond", "aligned")}
    return {"element": element, "run": _run(call), "pixels": _PIXELS, **own}


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, grid, y, own = named["x"], named["grid"], named["y"], TYPES[call.dtype]
    n, p, q, channels = y.dims
    pixels, run = product((n, p, q)), _run(call)
    made = [pointer(x, own), *map(i32, x.strides), pointer(grid, DType.F32)]
    made += [*map(i32, grid.strides), pointer(y, own), *map(i32, y.strides)]
    made += map(i32, (*x.dims[1:3], pixels))
    vectors = combine("ceildiv", channels, run)
    made += map(divisor, (p, q, channels, vectors, combine("ceildiv", channels, 2)))
    blocks = combine("ceildiv", combine("mul", pixels, vectors), variant.threads)
    odd = isinstance(channels, int) and channels % run
    if odd or call.attributes["sampling"] == "cubic":
        blocks = combine("ceildiv", pixels, _PIXELS)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
