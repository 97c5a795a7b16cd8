"""Dense and depthwise convolutions as programs, and what NumPy makes of them in fp64."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import numpy as np

from tests.runtime.blocked import (
    NO_HALO,
    Feeds,
    Halo,
    Pair,
    blocked,
    blocks,
    by_block,
    by_twos,
    convolve,
    epilogue,
    halved,
    in_pairs,
    label,
    last,
    padded,
)
from tests.runtime.cases import Array, random
from tests.runtime.support import Case
from tracea_graph.kernels.cpu.filters import NCHW32C
from tracea_graph.kernels.cpu.schedule import ConvSchedule
from tracea_graph.kernels.cpu.winograd import transform
from tracea_graph.kernels.program import Buffer, View
from tracea_graph.ops.bf16 import round_bf16 as rounded


def conv(
    channels: int,
    outputs: int,
    size: Pair,
    kernel: Pair = (1, 1),
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    pad: Halo = NO_HALO,
    groups: int = 1,
    batch: int = 1,
    bias: bool = True,
    m: int = 0,
    half: bool = False,
    each: bool = False,
    either: bool = False,
    schedules: tuple[ConvSchedule, ...] = (),
    broad: str = "",
    **more: Any,
) -> Case:
    """A dense convolution; by Winograd's algorithm for ``m`` of 2 or 4; ``half``: in bf16;
    ``each`` image with filters of its own; ``either``: directly where images are small;
    ``broad``: what of x, y and add lies in blocks of 32."""
    x, w = random(batch, channels, *size), random(outputs, channels // groups, *kernel, seed=1)
    own = [random(*w.shape, seed=3 + i) for i in range(batch)] if each else [w]
    b = random(outputs, seed=2)
    feeds = Feeds()
    boxed = blocked(x, pad)
    weights = transform(w, m) if m else np.concatenate([by_block(f) for f in own])
    if half:
        boxed, weights, x, w = halved(boxed), in_pairs(weights), rounded(x), rounded(w)
    if "x" in broad:
        boxed, weights = by_twos(boxed), NCHW32C.pack(w.astype(np.float32))[0]
    box = feeds.dense(boxed, batched=True)
    views = [box, feeds.dense(weights), feeds.dense(padded(b)) if bias else None]
    if either:
        views.insert(0, feeds.dense(in_pairs(by_block(w)) if half else by_block(w)))
    whole = np.pad(x, ((0, 0), (0, 0), (pad[0], pad[2]), (pad[1], pad[3])))
    if m and half and not either:
        y = transformed(whole, random(outputs, channels, 3, 3, seed=1))
    else:
        parts = np.split(whole, len(own))
        y = np.concatenate(
            [
                convolve(part, w if half else f, stride, dilation, groups)
                for part, f in zip(parts, own, strict=True)
            ]
        )
    y = y + (b[:, None, None] if bias else 0)
    attributes: dict[str, Any] = {"oc_tail": last(outputs), "ic_tail": last(channels)}
    if m:
        attributes["tile"] = m
    else:
        attributes |= {"strides": stride, "dilations": dilation, "groups": groups, "zeros": pad}
    kind = f"winograd{m}" if m else "conv_each" if each else "conv"
    op = "winograd" if m else "conv"
    if either:
        kind, op = f"either{m}", "conv_dispatch"
    name = label(
        kind, channels, outputs, size, kernel, stride, dilation, pad, groups, batch, broad, more
    )
    case = epilogue(name, op, feeds, views, attributes, y, half=half, broad=broad, **more)
    return driven(case, schedules) if schedules else case


def driven(case: Case, schedules: tuple[ConvSchedule, ...]) -> Case:
    """The case with its last call cut as the schedules say."""
    *calls, last_call = case.program.calls
    program = replace(case.program, calls=(*calls, replace(last_call, schedules=schedules)))
    first = "_".join(map(str, astuple(schedules[0])[1:]))
    return replace(case, name=f"{case.name}_cut{len(schedules)}_{first}", program=program)


def transformed(x: Array, w: Array) -> Array:
    """F(2 x 2, 3 x 3) in fp64, what is multiplied rounded to bf16."""
    before = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    after = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
    points = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    u = rounded(np.einsum("ua,oiab,vb->oiuv", points, w.astype(np.float64), points))
    h, width = x.shape[2] - 2, x.shape[3] - 2
    even = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (0, h % 2), (0, width % 2)))
    d = np.lib.stride_tricks.sliding_window_view(even, (4, 4), (2, 3))[:, :, ::2, ::2]
    v = rounded(np.einsum("ua,nixyab,vb->nixyuv", before, d, before))
    y = np.einsum("ku,nixyuv,oiuv,lv->noxkyl", after, v, u, after, optimize=True)
    n, o, tall, _, wide, _ = y.shape
    return y.reshape(n, o, 2 * tall, 2 * wide)[:, :, :h, :width]


def stem(
    channels: int,
    outputs: int,
    size: Pair,
    kernel: Pair,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    pad: Halo = NO_HALO,
    batch: int = 1,
    nhwc: bool = False,
    half: bool = False,
    spoilt: bool = False,
    **more: Any,
) -> Case:
    """A convolution of a plain value, which may lie with its channels last; one pixel of
    ``spoilt`` images is no number."""
    x, w = random(batch, channels, *size), random(outputs, channels, *kernel, seed=1)
    if spoilt:
        x[:, :, size[0] // 2, size[1] // 2] = np.nan
    b = random(outputs, seed=2)
    feeds = Feeds()
    if nhwc:
        h, width = size
        index = feeds.add(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), batched=True)
        strides = (channels * h * width, 1, channels * width, channels)
        box = View(Buffer("input", index), ("n", channels, h, width), strides)
    else:
        box = feeds.dense(x, batched=True)
    weights = np.zeros((blocks(outputs) * 16, *w.shape[1:]), np.float32)
    weights[:outputs] = w
    weights = weights.reshape(-1, 16, *w.shape[1:]).transpose(0, 2, 3, 4, 1)
    views = [box, feeds.dense(np.ascontiguousarray(weights)), feeds.dense(padded(b))]
    whole = np.pad(x, ((0, 0), (0, 0), (pad[0], pad[2]), (pad[1], pad[3])))
    y = convolve(whole, w, stride, dilation) + b[:, None, None]
    attributes = {
        "strides": stride, "dilations": dilation, "pads": pad, "oc_tail": last(outputs)
    }  # fmt: skip
    words = (channels, outputs, size, kernel, stride, dilation, pad, batch, nhwc, spoilt, more)
    name = label("stem", *words)
    return epilogue(name, "conv_first_layer", feeds, list(views), attributes, y, half=half, **more)


def depthwise(
    channels: int,
    size: Pair,
    kernel: Pair,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    pad: Halo = NO_HALO,
    batch: int = 1,
    half: bool = False,
    stored: int = 0,
    finer: bool = False,
    spoilt: bool = False,
    **more: Any,
) -> Case:
    """One filter per channel; it pads lines itself, but for ``stored`` columns on either side.

    In bf16 its filters are numbers in bf16 too, or ``finer`` ones, which kernels may round.  One
    pixel of ``spoilt`` images is no number.
    """
    x, w = random(batch, channels, *size), random(channels, 1, *kernel, seed=1)
    if spoilt:
        x[:, :, size[0] // 2, size[1] // 2] = np.nan
    b = random(channels, seed=2)
    feeds = Feeds()
    top, left, bottom, right = pad
    kept = (min(left, stored), min(right, stored))
    boxed = blocked(x, (top, kept[0], bottom, kept[1]))
    if half:
        boxed, x = halved(boxed), rounded(x)
        w = w if finer else rounded(w)
    box = feeds.dense(boxed, batched=True)
    weights = blocked(w.transpose(1, 0, 2, 3))[0]
    views = [box, feeds.dense(weights), feeds.dense(padded(b))]
    whole = np.pad(x, ((0, 0), (0, 0), (pad[0], pad[2]), (pad[1], pad[3])))
    y = convolve(whole, w, stride, dilation, channels) + b[:, None, None]
    kind = "finer" * finer + "spoilt" * spoilt
    words = (channels, size, kernel, stride, dilation, pad, batch, stored, kind, more)
    name = label("depthwise", *words)
    attributes: dict[str, Any] = {
        "strides": stride, "dilations": dilation, "tail": last(channels),
        "columns": (left - kept[0], right - kept[1]),
    }  # fmt: skip
    attributes |= {"rounded_filters": True} if half else {}
    return epilogue(name, "depthwise", feeds, list(views), attributes, y, half=half, **more)
