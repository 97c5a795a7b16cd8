"""Find zeros in constant matrices: sample first, and read a matrix only if the sample has zeros.

Sparse kernels skip one step of k for sixteen columns at once.  So the zero map of a matrix is
``[⌈N/16⌉, K]``, true where sixteen neighbours are all zero.  Zero rows, columns and coarser blocks
follow from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Weight
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import ALIGNED, WeightLayout, round_up_aligned
from tracea_graph.passes.matmul.constant_matrices import matrix_of
from tracea_graph.ttg import TileSet, TTGBuilder

__all__ = [
    "LEAST_ZEROS",
    "Mask",
    "ZeroMaps",
    "nonzero_tiles",
    "sampled_zeros",
    "zero_map",
]  # fmt: skip

Mask = npt.NDArray[np.bool_]
_SAMPLE = 2048
"""Number of elements in a sample."""
LEAST_ZEROS = 0.1
"""Share of zeros below which sparse kernels cannot gain."""


def sampled_zeros(array: npt.NDArray[Any], count: int = _SAMPLE) -> float:
    """Return the share of zeros among ``count`` sampled elements; of a small array, among all.

    The sample depends only on the size of the array.
    """
    flat = array.reshape(-1)
    if flat.size > count:
        flat = flat[np.random.default_rng(flat.size).integers(0, flat.size, count)]
    return 1.0 - np.count_nonzero(flat) / max(flat.size, 1)


def zero_map(matrix: npt.NDArray[Any]) -> Mask:
    """Return the zero map ``[⌈N/16⌉, K]`` of a matrix ``[K, N]``.

    It is true where 16 neighbouring columns are zero in a row.
    """
    k, n = matrix.shape
    wide = np.zeros((k, round_up_aligned(n)), np.bool_)
    np.not_equal(matrix, 0, out=wide[:, :n])
    some: Mask = np.any(wide.reshape(k, -1, ALIGNED), axis=2)
    return ~some.T


def nonzero_tiles(zeros: Mask, block: int) -> TileSet:
    """Return the tiles of a matrix that are not all zero, by column and then by row.

    A tile has 16 columns and ``block`` rows; ``zeros`` is the zero map of the matrix.
    """
    groups, k = zeros.shape
    depth = -(-k // block)
    whole = np.ones((groups, depth * block), np.bool_)
    whole[:, :k] = zeros
    active: Mask = ~np.all(whole.reshape(1, groups, depth, block), axis=-1)
    return TTGBuilder(1, groups, k, (1, ALIGNED, block)).build_active(active)


@dataclass
class ZeroMaps:
    """Zero maps of constant matrices, each computed once even if a matrix has several names.

    ``looked`` counts the matrices that were read as a whole.
    """

    looked: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    _maps: dict[tuple[str, WeightLayout], Mask] = field(default_factory=dict)

    def zeros(self, sources: Sequence[Weight], stored: Weight, params: GemmParams) -> Mask:
        """Return the zero map of a product's matrix ``[K, N]``; empty if the matrix is dense.

        ``stored`` is the matrix in the layout of ``params``.  It was made from ``sources``,
        constants of the model, and may have fewer channels.  It is read as a whole only if a
        sample of one of them has enough zeros.
        """
        if all(sampled_zeros(w.array()) < LEAST_ZEROS for w in sources):
            return np.zeros((0, 0), np.bool_)
        key = stored.digest, params.layout
        if key not in self._maps:
            self.looked += 1
            self._maps[key] = zero_map(matrix_of(params, stored))
        return self._maps[key]

    def stored(self, sources: Sequence[Weight], stored: Weight) -> int:
        """Return the number of non-zero elements of ``stored``; 0 if it is dense.

        The weight was made from ``sources``, whose samples tell whether it is worth reading.
        """
        if all(sampled_zeros(w.array()) < LEAST_ZEROS for w in sources):
            return 0
        if stored.digest not in self._counts:
            self._counts[stored.digest] = int(np.count_nonzero(stored.array()))
        return self._counts[stored.digest]
