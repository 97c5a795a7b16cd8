"""Prune a matrix: choose the elements to zero and update the others to compensate.

The score of an element is its magnitude, or with calibration data |w|·‖x‖₂ (Wanda, Sun et al.
2023, arXiv:2306.11695).  With data, the remaining elements are updated row by row by the inverse
of the Hessian XᵀX (SparseGPT, Frantar and Alistarh 2023, arXiv:2301.00774).

    0.6               of each column, the 60 % with the lowest scores
    2:4               of 4 neighbours along k, the 2 with the lowest scores
    block:16x4:0.7    of blocks of 16 columns and 4 steps of k, the 70 % with the lowest scores
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.config import PruneSpec

__all__ = ["PruneOptions"]

Floats = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.bool_]
_DAMPING = 0.01
"""Damping as a share of the Hessian's mean diagonal, as in SparseGPT."""
_BATCH = 128
"""Rows updated together."""
_MILDER = (1.0, 0.75, 0.5)
"""Smaller shares of zeros, relative to the one requested, that are offered too."""


@dataclass(frozen=True)
class PruneOptions:
    """Pruned forms of a layer's ``matrix`` ``[k, n]`` in the pattern ``spec``.

    ``gram`` ``[k, k]`` is the Gram matrix of the layer's input; None without data.
    """

    matrix: Floats
    spec: PruneSpec
    gram: Floats | None = None
    _made: dict[float, Floats] = field(default_factory=dict, repr=False)

    def shares(self) -> Sequence[float]:
        """Return the offered shares of zeros, descending."""
        if self.spec.group:
            return [self.spec.share]
        return [self.spec.share * milder for milder in _MILDER]

    def pruned(self, share: float) -> Floats:
        """Return the matrix with this share of zeros.

        The other elements are updated to compensate, if there is data and if this reduces the
        error.
        """
        if share not in self._made:
            mask = self._mask(share)
            plain = np.where(mask, self.matrix, 0.0)
            updated = plain if self.gram is None else _updated(self.matrix, mask, self.gram)
            best = min((plain, updated), key=self._error_of)
            self._made[share] = best.astype(np.float32)
        return self._made[share]

    def error(self, share: float) -> float:
        """Return ‖X·(W − W')‖ / ‖X·W‖, where W' has ``share`` of the weights set to zero.

        It is exact for the inputs X of the Gram matrix.
        """
        return self._error_of(self.pruned(share))

    def _error_of(self, other: Floats) -> float:
        whole = _energy(self.matrix, self.gram)
        return float(np.sqrt(_energy(self.matrix - other, self.gram) / whole)) if whole else 0.0

    def _mask(self, share: float) -> Mask:
        """Return a mask that is true where an element is kept."""
        score = np.abs(self.matrix)
        if self.gram is not None:
            score = score * np.sqrt(np.clip(np.diag(self.gram), 0, None))[:, None]
        if self.spec.group:
            return _group_mask(score, self.spec.group, share)
        if self.spec.block:
            return _block_mask(score, self.spec.block, share)
        gone = round(share * len(score))
        mask = np.ones(score.shape, np.bool_)
        np.put_along_axis(mask, np.argsort(score, axis=0)[:gone], False, axis=0)
        return mask


def _energy(matrix: Floats, gram: Floats | None) -> float:
    """Return ‖X·D‖²."""
    return float(np.sum(matrix * (matrix if gram is None else gram @ matrix)))


def _group_mask(score: Floats, group: int, share: float) -> Mask:
    """Drop the lowest of every ``group`` elements of a column; a partial last group is kept."""
    k, n = score.shape
    whole = k - k % group
    parts = score[:whole].reshape(whole // group, group, n)
    mask = np.ones(parts.shape, np.bool_)
    gone = np.argsort(parts, axis=1)[:, : round(share * group)]
    np.put_along_axis(mask, gone, False, axis=1)
    return np.concatenate([mask.reshape(whole, n), np.ones((k - whole, n), np.bool_)])


def _block_mask(score: Floats, block: tuple[int, int], share: float) -> Mask:
    """Drop whole blocks of ``block`` columns and steps of k, ranked over the whole matrix."""
    columns, steps = block
    k, n = score.shape
    down, across = -(-k // steps), -(-n // columns)
    wide = np.pad(score**2, ((0, down * steps - k), (0, across * columns - n)))
    sums = wide.reshape(down, steps, across, columns).sum((1, 3))
    stay = np.ones(sums.size, np.bool_)
    stay[np.argsort(sums, axis=None)[: round(share * sums.size)]] = False
    mask = np.repeat(np.repeat(stay.reshape(down, across), steps, 0), columns, 1)
    return mask[:k, :n]


def _updated(matrix: Floats, mask: Mask, gram: Floats) -> Floats:
    """Apply SparseGPT's update for a mask: later rows compensate for what a row loses."""
    k = len(matrix)
    damped = gram + np.eye(k) * (_DAMPING * float(np.mean(np.diag(gram))) + 1e-300)
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    w = matrix.copy()
    for start in range(0, k, _BATCH):
        end = min(start + _BATCH, k)
        lost = np.zeros((end - start, matrix.shape[1]))
        for i in range(start, end):
            row = lost[i - start] = np.where(mask[i], 0.0, w[i]) / upper[i, i]
            w[i:end] -= np.outer(upper[i, i:end], row)
        w[end:] -= upper[start:end, end:].T @ lost
    return np.where(mask, w, 0.0)
