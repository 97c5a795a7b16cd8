"""Sample spaces too large to measure completely: optuna proposes, the study measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from tracea_graph.kernels.program import Schedule

if TYPE_CHECKING:
    import optuna

__all__ = ["SEEDS", "optuna_params", "optuna_sampler", "optuna_space", "sample_candidates"]

SEEDS = 5
"""Candidates measured first, in the cost model's order."""
_STALE = 32
"""Consecutive proposals without a new candidate after which sampling ends."""


def sample_candidates(
    candidates: Sequence[Schedule],
    score: Callable[[Schedule], float | None],
    trials: int,
    seed: int,
    by: optuna.samplers.BaseSampler | None = None,
) -> bool:
    """Score up to ``trials`` candidates that a sampler selects.

    Returns False as soon as ``score`` returns None because time is up.  Points of the sampler's
    space that are no candidates are reported to it as infeasible.  ``by`` is the sampler, by
    default that of :func:`optuna_sampler`.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=by or optuna_sampler(seed))
    space = optuna_space(candidates)
    for candidate in candidates[:SEEDS]:
        study.enqueue_trial(optuna_params(candidate))
    known, seen, stale = set(candidates), set[Schedule](), 0
    while len(seen) < min(trials, len(known)) and stale < _STALE:
        stale += 1
        trial = study.ask(space)
        schedule = candidates[0].having(**trial.params)
        if schedule not in known:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        if (found := score(schedule)) is None:
            return False
        study.tell(trial, found)
        if schedule not in seen:
            seen.add(schedule)
            stale = 0
    return True


def optuna_params(schedule: Schedule) -> dict[str, int]:
    """Return a schedule as optuna parameters."""
    return asdict(schedule)


def optuna_space(
    candidates: Sequence[Schedule],
) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return the axes of the space that contains the candidates."""
    import optuna

    settings = [optuna_params(candidate) for candidate in candidates]
    values = {name: sorted({s[name] for s in settings}) for name in settings[0]}
    return {a: optuna.distributions.CategoricalDistribution(v) for a, v in values.items()}


def optuna_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Return a TPE sampler: it needs the fewest trials of those in ``models.samplers``."""
    import optuna

    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=SEEDS)
