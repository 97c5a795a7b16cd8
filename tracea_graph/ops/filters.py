"""How the weights of a convolution are stored.

``O`` filters of ``I`` channels each (``I`` = channels / groups), Ob = ⌈O/16⌉, Ib = ⌈I/16⌉:

=========  ========================  ===============================================
layout     stored as                 for
=========  ========================  ===============================================
plain      ``[O, I, kernel…]``       anything: the layout of ONNX
blocked    ``[Ob, Ib, kh, kw, 16, 16]``  (in, out) lanes innermost; groups of whole blocks
pairs      ``[Ob, Ib, kh, kw, 8, 16, 2]``  blocked in bf16: two neighbouring channels together
stem       ``[Ob, I, kh, kw, 16]``   few input channels
depthwise  ``[Ob, kh, kw, 16]``      one channel per filter
panels     ``[Ob, I, 16]``           1x1 over a single position: a matrix product
winograd2  ``[16, Ob, Ib, 16, 16]``  3x3, transformed for 2 x 2 results at a time
winograd4  ``[36, Ob, Ib, 16, 16]``  the same for 4 x 4 results
winograd2_pairs  ``[16, Ob, Ib, 8, 16, 2]``  winograd2 in bf16
int16, winograd2_int16  as these two     in integers; with scales ``[16·Ob]``, ``[16·Ob·16]``
split      ``[Ob, Ib, kh, kw, 16, 16, 2]``  sums of two in bf16: the lower halves of a block in
                                     pairs, then the upper ones
broad      ``[Ob, Ib/2, kh, kw, 16, 16, 2]``  pairs of two blocks, one tap after another
=========  ========================  ===============================================

What is missing to whole blocks is zero.  A kernel over one axis has kh = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType
from tracea_graph.ops.bf16 import split_bf16
from tracea_graph.ops.body import BodyBuilder
from tracea_graph.ops.int16 import fit_columns, run_of
from tracea_graph.ops.winograd import transform

__all__ = [
    "BLOCK", "DIRECT", "IN_INT16", "IN_PAIRS", "LAYOUTS", "WINOGRAD", "blocks", "pack_filters",
    "pack_int16_filters", "spell_filters", "spell_packed", "stored_shape", "unpack_filters",
    "unpack_split_filters",
]  # fmt: skip

BLOCK = 16
"""Channels of a block."""
LAYOUTS = (
    "plain",
    "blocked",
    "stem",
    "depthwise",
    "panels",
    "winograd2",
    "winograd4",
    "pairs",
    "winograd2_pairs",
    "int16",
    "winograd2_int16",
    "split",
    "broad",
)
WINOGRAD = MappingProxyType(
    {"winograd2": 2, "winograd4": 4, "winograd2_pairs": 2, "winograd2_int16": 2}
)
"""Results per tile and axis."""
DIRECT = MappingProxyType(
    {
        "winograd2": "blocked",
        "winograd4": "blocked",
        "winograd2_pairs": "pairs",
        "winograd2_int16": "int16",
    }
)
"""Layouts of transformed filters, and of the same filters as they are."""
IN_PAIRS = MappingProxyType(
    {"pairs": "blocked", "winograd2_pairs": "winograd2", "broad": "blocked"}
)
"""Layouts in bf16, and what each is in float32."""
IN_INT16 = MappingProxyType({"int16": "blocked", "winograd2_int16": "winograd2"})
"""Layouts in 16-bit integers, and what each is in float32."""
_PAIRS_OF = MappingProxyType({"int16": "pairs", "winograd2_int16": "winograd2_pairs"})
_TRANSFORMED = 4.0
"""How many times as large as the largest input a transformed one of winograd2 may be."""

_TOGETHER = (0, 1, 3, 4, 2, 5, 6, 7)
"""``[Ob, Ib/2, 2, kh, kw, 8, 16, 2]``, two blocks of a tap together; ``_APART`` is back."""
_APART = (0, 1, 4, 2, 3, 5, 6, 7)

_BACK = MappingProxyType(
    {
        2: np.array([[1, 0, 0, 0], [0, 1, -1, 0], [0, 0, 0, 1]], np.float32),
        4: np.array([[4, 0, 0, 0, 0, 0], [0, -3, 3, 0, 0, 0], [0, 0, 0, 0, 0, 1]], np.float32),
    }
)
"""``back · transform · back'`` gives the 3 x 3 kernel again."""

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int16]


