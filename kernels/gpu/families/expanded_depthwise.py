"""1×1 convolution and the depthwise convolution behind it in one launch: fp16 and bf16.

A block computes some channels of a band of lines of an image: the pixels that the band reads lie
in shared memory, and the expanded ones never leave it (the first half of an inverted residual:
Sandler et al., "MobileNetV2", CVPR 2018).  A call stands for one of both convolutions (``part``).
Where this kernel computes them, the depthwise one launches it and the expansion launches nothing;
at other sizes kernels of their own compute them.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType, product
from tracea_graph.kernels import chain_source
from tracea_graph.kernels.gpu.calls import CALLS, EXPANSIONS
from tracea_graph.kernels.gpu.families import depthwise_and_pooling, tensor_core_matmul
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import (
    Launch,
    constant_buffer_flag,
    divisor,
    i32,
    pointer,
)
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import FULL, Chain, Step

__all__ = ["CHAIN_ATTRIBUTES", "activation_of", "chain_of_part", "launch", "name", "parameters",
           "part_of", "refusal", "shared", "with_sizes"]  # fmt: skip

CHAIN_ATTRIBUTES = ("activation",)
"""Attributes that give the chain of a part which the call does not hold."""
_RUN = 4
"""Number of channels that a thread convolves at a time."""
_WHOLE, _DEPTH = 8, 16
"""Channels of 16 bytes, and those of one multiplication."""
_MOST_TAPS, _MOST_STEP, _MOST_CHANNELS = 5, 2, 256
"""Maximum side of a window, stride of windows, and number of channels of x."""
_MOST_SHARED, _HALF = 200 << 10, 100 << 10
"""Maximum bytes of shared memory of a block, and those of which an SM holds two."""
_MOST_HELD = 9
"""Maximum number of a filter's taps that a thread holds in registers."""
_BLOCKS = 112
"""Number of blocks into which an image is divided, at least: most SMs of an H100 get one."""
_STEPS = MappingProxyType({
    "none": (), "relu": (Step("relu", (0,)),), "relu6": (Step("clip", (0, 0.0, 6.0)),),
    "silu": (Step("silu", (0,)),),
})  # fmt: skip
"""The expressions of activations between both convolutions, by name."""


def chain_of_part(part: str, activation: str, dtype: str) -> Chain:
    """Return the chain of the expansion, which the depthwise convolution's call does not hold."""
    assert part == EXPANSIONS[0]
    steps = _STEPS[activation]
    return Chain((FULL,), steps, (len(steps),), (DType.F32,), (TYPES[dtype],))


def activation_of(call: Call) -> str | None:
    """Return the name of a convolution's activation; None if kernels do not know it."""
    if call.chain is None:
        return "none"
    return next(
        (name for name in _STEPS if chain_of_part(EXPANSIONS[0], name, call.dtype) == call.chain),
        None,
    )


def _named(call: Call) -> dict[str, Any]:
    return dict(CALLS.of(call).named(call))


def part_of(call: Call) -> Call:
    """Return the expansion or the depthwise convolution that a call stands for."""
    n, a = _named(call), call.attributes
    if a["part"] == EXPANSIONS[0]:
        own = None
        if a["activation"] != "none":
            own = chain_of_part(EXPANSIONS[0], str(a["activation"]), call.dtype)
        made = CALLS.make("conv", call.dtype, x=n["x"], w=n["w1"], bias=n["bias1"], inputs=[],
                          y=[n["expanded"]], strides=(1, 1), dilations=(1, 1), pads=(0, 0),
                          chain=own)  # fmt: skip
    else:
        made = CALLS.make("depthwise", call.dtype, x=n["expanded"], w=n["w"], bias=n["bias"],
                          inputs=n["inputs"], y=n["y"], strides=a["strides"], dilations=(1, 1),
                          pads=a["pads"], chain=call.chain)  # fmt: skip
    return replace(made, step=call.step)


