"""Compute squeeze-and-excitation in one call: mean, two products, gate and its multiplication.

Lowered one by one, these are four or five launches, most of which have a handful of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tracea_graph.ir import DType, Extent, product
from tracea_graph.kernels.gpu.calls import CALLS, SQUEEZED
from tracea_graph.kernels.gpu.emitter import shared_of
from tracea_graph.kernels.gpu.families.squeeze_excite import MOST_SHARED, RUN
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.program_writer import HALVES, GpuProgramWriter
from tracea_graph.kernels.gpu.variants import VARIANTS
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import FULL, Chain, Step

__all__ = ["fold_squeeze_excite"]

_SCALES = tuple((Step("mul", args),) for args in ((0, 1), (1, 0)))
_TYPES = {dtype.short: dtype for dtype in HALVES}


@dataclass(frozen=True)
class _Means:
    """The calls that compute the means of an image's channels, and the image."""

    calls: tuple[Call, ...]
    image: View


def fold_squeeze_excite(w: GpuProgramWriter) -> None:
    """Replace the calls of each squeeze-and-excitation by one."""
    for call in [c for c in w.calls if c.op == "elementwise"]:
        found = _found(BufferUses(w.calls), call)
        if found is None:
            continue
        made, gone = found
        at = next(i for i, one in enumerate(w.calls) if one is call)
        w.calls[at] = replace(made, step=call.step)
        for one in gone:
            w.drop(one)


def _found(uses: BufferUses, scale: Call) -> tuple[Call, list[Call]] | None:
    """Return the call that replaces a multiplication by gates, and the calls before it.

    Returns None for other elementwise calls.
    """
    chain = scale.chain
    if chain is None or chain.steps not in _SCALES or chain.results != (2,):
        return None
    x, gate, y = (_by_pixels(v) for v in scale.views if v is not None)
    if 0 in x.strides[1:2]:
        x, gate = gate, x
    (dtype, *others) = {*chain.operand_types, *chain.result_types}
    channels = x.dims[-1]
    if others or dtype not in HALVES or gate.strides[1:] != (0, 1):
        return None
    if (second := uses.only_for(gate, scale)) is None or not _is_layer(second, dtype):
        return None
    hidden = second.views[0]
    assert hidden is not None
    if (first := uses.only_for(hidden, second)) is None or not _is_layer(first, dtype):
        return None
    means = _means(uses, first)
    if means is None or not _is_image(means.image, x, y):
        return None
    assert first.chain is not None and second.chain is not None
    (activation,) = first.chain.steps or (Step("", ()),)
    weights = [v for layer in (first, second) for v in layer.views[1:3] if v is not None]
    if activation.op not in SQUEEZED or not _are_weights(weights, channels):
        return None
    own = Chain((FULL,), second.chain.steps, second.chain.results, (DType.F32,), (DType.F32,))
    made = CALLS.make(
        "squeeze_excite", dtype.short, x=means.image, w1=weights[0], bias1=weights[1],
        w2=weights[2], bias2=weights[3], y=replace(means.image, buffer=y.buffer, offset=y.offset),
        squeezed=activation.op, chain=own,
    )  # fmt: skip
    kernels = [v for v in VARIANTS if (v.op, v.dtype) == (made.op, made.dtype)]
    if any(shared_of(made, variant) > MOST_SHARED for variant in kernels):
        return None
    return made, [*means.calls, first, second]


def _by_pixels(view: View) -> View:
    """View a matrix as one image of pixels by channels."""
    if len(view.dims) != 2:
        return view
    return replace(view, dims=(1, *view.dims), strides=(0, *view.strides))


def _is_layer(call: Call, dtype: DType) -> bool:
    """Whether a call is a matmul with a bias, and with an activation of one step after it."""
    if call.op != "gemm" or call.dtype != dtype.short or call.chain is None:
        return False
    named: dict[str, Any] = CALLS.of(call).named(call)
    own = {"x", "w", "bias", "inputs", "y"}
    plain = not any(view for name, view in named.items() if name not in own)
    listed = call.attributes["layout"] == "nk" and call.attributes["norm"] == "none"
    chain = call.chain
    alone = len(chain.operands) == len(chain.results) == 1 and chain.result_types == (dtype,)
    return plain and listed and alone and named["bias"] is not None and len(chain.steps) == 1


def _means(uses: BufferUses, layer: Call) -> _Means | None:
    """Return what computes the rows of a matmul, if these are the means of images."""
    rows, calls, kernel = layer.views[0], list[Call](), list[tuple[int, int]]()
    reader: Call | None = layer
    while rows is not None and reader is not None:
        call = uses.only_for(rows, reader)
        if call is None or call.op != "pool" or call.attributes["kind"] != "average":
            break
        rows = call.views[0]
        size = call.attributes["kernel"]
        if rows is None or rows.dims[1:3] != size:
            return None
        calls.insert(0, call)
        kernel.insert(0, size)
        reader = call
    if rows is None or not calls or len(calls) > 2:
        return None
    if len(calls) == 1:
        return _Means(tuple(calls), rows)
    last = calls[1].views[0]
    if last is None or kernel[1][1] != 1:
        return None
    (high, wide), parts = kernel[0], kernel[1][0]
    count, channels = last.dims[0], rows.dims[3]
    if rows.dims[0] != product((count, parts)):
        return None
    strides = (product((parts * high * wide, channels)), *rows.strides[1:])
    return _Means(tuple(calls), replace(rows, dims=(count, parts * high, wide, channels),
                                        strides=strides))  # fmt: skip


def _is_image(image: View, x: View, y: View) -> bool:
    """Whether the pixels of a contiguous channels-last image are those of x, and y is alike."""
    count, high, wide, channels = image.dims
    if not all(isinstance(n, int) for n in (high, wide, channels)):
        return False
    assert isinstance(high, int) and isinstance(wide, int) and isinstance(channels, int)
    pixels = high * wide
    dense = (pixels * channels, wide * channels, channels, 1)
    steps: tuple[Extent, ...] = (pixels * channels, channels, 1)
    alike = all(
        v.dims == (count, pixels, channels) and v.strides[1:] == steps[1:]
        and (count == 1 or v.strides[0] == steps[0])
        and isinstance(v.offset, int) and v.offset % RUN == 0
        for v in (x, y)
    )  # fmt: skip
    same = (image.buffer, image.offset) == (x.buffer, x.offset)
    return alike and same and image.strides == dense and channels % RUN == 0


def _are_weights(weights: list[View], channels: Extent) -> bool:
    """Whether these are contiguous weights and biases of sizes that are known."""
    first, first_bias, second, second_bias = weights
    hidden = first.dims[0]
    if not isinstance(hidden, int) or not isinstance(channels, int):
        return False
    whole = (first.dims, second.dims) == ((hidden, channels), (channels, hidden))
    dense = (first.strides, second.strides) == ((channels, 1), (hidden, 1))
    even = all(isinstance(v.offset, int) and v.offset % RUN == 0 for v in (first, second))
    return whole and dense and even and {*first_bias.strides, *second_bias.strides} == {1}
