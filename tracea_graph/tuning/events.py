"""What a tuner tells while it works: listeners draw progress and write telemetry from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tracea_graph.check.timing import PairedTimes
from tracea_graph.kernels.program import Schedule
from tracea_graph.tuning.problem import Case
from tracea_graph.tuning.tasks import TuningTask

__all__ = [
    "CaseFinished",
    "Event",
    "Listener",
    "TrialMeasured",
    "TuningResult",
    "TuningStarted",
    "ignore",
]


@dataclass(frozen=True)
class TuningResult:
    """What became of one case.

    ``source``: ``cache`` (a hit), ``hint``, ``measured``, ``unfinished`` (time ran out) or
    ``default``.
    ``why`` says, of what was not in the cache, why it was not; of a default, why it was left.
    """

    case: Case
    schedule: Schedule
    gain: float
    source: str
    why: str = ""
    share: float = 0.0
    """Of its run's predicted time; see :class:`~tracea_graph.tuning.tasks.TuningTask`."""


@dataclass(frozen=True)
class TuningStarted:
    """What the cache knows of every case, and the tasks that are to be measured, in order."""

    known: tuple[TuningResult, ...]
    tasks: tuple[TuningTask, ...]
    budget: float


@dataclass(frozen=True)
class TrialMeasured:
    """The times of one trial: the default (a) against a schedule (b), ms of one product.

    ``stage`` is ``search`` or ``verdict``; ``fault`` says why there are none.
    """

    case: Case
    schedule: Schedule
    threads: int
    stage: str
    times: PairedTimes | None
    fault: str = ""


@dataclass(frozen=True)
class CaseFinished:
    """A case is done, after so many seconds."""

    tuned: TuningResult
    seconds: float
    trials: int


Event = TuningStarted | TrialMeasured | CaseFinished
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listens to nothing."""
