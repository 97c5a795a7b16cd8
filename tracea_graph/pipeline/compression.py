"""Smaller matrices under one error budget, chosen before planning.

Layers are calibrated, every technique asked for is priced per layer (time saved, error), the
budget is spread, and the whole is built and measured; what is given to the layers shrinks until
the error holds, or grows while there is room.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from tracea_graph.check.worker import Worker
from tracea_graph.compress import (
    Calibration,
    Layer,
    LayerOption,
    LayerOptions,
    Metric,
    ObservedValue,
    add_all,
    calibrate,
    layers_of,
    load_metric,
    median_option,
    output_errors,
    output_names,
    perturbations_of,
    search,
    share_of_largest,
    split_data,
    total_error,
)
from tracea_graph.config import TOLERANCE
from tracea_graph.errors import UsageError, VerifyError, WorkerError
from tracea_graph.onnx_io import Model
from tracea_graph.options import Options
from tracea_graph.passes.sparse.compressed import Compressed
from tracea_graph.passes.sparse.dead_channels import DEAD_CHANNELS
from tracea_graph.pipeline.candidates import BuiltModel, CandidateBuilder, LibraryBuilder
from tracea_graph.pipeline.inputs import Inputs
from tracea_graph.pipeline.planning import Planner
from tracea_graph.pipeline.timer import StepTimer
from tracea_graph.views import CompressionRow

__all__ = [
    "Compression",
    "CompressionContext",
    "CompressionResult",
    "CompressionSearch",
    "ErrorMeter",
    "compress",
]

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass
class ErrorMeter:
    """Measures the error of results against the model at ``original``."""

    original: Path
    metric: Metric
    threads: int
    _wanted: dict[str, Arrays] = field(default_factory=dict)

    def error(self, built: BuiltModel, feeds: Mapping[str, Arrays]) -> float:
        """The largest error of a result over some inputs by name."""
        with Worker(limit=600.0) as worker:
            missing = feeds.keys() - self._wanted.keys()
            if missing:
                worker.open("original", self.original, threads=self.threads)
                self._wanted |= {k: worker.run("original", feeds[k]) for k in sorted(missing)}
                worker.close("original")
            worker.open("result", built.model, built.library, threads=self.threads)
            return max(
                self.metric(worker.run("result", feed), self._wanted[label])
                for label, feed in feeds.items()
            )


Floats = npt.NDArray[np.floating[Any]]
_PROBED = 2
"""Sets of inputs each layer alone is measured with."""
_SHARE = 0.5
"""Of the budget, what the scheduler books for all matrices; the rest is for roundings.  Whether it
holds is measured, not added up."""


@dataclass(frozen=True)
class CompressionContext:
    """What the compression search of one model works with."""

    model: Model
    options: Options
    inputs: Inputs
    planner: Planner
    libraries: LibraryBuilder
    scratch: Path
    timer: StepTimer

    @property
    def progress(self) -> Callable[[str], None]:
        """Hears what is under way."""
        return self.timer.progress


@dataclass(frozen=True)
class CompressionResult:
    """The replaced matrices, a row per layer, and the whole in a sentence."""

    compressed: Mapping[str, Compressed]
    rows: tuple[CompressionRow, ...]
    note: str


class CompressionSearch:
    """Search for the options of all layers; messages to the user gather in ``warnings``."""

    def __init__(self, context: CompressionContext) -> None:
        self.context, self.options = context, context.options
        options, model = context.options, context.model
        self.threads = max(options.thread_counts)
        self.budget = TOLERANCE.lossy if options.max_error is None else options.max_error
        metric = load_metric(options.metric) if options.metric else share_of_largest
        self.meter = ErrorMeter(model.path, metric, self.threads)
        self.parts = split_data(options.data, options.holdout, model, context.inputs.verification)
        self.warnings = list(self.parts.warnings)
        self.inputs = dataclasses.replace(
            context.inputs,
            verification=self.parts.validation,
            real=self.parts.calibrate is not None,
        )
        self.layer_options = LayerOptions(options.low_rank, options.prune)
        self.power = 1

    # ---- layers ------------------------------------------------------------------------

    def _layers(self) -> tuple[Layer, ...]:
        """The layers whose inputs the original names, for only those can be seen."""
        context = self.context
        plain = dataclasses.replace(
            self.options, precision="fp32", low_rank=None, prune=None, windows=(),
            skip=(*self.options.skip, *context.planner.backend.rules.packing),
        )  # fmt: skip
        cost, symbols = context.planner.cost, self.inputs.timed[0].symbols
        graph = (
            Planner(context.model.graph, plain, symbols, cost=cost).plan(unclustered=True).graph
        )
        layers, notes = layers_of(graph, cost)
        self.warnings += notes
        skeleton = context.model.skeleton.graph
        results = {v for n in skeleton.node for v in n.output}
        named = results | set(context.model.inputs)

        def seen(layer: Layer) -> bool:
            read = {*(p.x for p in layer.uses), *(s.value for s in layer.observed)}
            return named >= read and results.issuperset(p.result for p in layer.uses)

        hidden = [layer.title for layer in layers if not seen(layer)]
        if hidden:
            self.warnings.append(
                f"{', '.join(hidden[:3])}{' …' if hidden[3:] else ''}: "
                "its input has no name in the original, so it is unchanged"
            )
        return tuple(layer for layer in layers if seen(layer))

    def _calibrated(self, layers: Sequence[Layer]) -> Calibration | None:
        samples, model = self.parts.calibrate, self.context.model
        if samples is None:
            return None
        values = _seen(layers)
        marks = samples.mark, _model_mark(model), sorted(s.key for s in values)
        key = hashlib.sha256(repr(marks).encode())
        kept = self.options.environment.cache / "calibration" / f"{key.hexdigest()[:32]}.npz"
        progress = self.context.progress
        return calibrate(model.path, values, samples, progress, kept, self.threads)

    # ---- options -----------------------------------------------------------------------

    def _layer_options(self, layers: Sequence[Layer]) -> dict[str, list[LayerOption]]:
        """What could become of each layer, and what it costs the layer's own output."""
        data, by_layer = self._calibrated(layers), {}
        producers = {layer.producer for layer in layers}
        for i, layer in enumerate(layers):
            self.context.progress(f"analyzing layer {i + 1} of {len(layers)}")
            gram, rows = data.joint(layer.observed) if data else (None, 0)
            if data and rows < layer.known:
                self.warnings.append(
                    f"--data gives {layer.title} {rows} rows, fewer than the {layer.known} "
                    "elements of each: directions without data count as unimportant"
                )
            by_layer[layer.name] = self.layer_options.options_for(
                layer, gram, layer.name in producers
            )
        return by_layer

    def _with_output_errors(
        self, layers: Sequence[Layer], by_layer: Mapping[str, list[LayerOption]]
    ) -> dict[str, list[LayerOption]]:
        """The options with their errors at the outputs: one is measured per layer, the others are
        taken in proportion.

        An error that grows with the square of a change is given as its root: then errors of
        layers add in quadrature, whatever the metric.
        """
        probed = [
            (layer, median_option(by_layer[layer.name]))
            for layer in layers
            if by_layer[layer.name]
        ]
        changes = (
            change
            for i, (layer, option) in enumerate(probed)
            for change in perturbations_of(
                i, layer, self.layer_options.perturbation(layer, option)
            )
        )
        feeds = list(self.parts.validation.values())[:_PROBED]
        try:
            errors, self.power = output_errors(
                self.context.model.path, changes, len(probed), feeds, self.meter.metric,
                self.context.scratch, self.context.progress, self.threads,
            )  # fmt: skip
        except WorkerError as refused:
            self.warnings.append(f"layers were not measured one by one: {refused}")
            errors = [option.layer_error for _, option in probed]
        found = {}
        for (layer, option), error in zip(probed, errors, strict=True):
            root = error ** (1 / self.power)
            ratio = root / option.layer_error if option.layer_error else 0.0
            found[layer.name] = [
                dataclasses.replace(c, error=c.layer_error * ratio) for c in by_layer[layer.name]
            ]
        return found

    # ---- the budget --------------------------------------------------------------------

    def run(self) -> CompressionResult | None:
        """Everything in order; None if nothing was chosen, and ``warnings`` say why."""
        layers = self._layers()
        if not layers:
            self.warnings.append("no product of this model has a matrix that could be smaller")
            return None
        by_layer = self._layer_options(layers)
        if not any(by_layer.values()):
            self.warnings.append(self.layer_options.why_nothing())
            return None
        by_layer = self._with_output_errors(layers, by_layer)
        chosen, error = search(
            by_layer,
            self.budget,
            lambda some, trial: self._measured(layers, some, trial),
            self.power,
        )
        if not chosen:
            mildest = min((c.error for cs in by_layer.values() for c in cs), default=0.0)
            self.warnings.append(
                f"no compression stays within an error of {self.budget:g}: "
                f"the smallest change of one layer has {mildest**self.power:.2g}"
            )
            return None
        predicted = total_error([*chosen.values()]) ** self.power
        note = (
            f"{len(chosen)} of {len(layers)} layers are smaller: an error of {predicted:.2g} was "
            f"predicted for the outputs, {error:.2g} was measured, "
            f"{self.budget:g} was allowed"
        )
        smaller = [layer for layer in layers if layer.name in chosen]
        return CompressionResult(
            self._compressed(smaller, chosen), self._rows(smaller, chosen), note
        )

    def _compressed(
        self, layers: Sequence[Layer], chosen: Mapping[str, LayerOption]
    ) -> dict[str, Compressed]:
        share = _SHARE * self.options.tolerance / max(total_error([*chosen.values()]), 1e-30)
        return {
            layer.name: Compressed(
                self.layer_options.replacement(layer, chosen[layer.name]),
                chosen[layer.name].error * share,
            )
            for layer in layers
            if layer.name in chosen
        }

    def planner_of(self, compressed: Mapping[str, Compressed]) -> Planner:
        """A planner that puts them in."""
        context, symbols = self.context, self.inputs.timed[0].symbols
        return Planner(
            context.model.graph, self.options, symbols, context.libraries.target,
            context.planner.cost, compressed, context.planner.scan, context.planner.deadline,
        )  # fmt: skip

    def _measured(
        self, layers: Sequence[Layer], chosen: Mapping[str, LayerOption], trial: int
    ) -> float:
        """The error of the whole on the validation inputs."""
        context = self.context
        context.progress(f"measuring {len(chosen)} smaller layers, trial {trial + 1}")
        planner = self.planner_of(self._compressed(layers, chosen))
        folder = context.scratch / f"trial{trial}"
        folder.mkdir(parents=True, exist_ok=True)
        builder = CandidateBuilder(context.model, self.options, planner, context.libraries, folder)
        return self.meter.error(builder.build(), self.parts.validation)

    # ---- what is told ------------------------------------------------------------------

    def _rows(
        self, layers: Sequence[Layer], chosen: Mapping[str, LayerOption]
    ) -> tuple[CompressionRow, ...]:
        held = self._holdout_grams(layers)
        return tuple(self._row(layer, chosen[layer.name], held) for layer in layers)

    def _holdout_grams(self, layers: Sequence[Layer]) -> Calibration | None:
        """Gram matrices over the held-out inputs."""
        if self.parts.calibrate is None:
            return None
        values = _seen(layers)
        found = Calibration()
        with Worker(limit=600.0) as worker:
            path = self.context.model.path
            worker.open("holdout", path, threads=self.threads, extra=output_names(values))
            for label, feed in self.parts.holdout.items():
                add_all(found, values, worker.run("holdout", feed), feed, label)
        return found

    def _row(self, layer: Layer, option: LayerOption, held: Calibration | None) -> CompressionRow:
        measured = None
        if held is not None:
            measured = self.layer_options.error_on(layer, option, held.joint(layer.observed)[0])
        return CompressionRow(
            layer.title, layer.nodes, option.technique, option.size, layer.k, layer.n, option.left,
            option.layer_error, measured, option.error**self.power, option.saved,
        )  # fmt: skip


