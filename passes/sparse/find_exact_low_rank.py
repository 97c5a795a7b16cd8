"""Find constant matrices of exactly low rank.

A submatrix with a well-conditioned Gram matrix has full rank, and the whole matrix has at least
that rank.  A matrix that this does not rule out is projected on a random range.  Source: Halko,
Martinsson, Tropp, "Finding structure with randomness" (SIAM Review 2011), algorithm 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from tracea_graph.ir import Weight

__all__ = ["EPSILON", "Floats", "RankScan", "exact_factors", "largest_rank"]

Floats = npt.NDArray[np.floating[Any]]
EPSILON = 1e-6
"""Relative error (in the Frobenius norm) up to which factors count as exact."""
_SHARE = 4
"""Divisor of the smaller side that gives the largest rank searched for; more gains little."""
_LEAST = 1 << 16
"""Number of elements below which a matrix is not split."""
_OVERSAMPLED = 8
_SINGULAR = 1e-9
"""Ratio of squared singular values below which a submatrix may be rank-deficient."""


def largest_rank(k: int, n: int) -> int:
    """Return the largest rank for which two products pay off; 0 for a small matrix."""
    return min(k, n) // _SHARE if k * n >= _LEAST else 0


def exact_factors(matrix: Floats, seed: int = 0) -> tuple[Floats, Floats] | None:
    """Return float32 factors ``[K, R]`` and ``[R, N]`` of a matrix, exact to :data:`EPSILON`.

    None if R would exceed :func:`largest_rank`, or if the matrix is not finite.
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
    """Return False if a submatrix alone has a rank above the limit."""
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
    """Finds the exact low-rank factors of constant matrices, once for each content.

    Equal matrices are recognized by their hash.  A matrix is hashed only if samples of it do not
    rule out a low rank; others are not read as a whole.
    """

    _full: WeakSet[Weight] = field(default_factory=WeakSet)
    _found: dict[str, tuple[Floats, Floats] | None] = field(default_factory=dict)

    def factors(self, matrix: Weight) -> tuple[Floats, Floats] | None:
        """Return the factors of a float32 matrix as stored; None if its rank is not low."""
        *lead, k, n = matrix.shape
        limit = largest_rank(k, n)
        if any(d != 1 for d in lead) or not limit or matrix in self._full:
            return None
        array: Floats = np.asarray(matrix.array(), np.float32).reshape(k, n)
        # small factorisations: BLAS threads that spin for each other would slow them down by
        # orders of magnitude on a busy machine
        with threadpool_limits(1, user_api="blas"):
            if not _may_be_low(array, limit, np.random.default_rng(0)):
                self._full.add(matrix)
                return None
            if matrix.digest not in self._found:
                self._found[matrix.digest] = exact_factors(array)
        return self._found[matrix.digest]
