"""Search over schedule configurations, and the persistent cache of what was found."""

from __future__ import annotations

from tracea_graph.tuning.cache import Entry, TuningCache
from tracea_graph.tuning.events import Event, Listener, Measured, Settled, Started, Tuned, ignore
from tracea_graph.tuning.machine import CACHE_FILE, Task
from tracea_graph.tuning.problem import (
    Case,
    Problem,
    ScheduleTables,
    Workload,
    problems_of,
    with_schedules,
)
from tracea_graph.tuning.schedule_space import Builder, ScheduleSpace, Tunable
from tracea_graph.tuning.tables import tables
from tracea_graph.tuning.tune import tune
from tracea_graph.tuning.tuner import Propose, Tuner

__all__ = [
    "CACHE_FILE",
    "Builder",
    "Case",
    "Entry",
    "Event",
    "Listener",
    "Measured",
    "Problem",
    "Propose",
    "ScheduleSpace",
    "ScheduleTables",
    "Settled",
    "Started",
    "Task",
    "Tunable",
    "Tuned",
    "Tuner",
    "TuningCache",
    "Workload",
    "ignore",
    "problems_of",
    "tables",
    "tune",
    "with_schedules",
]  # fmt: skip
