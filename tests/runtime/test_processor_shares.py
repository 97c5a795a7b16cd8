"""Runs at the same time share the processors instead of crowding them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.runtime.compiled_program import compiled_program

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("processor_shares.cpp")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ("-g", "-fsanitize=thread", "-pthread")
    return compiled_program(SOURCE, tmp_path_factory.mktemp("shares"), *options)


@pytest.mark.parametrize(
    ("commands", "shares"),
    [
        ("take 16 16 give 16", [16]),
        ("take 4 16 give 4", [4]),  # no more than a session has threads
        ("take 4 16 take 16 16 give 4 give 12", [4, 12]),  # what the first leaves
        ("take 16 16 take 16 16 take 16 16 give 16 give 8 give 5", [16, 8, 5]),  # a fair share
        # Whoever begins again gets no more than that, until all have as much as each other.
        ("take 16 16 take 16 16 give 16 take 16 16 give 8 give 8", [16, 8, 8]),
        ("take 1 2 take 1 2 take 2 2 give 1 give 1 give 1", [1, 1, 1]),  # at least one
        ("take 16 1 give 1", [1]),
        ("take 16 16 fork take 16 16 give 16", [16, 16]),  # the child has no run of its parent
    ],
)
def test_shares(program: Path, commands: str, shares: list[int]) -> None:
    assert _said(program, commands) == [*shares, 1]


def test_threads_at_once(program: Path) -> None:
    most, least, idle = _said(program, "race 4 3000 16")
    assert 4 <= least <= most <= 16
    assert idle


def _said(program: Path, commands: str) -> list[int]:
    done = subprocess.run(
        [program], input=commands, check=True, capture_output=True, text=True, timeout=60
    )
    return [*map(int, done.stdout.split())]
