"""The tuner: from workloads to schedules, within a budget.

Cases (a problem at a row count) that are cached cost nothing.  The others are studied in order of
expected gain per cost, each with a number of trials proportional to its expected end-to-end gain.
Cases with too small an expected gain, or that the budget does not reach, keep their defaults.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial

from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.kernels.program import Schedule
from tracea_graph.policy import ProcessorFamily, SearchSpace
from tracea_graph.tuning.cache_key import (
    case_facts,
    differs_in_machine_only,
    nearest_result_difference,
    result_cache_key,
)
from tracea_graph.tuning.candidate_selection import candidates_to_measure
from tracea_graph.tuning.result_cache import CacheEntry, TuningCache
from tracea_graph.tuning.schedule_search import (
    Explore,
    Study,
    StudyResult,
    Trial,
    explore_candidates,
)
from tracea_graph.tuning.schedule_space import Fixture, ScheduleSpace
from tracea_graph.tuning.serialization import schedule_to_json
from tracea_graph.tuning.task_priority import (
    MIN_GAIN,
    GainEstimates,
    TuningTask,
    allot_trials,
    sort_by_priority,
    tuning_tasks,
)
from tracea_graph.tuning.tuner_events import (
    CaseFinished,
    Event,
    Listener,
    TrialMeasured,
    TuningResult,
    TuningStarted,
    ignore_event,
)
from tracea_graph.tuning.tuning_problem import Case, Problem, Workload, default_schedule

__all__ = ["KNOWN", "NOT_WORTH_TUNING", "Fixture", "Pin", "Propose", "Tuner"]

CUT_SHORT = "its time ran out; the next run continues this search"
NOT_WORTH_TUNING = "the remaining cases promise less than 1 % end to end"
_ALONE = 0.2
"""Share of ``min_gain`` that a single case must promise in a selective search."""
_COMPARISON_SECONDS = 5.0
"""Time limit of a single comparison."""

Propose = Callable[[Case, Sequence[Schedule]], Sequence[Schedule]]
"""Returns the candidates of a case from the policy's ranked ones: filtered, or with more in front.
"""

Pin = Callable[[Case], Schedule | None]
"""Returns the prescribed schedule of a case, if there is one."""
KNOWN = ("cache", "hint")
"""Sources of cases that need no measuring."""


OpenFixture = Callable[[Sequence[Problem]], AbstractContextManager[Fixture]]


class Tuner:
    """Answers cases from the cache, or by timing schedules on ``fixture()``.

    ``level`` is the highest level of the backend that ``schedule_space`` belongs to; ``threads``
    the thread counts a schedule must do well at; ``facts`` what results depend on besides the
    problem (see ``identity``); ``architecture`` the processor family whose known-good
    configurations are seeds; ``limit`` the maximum number of candidates per case, in the policy's
    order. ``propose`` may change the candidates of a case, ``pin`` may prescribe its schedule.
    Runs whose expected end-to-end gain is below ``min_gain`` are not tuned.  If ``selective``, row
    counts that were not requested, and single cases of small gain, are not tuned either.
    ``within`` replaces axes of the search space; ``run_bytes`` are the weights that one run of the
    fixture reads, if that is known; ``backend`` names the backend in published tasks.
    """

    def __init__(
        self,
        cache: TuningCache,
        fixture: OpenFixture,
        *,
        schedule_space: ScheduleSpace,
        level: str,
        threads: Sequence[int],
        facts: Mapping[str, str],
        architecture: ProcessorFamily | None = None,
        limit: int | None = None,
        seed: int = 0,
        min_gain: float = MIN_GAIN,
        selective: bool = False,
        within: SearchSpace | None = None,
        run_bytes: int | None = None,
        backend: str = "",
        clock: Callable[[], float] = time.monotonic,
        listen: Listener = ignore_event,
        propose: Propose = lambda case, ranked: ranked,
        pin: Pin = lambda case: None,
    ) -> None:
        self.schedule_space, self.level, self.facts = schedule_space, level, facts
        self.threads = tuple(dict.fromkeys(threads))
        self._cache, self.fixture, self._limit = cache, fixture, limit
        self._architecture = architecture
        self._seed, self.clock, self.tell, self._propose = seed, clock, listen, propose
        self._pin, self._min_gain, self._selective = pin, min_gain, selective
        self._within, self._run_bytes, self.backend = within, run_bytes, backend

    def run(
        self, workloads: Iterable[Workload], budget: float, rest_us: float = 0.0
    ) -> list[TuningResult]:
        """Tune within ``budget`` seconds; return the result of every case.

        ``rest_us`` is the predicted µs of the model's other regions.
        """
        tasks = tuning_tasks(workloads, self.schedule_space, self.level, self.threads, rest_us)
        found = {task.case: self.known(task) for task in tasks}
        if budget <= 0:
            self.tell(TuningStarted(tuple(found.values()), (), budget))
            return list(found.values())
        estimates = GainEstimates(
            self.schedule_space, self.level, self.threads, self._min_gain, self._run_bytes
        )
        for task in tasks:
            if found[task.case].source == "cache":
                estimates.record_gain(task, found[task.case].gain)
        todo = sort_by_priority((j for j in tasks if found[j.case].source not in KNOWN), estimates)
        left = self._promising(todo, estimates, found)
        self.tell(TuningStarted(tuple(found.values()), tuple(left), budget))
        if left:
            trials = allot_trials(left, estimates, budget)
            with self.fixture([task.case.problem for task in left]) as fixture:
                end = self.clock() + budget  # compiling is done once and does not count
                while left and self.clock() < end:
                    until = self.clock() + estimates.slice_of(left, end - self.clock())
                    task, *left = left
                    found[task.case] = self.study(
                        task, fixture, end, trials[task.case], until=until
                    )
                    if found[task.case].source == "measured":
                        estimates.record_gain(task, found[task.case].gain)
                    left = self._promising(left, estimates, found)
        return list(found.values())

    def _promising(
        self,
        tasks: Sequence[TuningTask],
        estimates: GainEstimates,
        found: dict[Case, TuningResult],
    ) -> list[TuningTask]:
        """Return tasks with sufficient expected gain; record the reason for the others."""
        below_min_gain = estimates.below_min_gain(tasks)

        def promising(task: TuningTask) -> bool:
            if task.run in below_min_gain:
                return False
            floor = _ALONE * self._min_gain
            return not self._selective or (task.asked and estimates.of(task) >= floor)

        kept = [task for task in tasks if promising(task)]
        for task in tasks:
            if task not in kept and found[task.case].source == "default":
                found[task.case] = replace(found[task.case], why=NOT_WORTH_TUNING)
        return kept

    def about(self, case: Case) -> dict[str, str]:
        """Return everything a case's result depends on, on this machine."""
        about = case_facts(case, self.facts, self.schedule_space, self.level, self.threads)
        return about | ({"space": json.dumps(self._within.to_dict())} if self._within else {})

    def known(self, task: TuningTask) -> TuningResult:
        """Return the hint for a case, else its cached result; neither needs measuring."""
        schedule = self._pin(task.case)
        if schedule is not None:
            return TuningResult(task.case, schedule, 1.0, "hint", "", task.share)
        return self.cached_result(task)

    def cached_result(self, task: TuningTask) -> TuningResult:
        """Return a case's cached result; if there is none, the default and the reason."""
        case, about = task.case, self.about(task.case)
        entry = self._cache.get(result_cache_key(about)) or self._elsewhere(about)
        try:
            if entry is not None:
                schedule = self.schedule_space.schedule_from_json(entry.value["schedule"])
                gain = float(entry.value["gain"])
                if entry.final:
                    return TuningResult(case, schedule, gain, "cache", share=task.share)
                return TuningResult(case, schedule, gain, "unfinished", CUT_SHORT, task.share)
        except (KeyError, TypeError, ValueError):  # damaged: measure again
            pass
        why = nearest_result_difference(about, self._abouts)
        return TuningResult(case, default_schedule(case), 1.0, "default", why, task.share)

    def _elsewhere(self, about: Mapping[str, str]) -> CacheEntry | None:
        """Return another machine's result of a case that cannot be measured here, if imported."""
        if self.schedule_space.can_measure:
            return None
        same = (o for o in self._abouts if differs_in_machine_only(about, o))
        return next(
            (e for o in same if (e := self._cache.get(result_cache_key(o))) and e.final), None
        )

    @cached_property
    def _abouts(self) -> list[dict[str, str]]:
        """Contents of the cache at its first miss."""
        return self._cache.abouts()

    def study(
        self, task: TuningTask, fixture: Fixture, end: float, trials: int,
        search: Explore = explore_candidates, until: float = math.inf,
    ) -> TuningResult:  # fmt: skip
        """Measure schedules of a case and store the result in the cache.

        At most ``trials`` candidates are tried.  The search ends at the time ``until``, all
        measuring at ``end``.
        """
        case, start = task.case, self.clock()
        default = default_schedule(case)
        ranked = candidates_to_measure(
            case, self.schedule_space, self.level, self.threads, self._limit, self._architecture,
            self._within,
        )  # fmt: skip
        study = Study(
            default,
            [d for d in self._propose(case, ranked) if d != default],
            self.threads,
            partial(self._measure, case, fixture, end),
            lambda: self.clock() < end,
            partial(self._save, case, StudyResult(default, 1.0, False, ())),
            known=self._earlier_trials(case),
            seed=self._seed,
            trials=trials,
            search=search,
            may_search=lambda: self.clock() < until,
        )
        outcome = study.run()
        self.save(case, outcome)
        source, why = ("measured", "") if outcome.final else ("unfinished", CUT_SHORT)
        tuned = TuningResult(case, outcome.schedule, outcome.gain, source, why, task.share)
        self.tell(CaseFinished(tuned, self.clock() - start, len(outcome.trials)))
        return tuned

    def save(self, case: Case, outcome: StudyResult) -> None:
        """Store a study's result."""
        self._save(case, outcome, outcome.trials)

    def _measure(
        self, case: Case, fixture: Fixture, end: float,
        schedule: Schedule, threads: int, pairs: int, stage: str,
    ) -> PairedTimes:  # fmt: skip
        seconds = min(_COMPARISON_SECONDS, max(end - self.clock(), 0.05))
        times, fault = None, ""
        try:
            times = fixture.compare(
                case, default_schedule(case), schedule, threads, pairs, seconds
            )
            return times
        except Exception as error:
            fault = str(error)
            raise
        finally:
            event: Event = TrialMeasured(case, schedule, threads, stage, times, fault)
            if times or fault:
                self.tell(event)

    def _earlier_trials(self, case: Case) -> list[Trial]:
        """Return trials of an interrupted study."""
        entry = self._cache.get(result_cache_key(self.about(case)))
        try:
            return (
                [Trial.from_json(t, self.schedule_space) for t in entry.evidence] if entry else []
            )
        except (KeyError, TypeError, ValueError):
            return []

    def _save(self, case: Case, outcome: StudyResult, trials: Sequence[Trial]) -> None:
        value = {"schedule": schedule_to_json(outcome.schedule), "gain": outcome.gain}
        evidence, about = [trial.to_json() for trial in trials], self.about(case)
        entry = CacheEntry(value, evidence, outcome.final, str(case), about)
        self._cache.put(result_cache_key(about), entry)
