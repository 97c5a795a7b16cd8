"""Search over schedules, and the persistent cache of results."""

from __future__ import annotations

from tracea_graph.tuning.cache import CacheEntry, TuningCache
from tracea_graph.tuning.events import (
    CaseFinished,
    Event,
    Listener,
    TrialMeasured,
    TuningResult,
    TuningStarted,
    ignore,
)
from tracea_graph.tuning.machine import CACHE_FILE, TuningOptions
from tracea_graph.tuning.problem import (
    Case,
    Problem,
    ScheduleTables,
    Workload,
    problems_of,
    with_schedules,
)
from tracea_graph.tuning.schedule_space import HostTimed, ProgramBuilder, ScheduleSpace, Tunable
from tracea_graph.tuning.tables import tables
from tracea_graph.tuning.tune import tune
from tracea_graph.tuning.tuner import Propose, Tuner

__all__ = [
    "CACHE_FILE",
    "CacheEntry",
    "Case",
    "CaseFinished",
    "Event",
    "HostTimed",
    "Listener",
    "Problem",
    "ProgramBuilder",
    "Propose",
    "ScheduleSpace",
    "ScheduleTables",
    "TrialMeasured",
    "Tunable",
    "Tuner",
    "TuningCache",
    "TuningOptions",
    "TuningResult",
    "TuningStarted",
    "Workload",
    "ignore",
    "problems_of",
    "tables",
    "tune",
    "with_schedules",
]  # fmt: skip
