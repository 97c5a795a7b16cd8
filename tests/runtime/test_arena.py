"""The library lays an arena out as the tile graph planned it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tracea_graph.kernels import cpu
from tracea_graph.ttg.arena_allocation import Lifetime, place_values

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("lay_out.cpp")
HEADERS = Path(str(cpu.__file__)).parent


def lives(seed: int) -> list[Lifetime]:
    """Up to 256 values of whole cache lines, some empty, in any order."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(int(rng.integers(1, 257))):
        first, length = rng.integers(0, 60, 2)
        size = 64 * int(rng.integers(0, 1 << 20)) * int(rng.integers(0, 4) > 0)
        found.append(Lifetime(f"v{i}", size, int(first), int(first + length)))
    return found


def test_offsets_are_those_of_the_plan(tmp_path: Path) -> None:
    program = tmp_path / "lay_out"
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        f"-I{HEADERS}",
        f"-I{HEADERS.parent}",
        str(SOURCE),
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True, timeout=1200)
    cases = [lives(seed) for seed in range(40)]
    words = ((len(c), *(n for v in c for n in (v.first, v.last, v.bytes))) for c in cases)
    text = "\n".join(" ".join(map(str, line)) for line in words)
    done = subprocess.run([program], input=text, text=True, capture_output=True, check=True)
    for case, line in zip(cases, done.stdout.splitlines(), strict=True):
        arena = place_values(case)
        assert [*map(int, line.split())] == [*arena.offsets, arena.bytes]
