"""Benchmark ONNX Runtime, results of this tool and other runtimes, interleaved in one worker."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracea_graph.check.baseline_runtimes import (
    Baseline,
    BaselineWorker,
    RoundTimes,
    baselines_named,
)
from tracea_graph.check.output_errors import describe_difference, relative_distance
from tracea_graph.check.timing_statistics import series_ratio
from tracea_graph.check.worker_process import Array, RejectedByRuntime
from tracea_graph.commands.op_statistics import OpStatistics, symbol_values
from tracea_graph.errors import UsageError
from tracea_graph.hardware.core_topology import usable_cores
from tracea_graph.onnx_io import Model, library_of
from tracea_graph.onnx_io.custom_op_inlining import custom_op_nodes
from tracea_graph.onnx_io.initializer_guards import is_guarded, nodes_run_each_time
from tracea_graph.onnx_io.model_reader import load
from tracea_graph.options import Options
from tracea_graph.pipeline.model_inputs import inputs_to_run
from tracea_graph.target import host_fingerprint
from tracea_graph.version import versions
from tracea_graph.views.bench import BenchReport, BenchRow

__all__ = [
    "BenchOptions",
    "BenchSubject",
    "bench",
    "busy_warning",
    "model_subject",
    "result_beside",
    "thread_counts",
]

BASELINE = "ONNX Runtime"
BUSY = 0.2
"""Warn if other processes use more than this share of a core."""

Feed = Mapping[str, Array]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class BenchOptions:
    """How to run a benchmark.

    * ``threads``: thread counts to time; empty means 1 and all cores.
    * ``shapes``: sizes to time, by symbol; empty means default sizes.
    * ``pairs``, ``seconds``: a measurement ends after so many rounds or so much time.
    * ``baselines``: other runtimes to time; None means all installed ones.
    * ``data``, ``seed``: a file or folder of inputs, or the seed of random ones.
    * ``custom_ops_libraries``: custom-op libraries that the models need besides their own.
    """

    threads: tuple[int, ...] = ()
    shapes: tuple[dict[str, int], ...] = ()
    pairs: int = 50
    seconds: float = 20.0
    baselines: tuple[str, ...] | None = None
    data: Path | None = None
    seed: int = 0
    custom_ops_libraries: tuple[Path, ...] = ()

    @property
    def inputs(self) -> Options:
        """Return options that select the same inputs."""
        return Options(shapes=self.shapes, data=self.data, seed=self.seed)


@dataclass(frozen=True)
class BenchSubject:
    """A model file to time in ONNX Runtime, with the custom-op library that it needs, if any.

    Of its ``nodes`` nodes, ``kernels`` run as generated kernels; 0 if there is no library.
    """

    name: str
    path: Path
    library: Path | None
    kernels: int
    nodes: int


def bench(
    models: Sequence[Path],
    options: BenchOptions = BenchOptions(),
    progress: Progress = lambda _: None,
) -> BenchReport:
    """Time models and other runtimes, and compare each with the first model.

    The other runtimes run the first model.  For a single model ``NAME.onnx``, the second model is
    ``NAME.tracea.onnx`` in the same folder, if it exists.  Raises UsageError for invalid options,
    for models whose inputs differ, and for a library that belongs to another model;
    RejectedByRuntime if the first model does not run.
    """
    paths = [*models, *result_beside(models[0])] if len(models) == 1 else list(models)
    progress(f"reading {models[0].name}")
    model = load(models[0], inline=True)
    subjects = [model_subject(path) for path in paths]
    _check_inputs(model, paths[1:])
    notes = [
        _no_library(e) for e in subjects if e.library is None and custom_op_nodes(load(e.path))
    ]
    baselines = baselines_named(options.baselines)
    inputs, others = inputs_to_run(model, options.inputs), 0.0
    rows, rounds = list[BenchRow](), list[int]()
    for label, feed in inputs.timing.items():
        for threads in thread_counts(options.threads):
            progress(f"timing {label}, {threads} thread{'s' * (threads > 1)}")
            run = _BenchRun(model, subjects, baselines, label, feed, threads, options)
            rows += run.run()
            rounds.append(run.rounds)
            others = max(others, run.others)
            notes += run.notes
    op_stats = {
        label: OpStatistics(model.graph, (), symbol_values(model.graph, feed))
        for label, feed in inputs.timing.items()
    }
    return BenchReport(
        models[0].name,
        tuple(rows),
        {label: one.products / 1e9 for label, one in op_stats.items()},
        min(rounds),
        (*dict.fromkeys(notes), *busy_warning(others)),
        versions() | {baseline.package: baseline.version for baseline in baselines},
        host_fingerprint(),
        inputs.notes,
        {label: one.elements("Softmax") for label, one in op_stats.items()},
    )


def model_subject(path: Path) -> BenchSubject:
    """Return a model with its library (:func:`~tracea_graph.onnx_io.library_of`)."""
    model = load(path)
    library, nodes = library_of(path), len(model.graph.regions())
    if is_guarded(model):
        nodes = len(nodes_run_each_time(model.skeleton))
    return BenchSubject(
        path.name, path, library, len(custom_op_nodes(model)) if library else 0, nodes
    )


def _check_inputs(model: Model, others: Sequence[Path]) -> None:
    """Raise UsageError unless all models have inputs of equal names."""
    for path in others:
        taken = load(path).inputs
        if set(taken) != set(model.inputs):
            raise UsageError(
                f"{path} takes {', '.join(taken) or 'nothing'}, and {model.path} "
                f"{', '.join(model.inputs) or 'nothing'}: they cannot be compared"
            )


def result_beside(path: Path) -> tuple[Path, ...]:
    """Return ``NAME.tracea.onnx`` beside ``NAME.onnx``, if it exists."""
    result = path.with_name(f"{path.stem}.tracea.onnx")
    return (result,) if os.path.isfile(result) else ()  # the name may be too long for a file


def thread_counts(threads: Sequence[int]) -> tuple[int, ...]:
    """Return the given counts, or one and all cores."""
    return tuple(threads) or tuple(dict.fromkeys((1, usable_cores())))


def busy_warning(others: float) -> tuple[str, ...]:
    """Return a warning if other processes used much of a core during the measurement.

    ``others`` is the mean number of cores that they used.
    """
    if others <= BUSY:
        return ()
    return (f"other processes used {others:.0%} of a core meanwhile: times are less certain",)


def _no_library(one: BenchSubject) -> str:
    return f"{one.name} has no library of its own beside it: it runs on its function bodies"


@dataclass
class _BenchRun:
    """One run: all subjects under one binding and thread count."""

    model: Model
    subjects: Sequence[BenchSubject]
    baselines: Sequence[Baseline]
    label: str
    feed: Feed
    threads: int
    options: BenchOptions
    rounds: int = 0
    others: float = 0.0

    def __post_init__(self) -> None:
        self.notes: list[str] = []

    def run(self) -> list[BenchRow]:
        with BaselineWorker() as worker:
            names = self._open(worker)
            outputs = [worker.run(name, self.feed) for name in names]
            times = worker.time_rounds(
                list(names), self.feed, pairs=self.options.pairs, seconds=self.options.seconds
            )
        self.rounds, self.others = len(times.ms[0]), times.others
        for (title, _), found in zip(names.values(), outputs, strict=True):
            self._compare(title, found, outputs[0])
        return [
            self._row(title, one, times, index, _error(outputs[index], outputs[0]))
            for index, (title, one) in enumerate(names.values())
        ]

    def _open(self, worker: BaselineWorker) -> dict[str, tuple[str, BenchSubject | None]]:
        """Open everything that can be opened; return title and subject by session name."""
        opened: dict[str, tuple[str, BenchSubject | None]] = {}
        for index, one in enumerate(self.subjects):
            title = f"{BASELINE}, {one.name}" if index or one.kernels else BASELINE
            try:
                worker.open(f"m{index}", one.path, one.library, threads=self.threads)
            except RejectedByRuntime as error:
                if not index:
                    raise
                self.notes.append(f"ONNX Runtime refuses {one.name}: {error}")
                continue
            opened[f"m{index}"] = (title if not index else one.name, one)
        for baseline in self.baselines:
            self._open_baseline(worker, baseline, opened)
        return opened

    def _open_baseline(
        self,
        worker: BaselineWorker,
        baseline: Baseline,
        opened: dict[str, tuple[str, BenchSubject | None]],
    ) -> None:
        try:
            precision = worker.open_baseline(
                baseline.name,
                baseline,
                self.model.path,
                self.feed,
                self.model.graph.outputs,
                threads=self.threads,
            )
            worker.run(baseline.name, self.feed)  # some models compile but do not run
        except RejectedByRuntime as error:
            why = " ".join(str(error).split())[:200]
            self.notes.append(f"{baseline.name} refuses {self.model.path.name}: {why}")
            return
        if precision != baseline.precision:
            self.notes.append(f"{baseline.name} runs in {precision} on this machine")
        opened[baseline.name] = (f"OpenVINO {baseline.precision}", None)

    def _compare(
        self, title: str, found: Mapping[str, Array], wanted: Mapping[str, Array]
    ) -> None:
        """Record the first output that differs grossly from the baseline's."""
        for (name, y), x in zip(wanted.items(), found.values(), strict=True):
            if math.isinf(relative_distance(x, y)):
                why = f"output {name!r} with {self.label}: {describe_difference(x, y)}"
                self.notes.append(f"{title} computes something else than {BASELINE}: {why}")
                return

    def _row(
        self, title: str, one: BenchSubject | None, times: RoundTimes, index: int, error: float
    ) -> BenchRow:
        found = series_ratio(times.ms[0], times.ms[index])
        counts = (one.kernels, one.nodes) if one else (0, 0)
        return BenchRow(
            title, self.threads, self.label, found.b_ms, found.b_min,
            found.median, found.low, found.high, error, *counts,
        )  # fmt: skip


def _error(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """Return the largest distance of any output; outputs are in the model's order."""
    pairs = zip(found.values(), wanted.values(), strict=True)
    return max((relative_distance(a, b) for a, b in pairs), default=0.0)
