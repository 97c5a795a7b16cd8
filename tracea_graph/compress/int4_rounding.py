"""Round a matrix to 4 bits so that its product with real inputs changes least.

GPTQ (Frantar et al. 2023, arXiv:2210.17323): rows of the matrix are rounded one after the other,
and the error of each is compensated in the rows that follow, by the inverse of the inputs' second
moments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.block_quantized import block_ranges, quantize_blocks
from tracea_graph.passes.quantized.calibrated_rounding import CalibratedRounding

__all__ = ["choose_int4", "gptq"]

Floats = npt.NDArray[np.floating[Any]]
Numbers = npt.NDArray[Any]
_BITS, _BLOCKS = 4, (128, 32)
"""Sizes of blocks, smallest matrix first."""
_LARGER_MARGIN = 1.1
"""Larger blocks are chosen if their error is at most this multiple of that of smaller ones."""
_DAMPING = 0.01
"""Share of the mean second moment that is added to each of them."""
_STEPS = 128
"""Rows whose corrections are applied to all later rows at once."""


def choose_int4(x: Floats, w: Floats, _: bool = False) -> CalibratedRounding:
    """Return the 4-bit rounding of a matrix ``w [K, N]`` for sampled input rows ``x [R, K]``."""
    x = x.astype(np.float64)
    moments = x.T @ x
    norm = float(np.sqrt(np.sum(w * (moments @ w)))) or 1.0
    found = list[CalibratedRounding]()
    for block in _BLOCKS:
        tries = (quantize_blocks(w, _BITS, block), gptq(w, moments, block))
        for codes, scales, zeros in tries:
            lost = dequantize(codes, scales, zeros, block) - w
            error = float(np.sqrt(max(np.sum(lost * (moments @ lost)), 0.0))) / norm
            found.append(
                CalibratedRounding(error, codes=codes, scales=scales, zeros=zeros, block=block)
            )  # fmt: skip
    large, small = (min(found[i : i + 2], key=lambda c: c.error) for i in (0, 2))
    return large if large.error <= _LARGER_MARGIN * small.error else small


def dequantize(codes: Numbers, scales: Floats, zeros: Floats, block: int) -> Floats:
    """Return the matrix that codes ``[K, N]`` stand for."""
    wide = [np.repeat(part, block, 0)[: len(codes)] for part in (zeros, scales)]
    made: Floats = (codes - wide[0]) * wide[1]
    return made


def gptq(w: Floats, moments: Floats, block: int) -> tuple[Numbers, Floats, Floats]:
    """Return codes ``[K, N]``, scales and zero points ``[blocks, N]`` of a matrix.

    ``moments`` ``[K, K]`` are the second moments of its inputs.
    """
    k, n = w.shape
    rest = w.astype(np.float64).copy()
    damping = max(_DAMPING * float(np.mean(np.diag(moments))), 1e-12)
    inverse = np.linalg.inv(moments + damping * np.eye(k))
    factor = np.linalg.cholesky((inverse + inverse.T) / 2).T
    codes = np.empty((k, n), np.uint8)
    scales, zeros = (np.empty((-(-k // block), n), np.float32) for _ in range(2))
    most = 2**_BITS - 1
    for start in range(0, k, _STEPS):
        end = min(start + _STEPS, k)
        lost = np.empty((end - start, n))
        for row in range(start, end):
            at = row // block
            if row % block == 0:
                scales[at], zeros[at] = block_ranges(rest[row : row + block], _BITS)
            step = np.where(scales[at] > 0, scales[at], 1)
            codes[row] = np.clip(np.rint(rest[row] / step) + zeros[at], 0, most)
            rounded = (codes[row] - zeros[at]) * scales[at]
            lost[row - start] = (rest[row] - rounded) / factor[row, row]
            rest[row + 1 : end] -= np.outer(factor[row, row + 1 : end], lost[row - start])
        rest[end:] -= factor[start:end, end:].T @ lost
    return codes, scales, zeros
