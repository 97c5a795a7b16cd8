"""Threads of near processors get neighbouring positions in a team, and so neighbouring tasks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.runtime.compiled_program import compiled_program

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("team_positions.cpp")


def run(folder: Path, *lines: str) -> list[str]:
    """Return what the program says to each line."""
    program = compiled_program(SOURCE, folder, "-fsanitize=address,undefined")
    given = "\n".join(lines) + "\n"
    said = subprocess.run([program], input=given, check=True, capture_output=True, text=True)
    return [line.strip() for line in said.stdout.splitlines()]


def test_positions(tmp_path: Path) -> None:
    # As many threads as processors, in any order; fewer, spread; all on one; more than are
    # expected, and on processors that nobody knows.
    said = run(
        tmp_path,
        "take 4 4 2 0 3 1",
        "take 4 8 7 0 5 2",
        "take 4 4 0 0 0 0",
        "take 4 4 3 3 3 3",
        "take 2 4 3 0 1 1",
        "take 3 4 -1 77 2",
    )
    assert said == ["2 0 3 1", "3 0 2 1", "0 1 2 3", "3 2 1 0", "1 0 2 3", "0 1 2"]


def test_shares(tmp_path: Path) -> None:
    # Fewer shares than members are spread; each position looks at every share once.
    said = run(tmp_path, "share 4 4", "share 4 2", "share 5 3", "share 2 5")
    assert said == [
        "0 1 2 3 : 4: 4: 4: 4",
        "0 -1 1 -2 : 4: 4",
        "0 -1 1 -2 2 : 5: 5: 5",
        "0 1 : 2: 2: 2: 2: 2",
    ]
