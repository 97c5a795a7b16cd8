"""``FusedGemm``: a matrix product with everything that follows it row by row.

    acc = x · W + bias            x [..., K], W [K, N]
    s   = epilogue(acc, extra…)   an elementwise chain; acc itself without one
    y   = norm(s)                 layer or RMS over N, if given

Weights are stored as panels ``[⌈N/16⌉][K][16]``, N padded with zeros: the layout the kernels read
in place, the same for every instruction set.  In bf16 panels are ``[⌈N/16⌉][⌈K/2⌉][16][2]``: two
neighbouring steps of k lie together, as dot-product instructions want them.

A matrix of which only some blocks are not zero is stored as those blocks of its panels,
``[blocks][block][16]`` (``block`` steps of k each), and the L1 map of its tile grid: the int32
places of the stored blocks, counted panel by panel and along k in each, in ascending order.  The
map is the last operand.  In bf16 such blocks are ``[blocks][block / 2][16][2]``.

A matrix whose zeros lie anywhere is stored, for products of few rows, as its other numbers and a
map with a bit for each place (``masked``), the last operand too; the numbers may be in bf16.
In 16-bit integers panels lie as in bf16, and the last operand is the scale of each column, those
of whole panels; x is rounded to integers row by row (``ops/int16.py``).

As sums of two numbers in bf16 (``split``) panels are ``[⌈N/16⌉][⌈K/32⌉ · 32][16][2]``, in pairs as
above: the upper halves of 32 steps of k, then their lower halves, K filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.bf16 import round_bf16, split_bf16
from tracea_graph.ops.body import Body, BodyBuilder
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.int16 import column_scales, fit_columns, round_rows
from tracea_graph.ops.masked import spell_masked, unpack_masked
from tracea_graph.ops.norm import Norm

__all__ = [
    "BF16_SINCE", "BLOCKS", "IN_BF16", "IN_BLOCKS", "IN_PAIRS", "MASKED", "PANEL", "ROUNDED",
    "SCATTER_SINCE", "SPLIT", "WITH_MAP", "Floats", "GemmParams", "pack_block_pairs",
    "pack_blocks", "pack_int16", "pack_pairs", "pack_panels", "pack_scales", "pack_split",
    "unpack_block_pairs", "unpack_blocks", "unpack_pairs", "unpack_panels", "unpack_split",
]  # fmt: skip

PANEL = 16
MAX_PARTS = 16
LAYOUTS = (
    "panels", "kn", "nk", "pairs", "mixed", "blocks", "pair_blocks", "int16", "masked",
    "masked_bf16", "split",
)  # fmt: skip
"""Packed panels; plain ``[K, N]``; plain ``[N, K]``; panels in bf16, x rounded to bf16 as well;
panels in bf16, x in float32 (K even); the blocks of panels that are not zero; those in bf16, x
rounded to bf16 as well; panels and x in 16-bit integers; the numbers that are not zero, x in
float32; those in bf16, x in float32; panels and x as sums of two numbers in bf16."""
BLOCKS = (1, 4, 16, 32, 64)
"""Steps of k in a block of sixteen columns."""
SCATTER_SINCE = 11
"""The opset from which ScatterND, which bodies place blocks with, counts from the end."""
IN_BF16 = ("pairs", "mixed")
IN_PAIRS = (*IN_BF16, "int16")
"""Layouts where two steps of k lie together in each panel."""
IN_BLOCKS = ("blocks", "pair_blocks")
MASKED = ("masked", "masked_bf16")
WITH_MAP = (*IN_BLOCKS, *MASKED)
"""Layouts whose map is the last operand."""
ROUNDED = ("pairs", "pair_blocks")
"""Layouts that read x in bf16."""
SPLIT = 32
"""Steps of k whose upper halves lie together in the layout ``split``; their lower ones follow."""
BF16_SINCE = 13
"""The opset from which Cast knows bf16."""

Floats = npt.NDArray[np.floating[Any]]
Numbers = npt.NDArray[Any]


def pack_panels(weight: Numbers) -> Numbers:
    """``[K, N]`` to ``[⌈N/16⌉, K, 16]``, columns padded with zeros."""
    k, n = weight.shape
    panels = -(-n // PANEL)
    out = np.zeros((panels, k, PANEL), weight.dtype)
    whole = n // PANEL
    out[:whole] = weight[:, : whole * PANEL].reshape(k, whole, PANEL).transpose(1, 0, 2)
    if n % PANEL:
        out[-1, :, : n % PANEL] = weight[:, whole * PANEL :]
    return out


def unpack_panels(panels: Floats, n: int) -> Floats:
    """The inverse of :func:`pack_panels`."""
    p, k, width = panels.shape
    return panels.transpose(1, 0, 2).reshape(k, p * width)[:, :n]


def pack_pairs(weight: Floats) -> Floats:
    """``[K, N]`` to bf16 ``[⌈N/16⌉, ⌈K/2⌉, 16, 2]``, padded with zeros."""
    import ml_dtypes

    with np.errstate(over="ignore"):
        return _in_pairs(np.asarray(weight, np.float32)).astype(ml_dtypes.bfloat16)


def pack_int16(weight: Floats) -> tuple[Numbers, Floats]:
    """``[K, N]`` to int16 ``[⌈N/16⌉, ⌈K/2⌉, 16, 2]`` and the scales ``[⌈N/16⌉ · 16]``, both
    padded with zeros."""
    whole, scale = fit_columns(weight)
    return _in_pairs(whole), _padded(scale)


def pack_scales(weight: Floats) -> Floats:
    """The scales of :func:`pack_int16` alone."""
    return _padded(column_scales(weight))


def _padded(scale: Floats) -> Floats:
    return np.pad(scale, (0, -len(scale) % PANEL))


def _in_pairs(weight: Numbers) -> Numbers:
    """``[K, N]`` to ``[⌈N/16⌉, ⌈K/2⌉, 16, 2]``, padded with zeros."""
    panels = pack_panels(np.pad(weight, ((0, weight.shape[0] % 2), (0, 0))))
    p, k, width = panels.shape
    return np.ascontiguousarray(panels.reshape(p, k // 2, 2, width).transpose(0, 1, 3, 2))


def unpack_pairs(pairs: Floats, k: int, n: int) -> Floats:
    """The inverse of :func:`pack_pairs`, in float32."""
    p, half, width, _ = pairs.shape
    panels = np.asarray(pairs, np.float32).transpose(0, 1, 3, 2).reshape(p, 2 * half, width)
    return unpack_panels(panels, n)[:k]


def pack_split(weight: Floats) -> Floats:
    """``[K, N]`` to bf16 ``[⌈N/16⌉, ⌈K/32⌉ · 32, 16, 2]``, upper and lower halves in turn."""
    import ml_dtypes

    fill = ((0, -len(weight) % SPLIT), (0, 0))
    halves = [_in_pairs(np.pad(h, fill)) for h in split_bf16(np.asarray(weight, np.float32))]
    turns = [h.reshape(len(h), -1, SPLIT // 2, PANEL, 2) for h in halves]
    panels = np.stack(turns, 2).reshape(len(turns[0]), -1, PANEL, 2)
    return panels.astype(ml_dtypes.bfloat16)


def unpack_split(panels: Floats, k: int, n: int) -> tuple[Floats, Floats]:
    """The upper and the lower halves of :func:`pack_split`'s matrix, in float32."""
    p, steps, _, _ = panels.shape
    turns = np.asarray(panels, np.float32).reshape(p, -1, 2, SPLIT // 2, PANEL, 2)
    upper, lower = (turns[:, :, i].reshape(p, steps // 2, PANEL, 2) for i in (0, 1))
    return unpack_pairs(upper, k, n), unpack_pairs(lower, k, n)


def pack_blocks(panels: Floats, places: npt.NDArray[np.int32], block: int) -> Floats:
    """The blocks of ``[P, K, 16]`` panels at these places, ``[blocks, block, 16]``."""
    count, k, width = panels.shape
    depth = -(-k // block)
    if k % block:
        panels = np.pad(panels, ((0, 0), (0, depth * block - k), (0, 0)))
    return np.ascontiguousarray(panels.reshape(count * depth, block, width)[places])


def pack_block_pairs(blocks: Floats) -> Floats:
    """Blocks ``[blocks, block, 16]``, an even number of steps each, in bf16 as
    ``[blocks, block / 2, 16, 2]``."""
    import ml_dtypes

    count, block, width = blocks.shape
    pairs = blocks.reshape(count, block // 2, 2, width).transpose(0, 1, 3, 2)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(pairs).astype(ml_dtypes.bfloat16)


def unpack_block_pairs(pairs: Floats) -> Floats:
    """The inverse of :func:`pack_block_pairs`, in float32."""
    count, half, width, _ = pairs.shape
    blocks = np.asarray(pairs, np.float32).transpose(0, 1, 3, 2)
    return blocks.reshape(count, 2 * half, width)


def unpack_blocks(blocks: Floats, places: npt.NDArray[np.integer[Any]], k: int, n: int) -> Floats:
    """The inverse of :func:`pack_blocks` and :func:`pack_panels`: ``[K, N]``."""
    _, block, width = blocks.shape
    panels, depth = -(-n // width), -(-k // block)
    whole = np.zeros((panels * depth, block, width), blocks.dtype)
    whole[places] = blocks
    return unpack_panels(whole.reshape(panels, depth * block, width), n)[:k]


@dataclass(frozen=True)
class GemmParams:
    """Operands: x, W, bias, the epilogue's beyond its first, gamma, beta, and the map or the
    columns' scales (where present).

    Results: y, then s if ``keep_sum`` (a norm whose input others read too); without a norm what
    the epilogue gives, one or two; or, for a product with neither, columns of it: ``parts`` says
    how many each result takes.  ``block`` is the steps of k in a block of the layout ``blocks``.
    """

    k: int
    n: int
    layout: str = "panels"
    bias: bool = False
    epilogue: Chain | None = None
    norm: Norm | None = None
    keep_sum: bool = False
    parts: tuple[int, ...] = ()
    block: int = 0

    def __post_init__(self) -> None:
        if min(self.k, self.n) < 1 or self.layout not in LAYOUTS:
            raise ValueError(f"no product with K={self.k}, N={self.n}, layout {self.layout!r}")
        if self.parts and (sum(self.parts) != self.n or self.epilogue or self.norm):
            raise ValueError("parts are all columns of a product that nothing follows")
        if not len(self.parts) <= MAX_PARTS or any(p < 1 for p in self.parts):
            raise ValueError(f"a product has 1 to {MAX_PARTS} parts, of 1 column or more")
        if (self.block in BLOCKS) != (self.layout in IN_BLOCKS) or (
            self.block % 2 and self.layout == "pair_blocks"
        ):
            raise ValueError(f"layout {self.layout!r} has no blocks of {self.block} steps of k")
        if self.layout == "mixed" and self.k % 2:
            raise ValueError(f"float32 times bf16 panels takes an even K, not {self.k}")
        if self.keep_sum and self.norm is None:
            raise ValueError("the sum before a norm can be kept only if there is a norm")
        if self.epilogue and self.epilogue.operands[:1] != ("full",):
            raise ValueError("an epilogue starts from the full accumulator")
        if self.epilogue and self.norm and self.epilogue.result_types != (DType.F32,):
            raise ValueError("an epilogue before a norm has one result, in float32")

    @property
    def extras(self) -> int:
        """Epilogue operands beyond the accumulator."""
        return len(self.epilogue.operands) - 1 if self.epilogue else 0

    @property
    def operands(self) -> int:
        affine = self.norm.operands if self.norm else 0
        return 2 + self.bias + self.extras + affine + self.has_last

    @property
    def has_last(self) -> bool:
        """True if W takes an operand more: its map, or its columns' scales."""
        return self.layout in WITH_MAP or self.layout == "int16"

    def split(
        self, items: Sequence[Any]
    ) -> tuple[Any, Any, Any | None, Sequence[Any], Sequence[Any]]:
        """Operands by role: x, W, bias or None, extras, (gamma, beta); the map or the scales are
        the last."""
        first = 2 + self.bias
        last = first + self.extras
        affine = items[last : last + (self.norm.operands if self.norm else 0)]
        return items[0], items[1], items[2] if self.bias else None, items[first:last], affine

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """``x``'s shape with N as last dimension, for every result."""
        shape = specs[0].shape
        if shape is None:
            raise ValueError("the rank of x is unknown")
        if self.parts:
            return tuple(TensorSpec(DType.F32, (*shape[:-1], n)) for n in self.parts)
        types: tuple[DType, ...] = (DType.F32,) * (1 + self.keep_sum)
        if self.epilogue and not self.norm:
            types = self.epilogue.result_types
        return tuple(TensorSpec(dtype, (*shape[:-1], self.n)) for dtype in types)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        """NumPy, in the operands' precision; W in this op's layout."""
        x, w, bias, extras, affine = self.split(arrays)
        acc: Floats = self._rounded(x) @ self._plain(w, arrays[-1])
        if self.layout == "split":  # the smallest of the four products is left out
            acc = acc - split_bf16(x)[1] @ unpack_split(w, self.k, self.n)[1]
        if bias is not None:
            acc = acc + bias
        if self.parts:
            return list(np.split(acc, np.cumsum(self.parts)[:-1], axis=-1))
        done = self.epilogue.reference([acc, *extras]) if self.epilogue else [acc]
        if self.norm is None:
            return done
        total = done[0]
        y = self.norm.reference(total, affine)
        return [y, total] if self.keep_sum else [y]

    def _rounded(self, x: Floats) -> Floats:
        if self.layout == "int16":
            whole, scale = round_rows(x)
            exact: Floats = np.multiply(whole, scale[..., None], dtype=x.dtype)
            return exact
        if self.layout == "split":
            upper, lower = split_bf16(x)
            return upper + lower
        return round_bf16(x) if self.layout in ROUNDED else x

    def _plain(self, w: Floats, last: npt.NDArray[Any]) -> Floats:
        if self.layout in MASKED:
            numbers = w if self.layout == "masked" else np.asarray(w, np.float32)
            return unpack_panels(unpack_masked(numbers, last, self.k), self.n)
        if self.layout == "int16":
            plain: Floats = unpack_pairs(w, self.k, self.n) * last[: self.n]
            return plain
        if self.layout == "split":
            upper, lower = unpack_split(w, self.k, self.n)
            return upper + lower
        if self.layout in IN_BLOCKS:
            stored = w if self.layout == "blocks" else unpack_block_pairs(w)
            return unpack_blocks(stored, last, self.k, self.n)
        if self.layout == "panels":
            return unpack_panels(w, self.n)
        if self.layout in IN_BF16:
            return unpack_pairs(w, self.k, self.n)
        return w if self.layout == "kn" else w.T

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        x, w, bias, extras, affine = self.split(b.inputs)
        if self.layout in IN_BLOCKS:
            w = self._spell_blocks(b, w, b.inputs[-1])
        elif self.layout in MASKED:
            if self.layout == "masked_bf16":
                w = b("Cast", w, to=DType.F32.onnx)
            w = spell_masked(b, w, b.inputs[-1], -(-self.n // PANEL), self.k)
        acc = b("MatMul", x, self._spell_weight(b, w))
        if self.layout == "int16":
            scale = b.inputs[-1]
            acc = b("Mul", acc, b.slice_last(scale, 0, self.n, 0) if self.n % PANEL else scale)
        if bias is not None:
            acc = b("Add", acc, bias)
        if self.parts:
            ends = [sum(self.parts[: i + 1]) for i in range(len(self.parts))]
            pairs = zip(ends, self.parts, strict=True)
            return b.done(*(b.slice_last(acc, end - n, end) for end, n in pairs))
        done = self.epilogue.spell(b, (acc, *extras)) if self.epilogue else [acc]
        if self.norm is None:
            return b.done(*done)
        total = done[0]
        y = self.norm.spell(b, total, affine)
        return b.done(*((y, total) if self.keep_sum else (y,)))

    def _spell_weight(self, b: BodyBuilder, w: str) -> str:
        if self.layout == "kn":
            return w
        if self.layout == "nk":
            return b("Transpose", w, perm=(1, 0))
        if self.layout in IN_PAIRS:
            pairs = b("Transpose", b("Cast", w, to=DType.F32.onnx), perm=(1, 3, 0, 2))
            wide = b("Reshape", pairs, b.ints(self.k + self.k % 2, -1))
            if self.k % 2:
                wide = b.slice_last(wide, 0, self.k, 0)
            return b.slice_last(wide, 0, self.n, 1) if self.n % PANEL else wide
        if self.layout == "split":
            turns = b.ints(-(-self.n // PANEL), -1, 2, SPLIT // 2, PANEL, 2)
            halves = b("Reshape", b("Cast", w, to=DType.F32.onnx), turns)
            whole = b.reduce("ReduceSum", halves, (2,))
            steps = b("Transpose", whole, perm=(1, 2, 3, 5, 0, 4))
            wide = b("Reshape", steps, b.ints(self.k + -self.k % SPLIT, -1))
            if self.k % SPLIT:
                wide = b.slice_last(wide, 0, self.k, 0)
            return b.slice_last(wide, 0, self.n, 1) if self.n % PANEL else wide
        wide = b("Reshape", b("Transpose", w, perm=(1, 0, 2)), b.ints(0, -1))
        if self.k % (2 if self.layout in MASKED else max(self.block, 1)):
            wide = b.slice_last(wide, 0, self.k, 0)
        return b.slice_last(wide, 0, self.n, 1) if self.n % PANEL else wide

    def _spell_blocks(self, b: BodyBuilder, blocks: str, places: str) -> str:
        """The panels, K filled up to whole blocks."""
        panels, depth = -(-self.n // PANEL), -(-self.k // self.block)
        zeros = b("ConstantOfShape", b.ints(panels * depth, self.block, PANEL))
        at = b("Reshape", b("Cast", places, to=DType.I64.onnx), b.ints(-1, 1))
        if self.layout == "pair_blocks":
            steps = b("Transpose", b("Cast", blocks, to=DType.F32.onnx), perm=(0, 1, 3, 2))
            blocks = b("Reshape", steps, b.ints(-1, self.block, PANEL))
        whole = b("ScatterND", zeros, at, blocks)
        return b("Reshape", whole, b.ints(panels, depth * self.block, PANEL))
