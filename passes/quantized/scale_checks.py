"""Check that scales of quantized values are ordinary numbers, and zero points 0."""

from __future__ import annotations

import numpy as np

from tracea_graph.ir import Weight
from tracea_graph.ttg import TileGraph

__all__ = ["are_zero", "is_ordinary", "ordinary"]

_SMALLEST, _LARGEST = 1e-18, 1e18
"""Bounds for scales; between them, a product of two scales is a normal float32 number."""


def are_zero(graph: TileGraph, zeros: str) -> bool:
    """Return whether zero points of 8-bit floats are left out, or constants that are all 0."""
    weight = graph.weight(zeros) if zeros else None
    return not zeros or (
        weight is not None and not np.asarray(weight.array()).astype(np.float32).any()
    )


def is_ordinary(scale: float) -> bool:
    """Return whether a scale is positive, finite and far from both ends of float32."""
    return _SMALLEST < scale < _LARGEST


def ordinary(scales: Weight) -> bool:
    """Return whether :func:`is_ordinary` holds for all scales of a constant."""
    numbers = np.asarray(scales.array(), np.float32)
    return bool(np.all((numbers > _SMALLEST) & (numbers < _LARGEST)))
