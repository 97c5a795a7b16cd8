"""Choose how many replicas of a problem a fixture's model has, so that its weights are cold."""

from __future__ import annotations

import math

from tracea_graph.tuning.problem import Case, default_of
from tracea_graph.tuning.schedule_space import ScheduleSpace

__all__ = ["MOST_NODES", "replicas"]

MOST_NODES, _FEWEST_NODES = 128, 2
_ENOUGH_US = 20e3
"""Sufficient duration of a run in µs if weights do not matter."""
_COLD_SHARE = 0.02
"""Weights do not matter if reading them takes less than this share of the time."""


def replicas(case: Case, schedule_space: ScheduleSpace, level: str, weights: float) -> int:
    """Return the number of nodes whose ``weights`` bytes together exceed the cache.

    Fewer if reading weights takes hardly any time and a shorter run is long enough.
    """
    us = schedule_space.modelled_us(case, default_of(case), level, 1)
    size = case.problem.weight_bytes
    count = math.ceil(weights / size)
    if schedule_space.read_us(size) < _COLD_SHARE * us:
        count = min(count, math.ceil(_ENOUGH_US / us))
    return min(max(count, _FEWEST_NODES), MOST_NODES)
