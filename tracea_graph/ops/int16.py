"""Products in 16-bit integers: numbers share a scale by row of x and by column of W.

    x[i, :] ≈ row[i] · q[i, :]       |q| ≤ LIMIT, row[i] = max|x[i, :]| / LIMIT
    W[:, j] ≈ column[j] · p[:, j]    |p| as large as sums in 32 bits allow
    (x W)[i, j] ≈ row[i] · column[j] · Σ q[i, k] p[k, j]

Integer sums are exact as long as they fit: for every RUN steps of k, counted from 0, and every
column, LIMIT · Σ|p| < 2^31.  Between runs sums are float32.  Where numbers of a row or column are
of a size this is about eight times as exact as bf16, whose step is 2^-8 of each number, at the
same speed: one instruction multiplies and adds as many pairs of either.

Convolutions share a scale by image and by filter; runs are whole blocks of input channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "LIMIT", "RUN", "column_scales", "fit_columns", "round_images", "round_rows", "run_of"
]  # fmt: skip

RUN = 256
"""Steps of k whose integer sums 32 bits hold."""
LIMIT = 8191
"""The largest integer of a row of x; more of it would leave less for W."""
_NOTHING = 1e-30
"""A row that does not reach it is zero."""
_MOST, _SUM = 2.0**15 - 1, (2.0**31 - 1) / LIMIT

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int16]


def round_rows(x: Floats) -> tuple[Ints, Floats]:
    """``q`` and the scale of each row ``[…]`` of ``x […, K]``, to nearest, ties to even.

    A row with anything that is not finite has scale NaN and zeros.  In float32, as the kernel.
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
    """``q`` and the scale of each image of ``x [N, …]``: of all its numbers together."""
    whole, scale = round_rows(x.reshape(len(x), -1))
    return whole.reshape(x.shape), scale


def run_of(taps: int) -> int:
    """Steps of k in a run of a convolution with ``taps`` taps a channel: blocks of 16 channels."""
    return max(1, RUN // 16 // max(taps, 1)) * 16 * taps


def fit_columns(weight: Floats, run: int = RUN) -> tuple[Ints, Floats]:
    """``p [K, N]`` and the scale of each column of a matrix ``[K, N]``, summed in runs of ``run``.

    A column with anything that is not finite has scale NaN and zeros.
    """
    times, scale = _fitted(weight, run)
    whole = np.empty(weight.shape, np.int16)
    for start in range(0, len(weight), RUN):  # few at a time: float64 stays in the cache
        rows = slice(start, start + RUN)
        scaled = np.where(np.isfinite(scale), weight[rows], 0) * times
        whole[rows] = np.rint(scaled, out=scaled)
    return whole, scale


def column_scales(weight: Floats) -> Floats:
    """The scales of :func:`fit_columns` alone."""
    return _fitted(weight, RUN)[1]


def _fitted(weight: Floats, run: int) -> tuple[Floats, Floats]:
    """What each column is multiplied by before it is rounded, in float64, and its scale."""
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
