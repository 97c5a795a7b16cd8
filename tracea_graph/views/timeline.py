"""Timeline of one run: which thread ran which task of which kernel call, as SVG."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from itertools import pairwise

import jinja2

from tracea_graph.views.terminal_tables import plain_text

__all__ = ["TaskSpan", "Timeline", "timeline_svg"]

LEFT, TOP, WIDTH, LANE = 46.0, 64.0, 1320.0, 18.0
_COLOURS = (
    "#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#d53f8c", "#319795", "#718096",
)  # fmt: skip
"""Colors of the kernels, the longest first; kernels beyond the list share the last color."""
_TICKS = 8
_MANY, _EACH = 64, 4
"""Lanes above which they are drawn low, with a number beside every fourth processor's."""


@dataclass(frozen=True)
class TaskSpan:
    """One task: the index of its call, its thread, and when it began and ended (µs)."""

    call: int
    thread: int
    begin: float
    end: float

    @property
    def us(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Timeline:
    """All tasks of one run of a program.

    The run took ``us`` microseconds.  ``calls`` are the names of the kernel calls, which tasks
    refer to by index.  Threads are numbered from 0 in the order in which they began.
    All tasks of a run on one thread take ``alone`` µs; None where that was not measured.

    Where ``processors`` are given, these run several tasks at a time: each "thread" is then a slot
    of one of them, and ``processors`` holds its number.  ``recorded`` are the µs of a run that
    records tasks, and of one that does not, by the host's clock.
    """

    title: str
    us: float
    calls: tuple[str, ...]
    tasks: tuple[TaskSpan, ...]
    alone: float | None = None
    processors: tuple[int, ...] = ()
    processor: str = "thread"
    recorded: tuple[float, float] | None = None

    @cached_property
    def threads(self) -> int:
        return max((task.thread for task in self.tasks), default=0) + 1

    def label(self, call: int) -> str:
        """Return a call's name with its size."""
        return self.calls[call] if call < len(self.calls) else f"call {call}"

    def kernel(self, call: int) -> str:
        """Return the name of a call's kernel, without its size."""
        return self.calls[call].split(" ")[0] if call < len(self.calls) else f"call {call}"

    @cached_property
    def idle_after_calls(self) -> tuple[tuple[int, int, float], ...]:
        """Threads, calls, and the µs between a thread's last task of a call and the call's end.

        A thread that goes on to another call is idle until then only.
        """
        ends: dict[int, float] = {}
        lanes: dict[int, list[TaskSpan]] = {}
        for task in sorted(self.tasks, key=lambda task: task.begin):
            ends[task.call] = max(ends.get(task.call, 0.0), task.end)
            lanes.setdefault(task.thread, []).append(task)
        found = []
        for thread, lane in lanes.items():
            for task, after in zip(lane, [*lane[1:], None], strict=True):
                if after is None or after.call != task.call:
                    until = ends[task.call] if after is None else min(ends[task.call], after.begin)
                    found.append((thread, task.call, max(until - task.end, 0.0)))
        return tuple(found)

    @cached_property
    def tails(self) -> dict[int, float]:
        """The time (µs) of threads between their last task of a call and its end, by call."""
        tails: dict[int, float] = {}
        for _, call, idle in self.idle_after_calls:
            tails[call] = tails.get(call, 0.0) + idle
        return tails

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the total time of all threads, by what the threads do.

        ``in tasks``: running a task.  ``waking up``: idle from the run's first task to this
        thread's.  ``starting``: idle from a later call's first task to this thread's first task
        of the call.  ``tails of calls``: idle after this thread's last task of a call, while
        others have tasks of that call.  ``waiting for others``: idle otherwise, while some thread
        runs a task.  ``between calls``: no thread runs a task.
        """
        total = self.us * self.threads or 1.0
        began: dict[int, float] = {}
        for task in self.tasks:
            began[task.call] = min(began.get(task.call, math.inf), task.begin)
        seen, until = set[tuple[int, int]](), dict.fromkeys(range(self.threads), 0.0)
        waking = starting = within = end = 0.0  # `within`: while any thread has a task
        for task in sorted(self.tasks, key=lambda task: task.begin):
            within += max(task.end - max(task.begin, end), 0.0)
            end = max(end, task.end)
            if (task.call, task.thread) not in seen:
                idle = max(began[task.call], until[task.thread])
                if until[task.thread]:
                    starting += max(task.begin - idle, 0.0)
                else:
                    waking += max(task.begin - min(began.values()), 0.0)
                seen.add((task.call, task.thread))
            until[task.thread] = task.end
        within *= self.threads
        waiting = max(within - self._busy - waking - starting, 0.0)
        tails = min(sum(self.tails.values()), waiting)
        return {
            "in tasks": self._busy / total,
            "waking up": waking / total,
            "starting": starting / total,
            "tails of calls": tails / total,
            "waiting for others": (waiting - tails) / total,
            "between calls": max(1 - within / total, 0.0),
        }

    @property
    def _busy(self) -> float:
        return sum(task.us for task in self.tasks)

    @property
    def _on_processors(self) -> str:
        """What processors do that run several tasks at a time, and how calls follow each other."""
        spans: dict[int, list[TaskSpan]] = {}
        for task in self.tasks:
            spans.setdefault(self.processors[task.thread], []).append(task)
        busy = sum(_covered(own) for own in spans.values()) / (self.us * len(spans) or 1.0)
        ends: dict[int, tuple[float, float]] = {}
        for task in self.tasks:
            begin, end = ends.get(task.call, (math.inf, 0.0))
            ends[task.call] = min(begin, task.begin), max(end, task.end)
        calls = [ends[call] for call in sorted(ends)]
        gaps = [after[0] - before[1] for before, after in pairwise(calls)]
        text = (
            f"{len(spans)} {self.processor}s, {len(calls)} calls: {100 * busy:.0f} % of their "
            f"time in tasks, {100 - 100 * _covered(self.tasks) / (self.us or 1.0):.0f} % without "
            "any task at all"
        )
        if gaps:
            text += f"; a call begins {_gap(statistics.median(gaps))} the one before it has ended"
        return text

    @property
    def cost(self) -> str:
        """A sentence about how much longer runs take that record their tasks; "" if unknown."""
        if not self.recorded:
            return ""
        own, plain = self.recorded
        return (
            f"Recording costs {own - plain:.1f} µs of {plain:.0f} by the host's clock "
            f"({own / plain - 1:+.1%})."
        )

    @property
    def summary(self) -> str:
        if self.processors:
            return "\n".join(filter(None, (self._on_processors, self.cost)))
        parts = ", ".join(f"{100 * share:.0f} % {name}" for name, share in self.shares.items())
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        text = f"{threads}: {parts}"
        if self.threads == 1 or not self.alone:
            return text
        ideal = self.alone / self.threads
        return (
            f"{text}\nThe tasks take {self._busy / self.alone:.2f} times as long as on one "
            f"thread, of which {self.threads} threads could at best make {ideal:.0f} µs: "
            f"{100 * ideal / self.us:.0f} % of the run."
        )


def _covered(tasks: Iterable[TaskSpan]) -> float:
    """Return the µs in which at least one of some tasks runs."""
    covered = end = 0.0
    for task in sorted(tasks, key=lambda task: task.begin):
        covered += max(task.end - max(task.begin, end), 0.0)
        end = max(end, task.end)
    return covered


def _gap(us: float) -> str:
    return f"{abs(us):.2f} µs {'after' if us >= 0 else 'before'}"


def timeline_svg(timeline: Timeline) -> str:
    """Draw a lane per thread and a bar per task, in the colour of its kernel."""
    time = Counter[str]()
    for task in timeline.tasks:
        time[timeline.kernel(task.call)] += task.us  # type: ignore[assignment]
    kernels = [name for name, _ in time.most_common()]
    colours = {name: _COLOURS[min(i, len(_COLOURS) - 1)] for i, name in enumerate(kernels)}
    scale = WIDTH / (timeline.us or 1.0)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["plain"] = plain_text
    text = (resources.files(__package__) / "timeline.svg.jinja").read_text(encoding="utf-8")
    lane, gap = (LANE, 2.0) if timeline.threads <= _MANY else (LANE / 3, 0.5)
    bottom = TOP + lane * timeline.threads
    return environment.from_string(text).render(
        timeline=timeline,
        bars=[
            (
                LEFT + t.begin * scale, TOP + lane * t.thread + gap, max(t.us * scale, 0.2),
                colours[timeline.kernel(t.call)],
                f"{t.call}: {_name(timeline, t.call)}, {t.us:.1f} µs from {t.begin:.1f}",
            )
            for t in timeline.tasks
        ],
        legend=[(name, colours[name]) for name in kernels[: len(_COLOURS)]],
        more=max(len(kernels) - len(_COLOURS), 0),
        ticks=[(LEFT + at * scale, f"{at:g} µs") for at in _ticks(timeline.us)],
        lanes=list(_lane_labels(timeline)), height=lane - 2 * gap,
        left=LEFT, top=TOP, right=LEFT + WIDTH, bottom=bottom, lane=lane,
        page=(LEFT + WIDTH + 14, bottom + 34),
    )  # fmt: skip


def _lane_labels(timeline: Timeline) -> Iterator[tuple[int, int]]:
    """Yield lanes with the numbers beside them: threads, or some of many processors."""
    for lane in range(timeline.threads):
        own = timeline.processors[lane] if timeline.processors else lane
        first = not timeline.processors or lane == timeline.processors.index(own)
        if first and (timeline.threads <= _MANY or own % _EACH == 0):
            yield lane, own


def _name(timeline: Timeline, call: int) -> str:
    return timeline.calls[call] if call < len(timeline.calls) else ""


def _ticks(us: float) -> Sequence[float]:
    """Return round times from 0 on, some ``_TICKS`` of them."""
    if us <= 0:
        return (0.0,)
    step = 10 ** math.floor(math.log10(us / _TICKS))
    step *= next(k for k in (1, 2, 5, 10) if us / (k * step) <= _TICKS)
    return tuple(i * step for i in range(int(us / step) + 1))
