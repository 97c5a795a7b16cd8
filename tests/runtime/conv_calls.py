"""Dense and depthwise convolutions as programs, and what NumPy makes of them in fp64."""

from __future__ import annotations

from typing import Any

import numpy as np
from runtime.blocked import (
    NO_HALO,
    Feeds,
    Halo,
    Pair,
    blocked,
    blocks,
    by_block,
    convolve,
    epilogue,
    label,
    last,
    padded,
)
from runtime.cases import random
from runtime.support import Case

from tracea_graph.ops.program import Buffer, View
from tracea_graph.ops.winograd import transform


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
    **more: Any,
) -> Case:
    """A dense convolution; by Winograd's algorithm for ``m`` of 2 or 4."""
    x, w = random(batch, channels, *size), random(outputs, channels // groups, *kernel, seed=1)
    b = random(outputs, seed=2)
    feeds = Feeds()
    boxed = blocked(x, pad)
    box = feeds.dense(boxed, batched=True)
    weights = transform(w, m) if m else by_block(w)
    views = [box, feeds.dense(weights), feeds.dense(padded(b)) if bias else None]
    whole = np.pad(x, ((0, 0), (0, 0), (pad[0], pad[2]), (pad[1], pad[3])))
    y = convolve(whole, w, stride, dilation, groups) + (b[:, None, None] if bias else 0)
    ends = (last(outputs), last(channels))
    ints = (m, *ends) if m else (*stride, *dilation, groups, *ends)
    kind = f"winograd{m}" if m else "conv"
    name = label(kind, channels, outputs, size, kernel, stride, dilation, pad, groups, batch, more)
    return epilogue(name, "winograd" if m else "conv", feeds, views, ints, y, **more)


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
    **more: Any,
) -> Case:
    """A convolution of a plain value, which may lie with its channels last."""
    x, w = random(batch, channels, *size), random(outputs, channels, *kernel, seed=1)
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
    ints = (*stride, *dilation, *pad, last(outputs))
    words = (channels, outputs, size, kernel, stride, dilation, pad, batch, nhwc, more)
    name = label("stem", *words)
    return epilogue(name, "conv_stem", feeds, list(views), ints, y, **more)


def depthwise(
    channels: int,
    size: Pair,
    kernel: Pair,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    pad: Halo = NO_HALO,
    batch: int = 1,
    **more: Any,
) -> Case:
    x, w = random(batch, channels, *size), random(channels, 1, *kernel, seed=1)
    b = random(channels, seed=2)
    feeds = Feeds()
    box = feeds.dense(blocked(x, pad), batched=True)
    weights = blocked(w.transpose(1, 0, 2, 3))[0]
    views = [box, feeds.dense(weights), feeds.dense(padded(b))]
    whole = np.pad(x, ((0, 0), (0, 0), (pad[0], pad[2]), (pad[1], pad[3])))
    y = convolve(whole, w, stride, dilation, channels) + b[:, None, None]
    name = label("depthwise", channels, size, kernel, stride, dilation, pad, batch, more)
    ints = (*stride, *dilation, last(channels))
    return epilogue(name, "depthwise", feeds, list(views), ints, y, **more)
