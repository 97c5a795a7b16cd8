"""Blocked values and the programs of one call that convolution tests are made of.

Inputs carry NaN in the lanes past their channels: no kernel may let them spread.  Expected
results carry NaN where anything is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from tests.runtime.cases import Array, random, wide
from tests.runtime.support import Case, dense, single, spec
from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.program import Buffer, View
from tracea_graph.ops.bf16 import round_bf16
from tracea_graph.ops.chain import Chain, Step

Pair = tuple[int, int]
Halo = tuple[int, int, int, int]
NO_HALO: Halo = (0, 0, 0, 0)
INF = float("inf")

SILU = Chain(("full",), (Step("silu", (0,)), Step("add", (1, 0.5))), (2,))
RESIDUAL = Chain(("full", "full"), (Step("add", (0, 1)), Step("gelu", (2,))), (3,))
SCALED = Chain(
    ("full", "row", "scalar", "full"),
    (Step("mul", (0, 1)), Step("add", (4, 2)), Step("sub", (5, 3))),
    (6,),
)
GATED = Chain(("full", "col", "row"), (Step("mul", (0, 1)), Step("max", (3, 2))), (4,))
PER_CHANNEL = Chain(("full", "col", "full"), (Step("mul", (0, 1)), Step("add", (3, 2))), (4,))
ALONG = Chain(("full", "row"), (Step("add", (0, 1)),), (2,))
EPILOGUES = (SILU, RESIDUAL, SCALED, GATED)
TWICE = Chain(("full", "full"), (Step("add", (0, 1)),), (2,))
CHAINS = (*EPILOGUES, PER_CHANNEL, ALONG, TWICE)


def label(*words: Any) -> str:
    """A case's name: its parameters, chains by their operands."""

    def text(word: Any) -> str:
        match word:
            case Chain():
                return f"{word.steps[0].op}-{'.'.join(word.operands)}"
            case dict():
                return "_".join(f"{key}={text(value)}" for key, value in word.items())
            case tuple() | list():
                return "x".join(map(text, word))
        return str(word)

    return "_".join(filter(None, map(text, words)))


