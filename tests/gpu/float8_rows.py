"""Errors of e4m3 products by the scales of x: ``python -m tests.gpu.float8_rows``; needs no GPU.

The left operand has one scale, a power of two with room for twice its largest magnitude, or one
for each row; columns of the matrix have a scale each.  Prints, for rows of a norm and rows of
different magnitudes, the relative error of a row of the product: its median and its maximum.
"""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np

from tests.kernels.gpu.machine import Array
from tracea_graph.ops.chain import LARGEST_FLOAT8

_ROWS, _DEPTH, _COLUMNS = 512, 768, 256


def _rounded(x: Array, factor: Array) -> Array:
    codes = np.clip(x * factor, -LARGEST_FLOAT8, LARGEST_FLOAT8).astype(ml_dtypes.float8_e4m3fn)
    return codes.astype(np.float64) / factor


def errors(x: Array, w: Array, by_rows: bool) -> Array:
    """Return the relative error of each row of ``x @ w``, both rounded to e4m3."""
    largest = np.abs(x).max(1, keepdims=True)
    one = 2.0 ** np.floor(np.log2(LARGEST_FLOAT8 / (2 * largest.max())))
    left = _rounded(x, LARGEST_FLOAT8 / largest if by_rows else np.asarray(one))
    wrong = left @ _rounded(w, LARGEST_FLOAT8 / np.abs(w).max(0)) - x @ w
    share: Array = np.sqrt((wrong**2).mean(1) / ((x @ w) ** 2).mean(1))
    return share


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((_ROWS, _DEPTH)), rng.standard_normal((_DEPTH, _COLUMNS))
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    kinds = {"rows of a norm": x}
    for bits in (12, 20):
        scales = 2.0 ** -rng.integers(0, bits + 1, (_ROWS, 1))
        kinds[f"magnitudes of 2^-{bits} to 1"] = x * scales
    for kind, rows in kinds.items():
        for by_rows in (False, True):
            share = errors(rows, w, by_rows)
            how = "a scale each" if by_rows else "one scale"
            sys.stdout.write(f"{kind:28} {how:13} {np.median(share):.2e} {share.max():.2e}\n")


if __name__ == "__main__":
    main()
