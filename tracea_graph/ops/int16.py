"""Matrix products in 16-bit integers, with a scale per row of x and per column of W.

    x[i, :] ≈ row[i] · q[i, :]       |q| ≤ LIMIT, row[i] = max|x[i, :]| / LIMIT
    W[:, j] ≈ column[j] · p[:, j]    |p| as large as sums in 32 bits allow
    (x W)[i, j] ≈ row[i] · column[j] · Σ q[i, k] p[k, j]

Integer sums are exact while they fit: for every RUN steps of k, counted from 0, and every column,
LIMIT · Σ|p| < 2^31.  Sums of runs are accumulated in float32.  If the numbers of a row or column
are of similar size, this is about eight times more accurate than bf16, whose step is 2^-8 of each
number, at equal speed: one instruction multiplies and adds the same number of pairs of either.

Convolutions have a scale per image and per filter; runs are whole blocks of input channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "LIMIT",
    "RUN",
    "column_scales",
    "k_run_length",
    "round_columns",
    "round_images",
    "round_rows"
]  # fmt: skip

RUN = 256
"""Steps of k whose integer sum fits 32 bits."""
LIMIT = 8191
"""Largest integer of a row of x; a larger limit would leave less range for W."""
_NOTHING = 1e-30
"""A row whose largest magnitude is below this counts as zero."""
_MOST, _SUM = 2.0**15 - 1, (2.0**31 - 1) / LIMIT

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int16]


def round_rows(x: Floats) -> tuple[Ints, Floats]:
    """Round the rows of ``x […, K]`` to int16; return the integers ``q`` and the scales ``[…]``.

    Rounding is to nearest, ties to even, in float32 like the kernel's.  A row with a number that
    is not finite has scale NaN and zeros in ``q``.
    """
    rows = np.asarray(x, np.float32)
    high = np.max(np.abs(rows), axis=-1, initial=0.0)
    finite = np.isfinite(rows).all(axis=-1)
    fits = finite & (high > _NOTHING)
    times = np.where(fits, np.float32(LIMIT) / np.where(fits, high, 1), 0).astype(np.float32)
    with np.errstate(invalid="ignore"):
        scaled = np.where(fits[..., None], rows * times[..., None], 0)
    scale = np.where(fits, high / np.float32(LIMIT), np.where(finite, 0, np.nan))
    return np.rint(scaled).astype(np.int16), scale.astype(np.float32)


def round_images(x: Floats) -> tuple[Ints, Floats]:
    """Round the images of ``x [N, …]`` to int16; return integers ``q`` and a scale per image."""
    whole, scale = round_rows(x.reshape(len(x), -1))
    return whole.reshape(x.shape), scale


def k_run_length(taps: int) -> int:
    """Return how many steps of k are summed in int32 before they are scaled.

    ``taps`` are the filter taps per channel; a run has whole blocks of 16 channels.
    """
    return max(1, RUN // 16 // max(taps, 1)) * 16 * taps


def round_columns(weight: Floats, run: int = RUN) -> tuple[Ints, Floats]:
    """Round a matrix ``[K, N]`` to int16; return the integers ``p`` and the scales of columns.

    Integer sums over ``run`` steps of k fit 32 bits.  A column with a number that is not finite
    has scale NaN and zeros in ``p``.
    """
    times, scale = _fitted(weight, run)
    whole = np.empty(weight.shape, np.int16)
    for start in range(0, len(weight), RUN):  # limits the float64 copy to what fits the cache
        rows = slice(start, start + RUN)
        scaled = np.where(np.isfinite(scale), weight[rows], 0) * times
        whole[rows] = np.rint(scaled, out=scaled)
    return whole, scale


def column_scales(weight: Floats) -> Floats:
    """Return only the scales of :func:`round_columns`."""
    return _fitted(weight, RUN)[1]


def _fitted(weight: Floats, run: int) -> tuple[Floats, Floats]:
    """Return the float64 factor applied to each column before rounding, and its scale."""
    columns = np.abs(weight)
    starts = np.arange(0, len(columns), run)
    sums = np.max(np.add.reduceat(columns, starts, axis=0, dtype=np.float64), axis=0)
    high = np.max(columns, axis=0).astype(np.float64)
    finite = np.isfinite(sums)
    fits = finite & (high > _NOTHING)
    safe = np.where(fits, high, 1), np.where(fits, sums, 1)
    most = _SUM - run / 2  # each number may round up by a half
    times = np.where(fits, np.minimum(_MOST / safe[0], most / safe[1]), 0)
    scale = np.divide(1, times, out=np.where(finite, 0, np.nan), where=fits)
    return times, scale.astype(np.float32)
