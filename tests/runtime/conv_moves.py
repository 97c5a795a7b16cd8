"""Pooling, changes of layout and plain convolutions as programs, and what NumPy makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.runtime.blocked import (
    INF,
    NO_HALO,
    TWICE,
    Feeds,
    Halo,
    Pair,
    blocked,
    blocks,
    by_twos,
    convolve,
    halved,
    inside,
    label,
    last,
)
from tests.runtime.cases import Array, random, wide
from tests.runtime.support import Case, dense, single, spec
from tracea_graph.ir import DType, Extent, combine
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.program import Buffer, Program, View
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.resize import ResizeParams


def pool(
    kind: int,
    channels: int,
    size: Pair,
    kernel: Pair,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    pad: Halo = NO_HALO,
    halo: Halo = NO_HALO,
    batch: int = 1,
    half: bool = False,
    broad: bool = False,
) -> Case:
    """A pooling of a value stored with a halo that must not be read, perhaps in bf16, in blocks of
    16 or 32."""
    x = random(batch, channels, *size)
    if half:
        x[0, 0, -1, -1] = np.nan
        x = halved(x).astype(np.float32)
    stored = blocked(x, (1, 2, 3, 1))
    stored[:, :, 0] = stored[:, :, :, :2] = stored[:, :, -3:] = stored[:, :, :, -1:] = 99.0
    feeds = Feeds()
    lanes = 32 if broad else 16
    stored = by_twos(stored) if broad else stored
    index = feeds.add(halved(stored) if half else stored, batched=True)
    box = inside("input", index, "n", stored.shape[1], size, (1, 2, 3, 1), lanes)
    empty = -INF if kind == 0 else 0.0
    around = ((0, 0), (0, 0), (pad[0], pad[2]), (pad[1], pad[3]))
    values = np.pad(x.astype(np.float64), around, constant_values=empty)
    counts = np.pad(np.ones_like(x), around, constant_values=float(kind == 1))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]

    def windows(a: Array) -> Array:
        found = np.lib.stride_tricks.sliding_window_view(a, reach, axis=(2, 3))
        cut = found[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
        return cut.reshape(*cut.shape[:4], -1)

    seen = windows(values)
    y = seen.max(-1) if kind == 0 else seen.sum(-1) / windows(counts).sum(-1)
    expected = by_twos(blocked(y, halo)) if broad else blocked(y, halo)
    out: tuple[Extent, ...] = ("n", *expected.shape[1:])
    call = CALLS.make(
        "pool", "bf16" if half else "f32", x=box, y=dense("output", 0, *out),
        kind=("max", "average", "average_inside")[kind], kernel=kernel, strides=stride,
        dilations=dilation, pads=pad, halo=halo,
    )  # fmt: skip
    stores = DType.BF16 if half else DType.F32
    program = single(call, feeds.specs, [spec(*out, dtype=stores)], n=(0, 0))
    name = label(
        "pool", kind, channels, size, kernel, stride, dilation, pad, halo, batch, half, broad
    )
    return Case(name, program, tuple(feeds.arrays), (expected,))


def global_pool(kind: int, channels: int, size: Pair, batch: int = 2) -> Case:
    x = random(batch, channels, *size)
    feeds = Feeds()
    index = feeds.add(blocked(x, (1, 1, 0, 0)), batched=True)
    box = inside("input", index, "n", blocks(channels), size, (1, 1, 0, 0))
    y = x.astype(np.float64).mean((2, 3)) if kind else x.max((2, 3)).astype(np.float64)
    call = CALLS.make(
        "global_pool", x=box, y=dense("output", 0, "n", channels), tail=last(channels),
        kind=("max", "average")[kind],
    )  # fmt: skip
    program = single(call, feeds.specs, [spec("n", channels)], n=(0, 0))
    return Case(label("global_pool", kind, channels, size), program, tuple(feeds.arrays), (y,))


def resize(
    how: str,
    channels: int,
    size: Pair,
    sizes: Pair = (0, 0),
    scales: tuple[float, float] = (0.0, 0.0),
    halo: Halo = NO_HALO,
    batch: int = 2,
) -> Case:
    """Linear resizing of a value stored with a halo of ones, to sizes or by scales."""
    x = random(batch, channels, *size)
    stored = blocked(x, (1, 2, 1, 1))
    stored[:, :, 0] = stored[:, :, :, :2] = stored[:, :, -1] = stored[:, :, :, -1] = 99.0
    feeds = Feeds()
    index = feeds.add(stored, batched=True)
    box = inside("input", index, "n", blocks(channels), size, (1, 2, 1, 1))
    params = ResizeParams(how, sizes=sizes) if any(sizes) else ResizeParams(how, scales=scales)
    (y,) = params.reference([x.astype(np.float64)])
    expected = blocked(y, halo)
    out: tuple[Extent, ...] = ("n", *expected.shape[1:])
    call = CALLS.make(
        "resize", x=box, y=dense("output", 0, *out), coordinates=how, halo=halo, scales=scales
    )
    program = single(call, feeds.specs, [spec(*out)], n=(0, 0))
    name = label("resize", how, channels, size, sizes, scales, halo)
    return Case(name, program, tuple(feeds.arrays), (expected,))


def channel_shuffle(
    parts: Sequence[int], groups: int, bounds: Pair, size: Pair, halo: Halo = NO_HALO
) -> Case:
    """Channels of parts that are stored with halos, shuffled, a range of them kept."""
    feeds, arrays, views = Feeds(), [], []
    for i, channels in enumerate(parts):
        x = random(2, channels, *size) + i
        index = feeds.add(blocked(x, (1, 2, 0, i)), batched=True)
        views.append(inside("input", index, "n", blocks(channels), size, (1, 2, 0, i)))
        arrays.append(x.astype(np.float64))
    whole = np.concatenate(arrays, 1)
    dealt = whole.reshape(2, groups, -1, *size).swapaxes(1, 2).reshape(whole.shape)
    expected = blocked(dealt[:, bounds[0] : bounds[1]], halo)
    out: tuple[Extent, ...] = ("n", *expected.shape[1:])
    call = CALLS.make(
        "channel_shuffle", parts=views, y=dense("output", 0, *out), groups=groups, first=bounds[0],
        channels=bounds[1] - bounds[0], halo=halo, part_channels=tuple(parts),
    )  # fmt: skip
    program = single(call, feeds.specs, [spec(*out)], n=(0, 0))
    name = label("channel_shuffle", tuple(parts), groups, bounds, size, halo)
    return Case(name, program, tuple(feeds.arrays), (expected,))


def turn(
    channels: int, size: Pair, nhwc: bool, back: bool, halo: Halo = NO_HALO, batch: int = 2
) -> Case:
    """From a plain value to a blocked one, or back."""
    x = random(batch, channels, *size)
    order = (0, 2, 3, 1) if nhwc else (0, 1, 2, 3)
    plain = np.ascontiguousarray(x.transpose(order))
    feeds = Feeds()
    if back:
        feeds.add(blocked(x, halo), batched=True)
        view = inside("input", 0, "n", blocks(channels), size, halo)
    else:
        feeds.add(plain, batched=True)
    n, (h, w) = "n", size
    per: Extent = combine("mul", channels * h, w)
    strides = (per, 1, channels * w, channels) if nhwc else (per, h * w, w, 1)
    own = View(Buffer("output" if back else "input", 0), (n, channels, h, w), strides)
    expected = plain if back else blocked(x, halo)
    out = spec(n, *expected.shape[1:])
    if back:
        call = CALLS.make("reorder_to_nchw", x=view, y=own, tail=last(channels))
    else:
        blocked_view = dense("output", 0, *(out.shape or ()))
        call = CALLS.make(
            "reorder_to_nchw16c", x=own, y=blocked_view, tail=last(channels), halo=halo
        )
    program = single(call, feeds.specs, [out], n=(0, 0))
    name = label("reorder_to_nchw" if back else "reorder_to_nchw16c", channels, size, nhwc, halo)
    return Case(name, program, tuple(feeds.arrays), (expected,))


def border(channels: int, size: Pair, halo: Halo) -> Case:
    """An elementwise chain writes the interior, `halo` the border around it."""
    x = random(2, channels, *size)
    feeds = Feeds()
    feeds.add(blocked(x), batched=True)
    expected = blocked(x + x.astype(np.float64), halo)
    out: tuple[Extent, ...] = ("n", *expected.shape[1:])
    source = inside("input", 0, "n", blocks(channels), size, NO_HALO)
    target = inside("output", 0, "n", blocks(channels), size, halo)
    calls = (
        CALLS.listed("elementwise", (source, source, target), chain=TWICE),
        CALLS.make("zero_pad", y=dense("output", 0, *out), halo=halo),
    )
    program = Program(tuple(feeds.specs), (spec(*out),), {"n": (0, 0)}, (), calls)
    return Case(label("border", channels, size, halo), program, tuple(feeds.arrays), (expected,))


def plain(
    channels: int,
    outputs: int,
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pad: Sequence[int],
    groups: int = 1,
    bias: bool = True,
    chain: Chain | None = None,
    batch: int = 2,
) -> Case:
    """A convolution of plain values over any number of axes; the same pads at both ends."""
    x = random(batch, channels, *size)
    w, b = random(outputs, channels // groups, *kernel, seed=1), random(outputs, seed=2)
    feeds = Feeds()
    views = [feeds.dense(x, True), feeds.dense(w), feeds.dense(b) if bias else None]
    whole = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in pad)))
    y = convolve(whole, w, stride, dilation, groups)
    ones = (1,) * len(size)
    y = y + (b.reshape(-1, *ones) if bias else 0)
    out: tuple[Extent, ...] = ("n", *y.shape[1:])
    if chain:
        values = [random(*y.shape, seed=5), random(outputs, seed=6), random(y.shape[-1], seed=7)]
        kinds = {"full": 0, "col": 1, "row": 2}
        chosen = [values[kinds[kind]] for kind in chain.operands[1:]]
        for kind, value in zip(chain.operands[1:], chosen, strict=True):
            if kind == "full":
                views.append(feeds.dense(value, True))
                continue
            index = feeds.add(value)
            zeros = (0,) * len(ones)
            strides = (0, 1, *zeros) if kind == "col" else (0, 0, *zeros[1:], 1)
            views.append(View(Buffer("input", index), out, strides))
        shaped = [
            v.reshape(-1, *ones) if kind == "col" else v
            for kind, v in zip(chain.operands[1:], chosen, strict=True)
        ]
        (y,) = chain.reference([y, *wide(*shaped)])
    views.append(dense("output", 0, *out))
    call = CALLS.listed(
        "conv_plain", views, groups=groups, strides=tuple(stride), dilations=tuple(dilation),
        starts=tuple(pad), chain=chain,
    )  # fmt: skip
    program = single(call, feeds.specs, [spec(*out)], n=(0, 0))
    words = (channels, outputs, size, kernel, stride, dilation, pad, groups, bias)
    name = label("plain", *words, chain)
    return Case(name, program, tuple(feeds.arrays), (np.asarray(y),))
