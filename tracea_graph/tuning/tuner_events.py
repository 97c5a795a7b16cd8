"""Events of a tuner, from which listeners show progress and write telemetry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.kernels.program import Schedule
from tracea_graph.tuning.task_priority import TuningTask
from tracea_graph.tuning.tuning_problem import Case

__all__ = [
    "CaseFinished",
    "Event",
    "Listener",
    "TrialMeasured",
    "TuningResult",
    "TuningStarted",
    "ignore_event",
]


@dataclass(frozen=True)
class TuningResult:
    """The outcome of one case.

    * ``source``: ``cache``, ``hint``, ``measured``, ``unfinished`` (time ran out) or ``default``.
    * ``why``: why a measured case was not in the cache, or why the default was kept.
    """

    case: Case
    schedule: Schedule
    gain: float
    source: str
    why: str = ""
    share: float = 0.0
    """Share of its run's predicted time, as in ``task_priority.TuningTask``."""


@dataclass(frozen=True)
class TuningStarted:
    """Tuning starts: the cache's answer for every case, and the tasks to measure, in order."""

    known: tuple[TuningResult, ...]
    tasks: tuple[TuningTask, ...]
    budget: float


@dataclass(frozen=True)
class TrialMeasured:
    """A trial was measured, at one thread count.

    ``times`` are ms per kernel call, of the default schedule (a) and of ``schedule`` (b); if there
    are none, ``fault`` says why.  ``stage`` is ``search`` or ``verdict``.
    """

    case: Case
    schedule: Schedule
    threads: int
    stage: str
    times: PairedTimes | None
    fault: str = ""


@dataclass(frozen=True)
class CaseFinished:
    """A case is finished after ``seconds``."""

    tuned: TuningResult
    seconds: float
    trials: int


Event = TuningStarted | TrialMeasured | CaseFinished
Listener = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """Ignore an event."""
