"""Profile a model: each node's time against its FLOPs, its bytes and the machine's roofline.

The library appends a line per run of a node to the file named by ``TRACEA_PROFILE``
(``kernels/cpu/runtime/trace.h``).  Tracing runs in a separate worker because it takes time.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tracea_graph.check.baseline_runtimes import BaselineWorker
from tracea_graph.check.paired_benchmark import PROFILING_US
from tracea_graph.check.worker_process import NodeTime, Worker
from tracea_graph.commands.bench import (
    BenchOptions,
    BenchSubject,
    Progress,
    busy_warning,
    model_subject,
)
from tracea_graph.commands.drop_slower_kernels import write_inlined
from tracea_graph.commands.op_statistics import NodeStats, OpStatistics, symbol_values
from tracea_graph.errors import GraphError, UsageError
from tracea_graph.hardware import CallWorkQueries
from tracea_graph.health_check import Doctor
from tracea_graph.kernels.program import CallStats
from tracea_graph.onnx_io.custom_op_inlining import (
    CustomOpOrigin,
    custom_op_nodes,
    is_tracea_node,
)
from tracea_graph.onnx_io.initializer_guards import BRANCHES
from tracea_graph.onnx_io.model_reader import load
from tracea_graph.onnx_io.original_files import backend_of
from tracea_graph.pipeline.model_inputs import Feed, inputs_to_run
from tracea_graph.target import Backend, backend_named, host_fingerprint
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.version import versions
from tracea_graph.views.profile_record import MemoryRoof, Profile, ProfileRow, Roofs

__all__ = [
    "CallTime",
    "Traced",
    "profile",
    "read_trace",
    "roofline_limits",
    "time_calls",
]

DEFAULTS = BenchOptions()
_MULTIPLIED = {"bf16": ("bf16", 1), "bf16x2": ("bf16", 3), "int16": ("i16", 1)}
"""Per input type of a call's multiplication (``CallSchema.product_type``): the type whose peak
applies, and the number of multiplications of that type that one takes.
"""
_LOWER = {dtype for dtype, _ in _MULTIPLIED.values()}


def profile(
    path: Path, options: BenchOptions = DEFAULTS, progress: Progress = lambda _: None
) -> Profile:
    """Profile one run, under the first binding and thread count of ``options``.

    Raises UsageError for invalid options, RejectedByRuntime if the model does not run.
    """
    progress(f"reading {path.name}")
    one, result, model = model_subject(path), load(path), load(path, inline=True)
    calls, backend = custom_op_nodes(result), backend_named(backend_of(result))
    inputs = inputs_to_run(model, options.inputs)
    label, feed = next(iter(inputs.timing.items()))
    threads = (options.threads or (1,))[0]

    progress("measuring the machine")
    doctor = Doctor()
    roofs = roofline_limits(doctor, threads)

    progress(f"profiling {label}, {threads} thread{'s' * (threads > 1)}")
    with ScratchFolder("bodies") as folder:
        run_ms, nodes, others = _measure(one, feed, threads, options)
        note = ""
        if calls and not {call.op for call in calls} & {node.op for node in nodes}:
            one = _bodies_inlined(one, Path(folder) / "bodies.onnx")
            result, calls = load(one.path), custom_op_nodes(load(one.path))
            model = load(one.path, inline=True)
            note = _bodies_note(backend, calls)
            backend = backend_named("")  # the one that function bodies call
            run_ms, nodes, others = _measure(one, feed, threads, options)
        nodes = [n for n in nodes if n.name != BRANCHES]  # its time covers its inner nodes

        op_stats = OpStatistics(model.graph, calls, symbol_values(model.graph, feed))
        runs = len(nodes[0].samples) if nodes else 0
        traced = time_calls(one, calls, backend, feed, threads, runs)
    rows = sorted(
        (_row(n, op_stats, roofs, traced.get(n.name, ())) for n in nodes), key=lambda r: -r.us
    )
    return Profile(
        path.name, label, threads, tuple(rows), roofs.met(rows), run_ms, PROFILING_US,
        busy_warning(others), versions(), host_fingerprint(),
        (*inputs.notes, *filter(None, (note,))),
    )  # fmt: skip


def _bodies_inlined(one: BenchSubject, out: Path) -> BenchSubject:
    """Write a model whose kernels do not run here as ONNX Runtime runs it, and return that.

    It runs the function bodies, which may call kernels of another backend.
    """
    functions = load(one.path).skeleton.functions
    inner = {n.op_type for f in functions for n in f.node if is_tracea_node(n)}
    write_inlined(load(one.path, inline=True, kept=inner), out, inner)
    kernels = len(custom_op_nodes(load(out))) if one.library else 0
    return replace(one, path=out, kernels=kernels)


def _bodies_note(backend: Backend, calls: Sequence[CustomOpOrigin]) -> str:
    ran = f"kernels for the {backend_named('').name}" if calls else "the function bodies"
    return f"the kernels for {backend.name} do not run here: {ran} were profiled instead"


def roofline_limits(doctor: Doctor, threads: int) -> Roofs:
    """Return the limits of the machine when ``threads`` threads are used.

    Peaks and the bandwidths of per-core caches are proportional to the cores in use.  DRAM
    bandwidth is limited to that of all cores together.
    """
    cpu, figures = doctor.cpu, doctor.figures
    cores, widths = min(threads, cpu.cores), figures.bandwidth
    best = {d: max((p.gops for p in figures.peaks if p.dtype == d), default=0.0) for d in _LOWER}
    lower = {name: cores * best[d] / products for name, (d, products) in _MULTIPLIED.items()}
    dram = min(cores * widths.dram, widths.dram_all or widths.dram)
    return Roofs(
        gflops=cores * max(figures.peak("f32", level) for level in doctor.levels),
        memories=(
            MemoryRoof("L2", cores * cpu.l2, cores * widths.l2),
            MemoryRoof("L3", cpu.l3, cores * widths.l3),
            MemoryRoof("DRAM", 0, dram),
        ),
        source="measured" if figures.measured else "assumed",
        lower={name: peak for name, peak in lower.items() if peak},
    )


def _measure(
    one: BenchSubject, feed: Feed, threads: int, options: BenchOptions
) -> tuple[float, Sequence[NodeTime], float]:
    """Return the median ms without profiling, each node's time, and other processes' CPU use."""
    with BaselineWorker() as worker:
        worker.open("model", one.path, one.library, threads=threads)
        times = worker.time_rounds(["model"], feed, pairs=options.pairs, seconds=options.seconds)
        median = statistics.median(times.ms[0])
        runs = max(3, min(options.pairs, int(1e3 * options.seconds / median)))
        return median, worker.profile("model", feed, runs), times.others


def _row(
    node: NodeTime, op_stats: OpStatistics, roofs: Roofs, traced: Sequence[CallTime]
) -> ProfileRow:
    us, work = max(node.us - PROFILING_US, 0.0), op_stats.of(node.name, node.op)
    call = op_stats.calls.get(node.name)
    named = ProfileRow(
        node.name, node.op, call is not None, us,
        rule=call.rule if call else "", originals=call.originals if call else (),
    )  # fmt: skip
    if work is None and call is not None and traced:
        work = _done_by(traced, call.inputs, op_stats)
    if work is None:
        return named
    resident, passing = roofs.memory(op_stats.weight_bytes), roofs.memory(work.activations)
    calls = _calls(traced, work, call, op_stats, roofs)
    compute_us = sum(c.compute_us for c in calls) or work.flops / roofs.gflops / 1e3
    return ProfileRow(
        node.name, node.op, named.kernel, us, work.flops, work.weights, work.activations,
        work.unfused,
        compute_us=compute_us,
        memory_us=(work.weights / resident.gbytes + work.activations / passing.gbytes) / 1e3,
        memory=max((work.weights, resident.name), (work.activations, passing.name))[1],
        size=work.size,
        rule=named.rule,
        originals=named.originals,
        calls=calls,
    )  # fmt: skip


def _done_by(
    traced: Sequence[CallTime], inputs: Sequence[str], op_stats: OpStatistics
) -> NodeStats:
    """Sum a node's statistics over its traced calls, whose sizes may depend on values."""
    seen: dict[int, float] = {}
    for view in (v for t in traced for v in t.work.views if v.input is not None):
        assert view.input is not None
        seen[view.input] = max(seen.get(view.input, 0.0), view.bytes)
    weights = sum(size for i, size in seen.items() if op_stats.is_constant(inputs[i]))
    products, unfused = (sum(f) for f in zip(*((t.work.products, t.work.bytes) for t in traced),
                                          strict=True))  # fmt: skip
    return NodeStats(products, weights, sum(seen.values()) - weights, unfused)


