"""What an optimization shows while it works: a line per step, or a table on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from tests.cli.support import complaints
from tracea_graph.cli.progress import StepDisplay
from tracea_graph.pipeline.step_timer import StepProgress, StepTimer

GAIN = "at least 1.20× as fast, 1.25× in the median"


def work(timer: StepTimer) -> None:
    """The steps of a run: two of three parts, then a result."""
    timer.step("reading [red]m.onnx")
    timer.step("building")
    timer.count(1, 3)
    timer.count(2, 3)
    timer.pause()
    timer.count(3, 3)
    timer.best = GAIN
    timer.step("tuning")
    timer.step("timing")


def test_elsewhere_than_on_a_terminal_it_is_a_line_per_step() -> None:
    file = io.StringIO()
    with StepDisplay("m.onnx", Console(file=file)) as steps:
        work(StepTimer(steps))
    said = file.getvalue()
    assert [line[10:] for line in said.splitlines()] == [
        "reading [red]m.onnx", "building", f"first result, verified: {GAIN}", "tuning", "timing",
    ]  # fmt: skip
    assert complaints(said + "error: no\n") == "error: no\n"


def test_on_a_terminal_it_is_a_table_of_80_columns() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    steps = StepDisplay("m.onnx", console)
    work(StepTimer(steps))
    assert steps._table is not None
    with console.capture() as capture:
        console.print(*steps._table.get_renderables())
    lines = capture.get().splitlines()
    assert len(lines) == 6 and "2/3" in lines[2] and "reading [red]m.onnx" in lines[1]
    assert GAIN in lines[-1]


def test_who_listens_to_names_alone_gets_names() -> None:
    heard = list[str]()
    work(StepTimer(heard.append))
    assert heard == ["reading [red]m.onnx", *["building"] * 3, "tuning", "timing"]
    assert all(isinstance(step, StepProgress) for step in heard)
