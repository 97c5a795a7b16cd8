"""Lowering of ``frames``: what a window along the first axis meets, image after image.

Channels of one tap are one copy; where its first or last windows meet no image they are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.cpu.filters import BLOCK
from tracea_graph.kernels.cpu.lowering.values import Values
from tracea_graph.kernels.program import View
from tracea_graph.ops.chain import Chain, Step

__all__ = ["ZERO", "lower_frames"]

ZERO = Chain((), (Step("add", (0.0, 0.0)),), (0,))
"""It reads nothing: of an image without pixels there is no number to be read."""


def lower_frames(v: Values, ints: Sequence[int], source: int, result: int) -> None:
    """One copy a tap; the number of images is known."""
    taps, stride, dilation, before, _ = ints
    images, windows = v.shape(source)[0], v.shape(result)[0]
    assert isinstance(images, int) and isinstance(windows, int)
    blocked = result in v.layout.blocked
    if blocked:
        home, small, big = v.home(result), v.block(source).view(), v.interior(result)
    else:
        small, big = v.view(source), v.out(result).view
    each = v.layout.channels(source) // (BLOCK if blocked else 1)
    for tap in range(taps):
        at = tap * dilation - before  # the image that the first window meets
        first = min(max(-(at // stride), 0), windows)
        end = max(min((images - 1 - at) // stride + 1, windows), first)
        part = _moved(big, (windows, each, *big.dims[2:]), (0, tap * each))
        for begin, count in ((0, first), (end, windows - end)):
            if count:
                dims = (count, *part.dims[1:])
                zeros = replace(ZERO, stores=(home.dtype,)) if blocked else ZERO
                edge = _moved(part, dims, (begin,))
                v.w.call("elementwise", x=(), y=edge, chain=zeros)
        if end > first:
            dims = (end - first, *part.dims[1:])
            steps = (combine("mul", small.strides[0], stride), *small.strides[1:])
            skipped = combine("mul", small.strides[0], first * stride + at)
            read = View(small.buffer, dims, steps, combine("add", small.offset, skipped))
            v.w.call("copy", x=read, y=_moved(part, dims, (first,)))
    if blocked:
        v.finish(result, home)


def _moved(view: View, dims: Sequence[Extent], starts: Sequence[int]) -> View:
    """Part of a view from some place on."""
    offset = view.offset
    for start, stride in zip(starts, view.strides, strict=False):
        offset = combine("add", offset, combine("mul", stride, start))
    return View(view.buffer, tuple(dims), view.strides, offset)
