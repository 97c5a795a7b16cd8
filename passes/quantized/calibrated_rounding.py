"""Choices from calibration data of how to round operands of products and convolutions."""

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

    For a product, ``factors`` ``[K]`` multiply x and divide the rows of the matrix before both are
    rounded.  ``scale`` and ``zero`` are fixed for x in uint8; without a scale, every row of x has
    its own.  ``correction`` ``[N]`` is added to the result.  ``codes`` ``[K, N]`` is the matrix in
    4 bits; every ``block`` steps of k share a row of ``scales`` and ``zeros`` ``[blocks, N]``.
    ``error`` is the error of the product on calibration data, relative to its norm.

    For a value, convolutions read it rounded with ``scale`` and ``zero``; ``correction`` and
    ``error`` belong to the convolution that writes it.
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
"""Empty table of choices.  Keys of such a table are names of stored matrices and of values."""
