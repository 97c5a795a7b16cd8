"""Search over schedules, and the persistent cache of results."""

from __future__ import annotations

from tracea_graph.tuning.machine_tuner import CACHE_FILE, TuningOptions
from tracea_graph.tuning.result_cache import CacheEntry, TuningCache
from tracea_graph.tuning.schedule_space import HostTimed, ProgramBuilder, ScheduleSpace, Tunable
from tracea_graph.tuning.schedule_tables import schedule_tables
from tracea_graph.tuning.tune import tune
from tracea_graph.tuning.tuner import Propose, Tuner
from tracea_graph.tuning.tuner_events import (
    CaseFinished,
    Event,
    Listener,
    TrialMeasured,
    TuningResult,
    TuningStarted,
    ignore_event,
)
from tracea_graph.tuning.tuning_problem import (
    Case,
    Problem,
    ScheduleTables,
    Workload,
    problems_of,
    with_schedules,
)

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
    "ignore_event",
    "problems_of",
    "schedule_tables",
    "tune",
    "with_schedules",
]  # fmt: skip
