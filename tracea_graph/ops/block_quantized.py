"""Matrices whose weights are small integers with a scale for each block of k.

``W[k, n] = (q[k, n] - z[k // block, n]) * s[k // block, n]`` with codes ``q`` of 2, 4 or 8 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tracea_graph.ir import DType
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.weight_layouts import Floats, Numbers, WeightLayout

__all__ = [
    "BITS", "LARGEST", "MAX_BLOCK", "SMALLEST", "ZEROS", "BlockQuantized", "block_ranges",
    "quantize_blocks", "round_blocks",
]  # fmt: skip

BITS = (2, 4, 8)
"""Sizes of a code."""
MAX_BLOCK = 2**15
"""Longest block whose sum of products of two bytes surely fits 32 bits."""
ZEROS = ("middle", "integer", "float")
"""Zero points: half the range of a code for all blocks; a code per block; a float32 per block."""
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Fractions of a block's range that are tried as the range of its codes."""
_MOD = 10
"""Opset from which ``Mod`` exists."""
LARGEST = 127.0
"""Largest magnitude of an integer that a number of x is rounded to."""
SMALLEST = 1e-36
"""Blocks of x whose largest magnitude is below this count as zero."""


def round_blocks(x: Numbers, block: int) -> tuple[Numbers, Numbers]:
    """Round to int8 in blocks along the last axis, each scaled by its largest magnitude.

    Returns integers ``[..., blocks, block]``, where zeros fill up the last block, and scales
    ``[..., blocks, 1]``.  Both have the type of ``x``; the arithmetic is float32.
    """
    fill = -x.shape[-1] % block
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, fill)])
    blocks = padded.reshape(*x.shape[:-1], padded.shape[-1] // block, block).astype(np.float32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    some = largest > SMALLEST
    times = np.where(some, np.float32(LARGEST) / np.where(some, largest, 1), np.float32(0))
    scale = np.where(some, largest / np.float32(LARGEST), np.float32(0))
    return np.rint(blocks * times).astype(x.dtype), scale.astype(x.dtype)


def block_ranges(block: Numbers, bits: int) -> tuple[Floats, Floats]:
    """Return the scale and zero point ``[..., N]`` of each column of ``block [..., steps, N]``.

    Codes have ``bits`` bits.  A column's range, extended to include 0, is narrowed to the fraction
    whose rounding has the least squared error.  A column with a number that is not finite has
    scale NaN.
    """
    most = 2**bits - 1
    numbers = np.asarray(block, np.float32)
    finite = np.asarray(np.isfinite(numbers).all(-2))
    safe = np.where(finite[..., None, :], numbers, 0)
    low, high = safe.min(-2, initial=0.0), safe.max(-2, initial=0.0)
    best: tuple[Floats, Floats] | None = None
    least: Floats = np.full(low.shape, np.inf, np.float32)
    for share in _SHARES:
        scale = ((high - low) * np.float32(share / most)).astype(np.float32)
        step = np.where(scale > 0, scale, 1)
        zero = np.clip(np.rint(-low * np.float32(share) / step), 0, most).astype(np.float32)
        codes = np.clip(np.rint(safe / step[..., None, :]) + zero[..., None, :], 0, most)
        lost = (codes - zero[..., None, :]) * scale[..., None, :] - safe
        error = np.square(lost).sum(-2)
        better = error < least
        old = best or (scale, zero)
        best = np.where(better, scale, old[0]), np.where(better, zero, old[1])
        least = np.where(better, error, least)
    assert best is not None
    return np.where(finite, best[0], np.float32(np.nan)), best[1]


def quantize_blocks(matrix: Numbers, bits: int, block: int) -> tuple[Numbers, Floats, Floats]:
    """Return codes ``[K, N]``, scales and zero points ``[blocks, N]`` of a matrix ``[K, N]``."""
    k, n = matrix.shape
    filled = np.pad(np.asarray(matrix, np.float32), ((0, -k % block), (0, 0)))
    blocks = filled.reshape(-1, block, n)
    scales, zeros = block_ranges(blocks, bits)
    step = np.where(scales > 0, scales, 1)[:, None]
    safe = np.where(np.isfinite(blocks), blocks, 0)
    codes = np.clip(np.rint(safe / step) + zeros[:, None], 0, 2**bits - 1)
    return codes.reshape(-1, n)[:k].astype(np.uint8), scales, zeros


@dataclass(frozen=True)
class BlockQuantized(WeightLayout):
    """A matrix ``[K, N]`` in codes of ``bits`` bits, with scales for blocks of k in each column.

    The first array holds the codes ``[N, blocks, block * bits / 8]``; the first code of a byte is
    in its lowest bits.  The second array holds the scales ``[1 or 2, N, blocks]``.  Zero points
    that are not constant follow the scales along its first axis, as float32 numbers even if they
    are integers.  With ``int8_rows``, x is rounded to int8 block by block (:func:`round_blocks`).
    """

    bits: int
    block: int
    zeros: str = "middle"
    int8_rows: bool = False
    name: ClassVar[str] = "block_quantized"
    operands: ClassVar[int] = 2
    adjacent: ClassVar[bool] = True

    @property
    def share(self) -> str:  # type: ignore[override]
        return "FusedGemm nbits int8" if self.int8_rows else "FusedGemm nbits"

    @property
    def codes_per_byte(self) -> int:
        return 8 // self.bits

    @property
    def middle(self) -> int:
        """Half the range of a code."""
        return 1 << (self.bits - 1)

    def blocks(self, k: int) -> int:
        """Number of blocks of k."""
        return -(-k // self.block)

    def check(self, k: int, n: int) -> None:
        super().check(k, n)
        if self.bits not in BITS or self.zeros not in ZEROS:
            raise ValueError(f"unsupported codes: {self.bits} bits, {self.zeros} zero points")
        if self.block % 16 or not 16 <= self.block <= MAX_BLOCK:
            raise ValueError(f"unsupported block size: {self.block} codes")

    def shape(self, k: int, n: int) -> tuple[int, ...]:
        return n, self.blocks(k), self.block // self.codes_per_byte

    def scales_shape(self, k: int, n: int) -> tuple[int, ...]:
        """Return the shape of the second array, which holds scales and zero points."""
        return 1 if self.zeros == "middle" else 2, n, self.blocks(k)

    def packed(self, rows: Numbers) -> Numbers:
        """Pack codes ``[N, blocks * block]`` into bytes of the shape that :meth:`shape` gives."""
        split = rows.astype(np.uint8).reshape(len(rows), -1, self.block // self.codes_per_byte,
                                              self.codes_per_byte)  # fmt: skip
        made = np.zeros(split.shape[:-1], np.uint8)
        for i in range(self.codes_per_byte):
            made |= split[..., i] << np.uint8(self.bits * i)
        return made

    def unpacked(self, stored: Numbers) -> Numbers:
        """Return the codes ``[N, blocks * block]`` in bytes that :meth:`packed` gives."""
        shifts = self.bits * np.arange(self.codes_per_byte)
        codes: Numbers = (stored[..., None] >> shifts.astype(np.uint8)) & (2**self.bits - 1)
        return codes.reshape(len(stored), -1)

    def parts(self, stored: Sequence[Numbers], k: int, n: int) -> tuple[Numbers, Floats, Floats]:
        """Return codes ``[blocks * block, N]``, scales and zero points ``[blocks, N]``."""
        codes = self.unpacked(stored[0])
        scales = stored[1][0].T
        zeros = np.full_like(scales, self.middle) if self.zeros == "middle" else stored[1][1].T
        return codes.T, scales, zeros

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        codes, scales, zeros = self.parts(stored, k, n)
        wide = [np.repeat(a, self.block, 0) for a in (zeros, scales)]
        made: Floats = ((codes.astype(scales.dtype) - wide[0]) * wide[1])[:k]
        return made

    def product(self, x: Floats, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        if self.int8_rows:
            numbers, scale = round_blocks(x, self.block)
            x = (numbers * scale).reshape(*x.shape[:-1], self.blocks(k) * self.block)[..., :k]
        return super().product(x, stored, k, n)

    def parts_to_onnx(
        self, b: BodyBuilder, stored: Sequence[str], k: int, n: int
    ) -> tuple[str, str, str]:
        """Write :meth:`parts` in ONNX, in float32; return the names of the three values.

        Codes are ``[blocks, block, N]``, scales and zero points ``[blocks, 1, N]``; a zero point
        that is equal for all blocks is a scalar.
        """
        blocks = self.blocks(k)
        codes = self._codes(b, b("Reshape", stored[0], b.ints(n, -1, 1)))
        codes = b("Reshape", b("Transpose", b("Reshape", codes, b.ints(n, -1)), perm=(1, 0)),
                  b.ints(blocks, self.block, n))  # fmt: skip
        both = [b.slice_last(stored[1], i, i + 1, 0) for i in range(2 - (self.zeros == "middle"))]
        rows = [b("Transpose", v, perm=(2, 0, 1)) for v in both]
        return codes, rows[0], rows[1] if rows[1:] else b.number(self.middle)

    def _codes(self, b: BodyBuilder, packed: str) -> str:
        """Write the codes of bytes ``[..., 1]`` along their last axis, in float32."""
        whole = b("Cast", packed, to=DType.I32.onnx)
        if self.bits < 8:
            shifts = np.asarray([1 << self.bits * i for i in range(self.codes_per_byte)], np.int32)
            whole = b("Div", whole, b("Constant", value=shifts))
            base = b("Constant", value=np.asarray(1 << self.bits, np.int32))
            if b.opset >= _MOD:
                whole = b("Mod", whole, base)
            else:
                whole = b("Sub", whole, b("Mul", b("Div", whole, base), base))
        return b("Cast", whole, to=DType.F32.onnx)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        codes, scales, zeros = self.parts_to_onnx(b, stored, k, n)
        wide = b("Reshape", b("Mul", b("Sub", codes, zeros), scales), b.ints(-1, n))
        return b.slice_last(wide, 0, k, 0) if k % self.block else wide

    def product_to_onnx(
        self, b: BodyBuilder, x: str, stored: Sequence[str], k: int, n: int
    ) -> str:
        if self.int8_rows:
            x = self._rounded(b, x, k)
        return super().product_to_onnx(b, x, stored, k, n)

    def _rounded(self, b: BodyBuilder, x: str, k: int) -> str:
        """Write x rounded to int8 by blocks, and scaled again."""
        shape = b("Shape", x)
        rows = b("Reshape", x, b.ints(-1, k))
        rows = b.pad(rows, (0, 0), (0, -k % self.block))
        blocks = b("Reshape", rows, b.ints(-1, self.block))
        largest = b.reduce("ReduceMax", b("Abs", blocks), (1,))
        some = b.at_least(largest, SMALLEST)
        whole = b.round(b("Mul", blocks, b("Div", b.number(LARGEST), some)))
        again = b("Mul", whole, b("Div", largest, b.number(LARGEST)))
        again = b("Reshape", again, b.ints(-1, k + -k % self.block))
        again = b.slice_last(again, 0, k) if k % self.block else again
        empty = {"allowzero": 1} if b.opset >= 14 else {}  # axes may be
        return b("Reshape", again, shape, **empty)
