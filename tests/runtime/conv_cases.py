"""The convolutions and poolings the runtime is tested with."""

from __future__ import annotations

import itertools

from runtime.blocked import (
    ALONG,
    CHAINS,
    EPILOGUES,
    GATED,
    NO_HALO,
    PER_CHANNEL,
    RESIDUAL,
    SCALED,
    SILU,
    Halo,
)
from runtime.conv_calls import conv, depthwise, stem
from runtime.conv_moves import border, plain, pool, pool_all, turn
from runtime.support import Case

<<<<<<< HEAD

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


def inside(kind: str, index: int, n: Extent, block_count: int, size: Pair, halo: Halo) -> View:
    """The interior of a blocked buffer."""
    (h, w), (top, left, bottom, right) = size, halo
    row = 16 * (left + w + right)
    plane = row * (top + h + bottom)
    strides = (block_count * plane, plane, row, 16, 1)
    return View(Buffer(kind, index), (n, block_count, h, w, 16), strides, top * row + left * 16)


class Feeds:
    """Inputs of a program as they are added, each with its spec."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.specs: list[TensorSpec] = []

    def add(self, array: Array, batched: bool = False) -> int:
        self.arrays.append(array)
        shape = ("n", *array.shape[1:]) if batched else array.shape
        self.specs.append(spec(*shape, dtype=DType.F32))
        return len(self.arrays) - 1

    def dense(self, array: Array, batched: bool = False) -> View:
        index = self.add(array, batched)
        return dense("input", index, *(self.specs[index].shape or ()))


def extras(feeds: Feeds, chain: Chain, y: Array, halo: Halo) -> tuple[list[View], list[Array]]:
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
    kernel: str,
    feeds: Feeds,
    views: list[View | None],
    ints: Sequence[int],
    y: Array,
    add: bool = False,
    clamp: Pair | None = None,
    chain: Chain | None = None,
    halo: Halo = NO_HALO,
) -> Case:
    """The call that makes ``y`` (its sum and bias) and what follows; ``views`` end with bias."""
    n, c, h, w = y.shape
    if add:
        other = random(n, c, h, w, seed=9)
        index = feeds.add(blocked(other, halo), batched=True)
        views.append(inside("input", index, "n", blocks(c), (h, w), halo))
        y = y + other
    else:
        views.append(None)
    lo, hi = clamp or (-INF, INF)
    y = np.clip(y, lo, hi)
    if chain:
        more, values = extras(feeds, chain, y, halo)
        views += more
        (y,) = chain.reference([y, *wide(*values)])
    expected = blocked(y, halo)
    out: tuple[Extent, ...] = ("n", *expected.shape[1:])
    views.append(dense("output", 0, *out))
    call = Call(kernel, tuple(views), (*ints, *halo), (float(lo), float(hi)), chain)
    program = single(call, feeds.specs, [spec(*out)], n=(0, 0))
    return Case(name, program, tuple(feeds.arrays), (expected,))


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
) -> Case:
    """A pooling of a value stored with a halo of ones, which must not be read."""
    x = random(batch, channels, *size)
    stored = blocked(x, (1, 2, 3, 1))
    stored[:, :, 0] = stored[:, :, :, :2] = stored[:, :, -3:] = stored[:, :, :, -1:] = 99.0
    feeds = Feeds()
    index = feeds.add(stored, batched=True)
    box = inside("input", index, "n", blocks(channels), size, (1, 2, 3, 1))
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
    expected = blocked(y, halo)
    out: tuple[Extent, ...] = ("n", *expected.shape[1:])
    ints = (kind, *kernel, *stride, *dilation, *pad, *halo)
    call = Call("pool", (box, dense("output", 0, *out)), ints)
    program = single(call, feeds.specs, [spec(*out)], n=(0, 0))
    name = label("pool", kind, channels, size, kernel, stride, dilation, pad, halo, batch)
    return Case(name, program, tuple(feeds.arrays), (expected,))


def pool_all(kind: int, channels: int, size: Pair, batch: int = 2) -> Case:
    x = random(batch, channels, *size)
    feeds = Feeds()
    index = feeds.add(blocked(x, (1, 1, 0, 0)), batched=True)
    box = inside("input", index, "n", blocks(channels), size, (1, 1, 0, 0))
    y = x.astype(np.float64).mean((2, 3)) if kind else x.max((2, 3)).astype(np.float64)
    call = Call("pool_all", (box, dense("output", 0, "n", channels)), (last(channels), kind))
    program = single(call, feeds.specs, [spec("n", channels)], n=(0, 0))
    return Case(label("pool_all", kind, channels, size), program, tuple(feeds.arrays), (y,))


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
        call = Call("unblock", (view, own), (last(channels),))
    else:
        call = Call(
            "block", (own, dense("output", 0, *(out.shape or ()))), (last(channels), *halo)
        )
    program = single(call, feeds.specs, [out], n=(0, 0))
    name = label("unblock" if back else "block", channels, size, nhwc, halo)
    return Case(name, program, tuple(feeds.arrays), (expected,))


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
    ints = (groups, *stride, *dilation, *pad)
    program = single(
        Call("conv_plain", tuple(views), ints, chain=chain), feeds.specs, [spec(*out)], n=(0, 0)
    )
    words = (channels, outputs, size, kernel, stride, dilation, pad, groups, bias)
    name = label("plain", *words, chain)
    return Case(name, program, tuple(feeds.arrays), (np.asarray(y),))
=======
__all__ = [
    "CHAINS", "all_conv_cases", "conv", "depthwise", "plain", "pool", "stem", "turn",
]  # fmt: skip
>>>>>>> convk


def same(kernel: int, dilation: int = 1) -> Halo:
    """Uneven padding that keeps a size at stride 1."""
    whole = (kernel - 1) * dilation
    return (whole // 2, whole - whole // 2, whole - whole // 2, whole // 2)


def dense_cases() -> list[Case]:
    counts = (1, 3, 7, 16, 24, 33)
    sizes = [*range(1, 18), 19, 23, 29, 31]
    cases = [conv(33, 40, (1, w)) for w in sizes]  # every tail of a flat line
    cases += [
        conv(16, 24, (h, w), (3, 3), pad=same(3), halo=(1, 1, 1, 1))
        for h, w in ((1, 1), (2, 3), (3, 2), (5, 6), (7, 7), (4, 7), (6, 4), (9, 8), (3, 29))
    ]
    cases += [
        conv(i, o, (5, 6), (3, 3), pad=same(3)) for i, o in itertools.product(counts, counts)
    ]
    cases += [conv(16, 16, (13, 12), (k, k), pad=same(k)) for k in range(1, 12)]
    cases += [
        conv(24, 33, (11, 17), (k, k), (s, s), (d, d), pad=same(k, d), halo=(0, 1, 2, 3))
        for k, s, d in itertools.product((1, 2, 3, 5), (1, 2, 3), (1, 2, 3))
    ]
    cases += [
        conv(64, 96, (6, 5), (3, 1), (1, 2), (2, 1), (2, 0, 2, 0), groups=2),
        conv(64, 64, (5, 5), (3, 3), pad=same(3), groups=4, batch=3),
        conv(64, 192, (4, 9), groups=4),
        conv(48, 40, (7, 7), (1, 1), (2, 2), bias=False),
        conv(33, 40, (9, 15), batch=2, add=True, clamp=(0, 1)),
        conv(33, 40, (9, 15), (3, 3), pad=same(3), add=True, clamp=(0, 6), halo=(1, 1, 1, 1)),
        conv(33, 40, (7, 7), (3, 3), pad=same(3), add=True, clamp=(0, 6), halo=(1, 1, 1, 1)),
        conv(700, 40, (7, 7), (3, 3), pad=same(3), add=True, halo=(0, 0, 1, 2)),  # sum in parts
        conv(64, 160, (40, 80), batch=2, chain=SILU),  # bands
        conv(64, 80, (56, 50), (3, 3), pad=same(3), chain=RESIDUAL, halo=(1, 1, 1, 1)),
        conv(1, 20, (3, 1000), (1, 7), pad=(0, 3, 0, 3)),
    ]  # fmt: skip
    for chain, halo in itertools.product(EPILOGUES, (NO_HALO, (1, 0, 2, 1))):
        cases.append(conv(24, 33, (5, 9), batch=2, chain=chain, halo=halo))
        cases.append(conv(24, 33, (6, 7), (3, 3), pad=same(3), chain=chain, halo=halo, add=True))
    return cases


def winograd_cases() -> list[Case]:
    sizes = ((1, 1), (2, 5), (4, 4), (7, 7), (13, 9), (17, 16))
    cases = [conv(24, 33, size, (3, 3), pad=same(3), m=m) for m in (2, 4) for size in sizes]
    cases += [
        conv(7, 48, (8, 8), (3, 3), pad=same(3), m=m, batch=2, add=True, clamp=(0, 6),
             chain=SCALED, halo=(1, 1, 1, 1)) for m in (2, 4)
    ]  # fmt: skip
    cases += [conv(32, 32, (60, 60), (3, 3), pad=same(3), m=m, chain=SILU) for m in (2, 4)]
    return cases


def other_cases() -> list[Case]:
    counts = (1, 3, 7, 16, 24, 33)
    cases = [
        depthwise(24, (9, w), (k, k), (s, s), pad=same(k), halo=(1, 1, 0, 0))
        for k, s, w in itertools.product((1, 3, 5, 7), (1, 2, 3), (1, 4, 6, 8, 15, 31))
        if w >= s
    ]
    cases += [depthwise(c, (6, 7), (3, 3), dilation=(2, 3), pad=(2, 3, 2, 3)) for c in counts]
    cases += [depthwise(16, (12, 13), (k, k), pad=same(k)) for k in range(1, 12)]
    cases += [
        depthwise(33, (7, 7), (3, 3), pad=same(3), chain=chain, batch=2, add=True, clamp=(0, 6))
        for chain in EPILOGUES
    ]
    cases += [depthwise(40, (60, 60), (5, 5), (2, 2), pad=same(5), chain=SILU)]
    cases += [
        stem(c, o, (10, 11), (k, k), (s, s), pad=same(k), nhwc=c == 3, halo=(1, 1, 1, 1))
        for c, o, k, s in itertools.product((1, 3), (24, 33), (1, 3, 7), (1, 2, 3))
    ]
    cases += [
        stem(3, 32, (33, 64), (3, 3), (2, 2), pad=(0, 0, 1, 1), batch=2, clamp=(0, 6)),
        stem(7, 16, (5, 3), (5, 5), dilation=(2, 3), pad=(4, 6, 4, 6), add=True, chain=SCALED),
        stem(3, 40, (2, 2), (11, 11), (4, 4), pad=(5, 5, 5, 5), chain=GATED),
        stem(2, 16, (1, 50), (1, 8), (1, 4), pad=(0, 4, 0, 4)),
    ]
    cases += [
        pool(kind, c, (h, w), (k, k), (s, s), pad=pad, halo=(1, 1, 1, 1))
        for kind in (0, 1, 2)
        for c, h, w, k, s, pad in (
            (24, 7, 9, 3, 2, (1, 1, 1, 1)), (16, 1, 1, 1, 1, NO_HALO), (3, 8, 8, 2, 2, NO_HALO),
            (33, 5, 17, 5, 1, (2, 2, 2, 2)), (7, 11, 13, 3, 3, (0, 1, 2, 1)),
        )
    ]  # fmt: skip
    cases += [pool(kind, 16, (9, 9), (2, 3), (1, 2), (3, 2), (1, 2, 1, 2)) for kind in (0, 1, 2)]
    cases += [pool_all(kind, c, (3, 7)) for kind in (0, 1) for c in counts]
    cases += [
        turn(c, size, nhwc, back, halo)
        for c, size, nhwc, back, halo in itertools.product(
            (1, 16, 24, 33), ((1, 1), (3, 17)), (False, True), (False, True),
            (NO_HALO, (1, 2, 3, 1)),
        )
    ]  # fmt: skip
    return [*cases, border(24, (5, 6), (1, 2, 3, 0)), border(16, (1, 1), NO_HALO)]


def plain_cases() -> list[Case]:
    cases = [
        plain(c, o, (n,), (k,), (s,), (d,), (k // 2,), groups)
        for c, o, n, k, s, d, groups in (
            (1, 1, 5, 1, 1, 1, 1), (3, 7, 40, 3, 1, 1, 1), (6, 4, 33, 5, 3, 2, 2),
            (8, 8, 100, 11, 2, 1, 8), (5, 10, 17, 2, 1, 3, 5),
        )
    ]  # fmt: skip
    cases += [
        plain(c, o, (h, w), (k, k), (s, 1), (1, d), (1, k // 2), groups)
        for c, o, h, w, k, s, d, groups in (
            (3, 8, 9, 31, 3, 1, 1, 1), (12, 12, 7, 7, 3, 2, 1, 12), (24, 12, 5, 40, 1, 1, 1, 4),
            (4, 6, 13, 11, 5, 3, 2, 2),
        )
    ]  # fmt: skip
    cases += [plain(4, 6, (5, 6, 7), (3, 2, 3), (1, 2, 2), (1, 1, 2), (1, 0, 2), 2)]
    cases += [plain(3, 9, (6, 20), (3, 3), (1, 1), (1, 1), (1, 1), chain=PER_CHANNEL)]
    cases += [plain(3, 9, (21,), (3,), (1,), (1,), (1,), 3, False, ALONG)]
    return cases


def all_conv_cases() -> list[Case]:
    cases = [*dense_cases(), *winograd_cases(), *other_cases(), *plain_cases()]
    return list({case.name: case for case in cases}.values())
