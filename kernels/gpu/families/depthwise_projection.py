"""Depthwise convolution and the 1 × 1 convolution behind it in one launch: fp16 and bf16.

Lanes compute 2 × 2 pixels of eight channels each.  What the four lanes of a quad hold are, once
rounded, the left fragments of ``mma.sync`` if the depth is counted in their order, so that nothing
of what is between both convolutions is stored.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels import chain_source
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import FULL, Chain, Step

__all__ = ["BETWEEN", "launch", "name", "parameters", "refusal", "shared", "with_sizes"]

BETWEEN = MappingProxyType({
    "none": (), "relu": (Step("relu", (0,)),), "relu6": (Step("clip", (0, 0.0, 6.0)),),
    "silu": (Step("silu", (0,)),), "hard_swish": (Step("hard_swish", (0,)),),
})  # fmt: skip
"""Steps of the activations between both convolutions."""
_MOST_FILTERS, _MOST_TAPS, _MOST_STEP = 24, 9, 2
"""Maximum filters, of which a lane holds the sums of a quarter for each of four pixels; maximum
taps, for which the loads of a lane are unrolled; and maximum stride.
"""
_SIDE, _QUAD, _RUN = 2, 4, 8
"""Side of a lane's square of pixels, lanes that share it, and numbers of a 16-byte load."""


def _named(call: Call) -> dict[str, Any]:
    return {**CALLS.of(call).named(call)}


def refusal(call: Call) -> str:
    """Return why the kernels cannot compute a call, or "" if they can."""
    named, own, chain = _named(call), TYPES[call.dtype], call.chain
    (high, wide, channels), (filters, _) = named["w"].dims, named["w2"].dims
    if not all(isinstance(n, int) for n in (high, wide, channels, filters)):
        return "sizes of the filters are unknown"
    if channels % _RUN or filters % _RUN or filters > _MOST_FILTERS:
        return f"channels are no multiple of {_RUN}, or filters are over {_MOST_FILTERS}"
    if high * wide > _MOST_TAPS or max(call.attributes["strides"]) > _MOST_STEP:
        return f"only up to {_MOST_TAPS} taps and strides up to {_MOST_STEP} are unrolled"
    if chain is None or chain.result_types != (own,):
        return "there are several results, or of another type"
    if {*chain.operands} != {FULL} or {*chain.operand_types[1:]} - {own}:
        return "the epilogue reads other operands than images of the same type"
    x: View = named["x"]
    if x.strides[-2:] != (channels, 1):
        return "pixels of the image are not contiguous"
    matrices = [named["w2"], *named["inputs"], *named["y"]]
    vectors = [v for v in (named["bias1"], named["bias"]) if v is not None]
    if any(v.strides[-1] != 1 for v in (*matrices, *vectors)):
        return "rows and vectors are not contiguous"
    steps = [s for v in matrices for s in (v.strides[0], v.offset)]
    steps += [*x.strides[:2], x.offset, *(v.offset for v in vectors)]
    if not all(isinstance(s, int) and s % _RUN == 0 for s in steps):
        return "rows are not aligned to 16 bytes"
    return ""


def with_sizes(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton`` with the sizes on which the kernel's source depends."""
    places, views = CALLS.of(call).slices(call), list(skeleton.views)
    for operand in ("w", "w2"):
        at = places[operand].start
        view, own = views[at], call.views[at]
        assert view is not None and own is not None
        views[at] = replace(view, dims=own.dims)
    return replace(skeleton, views=tuple(views))


def name(call: Call) -> str:
    named, steps = _named(call), call.attributes["strides"]
    high, wide, channels = named["w"].dims
    words = ["depthwise", f"{high}x{wide}", f"{steps[0]}x{steps[1]}", f"{channels}"]
    words += ["biased"] * (named["bias1"] is not None) + [str(call.attributes["activation"])]
    words += ["to", f"{named['w2'].dims[0]}"] + ["bias"] * (named["bias"] is not None)
    return "_".join(words + ([f"{call.chain.key:016x}"] if call.chain else []))


def _given(call: Call) -> list[str]:
    """Return the names of the epilogue's operands."""
    assert call.chain is not None
    return [f"x{x.index}" for x in chain_parameters.operands(call.chain)[1:]]


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    assert call.chain is not None
    named, steps = _named(call), call.attributes["strides"]
    high, wide, channels = named["w"].dims
    between = BETWEEN[str(call.attributes["activation"])]
    own = Chain((FULL,), between, (len(between),), fast_math=True)
    return {
        **chain_parameters.chain_template_parameters(call.chain),
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "kind": call.dtype,
        "between": named["bias1"] is not None,
        "bias": named["bias"] is not None,
        "given": _given(call),
        "activation": call.attributes["activation"],
        "activating": chain_source.chain_statements(own),
        "activated": chain_source.chain_results(own)[0].expression,
        "channels": channels,
        "filters": named["w2"].dims[0],
        "taps_h": high,
        "taps_w": wide,
        "step_h": steps[0],
        "step_w": steps[1],
    }


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, own = _named(call), TYPES[call.dtype]
    x, w2, (y,) = named["x"], named["w2"], named["y"]
    high, wide = call.attributes["image"]
    made: list[Argument] = [pointer(x, own), pointer(named["w"], DType.F32)]
    made += [pointer(named["bias1"], DType.F32)] * (named["bias1"] is not None)
    made += [pointer(w2, own), i32(w2.strides[0])]
    made += [pointer(named["bias"], DType.F32)] * (named["bias"] is not None)
    for view in (*named["inputs"], y):
        made += [pointer(view, own), i32(view.strides[0])]
    down, across = (combine("ceildiv", size, _SIDE) for size in (high, wide))
    tiles = product((x.dims[0], down, across))
    made += map(i32, (*x.strides[:2], *x.dims[1:3], high, wide))
    made += [divisor(combine("mul", down, across)), divisor(across), i32(tiles)]
    made += map(i32, call.attributes["pads"])
    blocks = combine("ceildiv", tiles, variant.threads // _QUAD)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
