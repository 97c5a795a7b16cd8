"""Whether a result answers as its original does, NaN and infinities among the numbers or not.

An answer is right if it is as near to ONNX Runtime's, optimizations off, as any must be.  If it
is not, the original is asked again: with optimizations on, with inputs and then every value moved
by a rounding or, once it overflows, lost (:mod:`.steadiness`), and in double precision
(:mod:`.doubling`), there also with its sums in another order (:mod:`.conditioning`).  An element
in whose kind these differ (a number, NaN, an infinity, an integer) says nothing.  Any other must
be of that kind, and from the double no farther than four times the farthest of them, or than is
allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.fuzz.steadiness import Array
from tracea_graph.config import TOLERANCE

__all__ = ["alike", "settled"]

_FARTHER, _HALF = 4.0, 2.0**-10
_ROUNDING = 5e-7
"""Of numbers as large as 1, what sums that cancel are off by in any row."""
_SMALLEST = float(np.finfo(np.float32).smallest_normal)
"""Below it processors may take numbers for zero, and ONNX Runtime's kernels do or do not."""

Answer = Mapping[str, Array]


def alike(found: Answer, wanted: Answer) -> str:
    """What differs: kinds, or numbers by more than the tolerance of the largest of their row."""
    return settled(found, wanted, [wanted])


def settled(found: Answer, best: Answer, others: Sequence[Answer]) -> str:
    """What differs from the ``best`` answer, where the others agree in what is to be expected.

    Empty if nothing does.  Arrays without dims are a row, others have as many as their last axis
    is wide.
    """
    if found.keys() != best.keys():
        return f"outputs {sorted(found)}, not {sorted(best)}"
    troubles = (_apart(n, found[n], best[n], [o[n] for o in others]) for n in best)
    return "; ".join(filter(None, troubles))


def _apart(name: str, found: Array, best: Array, others: Sequence[Array]) -> str:
    like = others[0]
    if found.shape != like.shape or found.dtype != like.dtype:
        return f"{name} is {found.dtype}{found.shape}, not {like.dtype}{like.shape}"
    if found.dtype.kind != "f":
        known = _agreed(best, others)
        count = int(np.sum(known & (found != best)))
        return f"{name} differs in {count} of {found.size}" if count else ""
    x, y = found.astype(np.float64), best.astype(np.float64)
    wide = [o.astype(np.float64) for o in others]
    known = _agreed(_kinds(y), [_kinds(o) for o in wide])
    count = int(np.sum(known & (_kinds(x) != _kinds(y))))
    if count:
        return f"{name} has NaN, infinities or numbers elsewhere, in {count} of {found.size}"
    finite = known & np.isfinite(y)
    with np.errstate(invalid="ignore", over="ignore"):
        spread = np.max([_within(abs(o - y), finite) for o in wide], axis=0)
        error = _within(abs(x - y), finite)
    tolerance = _HALF if found.dtype == np.float16 else TOLERANCE.exact
    allowed = tolerance * _largest(_within(abs(y), finite)) + _FARTHER * _largest(spread)
    floor = _ROUNDING * min(float(_within(abs(y), finite).max(initial=0)), 1.0)
    over = error > np.maximum(allowed, max(floor, _SMALLEST))
    if not over.any():
        return ""
    worst = float((error / np.maximum(_largest(_within(abs(y), finite)), _SMALLEST))[over].max())
    return (
        f"{name} is off by {worst:.1e} of its row's max|y|, in {int(over.sum())} of {found.size}"
    )


def _agreed(best: Array, others: Sequence[Array]) -> Array:
    return np.all([o == best for o in others], axis=0)


def _kinds(array: Array) -> Array:
    """0 for numbers, 1 and 2 for the infinities, 3 for NaN."""
    return np.select([np.isnan(array), array == np.inf, array == -np.inf], [3, 1, 2], 0)


def _within(array: Array, where: Array) -> Array:
    return np.where(where, array, 0.0)


def _largest(array: Array) -> Array:
    """Of every row, for all of its elements."""
    if not array.size:
        return array
    return array.max(axis=-1, keepdims=True) if array.ndim else array