def blocks(channels: int) -> int:
    return -(-channels // 16)


def last(channels: int) -> int:
    return channels - 16 * (blocks(channels) - 1)


def blocked(x: Array, halo: Halo = NO_HALO, fill: float = np.nan) -> Array:
    """``[N,C,H,W]`` with its halo as ``[N,Cb,H,W,16]``; ``fill`` in the lanes past C."""
    n, c, h, w = x.shape
    top, left, bottom, right = halo
    out = np.zeros((n, blocks(c) * 16, top + h + bottom, left + w + right), x.dtype)
    out[:, :c, top : top + h, left : left + w] = x
    out[:, c:] = fill
    return np.ascontiguousarray(
        out.reshape(n, blocks(c), 16, *out.shape[2:]).transpose(0, 1, 3, 4, 2)
    )


def by_twos(stored: Array) -> Array:
    """``[N,Cb,H,W,16]`` as broad blocks ``[N,Cb/2,H,W,32]``."""
    n, count, *space, lanes = stored.shape
    split = stored.reshape(n, count // 2, 2, *space, lanes).transpose(0, 1, 3, 4, 2, 5)
    return np.ascontiguousarray(split).reshape(n, count // 2, *space, 2 * lanes)


def by_block(w: Array) -> Array:
    """``[O,I,kh,kw]`` as ``[Ob,Ib,kh,kw,16 (in),16 (out)]``."""
    o, i, kh, kw = w.shape
    padded = np.zeros((blocks(o) * 16, blocks(i) * 16, kh, kw), np.float32)
    padded[:o, :i] = w
    shaped = padded.reshape(blocks(o), 16, blocks(i), 16, kh, kw)
    return np.ascontiguousarray(shaped.transpose(0, 2, 4, 5, 3, 1))


def padded(b: Array) -> Array:
    return np.pad(b, (0, -len(b) % 16))


def convolve(
    x: Array, w: Array, stride: Sequence[int], dilation: Sequence[int], groups: int = 1
) -> Array:
    """A valid convolution over any number of spatial axes, in fp64."""
    spatial = tuple(range(2, x.ndim))
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), reach, axis=spatial)
    cut = tuple(slice(None, None, s) for s in stride)
    taps = tuple(slice(None, None, d) for d in dilation)
    windows = windows[(slice(None), slice(None), *cut, *taps)]
    n, o = len(x), len(w)
    windows = windows.reshape(n, groups, -1, *windows.shape[2:])
    weights = w.astype(np.float64).reshape(groups, o // groups, *w.shape[1:])
    places, kernel = "xyz"[: len(spatial)], "uvt"[: len(spatial)]
    y = np.einsum(f"ngi{places}{kernel},goi{kernel}->ngo{places}", windows, weights, optimize=True)
    return y.reshape(n, o, *y.shape[3:])


def inside(
    kind: str, index: int, n: Extent, block_count: int, size: Pair, halo: Halo, lanes: int = 16
) -> View:
    """The interior of a blocked buffer."""
    (h, w), (top, left, bottom, right) = size, halo
    row = lanes * (left + w + right)
    plane = row * (top + h + bottom)
    strides = (block_count * plane, plane, row, lanes, 1)
    start = top * row + left * lanes
    return View(Buffer(kind, index), (n, block_count, h, w, lanes), strides, start)


def halved(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16)


def in_pairs(w: Array) -> Array:
    """Filters ``[…, 16 (in), 16 (out)]`` in bf16, two input channels together."""
    split = w.reshape(*w.shape[:-2], 8, 2, 16)
    return halved(np.ascontiguousarray(split.swapaxes(-1, -2)))


class Feeds:
    """Inputs of a program as they are added, each with its spec."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.specs: list[TensorSpec] = []

    def add(self, array: Array, batched: bool = False) -> int:
        self.arrays.append(array)
        shape = ("n", *array.shape[1:]) if batched else array.shape
        half = array.dtype == ml_dtypes.bfloat16
        self.specs.append(spec(*shape, dtype=DType.BF16 if half else DType.F32))
        return len(self.arrays) - 1

    def dense(self, array: Array, batched: bool = False) -> View:
        index = self.add(array, batched)
        return dense("input", index, *(self.specs[index].shape or ()))


def epilogue_inputs(
    feeds: Feeds, chain: Chain, y: Array, halo: Halo
) -> tuple[list[View], list[Array]]:
    """A chain's operands after the first, as views and as they broadcast to ``y``."""
    n, c, h, w = y.shape
    views, values = [], []
    for seed, kind in enumerate(chain.operands[1:]):
        if kind == "full":
            value = random(n, c, h, w, seed=20 + seed)
            index = feeds.add(blocked(value, halo), batched=True)
            views.append(inside("input", index, "n", blocks(c), (h, w), halo))
        elif kind == "row":
            value = random(n, c, 1, 1, seed=20 + seed)
            index = feeds.add(blocked(value).reshape(n, -1), batched=True)
            strides = (blocks(c) * 16, 16, 0, 0, 1)
            views.append(View(Buffer("input", index), ("n", blocks(c), h, w, 16), strides))
        elif kind == "col":
            value = random(n, 1, h, w, seed=20 + seed)
            index = feeds.add(value.reshape(n, h, w), batched=True)
            strides = (h * w, 0, w, 1, 0)
            views.append(View(Buffer("input", index), ("n", blocks(c), h, w, 16), strides))
        else:
            value = random(1, seed=20 + seed)
            index = feeds.add(value)
            views.append(View(Buffer("input", index), ("n", blocks(c), h, w, 16), (0,) * 5))
        values.append(value)
    return views, values


def epilogue(
    name: str,
    op: str,
    feeds: Feeds,
    views: list[View | None],
    attributes: Mapping[str, Any],
    y: Array,
    add: bool = False,
    clamp: Pair | None = None,
    chain: Chain | None = None,
    halo: Halo = NO_HALO,
    half: bool = False,
    stores: DType = DType.F32,
    broad: str = "",
) -> Case:
    """The call that makes ``y`` (its sum and bias) and what follows; ``views`` end with bias.

    ``half``: what is added lies in bf16.  ``stores`` is the result's type.  ``broad``: what of y
    and add lies in blocks of 32.
    """
    n, c, h, w = y.shape
    if add:
        other = random(n, c, h, w, seed=9)
        lies = blocked(other, halo)
        if half:
            lies, other = halved(lies), round_bf16(other)
        twos = "a" in broad
        index = feeds.add(by_twos(lies) if twos else lies, batched=True)
        count, lanes = (c // 32, 32) if twos else (blocks(c), 16)
        views.append(inside("input", index, "n", count, (h, w), halo, lanes))
        y = y + other
    else:
        views.append(None)
    lo, hi = clamp or (-INF, INF)
    y = np.clip(y, lo, hi)
    if chain:
        more, values = epilogue_inputs(feeds, chain, y, halo)
        views += more
        (y,) = chain.reference([y, *wide(*values)])
        chain = replace(chain, stores=(stores,))
    expected = by_twos(blocked(y, halo)) if "y" in broad else blocked(y, halo)
    out: tuple[Extent, ...] = ("n", *expected.shape[1:])
    views.append(dense("output", 0, *out))
    call = CALLS.listed(
        op, views, "bf16" if half else "f32", **attributes, halo=halo, low=float(lo),
        high=float(hi), chain=chain,
    )  # fmt: skip
    program = single(call, feeds.specs, [spec(*out, dtype=stores)], n=(0, 0))
    return Case(name, program, tuple(feeds.arrays), (expected,))
