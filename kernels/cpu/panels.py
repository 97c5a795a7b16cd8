"""Layouts of packed matrices that the CPU kernels read in place.

Panels are ``[⌈N/16⌉][K][16]`` for every instruction set, N padded with zeros.  In bf16 they are
``[⌈N/16⌉][⌈K/2⌉][16][2]``: pairs of k are interleaved for dot-product instructions (VNNI).

A block-sparse matrix is stored as the nonzero blocks of its panels, ``[blocks][block][16]``
(``block`` steps of k each), and an int32 map, the last operand: the positions of the stored blocks
in ascending order, counted panel by panel and along k in each panel.  In bf16 such blocks are
``[blocks][block / 2][16][2]``.

A matrix with unstructured zeros is stored, for products of few rows, as its nonzero elements, in
float32 or bf16, and a map of one bit per position (``bitmap``), the last operand.

In 16-bit integers panels have the bf16 layout, and the last operand holds one scale per column,
padded to whole panels; x is rounded to integers row by row (``ops/int16.py``).

8-bit integers (``int8``) lie in fours of k, ``[⌈N/16⌉][⌈K/4⌉ + 1][16][4]``; the last row of a
panel holds, instead of weights, the int32 sums of its columns (weights minus zero points), which
correct for the zero point of x.  If columns have zero points, these follow in one more row.

In ``bf16x2`` panels are ``[⌈N/16⌉][⌈K/32⌉ · 32][16][2]``: for every 32 steps of k the pairs of the
high terms, then those of the low terms, K padded with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.bitmap_sparse_format import bitmap_to_onnx, unpack_bitmap
from tracea_graph.ops.bf16 import round_bf16, split_bf16
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.int16 import column_scales, round_columns, round_rows
from tracea_graph.ops.weight_layouts import BLOCKS, Floats, Numbers, WeightLayout

__all__ = [
    "BF16X2",
    "BF16_SINCE",
    "BITMAP",
    "BITMAP_BF16",
    "FOUR",
    "INT8",
    "INT8_ZEROS",
    "INT16",
    "PANEL",
    "PANELS",
    "SCATTER_SINCE",
    "SPLIT_STEPS",
    "VNNI2",
    "WEIGHT_ONLY_BF16",
    "BitmapPanels",
    "BlockSparseBf16Panels",
    "BlockSparsePanels",
    "Int8Panels",
    "Panels",
    "Vnni2Panels",
    "pack_bf16x2",
    "pack_block_sparse",
    "pack_block_sparse_vnni2",
    "pack_int8",
    "pack_int16",
    "pack_panels",
    "pack_scales",
    "pack_vnni2",
    "unpack_bf16x2",
    "unpack_block_sparse",
    "unpack_block_sparse_vnni2",
    "unpack_int8",
    "unpack_panels",
    "unpack_vnni2",
]  # fmt: skip

PANEL = 16
SCATTER_SINCE = 11
"""First opset that has ScatterND, with which function bodies place blocks."""
SPLIT_STEPS = 32
"""Steps of k whose high terms are stored together in bf16x2, followed by their low terms."""
FOUR = 4
"""Steps of k that one lane of 8-bit integers holds."""
BF16_SINCE = 13
"""First opset whose Cast takes bf16."""


def pack_panels(weight: Numbers) -> Numbers:
    """Pack ``[K, N]`` into ``[⌈N/16⌉, K, 16]``, columns padded with zeros."""
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


def pack_vnni2(weight: Floats) -> Floats:
    """Pack ``[K, N]`` into bf16 ``[⌈N/16⌉, ⌈K/2⌉, 16, 2]``, padded with zeros."""
    import ml_dtypes

    with np.errstate(over="ignore"):
        return _in_pairs(np.asarray(weight, np.float32)).astype(ml_dtypes.bfloat16)


def pack_int16(weight: Floats) -> tuple[Numbers, Floats]:
    """Round ``[K, N]`` to int16 ``[⌈N/16⌉, ⌈K/2⌉, 16, 2]``, with column scales ``[⌈N/16⌉ · 16]``.

    Both arrays are padded with zeros.
    """
    whole, scale = round_columns(weight)
    return _in_pairs(whole), _padded(scale)


def pack_scales(weight: Floats) -> Floats:
    """The scales of :func:`pack_int16` alone."""
    return _padded(column_scales(weight))


def _padded(scale: Floats) -> Floats:
    return np.pad(scale, (0, -len(scale) % PANEL))


def _in_pairs(weight: Numbers) -> Numbers:
    """Pack ``[K, N]`` into ``[⌈N/16⌉, ⌈K/2⌉, 16, 2]``, padded with zeros, of any element type."""
    panels = pack_panels(np.pad(weight, ((0, weight.shape[0] % 2), (0, 0))))
    p, k, width = panels.shape
    return np.ascontiguousarray(panels.reshape(p, k // 2, 2, width).transpose(0, 1, 3, 2))


def unpack_vnni2(pairs: Floats, k: int, n: int) -> Floats:
    """The inverse of :func:`pack_vnni2`, in float32."""
    p, half, width, _ = pairs.shape
    panels = np.asarray(pairs, np.float32).transpose(0, 1, 3, 2).reshape(p, 2 * half, width)
    return unpack_panels(panels, n)[:k]


def pack_bf16x2(weight: Floats) -> Floats:
    """Split and pack ``[K, N]`` into bf16 ``[⌈N/16⌉, ⌈K/32⌉ · 32, 16, 2]``.

    The high terms of :data:`SPLIT_STEPS` rows are followed by the low terms of these rows.
    """
    import ml_dtypes

    fill = ((0, -len(weight) % SPLIT_STEPS), (0, 0))
    halves = [_in_pairs(np.pad(h, fill)) for h in split_bf16(np.asarray(weight, np.float32))]
    turns = [h.reshape(len(h), -1, SPLIT_STEPS // 2, PANEL, 2) for h in halves]
    panels = np.stack(turns, 2).reshape(len(turns[0]), -1, PANEL, 2)
    return panels.astype(ml_dtypes.bfloat16)


def pack_int8(weight: Numbers, zeros: Numbers | None = None) -> Numbers:
    """Pack int8 ``[K, N]`` into ``[⌈N/16⌉, ⌈K/4⌉ + 1, 16, 4]``, the last row holding column sums.

    With ``zeros``, the int8 zero points of the columns, there is one more row that holds them.
    """
    k, n = weight.shape
    panels = pack_panels(np.pad(weight, ((0, -k % 4), (0, 0))))
    p, deep, width = panels.shape
    fours = panels.reshape(p, deep // 4, 4, width).transpose(0, 1, 3, 2)
    own = np.zeros(n, np.int64) if zeros is None else np.asarray(zeros, np.int64)
    rows = [weight.sum(0, dtype=np.int64) - k * own, *([] if zeros is None else [own])]
    numbers = (np.pad(r, (0, -n % PANEL)).astype("<i4").reshape(p, 1, width) for r in rows)
    return np.concatenate([fours, *(r[..., None].view(np.int8) for r in numbers)], 1)


def unpack_int8(panels: Numbers, k: int, n: int) -> tuple[Numbers, Numbers | None]:
    """The inverse of :func:`pack_int8`: the matrix and the zero points, None without them."""
    p, rows, width, _ = panels.shape
    deep = -(-k // 4)
    fours = panels[:, :deep].transpose(0, 1, 3, 2).reshape(p, 4 * deep, width)
    own = panels[:, -1, :, 0].reshape(-1)[:n] if rows > deep + 1 else None
    return unpack_panels(fours, n)[:k], own


def unpack_bf16x2(panels: Floats, k: int, n: int) -> tuple[Floats, Floats]:
    """Return the high and the low terms of :func:`pack_bf16x2`, float32 ``[K, N]`` each."""
    p, steps, _, _ = panels.shape
    turns = np.asarray(panels, np.float32).reshape(p, -1, 2, SPLIT_STEPS // 2, PANEL, 2)
    upper, lower = (turns[:, :, i].reshape(p, steps // 2, PANEL, 2) for i in (0, 1))
    return unpack_vnni2(upper, k, n), unpack_vnni2(lower, k, n)


def pack_block_sparse(panels: Floats, places: npt.NDArray[np.int32], block: int) -> Floats:
    """Return the blocks of panels ``[P, K, 16]`` with the indices ``places``.

    The result is ``[blocks, block, 16]``; a panel is cut into blocks of ``block`` rows, the last
    one zero-padded.
    """
    count, k, width = panels.shape
    depth = -(-k // block)
    if k % block:
        panels = np.pad(panels, ((0, 0), (0, depth * block - k), (0, 0)))
    return np.ascontiguousarray(panels.reshape(count * depth, block, width)[places])


def pack_block_sparse_vnni2(blocks: Floats) -> Floats:
    """Pack blocks ``[blocks, block, 16]`` into bf16 ``[blocks, block / 2, 16, 2]``.

    ``block`` must be even.
    """
    import ml_dtypes

    count, block, width = blocks.shape
    pairs = blocks.reshape(count, block // 2, 2, width).transpose(0, 1, 3, 2)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(pairs).astype(ml_dtypes.bfloat16)


def unpack_block_sparse_vnni2(pairs: Floats) -> Floats:
    """The inverse of :func:`pack_block_sparse_vnni2`, in float32."""
    count, half, width, _ = pairs.shape
    blocks = np.asarray(pairs, np.float32).transpose(0, 1, 3, 2)
    return blocks.reshape(count, 2 * half, width)


def unpack_block_sparse(
    blocks: Floats, places: npt.NDArray[np.integer[Any]], k: int, n: int
) -> Floats:
    """The inverse of :func:`pack_block_sparse` and :func:`pack_panels`: ``[K, N]``."""
    _, block, width = blocks.shape
    panels, depth = -(-n // width), -(-k // block)
    whole = np.zeros((panels * depth, block, width), blocks.dtype)
    whole[places] = blocks
    return unpack_panels(whole.reshape(panels, depth * block, width), n)[:k]


def _unpadded(b: BodyBuilder, wide: str, k: int, n: int, filled: int) -> str:
    """Emit the slices from a padded matrix to ``[K, N]``.

    Columns were padded to whole panels, and K to a multiple of ``filled``.
    """
    if k % filled:
        wide = b.slice_last(wide, 0, k, 0)
    return b.slice_last(wide, 0, n, 1) if n % PANEL else wide


def _panels_to_onnx(b: BodyBuilder, panels: str, k: int, n: int, filled: int = 1) -> str:
    """Emit the nodes that unpack panels ``[⌈N/16⌉, K, 16]`` to ``[K, N]``."""
    wide = b("Reshape", b("Transpose", panels, perm=(1, 0, 2)), b.ints(0, -1))
    return _unpadded(b, wide, k, n, filled)


@dataclass(frozen=True)
class Panels(WeightLayout):
    """Float32 panels."""

    name: ClassVar[str] = "panels"

    def shape(self, k: int, n: int) -> tuple[int, ...]:
        return -(-n // PANEL), k, PANEL

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        return unpack_panels(stored[0], n)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        return _panels_to_onnx(b, stored[0], k, n)


@dataclass(frozen=True)
class _Vnni2Panels(WeightLayout):
    """Panels with interleaved pairs of k."""

    def shape(self, k: int, n: int) -> tuple[int, ...]:
        return -(-n // PANEL), -(-k // 2), PANEL, 2

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        return unpack_vnni2(stored[0], k, n)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        pairs = b("Transpose", b("Cast", stored[0], to=DType.F32.onnx), perm=(1, 3, 0, 2))
        return _unpadded(b, b("Reshape", pairs, b.ints(k + k % 2, -1)), k, n, 2)


@dataclass(frozen=True)
class Vnni2Panels(_Vnni2Panels):
    """Panels in bf16; x is rounded to bf16 as well."""

    name: ClassVar[str] = "vnni2"
    rounds: ClassVar[bool] = True
    share: ClassVar[str] = "FusedGemm vnni2"

    def product(self, x: Floats, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        return super().product(round_bf16(x), stored, k, n)


@dataclass(frozen=True)
class WeightOnlyBf16Panels(_Vnni2Panels):
    """Panels in bf16; x stays in float32."""

    name: ClassVar[str] = "weight_only_bf16"

    def check(self, k: int, n: int) -> None:
        super().check(k, n)
        if k % 2:
            raise ValueError(f"bf16 panels need an even K if x is float32, not {k}")


@dataclass(frozen=True)
class Int16Panels(_Vnni2Panels):
    """Panels of int16 and their column scales; x is rounded to int16 too."""

    name: ClassVar[str] = "int16"
    operands: ClassVar[int] = 2
    share: ClassVar[str] = "FusedGemm int16"

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        plain: Floats = unpack_vnni2(stored[0], k, n) * stored[1][:n]
        return plain

    def product(self, x: Floats, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        whole, scale = round_rows(x)
        exact: Floats = np.multiply(whole, scale[..., None], dtype=x.dtype)
        return super().product(exact, stored, k, n)

    def product_to_onnx(
        self, b: BodyBuilder, x: str, stored: Sequence[str], k: int, n: int
    ) -> str:
        acc, scale = super().product_to_onnx(b, x, stored, k, n), stored[1]
        return b("Mul", acc, b.slice_last(scale, 0, n, 0) if n % PANEL else scale)


@dataclass(frozen=True)
class Int8Panels(WeightLayout):
    """Panels of 8-bit integers with sums of columns and, with ``own_zeros``, zero points."""

    own_zeros: bool = False  # type: ignore[misc]
    name: ClassVar[str] = "int8"
    share: ClassVar[str] = "FusedGemm int8"

    def shape(self, k: int, n: int) -> tuple[int, ...]:
        return -(-n // PANEL), -(-k // 4) + 1 + self.own_zeros, PANEL, 4

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Numbers:
        return unpack_int8(stored[0], k, n)[0]

    def integers(
        self, stored: Sequence[Numbers], k: int, n: int
    ) -> tuple[Numbers, Numbers | None]:
        return unpack_int8(stored[0], k, n)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        deep = -(-k // 4)
        fours = b("Transpose", b.slice_last(stored[0], 0, deep, 1), perm=(1, 3, 0, 2))
        return _unpadded(b, b("Reshape", fours, b.ints(4 * deep, -1)), k, n, 4)

    def integers_to_onnx(
        self, b: BodyBuilder, stored: Sequence[str], k: int, n: int
    ) -> tuple[str, str]:
        matrix, own = self.to_onnx(b, stored, k, n), ""
        if self.own_zeros:  # the lowest byte of each
            row = b.slice_last(stored[0], -(-k // 4) + 1, -(-k // 4) + 2, 1)
            own = b("Reshape", b.slice_last(row, 0, 1, 3), b.ints(-1))
            own = b.slice_last(own, 0, n, 0) if n % PANEL else own
        return matrix, own


@dataclass(frozen=True)
class Bf16x2Panels(WeightLayout):
    """Panels whose numbers, and those of x, are sums of two bf16 terms."""

    name: ClassVar[str] = "bf16x2"

    def shape(self, k: int, n: int) -> tuple[int, ...]:
        return -(-n // PANEL), k + -k % SPLIT_STEPS, PANEL, 2

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        upper, lower = unpack_bf16x2(stored[0], k, n)
        return upper + lower

    def product(self, x: Floats, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        """Multiply without the product of the two low terms, which the kernel omits too."""
        upper, lower = split_bf16(x)
        acc = super().product(upper + lower, stored, k, n)
        less: Floats = acc - lower @ unpack_bf16x2(stored[0], k, n)[1]
        return less

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        turns = b.ints(-(-n // PANEL), -1, 2, SPLIT_STEPS // 2, PANEL, 2)
        halves = b("Reshape", b("Cast", stored[0], to=DType.F32.onnx), turns)
        whole = b.reduce("ReduceSum", halves, (2,))
        steps = b("Transpose", whole, perm=(1, 2, 3, 5, 0, 4))
        wide = b("Reshape", steps, b.ints(k + -k % SPLIT_STEPS, -1))
        return _unpadded(b, wide, k, n, SPLIT_STEPS)


@dataclass(frozen=True)
class BlockSparsePanels(WeightLayout):
    """The nonzero blocks of float32 panels and their indices; a block has ``block`` rows of k."""

    block: int
    name: ClassVar[str] = "block_sparse"
    operands: ClassVar[int] = 2

    @property
    def block_steps(self) -> int:
        return self.block

    def check(self, k: int, n: int) -> None:
        super().check(k, n)
        if self.block not in BLOCKS:
            raise ValueError(f"layout {self.name!r} has no blocks of {self.block} steps of k")

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        return unpack_block_sparse(self._blocks(stored[0]), stored[1], k, n)

    def _blocks(self, stored: Numbers) -> Floats:
        return stored

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        panels, depth = -(-n // PANEL), -(-k // self.block)
        zeros = b("ConstantOfShape", b.ints(panels * depth, self.block, PANEL))
        at = b("Reshape", b("Cast", stored[1], to=DType.I64.onnx), b.ints(-1, 1))
        whole = b("ScatterND", zeros, at, self._blocks_to_onnx(b, stored[0]))
        wide = b("Reshape", whole, b.ints(panels, depth * self.block, PANEL))
        return _panels_to_onnx(b, wide, k, n, self.block)

    def _blocks_to_onnx(self, b: BodyBuilder, blocks: str) -> str:
        return blocks


@dataclass(frozen=True)
class BlockSparseBf16Panels(BlockSparsePanels):
    """The nonzero blocks of bf16 panels and their indices; x is rounded to bf16 too."""

    name: ClassVar[str] = "block_sparse_vnni2"
    rounds: ClassVar[bool] = True
    share: ClassVar[str] = "FusedGemm vnni2"

    def check(self, k: int, n: int) -> None:
        super().check(k, n)
        if self.block % 2:
            raise ValueError(f"layout {self.name!r} has no blocks of {self.block} steps of k")

    def product(self, x: Floats, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        return super().product(round_bf16(x), stored, k, n)

    def _blocks(self, stored: Numbers) -> Floats:
        return unpack_block_sparse_vnni2(stored)

    def _blocks_to_onnx(self, b: BodyBuilder, blocks: str) -> str:
        steps = b("Transpose", b("Cast", blocks, to=DType.F32.onnx), perm=(0, 1, 3, 2))
        return b("Reshape", steps, b.ints(-1, self.block, PANEL))


@dataclass(frozen=True)
class BitmapPanels(WeightLayout):
    """Panels as their nonzero elements (float32 or bf16) and a bit per position; x is float32."""

    in_bf16: bool = False
    operands: ClassVar[int] = 2
    scattered: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return "bitmap_bf16" if self.in_bf16 else "bitmap"

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        numbers = np.asarray(stored[0], np.float32) if self.in_bf16 else stored[0]
        return unpack_panels(unpack_bitmap(numbers, stored[1], k), n)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        numbers = b("Cast", stored[0], to=DType.F32.onnx) if self.in_bf16 else stored[0]
        panels = bitmap_to_onnx(b, numbers, stored[1], -(-n // PANEL), k)
        return _panels_to_onnx(b, panels, k, n, 2)


PANELS, VNNI2, WEIGHT_ONLY_BF16, INT16, BF16X2 = (
    Panels(),
    Vnni2Panels(),
    WeightOnlyBf16Panels(),
    Int16Panels(),
    Bf16x2Panels(),
)
BITMAP, BITMAP_BF16 = BitmapPanels(), BitmapPanels(in_bf16=True)
INT8, INT8_ZEROS = Int8Panels(), Int8Panels(own_zeros=True)
