"""Linear, cubic and nearest-neighbor interpolation of channels-last images."""

from __future__ import annotations

from typing import Any

import numpy as np

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


def _steps(call: Call) -> list[float]:
    """Return how far positions of adjacent results lie apart, vertically and horizontally.

    These are scales of the nearest position, which divide exactly; 0 where only a run knows sizes.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    how, found = call.attributes["how"], list[float]()
    for axis, attribute in enumerate(("scale_h", "scale_w")):
        size, count = (named[one].dims[1 + axis] for one in "xy")
        known = isinstance(size, int) and isinstance(count, int) and size > 0 and count > 0
        scale = np.float32(call.attributes[attribute])
        if how == "align_corners":
            scale = np.float32(
                0 if not known or count < 2 or size < 2 else (count - 1) / (size - 1)
            )
        elif not scale and known:
            scale = np.float32(count / size)
        found.append(float(scale if how == "nearest" or not scale else np.float32(1) / scale))
    return found


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    (x, y), own = (named["x"], named["y"]), TYPES[call.dtype]
    n, p, q, channels = y.dims
    count = product(y.dims)
    made = [pointer(x, own), *map(i32, x.strides), pointer(y, own), *map(i32, y.strides)]
    made += map(i32, (*x.dims[1:3], count))
    line, sets = combine("mul", q, channels), combine("ceildiv", p, _run(call))
    made += map(divisor, (p, q, channels, line, sets))
    made += map(f32, (*_steps(call), float(call.attributes["slope"])))
    blocks = combine("ceildiv", product((n, sets, line)), variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