def _calls(
    traced: Sequence[CallTime],
    work: NodeStats,
    call: CustomOpOrigin | None,
    op_stats: OpStatistics,
    roofs: Roofs,
) -> tuple[ProfileRow, ...]:
    """Return a row per kernel call.

    FLOPs beside the matrix multiplications are distributed over the calls by their result sizes.
    """
    resident = roofs.memory(op_stats.weight_bytes)
    beside = max(work.flops - sum(t.work.products for t in traced), 0.0)
    written = sum(t.work.results for t in traced) or 1.0
    inputs, names = (call.inputs, call.call_originals) if call else ((), ())
    if len(names) != len(traced):
        names = (call.originals if call else (),) * len(traced)
    rows = list[ProfileRow]()
    for one, originals in zip(traced, names, strict=True):
        outer = [v for v in one.work.views if v.input is not None]
        weights = sum(v.bytes for v in outer if op_stats.is_constant(inputs[v.input or 0]))
        moved = one.work.bytes - weights
        passing = roofs.memory(moved)
        flops = one.work.products + beside * one.work.results / written
        rows.append(
            ProfileRow(
                "", one.work.kernel, True, one.us, flops, weights, moved, None,
                compute_us=flops / roofs.peak(one.work.product_type) / 1e3,
                memory_us=(weights / resident.gbytes + moved / passing.gbytes) / 1e3,
                memory=max((weights, resident.name), (moved, passing.name))[1],
                size=one.work.size,
                product_type=one.work.product_type,
                originals=originals,
            )
        )  # fmt: skip
    return tuple(rows)


