"""Telemetry of programs in production, from files that ``TRACEA_PROFILE`` names; all of it local.

A file has a line per run of a node, see ``kernels/cpu/runtime/trace.h``.  With the model, calls
get their kernels' names, FLOPs and bytes; without it they are numbered.
"""

from __future__ import annotations

import csv
import io
import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from tracea_graph.errors import UsageError
from tracea_graph.kernels.program import CallStats
from tracea_graph.kernels.schema import phase_of
from tracea_graph.native_library import NodeRun
from tracea_graph.onnx_io.custom_op_inlining import custom_op_nodes
from tracea_graph.onnx_io.model_reader import load
from tracea_graph.onnx_io.original_files import backend_of
from tracea_graph.target import backend_named

__all__ = [
    "CallRow",
    "NodeRun",
    "RunMetrics",
    "call_rows",
    "call_work_by_node",
    "perfetto_trace",
    "prometheus_text",
    "read_runs",
    "rows_csv",
    "rows_jsonl",
]  # fmt: skip

_BUCKETS = tuple(base * 10.0**e for e in range(-6, 1) for base in (1.0, 2.5, 5.0))
"""Upper bounds of the latency histogram in seconds."""

Works = Mapping[tuple[str, tuple[int, ...]], Sequence[CallStats]]
"""Statistics of a node's calls, by node name and symbol values."""


@dataclass(frozen=True)
class CallRow:
    """Statistics of one kernel call over several runs.

    Rates are None if the FLOPs or bytes of the call are unknown.
    """

    node: str
    call: int
    kernel: str
    phase: str
    size: str
    runs: int
    mean_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    gflops: float | None = None
    gbytes: float | None = None


def read_runs(profile: Path) -> tuple[NodeRun, ...]:
    """Read a profile; a last line that is still being written is left out.

    Raises UsageError if the file cannot be read or is no profile.
    """
    try:
        text = profile.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{profile} cannot be read: {error.strerror}") from None
    lines = text.split("\n")[:-1]
    try:
        return tuple(map(_run, lines))
    except ValueError:
        raise UsageError(f"{profile} is not a profile of TRACEA_PROFILE") from None


def _run(line: str) -> NodeRun:
    node, sizes, calls, when = line.rsplit("\t", 3)
    start, thread, *arena = _numbers(when)  # earlier libraries did not tell of the arena
    return NodeRun(node, _numbers(sizes), _numbers(calls), start, thread, *arena)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def call_work_by_node(model: Path, runs: Sequence[NodeRun]) -> Works:
    """Return the work of each node's calls at the sizes that it ran with.

    Raises ModelError for a file that is no model, UsageError if none of the runs are of this
    model.
    """
    loaded = load(model)
    told = backend_named(backend_of(loaded)).tracing
    plans = {call.name: call.plan for call in custom_op_nodes(loaded)}
    if told is None:
        return {}
    wanted = dict.fromkeys((run.node, run.sizes) for run in runs if run.node in plans)
    if runs and not wanted:
        raise UsageError(f"no node of {model} ran in this profile")
    return {(node, sizes): told.call_stats(plans[node], sizes) for node, sizes in wanted}


def _phase(work: CallStats | None) -> str:
    """Return the phase of a call; one whose kernel is unknown is of the host."""
    return phase_of(work.kernel, bool(work.products)) if work else "host"


def call_rows(runs: Sequence[NodeRun], works: Works) -> list[CallRow]:
    """Summarize runs of equal sizes call by call, the most expensive first."""
    groups: dict[tuple[str, tuple[int, ...]], list[NodeRun]] = {}
    for run in runs:
        groups.setdefault((run.node, run.sizes), []).append(run)
    rows = []
    for key, group in groups.items():
        count = min(len(run.calls) for run in group)
        found = works.get(key, ())
        for i in range(count):
            work = found[i] if len(found) == count else None
            rows.append(_row(key[0], i, work, sorted(run.calls[i] for run in group)))
    return sorted(rows, key=lambda row: -row.mean_us * row.runs)


def _row(node: str, call: int, work: CallStats | None, ns: Sequence[int]) -> CallRow:
    mean = sum(ns) / len(ns)
    p50, p95, p99 = (_quantile(ns, q) / 1e3 for q in (0.5, 0.95, 0.99))
    return CallRow(
        node, call, work.kernel if work else f"call {call}", _phase(work),
        work.size if work else "", len(ns), mean / 1e3, p50, p95, p99,
        gflops=work.products / mean if work and mean else None,
        gbytes=work.bytes / mean if work and mean else None,
    )  # fmt: skip


