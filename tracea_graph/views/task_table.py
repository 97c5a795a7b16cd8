"""Table of the tasks that threads ran in one run, by kernel call: how long they and tails are."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.views.terminal_tables import format_three_digits, new_table, text_cell
from tracea_graph.views.timeline import TaskSpan, Timeline

__all__ = ["LONG_TAIL", "SHORT_US", "CallTasks", "calls_of", "render_tasks"]

SHORT_US = 2.0
"""Tasks of fewer µs cost more to hand out than they gain."""
LONG_TAIL = 0.05
"""Share of a call's time above which its tail is worth looking at."""


@dataclass(frozen=True)
class CallTasks:
    """The tasks of equal calls in one run.

    There are ``calls`` calls named ``name``.  Of each, in the median: ``tasks`` tasks, of
    ``task_us`` µs in the median, on ``threads`` threads; the call takes ``us`` µs from its first
    task's begin to its last one's end.  ``tail`` is the share of all threads' time in these calls
    for which a thread had nothing to do after its last task, while others still had tasks.
    """

    name: str
    calls: int
    tasks: float
    threads: float
    task_us: float
    us: float
    tail: float

    @property
    def short(self) -> bool:
        """Whether the call is divided into tasks that are too short."""
        return self.tasks > 1 and self.task_us < SHORT_US

    @property
    def late(self) -> bool:
        """Whether the tail is long."""
        return self.tail > LONG_TAIL


def calls_of(timeline: Timeline) -> tuple[CallTasks, ...]:
    """Return a row for each name of calls, those that take the most time together first."""
    spans: dict[int, list[TaskSpan]] = {}
    for task in timeline.tasks:
        spans.setdefault(task.call, []).append(task)
    tails = timeline.tails
    by_name: dict[str, list[int]] = {}
    for call in spans:
        by_name.setdefault(timeline.label(call), []).append(call)
    rows = [
        _row(name, [spans[call] for call in calls], [tails.get(call, 0.0) for call in calls])
        for name, calls in by_name.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.calls * row.us))


def _row(name: str, calls: Sequence[Sequence[TaskSpan]], tails: Sequence[float]) -> CallTasks:
    spans = [max(t.end for t in tasks) - min(t.begin for t in tasks) for tasks in calls]
    threads = [len({task.thread for task in tasks}) for tasks in calls]
    whole = sum(us * n for us, n in zip(spans, threads, strict=True))
    return CallTasks(
        name,
        len(calls),
        statistics.median(len(tasks) for tasks in calls),
        statistics.median(threads),
        statistics.median(task.us for tasks in calls for task in tasks),
        statistics.median(spans),
        sum(tails) / whole if whole else 0.0,
    )


def render_tasks(timeline: Timeline) -> RenderableType:
    """Return the table, and a sentence about short tasks and long tails."""
    return Group(*_parts(timeline))


def _parts(timeline: Timeline) -> Iterator[RenderableType]:
    rows = calls_of(timeline)
    table = new_table(f"tasks of {timeline.title}")
    table.add_column("call", folds=True)
    for name in ("calls", "tasks", "threads", "task", "takes", "tail"):
        table.add_column(name, "right")
    for row in rows:
        table.add_row(
            text_cell(row.name), str(row.calls), f"{row.tasks:g}", f"{row.threads:g}",
            f"{format_three_digits(row.task_us)} µs{' *' if row.short else ''}",
            f"{format_three_digits(row.us)} µs", f"{row.tail:.0%}{' *' if row.late else ''}",
        )  # fmt: skip
    yield table
    calls = sum(row.calls for row in rows)
    short, late = (sum(r.calls for r in rows if getattr(r, key)) for key in ("short", "late"))
    yield Text(
        f"{short} of {calls} calls have tasks of less than {SHORT_US:g} µs, "
        f"{late} a tail of more than {LONG_TAIL:.0%} of the call (*)"
    )
