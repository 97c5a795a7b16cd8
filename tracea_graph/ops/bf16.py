"""Numbers in bf16, as references see them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["round_bf16"]

Floats = npt.NDArray[np.floating[Any]]


def round_bf16(x: Floats) -> Floats:
    """What bf16 makes of numbers, to nearest, ties to even; in their own precision."""
    import ml_dtypes

    rounded = np.asarray(x, np.float32).astype(ml_dtypes.bfloat16)
    return rounded.astype(np.asarray(x).dtype)
