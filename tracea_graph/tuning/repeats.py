"""How often a bench model repeats its problem: over cold weights, as a real model meets them."""

from __future__ import annotations

import math

from tracea_graph.tuning.problem import Case, default_of
from tracea_graph.tuning.schedule_space import ScheduleSpace

__all__ = ["MOST_NODES", "repeats"]

MOST_NODES, _FEWEST_NODES = 128, 2
_ENOUGH_US = 20e3
"""A run that is long enough to be timed, where weights do not matter."""
_COLD_SHARE = 0.02
"""Weights whose transfer takes less of the time do not."""


def repeats(case: Case, schedule_space: ScheduleSpace, level: str, weights: float) -> int:
    """Nodes of a bench model whose weights shall be so many bytes together; fewer where they take
    long enough without, and hardly any time to read."""
    us = schedule_space.modelled_us(case, default_of(case), level, 1)
    size = case.problem.weight_bytes
    count = math.ceil(weights / size)
    if schedule_space.read_us(size) < _COLD_SHARE * us:
        count = min(count, math.ceil(_ENOUGH_US / us))
    return min(max(count, _FEWEST_NODES), MOST_NODES)
