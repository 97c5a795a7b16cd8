"""``FusedAttention``: scaled dot-product attention on ``[batch, sequence, heads · size]`` tensors.

    y = softmax(scale · q kᵀ + mask) v, head by head

q, k and v may be column ranges of one tensor (a merged projection).  Source: Vaswani et al. 2017;
computed in key blocks as in Dao et al. 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.body import Body, BodyBuilder

__all__ = ["MASKS", "AttentionParams"]

MASKS = ("none", "add", "bool")
"""No mask; an additive one; a boolean one, true where the key is kept."""

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class AttentionParams:
    """Operands: q, k, v (each ``[B, S, width]``), mask (broadcast to ``[B, H, S, T]``).

    ``offsets`` are the first columns of q, k and v in their tensors and ``widths`` those tensors'
    last dimensions.  ``fill`` is the score a false key of a boolean mask gets.  ``zero_rows``: a
    query with no key left (all scores −inf) gives zeros instead of NaN.
    """

    heads: int
    head: int
    head_v: int
    scale: float
    mask: str = "none"
    offsets: tuple[int, int, int] = (0, 0, 0)
    widths: tuple[int, int, int] = (0, 0, 0)
    fill: float = float("-inf")
    zero_rows: bool = False

    def __post_init__(self) -> None:
        if min(self.heads, self.head, self.head_v) < 1 or self.mask not in MASKS:
            raise ValueError(f"no attention with {self.heads} heads and mask {self.mask!r}")
        parts = zip(self.offsets, self.sizes, self.widths, strict=True)
        if any(first < 0 or first + size > width for first, size, width in parts):
            raise ValueError(f"columns of q, k or v lie outside tensors of widths {self.widths}")

    @property
    def operands(self) -> int:
        return 3 + (self.mask != "none")

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Columns q, k and v take."""
        return self.heads * self.head, self.heads * self.head, self.heads * self.head_v

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """``[B, S, heads · head_v]``."""
        shape = specs[0].shape
        if shape is None or len(shape) != 3:
            raise ValueError("q is not a rank-3 tensor")
        return (TensorSpec(DType.F32, (shape[0], shape[1], self.heads * self.head_v)),)

    def reference(self, arrays: Sequence[Any]) -> list[Floats]:
        q, k, v = (self._heads(a, i) for i, a in enumerate(arrays[:3]))
        scores = self.scale * (q @ np.swapaxes(k, -1, -2))
        if self.mask == "add":
            scores = scores + arrays[3]
        elif self.mask == "bool":
            scores = np.where(arrays[3], scores, self.fill)
        with np.errstate(invalid="ignore"):  # −inf − −inf, where no key is left
            weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
            shares = weights / weights.sum(-1, keepdims=True)
        y = (np.nan_to_num(shares) if self.zero_rows else shares) @ v
        return [np.moveaxis(y, 1, 2).reshape(y.shape[0], y.shape[2], self.heads * self.head_v)]

    def _heads(self, x: Floats, which: int) -> Floats:
        first, size = self.offsets[which], self.sizes[which]
        part = x[..., first : first + size]
        return np.moveaxis(part.reshape(*x.shape[:2], self.heads, size // self.heads), 2, 1)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        q, k, v = (self._spell_heads(b, b.inputs[i], i) for i in range(3))
        scores = b("Mul", b("MatMul", q, k), b.number(self.scale))
        if self.mask == "add":
            scores = b("Add", scores, b.inputs[3])
        elif self.mask == "bool":
            scores = b("Where", b.inputs[3], scores, b.number(self.fill))
        shares = b("Softmax", scores, axis=3)
        if self.zero_rows:
            shares = b("Where", b("IsNaN", shares), b.number(0.0), shares)
        y = b("Transpose", b("MatMul", shares, v), perm=(0, 2, 1, 3))
        return b.done(b("Reshape", y, b.ints(0, 0, self.heads * self.head_v)))

    def _spell_heads(self, b: BodyBuilder, x: str, which: int) -> str:
        first, size = self.offsets[which], self.sizes[which]
        if size != self.widths[which]:
            x = b.slice_last(x, first, first + size, 2)
        x = b("Reshape", x, b.ints(0, 0, self.heads, size // self.heads))
        return b("Transpose", x, perm=(0, 2, 3, 1) if which == 1 else (0, 2, 1, 3))
