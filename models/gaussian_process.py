"""A sampler for optuna: a Gaussian process over the candidates, with upper confidence bounds.

Unlike optuna's own samplers it proposes candidates only, each once, so that no proposal is lost
to configurations that are illegal or equivalent to a measured one.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

__all__ = ["GaussianProcessSampler", "features"]

_CONFIDENCE = 1.0
"""Standard deviations that a bound lies above the mean."""
_REFIT = 4
"""Trials between two fits of the length scales."""
_FIXED = "fixed_params"
"""Attribute in which optuna keeps the parameters of an enqueued trial."""

Params = dict[str, Any]


class GaussianProcessSampler(optuna.samplers.BaseSampler):
    """Proposes the candidate with the highest upper confidence bound.

    ``candidates`` are the parameters of all candidates, ``space`` their distributions.
    """

    def __init__(
        self,
        candidates: Sequence[Params],
        space: dict[str, optuna.distributions.BaseDistribution],
        seed: int,
    ) -> None:
        self._candidates, self._space = candidates, space
        self._index = {_key(params): i for i, params in enumerate(candidates)}
        self._points = features(candidates)
        self._random = np.random.default_rng(seed)
        scales = np.full(self._points.shape[1], 0.5)
        self._kernel = ConstantKernel(1.0, (0.05, 20.0)) * Matern(
            scales, (0.1, 20.0), nu=2.5
        ) + WhiteKernel(0.05, (1e-3, 1.0))
        self._fitted_at = -_REFIT

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, optuna.distributions.BaseDistribution]:
        return self._space

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, optuna.distributions.BaseDistribution],
    ) -> Params:
        """Return the parameters of the most promising candidate that no trial has."""
        if _FIXED in trial.system_attrs:
            return {}
        taken, scores = set[int](), dict[int, float]()
        for other in study.get_trials(deepcopy=False):
            at = self._index.get(_key(other.params))
            if at is None or other.state not in (TrialState.COMPLETE, TrialState.RUNNING):
                continue
            taken.add(at)
            if other.value:  # 0: it cannot run
                scores[at] = other.value
        rest = [i for i in range(len(self._candidates)) if i not in taken]
        if not rest:
            return self._candidates[0]
        return self._candidates[self._best(rest, scores) if scores else rest[0]]

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: optuna.distributions.BaseDistribution,
    ) -> Any:
        """Return a parameter of the first candidate; only asked for other search spaces."""
        return self._candidates[0][param_name]

    def _best(self, rest: Sequence[int], scores: dict[int, float]) -> int:
        """Return the candidate of ``rest`` with the highest bound; ties are drawn."""
        refit = len(scores) - self._fitted_at >= _REFIT
        process = GaussianProcessRegressor(
            self._kernel, normalize_y=True, optimizer="fmin_l_bfgs_b" if refit else None
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a scale at its bound is fine
            process.fit(self._points[[*scores]], np.array([*scores.values()]))
        if refit:
            self._kernel, self._fitted_at = process.kernel_, len(scores)
        mean, deviation = process.predict(self._points[rest], return_std=True)
        bound = mean + _CONFIDENCE * deviation
        ties = np.flatnonzero(bound >= bound.max() - 1e-12)
        return rest[int(self._random.choice(ties))]


def features(candidates: Sequence[Params]) -> NDArray[np.float64]:
    """Return a point per candidate: each setting's rank in [0, 1], and whether it is automatic.

    A setting of 0 leaves the choice to the library, so its rank says nothing about it.
    """
    table = np.array([[*params.values()] for params in candidates])
    columns = list[NDArray[np.float64]]()
    for column in table.T:
        values, rank = np.unique(column, return_inverse=True)
        if len(values) < 2:
            continue
        columns.append(rank / (len(values) - 1))
        if values[0] == 0 and len(values) > 2:
            columns.append(0.5 * (column == 0))
    return np.stack(columns, axis=1)


def _key(params: Params) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(params.items()))
