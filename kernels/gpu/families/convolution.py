"""Implicit-GEMM convolution: the left operand is read from the image in place.

Images and filters are channels-last: rows are output pixels, the depth is taps × channels.  Groups
of channels are a batch of such matmuls.  Volumes have an axis more; their kernels are called
``conv3d``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ir import Extent, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import tensor_core_matmul
from tracea_graph.kernels.gpu.launch import (
    Argument,
    Launch,
    constant_buffer_flag,
    divisor,
    i32,
)
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View

__all__ = [
    "as_pixel_rows",
    "groups_of",
    "is_of_volumes",
    "launch",
    "launch_over",
    "name",
    "parameters",
    "product_of",
    "shared",
    "window_arguments",
]

_VOLUME = 3
"""Axes of space of a volume."""
_ROWS_APART = 16
"""Tile rows at a distance that is a multiple of this have the same swizzle."""


def as_pixel_rows(view: View) -> View:
    """View ``[N, H, W, C]`` or ``[N, D, H, W, C]`` as ``[pixels, C]``.

    An axis of size 1 may have any stride.  Raises GraphError if strides of pixels vary.
    """
    (*sizes, channels), (*strides, step) = view.dims, view.strides
    own = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    for (_, outer), (size, stride) in pairwise(own):
        if outer != combine("mul", stride, size):
            raise GraphError("The pixels of a convolution's result must have one constant stride.")
    pixel = own[-1][1] if own else strides[-1]
    return View(view.buffer, (product(tuple(sizes)), channels), (pixel, step), view.offset)


def product_of(call: Call) -> Call:
    """Return the matmul that a convolution is equal to.

    Its left operand x stands for the windows, which the kernel reads from the image.  Groups are
    the batch, and each has its part of the bias.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, w, bias, groups = named["x"], named["w"], named["bias"], groups_of(call)
    _, *taps = w.dims
    depth = product(tuple(taps))
    rows, filters = product(named["y"][0].dims[:-1]), named["y"][0].dims[-1]
    if groups == 1:
        left = View(x.buffer, (rows, depth), (0, 0), x.offset)
        right = View(w.buffer, (w.dims[0], depth), (depth, 1), w.offset)
    else:
        filters = combine("floordiv", filters, groups)
        apart = combine("mul", w.dims[-1], x.strides[-1]), combine("mul", filters, depth)
        left = View(x.buffer, (groups, rows, depth), (apart[0], 0, 0), x.offset)
        right = View(w.buffer, (groups, filters, depth), (apart[1], depth, 1), w.offset)
        bias = bias and replace(bias, dims=(filters,))
    return CALLS.make(
        "gemm", call.dtype, layout="nk", chain=call.chain, bias=bias, x=left, w=right,
        inputs=[_by_groups(as_pixel_rows(view), groups) for view in named["inputs"]],
        y=[_by_groups(as_pixel_rows(view), groups) for view in named["y"]],
        partial=named["partial"], arrivals=named["arrivals"],
    )  # fmt: skip


def groups_of(call: Call) -> int:
    """Return the number of groups of channels of a convolution."""
    return int(call.attributes.get("groups", 1))


def is_of_volumes(call: Call) -> bool:
    """Whether a convolution has three axes of space."""
    return len(call.attributes["strides"]) == _VOLUME


def window_arguments(call: Call) -> list[Argument]:
    """Return what kernels need to find the first pixel of a row and the place of a tap.

    These are divisors by the taps of each axis but the first, innermost first, and by the pixels
    of a result, of its planes and of its lines; then strides, dilations and padding.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    taps, out, a = named["w"].dims[1:-1], named["y"][0].dims[1:-1], call.attributes
    inner = [product(out[axis:]) for axis in range(len(out))]
    return [*map(divisor, (*taps[:0:-1], *inner)),
            *map(i32, (*a["strides"], *a["dilations"], *a["pads"]))]  # fmt: skip


def _by_groups(rows: View, groups: int) -> View:
    """View a matrix of pixels as a batch of matrices, one for each group of channels."""
    if groups == 1:
        return rows
    each = combine("floordiv", rows.dims[-1], groups)
    apart = combine("mul", each, rows.strides[-1])
    return View(rows.buffer, (groups, rows.dims[0], each), (apart, *rows.strides), rows.offset)


def name(call: Call) -> str:
    own = "conv3d" if is_of_volumes(call) else "conv"
    return tensor_core_matmul.name(product_of(call)).replace("gemm_nk", own)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    down = variant.threads * 16 // variant.params["k_bytes"]
    if down % _ROWS_APART or variant.params["m"] % down:
        raise GraphError(f"A tile of {variant.tile} does not give each thread whole rows.")
    made = tensor_core_matmul.parameters(product_of(call), variant)
    return {**made, "volume": is_of_volumes(call)}


def shared(call: Call, variant: Variant) -> int:
    return tensor_core_matmul.shared(product_of(call), variant)


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    made = launch_over(call, variant, symbol, shared(call, variant))
    weight = constant_buffer_flag(CALLS.of(call).named(call)["w"])  # type: ignore[arg-type]
    return replace(made, arguments=(*made.arguments, weight))


def launch_over(call: Call, variant: Variant, symbol: str, taken: int) -> Launch:
    """Return the launch of a convolution kernel; a block uses ``taken`` bytes of shared memory."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    x = named["x"]
    steps: tuple[Extent, ...] = (*x.strides, *x.dims[1:-1])
    blocks, made = tensor_core_matmul.arguments(
        product_of(call), variant.params["m"], variant.params["n"]
    )
    made += [*map(i32, steps), divisor(named["w"].dims[-1]), *window_arguments(call)]
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
