"""Record which thread runs which task of a result's largest program.

The library appends a line per run of a node to the file named by ``TRACEA_TIMELINE``
(``kernels/cpu/runtime/trace.h``, ``kernels/gpu/runtime/block_times.h``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tracea_graph.check.worker_process import Array, Worker
from tracea_graph.commands.bench import BenchOptions, model_subject
from tracea_graph.errors import UsageError
from tracea_graph.hardware import CallWorkQueries
from tracea_graph.onnx_io.custom_op_inlining import CustomOpOrigin, custom_op_nodes
from tracea_graph.onnx_io.model_reader import load
from tracea_graph.onnx_io.original_files import backend_of
from tracea_graph.pipeline.model_inputs import inputs_to_run
from tracea_graph.target import backend_named
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.views.timeline import TaskSpan, Timeline

__all__ = ["read_timeline", "record_timeline"]

_RUNS, _MOST_PAIRS, _SECONDS = 20, 200, 1.0
"""The last runs, of so many pairs or seconds, are read: threads spread over processors first."""
_NAMED_RUNS, _NAMED_WARMUP = 64, 4
"""Runs of libraries that name calls: half of them are recorded, half only timed."""
DEFAULTS = BenchOptions()


def record_timeline(path: Path, options: BenchOptions = DEFAULTS) -> Timeline:
    """Run an optimized model and return the timeline of its slowest program.

    Of several runs, the one of median duration is shown.  Sizes and thread count are the first
    ones in ``options``; the tasks are also timed on one thread, for comparison.
    Raises UsageError for a model without programs whose tasks are timed, RejectedByRuntime if
    it does not run.
    """
    one, result = model_subject(path), load(path)
    calls, backend = custom_op_nodes(result), backend_named(backend_of(result))
    recording = backend.recording
    if one.library is None or not calls or recording is None:
        raise UsageError(f"{path.name} has no programs of which a timeline can be drawn")
    _, feed = next(iter(inputs_to_run(load(path, inline=True), options.inputs).timing.items()))
    threads = (options.threads or (1,))[0]
    found = []
    with ScratchFolder("timeline") as folder:
        for count in dict.fromkeys((threads,) if recording.named else (threads, 1)):
            file = Path(folder) / f"timeline_{count}"
            with Worker(env={"TRACEA_TIMELINE": str(file)}) as worker:
                worker.open("model", one.path, one.library, threads=count)
                skip = _run(worker, feed, named=recording.named)
            if not file.is_file():
                hint = f", or it was not optimized under {recording.needs}"
                raise UsageError(f"no program of {path.name} ran{hint if recording.needs else ''}")
            found.append(read_timeline(file, path.name, calls, backend.tracing, skip))
    if recording.named:
        return replace(found[0], processor=recording.processor)
    return replace(found[0], alone=sum(task.us for task in found[-1].tasks))


def _run(worker: Worker, feed: Mapping[str, Array], *, named: bool) -> int:
    """Run a model for its recording, and return how many of the runs came too early to be read."""
    run = partial(worker.compare, "model", "model", feed)
    if named:
        run(pairs=_NAMED_RUNS // 2, warmup=_NAMED_WARMUP // 2)
        return _NAMED_WARMUP
    runs = 2 * len(run(pairs=_MOST_PAIRS, warmup=0, seconds=_SECONDS).a_ms)
    return max(runs - _RUNS, runs // 2)


def read_timeline(
    file: Path,
    title: str,
    calls: Sequence[CustomOpOrigin],
    told: CallWorkQueries | None,
    skip: int = 0,
) -> Timeline:
    """Read a recording and return the timeline of the slowest node, in its run of median duration.

    The first ``skip`` runs of every node are ignored.  Without ``told``, the recording names its
    calls, and may have runs whose tasks were not recorded.
    """
    runs: dict[str, list[tuple[int, str, str]]] = {}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        name, symbols, when, tasks = line.rsplit("\t", 3)
        begin, end = _numbers(when)
        runs.setdefault(name, []).append((end - begin, symbols, tasks))
    medians, plain = {}, {}
    for name, seen in runs.items():
        recorded = [run for run in seen[skip:] or seen if run[2]] or seen
        kept = sorted(recorded, key=lambda run: run[0])
        medians[name] = kept[len(kept) // 2]
        plain[name] = [ns for ns, _, tasks in seen if not tasks]
    name, (ns, symbols, tasks) = max(medians.items(), key=lambda item: item[1][0])
    numbers = _numbers(tasks)
    rows = sorted(zip(*(numbers[i::4] for i in range(4)), strict=True), key=lambda row: row[2])
    if told is None:
        others = plain[name]
        cost = (ns / 1e3, statistics.median(others) / 1e3) if others else None
        name, _, kernels = name.partition("\t")
        return replace(_of_processors(title, name, kernels, rows), recorded=cost)
    found = next((call for call in calls if call.name == name), None)
    stats = told.call_stats(found.plan, _numbers(symbols)) if found else ()
    threads = {thread: i for i, thread in enumerate(dict.fromkeys(row[1] for row in rows))}
    spans = tuple(TaskSpan(c, threads[t], b / 1e3, e / 1e3) for c, t, b, e in rows)
    names = tuple(f"{one.kernel} {one.size}" for one in stats)
    return Timeline(f"{title}, {name}, {ns / 1e6:.3f} ms", ns / 1e3, names, spans)


def _of_processors(
    title: str, name: str, kernels: str, rows: Sequence[tuple[int, ...]]
) -> Timeline:
    """Return a timeline whose lanes are slots of processors, each with one task at a time."""
    slots: dict[int, list[int]] = {}  # when a slot is free
    taken = []
    for _, processor, begin, end in rows:
        own = slots.setdefault(processor, [])
        slot = next((i for i, free in enumerate(own) if free <= begin), len(own))
        own[slot : slot + 1] = [end]
        taken.append((processor, slot))
    lanes = {lane: i for i, lane in enumerate(sorted(set(taken)))}
    spans = tuple(
        TaskSpan(call, lanes[lane], begin / 1e3, end / 1e3)
        for lane, (call, _, begin, end) in zip(taken, rows, strict=True)
    )
    us = max((span.end for span in spans), default=0.0)
    symbols = filter(None, kernels.split(","))
    names = tuple(one.rpartition("__")[0].removeprefix("tracea_") for one in symbols)
    whole = f"{title}, {name}, {us / 1e3:.3f} ms"
    return Timeline(whole, us, names, spans, processors=tuple(own for own, _ in lanes))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]
