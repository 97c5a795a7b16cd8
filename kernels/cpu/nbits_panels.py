"""Layout of block-quantized matrices that the CPU kernels read in place.

A panel of 16 columns is a row of bytes: the zero points of its blocks where these are integers,
``[blocks][16]`` filled up to whole cache lines, then the codes.  64 bytes of codes are
``[16 columns][4 bytes]``; code p of byte b, from the lowest bits on, is for step ``4 p + b``
of k.  One load gives the operands of byte products for 4 steps and 16 columns per code in a byte.
Scales, and zero points in float32, are the second array, ``[panels][blocks][1 or 2][16]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tracea_graph.kernels.cpu.panels import PANEL
from tracea_graph.ops.block_quantized import BlockQuantized
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.weight_layouts import Floats, Numbers

__all__ = ["NBitsPanels", "pack_codes", "pack_nbits_scales"]

_LANE = 4
"""Number of adjacent bytes of one column."""
_LINE = 64
"""Bytes of a cache line."""


@dataclass(frozen=True)
class NBitsPanels(BlockQuantized):
    """Panels of block-quantized codes and, as a second array, their scales."""

    name: ClassVar[str] = "nbits"

    @property
    def rows(self) -> int:
        """Rows of each block in the second array: its scales, and zero points if float32."""
        return 2 if self.zeros == "float" else 1

    def zero_bytes(self, k: int) -> int:
        """Bytes of a panel that hold integer zero points."""
        used = self.blocks(k) * PANEL if self.zeros == "integer" else 0
        return used + -used % _LINE

    def shape(self, k: int, n: int) -> tuple[int, ...]:
        codes = self.blocks(k) * self.block * PANEL // self.codes_per_byte
        return -(-n // PANEL), self.zero_bytes(k) + codes

    def scales_shape(self, k: int, n: int) -> tuple[int, ...]:
        return -(-n // PANEL), self.blocks(k), self.rows, PANEL

    def parts(self, stored: Sequence[Numbers], k: int, n: int) -> tuple[Numbers, Floats, Floats]:
        panels, first, blocks = len(stored[0]), self.zero_bytes(k), self.blocks(k)
        bytes_of = stored[0][:, first:].reshape(panels, -1, PANEL, _LANE, 1)
        shifts = (self.bits * np.arange(self.codes_per_byte)).astype(np.uint8)
        codes = (bytes_of >> shifts) & (2**self.bits - 1)
        whole = codes.transpose(1, 4, 3, 0, 2).reshape(-1, panels * PANEL)[:, :n]
        beside = stored[1].transpose(2, 1, 0, 3).reshape(self.rows, blocks, -1)[..., :n]
        if self.zeros == "middle":
            zeros = np.full_like(beside[0], self.middle)
        elif self.zeros == "float":
            zeros = beside[1]
        else:
            own = stored[0][:, : blocks * PANEL].reshape(panels, blocks, PANEL)
            zeros = own.transpose(1, 0, 2).reshape(blocks, -1)[:, :n].astype(beside.dtype)
        return whole, beside[0], zeros

    def parts_to_onnx(
        self, b: BodyBuilder, stored: Sequence[str], k: int, n: int
    ) -> tuple[str, str, str]:
        first, blocks = self.zero_bytes(k), self.blocks(k)
        panels, wide = -(-n // PANEL), -(-n // PANEL) * PANEL
        packed = stored[0]
        if first:
            packed = b.slice_last(packed, first, self.shape(k, n)[1], 1)
        codes = self._codes(b, b("Reshape", packed, b.ints(panels, -1, PANEL, _LANE, 1)))
        codes = b("Transpose", codes, perm=(1, 4, 3, 0, 2))
        codes = b("Reshape", codes, b.ints(blocks, self.block, wide))
        beside = b("Transpose", stored[1], perm=(1, 2, 0, 3))
        beside = b("Reshape", beside, b.ints(blocks, self.rows, wide))
        scales, zeros = beside, ""
        if self.zeros == "float":
            scales, zeros = (b.slice_last(beside, i, i + 1, 1) for i in (0, 1))
        elif self.zeros == "integer":
            own = b.slice_last(stored[0], 0, blocks * PANEL, 1)
            own = b("Cast", b("Reshape", own, b.ints(panels, blocks, 1, PANEL)), to=1)
            own = b("Transpose", own, perm=(1, 2, 0, 3))
            zeros = b("Reshape", own, b.ints(blocks, 1, wide))
        if n % PANEL:
            codes, scales = (b.slice_last(v, 0, n, 2) for v in (codes, scales))
            zeros = zeros and b.slice_last(zeros, 0, n, 2)
        return codes, scales, zeros or b.number(self.middle)


def pack_codes(layout: NBitsPanels, codes: Numbers, zeros: Numbers | None, k: int) -> Numbers:
    """Pack codes ``[blocks * block, N]`` and integer zero points ``[blocks, N]`` into panels."""
    n = codes.shape[1]
    per, fill, panels = layout.codes_per_byte, -n % PANEL, -(-n // PANEL)
    wide = np.pad(codes.astype(np.uint8), ((0, 0), (0, fill)))
    split = wide.reshape(-1, per, _LANE, panels, PANEL).transpose(3, 0, 4, 2, 1)
    packed: Numbers = np.zeros(split.shape[:-1], np.uint8)
    for i in range(per):
        packed |= split[..., i] << np.uint8(layout.bits * i)
    rows: Numbers = packed.reshape(panels, -1)
    first = layout.zero_bytes(k)
    if not first or zeros is None:
        return rows
    own = np.pad(zeros.astype(np.uint8), ((0, 0), (0, fill)))
    own = own.reshape(-1, panels, PANEL).transpose(1, 0, 2).reshape(panels, -1)
    own = np.pad(own, ((0, 0), (0, first - own.shape[1])))
    return np.concatenate([own, rows], 1)


def pack_nbits_scales(layout: NBitsPanels, scales: Floats, zeros: Floats) -> Floats:
    """Pack scales ``[blocks, N]``, and zero points if they are float32, into panels."""
    rows = np.stack([scales, zeros][: layout.rows])
    wide = np.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[2] % PANEL)))
    split = wide.reshape(layout.rows, wide.shape[1], -1, PANEL)
    return np.ascontiguousarray(split.transpose(2, 1, 0, 3), np.float32)
