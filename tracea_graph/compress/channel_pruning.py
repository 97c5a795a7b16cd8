"""Prune channels between two products and update the remaining weights to compensate.

With G = XᵀX over the input of the second product, removing the channels R costs least if the
remaining rows become G_KK⁻¹·G_K·W.  Removing one more channel costs |w_j|² / (G⁻¹)_jj, the
saliency of Optimal Brain Surgeon (Hassibi and Stork 1993) for a whole row; removing an attention
head costs tr(W_Rᵀ·(G⁻¹)_RR⁻¹·W_R).  A sixteenth of the channels is removed at a time, heads one by
one, and the rest is updated in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.weight_layouts import ALIGNED

__all__ = ["ChannelPruningErrors"]

Floats = npt.NDArray[np.floating[Any]]
_PARTS = 16
"""Number of steps in which channels are removed; each is an option."""
_DAMPING = 1e-3
"""Damping as a share of the Gram matrix's mean diagonal, for few rows of data."""


@dataclass(frozen=True)
class ChannelPruningErrors:
    """Errors of a product with a matrix ``[k, n]`` when some of its ``k`` channels are removed.

    ``errors`` maps a number of removed channels to the relative error of the result.  ``order``
    lists the channels in the order of their removal.
    """

    matrix: Floats
    gram: Floats
    order: npt.NDArray[np.int64]
    errors: dict[int, float]
    _made: dict[int, Floats] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, matrix: Floats, gram: Floats | None, share: float, group: int = 1
    ) -> ChannelPruningErrors:
        """Choose an order of removal for up to ``share`` of the channels.

        Groups of ``group`` neighbouring channels are removed together.  Without a Gram matrix
        ``[k, k]`` of the product's input all channels are assumed to be equally large.
        """
        k = len(matrix)
        own = np.eye(k) if gram is None else gram
        damped = _damped(own)
        inverse, w, alive = np.linalg.inv(damped), matrix.copy(), np.arange(k)
        order, errors = list[np.int64](), dict[int, float]()
        whole = float(np.sum(matrix * (own @ matrix)))
        for gone in _counts(k, share, group):
            first = _least(w, inverse, group, gone - len(order))
            rest = np.setdiff1d(np.arange(len(w)), first)
            ahead = inverse[np.ix_(rest, first)]
            steps = ahead @ np.linalg.inv(inverse[np.ix_(first, first)])
            w = w[rest] - steps @ w[first]
            inverse = inverse[np.ix_(rest, rest)] - steps @ ahead.T
            order += list(alive[first])
            alive = alive[rest]
            delta = matrix.copy()
            delta[alive] -= w
            lost = float(np.sum(delta * (own @ delta)))
            errors[gone] = float(np.sqrt(max(lost, 0.0) / whole)) if whole else 0.0
        return cls(matrix, own, np.array(order, np.int64), errors)

    def pruned(self, gone: int) -> Floats:
        """Return the matrix with ``gone`` rows of zeros and the other rows updated to
        compensate."""
        if gone not in self._made:
            kept = np.setdiff1d(np.arange(len(self.matrix)), self.order[:gone])
            damped, other = _damped(self.gram), np.zeros(self.matrix.shape, np.float32)
            other[kept] = np.linalg.solve(damped[np.ix_(kept, kept)], damped[kept] @ self.matrix)
            self._made[gone] = other
        return self._made[gone]


def _least(w: Floats, inverse: Floats, group: int, count: int) -> npt.NDArray[np.int64]:
    """Return ``count`` channels in whole groups that cost the least."""
    parts = w.reshape(-1, group, w.shape[1])
    at = np.arange(len(w)).reshape(-1, group)
    if group > 1:
        blocks = np.stack([inverse[np.ix_(i, i)] for i in at])
        saliency = (parts * np.linalg.solve(blocks, parts)).sum((1, 2))
    else:
        saliency = (w**2).sum(1) / np.diag(inverse)
    return np.asarray(at[np.argsort(saliency)[: count // group]].reshape(-1))


def _counts(k: int, share: float, group: int) -> list[int]:
    """Return the numbers of channels to remove: whole groups, or what leaves whole vectors."""
    if group > 1:
        return [c for c in range(group, k, group) if c <= share * k]
    found = {k - ALIGNED * max(round(k * (1 - i / _PARTS) / ALIGNED), 1) for i in range(1, _PARTS)}
    return sorted(c for c in found if 0 < c <= share * k)


def _damped(gram: Floats) -> Floats:
    return gram + np.eye(len(gram)) * (_DAMPING * float(np.mean(np.diag(gram))) + 1e-300)