def blocks(channels: int) -> int:
    return -(-channels // BLOCK)


def stored_shape(layout: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The stored shape of weights whose plain shape is ``[O, I, kernel…]``."""
    layout = _PAIRS_OF.get(layout, layout)
    o, i, *kernel = shape
    kh, kw = (1, *kernel)[-2:]
    planes = (kh + 1) ** 2 if layout == "winograd2" else (kh + 3) ** 2
    stored = {
        "winograd2": (planes, blocks(o), blocks(i), BLOCK, BLOCK),
        "winograd4": (planes, blocks(o), blocks(i), BLOCK, BLOCK),
        "plain": tuple(shape),
        "blocked": (blocks(o), blocks(i), kh, kw, BLOCK, BLOCK),
        "pairs": (blocks(o), blocks(i), kh, kw, BLOCK // 2, BLOCK, 2),
        "split": (blocks(o), blocks(i), kh, kw, BLOCK, BLOCK, 2),
        "broad": (blocks(o), i // (2 * BLOCK), kh, kw, BLOCK, BLOCK, 2),
        "winograd2_pairs": (16, blocks(o), blocks(i), BLOCK // 2, BLOCK, 2),
        "stem": (blocks(o), i, kh, kw, BLOCK),
        "depthwise": (blocks(o), kh, kw, BLOCK),
        "panels": (blocks(o), i, BLOCK),
    }
    return stored[layout]


def pack_filters(weights: Floats, layout: str) -> Floats:
    """``[O, I, kernel…]`` to the layout."""
    if layout == "plain":
        return weights
    if layout == "broad":
        return _two_blocks(pack_filters(weights, "pairs"))
    if layout in IN_PAIRS:
        return _in_pairs(pack_filters(weights, IN_PAIRS[layout]))
    if layout == "split":
        upper, lower = split_bf16(pack_filters(weights, "blocked"))
        return np.concatenate((_in_pairs(lower), _in_pairs(upper)), 4)
    if layout in WINOGRAD:
        return transform(weights, WINOGRAD[layout])
    o, i, *kernel = weights.shape
    kh, kw = (1, *kernel)[-2:]
    plain = weights.reshape(o, i, kh, kw)
    wide = BLOCK * blocks(i) if layout == "blocked" else i
    padded = np.zeros((BLOCK * blocks(o), wide, kh, kw), weights.dtype)
    padded[:o, :i] = plain
    if layout == "blocked":
        split = padded.reshape(blocks(o), BLOCK, blocks(i), BLOCK, kh, kw)
        return np.ascontiguousarray(split.transpose(0, 2, 4, 5, 3, 1))
    split = padded.reshape(blocks(o), BLOCK, wide, kh, kw).transpose(0, 2, 3, 4, 1)
    return np.ascontiguousarray(split).reshape(stored_shape(layout, weights.shape))


def pack_int16_filters(weights: Floats, layout: str) -> tuple[Ints, Floats]:
    """``[O, I, kernel…]`` in a layout of :data:`IN_INT16`, and the scales of its filters.

    In planes there is one for each plane; it makes up for the scale of what is transformed.
    """
    whole = pack_filters(weights, IN_INT16[layout])  # […, Ib, kh, kw, 16, 16], last out
    if layout == "int16":
        whole = whole[None]
    taps = prod(whole.shape[3:-2]) if layout == "int16" else 1
    numbers, scales = np.empty(whole.shape, np.int16), []
    for plane, made in zip(whole, numbers, strict=True):
        for filters, place in zip(plane, made, strict=True):
            fitted, scale = fit_columns(filters.reshape(-1, BLOCK), run_of(taps))
            place[...] = fitted.reshape(filters.shape)
            scales.append(scale)
    scale = np.concatenate(scales) * np.float32(1 if layout == "int16" else _TRANSFORMED)
    split = numbers.reshape(*numbers.shape[:-2], BLOCK // 2, 2, BLOCK).swapaxes(-1, -2)
    return np.ascontiguousarray(split).reshape(stored_shape(layout, weights.shape)), scale


def unpack_filters(
    stored: Floats, layout: str, shape: Sequence[int], scale: Floats | None = None
) -> Floats:
    """The inverse of :func:`pack_filters`; ``shape`` is the plain one, ``scale`` for integers."""
    if scale is not None:
        times = 1 if layout == "int16" else _TRANSFORMED
        each = (scale / np.float32(times)).reshape(_over_filters(stored.shape))
        stored, layout = stored * each, _PAIRS_OF[layout]
    if layout == "plain":
        return stored
    o, i, *kernel = shape
    kh, kw = (1, *kernel)[-2:]
    if layout == "split":
        upper, lower = unpack_split_filters(stored, shape)
        return upper + lower
    if layout == "broad":
        halves = stored.reshape(*stored.shape[:4], 2, BLOCK // 2, BLOCK, 2)
        apart = halves.transpose(_APART).reshape(stored_shape("pairs", shape))
        return unpack_filters(apart, "pairs", shape)
    if layout in IN_PAIRS:
        wide = stored if stored.dtype == np.float64 else np.asarray(stored, np.float32)
        layout = IN_PAIRS[layout]
        stored = wide.swapaxes(-1, -2).reshape(stored_shape(layout, shape))
    if layout in WINOGRAD:
        return _from_planes(stored, WINOGRAD[layout])[:o, :i]
    if layout == "blocked":
        split = stored.transpose(0, 5, 1, 4, 2, 3)
        wide = split.reshape(stored.shape[0] * BLOCK, stored.shape[1] * BLOCK, kh, kw)
    else:
        split = stored.reshape(stored.shape[0], i, kh, kw, BLOCK).transpose(0, 4, 1, 2, 3)
        wide = split.reshape(stored.shape[0] * BLOCK, i, kh, kw)
    return wide[:o, :i].reshape(shape)


def unpack_split_filters(stored: Floats, shape: Sequence[int]) -> tuple[Floats, Floats]:
    """Of filters in the layout ``split`` the upper and the lower halves, ``[O, I, kernel…]``."""
    lower, upper = (unpack_filters(h, "pairs", shape) for h in np.split(stored, 2, 4))
    return upper, lower


def _in_pairs(stored: Floats) -> Floats:
    """Filters ``[…, 16 (in), 16 (out)]`` in bf16, two input channels together."""
    import ml_dtypes

    split = np.asarray(stored, np.float32).reshape(*stored.shape[:-2], BLOCK // 2, 2, BLOCK)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(split.swapaxes(-1, -2)).astype(ml_dtypes.bfloat16)


def _two_blocks(stored: Floats) -> Floats:
    """Filters in pairs, the pairs of two input blocks together."""
    o, i, kh, kw, *lanes = stored.shape
    together = stored.reshape(o, i // 2, 2, kh, kw, *lanes).transpose(_TOGETHER)
    return np.ascontiguousarray(together).reshape(o, i // 2, kh, kw, BLOCK, BLOCK, 2)


def _from_planes(stored: Floats, m: int) -> Floats:
    """``[(m+2)², Ob, Ib, 16, 16]`` to ``[16·Ob, 16·Ib, 3, 3]``."""
    _, ob, ib, *_ = stored.shape
    split = stored.reshape(m + 2, m + 2, ob, ib, BLOCK, BLOCK).transpose(2, 5, 3, 4, 0, 1)
    planes = split.reshape(ob * BLOCK, ib * BLOCK, m + 2, m + 2)
    kernels: Floats = _BACK[m] @ planes @ _BACK[m].T
    return kernels


def _spell_planes(b: BodyBuilder, w: str, m: int, channels: int) -> str:
    turned = b("Transpose", w, perm=(1, 4, 2, 3, 0))
    planes = b("Reshape", turned, b.ints(-1, BLOCK * blocks(channels), m + 2, m + 2))
    back = b("Constant", value=_BACK[m])
    there = b("Constant", value=np.ascontiguousarray(_BACK[m].T))
    return b("MatMul", b("MatMul", back, planes), there)


def _over_filters(stored: Sequence[int]) -> tuple[int, ...]:
    """The shape of one number a filter over ``[Ob, …, 16, 2]`` or ``[planes, Ob, …, 16, 2]``."""
    planes = (stored[0],) if len(stored) == 6 else ()
    blocked = stored[len(planes)]
    return (*planes, blocked, *(1,) * (len(stored) - 3 - len(planes)), BLOCK, 1)


def spell_filters(
    b: BodyBuilder, w: str, layout: str, shape: Sequence[int], scale: str | None = None
) -> str:
    """Write the nodes that unpack stored weights; the name of the plain ones."""
    if scale is not None:
        wide = b("Reshape", scale, b.ints(*_over_filters(stored_shape(layout, shape))))
        if layout != "int16":
            times = b("Constant", value=np.array(1 / _TRANSFORMED, np.float32))
            wide = b("Mul", wide, times)
        w, layout = b("Mul", b("Cast", w, to=DType.F32.onnx), wide), _PAIRS_OF[layout]
    if layout == "plain":
        return w
    if layout == "split":
        wide = b("Cast", w, to=DType.F32.onnx)  # bf16 cannot be sliced
        halves = [b.slice_last(wide, i, i + BLOCK // 2, 4) for i in (0, BLOCK // 2)]
        return b("Add", *(spell_filters(b, half, "pairs", shape) for half in halves))
    o, i, *kernel = shape
    if layout == "broad":
        *taps, _, _, _ = stored_shape(layout, shape)
        lanes = b.ints(*taps, 2, BLOCK // 2, BLOCK, 2)
        apart = b("Transpose", b("Reshape", b("Cast", w, to=DType.F32.onnx), lanes), perm=_APART)
        w, layout = b("Reshape", apart, b.ints(*stored_shape("pairs", shape))), "pairs"
    if layout in IN_PAIRS:
        rank = len(stored_shape(layout, shape))
        turn = (*range(rank - 2), rank - 1, rank - 2)
        split, layout = (
            b("Transpose", b("Cast", w, to=DType.F32.onnx), perm=turn),
            IN_PAIRS[layout],
        )
        w = b("Reshape", split, b.ints(*stored_shape(layout, shape)))
    if layout in WINOGRAD or layout == "blocked":
        if layout == "blocked":
            turned = b("Transpose", w, perm=(0, 5, 1, 4, 2, 3))
            plain = b("Reshape", turned, b.ints(-1, BLOCK * blocks(i), *kernel))
        else:
            plain = _spell_planes(b, w, WINOGRAD[layout], i)
        if i % BLOCK:
            plain = b.slice_last(plain, 0, i, 1)
    else:
        rank = len(stored_shape(layout, shape))
        turned = b("Transpose", w, perm=(0, rank - 1, *range(1, rank - 1)))
        plain = b("Reshape", turned, b.ints(-1, i, *kernel))
    return b.slice_last(plain, 0, o, 0) if o % BLOCK else plain


def spell_packed(b: BodyBuilder, w: str, layout: str, shape: Sequence[int]) -> str:
    """Write the nodes that pack plain weights; no layout of :data:`WINOGRAD`, nor plain or
    pairs."""
    o, i, *kernel = shape
    kh, kw = (1, *kernel)[-2:]
    wide = BLOCK * blocks(i) if layout == "blocked" else i
    split = b("Reshape", w, b.ints(o, i, kh, kw))
    padded = b.pad(split, (0,) * 4, (BLOCK * blocks(o) - o, wide - i, 0, 0))
    if layout == "blocked":
        lanes = b("Reshape", padded, b.ints(blocks(o), BLOCK, blocks(i), BLOCK, kh, kw))
        return b("Transpose", lanes, perm=(0, 2, 4, 5, 3, 1))
    lanes = b("Reshape", padded, b.ints(blocks(o), BLOCK, wide, kh, kw))
    turned = b("Transpose", lanes, perm=(0, 2, 3, 4, 1))
    return b("Reshape", turned, b.ints(*stored_shape(layout, shape)))
