"""Implicit-GEMM convolution by warpgroups for sm_90a; tensor maps copy the pixels of each tap.

The matmul is that of :mod:`convolution`.  Its depth is taps × channels, in steps of 64 channels of
a tap, 32 of float32, 128 of bytes, or up to 32 channels of two taps (``halves``).  If the image
has fewer channels than a step, the copy fills the others with zeros.  Tensor maps of volumes have
an axis more than those of images.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import tensor_core_matmul, warpgroup_matmul
from tracea_graph.kernels.gpu.families.convolution import (
    groups_of,
    is_of_volumes,
    product_of,
    window_arguments,
)
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import (
    MAP_ALIGN,
    Argument,
    Launch,
    Window,
    divisor,
    i32,
    pixel_map,
    tensor_map,
)
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import LINE
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View

__all__ = ["CHANNELS", "launch", "name", "operands", "parameters", "product_of_windows",
           "refusal", "refusal_of_image", "shared"]  # fmt: skip

CHANNELS = 64
"""Channels of a step, of 16 bits each."""
_FEW_TAPS, _LEAST_SHARE = 16, (4, 2)
"""Minimum channels for which padding to a whole step pays: that part of a step, for few taps and
for many taps.
"""
_MOST_STEP = 8
"""Maximum stride of a window."""
_MOST_TAP = {False: 255, True: 31}
"""Maximum distance of a tap from the first, by whether images are volumes."""
_MOST_CORNER = {False: 127, True: 15}
"""Maximum distance of the first and the last start from the corners of the image."""


def product_of_windows(call: Call) -> Call:
    """Return the matmul, with a contiguous left operand in place of the window."""
    made = tensor_core_matmul.without_parts(product_of(call))
    x, *rest = made.views
    assert x is not None
    left = replace(x, strides=(*x.strides[:-2], _span(call), 1), offset=0)
    return replace(made, views=(left, *rest))


def name(call: Call) -> str:
    own = "conv3d" if is_of_volumes(call) else "conv"
    return warpgroup_matmul.name(product_of_windows(call)).replace("wgmma_nk", f"wg{own}", 1)


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    halves = variant.params.get("halves", 0)
    if halves and (why := _refusal_of_halves(call)):
        return why
    if why := refusal_of_image(call, _span(call) // (1 + halves)):
        return why
    return warpgroup_matmul.refusal(product_of_windows(call), variant)


def _refusal_of_halves(call: Call) -> str:
    """Return why steps do not consist of the channels of two taps, or "" if they do."""
    filters: View = CALLS.of(call).named(call)["w"]  # type: ignore[assignment]
    _, *taps, channels = filters.dims
    if not isinstance(channels, int) or channels > CHANNELS // 2:
        return f"a tap has more than {CHANNELS // 2} channels, or an unknown number"
    if groups_of(call) > 1 or product(tuple(taps)) == 1:
        return "there are groups of channels, or one tap alone"
    return ""


def _span(call: Call) -> int:
    """Return the number of channels of a step."""
    return LINE // int(TYPES[call.dtype].size)


def refusal_of_image(call: Call, span: int = CHANNELS) -> str:
    """Return why tensor maps cannot copy the pixels of a call's windows, or "" if they can.

    A step has ``span`` channels.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, w, a = named["x"], named["w"], call.attributes
    try:
        product_of(call)
    except GraphError as why:
        return str(why)
    if x.strides[-1] != 1:
        return "tensor maps need images with channels last"
    taps, channels = product(w.dims[1:-1]), w.dims[-1]
    few = isinstance(taps, int) and taps <= _FEW_TAPS and 1 in w.dims[1:-1]
    if not isinstance(channels, int) or channels < span // _LEAST_SHARE[not few]:
        return f"too few channels, or an unknown number: a step has {span}"
    step = MAP_ALIGN * span // LINE
    known = [s for s in (*x.strides[:-1], x.offset, w.offset, channels) if isinstance(s, int)]
    if any(s % step for s in known):
        return f"tensor maps need pixel strides that are multiples of {MAP_ALIGN} bytes"
    reach = [(k - 1) * d for k, d in zip(w.dims[1:-1], a["dilations"], strict=True)]
    large = is_of_volumes(call)
    if max(a["strides"]) > _MOST_STEP or max(reach) > _MOST_TAP[large]:
        return "tensor maps do not support such large strides or dilations"
    ends = [n for n in _ends(call) if isinstance(n, int)]
    if large and any(abs(n) > _MOST_CORNER[large] for n in (*ends, *a["pads"])):
        return "windows start too far outside the volume for tensor maps"
    return ""


def _ends(call: Call) -> list[Extent]:
    """Return how far beyond the image the last start lies, outermost axis first."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    a, x, y = call.attributes, named["x"].dims[1:-1], named["y"][0].dims[1:-1]
    return [
        combine("sub", combine("sub", combine("mul", combine("sub", out, 1), step), pad),
                combine("sub", size, 1))
        for out, step, pad, size in zip(y, a["strides"], a["pads"], x, strict=True)
    ]  # fmt: skip


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    made = warpgroup_matmul.parameters(product_of_windows(call), variant)
    return {**made, "conv": True, "volume": is_of_volumes(call)}


def shared(call: Call, variant: Variant) -> int:
    return warpgroup_matmul.shared(product_of_windows(call), variant)


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    halves, m, n = (variant.params.get(one, 0) for one in ("halves", "m", "n"))
    maps, more, steps = operands(call, m, n, halves=bool(halves))
    depth, made = combine("mul", steps, _span(call)), product_of_windows(call)
    maps = [replace(one, rounded=call.dtype == "tf32") for one in maps]
    return warpgroup_matmul.launch_over(made, variant, symbol, maps, depth, more)


def operands(
    call: Call, m: int, n: int, types: tuple[DType, DType] | None = None, halves: bool = False
) -> tuple[list[Argument], list[Argument], Extent]:
    """Return the tensor maps of x and w, further arguments, and the number of depth steps.

    A copy transfers m pixels of x, or n filters of w.  The further arguments describe the window.
    ``types`` are the element types of x and w, if not those of the call.  A step has two taps if
    it has ``halves``, whose number is then the first further argument.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, w, a = named["x"], named["w"], call.attributes
    left, right = types or (TYPES[call.dtype],) * 2
    span = LINE // int(left.size) // (1 + halves)
    filters, *taps, channels = w.dims
    groups = groups_of(call)
    # the last start lies as far beyond the image as the results need
    window = Window(tuple(a["pads"][::-1]), tuple(_ends(call)[::-1]), tuple(a["strides"][::-1]))
    count = product(tuple(taps))
    by_tap = View(w.buffer, (filters, count, channels), (w.strides[0], channels, 1), w.offset)
    box: tuple[int, ...] = (n, 1, span)
    if groups > 1:
        each, apart = combine("floordiv", filters, groups), w.strides[0]
        by_tap = View(w.buffer, (groups, each, count, channels),
                      (combine("mul", each, apart), *by_tap.strides), w.offset)  # fmt: skip
        box = (1, *box)
    maps = [pixel_map(x, left, (m, span), window), tensor_map(by_tap, right, box)]
    blocks = -(-channels // span)
    more = [divisor(count if halves else blocks), *window_arguments(call),
            *map(i32, (channels,) * (groups > 1))]  # fmt: skip
    return maps, more, combine("ceildiv", count, 2) if halves else combine("mul", count, blocks)