_WARMUP = 2


@dataclass(frozen=True)
class CallTime:
    """One kernel call of a node: median µs and its statistics."""

    us: float
    work: CallStats


Traced = Mapping[str, tuple[CallTime, ...]]
"""Calls by node name; nodes that never ran are missing."""


def time_calls(
    one: BenchSubject,
    calls: Sequence[CustomOpOrigin],
    backend: Backend,
    feed: Feed,
    threads: int,
    runs: int,
) -> Traced:
    """Return median times of every kernel call, measured in a separate process.

    Empty for a backend that traces no calls.
    """
    told = backend.tracing
    if one.library is None or not calls or told is None:
        return {}
    with ScratchFolder("calls") as folder:
        trace = Path(folder) / "trace"
        with Worker(env={"TRACEA_PROFILE": str(trace)}) as worker:
            worker.open("model", one.path, one.library, threads=threads)
            worker.compare("model", "model", feed, pairs=-(-runs // 2), warmup=_WARMUP)
        return read_trace(trace, calls, told, skip=2 * _WARMUP) if trace.is_file() else {}


def read_trace(
    trace: Path, calls: Sequence[CustomOpOrigin], told: CallWorkQueries, skip: int = 0
) -> Traced:
    """Read the kernel call times of some nodes from a trace, and return their medians.

    The first ``skip`` runs of each node are ignored.  Raises UsageError for a node whose plan
    another version of this tool wrote.
    """
    samples: dict[str, list[list[int]]] = {}
    sizes: dict[str, list[int]] = {}
    for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
        name, symbols, times, _ = line.rsplit("\t", 3)
        sizes[name] = _numbers(symbols)
        samples.setdefault(name, []).append(_numbers(times))
    found: dict[str, tuple[CallTime, ...]] = {}
    for call in calls:
        rows = samples.get(call.name, [])[skip:] or samples.get(call.name, [])
        if not rows:
            continue
        try:
            works = told.call_stats(call.plan, sizes[call.name])
        except GraphError as error:
            raise UsageError(f"{call.name} cannot be profiled: {error}") from error
        if all(len(row) == len(works) for row in rows):
            medians = [statistics.median(column) / 1e3 for column in zip(*rows, strict=True)]
            found[call.name] = tuple(map(CallTime, medians, works))
    return found


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]
