"""Zeros in a matrix: which numbers go, and what the others become to make up for them.

The score of a number is its magnitude, or with calibration data |w|·‖x‖₂ (Wanda, Sun et al. 2023,
arXiv:2306.11695).  With data the rest is updated as well, row after row of the matrix, by
the inverse of the Hessian XᵀX (SparseGPT, Frantar and Alistarh 2023, arXiv:2301.00774).

    0.6               of each column, the 60 % with the lowest scores
    2:4               of 4 numbers in a row along k, the 2 with the lowest scores
    block:16x4:0.7    of blocks of 16 columns and 4 steps of k, the 70 % with the lowest scores
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.config import Prune

__all__ = ["PruneOptions"]

Floats = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.bool_]
_DAMPING = 0.01
"""Share of the Hessian's mean diagonal added to all of it, as SparseGPT does."""
_BATCH = 128
"""Rows updated together."""
_MILDER = (1.0, 0.75, 0.5)
"""Shares of the zeros asked for that a layer may get instead."""


@dataclass(frozen=True)
class PruneOptions:
    """What pruning costs a layer ``[k, n]`` with Gram matrix ``[k, k]`` of its input, if known."""

    matrix: Floats
    spec: Prune
    gram: Floats | None = None
    _made: dict[float, Floats] = field(default_factory=dict, repr=False)

    def shares(self) -> Sequence[float]:
        """The shares of zeros on offer, descending."""
        if self.spec.group:
            return [self.spec.share]
        return [self.spec.share * milder for milder in _MILDER]

    def pruned(self, share: float) -> Floats:
        """The matrix with this share of zeros, the rest made up for them where data is there."""
        if share not in self._made:
            mask = self._mask(share)
            plain = np.where(mask, self.matrix, 0.0)
            updated = plain if self.gram is None else _updated(self.matrix, mask, self.gram)
            best = min((plain, updated), key=self._error_of)
            self._made[share] = best.astype(np.float32)
        return self._made[share]

    def error(self, share: float) -> float:
        """‖X·(W − W')‖ / ‖X·W‖: exact for the inputs the Gram matrix is of."""
        return self._error_of(self.pruned(share))

    def _error_of(self, other: Floats) -> float:
        whole = _energy(self.matrix, self.gram)
        return float(np.sqrt(_energy(self.matrix - other, self.gram) / whole)) if whole else 0.0

    def _mask(self, share: float) -> Mask:
        """True where a number stays."""
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
    """‖X·D‖²."""
    return float(np.sum(matrix * (matrix if gram is None else gram @ matrix)))


def _group_mask(score: Floats, group: int, share: float) -> Mask:
    """In every ``group`` numbers of a column the lowest go; those left over at its end stay."""
    k, n = score.shape
    whole = k - k % group
    parts = score[:whole].reshape(whole // group, group, n)
    mask = np.ones(parts.shape, np.bool_)
    gone = np.argsort(parts, axis=1)[:, : round(share * group)]
    np.put_along_axis(mask, gone, False, axis=1)
    return np.concatenate([mask.reshape(whole, n), np.ones((k - whole, n), np.bool_)])


def _block_mask(score: Floats, block: tuple[int, int], share: float) -> Mask:
    """Whole blocks go, ``block`` columns and steps of k each, over all of the matrix."""
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
    """SparseGPT's update under a given mask: what a row loses the rows after it make up for."""
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
