"""Products of 8-bit numbers: the kinds of left operand, and exact sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType
from tracea_graph.ops.chain import FLOATS8
from tracea_graph.ops.function_body import BodyBuilder

__all__ = ["MAX_DEPTH", "IntegerOperand", "round_columns"]

MAX_DEPTH = 2**15
"""Most products whose sum surely fits 32 bits; each factor is a byte minus a zero point."""

_LARGEST, _NOTHING = 127.0, 1e-30
"""Largest integer of a column, and the magnitude below which a column counts as zero."""
_NUMPY = {DType.U8: np.uint8, DType.I8: np.int8}


@dataclass(frozen=True)
class IntegerOperand:
    """Left operand of a product: 8-bit numbers of type ``dtype`` minus a zero point.

    ``zero`` is the zero point, or None if an operand after the matrix holds it, as one element.
    With ``own_zeros``, the columns of the int8 matrix have zero points too; the last of these
    operands holds them as an int8 vector.  Sums are exact, and rounded to float32 once.  8-bit
    floats are multiplied by a matrix of 8-bit floats, without zero points; sums are in float32.
    Raises ValueError for a zero point out of range.
    """

    dtype: DType
    zero: int | None = 0
    own_zeros: bool = False

    def __post_init__(self) -> None:
        if self.dtype in FLOATS8:
            if self.zero != 0 or self.own_zeros:
                raise ValueError("8-bit floats have no zero points")
            return
        if self.dtype not in _NUMPY:
            raise ValueError(f"{self.dtype.short} is not an 8-bit integer type")
        bounds = np.iinfo(_NUMPY[self.dtype])
        if self.zero is not None and not bounds.min <= self.zero <= bounds.max:
            raise ValueError(f"the zero point {self.zero} is out of range for {self.dtype.short}")

    @property
    def operands(self) -> int:
        """Number of operands that hold zero points; they follow the matrix in the operand list."""
        return (self.zero is None) + self.own_zeros

    def zero_point(self) -> npt.NDArray[Any]:
        """Return the zero point as a scalar of the operand's type; raises ValueError if it is an
        operand."""
        if self.zero is None:
            raise ValueError("the zero point is not known before a run")
        return np.asarray(self.zero, _NUMPY[self.dtype])

    def split(self, items: Sequence[Any]) -> tuple[Any | None, Any | None]:
        """Return those of ``items`` that hold the zero points of x and of the columns, or None."""
        x_zero = items[0] if self.zero is None else None
        return x_zero, items[-1] if self.own_zeros else None

    def product(
        self, x: npt.NDArray[Any], matrix: npt.NDArray[Any], zeros: Sequence[npt.NDArray[Any]]
    ) -> npt.NDArray[Any]:
        """Return the exact product of x and the matrix, less their zero points, as float64."""
        given, own = self.split(zeros)
        zero = float(self.zero or 0) if given is None else float(np.reshape(given, ()))
        right = np.asarray(matrix, np.float64)
        if own is not None:
            right = right - np.asarray(own, np.float64)
        made: npt.NDArray[Any] = (np.asarray(x, np.float64) - zero) @ right
        return made

    def to_onnx(self, b: BodyBuilder, x: str, matrix: str, zeros: Sequence[str]) -> str:
        """Write the product in ONNX, rounded to float32; return its name."""
        given, own = self.split(zeros)
        if given is None:
            given = b("Constant", value=np.asarray(self.zero, _NUMPY[self.dtype]))
        return b.integer_product(x, matrix, given, own or "")


def round_columns(weight: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], npt.NDArray[Any]]:
    """Round a matrix ``[K, N]`` to int8; return the integers ``p`` and the scales of columns.

    Integers are at most 127 in magnitude; scales are float32. A column with a number that is not
    finite has scale NaN and zeros in ``p``.
    """
    high = np.abs(weight).max(0, initial=0.0).astype(np.float64)
    finite = np.isfinite(high)
    fits = finite & (high > _NOTHING)
    times = np.where(fits, _LARGEST / np.where(fits, high, 1), 0)
    with np.errstate(invalid="ignore"):
        whole = np.rint(np.where(fits, weight, 0) * times).astype(np.int8)
    scale = np.where(fits, high / _LARGEST, np.where(finite, 0, np.nan))
    return whole, scale.astype(np.float32)
