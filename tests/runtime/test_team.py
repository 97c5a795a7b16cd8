"""Threads that stay with a program between its calls run every task of each once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tracea_graph.kernels import cpu

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("team.cpp")
HEADERS = Path(str(cpu.__file__)).parent


def run(folder: Path, lines: list[str], *options: str) -> list[tuple[int, int]]:
    """Tasks that went wrong, and whether a follower had gone, for every line."""
    program = folder / "team"
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-pthread",
        *options,
        f"-I{HEADERS}",
        f"-I{HEADERS.parent}",
        str(SOURCE),
    ]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=1200)
    done = subprocess.run(
        [program], input="\n".join(lines), text=True, capture_output=True, check=True, timeout=600
    )
    return [(int(wrong), int(gone)) for wrong, gone in map(str.split, done.stdout.splitlines())]


def test_every_task_runs_once_whoever_comes(tmp_path: Path) -> None:
    # Nobody; one; more than tasks; more than there is room for; all too late.
    lines = ["0 50 7 0 0", "1 3000 64 0 0", "3 2000 2 0 0", "80 20 500 0 0", "2 3 100 1 30"]
    assert [wrong for wrong, _ in run(tmp_path, lines)] == [0] * len(lines)


def test_a_team_that_is_not_needed_thins(tmp_path: Path) -> None:
    alone, left = run(tmp_path, ["0 3 9 20 0", "2 3 9 200 0"])
    assert alone == (0, 0)
    assert left == (0, 1)


def test_no_two_threads_touch_a_task_unordered(tmp_path: Path) -> None:
    lines = ["1 2000 16 0 0", "3 500 40 0 0", "2 20 5 1 2"]
    assert [wrong for wrong, _ in run(tmp_path, lines, "-g", "-fsanitize=thread")] == [0, 0, 0]
