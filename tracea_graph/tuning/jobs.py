"""What to tune first: cases in the order of expected gain per time of measuring.

    expected gain = share of its run's time · what the cost model sees to be won
    cost          ∝ one run of the bench model: time per byte of weights

Row counts are runs of their own: a product at one row may matter as much as the same at 512.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracea_graph.tuning.problem import Case, Workload, row_class
from tracea_graph.tuning.space import candidates, default_of, modelled_us

__all__ = ["TYPICAL_ROWS", "Job", "by_worth", "jobs_of"]

TYPICAL_ROWS = (1, 16, 128, 1024)
"""The row count that stands for each row class nobody asked for."""
_PETTY_US = 3.0
"""A product faster than this is not worth tuning: calling it costs as much."""
_LEAST_GAIN = 0.01
"""What may be won even where the cost model sees nothing."""


@dataclass(frozen=True)
class Job:
    """A case to tune: whether its row count was asked for, and its share of its run's time."""

    case: Case
    asked: bool
    share: float


def jobs_of(workloads: Iterable[Workload], isa: str, threads: Sequence[int]) -> list[Job]:
    """Every case of the workloads that is large enough to tune."""
    spent: dict[int, float] = {}
    found: list[tuple[Case, bool, float, int]] = []
    for load in workloads:
        taken = {row_class(rows) for rows in load.rows}
        others = [rows for rows in TYPICAL_ROWS if row_class(rows) not in taken]
        for rows in (*load.rows, *others):
            case = Case(load.problem, rows)
            us = modelled_us(case, default_of(case), isa, threads[0])
            spent[rows] = spent.get(rows, 0.0) + us * load.count
            found.append((case, rows in load.rows, us, load.count))
    return [
        Job(case, asked, us * count / spent[case.rows])
        for case, asked, us, count in found
        if us >= _PETTY_US
    ]


def by_worth(jobs: Iterable[Job], isa: str, threads: Sequence[int]) -> list[Job]:
    """Jobs asked for first, then by expected gain per cost."""

    def worth(job: Job) -> float:
        return job.share * _gain(job.case, isa, threads) / _cost(job.case, isa)

    return sorted(jobs, key=lambda job: (not job.asked, -worth(job)))


def _gain(case: Case, isa: str, threads: Sequence[int]) -> float:
    """Share of the case's time that the cost model expects the best candidate to save."""
    default = default_of(case)
    best = max(
        (
            1 - modelled_us(case, driver, isa, t) / modelled_us(case, default, isa, t)
            for driver in candidates(case, isa, threads, limit=4)
            for t in threads
        ),
        default=0.0,
    )
    return max(best, _LEAST_GAIN)


def _cost(case: Case, isa: str) -> float:
    return modelled_us(case, default_of(case), isa, 1) / case.problem.weight_bytes
