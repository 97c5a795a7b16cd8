"""Driver tables: what was found at single row counts, for every row count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from tracea_graph.ops.program import GemmDriver
from tracea_graph.passes.lower_gemm import DRIVERS
from tracea_graph.tuning.events import Tuned
from tracea_graph.tuning.problem import Problem, row_class

__all__ = ["tables"]


def tables(tuned: Iterable[Tuned]) -> dict[Problem, tuple[GemmDriver, ...]]:
    """One table per problem that has a driver better than the defaults.

    Within a row class, two tuned row counts meet at their geometric mean.
    """
    by_problem: dict[Problem, dict[int, GemmDriver]] = {}
    for t in tuned:
        by_problem.setdefault(t.case.problem, {})[t.case.rows] = t.driver
    made = {problem: _table(drivers) for problem, drivers in by_problem.items()}
    return {problem: table for problem, table in made.items() if table != DRIVERS}


def _table(drivers: Mapping[int, GemmDriver]) -> tuple[GemmDriver, ...]:
    table: list[GemmDriver] = []
    for index, default in enumerate(DRIVERS):
        points = sorted(rows for rows in drivers if row_class(rows) == index)
        for rows, following in pairwise(points):
            table.append(replace(drivers[rows], max_rows=math.isqrt(rows * following)))
        last = drivers[points[-1]] if points else default
        table.append(replace(last, max_rows=default.max_rows))
    return tuple(table)
