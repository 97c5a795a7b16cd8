"""Times of the kernel calls inside programs, as the library itself takes them.

The library appends a line per run of a node to the file ``TRACEA_PROFILE`` names; see
``kernels/cpu/runtime/trace.h``.  A worker of its own runs the model, for timing calls takes time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracea_graph.check.worker import Worker
from tracea_graph.errors import GraphError, UsageError
from tracea_graph.kernels.program import CallWork
from tracea_graph.onnx_io.inlining import Call
from tracea_graph.pipeline.bench import Entrant
from tracea_graph.pipeline.inputs import Feed
from tracea_graph.scratch import Scratch
from tracea_graph.target import BACKENDS, Backend

__all__ = ["CallTime", "Traced", "read_trace", "time_calls"]

_WARMUP = 2


@dataclass(frozen=True)
class CallTime:
    """One call of a node: median µs, and what it does."""

    us: float
    work: CallWork


Traced = Mapping[str, tuple[CallTime, ...]]
"""By node name; nodes that never ran are missing."""


def time_calls(one: Entrant, calls: Sequence[Call], feed: Feed, threads: int, runs: int) -> Traced:
    """Median times of every kernel call of a model, in a process of its own."""
    if one.library is None or not calls:
        return {}
    with Scratch("calls") as folder:
        trace = Path(folder) / "trace"
        with Worker(env={"TRACEA_PROFILE": str(trace)}) as worker:
            worker.open("model", one.path, one.library, threads=threads)
            worker.race("model", "model", feed, pairs=-(-runs // 2), warmup=_WARMUP)
        return read_trace(trace, calls, skip=2 * _WARMUP) if trace.is_file() else {}


def read_trace(
    trace: Path, calls: Sequence[Call], skip: int = 0, backend: Backend = BACKENDS[0]
) -> Traced:
    """What a trace says about these nodes of a backend, their first ``skip`` runs left out.

    Raises UsageError for a node whose plan another version of this tool wrote.
    """
    samples: dict[str, list[list[int]]] = {}
    sizes: dict[str, list[int]] = {}
    for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
        name, symbols, times = line.rsplit("\t", 2)
        sizes[name] = _numbers(symbols)
        samples.setdefault(name, []).append(_numbers(times))
    found: dict[str, tuple[CallTime, ...]] = {}
    for call in calls:
        rows = samples.get(call.name, [])[skip:] or samples.get(call.name, [])
        if not rows:
            continue
        try:
            works = backend.calls_of_plan(call.plan, sizes[call.name])
        except GraphError as error:
            raise UsageError(f"{call.name} cannot be profiled: {error}") from error
        if all(len(row) == len(works) for row in rows):
            medians = [statistics.median(column) / 1e3 for column in zip(*rows, strict=True)]
            found[call.name] = tuple(map(CallTime, medians, works))
    return found


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]
