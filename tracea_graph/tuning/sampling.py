"""Sampling a space too large to measure: optuna proposes, the study measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tracea_graph.ops.program import GemmDriver

if TYPE_CHECKING:
    import optuna

__all__ = ["sample"]

_SEEDS = 10
"""Candidates measured first, in the order of the cost model."""
_AXES = ("max_rows", "tile_panels", "row_chunk", "panel_group", "prefetch")


def sample(
    candidates: Sequence[GemmDriver],
    score: Callable[[GemmDriver], float | None],
    trials: int,
    seed: int,
) -> bool:
    """Score up to ``trials`` candidates; False as soon as a score is None (time is up).

    Settings that are no candidate are told to the sampler as infeasible and cost nothing.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=_sampler(seed))
    values = {a: sorted({getattr(c, a) for c in candidates}) for a in _AXES}
    space: dict[str, optuna.distributions.BaseDistribution] = {
        a: optuna.distributions.CategoricalDistribution(v) for a, v in values.items()
    }
    for candidate in candidates[:_SEEDS]:
        study.enqueue_trial(dict(zip(_AXES, astuple(candidate), strict=True)))
    known, seen = set(candidates), set[GemmDriver]()
    for _ in range(4 * trials):  # sets a bound where proposals repeat themselves
        trial = study.ask(space)
        driver = GemmDriver(**trial.params)
        if driver not in known:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        if (found := score(driver)) is None:
            return False
        study.tell(trial, found)
        seen.add(driver)
        if len(seen) == trials:
            break
    return True


def _sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Gaussian process where its dependencies are installed, else tree-structured Parzen."""
    import optuna

    if find_spec("scipy") and find_spec("torch"):
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=_SEEDS)
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=_SEEDS)
