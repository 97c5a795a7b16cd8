"""Table of what each thread did in one run: how busy and how fast it was, what it waited for."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise

from rich.console import RenderableType

from tracea_graph.views.terminal_tables import format_three_digits, new_table, text_cell
from tracea_graph.views.timeline import TaskSpan, Timeline

__all__ = ["ThreadActivity", "activity_of_threads", "render_threads"]


@dataclass(frozen=True)
class ThreadActivity:
    """What one thread did in a run.

    It ran ``tasks`` tasks, which took the share ``busy`` of the run; in the median one took
    ``slower`` times as long as the median of its call.  For the share ``tails`` of the run it had
    nothing to do while others finished a call that it had worked on.  The share ``last`` of the
    run was left after its last task.  Its longest wait took ``wait_us`` µs, before a task of
    the call ``waits_for``.
    """

    thread: int
    tasks: int
    busy: float
    slower: float
    tails: float
    last: float
    wait_us: float
    waits_for: str


def activity_of_threads(timeline: Timeline) -> tuple[ThreadActivity, ...]:
    """Return a row for each thread, in their order."""
    by_thread: dict[int, list[TaskSpan]] = {}
    by_call: dict[int, list[float]] = {}
    for task in sorted(timeline.tasks, key=lambda task: task.begin):
        by_thread.setdefault(task.thread, []).append(task)
        by_call.setdefault(task.call, []).append(task.us)
    usual = {call: statistics.median(times) for call, times in by_call.items()}
    tails: dict[int, float] = {}
    for thread, _, idle in timeline.idle_after_calls:
        tails[thread] = tails.get(thread, 0.0) + idle
    run = timeline.us or 1.0
    rows = []
    for thread, own in sorted(by_thread.items()):
        waits = [(own[0].begin, own[0].call)]
        waits += [(after.begin - before.end, after.call) for before, after in pairwise(own)]
        wait_us, call = max(waits)
        rows.append(
            ThreadActivity(
                thread,
                len(own),
                sum(task.us for task in own) / run,
                statistics.median(task.us / (usual[task.call] or 1.0) for task in own),
                tails.get(thread, 0.0) / run,
                max(timeline.us - own[-1].end, 0.0) / run,
                wait_us,
                timeline.label(call),
            )
        )
    return tuple(rows)


def render_threads(timeline: Timeline) -> RenderableType:
    """Return the table."""
    table = new_table(f"threads of {timeline.title}")
    for name in ("thread", "tasks", "in tasks", "slower", "tails", "after its last", "waits"):
        table.add_column(name, "right")
    table.add_column("before", folds=True)
    for row in activity_of_threads(timeline):
        table.add_row(
            str(row.thread), str(row.tasks), f"{row.busy:.0%}", f"{row.slower:.2f}",
            f"{row.tails:.0%}", f"{row.last:.0%}", f"{format_three_digits(row.wait_us)} µs",
            text_cell(row.waits_for),
        )  # fmt: skip
    return table
