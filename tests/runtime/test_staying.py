"""Threads stay for the calls of a run, may they spin or not, and sleep once it is over."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tracea_graph.kernels import cpu

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("staying.cpp")
HEADERS = Path(str(cpu.__file__)).parent
MILLISECOND = 1000


class Outcome(NamedTuple):
    """Parallel loops of a run, tasks that went wrong, and µs of processor time.

    These are the lead's and a worker's in the run, and a worker's in the twentieth of a second
    after it.
    """

    loops: int
    wrong: int
    lead: int
    worker: int
    after: int


def run(folder: Path, lines: list[str]) -> list[Outcome]:
    """Run a program for every line: workers, calls, tasks, µs of the last task, may they spin."""
    program = folder / "staying"
    headers = (f"-I{HEADERS}", f"-I{HEADERS.parent}")
    command = ["g++", "-std=c++17", "-O1", "-pthread", *headers, str(SOURCE)]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=600)
    done = subprocess.run(
        [program], input="\n".join(lines), text=True, capture_output=True, check=True, timeout=600
    )
    return [Outcome(*map(int, line.split())) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, list[Outcome]]:
    """Runs of short calls, and of calls whose last task takes a twentieth of a second."""
    programs = ("7 200 8 0", "3 3 4 50000")
    lines = [f"{program} {int(spins)}" for spins in (False, True) for program in programs]
    found = run(tmp_path_factory.mktemp("staying"), lines)
    return {False: found[:2], True: found[2:]}


@pytest.mark.parametrize("spins", [False, True])
def test_one_loop_holds_the_calls_of_a_run(
    outcomes: dict[bool, list[Outcome]], spins: bool
) -> None:
    short, _ = outcomes[spins]
    assert short.wrong == 0
    assert short.loops < 100  # of 200; a thread that had no processor for long leaves one


@pytest.mark.parametrize("spins", [False, True])
def test_a_run_is_followed_by_sleep(outcomes: dict[bool, list[Outcome]], spins: bool) -> None:
    """Who takes less processor time than a millisecond was asleep after one."""
    assert max(one.after for one in outcomes[spins]) < MILLISECOND


def test_who_must_not_spin_sleeps_while_a_task_lasts(
    outcomes: dict[bool, list[Outcome]],
) -> None:
    """Three waits of 50 ms each take a few sleeps, and 50 µs of looking each."""
    _, long = outcomes[False]
    assert long.wrong == 0
    assert max(long.lead, long.worker) < MILLISECOND
