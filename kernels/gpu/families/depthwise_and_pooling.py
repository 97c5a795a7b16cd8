"""Depthwise convolution and pooling of channels-last images and volumes.

Both are memory-bound.  Sums are in float32, tap by tap.  For small windows of known size,
threads of some kernels compute neighbouring pixels and read shared inputs once.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import Extent, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import tensor_core_matmul
from tracea_graph.kernels.gpu.families.convolution import as_pixel_rows, is_of_volumes
from tracea_graph.kernels.gpu.launch import Launch, constant_buffer_flag, divisor, i32
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import FULL

__all__ = [
    "launch",
    "name",
    "parameters",
    "product_of",
    "refusal",
    "refusal_lanes",
    "refusal_large",
    "refusal_square",
    "refusal_whole",
    "shared",
]

_MOST_TAPS, _MOST_STEP = 7, 2
"""Maximum side of a window, and maximum stride, for which loops over taps are unrolled."""
_LOWEST = {"f32": "0xff800000u", "f16": "0xfc00fc00u", "bf16": "0xff80ff80u"}
"""Bits of one or two minus infinities in a 32-bit word, by type."""
_TILES, _LANES = "window_tile.cu.in", "depthwise_lanes.cu.in"
_MOST_HELD = 9
"""Maximum number of a filter's taps that a thread holds in registers."""
_LEAST_LARGE, _LEAST_LANES = 36, 25
"""Minimum taps for threads of two channels, and for lanes of one in 16 bits: with as many,
arithmetic takes longer than memory.
"""
_CHANNELS = 8
"""Channels that a lane copies at once."""


def product_of(call: Call) -> Call:
    """Return a matmul with the call's epilogue whose depth is the taps of the window."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, y = named["x"], named["y"][0] if call.op == "depthwise" else named["y"]
    channels = y.dims[-1]
    if call.op == "depthwise":
        w = named["w"]
        taps = product(w.dims[:-1])
        w = View(w.buffer, (taps, channels), w.strides[-2:], w.offset)
        more = {"bias": named["bias"], "inputs": [as_pixel_rows(v) for v in named["inputs"]]}
        ys = [as_pixel_rows(view) for view in named["y"]]
    else:
        taps = product(tuple(call.attributes["kernel"]))
        w, more, ys = View(x.buffer, (taps, channels), (0, 0), x.offset), {}, [as_pixel_rows(y)]
    return CALLS.make(
        "gemm", call.dtype, layout="kn", chain=call.chain, w=w, y=ys, **more,
        x=View(x.buffer, (product(y.dims[:-1]), taps), (0, 0), x.offset),
    )  # fmt: skip


def _taps(call: Call) -> tuple[Any, ...]:
    """Return height and width of the window; of volumes, its depth, height and width."""
    if call.op == "pool":
        return tuple(call.attributes["kernel"])
    w: View = CALLS.of(call).named(call)["w"]  # type: ignore[assignment]
    return w.dims[:-1]


def refusal(call: Call) -> str:
    """Return why kernels of several pixels per thread cannot compute a call, or ""."""
    a = call.attributes
    if any(not isinstance(k, int) or k > _MOST_TAPS for k in _taps(call)):
        return f"only windows of known size up to {_MOST_TAPS} × {_MOST_TAPS} are unrolled"
    if max(a["strides"]) > _MOST_STEP or max(a["dilations"]) > 1:
        return f"only windows of dilation 1 and strides up to {_MOST_STEP} are unrolled"
    return _apart(call)


def refusal_large(call: Call) -> str:
    """Return why the kernel of large windows cannot compute a call, or "" if it can."""
    if call.op != "depthwise" or is_of_volumes(call):
        return "kernels of large windows compute depthwise convolutions of images only"
    if why := refusal(call):
        return why
    high, wide = _taps(call)
    return "" if high * wide >= _LEAST_LARGE else f"it has fewer than {_LEAST_LARGE} taps"


def refusal_lanes(call: Call) -> str:
    """Return why lanes do not compute a channel each of a call with a large window, or ""."""
    if call.op != "depthwise" or call.dtype == "f32" or is_of_volumes(call):
        return "lanes compute depthwise convolutions of images of 16-bit numbers"
    if why := refusal(call):
        return why
    high, wide = _taps(call)
    if high * wide < _LEAST_LANES:
        return f"it has fewer than {_LEAST_LANES} taps"
    if tensor_core_matmul.vector_length(product_of(call)) != _CHANNELS:
        return f"threads cannot copy {_CHANNELS} channels of a pixel at once"
    return ""


def refusal_square(call: Call) -> str:
    """Return why threads do not compute squares of pixels, or "" if they do."""
    if call.op != "depthwise" or call.dtype == "f32":
        return "squares of pixels are for depthwise convolutions of 16-bit numbers"
    if why := refusal(call):
        return why
    high, wide = _taps(call)[-2:]
    if high * wide > _MOST_HELD:
        return f"registers hold at most {_MOST_HELD} taps"
    sides = CALLS.of(call).named(call)["y"][0].dims[-3:-1]  # type: ignore[index, union-attr]
    even = all(isinstance(side, int) and side % 2 == 0 for side in sides)
    return "" if even else "the sides of the result are not known to be even"


def refusal_whole(call: Call) -> str:
    """Return why the kernel of whole images cannot compute a pool, or "" if it can."""
    if call.op != "pool" or is_of_volumes(call):
        return "only a pool of images is computed over whole ones"
    named: dict[str, Any] = CALLS.of(call).named(call)
    _, high, wide, _ = named["x"].dims
    if _taps(call) != (high, wide) or named["y"].dims[1:3] != (1, 1):
        return "the window does not cover the whole image"
    _, s_h, s_w, _ = named["x"].strides
    if s_h != combine("mul", s_w, wide):
        return "the pixels of an image do not have one constant stride"
    return _apart(call)


def _apart(call: Call) -> str:
    """Return why threads cannot read whole runs of channels, or "" if they can."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    run = tensor_core_matmul.vector_length(product_of(call))
    for view in (named["x"], named.get("w")):
        if view is None:
            continue
        channels = view.dims[-1]
        if view.strides[-1] != 1 or not isinstance(channels, int) or channels % run:
            return f"channels are not contiguous, or not a known multiple of {run}"
        if not all(_whole(s, run) for s in (*view.strides[:-1], view.offset)):
            return f"strides of pixels are not known multiples of {run} elements"
    return ""


