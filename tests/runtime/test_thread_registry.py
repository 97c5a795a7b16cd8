"""A node knows how many threads came to its tasks, so that it divides work no further."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tracea_graph.kernels import cpu

pytestmark = pytest.mark.compiler
SOURCE = Path(__file__).with_name("thread_registry.cpp")
HEADERS = Path(str(cpu.__file__)).parent


def test_each_thread_counts_once(tmp_path: Path) -> None:
    program = tmp_path / "thread_registry"
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-pthread",
        f"-I{HEADERS}",
        f"-I{HEADERS.parent}",
        str(SOURCE),
        "-o",
    ]
    subprocess.run([*command, str(program)], check=True, timeout=1200)
    visits = "0 1\n1 1\n3 1\n3 40\n64 3\n90 2\n"
    done = subprocess.run([program], input=visits, text=True, capture_output=True, check=True)
    assert [*map(int, done.stdout.split())] == [1, 2, 4, 4, 65, 65]
