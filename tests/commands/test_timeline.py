"""Timelines: what is read of a recording, where the time goes, and how it is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from tracea_graph.commands.timeline import read_timeline
from tracea_graph.target import backend_named
from tracea_graph.views.task_table import calls_of, render_tasks
from tracea_graph.views.thread_table import ThreadActivity, activity_of_threads, render_threads
from tracea_graph.views.timeline import TaskSpan, Timeline, timeline_svg


def two_threads() -> Timeline:
    """Two calls: both threads work from 0 to 4 and 1 to 3 µs, one of them from 6 to 10 µs."""
    tasks = (TaskSpan(0, 0, 0, 4), TaskSpan(0, 1, 1, 3), TaskSpan(1, 0, 6, 10))
    return Timeline("a <model>", 10.0, ("gemm 8×16×32", "norm 8×16"), tasks)


def test_all_time_of_all_threads_is_somewhere() -> None:
    shares = two_threads().shares
    assert shares == pytest.approx(
        {"in tasks": 10 / 20, "waking up": 1 / 20, "starting": 0, "tails of calls": 1 / 20,
         "waiting for others": 4 / 20, "between calls": 4 / 20}
    )  # fmt: skip
    assert "2 threads: 50 % in tasks" in two_threads().summary


def test_tasks_are_compared_with_those_of_one_thread() -> None:
    text = replace(two_threads(), alone=8.0).summary
    assert "take 1.25 times as long as on one thread" in text
    assert "make 4 µs: 40 % of the run" in text
    assert "on one thread" not in two_threads().summary


def test_short_tasks_and_long_tails_of_calls_are_named() -> None:
    tasks = [TaskSpan(call, i, 10 * call, 10 * call + 1 + i) for call in (0, 1) for i in (0, 1)]
    names = ("norm 8×16", "norm 8×16", "gemm 8×16×32")
    timeline = Timeline("m.onnx", 40.0, names, (*tasks, TaskSpan(2, 0, 20, 40)))
    gemm, norm = calls_of(timeline)
    assert (norm.calls, norm.tasks, norm.threads, norm.task_us, norm.us) == (2, 2, 2, 1.5, 2.0)
    assert norm.tail == pytest.approx(1 / 4) and norm.short and norm.late
    assert gemm.tail == 0 and not gemm.short and not gemm.late
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render_tasks(timeline))
    assert "2 of 3 calls have tasks of less than 2 µs, 2 a tail of more than 5%" in capture.get()


def test_what_each_thread_does_and_waits_for() -> None:
    first, second = activity_of_threads(two_threads())
    gemm, norm = two_threads().calls
    assert first == ThreadActivity(0, 2, 0.8, pytest.approx((4 / 3 + 1) / 2), 0.0, 0.0, 2.0, norm)
    assert second == ThreadActivity(1, 1, 0.2, pytest.approx(2 / 3), 0.1, 0.7, 1.0, gemm)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render_threads(two_threads()))
    assert "norm 8×16" in capture.get() and "80%" in capture.get()


def test_every_task_is_a_bar_in_its_threads_lane() -> None:
    root = ElementTree.fromstring(timeline_svg(two_threads()))
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if len(e)]
    assert len(bars) == 3
    lanes = [float(bar.attrib["y"]) for bar in bars]
    assert lanes[0] == lanes[2] != lanes[1]
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.05)
    assert bars[0].attrib["fill"] == bars[1].attrib["fill"] != bars[2].attrib["fill"]


def test_an_empty_timeline_is_drawn() -> None:
    assert ElementTree.fromstring(timeline_svg(Timeline("nothing", 0.0, (), ()))) is not None


def test_the_median_run_of_the_longest_program_is_shown(tmp_path: Path) -> None:
    lines = ["short\t\t0,100\t0,7,10,90"]
    lines += [f"long\t4\t1000,{1000 + ns}\t0,7,10,{ns},0,9,5,{ns}" for ns in (900, 300, 500, 400)]
    file = tmp_path / "timeline"
    file.write_text("\n".join(lines) + "\n")
    told = backend_named("cpu").tracing
    assert told is not None
    found = read_timeline(file, "m.onnx", (), told, skip=1)
    assert found.us == pytest.approx(0.4) and found.title.startswith("m.onnx, long")
    assert [(t.call, t.thread) for t in found.tasks] == [(0, 0), (0, 1)]
