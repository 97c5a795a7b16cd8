"""Check that scales of quantized values are ordinary numbers."""

from __future__ import annotations

import numpy as np

from tracea_graph.ir import Weight

__all__ = ["is_ordinary", "ordinary"]

_SMALLEST, _LARGEST = 1e-18, 1e18
"""Bounds for scales; between them, a product of two scales is a normal float32 number."""


def is_ordinary(scale: float) -> bool:
    """Return whether a scale is positive, finite and far from both ends of float32."""
    return _SMALLEST < scale < _LARGEST


def ordinary(scales: Weight) -> bool:
    """Return whether :func:`is_ordinary` holds for all scales of a constant."""
    numbers = np.asarray(scales.array(), np.float32)
    return bool(np.all((numbers > _SMALLEST) & (numbers < _LARGEST)))
