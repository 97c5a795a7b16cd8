"""Depthwise convolution and the 1 × 1 convolution behind it in one launch: fp16 and bf16.

Those of a quantized network compute bytes minus zero points, which are exact in fp16: ``levels``.

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
from tracea_graph.ops.chain import FULL, ROW, Chain, Step

__all__ = ["BETWEEN", "BYTES", "LEVELS", "between", "launch", "name", "parameters", "refusal",
           "shared", "with_sizes"]  # fmt: skip

BETWEEN = MappingProxyType({
    "none": (), "relu": (Step("relu", (0,)),), "relu6": (Step("clip", (0, 0.0, 6.0)),),
    "silu": (Step("silu", (0,)),), "hard_swish": (Step("hard_swish", (0,)),),
})  # fmt: skip
"""Steps of the activations between both convolutions."""
LEVELS = "levels"
"""The activation that rounds, and clips to integers."""
BYTES = (DType.U8, DType.I8)
"""Types of the images of quantized networks."""
_MOST_FILTERS, _MOST_TAPS, _MOST_STEP = 24, 9, 2
"""Maximum filters, of which a lane holds the sums of a quarter for each of four pixels; maximum
taps, for which the loads of a lane are unrolled; and maximum stride.
"""
_PIXELS = 4
"""Pixels whose bytes share a word, which one instruction multiplies by a row of a filter."""
_SIDE, _QUAD, _RUN = 2, 4, 8
"""Side of a lane's square of pixels, lanes that share it, and numbers of a 16-byte load."""


def _named(call: Call) -> dict[str, Any]:
    return {**CALLS.of(call).named(call)}


def between(call: Call) -> tuple[Step, ...]:
    """Return the steps of the activation between both convolutions."""
    if call.attributes["activation"] != LEVELS:
        return BETWEEN[str(call.attributes["activation"])]
    low, high = map(float, call.attributes["levels"])
    return Step("round", (0,)), Step("saturate", (1, low, high))


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
    if _read(call) in BYTES and wide >= _PIXELS:
        return f"words hold bytes of {_PIXELS} pixels, of which windows read fewer"
    if chain is None or chain.result_types not in ((own,), *((t,) for t in BYTES)):
        return "there are several results, or of another type"
    kinds = zip(chain.operands[1:], chain.operand_types[1:], strict=True)
    known = {(FULL, own), (ROW, DType.F32), *((FULL, dtype) for dtype in BYTES)}
    if {*kinds} - known:
        return "the epilogue reads other operands than images of known types and rows in float32"
    x: View = named["x"]
    if x.strides[-2:] != (channels, 1):
        return "pixels of the image are not contiguous"
    matrices = [named["w2"], *named["inputs"], *named["y"]]
    vectors = [v for v in (named["scale1"], named["bias1"], named["bias"]) if v is not None]
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
    words += ["scaled"] * (named["scale1"] is not None) + ["biased"] * (named["bias1"] is not None)
    words.append(str(call.attributes["activation"]))
    if _read(call) in BYTES:
        words += [str(call.attributes["x_type"]), _word(call.attributes["zero"])]
    if call.attributes["activation"] == LEVELS:
        words += [_word(level) for level in call.attributes["levels"]]
    words += ["to", f"{named['w2'].dims[0]}"] + ["bias"] * (named["bias"] is not None)
    return "_".join(words + ([f"{call.chain.key:016x}"] if call.chain else []))


def _filter_type(call: Call) -> DType:
    """Return the type of w: rows of a channel's taps share a word for bytes."""
    return DType.I8 if _read(call) in BYTES else DType.F32


def _word(level: int) -> str:
    return f"{level}".replace("-", "m")


def _read(call: Call) -> DType:
    """Return the type of x."""
    return DType.from_short(str(call.attributes["x_type"]))


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    assert call.chain is not None
    named, steps = _named(call), call.attributes["strides"]
    high, wide, channels = named["w"].dims
    steps_between = between(call)
    own = Chain((FULL,), steps_between, (len(steps_between),), fast_math=True)
    near, zero = chain_parameters.near_roundings(own), int(call.attributes["zero"])
    return {
        **chain_parameters.chain_template_parameters(call.chain, rounded_by_sums=True),
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "kind": call.dtype,
        "source": chain_parameters.ELEMENTS[_read(call)],
        "bytes": _read(call) in BYTES,
        "signed": _read(call) is DType.I8,
        "zero": zero,
        "shift": zero + 128 * (_read(call) is DType.I8),  # of bytes without signs
        "wide_words": max(_PIXELS, steps[1] + _PIXELS - 1),
        "scaled": named["scale1"] is not None,
        "between": named["bias1"] is not None,
        "bias": named["bias"] is not None,
        "given": chain_parameters.operands(call.chain)[1:],
        "made": chain_parameters.results(call.chain)[0],
        "whole_bytes": chain_parameters.is_whole_byte(call.chain),
        "activation": call.attributes["activation"],
        "activating": chain_source.chain_statements(own, near),
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
    made: list[Argument] = [pointer(x, _read(call)), pointer(named["w"], _filter_type(call))]
    vectors = (named["scale1"], named["bias1"])
    made += [pointer(v, DType.F32) for v in vectors if v is not None]
    made += [pointer(w2, own), i32(w2.strides[0])]
    made += [pointer(named["bias"], DType.F32)] * (named["bias"] is not None)
    assert call.chain is not None
    given = zip(named["inputs"], chain_parameters.operands(call.chain)[1:], strict=True)
    for view, tensor in (*given, (y, chain_parameters.results(call.chain)[0])):
        made.append(pointer(view, tensor.dtype))
        made += [i32(view.strides[0])] * (tensor.kind == FULL)
    down, across = (combine("ceildiv", size, _SIDE) for size in (high, wide))
    tiles = product((x.dims[0], down, across))
    made += map(i32, (*x.strides[:2], *x.dims[1:3], high, wide))
    made += [divisor(combine("mul", down, across)), divisor(across), i32(tiles)]
    made += map(i32, call.attributes["pads"])
    blocks = combine("ceildiv", tiles, variant.threads // _QUAD)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
