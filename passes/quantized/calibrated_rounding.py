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
    """How to round the operands of products with one matrix ``[K, N]``, or one value.

    For products of x ``[..., K]`` with a matrix:

    * ``factors`` ``[K]``: multiply x, and divide the rows of the matrix, before both are rounded.
    * ``scale``, ``zero``: fixed scale and zero point of x in uint8; if ``scale`` is 0, every row
      of x gets a scale of its own.
    * ``correction`` ``[N]``: added to the result.
    * ``codes`` ``[K, N]``: the matrix in 4 bits, with ``scales`` and ``zeros`` ``[blocks, N]``;
      each of their rows is for ``block`` rows of the matrix.
    * ``error``: error of the product on calibration data, relative to its norm.

    For a value, ``scale`` and ``zero`` round it for the convolutions that read it; ``correction``
    and ``error`` belong to the convolution that writes it.
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
