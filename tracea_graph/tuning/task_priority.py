"""Order tuning tasks and allot trials by expected gain per cost.

    expected gain = share of its run's time · expected speed-up of the task
    cost          ∝ one run of the fixture's model

The requested row counts form one run, in which every case has its share of the whole model's
predicted time; every typical row count that was not requested forms a run of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tracea_graph.tuning.benchmark_fixture import replica_count
from tracea_graph.tuning.candidate_selection import candidates_to_measure
from tracea_graph.tuning.schedule_space import ScheduleSpace
from tracea_graph.tuning.tuning_problem import Case, Workload, default_schedule, row_class

__all__ = [
    "MIN_GAIN",
    "GainEstimates",
    "TuningTask",
    "allot_trials",
    "sort_by_priority",
    "tuning_tasks",
]

_PRIOR_WEIGHT = 0.03
"""Added to a run's sums of measured and expected gains, so that few gains change little."""
MIN_GAIN = 0.01
"""Runs whose remaining cases promise a smaller end-to-end gain are not tuned."""
_UNASKED_WEIGHT = 0.1
_FEWEST, _MOST = 4, 160
"""Minimum and maximum trials of a case."""
_BENCH_BYTES, _PAIRS, _OPENING_US = 64 << 20, 5, 60e3
"""Bytes of weights a run reads if they are cold, average pairs per trial, µs to open a session."""
_SEARCHING = 0.7
"""Share of a case's time for searching; the rest is for the verdict."""
_JUDGING = 30
"""Typical number of pairs of the verdict."""


@dataclass(frozen=True)
class TuningTask:
    """A case to tune.

    ``asked`` is True if its row count was requested; otherwise it is a representative one.
    ``share`` is the part of its run's predicted time that the case takes; see :attr:`run`.
    """

    case: Case
    asked: bool
    share: float

    @property
    def run(self) -> int:
        """Run of the model that the case belongs to.

        All requested row counts belong to run 0; any other row count is a run of its own.
        """
        return 0 if self.asked else self.case.rows

    @property
    def weight(self) -> float:
        """Importance of the case's run; that of the requested row counts has weight 1."""
        return 1.0 if self.asked else _UNASKED_WEIGHT


def tuning_tasks(
    workloads: Iterable[Workload],
    schedule_space: ScheduleSpace,
    level: str,
    threads: Sequence[int],
    rest_us: float = 0.0,
) -> list[TuningTask]:
    """Return a task for every case of the workloads that takes long enough to be worth tuning.

    ``rest_us`` is the predicted µs of all other regions of the model.
    """
    spent: dict[int, float] = {0: rest_us}
    found: list[tuple[TuningTask, float]] = []
    for load in workloads:
        for rows in (*load.rows, *_others(load)):
            task = TuningTask(Case(load.problem, rows), rows in load.rows, 0.0)
            us = schedule_space.modelled_us(
                task.case, default_schedule(task.case), level, threads[0]
            )
            spent[task.run] = spent.get(task.run, 0.0) + us * load.count
            if us >= schedule_space.least_us:
                found.append((task, us * load.count))
    return [TuningTask(j.case, j.asked, us / spent[j.run]) for j, us in found]


def _others(load: Workload) -> list[int]:
    """Row counts to tune for the tables that were not requested."""
    problem = load.problem
    taken = {row_class(problem, rows) for rows in load.rows}
    return [rows for rows in problem.typical_rows if row_class(problem, rows) not in taken]


@dataclass
class GainEstimates:
    """Estimates how much time tuning will save.

    The estimate for a task is the gain that the time model predicts or that such cases usually
    have.  After some tasks of a run were tuned, the usual gains are scaled by how their measured
    gains compare with the usual ones.
    """

    schedule_space: ScheduleSpace
    level: str
    threads: Sequence[int]
    min_gain: float = MIN_GAIN
    run_bytes: int | None = None
    _modelled: dict[Case, float] = field(default_factory=dict)
    _gains: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def of(self, task: TuningTask) -> float:
        """Return the share of the whole run's time that tuning a task is expected to save."""
        if task.case not in self._modelled:
            self._modelled[task.case] = self._modelled_gain(task.case)
        gains, trust = self._gains.get(task.run, []), 1.0
        usual = self.schedule_space.usual_gain(task.case)
        if gains:
            found, wanted = (_PRIOR_WEIGHT + sum(each) for each in zip(*gains, strict=True))
            usual, trust = usual * found / wanted, 1.0 / (1 + len(gains))
        return task.share * (trust * max(self._modelled[task.case], usual) + (1 - trust) * usual)

    def _modelled_gain(self, case: Case) -> float:
        """Predict the share of the case's time that the best candidate saves."""
        default, us = default_schedule(case), self.schedule_space.modelled_us
        gains = (
            1 - us(case, schedule, self.level, t) / us(case, default, self.level, t)
            for schedule in candidates_to_measure(
                case, self.schedule_space, self.level, self.threads, limit=4
            )
            for t in self.threads
        )
        return max(gains, default=0.0)

    def run_us(self, case: Case) -> float:
        """Return the predicted µs of one run of the benchmark model for a case."""
        us = self.schedule_space.modelled_us(case, default_schedule(case), self.level, 1)
        return us * replica_count(
            case, self.schedule_space, self.level, self.run_bytes or _BENCH_BYTES
        )

    def record_gain(self, task: TuningTask, gain: float) -> None:
        """Record a measured speed-up; it changes the estimates for other tasks of the same run."""
        found = 1 - 1 / gain, self.schedule_space.usual_gain(task.case)
        self._gains.setdefault(task.run, []).append(found)

    def slice_of(self, tasks: Sequence[TuningTask], seconds: float) -> float:
        """Return for how many seconds to search for a schedule of the first of ``tasks``.

        ``seconds`` is the time left for all of them.
        """
        wanted = [self.of(task) * task.weight for task in tasks]
        return _SEARCHING * seconds * wanted[0] / (sum(wanted) or 1.0)

    def below_min_gain(self, tasks: Iterable[TuningTask]) -> set[int]:
        """Return the runs for which tuning all their remaining tasks is not worthwhile.

        The expected gains of the tasks add up to less than ``min_gain``.
        """
        sums: dict[int, float] = {}
        for task in tasks:
            sums[task.run] = sums.get(task.run, 0.0) + self.of(task)
        return {run for run, gain in sums.items() if gain < self.min_gain}


def sort_by_priority(tasks: Iterable[TuningTask], estimates: GainEstimates) -> list[TuningTask]:
    """Sort tasks: requested ones first, then by expected gain per cost."""

    def priority(task: TuningTask) -> float:
        return estimates.of(task) / estimates.run_us(task.case)

    return sorted(tasks, key=lambda task: (not task.asked, -priority(task)))


def allot_trials(
    tasks: Sequence[TuningTask], estimates: GainEstimates, seconds: float
) -> Mapping[Case, int]:
    """Return the number of trials for each case, so that all trials fit into ``seconds``.

    It is proportional to the expected gain.  Only time models are used, so that all machines
    calculate equal numbers.
    """
    wanted = {task.case: estimates.of(task) * task.weight for task in tasks}
    total = sum(wanted.values()) or 1.0
    trials = {}
    for case, gain in wanted.items():
        run_us = estimates.run_us(case) * len(estimates.threads)
        us = seconds * 1e6 * gain / total - 2 * _JUDGING * run_us
        fitting = int(us / (2 * _PAIRS * run_us + _OPENING_US))
        trials[case] = min(max(fitting, _FEWEST), _MOST)
    return trials
