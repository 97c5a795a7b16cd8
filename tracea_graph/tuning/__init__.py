"""Search over driver configurations, and the persistent cache of what was found."""

from __future__ import annotations

from tracea_graph.tuning.cache import TuningCache
from tracea_graph.tuning.problem import (
    Drivers,
    Problem,
    Workload,
    problems_of,
    with_drivers,
)
from tracea_graph.tuning.tuner import Tuned, Tuner, tune

__all__ = [
    "Drivers", "Problem", "Tuned", "Tuner", "TuningCache", "Workload", "problems_of", "tune",
    "with_drivers",
]  # fmt: skip
