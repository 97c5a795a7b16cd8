"""Channels between two products that go: which, and what the others become to make up for them.

With G = XᵀX over what the second product reads, leaving out the channels R costs it the least
where its other rows become G_KK⁻¹·G_K·W, and of one more channel that costs |w_j|² / (G⁻¹)_jj:
the saliency of Optimal Brain Surgeon (Hassibi and Stork 1993), a whole row of numbers at once;
of an attention head, tr(W_Rᵀ·(G⁻¹)_RR⁻¹·W_R).  Channels go a sixteenth of them at a time, heads
one by one; what is left is made up for in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.weights import ALIGNED

__all__ = ["ChannelOptions"]

Floats = npt.NDArray[np.floating[Any]]
_PARTS = 16
"""Steps in which channels go; each is a choice."""
_DAMPING = 1e-3
"""Share of the Gram matrix's mean diagonal added to all of it: some rows of data are few."""


@dataclass(frozen=True)
class ChannelOptions:
    """What leaving out channels costs a product ``[k, n]``: ``order`` is the first to go first,
    ``errors`` are by how many go."""

    matrix: Floats
    gram: Floats
    order: npt.NDArray[np.int64]
    errors: dict[int, float]
    _made: dict[int, Floats] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, matrix: Floats, gram: Floats | None, share: float, group: int = 1
    ) -> ChannelOptions:
        """Up to a share of the channels, ``group`` neighbours together.

        Without a Gram matrix ``[k, k]`` of what the product reads all channels count alike.
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
        """The matrix without so many channels, their rows zero, the others made up for them."""
        if gone not in self._made:
            kept = np.setdiff1d(np.arange(len(self.matrix)), self.order[:gone])
            damped, other = _damped(self.gram), np.zeros(self.matrix.shape, np.float32)
            other[kept] = np.linalg.solve(damped[np.ix_(kept, kept)], damped[kept] @ self.matrix)
            self._made[gone] = other
        return self._made[gone]


def _least(w: Floats, inverse: Floats, group: int, count: int) -> npt.NDArray[np.int64]:
    """The channels of whole groups that cost the least, so many."""
    parts = w.reshape(-1, group, w.shape[1])
    at = np.arange(len(w)).reshape(-1, group)
    if group > 1:
        blocks = np.stack([inverse[np.ix_(i, i)] for i in at])
        saliency = (parts * np.linalg.solve(blocks, parts)).sum((1, 2))
    else:
        saliency = (w**2).sum(1) / np.diag(inverse)
    return np.asarray(at[np.argsort(saliency)[: count // group]].reshape(-1))


def _counts(k: int, share: float, group: int) -> list[int]:
    """How many of ``k`` channels may go: whole groups, or so that those left fill vectors."""
    if group > 1:
        return [c for c in range(group, k, group) if c <= share * k]
    found = {k - ALIGNED * max(round(k * (1 - i / _PARTS) / ALIGNED), 1) for i in range(1, _PARTS)}
    return sorted(c for c in found if 0 < c <= share * k)


def _damped(gram: Floats) -> Floats:
    return gram + np.eye(len(gram)) * (_DAMPING * float(np.mean(np.diag(gram))) + 1e-300)
