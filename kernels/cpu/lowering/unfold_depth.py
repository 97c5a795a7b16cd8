"""Lower ``frames``: unfold a window along the first axis (depth) into channels.

Each tap is one copy of its channels; windows that start before the first image or end behind the
last one read zeros there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.cpu.filters import BLOCK
from tracea_graph.kernels.cpu.lowering.region_values import RegionValues
from tracea_graph.kernels.program import View
from tracea_graph.ops.chain import Chain, Step

__all__ = ["ZERO", "lower_unfold_depth"]

ZERO = Chain((), (Step("add", (0.0, 0.0)),), (0,))
"""A chain that writes zeros and reads no operand, since an empty image has no element to read."""


def lower_unfold_depth(v: RegionValues, ints: Sequence[int], source: int, result: int) -> None:
    """Emit one copy per tap.  The number of images must be a constant."""
    taps, stride, dilation, before, _ = ints
    images, windows = v.shape(source)[0], v.shape(result)[0]
    assert isinstance(images, int) and isinstance(windows, int)
    blocked = result in v.layout.blocked
    if blocked:
        dst, small, big = v.dst(result), v.block(source).view(), v.interior(result)
    else:
        small, big = v.view(source), v.out(result).view
    each = v.layout.channels(source) // (BLOCK if blocked else 1)
    for tap in range(taps):
        at = tap * dilation - before  # the image this tap of window 0 reads
        first = min(max(-(at // stride), 0), windows)
        end = max(min((images - 1 - at) // stride + 1, windows), first)
        part = _moved(big, (windows, each, *big.dims[2:]), (0, tap * each))
        for begin, count in ((0, first), (end, windows - end)):
            if count:
                dims = (count, *part.dims[1:])
                zeros = replace(ZERO, stores=(dst.dtype,)) if blocked else ZERO
                edge = _moved(part, dims, (begin,))
                v.w.call("elementwise", x=(), y=edge, chain=zeros)
        if end > first:
            dims = (end - first, *part.dims[1:])
            steps = (combine("mul", small.strides[0], stride), *small.strides[1:])
            skipped = combine("mul", small.strides[0], first * stride + at)
            read = View(small.buffer, dims, steps, combine("add", small.offset, skipped))
            v.w.call("copy", x=read, y=_moved(part, dims, (first,)))
    if blocked:
        v.finish(result, dst)


def _moved(view: View, dims: Sequence[Extent], starts: Sequence[int]) -> View:
    """The part of a view with shape ``dims`` that begins at ``starts``."""
    offset = view.offset
    for start, stride in zip(starts, view.strides, strict=False):
        offset = combine("add", offset, combine("mul", stride, start))
    return View(view.buffer, tuple(dims), view.strides, offset)
