"""Schedule tables: extend results at single row counts to every row count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise

from tracea_graph.kernels.program import Schedule
from tracea_graph.tuning.tuner_events import TuningResult
from tracea_graph.tuning.tuning_problem import Problem, row_class

__all__ = ["schedule_tables"]


def schedule_tables(tuned: Iterable[TuningResult]) -> dict[Problem, tuple[Schedule, ...]]:
    """Return, for each problem that tuning improved, a table of schedules by row count.

    Between two tuned row counts of one row class, the schedule changes at their geometric mean.
    """
    by_problem: dict[Problem, dict[int, Schedule]] = {}
    for t in tuned:
        by_problem.setdefault(t.case.problem, {})[t.case.rows] = t.schedule
    made = {problem: _table(problem, schedules) for problem, schedules in by_problem.items()}
    return {problem: table for problem, table in made.items() if table != problem.defaults}


def _table(problem: Problem, schedules: Mapping[int, Schedule]) -> tuple[Schedule, ...]:
    table: list[Schedule] = []
    for index, default in enumerate(problem.defaults):
        points = sorted(rows for rows in schedules if row_class(problem, rows) == index)
        for rows, following in pairwise(points):
            table.append(schedules[rows].up_to(math.isqrt(rows * following)))
        last = schedules[points[-1]] if points else default
        table.append(last.up_to(default.limit))
    return tuple(table)
