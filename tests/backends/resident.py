"""Programs on tensors in device memory, as in the CUDA provider, without ONNX Runtime.

Compiles ``resident.cpp`` with a program's kernels.  It runs feeds of several sizes at changing
addresses, and compares the results bitwise: plain launches, which a first run of sizes takes,
graphs, graphs whose nodes were given other addresses, and tensors that are copied because they are
not aligned or share memory.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu.launches import Placed as PlacedProgram
from tests.gpu.launches import programs
from tracea_graph.config import Environment
from tracea_graph.kernels.gpu.backend import GPU, GpuBackend
from tracea_graph.kernels.program import LibraryContents
from tracea_graph.onnx_io import Model
from tracea_graph.toolchain import find_compiler

__all__ = ["Compared", "compare", "compile_resident", "written_program"]

_SOURCE = Path(__file__).with_name("resident.cpp")
Feed = Mapping[str, Any]


@dataclass(frozen=True)
class Compared:
    """Runs, those that differed, copied tensors, changed nodes (−1: unknown), and a digest."""

    runs: int
    differ: int
    staged: int
    updates: int
    digest: str


def planned(model: Model, precision: str, shape: dict[str, int]) -> tuple[PlacedProgram, Any]:
    """Plan a model that becomes one program; return it and its graph."""
    (placed,), graph, _ = programs(model, precision, shape=shape)
    return placed, graph


def written_program(placed: PlacedProgram, graph: Any, feeds: Sequence[Feed]) -> bytes:
    """Return a program and feeds as ``resident.cpp`` reads them; weights are inputs."""
    program, words = placed.program, list(GPU.encode(placed.program))
    numbers = [len(words), *words, len(feeds)]
    parts = [struct.pack(f"<{len(numbers)}q", *numbers)]
    for feed in feeds:
        given = [w.array() if (w := graph.weight(v)) else feed[v] for v in placed.region.operands]
        for index, axis in program.symbols.values():
            parts.append(struct.pack("<q", given[index].shape[axis]))
        for array in given:
            data = np.ascontiguousarray(array).tobytes()
            parts += [struct.pack("<q", len(data)), data]
    return b"".join(parts)


def compile_resident(placed: PlacedProgram, backend: GpuBackend, level: str, folder: Path) -> Path:
    """Compile the program with the kernels of a plan for a level; return its path."""
    calls = placed.program.calls
    kernels = sorted({name for call in calls for name in backend.kernels_of(call)})
    chains = list({c.chain.key: c.chain for c in calls if c.chain}.values())
    backend.compile_part(
        LibraryContents((), kernels, chains), (level,), folder, Environment(), "unused"
    )
    flags = ("-std=c++17", "-O1", "-I.", str(_SOURCE), "table.o", "-ldl", "-lpthread")
    find_compiler().run([*flags, "-o", "resident"], folder)
    return folder / "resident"


def compare(
    command: Path, feeds: Path, rounds: int, environment: Mapping[str, str] | None = None
) -> Compared:
    """Run every feed so many times.  Raises AssertionError if a run fails."""
    done = subprocess.run(
        [command, feeds, str(rounds)], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    runs, differ, staged, updates, digest = done.stdout.split()
    return Compared(int(runs), int(differ), int(staged), int(updates), digest)