def _seen(layers: Sequence[Layer]) -> list[ObservedValue]:
    """All that is to be seen of some layers, each once."""
    found = {s.key: s for layer in layers for s in layer.observed}
    return [found[key] for key in sorted(found)]


def _model_mark(model: Model) -> tuple[str, int, int]:
    """What tells a model's file from others."""
    found = model.path.stat()
    return str(model.path.resolve()), found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class Compression:
    """What was chosen, and what is told about it.

    ``inputs`` are those to verify and time with, ``planner`` plans with what was chosen;
    ``holdout_error`` is the error of a result on held-out inputs, by the user's
    ``own_metric`` or as a share of max|y|.
    """

    inputs: Inputs
    planner: Planner
    rows: tuple[CompressionRow, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    holdout_error: Callable[[BuiltModel], float] | None = None
    validation_error: Callable[[BuiltModel], float] | None = None
    budget: float = 0.0
    own_metric: bool = False

    def confirm(self, kept: BuiltModel | None) -> tuple[float | None, tuple[str, ...]]:
        """The error of what is to be published on held-out inputs, and a warning if
        it is above the budget there; None where nothing was chosen.

        Raises VerifyError if what was kept no longer holds the budget by the user's own metric on
        the validation inputs.
        """
        if kept is None or self.holdout_error is None or self.validation_error is None:
            return None, ()
        if self.own_metric and (error := self.validation_error(kept)) > self.budget:
            raise VerifyError(
                f"what was kept has an error of {error:.3g} by --metric, "
                f"above the {self.budget:.3g} allowed"
            )
        found = self.holdout_error(kept)
        if found <= self.budget:
            return found, ()
        return found, (
            f"on held-out inputs the error is {found:.3g}, above the "
            f"{self.budget:.3g} allowed: more --data would show it earlier",
        )


def compress(context: CompressionContext) -> Compression:
    """Choose smaller matrices for a model.  Without ``--low-rank`` and ``--prune``: nothing.

    Raises UsageError for options that contradict each other, data that does not fit, a metric that
    fails and a budget that is none.
    """
    options = context.options
    if not options.compresses:
        if options.metric:
            raise UsageError("--metric measures --low-rank and --prune: give one of them with it")
        return Compression(context.inputs, context.planner)
    check_options(options)
    context.timer.step("compressing")
    # layers are known by their own channels; what is dropped between them would hide them
    skip = (*options.skip, DEAD_CHANNELS)
    searcher = CompressionSearch(
        dataclasses.replace(context, options=dataclasses.replace(options, skip=skip))
    )
    # threads of BLAS spin for each other: no more of them than were asked for
    with threadpool_limits(searcher.threads, user_api="blas"):
        result = searcher.run()
    warnings = tuple(searcher.warnings)
    if result is None and not options.metric:
        return Compression(searcher.inputs, context.planner, warnings=warnings)
    return _compression(searcher, result, warnings)


def _compression(
    searcher: CompressionSearch, result: CompressionResult | None, warnings: tuple[str, ...]
) -> Compression:
    """What was chosen; where nothing was, the metric still judges what precision costs."""
    return Compression(
        searcher.inputs,
        searcher.planner_of(result.compressed) if result else searcher.context.planner,
        result.rows if result else (),
        warnings,
        (result.note,) if result else (),
        lambda built: searcher.meter.error(built, searcher.parts.holdout),
        lambda built: searcher.meter.error(built, searcher.parts.validation),
        searcher.budget,
        bool(searcher.options.metric),
    )


def check_options(options: Options) -> None:
    """Raise UsageError for options that leave nothing to choose, or nothing to measure."""
    what = "--low-rank" if options.low_rank is not None else "--prune"
    if options.low_rank is not None and not 0 < options.low_rank <= 1:
        raise UsageError(f"--low-rank takes an error above 0, up to 1, not {options.low_rank:g}")
    if options.max_error is not None and not options.max_error > 0:
        raise UsageError(f"{what} needs a --max-error above 0, not {options.max_error:g}")
    for name, on in (
        ("--no-custom-ops", not options.custom_ops),
        ("--no-prepack", not options.prepack),
        ("--no-verify", not options.verify),
        ("--lock", options.lock is not None),
        ("--save-lock", options.save_lock is not None),
    ):
        if on:
            raise UsageError(f"{what} and {name} contradict each other")
