"""Progress on stderr: of the steps of an optimization, and of a tuning run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from types import TracebackType

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from tracea_graph.pipeline.step_timer import StepProgress
from tracea_graph.tuning import CaseFinished, Event, TrialMeasured, TuningStarted
from tracea_graph.views import plain_text

__all__ = ["ProgressBar", "StepDisplay"]


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """Listener that draws a progress bar on stderr; use it in a ``with`` statement."""

    def __init__(self, name: str, silent: bool = False) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(),
            TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[best]}"),
            console=Console(stderr=True, quiet=silent), transient=True,
        )  # fmt: skip
        self._name, self._best = plain_text(name), 1.0
        self._task = self._progress.add_task(escape(f"planning {self._name}"), total=None, best="")

    def __enter__(self) -> ProgressBar:
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


class StepDisplay(AbstractContextManager["StepDisplay"]):
    """Listener that shows the steps of one optimization on stderr; use it in a ``with`` statement.

    On a terminal it is a table that disappears at the end; elsewhere each step is a line.
    """

    def __init__(self, name: str, console: Console) -> None:
        self._console, self._start = console, time.monotonic()
        self._step, self._best = "", ""
        self._table = _StepTable(console) if console.is_terminal else None
        if self._table is not None:
            self._task = self._table.add_task(escape(plain_text(name)), total=None, count="")

    def __enter__(self) -> StepDisplay:
        if self._table is not None and not self._console.quiet:
            self._table.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._table is not None:
            self._table.stop()

    def __call__(self, name: str) -> None:
        """Show a step.

        A :class:`~tracea_graph.pipeline.step_timer.StepProgress` also says how far the step is.
        """
        step = name if isinstance(name, StepProgress) else StepProgress(name)
        if self._table is not None:
            self._show(self._table, step)
        else:
            self._print(step)
        self._step, self._best = str(step), step.best or self._best

    def _show(self, table: _StepTable, step: StepProgress) -> None:
        if step != self._step:
            if self._step:
                table.update(self._task, total=1, completed=1)
            self._task = table.add_task(f"  {escape(plain_text(step))}", total=None, count="")
        if step.total:
            count = f"{step.done}/{step.total}"
            table.update(self._task, total=step.total, completed=step.done, count=count)
        table.best = step.best or table.best

    def _print(self, step: StepProgress) -> None:
        if step.best and step.best != self._best:
            self._line(f"first result, verified: {step.best}")
        if step != self._step:
            self._line(step)

    def _line(self, text: str) -> None:
        seconds = f"{time.monotonic() - self._start:6.1f} s"
        with suppress(OSError):  # nobody reads it, or the disk is full
            self._console.print(f"{seconds}  {plain_text(text)}", markup=False, soft_wrap=True)


class _StepTable(Progress):
    """Table of steps, with the best result so far below it."""

    best = ""

    def __init__(self, console: Console) -> None:
        super().__init__(
            TextColumn("{task.description}"), BarColumn(16), TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True,
        )  # fmt: skip

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.best:
            yield Text(f"best so far, verified: {self.best}")
