"""Compare ways of serving a model: many sessions of few threads, or one session of many."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from tracea_graph.check.timing_statistics import busy_seconds
from tracea_graph.check.worker_process import ConcurrentTimes, Worker
from tracea_graph.commands.bench import (
    BenchOptions,
    BenchSubject,
    busy_warning,
    model_subject,
    result_beside,
    thread_counts,
)
from tracea_graph.errors import UsageError
from tracea_graph.onnx_io.model_reader import load
from tracea_graph.pipeline.model_inputs import inputs_to_run
from tracea_graph.target import host_fingerprint
from tracea_graph.version import versions
from tracea_graph.views.serving import ServingReport, ServingRow, quantile

__all__ = ["compare_serving"]

_SLICE = 0.5
"""Seconds that one way runs before the next takes over."""

Progress = Callable[[str], None]


def compare_serving(
    models: Sequence[Path],
    sessions: int,
    options: BenchOptions,
    progress: Progress = lambda _: None,
) -> ServingReport:
    """Compare ``sessions`` concurrent sessions with one session that has all their threads.

    Each concurrent session runs its requests one after another.  It has as many threads as the
    first count in ``options.threads``, or one.  For all sizes in ``options.shapes`` and all
    models, both configurations are measured in turns; the whole comparison takes about
    ``options.seconds``.  For a single model ``NAME.onnx``, the second model is
    ``NAME.tracea.onnx`` in the same folder, if it exists.
    Raises UsageError for fewer than one session, and RejectedByRuntime if a model does not run.
    """
    if sessions < 1:
        raise UsageError(f"--sessions must be at least 1, not {sessions}")
    paths = [*models, *result_beside(models[0])] if len(models) == 1 else list(models)
    progress(f"reading {models[0].name}")
    subjects = [model_subject(path) for path in paths]
    inputs = inputs_to_run(load(models[0], inline=True), options.inputs)
    each = thread_counts(options.threads)[:1] if options.threads else (1,)
    ways = tuple(dict.fromkeys(((sessions, each[0]), (1, sessions * each[0]))))
    found: dict[tuple[str, BenchSubject, int, int], list[ConcurrentTimes]] = {}
    others = 0.0
    with Worker() as worker:
        groups = {
            (one, count, threads): _open(worker, one, index, count, threads)
            for index, one in enumerate(subjects)
            for count, threads in ways
        }
        turns = [(label, *key) for label in inputs.timing for key in groups]
        rounds = max(2, math.ceil(options.seconds / (_SLICE * len(turns))))
        for number in range(rounds):
            for turn in turns if number % 2 else reversed(turns):
                label, key = turn[0], turn[1:]
                progress(f"serving {label}, round {number + 1} of {rounds}")
                before = busy_seconds()
                served = worker.serve(groups[key], inputs.timing[label], seconds=_SLICE)
                others = max(others, (busy_seconds() - before - served.cpu) / served.wall)
                found.setdefault(turn, []).append(served)
    rows = tuple(_row(*turn, found[turn]) for turn in turns)
    return ServingReport(
        models[0].name, "; ".join(inputs.timing), rows, rounds, busy_warning(others), versions(),
        host_fingerprint(),
    )  # fmt: skip


def _open(
    worker: Worker, one: BenchSubject, index: int, count: int, threads: int
) -> tuple[str, ...]:
    names = tuple(f"m{index}-{count}x{threads}-{i}" for i in range(count))
    for name in names:
        worker.open(name, one.path, one.library, threads=threads)
    return names


def _row(
    label: str, one: BenchSubject, sessions: int, threads: int, found: Sequence[ConcurrentTimes]
) -> ServingRow:
    times = sorted(ms for served in found for ms in served.ms)
    per_second = sorted(len(served.ms) / served.wall for served in found)
    return ServingRow(
        one.name, sessions, threads, quantile(per_second, 0.5), per_second[0], per_second[-1],
        quantile(times, 0.5), quantile(times, 0.95), quantile(times, 0.99), len(times), label,
    )  # fmt: skip
