"""Tuning on many machines: who publishes a model's cases, and who helps with what is published."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any

from tracea_graph.tuning.events import Settled, Started, Tuned
from tracea_graph.tuning.identity import key_of
from tracea_graph.tuning.jobs import Job, Prospects, allot, by_worth, jobs_of
from tracea_graph.tuning.machine import Task
from tracea_graph.tuning.problem import Case, Workload
from tracea_graph.tuning.schedule_space import ScheduleSpace, Tunable
from tracea_graph.tuning.shared import Shared, SharedStudy
from tracea_graph.tuning.study import Outcome
from tracea_graph.tuning.tuner import KNOWN, Fixture, Tuner
from tracea_graph.tuning.wire import case_from_json, case_to_json

__all__ = ["help_others", "tune_together"]

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class _Part:
    """A case with its shared study and the trials it is worth."""

    job: Job
    study: SharedStudy
    trials: int


def tune_together(made: Tuner, workloads: Sequence[Workload], task: Task) -> list[Tuned]:
    """As :meth:`Tuner.run`, with trials shared through ``task.storage``."""
    shared = Shared(task.storage, made.schedule_space, lost_after=task.lost_after, seed=task.seed)
    end = made.clock() + task.budget
    jobs = jobs_of(workloads, made.schedule_space, made.level, made.threads, task.rest_us)
    found = {job.case: made.known(job) for job in jobs}
    prospects = Prospects(made.schedule_space, made.level, made.threads)
    todo = by_worth((j for j in jobs if found[j.case].source not in KNOWN), prospects)
    made.tell(Started(tuple(found.values()), tuple(todo), task.budget))
    trials = allot(todo, prospects, task.budget)
    parts = []
    for job in todo:
        about = {
            "case": case_to_json(job.case, made.schedule_space), "threads": list(made.threads),
            "share": job.share, "trials": trials[job.case],
        }  # fmt: skip
        study = shared.publish(key_of(made.about(job.case)), about)
        parts.append(_Part(job, study, trials[job.case]))
    if parts:
        with made.stand([job.case.problem for job in todo]) as stand:
            found |= _take_part(made, stand, parts, end)
    return list(found.values())


def help_others(
    task: Task,
    backend: Tunable,
    opened: Callable[[Task], AbstractContextManager[Tuner]],
    *,
    idle: float = float("inf"),
    say: Callable[[str], None] = lambda sentence: None,
) -> int:
    """Take trials of a backend's published cases at ``task.storage``, by tuners that ``opened``
    makes.

    Ends after ``task.budget`` seconds, or ``idle`` seconds without work; how many cases were
    settled meanwhile.
    """
    if (schedule_space := backend.schedule_space) is None:
        return 0
    shared = Shared(task.storage, schedule_space, lost_after=task.lost_after, seed=task.seed)
    end, last, settled = time.monotonic() + task.budget, time.monotonic(), 0
    while True:  # looks once, however long it took to get here
        for (precision, threads), jobs in _published(shared, schedule_space).items():
            own = replace(task, levels=backend.levels("", precision), threads=threads)
            with opened(own) as made:
                if not (parts := _open_parts(made, shared, jobs)):
                    continue
                say(f"{len(parts)} cases are open")
                with made.stand([part.job.case.problem for part in parts]) as stand:
                    settled += len(_take_part(made, stand, parts, end))
                last = time.monotonic()
        if time.monotonic() >= min(end, last + idle):
            return settled
        time.sleep(_POLL_SECONDS)


_Groups = dict[tuple[str, tuple[int, ...]], dict[Case, Mapping[str, Any]]]


def _published(shared: Shared, schedule_space: ScheduleSpace) -> _Groups:
    """Cases by precision and thread counts."""
    groups: _Groups = {}
    for job in shared.jobs():
        with suppress(KeyError, TypeError, ValueError):  # published by another version
            case = case_from_json(job["case"], schedule_space)
            threads = tuple(map(int, job["threads"]))
            precision = "fp32" if case.problem.dtype == "f32" else "bf16"
            groups.setdefault((precision, threads), {})[case] = job
    return groups


def _open_parts(
    made: Tuner, shared: Shared, jobs: Mapping[Case, Mapping[str, Any]]
) -> list[_Part]:
    """Cases that this kind of machine has no outcome of."""
    parts = []
    for case, about in jobs.items():
        study = shared.publish(key_of(made.about(case)), about)
        if study.outcome is None:
            job = Job(case, True, float(about["share"]))
            parts.append(_Part(job, study, int(about["trials"])))
    return parts


def _take_part(
    made: Tuner, stand: Fixture, parts: Sequence[_Part], end: float
) -> dict[Case, Tuned]:
    """Take trials of all parts, in order, until each has an outcome or time is up."""
    found: dict[Case, Tuned] = {}
    left = list(parts)
    while left and made.clock() < end:
        for part in list(left):
            if (outcome := part.study.outcome) is None:
                tuned = made.study(part.job, stand, end, part.trials, part.study)
                found[part.job.case] = tuned
                if not part.study.judging or made.clock() >= end:
                    continue
                final = tuned.source == "measured"
                part.study.conclude(Outcome(tuned.schedule, tuned.gain, final, ()))
            else:
                made.save(part.job.case, outcome)
                schedule, gain, share = outcome.schedule, outcome.gain, part.job.share
                tuned = Tuned(part.job.case, schedule, gain, "measured", "with others", share)
                found[part.job.case] = tuned
                made.tell(Settled(tuned, 0.0, 0))
            left.remove(part)
        if left:
            time.sleep(_POLL_SECONDS)
    return found
