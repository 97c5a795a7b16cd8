"""Rounding to bf16 in NumPy, for reference implementations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["round_bf16", "split_bf16"]

Floats = npt.NDArray[np.floating[Any]]


def round_bf16(x: Floats) -> Floats:
    """Round to bf16, to nearest, ties to even; the result keeps the type of ``x``."""
    import ml_dtypes

    rounded = np.asarray(x, np.float32).astype(ml_dtypes.bfloat16)
    return rounded.astype(np.asarray(x).dtype)


def split_bf16(x: Floats) -> tuple[Floats, Floats]:
    """Split into ``upper + lower ≈ x``, both bf16, to within 2^-17 of x; both keep the type of x.

    A product of two such numbers takes three bf16 products,

        x y ≈ upper(x) upper(y) + lower(x) upper(y) + upper(x) lower(y)

    and the omitted term is at most 2^-16 of the product.  A number that is not finite has lower
    part 0.
    Source: Henry, Tang, Heinecke: "Leveraging the bfloat16 Artificial Intelligence Datatype For
    Higher-Precision Computations", ARITH 2019.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        upper = round_bf16(np.asarray(x, np.float32))
        rest = np.where(np.isfinite(upper), np.asarray(x, np.float32) - upper, 0)
    kind = np.asarray(x).dtype
    return upper.astype(kind), round_bf16(rest).astype(kind)
