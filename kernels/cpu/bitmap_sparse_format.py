"""Bitmap format of sparse matrices: the nonzero elements and one bit per position.

The nonzero elements of each panel of 16 columns are stored in order of k, panel after panel, in
one array ``[numbers]``.  The map ``[⌈N/16⌉][1 + ⌈K/2⌉]`` (int32) holds for each panel the index of
its first element, then one word for every two steps of k: bit c of the lower half is set if the
first step stores column c; the upper half is for the second step.  At density d a position takes
1/8 + 4·d bytes instead of 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType
from tracea_graph.ops.function_body import BodyBuilder

__all__ = ["bitmap_to_onnx", "bitmap_words", "pack_bitmap", "round_bitmap", "unpack_bitmap"]

Floats = npt.NDArray[np.floating[Any]]
Words = npt.NDArray[np.int32]
_COLUMNS, _STEPS = 16, 2
"""Bits per step of k, and steps of k per word."""


def bitmap_words(k: int) -> int:
    """Number of int32 words per panel in the bitmap of a matrix with ``k`` rows."""
    return 1 + -(-k // _STEPS)


def pack_bitmap(panels: Floats) -> tuple[Floats, Words]:
    """Return the nonzero elements of panels ``[P, K, 16]``, and their bitmap ``[P, 1 + ⌈K/2⌉]``.

    The bitmap is int32: the first word of a panel is the position of its first nonzero element;
    the others have one bit per element.
    """
    kept = panels != 0
    count, k, _ = panels.shape
    totals = np.cumsum(kept.reshape(count, -1).sum(1))
    bits = np.zeros((count, (bitmap_words(k) - 1) * _STEPS, _COLUMNS), np.bool_)
    bits[:, :k] = kept
    packed = np.packbits(bits.reshape(count, -1), axis=1, bitorder="little")
    found = np.zeros((count, bitmap_words(k)), np.int32)
    found[1:, 0] = totals[:-1]
    found[:, 1:] = packed.view("<i4")
    return panels[kept], found


def unpack_bitmap(stored: Floats, words: Words, k: int) -> Floats:
    """The inverse of :func:`pack_bitmap`: panels ``[P, k, 16]``."""
    bits = np.ascontiguousarray(words[:, 1:]).view(np.uint8)
    kept = np.unpackbits(bits, axis=1, bitorder="little").reshape(len(words), -1, _COLUMNS)
    panels = np.zeros(kept.shape, stored.dtype)
    panels[kept.astype(np.bool_)] = stored
    return panels[:, :k]


def round_bitmap(stored: Floats) -> Floats:
    """Round stored elements to bf16."""
    import ml_dtypes

    with np.errstate(over="ignore"):
        return np.asarray(stored, np.float32).astype(ml_dtypes.bfloat16)


def bitmap_to_onnx(b: BodyBuilder, stored: str, words: str, panels: int, k: int) -> str:
    """Emit the nodes that unpack panels ``[P, K, 16]``, float32, K padded to whole words."""
    width = _COLUMNS * _STEPS
    wide = b("Cast", b.slice_last(words, 1, bitmap_words(k), 1), to=DType.I64.onnx)
    unsigned = b("Mod", wide, b.ints(1 << width))
    each = b("Reshape", unsigned, b.ints(panels, -1, 1))
    bits = b("Mod", b("Div", each, b.ints(*(1 << i for i in range(width)))), b.ints(2))
    shape = b.ints(panels, (bitmap_words(k) - 1) * _STEPS, _COLUMNS)
    kept = b("Transpose", b("NonZero", b("Reshape", bits, shape)), perm=(1, 0))
    return b("ScatterND", b("ConstantOfShape", shape), kept, stored)
