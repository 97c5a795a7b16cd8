"""Numbers in bf16, as references see them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["round_bf16", "split_bf16"]

Floats = npt.NDArray[np.floating[Any]]


def round_bf16(x: Floats) -> Floats:
    """What bf16 makes of numbers, to nearest, ties to even; in their own precision."""
    import ml_dtypes

    rounded = np.asarray(x, np.float32).astype(ml_dtypes.bfloat16)
    return rounded.astype(np.asarray(x).dtype)


def split_bf16(x: Floats) -> tuple[Floats, Floats]:
    """``upper + lower ≈ x``, both bf16: ``x`` to within 2^-17 of it, in its own precision.

    With them (Henry, Tang, Heinecke: "Leveraging the bfloat16 Artificial Intelligence Datatype For
    Higher-Precision Computations", ARITH 2019) a product is three in bf16,

        x y ≈ upper(x) upper(y) + lower(x) upper(y) + upper(x) lower(y)

    and what is left out is at most 2^-16 of it.  Something that is not finite has nothing below.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        upper = round_bf16(np.asarray(x, np.float32))
        rest = np.where(np.isfinite(upper), np.asarray(x, np.float32) - upper, 0)
    kind = np.asarray(x).dtype
    return upper.astype(kind), round_bf16(rest).astype(kind)
