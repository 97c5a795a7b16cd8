"""Zeros already in constant matrices: found by a sample first, counted only where there are some.

What a product skips is a run of k in sixteen columns, so the zero map of a matrix is
``[⌈N/16⌉, K]``, true where sixteen neighbours are all zero.  Coarser blocks, zero rows and columns
follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Weight
from tracea_graph.ops.weights import ALIGNED, aligned

__all__ = [
    "LEAST_ZEROS",
    "BlockIndices",
    "Mask",
    "ZeroScan",
    "active_places",
    "sampled_zeros",
    "zero_map",
]  # fmt: skip

Mask = npt.NDArray[np.bool_]
BlockIndices = npt.NDArray[np.int32]
_SAMPLE = 2048
"""Numbers looked at before a matrix counts as dense."""
LEAST_ZEROS = 0.1
"""Share of zeros below which nothing could be gained."""


def sampled_zeros(array: npt.NDArray[Any], count: int = _SAMPLE) -> float:
    """The share of zeros among ``count`` numbers drawn from all over an array; all of a small one.

    The draw is the same for every array of one size.
    """
    flat = array.reshape(-1)
    if flat.size > count:
        flat = flat[np.random.default_rng(flat.size).integers(0, flat.size, count)]
    return 1.0 - np.count_nonzero(flat) / max(flat.size, 1)


def zero_map(matrix: npt.NDArray[Any]) -> Mask:
    """The zero map ``[⌈N/16⌉, K]`` of a matrix ``[K, N]``."""
    k, n = matrix.shape
    wide = np.zeros((k, aligned(n)), np.bool_)
    np.not_equal(matrix, 0, out=wide[:, :n])
    some: Mask = np.any(wide.reshape(k, -1, ALIGNED), axis=2)
    return ~some.T


def active_places(zeros: Mask, block: int) -> BlockIndices:
    """The places of blocks of ``block`` steps of k that are not all zero: by columns, then by k.

    This is the L1 map of the matrix's tile grid; the rows of its L2 table follow from the place.
    """
    groups, k = zeros.shape
    depth = -(-k // block)
    whole = np.ones((groups, depth * block), np.bool_)
    whole[:, :k] = zeros
    skipped = whole.reshape(groups * depth, block).all(1)
    return np.flatnonzero(~skipped).astype(np.int32)


@dataclass
class ZeroScan:
    """Zero maps of constant matrices, each found once, whatever its name and however often asked.

    ``looked`` counts the matrices that were read as a whole.
    """

    looked: int = 0
    _counts: dict[tuple[str, ...], int] = field(default_factory=dict)
    _maps: dict[tuple[str, ...], Mask] = field(default_factory=dict)

    def zeros(self, sources: Sequence[Weight], matrix: Callable[[], npt.NDArray[Any]]) -> Mask:
        """The zero map of a matrix ``[K, N]`` that is made from ``sources``; empty if dense.

        ``matrix`` is called only if a sample of a source has enough zeros.
        """
        if all(sampled_zeros(w.array()) < LEAST_ZEROS for w in sources):
            return np.zeros((0, 0), np.bool_)
        key = tuple(w.digest for w in sources)
        if key not in self._maps:
            self.looked += 1
            self._maps[key] = zero_map(matrix())
        return self._maps[key]

    def stored(self, sources: Sequence[Weight], matrix: Callable[[], npt.NDArray[Any]]) -> int:
        """How many numbers of a matrix made from ``sources`` are not zero; 0 if it is dense."""
        if all(sampled_zeros(w.array()) < LEAST_ZEROS for w in sources):
            return 0
        key = tuple(w.digest for w in sources)
        if key not in self._counts:
            self._counts[key] = int(np.count_nonzero(matrix()))
        return self._counts[key]
