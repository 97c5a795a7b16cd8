"""Linked calls run every task once, and after those whose rows it reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tracea_graph.kernels import cpu

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("linked_calls.cpp")
HEADERS = Path(str(cpu.__file__)).parent
rounds = pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow), 3])
"""All rounds take 12 seconds under the thread sanitizer: a third of them by default."""


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


@rounds
def test_every_row_is_there_when_it_is_read(share: int, tmp_path: Path) -> None:
    # Nobody follows; one; some; all come late; more than there is room for; tasks that take long.
    lines = [
        f"0 {50 // share} 1 0 0", f"1 {500 // share} 2 0 0", f"3 {250 // share} 3 0 0",
        f"7 {50 // share} 4 3000 0", f"70 {20 // share} 5 0 0", f"3 {20 // share} 6 0 400",
    ]  # fmt: skip
    outcomes = run(tmp_path, lines)
    assert [wrong for wrong, _ in outcomes] == [0] * (4 * len(lines))
    assert min(tasks for _, tasks in outcomes) > 1000 // share


@rounds
def test_no_two_threads_touch_a_row_unordered(share: int, tmp_path: Path) -> None:
    lines = [
        f"1 {150 // share} 2 0 0", f"3 {100 // share} 3 0 0", f"5 {25 // share} 4 3000 0",
        f"3 {10 // share} 6 0 400",
    ]  # fmt: skip
    outcomes = run(tmp_path, lines, "-g", "-fsanitize=thread")
    assert [wrong for wrong, _ in outcomes] == [0] * (4 * len(lines))
