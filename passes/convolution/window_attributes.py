"""Read the window of a convolution or pool from its attributes."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import Extent
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.ttg import Region

__all__ = ["live_taps", "read_window"]


def read_window(
    region: Region, kernel: Sequence[int], spatial: Sequence[Extent]
) -> ConvWindow | str:
    """Return the window over ``spatial`` axes with ``auto_pad`` resolved, or why there is none."""
    rank = len(kernel)
    ones = (1,) * rank
    strides = _ints(region, "strides", ones)
    dilations = _ints(region, "dilations", ones)
    pads = _ints(region, "pads", (0,) * (2 * rank))
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank:
        return "its strides, dilations or pads do not have one entry per axis of its kernel"
    auto = attribute(region, "auto_pad", "NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else str(auto)
    if auto == "VALID":
        pads = (0,) * (2 * rank)
    try:
        window = ConvWindow(tuple(kernel), strides, dilations, tuple(pads))
    except ValueError as error:
        return str(error)
    return _same(window, spatial, auto) if auto.startswith("SAME") else window


def _same(window: ConvWindow, spatial: Sequence[Extent], auto: str) -> ConvWindow | str:
    """Return the window with padding for ⌈size/stride⌉ positions; an odd element goes to the end
    (SAME_UPPER) or the start."""
    before, after = [], []
    for size, span, stride in zip(spatial, window.spans, window.strides, strict=True):
        if stride == 1:
            total = span - 1
        elif isinstance(size, int):
            total = max((-(-size // stride) - 1) * stride + span - size, 0)
        else:
            return "its auto_pad depends on a size that is not known"
        small = total // 2
        before.append(small if auto == "SAME_UPPER" else total - small)
        after.append(total - before[-1])
    return ConvWindow(window.kernel, window.strides, window.dilations, (*before, *after))


def live_taps(
    window: ConvWindow, spatial: Sequence[Extent]
) -> tuple[ConvWindow, tuple[slice, ...]]:
    """Drop outer taps that read only padding; return the window and the remaining taps.

    A 3x3 kernel over one pixel, or with a dilation as large as the image, has such taps.
    """
    taps, kernel, before, after = [], [], [], []
    axes = zip(spatial, window.kernel, window.strides, window.dilations, window.pairs, strict=True)
    for size, count, stride, dilation, pads in axes:
        first, last = 0, count - 1
        if isinstance(size, int):
            places = range((size + sum(pads) - dilation * last - 1) // stride + 1)
            alive = [
                tap for tap in range(count)
                if any(0 <= o * stride + tap * dilation - pads[0] < size for o in places)
            ]  # fmt: skip
            if alive:  # padding stays at zero or above
                first = min(alive[0], pads[0] // dilation)
                last = max(alive[-1], last - pads[1] // dilation)
        taps.append(slice(first, last + 1))
        kernel.append(last + 1 - first)
        before.append(pads[0] - first * dilation)
        after.append(pads[1] - (count - 1 - last) * dilation)
    dilations = [1 if k == 1 else d for k, d in zip(kernel, window.dilations, strict=True)]
    left = ConvWindow(tuple(kernel), window.strides, tuple(dilations), (*before, *after))
    return left, tuple(taps)


def _ints(region: Region, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = attribute(region, name, default)
    return tuple(int(v) for v in value) if isinstance(value, tuple) and value else default
