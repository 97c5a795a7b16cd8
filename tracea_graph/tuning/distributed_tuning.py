"""Distributed tuning: publish a model's cases, and run trials of published cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any

from tracea_graph.tuning.cache_key import result_cache_key
from tracea_graph.tuning.machine_tuner import TuningOptions
from tracea_graph.tuning.schedule_search import StudyResult
from tracea_graph.tuning.schedule_space import Tunable
from tracea_graph.tuning.serialization import case_from_json, case_to_json
from tracea_graph.tuning.study_across_machines import SharedStorage, SharedStudy
from tracea_graph.tuning.task_priority import (
    GainEstimates,
    TuningTask,
    allot_trials,
    sort_by_priority,
    tuning_tasks,
)
from tracea_graph.tuning.tuner import KNOWN, Fixture, Tuner
from tracea_graph.tuning.tuner_events import CaseFinished, TuningResult, TuningStarted
from tracea_graph.tuning.tuning_problem import Case, Workload

__all__ = ["run_published_trials", "tune_distributed"]

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class _SharedTask:
    """A case with its shared study and its number of trials."""

    task: TuningTask
    study: SharedStudy
    trials: int


def tune_distributed(
    made: Tuner, workloads: Sequence[Workload], options: TuningOptions
) -> list[TuningResult]:
    """Tune like :meth:`Tuner.run`, together with other machines.

    The trials are published in the database ``options.storage``, where other machines find them.
    """
    shared = SharedStorage(
        options.storage, made.schedule_space, lost_after=options.lost_after, seed=options.seed
    )
    end = made.clock() + options.budget
    tasks = tuning_tasks(workloads, made.schedule_space, made.level, made.threads, options.rest_us)
    found = {task.case: made.known(task) for task in tasks}
    estimates = GainEstimates(made.schedule_space, made.level, made.threads)
    todo = sort_by_priority((j for j in tasks if found[j.case].source not in KNOWN), estimates)
    made.tell(TuningStarted(tuple(found.values()), tuple(todo), options.budget))
    trials = allot_trials(todo, estimates, options.budget)
    parts = []
    for task in todo:
        about = {
            "backend": made.backend, "case": case_to_json(task.case, made.schedule_space),
            "threads": list(made.threads),
            "share": task.share, "trials": trials[task.case],
        }  # fmt: skip
        study = shared.publish(result_cache_key(made.about(task.case)), about)
        parts.append(_SharedTask(task, study, trials[task.case]))
    if parts:
        with made.fixture([task.case.problem for task in todo]) as fixture:
            found |= _run_trials(made, fixture, parts, end)
    return list(found.values())


def run_published_trials(
    options: TuningOptions,
    backends: Sequence[Tunable],
    opened: Callable[[TuningOptions, Tunable], AbstractContextManager[Tuner]],
    *,
    idle: float = float("inf"),
    say: Callable[[str], None] = lambda sentence: None,
) -> int:
    """Run trials of cases that other machines have published at ``options.storage``.

    ``opened`` returns the tuner for a backend.  Ends after ``options.budget`` seconds, or after
    ``idle`` seconds without work.  Returns the number of cases that were finished.
    """
    storages = [
        (b, SharedStorage(options.storage, b.schedule_space, lost_after=options.lost_after,
                          seed=options.seed))
        for b in backends
        if b.schedule_space is not None
    ]  # fmt: skip
    end, last, settled = time.monotonic() + options.budget, time.monotonic(), 0
    while True:  # looks at least once
        groups = ((b, s, *group) for b, s in storages for group in _published(s, b.name).items())
        for backend, shared, (precision, threads), tasks in groups:
            own = replace(options, levels=backend.levels("", precision), threads=threads)
            with opened(own, backend) as made:
                if not (parts := _open_tasks(made, shared, tasks)):
                    continue
                say(f"{len(parts)} cases are open")
                with made.fixture([part.task.case.problem for part in parts]) as fixture:
                    settled += len(_run_trials(made, fixture, parts, end))
                last = time.monotonic()
        if time.monotonic() >= min(end, last + idle):
            return settled
        time.sleep(_POLL_SECONDS)


_Groups = dict[tuple[str, tuple[int, ...]], dict[Case, Mapping[str, Any]]]


def _published(shared: SharedStorage, backend: str) -> _Groups:
    """Return a backend's published cases by precision and thread counts."""
    groups: _Groups = {}
    for task in shared.tasks():
        with suppress(KeyError, TypeError, ValueError):  # published by another version
            if task["backend"] != backend:
                continue
            case = case_from_json(task["case"], shared.schedule_space)
            threads = tuple(map(int, task["threads"]))
            precision = "fp32" if case.problem.dtype == "f32" else "bf16"
            groups.setdefault((precision, threads), {})[case] = task
    return groups


def _open_tasks(
    made: Tuner, shared: SharedStorage, tasks: Mapping[Case, Mapping[str, Any]]
) -> list[_SharedTask]:
    """Return cases without an outcome for this kind of machine."""
    parts = []
    for case, about in tasks.items():
        study = shared.publish(result_cache_key(made.about(case)), about)
        if study.outcome is None:
            task = TuningTask(case, True, float(about["share"]))
            parts.append(_SharedTask(task, study, int(about["trials"])))
    return parts


def _run_trials(
    made: Tuner, fixture: Fixture, parts: Sequence[_SharedTask], end: float
) -> dict[Case, TuningResult]:
    """Run trials of all parts, in order, until each has an outcome or time is up."""
    found: dict[Case, TuningResult] = {}
    left = list(parts)
    while left and made.clock() < end:
        for part in list(left):
            if (outcome := part.study.outcome) is None:
                tuned = made.study(part.task, fixture, end, part.trials, part.study)
                found[part.task.case] = tuned
                if not part.study.judging or made.clock() >= end:
                    continue
                final = tuned.source == "measured"
                part.study.conclude(StudyResult(tuned.schedule, tuned.gain, final, ()))
            else:
                made.save(part.task.case, outcome)
                schedule, gain, share = outcome.schedule, outcome.gain, part.task.share
                tuned = TuningResult(
                    part.task.case, schedule, gain, "measured", "with others", share
                )
                found[part.task.case] = tuned
                made.tell(CaseFinished(tuned, 0.0, 0))
            left.remove(part)
        if left:
            time.sleep(_POLL_SECONDS)
    return found
