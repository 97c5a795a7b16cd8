"""Exactly low rank in constant matrices: ruled out by a part of the matrix, proved by all of it.

A part whose Gram matrix is well conditioned has full rank, and no part has more than the whole.
What is left is projected on a random range.  Source: Halko, Martinsson, Tropp, "Finding structure
with randomness" (SIAM Review 2011), algorithm 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from tracea_graph.ir import Weight

__all__ = ["EPSILON", "RankScan", "exact_factors", "largest_rank"]

Floats = npt.NDArray[np.floating[Any]]
EPSILON = 1e-6
"""Share of a matrix's norm that its factors may leave out."""
_SHARE = 4
"""Ranks up to this part of the smaller side are looked for: above, little is gained."""
_LEAST = 1 << 16
"""Elements below which a matrix is not worth two products."""
_OVERSAMPLED = 8
_SINGULAR = 1e-9
"""Ratio of squared singular values that leaves a doubt whether a part has full rank."""


def largest_rank(k: int, n: int) -> int:
    """The largest rank at which two products are worth it; 0 for a matrix that is too small."""
    return min(k, n) // _SHARE if k * n >= _LEAST else 0


def exact_factors(matrix: Floats, seed: int = 0) -> tuple[Floats, Floats] | None:
    """``[K, R]`` and ``[R, N]`` whose product is the matrix to within :data:`EPSILON`, in float32.

    None unless R is at most :func:`largest_rank`, or if the matrix is not finite.
    """
    limit = largest_rank(*matrix.shape)
    chance = np.random.default_rng(seed)
    if not limit or not _may_be_low(matrix, limit, chance):
        return None
    wide = matrix.astype(np.float64)
    norm = np.linalg.norm(wide)
    if not 0 < norm < np.inf:
        return None
    basis, _ = np.linalg.qr(wide @ chance.standard_normal((wide.shape[1], limit + _OVERSAMPLED)))
    inside = basis.T @ wide
    if np.linalg.norm(wide - basis @ inside) > EPSILON * norm:
        return None
    u, sizes, v = np.linalg.svd(inside, full_matrices=False)
    left_out = np.sqrt(np.cumsum(sizes[::-1] ** 2)[::-1])
    rank = int(np.count_nonzero(left_out > EPSILON * norm))
    if rank > limit:
        return None
    root = np.sqrt(sizes[:rank])
    a, b = basis @ u[:, :rank] * root, root[:, None] * v[:rank]
    return a.astype(np.float32), b.astype(np.float32)


def _may_be_low(matrix: Floats, limit: int, chance: np.random.Generator) -> bool:
    """False if a part of the matrix alone has a rank above the limit."""
    turned = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    k, n = turned.shape
    rows = np.sort(chance.choice(k, min(limit + 1, k), replace=False))
    columns = np.sort(chance.choice(n, min(2 * len(rows), n), replace=False))
    part = turned[np.ix_(rows, columns)].astype(np.float64)
    try:
        pivots = np.diag(np.linalg.cholesky(part @ part.T))
    except np.linalg.LinAlgError:
        pivots = np.zeros(1)
    if (pivots.min() / max(pivots.max(), 1e-300)) ** 2 >= _SINGULAR:
        return False
    if not np.isfinite(part).all():
        return False
    sizes = np.linalg.svd(part, compute_uv=False)
    return bool(np.count_nonzero(sizes > EPSILON * sizes[0]) <= limit)


@dataclass
class RankScan:
    """Factors of constant matrices, each looked for once.

    A matrix that might have some is known by its hash, whatever its name; one that cannot is not
    read as a whole, not even for its hash.
    """

    _full: WeakSet[Weight] = field(default_factory=WeakSet)
    _found: dict[str, tuple[Floats, Floats] | None] = field(default_factory=dict)

    def factors(self, matrix: Weight) -> tuple[Floats, Floats] | None:
        """Of a float32 matrix as it is stored; None if its rank is not low."""
        *lead, k, n = matrix.shape
        limit = largest_rank(k, n)
        if any(d != 1 for d in lead) or not limit or matrix in self._full:
            return None
        array: Floats = np.asarray(matrix.array(), np.float32).reshape(k, n)
        # Small factorisations take a millisecond on one thread.  OpenBLAS would share them among
        # all processors, each spinning for the others: on a busy machine a hundred times as long.
        with threadpool_limits(1, user_api="blas"):
            if not _may_be_low(array, limit, np.random.default_rng(0)):
                self._full.add(matrix)
                return None
            if matrix.digest not in self._found:
                self._found[matrix.digest] = exact_factors(array)
        return self._found[matrix.digest]
