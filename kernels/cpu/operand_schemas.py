"""Operands of kernel calls, and bounds of their attributes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.kernels.schema import Operand

__all__ = ["BLOCK", "BYTES", "F32_OR_BF16", "LIMITS", "NARROW", "operand", "result"]

BLOCK = 16
"""Channels of a block, and columns of a panel (``TRACEA_PANEL``)."""
LIMITS = {
    "kMaxStep": 1 << 16,  # stride, dilation, padding or halo
    "kMaxWindow": 1 << 40,
    "kMaxParts": 16,  # products side by side
    "kMaxTables": 4,
    "kMaxShuffled": 9,
    "kMaxShuffledChannels": 1 << 20,
    "kMaxCompared": 11,  # tensors of one call
}
"""Bounds of attributes; the runtime has the same constants."""

NARROW = {"bf16": "bf16", "int8": "i8", "int16": "i16", "bf16x2": "bf16", "f16": "f16"}
"""Element type that a call of a dtype multiplies, if it is not float32."""
F32_OR_BF16, BYTES = ("f32", "bf16"), ("u8", "i8")


def operand(
    name: str, shape: str = "...", *types: str, optional: bool = False, many: str | None = None,
    rows: str = "row", touched: str = "all",
) -> Operand:  # fmt: skip
    """Return an operand with the axes that ``shape`` lists."""
    axes = tuple(shape.split())
    return Operand(name, axes, types or ("f32",), optional, many, False, rows, touched)


def result(name: str = "y", shape: str = "...", *types: str, **more: Any) -> Operand:
    """Return an operand that the call writes."""
    return replace(operand(name, shape, *types, **more), written=True)