def _filtered(call: Call) -> Call:
    """Return the depthwise convolution."""
    return part_of(call.having(part=EXPANSIONS[1]))


def _rows(call: Call) -> Call:
    """Return the matmul whose epilogue is that of the depthwise convolution, without its bias."""
    return depthwise_and_pooling.product_of(
        tensor_core_matmul.without_operands(_filtered(call), "bias")
    )


def with_sizes(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton`` with the channels and taps on which the kernel's source depends."""
    places, views = CALLS.of(call).slices(call), list(skeleton.views)
    for operand, kept in (("w1", (3,)), ("w", (0, 1))):
        at = places[operand].start
        view, own = views[at], call.views[at]
        assert view is not None and own is not None
        dims = tuple(own.dims[i] if i in kept else d for i, d in enumerate(view.dims))
        views[at] = replace(view, dims=dims)
    return replace(skeleton, views=tuple(views))


def _taps(call: Call) -> tuple[int, int]:
    high, wide, _ = _named(call)["w"].dims
    return high, wide


def _depth(call: Call) -> int:
    """Return the channels of x, rounded up to whole multiplications."""
    return int(ceil(_named(call)["w1"].dims[3] / _DEPTH) * _DEPTH)


def _pitch(channels: int) -> int:
    """Return the bytes of a pixel in shared memory: an odd number of 16 bytes."""
    return 2 * channels + 16


def _columns(call: Call, variant: Variant) -> int:
    """Return the expanded pixels of a line that windows read, with those beside the image."""
    across = variant.params["across"]
    wide = ceil(_named(call)["y"][0].dims[2] / across) * across
    return int((wide - 1) * call.attributes["strides"][1] + _taps(call)[1])


def _seen(call: Call, lines: int) -> int:
    """Return the lines that ``lines`` lines of the result read."""
    return int((lines - 1) * call.attributes["strides"][0] + _taps(call)[0])


def _bytes(call: Call, variant: Variant, lines: int) -> tuple[int, int, int]:
    """Return the shared memory of weights, expanded pixels and pixels."""
    channels, depth = variant.params["channels"], _depth(call)
    _, high, wide, _ = _named(call)["x"].dims
    pixels = ceil(min(_seen(call, lines), high) * wide / 16) * 16
    return (channels * _pitch(depth) + _filter_bytes(call, variant),
            _seen(call, lines) * _columns(call, variant) * _pitch(channels),
            pixels * _pitch(depth))  # fmt: skip


def _filter_bytes(call: Call, variant: Variant) -> int:
    """Return the shared memory of the filters of a block's channels."""
    taps = prod(_taps(call))
    return 0 if taps <= _MOST_HELD else 2 * taps * variant.params["channels"]


def _slices(call: Call, variant: Variant) -> int:
    """Return the number of blocks that share the channels of a band."""
    channels: int = _named(call)["y"][0].dims[3]
    return ceil(channels / variant.params["channels"])


def _lines(call: Call, variant: Variant) -> int:
    """Return the lines of the result that a block computes."""
    high: int = _named(call)["y"][0].dims[1]
    most = ceil(high / ceil(_BLOCKS / _slices(call, variant)))
    while most > 1 and sum(_bytes(call, variant, most)) > _HALF:
        most -= 1
    return ceil(high / ceil(high / most))


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can."""
    n, a = _named(call), call.attributes
    x, w1, w, y = n["x"], n["w1"], n["w"], n["y"][0]
    sizes = (*x.dims[1:], *w1.dims, *w.dims, *y.dims[1:])
    if not all(isinstance(size, int) for size in sizes):
        return "sizes of images or filters are unknown"
    if x.dims[3] % _WHOLE or w.dims[2] % _WHOLE or x.dims[3] > _MOST_CHANNELS:
        return f"channels are no multiple of {_WHOLE}, or more than {_MOST_CHANNELS}"
    if max(w.dims[:2]) > _MOST_TAPS or max(a["strides"]) > _MOST_STEP:
        return "the window or its stride is too large"
    if x.buffer.kind != "temp":
        return "the image is an input, which may lie at any address"
    filters = w1.strides[0] == x.dims[3] and w1.strides[3] == 1 and w.strides[2] == 1
    if not filters or x.strides[3] != 1:
        return "channels are not contiguous"
    steps = (*x.strides[1:3], x.offset, w1.offset, w.strides[0], w.strides[1], w.offset)
    if not all(isinstance(s, int) and s % _WHOLE == 0 for s in steps):
        return "pixels are not aligned to 16 bytes"
    if any(v is not None and v.strides[-1] != 1 for v in (n["bias1"], n["bias"])):
        return "biases are not contiguous"
    if sum(_bytes(call, variant, _lines(call, variant))) > _MOST_SHARED:
        return "a line of the image does not fit into shared memory"
    return ""


def name(call: Call) -> str:
    n, (high, wide), steps = _named(call), _taps(call), call.attributes["strides"]
    word = f"expanded_{n['w1'].dims[3]}_{call.attributes['activation']}"
    word += "_biased" if n["bias1"] is not None else ""
    word += f"_{high}x{wide}_{steps[0]}x{steps[1]}" + ("_bias" if n["bias"] is not None else "")
    return tensor_core_matmul.name(_rows(call)).replace("gemm_kn", word)


def shared(call: Call, variant: Variant) -> int:
    sizes = (*_named(call)["x"].dims[1:], *_named(call)["y"][0].dims[1:])
    if not all(isinstance(size, int) for size in sizes):
        return 0  # of a text, which serves images of all sizes
    return sum(_bytes(call, variant, _lines(call, variant)))


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    n, (high, wide), steps = _named(call), _taps(call), call.attributes["strides"]
    own = chain_of_part(EXPANSIONS[0], str(call.attributes["activation"]), call.dtype)
    own = replace(own, fast_math=True)  # sums are rounded to 16 bits
    depth = _depth(call)
    return {
        **tensor_core_matmul.epilogue(_rows(call)),
        "kind": call.dtype,
        "run": _RUN,
        "activating": chain_source.chain_statements(own),
        "activated": chain_source.chain_results(own)[0].expression,
        "bias1": n["bias1"] is not None,
        "own_bias": n["bias"] is not None,
        "filter_bytes": _filter_bytes(call, variant),
        "read": n["w1"].dims[3],
        "depth": depth,
        "pitch": _pitch(depth),
        "own_pitch": _pitch(variant.params["channels"]),
        "taps_h": high,
        "taps_w": wide,
        "step_h": steps[0],
        "step_w": steps[1],
    }


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    """Return the launch of a call; that of the expansion has no blocks."""
    taken = shared(call, variant)
    if call.attributes["part"] != EXPANSIONS[-1]:
        return Launch(symbol, (0, 1, 1), variant.threads, taken, ())
    n, a, own, p = _named(call), call.attributes, TYPES[call.dtype], variant.params
    x, y = n["x"], n["y"][0]
    lines, slices = _lines(call, variant), _slices(call, variant)
    weights, expanded, _ = _bytes(call, variant, lines)
    bands = ceil(y.dims[1] / lines)
    _, made = tensor_core_matmul.arguments(_rows(call), 1, _RUN)
    made[0] = pointer(x, own)
    made.append(pointer(n["w1"], own))
    biases = [v for v in (n["bias1"], n["bias"]) if v is not None]
    made += [pointer(v, DType.F32) for v in biases]
    made += map(i32, (*x.strides[:3], *x.dims[1:3], *y.dims[1:3], *a["pads"], lines))
    made += [divisor(bands), divisor(slices), i32(_columns(call, variant)), divisor(x.dims[2])]
    made += [divisor(ceil(y.dims[2] / p["across"])), i32(weights + expanded)]
    made += [constant_buffer_flag(v) for v in (n["w1"], n["w"], *biases)]
    blocks = product((y.dims[0], bands, slices))
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
