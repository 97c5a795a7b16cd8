"""How operands of products and convolutions are rounded, as chosen from what a model computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

__all__ = ["UNCALIBRATED", "CalibratedRounding"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class CalibratedRounding:
    """Choices for the product of x ``[..., K]`` with one matrix ``[K, N]``, or for one value.

    ``factors`` ``[K]`` multiply x, and divide the rows of the matrix, before both are rounded.
    ``scale`` and ``zero`` are those of x in uint8, fixed; without a scale, every row has its own.
    ``correction`` ``[N]`` is added to the result.  ``codes`` ``[K, N]``, and the ``scales`` and
    ``zeros`` ``[blocks, N]`` of blocks of ``block`` steps, are the matrix in 4 bits.  ``error`` is
    that of the product on calibration data, relative to its norm.

    Of a value, ``scale`` and ``zero`` are what convolutions read it with; ``correction`` and
    ``error`` are those of the convolution that writes it.
    """

    error: float
    factors: Array | None = None
    scale: float = 0.0
    zero: int = 0
    correction: Array | None = None
    codes: Array | None = None
    scales: Array | None = None
    zeros: Array | None = None
    block: int = 0


UNCALIBRATED: Mapping[str, CalibratedRounding] = MappingProxyType({})
"""No choices; others are by the name of a stored matrix, or of a value."""