def _quantile(ordered: Sequence[int], share: float) -> int:
    """The smallest value that is not below ``share`` of all."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


# ---- formats -------------------------------------------------------------------------------


def rows_jsonl(rows: Sequence[CallRow]) -> str:
    """Return one JSON object for each row, on a line of its own."""
    return "".join(json.dumps(asdict(row)) + "\n" for row in rows)


def rows_csv(rows: Sequence[CallRow]) -> str:
    """Return a table with a header."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(CallRow.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()


def perfetto_trace(runs: Sequence[NodeRun], works: Works) -> str:
    """Return a trace for Perfetto and chrome://tracing that shows every node and its kernel calls.

    Calls are colored by phase.  The calls of a node are drawn one after another, in the order in
    which the first thread ran them.
    """
    origin = min((run.start for run in runs), default=0)
    events: list[dict[str, Any]] = []
    for run in runs:
        at, common = run.start, {"pid": 1, "tid": run.thread, "ph": "X"}
        events.append(
            common | {
                "name": run.node, "cat": "node", "ts": (at - origin) / 1e3, "dur": run.ns / 1e3,
                "args": {"sizes": list(run.sizes)},
            }
        )  # fmt: skip
        found = works.get((run.node, run.sizes), ())
        for i, ns in enumerate(run.calls):
            work = found[i] if len(found) == len(run.calls) else None
            events.append(
                common | {
                    "name": work.kernel if work else f"call {i}", "cat": _phase(work),
                    "ts": (at - origin) / 1e3, "dur": ns / 1e3,
                    "args": {"size": work.size} if work else {},
                }
            )  # fmt: skip
            at += ns
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events})


class RunMetrics:
    """Counters over runs: a latency histogram and the arena size per node, seconds per kernel.

    An instance can be passed as ``on_run`` of a session. :meth:`text` returns what a Prometheus
    server expects when it scrapes the process.  Memory does not grow with the number of runs.
    """

    def __init__(self, works: Works | None = None) -> None:
        self._works = works or {}
        self._nodes: dict[str, _Histogram] = {}
        self._spent: dict[tuple[str, str], float] = {}
        self._lock = Lock()

    def __call__(self, run: NodeRun) -> None:
        """Count a run."""
        found = self._works.get((run.node, run.sizes), ())
        with self._lock:
            node = self._nodes.setdefault(run.node, _Histogram())
            node.add(run.ns * 1e-9)
            node.arena = max(node.arena, run.arena)
            for i, ns in enumerate(run.calls):
                work = found[i] if len(found) == len(run.calls) else None
                key = work.kernel if work else "unknown", _phase(work)
                self._spent[key] = self._spent.get(key, 0.0) + ns * 1e-9

    def text(self) -> str:
        """Return Prometheus text."""
        with self._lock:
            nodes = {f'node="{_label(name)}"': one for name, one in self._nodes.items()}
            lines = [
                "# HELP tracea_node_seconds Time of one run of a node.",
                "# TYPE tracea_node_seconds histogram",
                *(line for name, one in nodes.items() for line in one.lines(name)),
                "# HELP tracea_arena_bytes Largest memory between the kernel calls of a node.",
                "# TYPE tracea_arena_bytes gauge",
                *(f"tracea_arena_bytes{{{name}}} {one.arena}" for name, one in nodes.items()),
                "# HELP tracea_kernel_seconds_total Time in kernels, by kernel and phase.",
                "# TYPE tracea_kernel_seconds_total counter",
                *(
                    f'tracea_kernel_seconds_total{{kernel="{_label(k)}",phase="{p}"}} {value:.9g}'
                    for (k, p), value in sorted(self._spent.items())
                ),
            ]
        return "\n".join(lines) + "\n"


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.seconds = 0.0
        self.arena = 0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.seconds += seconds

    def lines(self, name: str) -> Iterator[str]:
        below = 0
        for bound, count in zip(_BUCKETS, self.counts, strict=False):
            below += count
            yield f'tracea_node_seconds_bucket{{{name},le="{bound:g}"}} {below}'
        below += self.counts[-1]
        yield f'tracea_node_seconds_bucket{{{name},le="+Inf"}} {below}'
        yield f"tracea_node_seconds_sum{{{name}}} {self.seconds:.9g}"
        yield f"tracea_node_seconds_count{{{name}}} {below}"


def prometheus_text(runs: Sequence[NodeRun], works: Works) -> str:
    """Return Prometheus text of all runs."""
    made = RunMetrics(works)
    for run in runs:
        made(run)
    return made.text()


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
