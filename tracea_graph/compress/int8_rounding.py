"""Choose how to round the operands of a product to 8-bit integers, by the error on its inputs.

Candidates multiply the channels of x by factors that move its range into the matrix (Xiao et al.
2023, arXiv:2211.10438), round x row by row or with one scale (from its range, percentiles of it,
or by least squared error), and add the mean error back.  Each is measured on sampled rows;
the scale for all rows, which saves time, is taken unless its error is clearly larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.int8_matmul import round_columns
from tracea_graph.ops.quantize_rows import quantize_rows
from tracea_graph.passes.quantized.calibrated_rounding import CalibratedRounding

__all__ = [
    "channel_smoothing_factors",
    "choose_int8",
    "range_candidates",
    "round_static",
    "uint8_scale_zero_point",
]

Floats = npt.NDArray[np.floating[Any]]
_STRENGTHS = (0.25, 0.5, 0.75)
"""Powers of x's ranges that are moved into the matrix."""
_PERCENTILES = (99.9, 99.99)
_RATIOS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Shares of the range that are tried for the least squared error."""
_STATIC_MARGIN = 1.1
"""One scale for all rows is chosen if its error is at most this multiple of that of row scales."""
_WORK, _LEAST_ROWS = 1e9, 128
"""Multiplications of one measurement, and the minimum number of rows to measure."""
_SMALLEST = 1e-5
_MOST = 255


def choose_int8(x: Floats, w: Floats, fixed_scale: bool = False) -> CalibratedRounding:
    """Return the 8-bit rounding with the smallest error of ``x @ w``.

    ``x`` ``[R, K]`` are sampled rows, ``w`` ``[K, N]`` is the constant matrix.  Rows are rounded
    with one scale each; with one common scale if ``fixed_scale``, or if this is about as exact.
    """
    rows = max(_LEAST_ROWS, int(_WORK / max(w.size, 1)))
    x, w = x[: max(rows, 1)].astype(np.float32), w.astype(np.float32)
    exact = x @ w
    norm = float(np.linalg.norm(exact)) or 1.0
    best, off = CalibratedRounding(np.inf), exact
    for factors in (None, *(channel_smoothing_factors(x, w, power) for power in _STRENGTHS)):
        whole, scale = quantize_rows(x if factors is None else x * factors)
        lost = exact - (whole * scale) @ _rounded(w, factors)
        error = float(np.linalg.norm(lost)) / norm
        if error < best.error:
            best, off = CalibratedRounding(error, factors), lost
    moved = x if best.factors is None else x * best.factors
    matrix = _rounded(w, best.factors)
    fixed, fixed_off = CalibratedRounding(np.inf), exact
    for low, high in range_candidates(moved):
        step, zero = uint8_scale_zero_point(low, high)
        lost = exact - round_static(moved, step, zero) @ matrix
        error = float(np.linalg.norm(lost)) / norm
        if error < fixed.error:
            fixed, fixed_off = CalibratedRounding(error, best.factors, step, zero), lost
    if fixed_scale or fixed.error <= _STATIC_MARGIN * best.error:
        best, off = fixed, fixed_off
    return _corrected(best, off, norm)


def _corrected(best: CalibratedRounding, lost: Floats, norm: float) -> CalibratedRounding:
    """Add the mean of what is lost, where that makes the error smaller."""
    mean = lost.mean(0)
    error = float(np.linalg.norm(lost - mean)) / norm
    if not error < best.error:
        return best
    return CalibratedRounding(
        error, best.factors, best.scale, best.zero, mean.astype(np.float32)
    )  # fmt: skip


def channel_smoothing_factors(x: Floats, w: Floats, power: float) -> Floats:
    """Return factors around 1 to multiply the channels of x by."""
    of_x = np.maximum(np.abs(x).max(0), _SMALLEST)
    of_w = np.maximum(np.abs(w).max(1), _SMALLEST)
    found = of_w ** (1 - power) / of_x**power
    found /= np.exp(np.log(found).mean())
    made: Floats = found.astype(np.float32)
    return made


def _rounded(w: Floats, factors: Floats | None) -> Floats:
    whole, scale = round_columns(w if factors is None else w / factors[:, None])
    made: Floats = whole.astype(np.float32) * scale
    return made


def range_candidates(x: Floats) -> Iterator[tuple[float, float]]:
    """Yield ranges of x to round within.

    These are its whole range, ranges between percentiles, and the part of the whole range with the
    smallest squared rounding error.
    """
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    yield low, high
    for part in _PERCENTILES:
        ends = np.percentile(x, (100 - part, part))
        yield min(float(ends[0]), 0.0), max(float(ends[1]), 0.0)
    some = x.ravel()[:: max(1, x.size // 100_000)]

    def squares(ratio: float) -> float:
        step, zero = uint8_scale_zero_point(low * ratio, high * ratio)
        return float(np.square(round_static(some, step, zero) - some).sum())

    ratio = min(_RATIOS, key=squares)
    yield low * ratio, high * ratio


def uint8_scale_zero_point(low: float, high: float) -> tuple[float, int]:
    """Return scale and zero point of uint8 for the range ``low`` to ``high``, which includes 0."""
    step = max((high - low) / _MOST, 1e-12)
    return float(np.float32(step)), int(np.clip(np.rint(-low / step), 0, _MOST))


def round_static(x: Floats, step: float, zero: int) -> Floats:
    """Return numbers rounded to uint8 with one scale, and converted back."""
    made: Floats = (np.clip(np.rint(x / step) + zero, 0, _MOST) - zero) * np.float32(step)
    return made
