"""Linear, cubic and nearest-neighbor interpolation of channels-last images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tracea_graph.ir import Extent, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, divisor, f32, i32, pointer
from tracea_graph.kernels.gpu.semantic.fragment_layouts import WARP
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared", "with_channels"]


_FEWEST, _MOST = 4, 56
"""Results below each other of a thread, which reads each line of an image once for them."""
_THREADS = 1 << 17
"""Threads that are enough for a GPU."""
_PLACES = 4
"""Channels of a thread where they do not fill vectors."""


def name(call: Call) -> str:
    a = call.attributes
    return f"resize_{a['how']}" + "_cubic" * bool(a["cubic"]) + "_single" * _single(call)


def _single(call: Call) -> bool:
    """Whether channels are known not to fill vectors, and are read one by one."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    channels = named["y"].dims[3]
    return isinstance(channels, int) and channels % _run(call) != 0


def with_channels(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton`` with as many channels as the kernel's source needs to know."""
    channels = 1 if _single(call) else _run(call)
    views = [v and replace(v, dims=(*v.dims[:3], channels)) for v in skeleton.views]
    return replace(skeleton, views=tuple(views))


def _places(call: Call) -> int:
    """Return how many channels, or vectors of them, a thread computes beside each other."""
    return _PLACES if _single(call) and not call.attributes["cubic"] else 1


def _run(call: Call) -> int:
    return chain_parameters.vector_length(TYPES[call.dtype])


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    element = chain_parameters.ELEMENTS[TYPES[call.dtype]]
    own = {key: call.attributes[key] for key in ("how", "cubic")}
    return {"element": element, "run": _run(call), "positions": _places(call),
            "single": _single(call), **own,
            "blocks": 3 if own["cubic"] or _single(call) else 4}  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    return 0


def _below(call: Call, numbers: Extent) -> Extent:
    """Return how many results below each other a thread computes, of so many in all."""
    if call.attributes["how"] == "nearest":
        return _run(call)
    most = 2 * _run(call) if call.attributes["cubic"] else _MOST
    each = combine("floordiv", numbers, _THREADS)
    return combine("max", _FEWEST, combine("min", most, each))


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
    line, how = combine("mul", q, channels), call.attributes["how"]
    groups = combine("ceildiv", line, _run(call))
    if _single(call):
        groups = combine("mul", combine("ceildiv", line, WARP * _places(call)), WARP)
    below = _below(call, product((n, p, groups)))
    sets = combine("ceildiv", p, below)
    made += map(divisor, (p, q, channels, line, groups, sets))
    made += [i32(below), *map(f32, (*_steps(call), float(call.attributes["slope"])))]
    size = product((n, sets, line if how == "nearest" else groups))
    if not call.attributes["cubic"] and not (_single(call) and how != "nearest"):
        size = combine("max", size, combine("ceildiv", count, _run(call)))
    blocks = combine("ceildiv", size, variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
