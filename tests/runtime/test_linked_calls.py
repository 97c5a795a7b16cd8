"""Linked calls run every task once, and after those whose rows it reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tracea_graph.kernels import cpu

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("linked_calls.cpp")
HEADERS = Path(str(cpu.__file__)).parent


def run(folder: Path, lines: list[str], *options: str) -> list[tuple[int, int]]:
    """Link calls as every line says, of threads that may spin and of others.

    Both on processors that are equally near and on some that are groups by themselves.

    Returns what went wrong, and how many tasks ran.
    """
    program = folder / "linked_calls"
    includes = [f"-I{HEADERS}", f"-I{HEADERS.parent}"]
    command = ["g++", "-std=c++17", "-O1", "-pthread", *options, *includes, str(SOURCE)]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=1200)
    given = "\n".join(
        f"{line} {spins} {by}" for by in (0, 1) for spins in (1, 0) for line in lines
    )
    done = subprocess.run(
        [program], input=given, text=True, capture_output=True, check=True, timeout=600
    )
    pairs = [line.split() for line in done.stdout.splitlines()]
    return [(int(wrong), int(tasks)) for wrong, tasks in pairs]


def test_every_row_is_there_when_it_is_read(tmp_path: Path) -> None:
    # Nobody follows; one; some; all come late; more than there is room for; tasks that take long.
    lines = [
        "0 50 1 0 0", "1 500 2 0 0", "3 250 3 0 0", "7 50 4 3000 0", "70 20 5 0 0",
        "3 20 6 0 400",
    ]  # fmt: skip
    outcomes = run(tmp_path, lines)
    assert [wrong for wrong, _ in outcomes] == [0] * (4 * len(lines))
    assert min(tasks for _, tasks in outcomes) > 1000


def test_no_two_threads_touch_a_row_unordered(tmp_path: Path) -> None:
    lines = ["1 150 2 0 0", "3 100 3 0 0", "5 25 4 3000 0", "3 10 6 0 400"]
    outcomes = run(tmp_path, lines, "-g", "-fsanitize=thread")
    assert [wrong for wrong, _ in outcomes] == [0] * (4 * len(lines))
