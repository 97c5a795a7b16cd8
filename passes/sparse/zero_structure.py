"""Find zeros, blocks and N:M patterns in constant matrices, with an early exit.

Probes come first: sampled elements estimate the share of zeros, and a strip of the matrix shows
whether rows or columns may be zero.  Only if a probe finds zeros is the matrix read as a whole and
identified by its hash.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Weight
from tracea_graph.ops.weight_layouts import ALIGNED
from tracea_graph.passes.sparse.find_exact_low_rank import RankScan
from tracea_graph.passes.sparse.sampled_zero_scan import LEAST_ZEROS, ZeroMaps, sampled_zeros

__all__ = [
    "DENSE",
    "GROUPS",
    "WeightScan",
    "ZeroStructure",
    "as_matrix",
    "may_have_zeros",
    "zero_structure",
]  # fmt: skip

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
GROUPS = ((1, 4), (2, 8), (2, 4), (4, 8))
"""N:M patterns to search for (at most N of M neighbours are not zero), the sparsest first."""
_STRIP = 64
"""Number of rows and columns that are read to find zero columns and rows."""


@dataclass(frozen=True, eq=False)
class ZeroStructure:
    """Zeros of a matrix ``[rows, columns]``.

    ``zeros`` is the share of zero elements, ``blocks`` that of zero 16 x 16 blocks.  ``rows`` and
    ``columns`` mark lines that are all zero; an empty mask means none.  ``pattern`` is an N:M
    pattern ``(N, M, axis)`` that holds in the whole matrix, or None.
    """

    zeros: float = 0.0
    blocks: float = 0.0
    rows: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    columns: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    pattern: tuple[int, int, int] | None = None


DENSE = ZeroStructure()


def may_have_zeros(matrix: Array) -> bool:
    """Return whether a matrix is worth reading whole: samples of it have many zeros."""
    if matrix.ndim != 2 or not matrix.size:
        return False
    strips = matrix[:, :_STRIP], matrix[:_STRIP].T
    lines = any(not np.any(strip, axis=1).all() for strip in strips)
    return lines or sampled_zeros(matrix) >= LEAST_ZEROS


def zero_structure(matrix: Array) -> ZeroStructure:
    """Return where a matrix ``[rows, columns]`` is zero: whole rows and columns, and blocks."""
    rows, columns = _zero_lines(matrix), _zero_lines(matrix.T)
    if sampled_zeros(matrix) < LEAST_ZEROS:
        return ZeroStructure(rows=rows, columns=columns) if rows.size or columns.size else DENSE
    kept = matrix != 0
    zeros = 1.0 - np.count_nonzero(kept) / kept.size
    return ZeroStructure(zeros, _zero_blocks(kept), rows, columns, _pattern(kept, zeros))


def _zero_lines(matrix: Array) -> Mask:
    """Return which rows are all zero; empty if none is."""
    found = ~np.any(matrix[:, :_STRIP], axis=1)
    at = np.flatnonzero(found)
    found[at] = ~np.any(matrix[at], axis=1)
    return found if found.any() else np.zeros(0, np.bool_)


def _zero_blocks(kept: Mask) -> float:
    """Return the share of zero 16 x 16 blocks, including partial ones at the edges."""
    down, across = (np.arange(0, extent, ALIGNED) for extent in kept.shape)
    some = np.logical_or.reduceat(np.logical_or.reduceat(kept, down, 0), across, 1)
    return 1.0 - np.count_nonzero(some) / some.size


def _pattern(kept: Mask, zeros: float) -> tuple[int, int, int] | None:
    """Return the sparsest pattern along either axis that every group keeps."""
    for n, m in GROUPS:
        for axis, extent in enumerate(kept.shape):
            if extent % m or zeros < 0.9 * (1 - n / m):
                continue
            groups = np.moveaxis(kept, axis, 0).reshape(extent // m, m, -1)
            if np.count_nonzero(groups, axis=1).max() <= n:
                return n, m, axis
    return None


@dataclass
class WeightScan:
    """Weight analysis: the zeros and factors of constant matrices, shared by passes and plans."""

    ranks: RankScan = field(default_factory=RankScan)
    zeros: ZeroMaps = field(default_factory=ZeroMaps)
    _seen: WeakKeyDictionary[Weight, ZeroStructure] = field(default_factory=WeakKeyDictionary)
    _found: dict[str, ZeroStructure] = field(default_factory=dict)

    def structure(self, weight: Weight) -> ZeroStructure:
        """Return the zeros of a stored matrix.

        Leading axes of size 1 are dropped, filters ``[O, I, …]`` become ``[O, I·…]``.  A weight
        filled with one number has no structure.
        """
        if weight.filled:
            return DENSE
        if weight not in self._seen:
            matrix = as_matrix(weight)
            self._seen[weight] = self._whole(weight, matrix) if may_have_zeros(matrix) else DENSE
        return self._seen[weight]

    def _whole(self, weight: Weight, matrix: Array) -> ZeroStructure:
        if weight.digest not in self._found:
            self._found[weight.digest] = zero_structure(matrix)
        return self._found[weight.digest]


def as_matrix(weight: Weight) -> Array:
    """Return a weight as ``[rows, columns]``."""
    array = np.asarray(weight.array())
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    return array if array.ndim < 2 else array.reshape(array.shape[0], -1)
