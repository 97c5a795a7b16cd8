"""Threads that stay with a program between its calls run every task of each once."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tracea_graph.kernels import cpu

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("team.cpp")
SLOW_CORE = Path(__file__).with_name("slow_core.cpp")
HEADERS = Path(str(cpu.__file__)).parent


class Outcome(NamedTuple):
    """Tasks that went wrong, whether a follower had gone, and µs of processor time."""

    wrong: int
    gone: int
    followers: int
    lead: int


def run(
    folder: Path,
    lines: list[str],
    *options: str,
    spins: tuple[int, ...] = (1,),
    grouped: tuple[int, ...] = (0,),
) -> list[Outcome]:
    """Run a team for every line, whose members may spin (1) or not (0): all lines for each.

    ``grouped``: likewise, processors that are equally near (0), or groups by themselves (1).
    """
    program = _build(folder, SOURCE, *options)
    given = "\n".join(f"{line} {may} {by}" for by in grouped for may in spins for line in lines)
    done = subprocess.run(
        [program], input=given, text=True, capture_output=True, check=True, timeout=600
    )
    return [Outcome(*map(int, line.split())) for line in done.stdout.splitlines()]


def _build(folder: Path, source: Path, *options: str) -> Path:
    program = folder / source.stem
    common = ("-std=c++17", "-O1", "-pthread", f"-I{HEADERS}", f"-I{HEADERS.parent}")
    command = ("g++", *common, *options, str(source), "-o", str(program))
    subprocess.run(command, check=True, timeout=1200)
    return program


def test_every_task_runs_once_whoever_comes(tmp_path: Path) -> None:
    # Nobody; one; more than tasks; more than there is room for; all too late; a task that is
    # waited for.
    lines = [
        "0 50 7 0 0 0", "1 3000 64 0 0 0", "3 2000 2 0 0 0", "80 20 500 0 0 0",
        "2 3 100 1000 30000 0", "2 30 8 0 0 400",
    ]  # fmt: skip
    outcomes = run(tmp_path, lines, spins=(1, 0), grouped=(0, 1))
    assert [one.wrong for one in outcomes] == [0] * (4 * len(lines))


def test_a_team_that_is_not_needed_thins(tmp_path: Path) -> None:
    alone, left = run(tmp_path, ["0 3 9 20000 0 0", "2 3 9 200000 0 0"])
    assert (alone.wrong, alone.gone) == (0, 0)
    assert (left.wrong, left.gone) == (0, 1)


def test_nobody_spins_for_long(tmp_path: Path) -> None:
    # A rest of a tenth of a second, and one as long in a task: who waits must be asleep.
    resting, waited = run(tmp_path, ["1 1 1 100000 0 0", "1 1 2 0 0 100000"])
    assert resting.followers < 10_000
    assert waited.lead < 10_000
    assert waited.followers < 10_000


def test_who_must_not_spin_sleeps_soon(tmp_path: Path) -> None:
    # Ten rests, each shorter than a follower's patience, and a long one: 50 µs of looking in each.
    often, long = run(tmp_path, ["1 10 1 200 0 0", "1 1 1 100000 0 0"], spins=(0,))
    assert often.followers < 2000
    assert long.followers < 1000


def test_no_two_threads_touch_a_task_unordered(tmp_path: Path) -> None:
    lines = ["1 2000 16 0 0 0", "3 500 40 0 0 0", "2 20 5 1000 2000 0", "2 50 4 0 0 300"]
    outcomes = run(tmp_path, lines, "-g", "-fsanitize=thread", spins=(1, 0), grouped=(0, 1))
    assert [one.wrong for one in outcomes] == [0] * (4 * len(lines))


def test_a_slow_core_gets_fewer_tasks(tmp_path: Path) -> None:
    """Four threads, one of which takes four times as long: its part is 1 of 13, not 1 of 4."""
    program = _build(tmp_path, SLOW_CORE)
    said = subprocess.run(
        [program], input="3 2 52 10000 4", text=True, capture_output=True, check=True, timeout=60
    )
    slow, tasks, _ = map(int, said.stdout.split())
    assert slow <= tasks // 5
