"""Approximate a matrix by two factors that are optimal for the observed inputs.

Whitened SVD (SVD-LLM, Wang et al. 2024, arXiv:2403.07378): with G = XᵀX = L·Lᵀ, the matrix W' of
rank r that minimises ‖X·(W − W')‖ = ‖Lᵀ·(W − W')‖ follows from the SVD of Lᵀ·W, and its error is
the root of the sum of the squared singular values after the r-th.  The right singular vectors V
are the eigenvectors of the output covariance WᵀGW, and W' = (W·V_r)·V_rᵀ needs no inverse of L,
however few rows G has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LowRankOptions", "ranks_for"]

Floats = npt.NDArray[np.floating[Any]]
_STEP = 16
"""Granularity of ranks."""
_SHARES = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
"""Shares of elements that the offered ranks keep: few, so that equal layers share a rank."""


def ranks_for(k: int, n: int, even: float | None = None) -> tuple[int, ...]:
    """Return the ranks to try for a ``[k, n]`` matrix: multiples of 16, ascending.

    ``even`` is the rank at which two factors save nothing.  By default, it is the rank at which
    they have as many elements as the matrix.
    """
    even = k * n / (k + n) if even is None else even
    found = {max(_STEP, int(even * share / _STEP) * _STEP) for share in _SHARES}
    return tuple(sorted(r for r in found if r < min(k, n) and r < 0.9 * even))


@dataclass(frozen=True)
class LowRankOptions:
    """Low-rank forms of a layer.

    ``values`` are the squared singular values of the layer's output, descending.  ``basis`` ``[n,
    ·]`` (float32) has its right singular vectors, as many as the largest of the offered ``ranks``.
    """

    values: Floats
    basis: Floats
    ranks: tuple[int, ...]

    @classmethod
    def of(
        cls,
        matrix: Floats,
        gram: Floats | None = None,
        written: bool = False,
        even: float | None = None,
    ) -> LowRankOptions:
        """Factor a matrix ``[k, n]``, given the Gram matrix of its input ``[k, k]`` or, if
        ``written``, of its output ``[n, n]``.

        Without a Gram matrix all inputs count alike (plain SVD).
        """
        ranks = ranks_for(matrix.shape[0], matrix.shape[1], even)
        if written and gram is not None:
            values, vectors = _descending(gram)
        else:
            values, vectors = _spectrum(matrix, gram)
        return cls(values, vectors[:, : max(ranks, default=0)].astype(np.float32), ranks)

    def error(self, rank: int) -> float:
        """Return ‖X·(W − W')‖ / ‖X·W‖ at a rank, exact for the inputs of the Gram matrix."""
        total = float(self.values.sum())
        return float(np.sqrt(self.values[rank:].sum() / total)) if total > 0 else 0.0

    def error_of(self, rank: int, covariance: Floats) -> float:
        """Return the error at a rank on other inputs.

        ``covariance`` ``[n, n]`` is the Gram matrix of the layer's output for these inputs.
        """
        total, basis = float(np.trace(covariance)), self.basis[:, :rank].astype(np.float64)
        kept = float(np.sum(basis * (covariance @ basis)))
        return float(np.sqrt(max(total - kept, 0.0) / total)) if total > 0 else 0.0

    def factors(self, matrix: Floats, rank: int) -> tuple[Floats, Floats]:
        """Return the factors ``[k, rank]`` and ``[rank, n]`` in float32."""
        basis = self.basis[:, :rank]
        return (matrix @ basis).astype(np.float32), np.ascontiguousarray(basis.T)


def _spectrum(w: Floats, g: Floats | None) -> tuple[Floats, Floats]:
    """Return squared singular values, descending, and right singular vectors ``[n, ·]``."""
    k, n = w.shape
    if n <= k:
        return _descending(w.T @ (w if g is None else g @ w))
    root = w if g is None else _root(g) @ w
    values, left = np.linalg.eigh(root @ root.T)
    values, left = np.clip(values[::-1], 0, None), left[:, ::-1]
    lengths = np.sqrt(np.maximum(values, values[0] * 1e-24 + 1e-300))
    return values, (root.T @ left) / lengths


def _descending(covariance: Floats) -> tuple[Floats, Floats]:
    """Return eigenvalues, descending and clamped to 0, and eigenvectors."""
    values, vectors = np.linalg.eigh(covariance)
    return np.clip(values[::-1], 0, None), vectors[:, ::-1]


def _root(gram: Floats) -> Floats:
    """Return Lᵀ with L·Lᵀ = gram, which may be singular."""
    values, vectors = np.linalg.eigh(gram)
    root: Floats = np.sqrt(np.clip(values, 0, None))[:, None] * vectors.T
    return root
