"""Progress bar of tuning: progress, remaining time, and the best result yet."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tracea_graph.tuning import CaseFinished, Event, TrialMeasured, TuningStarted
from tracea_graph.views import plain

__all__ = ["Bar"]


class Bar(AbstractContextManager["Bar"]):
    """Listener that draws a progress bar on stderr; use it in a ``with`` statement."""

    def __init__(self, name: str, silent: bool = False) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(),
            TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[best]}"),
            console=Console(stderr=True, quiet=silent), transient=True,
        )  # fmt: skip
        self._name, self._best = plain(name), 1.0
        self._task = self._progress.add_task(escape(f"planning {self._name}"), total=None, best="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Update the bar with an event."""
        if isinstance(event, TuningStarted):
            self._progress.update(
                self._task, total=len(event.tasks), description=escape(f"tuning {self._name}")
            )
        elif isinstance(event, TrialMeasured):
            self._measured(event)
        elif isinstance(event, CaseFinished):
            self._best = 1.0
            self._progress.advance(self._task)

    def _measured(self, event: TrialMeasured) -> None:
        if event.times is not None and event.times.b_ms:
            gain = min(event.times.a_ms) / min(event.times.b_ms)
            self._best = max(self._best, gain)
        self._progress.update(
            self._task, description=escape(str(event.case)), best=f"best {self._best:.2f}×"
        )
