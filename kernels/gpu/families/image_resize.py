"""Linear, cubic and nearest-neighbor interpolation of channels-last images."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, divisor, f32, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]


def name(call: Call) -> str:
    return f"resize_{call.attributes['how']}" + "_cubic" * bool(call.attributes["cubic"])


def _run(call: Call) -> int:
    return chain_parameters.vector_length(TYPES[call.dtype])


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    element = chain_parameters.ELEMENTS[TYPES[call.dtype]]
    own = {key: call.attributes[key] for key in ("how", "cubic")}
    return {"element": element, "run": _run(call), **own}


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    (x, y), own = (named["x"], named["y"]), TYPES[call.dtype]
    n, p, q, channels = y.dims
    runs = combine("ceildiv", channels, _run(call))
    made = [pointer(x, own), *map(i32, x.strides), pointer(y, own), *map(i32, y.strides)]
    made += map(i32, (*x.dims[1:3], product((n, p, q)), channels))
    made += map(divisor, (p, q, runs))
    made += [f32(float(call.attributes[name])) for name in ("scale_h", "scale_w", "slope")]
    blocks = combine("ceildiv", product((n, p, q, runs)), variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
