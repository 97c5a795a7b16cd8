"""Lower convolutions of volumes (``[N, C, D, H, W]``) to convolutions of images.

A filter of one row and column convolves images of D × HW pixels, and one of a single plane
convolves N · D images.  Kernels read volumes in place for most of the others.  The rest convolves
N · D images, whose channels are those of all taps along the depth: they are copied once per tap.
So are volumes of integers, channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.gpu.lowering.program_writer import HALVES, ZERO, GpuProgramWriter
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.index_map import ViewMove, dense_strides

__all__ = ["Convolve", "convolve_volumes", "reads_volumes", "unfold_integers"]

Convolve = Callable[[ConvParams, Sequence[Value]], Value]
"""Writes a convolution of images."""
_PACKED = 8
"""Fewest channels of an image whose rows are not packed for filters."""
_LAST = (0, 2, 3, 4, 1)
_DEPTH_FIRST = (0, 2, 1, 3, 4)


def reads_volumes(w: GpuProgramWriter, p: ConvParams) -> bool:
    """Whether a convolution over three axes is one call, which reads the volumes in place.

    Those of few channels whose windows tile the volume are not.
    """
    deep, down, across = map(partial(_axis, p.window), range(3))
    flat = down == across == ConvWindow.unit((1,))
    alone = deep == ConvWindow.unit((1,))
    tiling = p.window.kernel == p.window.strides and p.channels * p.window.kernel[0] < _PACKED
    return not (flat or alone or (tiling and w.narrow in HALVES))


def convolve_volumes(
    w: GpuProgramWriter, p: ConvParams, operands: Sequence[Value], convolve: Convolve
) -> Value:
    """Write a convolution over three axes, and return its result."""
    x, weight, bias, inputs = p.split(operands)
    depth, *sides = p.window.sizes(x.shape[2:])
    full = x.shape[0], p.filters, depth, *sides
    seen = [v.stretched(full) for v in inputs]
    offsets = [bias] if bias else []
    if _axis(p.window, 1) == _axis(p.window, 2) == ConvWindow.unit((1,)):
        flat = [w.flat(v, 1, 1, 1, 2) for v in (x, weight, *seen)]
        window = _joined(_axis(p.window, 0), ConvWindow.unit((1,)))
        own = replace(p, window=window)
        y = convolve(own, [*flat[:2], *offsets, *flat[2:]])
        steps = y.view.strides
        steps = (*steps[:3], combine("mul", steps[3], sides[1]), steps[3])
        return replace(y, view=replace(y.view, dims=full, strides=steps))
    window = _joined(_axis(p.window, 1), _axis(p.window, 2))
    flat = [_images(w, v) for v in seen]
    taps = _unfolded(w, p, x)
    rows = w.again(weight, weight.dtype, _DEPTH_FIRST).transposed(_DEPTH_FIRST).flat(1, 2, 1, 1)
    own = replace(p, window=window, channels=p.channels * p.window.kernel[0])
    y = convolve(own, [taps, rows, *offsets, *flat])
    steps = y.view.strides
    steps = combine("mul", steps[0], depth), steps[1], steps[0], *steps[2:]
    return replace(y, view=replace(y.view, dims=full, strides=steps))


def unfold_integers(
    w: GpuProgramWriter, p: ConvIntegerParams, x: Value, weight: Value, outside: Chain | Value
) -> tuple[ConvIntegerParams, Value, Value]:
    """Return a convolution of images that equals one of volumes, its x and its matrix.

    x is ``[N, D, H, W, C]``, the matrix ``[filters, taps · channels of a group]``; the images are
    ``[N · depths, H, W, channels of all taps along the depth]``.  Images beyond the volume have
    the zero point ``outside``: a scalar, or a chain that computes it.
    """
    count, _, high, wide, _ = x.shape
    taps, each = p.window.kernel[0], p.channels // p.groups
    window = _joined(_axis(p.window, 1), _axis(p.window, 2))
    (depth,) = _axis(p.window, 0).sizes(x.shape[1:2])
    made = w.temp(x.dtype, (count, depth, high, wide, p.groups, taps, each))
    source = x.split(4, each)
    for tap in range(taps):
        target = made.moved(ViewMove("select", (5, tap)))
        _copy_images(w, _axis(p.window, 0), tap, source, target, outside)
    filters = weight.split(1, each).split(1, prod(window.kernel)).transposed((0, 2, 1, 3))
    rows = w.again(filters, filters.dtype, (0, 1, 2, 3)).flat(1, 3)
    own = replace(p, window=window, channels=p.channels * taps)
    return own, made.flat(2, 1, 1, 3), rows


def _axis(window: ConvWindow, axis: int) -> ConvWindow:
    """Return a window along one of its axes."""
    before, after = window.pairs[axis]
    return ConvWindow(
        (window.kernel[axis],), (window.strides[axis],), (window.dilations[axis],), (before, after)
    )


def _joined(first: ConvWindow, second: ConvWindow) -> ConvWindow:
    """Return a window over two axes."""
    pads = first.pads[0], second.pads[0], first.pads[1], second.pads[1]
    return ConvWindow(first.kernel + second.kernel, first.strides + second.strides,
                      first.dilations + second.dilations, pads)  # fmt: skip


def _images(w: GpuProgramWriter, value: Value) -> Value:
    """View volumes as images of all depths, ``[N · D, C, H, W]``; copy them if needed."""
    try:
        return value.transposed(_DEPTH_FIRST).flat(2, 1, 1, 1)
    except ValueError:
        last = w.again(value, value.dtype, _LAST)
        return last.transposed(_DEPTH_FIRST).flat(2, 1, 1, 1)


def _unfolded(w: GpuProgramWriter, p: ConvParams, x: Value) -> Value:
    """Return the images that the taps along the depth read, ``[N · depths, channels, H, W]``.

    Channels are those of a group's first tap, of its second one, and so on.
    """
    if p.window.kernel[0] == 1 and not any(p.window.pairs[0]) and p.window.strides[0] == 1:
        x = x if x.dtype is w.narrow else w.again(x, w.narrow, _LAST)
        return _images(w, x)
    x = w.again(x, w.narrow, _LAST)
    taps, (count, channels, _, high, wide) = p.window.kernel[0], x.shape
    assert isinstance(channels, int)
    (depth,) = _axis(p.window, 0).sizes(x.shape[2:3])
    each = channels // p.groups
    # [taps, N, depths, groups, channels of a group, H, W]
    dims = taps, count, depth, p.groups, each, high, wide
    made = w.temp(w.narrow, dims, (1, 2, 5, 6, 3, 0, 4))
    source = x.transposed(_DEPTH_FIRST).split(2, each)
    for tap in range(taps):
        _copy_images(w, _axis(p.window, 0), tap, source, made.moved(ViewMove("select", (0, tap))))
    images, channels = combine("mul", count, depth), channels * taps
    shape = images, channels, high, wide
    steps = dense_strides((images, high, wide, channels))
    return Value(View(made.view.buffer, shape, (steps[0], 1, *steps[1:3])), made.dtype)


def _copy_images(
    w: GpuProgramWriter, window: ConvWindow, tap: int, source: Value, target: Value,
    outside: Chain | Value = ZERO,
) -> None:  # fmt: skip
    """Copy the images that a tap reads, of each item; those beyond the volume are ``outside``."""
    (stride,), (before, _) = window.strides, window.pads
    at = tap * window.dilations[0] - before  # the image that the tap reads at depth 0
    count, depths = source.shape[1], target.shape[1]
    start: Extent = combine("min", max(-(at // stride), 0), depths)
    last = combine("add", combine("floordiv", combine("sub", count, 1 + at), stride), 1)
    end = combine("max", combine("min", last, depths), start)
    for begin, size in ((0, start), (end, combine("sub", depths, end))):
        if size != 0:
            part = target.part(1, begin, size)
            if isinstance(outside, Value):
                w.copy(outside.stretched(part.shape), part)
            else:
                w.chain(outside, [], [part])
    size = combine("sub", end, start)
    if size == 0:
        return
    first = combine("add", combine("mul", start, stride), at)
    steps = list(source.view.strides)
    offset = combine("add", source.view.offset, combine("mul", steps[1], first))
    steps[1] = combine("mul", steps[1], stride)
    dims = source.shape[0], size, *source.shape[2:]
    read = View(source.view.buffer, dims, tuple(steps), offset)
    w.copy(Value(read, source.dtype), target.part(1, start, size))
