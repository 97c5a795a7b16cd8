"""Teams become smaller where their threads come back late, and larger again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.runtime.compiled_program import compiled_program

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("team_limit.cpp")
CROWDED = "note 4 64 64 20 10"  # 80 ms, half of them late


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ("-g", "-fsanitize=thread", "-pthread")
    return compiled_program(SOURCE, tmp_path_factory.mktemp("limit"), *options)


@pytest.mark.parametrize(
    ("commands", "limits"),
    [
        ("note 100 64 64 20 0", [64]),
        ("note 100 64 64 20 4", [64]),  # a fifth of the time
        ("note 3 64 64 20 10 note 1 64 64 20 10", [64, 48]),
        ("note 99 64 64 20 0 note 1 64 64 200 190", [64, 64]),  # late once
        ("note 100 32 32 20 10 note 100 64 32 20 10", [32, 64]),  # few processors, a small team
        ("note 200 64 64 20 10", [16]),  # no less than a quarter
        # Threads that are left out spin for a while: nothing counts for a tenth of a second.
        (f"{CROWDED} note 7 64 48 20 10 note 1 64 48 20 10", [48, 48, 36]),
        # After two seconds a larger team is tried, and judged by the same rules.
        (f"{CROWDED} note 99 64 48 20 0 note 4 64 48 20 0", [48, 48, 56]),
        (f"{CROWDED} rest 2000 note 4 64 48 20 0 note 8 64 56 20 10", [48, 56, 48]),
        (f"{CROWDED} rest 2000 note 4 64 48 20 0 note 99 64 56 20 0", [48, 56, 56]),
        (f"{CROWDED} note 300 64 56 20 0", [48, 64]),
        # Once that failed, four seconds pass until the next attempt.
        (
            f"{CROWDED} rest 2000 note 4 64 48 20 0 note 8 64 56 20 10 rest 2000 "
            "note 90 64 48 20 0 note 14 64 48 20 0",
            [48, 56, 48, 48, 56],
        ),
        (f"{CROWDED} note 1 16 16 20 0", [48, 16]),  # fewer processors than the limit
    ],
)
def test_limits(program: Path, commands: str, limits: list[int]) -> None:
    assert _said(program, commands) == limits


def test_threads_at_once(program: Path) -> None:
    (limit,) = _said(program, "race 4 3000")
    assert 16 <= limit < 64


@pytest.mark.parametrize(("asked", "late", "fewer"), [(0, 9, True), (40, 9, False)])
def test_runs_keep_to_the_limit(program: Path, asked: int, late: int, fewer: bool) -> None:
    """Loops that end late leave a run of forty threads fewer, unless TRACEA_PROCESSORS asked."""
    (threads,) = _said(program, f"run 40 {asked} {late} 600")
    assert (threads < 40) == fewer


def _said(program: Path, commands: str) -> list[int]:
    done = subprocess.run(
        [program], input=commands, check=True, capture_output=True, text=True, timeout=60
    )
    return [*map(int, done.stdout.split())]
