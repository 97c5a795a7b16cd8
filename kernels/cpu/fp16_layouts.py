"""Layouts of weights in fp16, which Arm's processors multiply (level ``neonfp16``).

Panels and blocked filters are those of float32 in half the bytes.  Their last axes have the shape
of other types of 16 bits, ``[…, 16, 2]``, for which the host loops are written: these 32 numbers
are two rows of 16 columns (two steps of k, or two input channels) instead of 16 pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.filters import BLOCK, BLOCKED, Filters, Stored, blocks
from tracea_graph.kernels.cpu.panels import PANEL, PANELS, pack_panels, unpack_panels
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.filter_layouts import Sums
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.weight_layouts import Floats, Numbers, WeightLayout

__all__ = [
    "FP16_FILTERS",
    "FP16_PANELS",
    "LARGEST",
    "SMALLEST",
    "Fp16Filters",
    "Fp16Panels",
    "pack_fp16",
    "round_fp16",
]

SMALLEST, LARGEST = 2.0**-14, 65504.0
"""Magnitudes between which fp16 keeps its precision."""


def round_fp16(x: Floats) -> Floats:
    """Round to fp16, to nearest, ties to even; the result keeps the type of ``x``."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16).astype(np.asarray(x).dtype)


def pack_fp16(weight: Floats) -> Numbers:
    """Pack ``[K, N]`` into fp16 panels ``[⌈N/16⌉, ⌈K/2⌉, 16, 2]``, padded with zeros."""
    panels = pack_panels(np.pad(round_fp16(weight), ((0, len(weight) % 2), (0, 0))))
    return panels.astype(np.float16).reshape(len(panels), -1, PANEL, 2)


@dataclass(frozen=True)
class Fp16Panels(WeightLayout):
    """Panels in fp16; x is rounded to fp16 as well."""

    name: ClassVar[str] = "f16"
    share: ClassVar[str] = "FusedGemm f16"

    def shape(self, k: int, n: int) -> tuple[int, ...]:
        return -(-n // PANEL), -(-k // 2), PANEL, 2

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        wide = np.asarray(stored[0], np.float32).reshape(len(stored[0]), -1, PANEL)
        return unpack_panels(wide, n)[:k]

    def product(self, x: Floats, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        return super().product(round_fp16(x), stored, k, n)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        wide = b("Cast", stored[0], to=DType.F32.onnx)
        panels = b("Reshape", wide, b.ints(-(-n // PANEL), k + k % 2, PANEL))
        whole = PANELS.to_onnx(b, (panels,), k + k % 2, n)
        return b.slice_last(whole, 0, k, 0) if k % 2 else whole


@dataclass(frozen=True)
class Fp16Filters(Filters):
    """Filters in blocks of 16 x 16 channels, in fp16; x is rounded to fp16 as well."""

    name: ClassVar[str] = "f16"
    product_type: ClassVar[str] = "f16"
    reads_reordered: ClassVar[bool] = True
    writes_reordered: ClassVar[bool] = True

    def biases(self, filters: int) -> int:
        return BLOCK * blocks(filters)

    def check(self, shape: Sequence[int], groups: int, window: ConvWindow) -> None:
        BLOCKED.check(shape, groups, window)

    def arrays(self, shape: Sequence[int]) -> tuple[Stored, ...]:
        return ((DType.F16, (*BLOCKED.shape(shape)[:-2], BLOCK // 2, BLOCK, 2)),)

    def pack(self, plain: Floats) -> tuple[Numbers, ...]:
        whole = round_fp16(BLOCKED.pack(plain)[0]).astype(np.float16)
        return (whole.reshape(self.shape(plain.shape)),)

    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        wide = stored[0] if stored[0].dtype == np.float64 else np.asarray(stored[0], np.float32)
        return BLOCKED.filters((wide.reshape(BLOCKED.shape(shape)),), shape)

    def convolve(
        self, x: Floats, stored: Sequence[Numbers], shape: Sequence[int], sums: Sums
    ) -> Floats:
        return super().convolve(round_fp16(x), stored, shape, sums)

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        wide = b("Cast", stored[0], to=DType.F32.onnx)
        return BLOCKED.to_onnx(b, (b("Reshape", wide, b.ints(*BLOCKED.shape(shape))),), shape)


FP16_PANELS, FP16_FILTERS = Fp16Panels(), Fp16Filters()
