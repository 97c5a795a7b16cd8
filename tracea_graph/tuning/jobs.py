"""What to tune first, and how many trials it is worth.

    expected gain = share of its run's time · what is expected to be won of it
    cost          ∝ one run of the bench model

The row counts asked for are one run, in which every case has its share of the whole model's
predicted time; every typical row count nobody asked for is a run of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tracea_graph.tuning.problem import Case, Workload, default_of, row_class
from tracea_graph.tuning.repeats import repeats
from tracea_graph.tuning.schedule_space import ScheduleSpace
from tracea_graph.tuning.space import candidates

__all__ = ["WORTH", "Job", "Prospects", "allot", "by_worth", "jobs_of"]

_PETTY_US = 3.0
"""A product faster than this is not worth tuning: calling it costs as much."""
_PRIOR_GAIN = 0.03
"""What a case is expected to win before any was measured, where the cost model sees less."""
WORTH = 0.01
"""A run whose remaining cases promise less, end to end, is left as it is."""
_UNASKED_WEIGHT = 0.1
_FEWEST, _MOST = 4, 160
"""Trials of a case, at least and at most."""
_BENCH_BYTES, _PAIRS, _OPENING_US = 64 << 20, 5, 60e3
"""A bench model's weights, the pairs a trial takes on average, and the µs a session takes."""
_SEARCHING = 0.7
"""Share of a case's time for searching; the rest is for telling the best apart."""
_JUDGING = 30
"""Pairs of the verdict, usually."""


@dataclass(frozen=True)
class Job:
    """A case to tune: whether its row count was asked for, and its share of its run's time."""

    case: Case
    asked: bool
    share: float

    @property
    def run(self) -> int:
        """The run it belongs to: 0 for what was asked for, else its row count."""
        return 0 if self.asked else self.case.rows

    @property
    def weight(self) -> float:
        """How much its run counts beside the one asked for."""
        return 1.0 if self.asked else _UNASKED_WEIGHT


def jobs_of(
    workloads: Iterable[Workload],
    schedule_space: ScheduleSpace,
    level: str,
    threads: Sequence[int],
    rest_us: float = 0.0,
) -> list[Job]:
    """Every case of the workloads that is large enough to tune.

    ``rest_us`` is what the model's other regions take, by prediction.
    """
    spent: dict[int, float] = {0: rest_us}
    found: list[tuple[Job, float]] = []
    for load in workloads:
        for rows in (*load.rows, *_others(load)):
            job = Job(Case(load.problem, rows), rows in load.rows, 0.0)
            us = schedule_space.modelled_us(job.case, default_of(job.case), level, threads[0])
            spent[job.run] = spent.get(job.run, 0.0) + us * load.count
            if us >= _PETTY_US:
                found.append((job, us * load.count))
    return [Job(j.case, j.asked, us / spent[j.run]) for j, us in found]


def _others(load: Workload) -> list[int]:
    """Row counts nobody asked for that a table should know."""
    problem = load.problem
    taken = {row_class(problem, rows) for rows in load.rows}
    return [rows for rows in problem.typical_rows if row_class(problem, rows) not in taken]


@dataclass
class Prospects:
    """What jobs are expected to win: what the cost model sees, corrected by what was won."""

    schedule_space: ScheduleSpace
    level: str
    threads: Sequence[int]
    worth: float = WORTH
    _seen: dict[Case, float] = field(default_factory=dict)
    _won: dict[int, list[float]] = field(default_factory=dict)

    def of(self, job: Job) -> float:
        """Expected end-to-end gain of a job, as a share of its run's time."""
        if job.case not in self._seen:
            self._seen[job.case] = self._modelled_gain(job.case)
        won = self._won.get(job.run, [])
        usual, trust = (_PRIOR_GAIN + sum(won)) / (1 + len(won)), 1.0 / (1 + len(won))
        return job.share * (trust * max(self._seen[job.case], usual) + (1 - trust) * usual)

    def _modelled_gain(self, case: Case) -> float:
        """Share of the case's time that the cost model expects the best candidate to save."""
        default, us = default_of(case), self.schedule_space.modelled_us
        gains = (
            1 - us(case, schedule, self.level, t) / us(case, default, self.level, t)
            for schedule in candidates(
                case, self.schedule_space, self.level, self.threads, limit=4
            )
            for t in self.threads
        )
        return max(gains, default=0.0)

    def run_us(self, case: Case) -> float:
        """µs of one run of the case's bench model."""
        us = self.schedule_space.modelled_us(case, default_of(case), self.level, 1)
        return us * repeats(case, self.schedule_space, self.level, _BENCH_BYTES)

    def won(self, job: Job, gain: float) -> None:
        """A job turned out to be so many times as fast: others of its run may expect the like."""
        self._won.setdefault(job.run, []).append(1 - 1 / gain)

    def slice_of(self, jobs: Sequence[Job], seconds: float) -> float:
        """The seconds the first of these jobs may search, of what is left for all of them."""
        wanted = [self.of(job) * job.weight for job in jobs]
        return _SEARCHING * seconds * wanted[0] / (sum(wanted) or 1.0)

    def hopeless(self, jobs: Iterable[Job]) -> set[int]:
        """Runs whose remaining jobs together promise too little."""
        sums: dict[int, float] = {}
        for job in jobs:
            sums[job.run] = sums.get(job.run, 0.0) + self.of(job)
        return {run for run, gain in sums.items() if gain < self.worth}


def by_worth(jobs: Iterable[Job], prospects: Prospects) -> list[Job]:
    """Jobs asked for first, then by expected gain per cost."""

    def worth(job: Job) -> float:
        return prospects.of(job) / prospects.run_us(job.case)

    return sorted(jobs, key=lambda job: (not job.asked, -worth(job)))


def allot(jobs: Sequence[Job], prospects: Prospects, seconds: float) -> Mapping[Case, int]:
    """Trials per case, in proportion to expected gains, of what fits into the time.

    It follows from models alone: equal jobs and budgets give equal numbers on any day.
    """
    wanted = {job.case: prospects.of(job) * job.weight for job in jobs}
    total = sum(wanted.values()) or 1.0
    trials = {}
    for case, gain in wanted.items():
        run_us = prospects.run_us(case) * len(prospects.threads)
        us = seconds * 1e6 * gain / total - 2 * _JUDGING * run_us
        fitting = int(us / (2 * _PAIRS * run_us + _OPENING_US))
        trials[case] = min(max(fitting, _FEWEST), _MOST)
    return trials