def _whole(extent: Extent, run: int) -> bool:
    """Return whether an extent is a known multiple of a run."""
    if isinstance(extent, int):
        return extent % run == 0
    if isinstance(extent, str):
        return False
    both = [_whole(arg, run) for arg in extent.args]
    return any(both) if extent.op == "mul" else extent.op in ("add", "sub") and all(both)


def _tiled(variant: Variant) -> bool:
    return "down" in variant.params


def name(call: Call) -> str:
    what = f"pool_{call.attributes['kind']}" if call.op == "pool" else "depthwise"
    for sides in (_taps(call), call.attributes["strides"]):
        what += "_" + "x".join(map(str, sides))
    return tensor_core_matmul.name(product_of(call)).replace("gemm_kn", what)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    what = call.attributes["kind"] if call.op == "pool" else "depthwise"
    made = {
        **tensor_core_matmul.epilogue(product_of(call)),
        "what": what,
        "lowest": _LOWEST[call.dtype],
        "run": _run(call, variant),
        "kind": call.dtype,
        "volume": is_of_volumes(call),
    }
    if call.chain is not None:
        chain = chain_parameters.chain_template_parameters(call.chain, rounded_by_sums=True)
        made |= {**chain, "whole_bytes": chain_parameters.is_whole_byte(call.chain)}
    if "side" in variant.params:
        made["run"] = 1  # a thread stores one channel
    if _tiled(variant):
        (*deep, high, wide), (*far, down, across) = _taps(call), call.attributes["strides"]
        made |= {"taps_h": high, "taps_w": wide, "step_h": down, "step_w": across}
        if deep:
            made |= {"taps_d": deep[0], "step_d": far[0]}
        # of volumes, a line of a filter that no two lines of pixels share is read where it is used
        once = bool(deep) and variant.params["down"] == 1
        made["held"] = high * wide <= _MOST_HELD and not once
        several = variant.params["down"] * variant.params["across"] > 1
        alone = call.chain is None or FULL not in call.chain.operands[1:]  # or registers run out
        made["held_rows"] = several and alone and variant.template == _TILES
    return made


def _run(call: Call, variant: Variant) -> int:
    """Return the number of channels that a thread computes."""
    return variant.params.get("channels") or tensor_core_matmul.vector_length(product_of(call))


def shared(call: Call, variant: Variant) -> int:
    if "group" in variant.params:
        p, (high, wide) = variant.params, _taps(call)
        down, across = call.attributes["strides"]
        pixels = ((p["down"] - 1) * down + high) * ((p["across"] - 1) * across + wide)
        return int(2 * p["group"] * pixels)
    if "channels" in variant.params:
        high, wide = _taps(call)
        return int(4 * variant.threads * high * wide * variant.params["channels"])
    if "groups" not in variant.params:
        return 0
    return 4 * variant.threads * tensor_core_matmul.vector_length(product_of(call))


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, a, same = named["x"], call.attributes, product_of(call)
    y = named["y"][0] if call.op == "depthwise" else named["y"]
    n, *planes, p, q, _ = y.dims
    run = variant.params.get("group") or _run(call, variant)
    threads, made = tensor_core_matmul.arguments(same, 1, run)
    taken = shared(call, variant)
    if "groups" in variant.params:
        across = combine("ceildiv", y.dims[-1], run * variant.params["runs"])
        made += map(i32, (x.strides[0], x.strides[2], product(x.dims[1:3])))
        made.append(divisor(across))
        blocks = combine("mul", n, across)
        return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
    made += map(i32, (*x.strides, *x.dims[1:-1]))
    if _tiled(variant):
        down, across = (combine("ceildiv", size, variant.params[side])
                        for size, side in ((p, "down"), (q, "across")))  # fmt: skip
        tiles = product((n, *planes, down, across))
        made += [i32(p), i32(q), *map(divisor, planes)]
        made += [divisor(combine("mul", down, across)), divisor(across)]
        made += map(i32, (tiles, *a["pads"]))
        if call.op == "depthwise" and variant.template in (_TILES, _LANES):
            made.append(constant_buffer_flag(named["w"]))
        threads = combine("mul", tiles, combine("ceildiv", y.dims[-1], run))
    else:
        made += [divisor(product((*planes, p, q))), *[divisor(combine("mul", p, q))] * len(planes)]
        made += [divisor(q), *map(i32, _taps(call)[1:])]
        made += map(i32, (*a["strides"], *a["dilations"], *a["pads"]))
    blocks = threads if "group" in variant.params else combine("ceildiv", threads, variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
