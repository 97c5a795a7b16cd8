"""Choose low-rank factors and pruning for layers under one error budget, before planning.

Layers are calibrated, and every requested technique is priced per layer (time saved, error).  The
budget is distributed over the layers, and the whole model is built and measured.  The layers'
shares then shrink until the measured error is within the budget, or grow if it is well within.
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

from tracea_graph.check.verify_outputs import Verification
from tracea_graph.check.worker_process import Worker
from tracea_graph.compress import (
    Calibration,
    Layer,
    LayerOption,
    LayerOptions,
    Metric,
    ObservedValue,
    accumulate_outputs,
    calibrate,
    layers_of,
    load_metric,
    option_of_median_error,
    output_errors,
    output_names,
    perturbations_of,
    relative_max_error,
    search_within_budget,
    split_data,
    total_error,
)
from tracea_graph.config import TOLERANCE
from tracea_graph.errors import UsageError, VerifyError, WorkerError
from tracea_graph.onnx_io import Model
from tracea_graph.options import Options
from tracea_graph.passes.sparse.chosen_compression import CompressedMatrix
from tracea_graph.passes.sparse.dead_channels import DEAD_CHANNELS
from tracea_graph.pipeline.candidate_models import BuiltModel, CandidateBuilder
from tracea_graph.pipeline.library_builder import LibraryBuilder
from tracea_graph.pipeline.model_inputs import ModelInputs
from tracea_graph.pipeline.planning import Planner
from tracea_graph.pipeline.step_timer import StepTimer
from tracea_graph.views import CompressionRow

__all__ = [
    "ChosenCompression",
    "CompressionContext",
    "CompressionResult",
    "CompressionSearch",
    "ErrorMeter",
    "choose_compression",
    "observable_layers",
]

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass
class ErrorMeter:
    """Measures the error of results against the original model, by ``metric``."""

    original: Path
    metric: Metric
    threads: int
    _wanted: dict[str, Arrays] = field(default_factory=dict)

    def error(self, built: BuiltModel, feeds: Mapping[str, Arrays]) -> float:
        """Return the largest error of a result over the input sets ``feeds``."""
        with Worker(limit=600.0) as worker:
            missing = feeds.keys() - self._wanted.keys()
            if missing:
                worker.open("original", self.original, threads=self.threads)
                self._wanted |= {k: worker.run("original", feeds[k]) for k in sorted(missing)}
                worker.close("original")
            worker.open("result", built.model, built.runnable, threads=self.threads)
            return max(
                self.metric(worker.run("result", feed), self._wanted[label])
                for label, feed in feeds.items()
            )


Floats = npt.NDArray[np.floating[Any]]
_PROBED = 2
"""Input sets that each layer is measured with on its own."""
_SHARE = 0.5
"""Share of the budget for compression; the rest is for reduced-precision rewrites.  The total
error is measured, not summed.
"""


@dataclass(frozen=True)
class CompressionContext:
    """What the compression search of one model needs."""

    model: Model
    options: Options
    inputs: ModelInputs
    planner: Planner
    libraries: LibraryBuilder
    scratch: Path
    timer: StepTimer

    @property
    def progress(self) -> Callable[[str], None]:
        """Callback that receives the name of each step."""
        return self.timer.progress


@dataclass(frozen=True)
class CompressionResult:
    """The replaced matrices, a report row per layer, and a summary sentence."""

    compressed: Mapping[str, CompressedMatrix]
    rows: tuple[CompressionRow, ...]
    note: str


class CompressionSearch:
    """Search for the best option of every layer; ``warnings`` collects messages to the user."""

    def __init__(self, context: CompressionContext) -> None:
        self.context, self.options = context, context.options
        options, model = context.options, context.model
        self.threads = max(options.thread_counts)
        self.budget = TOLERANCE.lossy if options.max_error is None else options.max_error
        metric = load_metric(options.metric) if options.metric else relative_max_error
        self.meter = ErrorMeter(model.in_float32, metric, self.threads)
        self.parts = split_data(options.data, options.holdout, model, context.inputs.verification)
        self.warnings = list(self.parts.warnings)
        self.inputs = dataclasses.replace(
            context.inputs,
            verification=self.parts.validation,
            real=self.parts.calibrate is not None,
        )
        target = context.libraries.target
        quick = target.backend.two_of_four_time(target.levels, options.precision)
        self.layer_options = LayerOptions(options.low_rank, options.prune, quick)
        self.power = 1

    # ---- layers ------------------------------------------------------------------------

    def _layers(self) -> tuple[Layer, ...]:
        """Layers whose inputs are named values of the original; others cannot be observed."""
        layers, notes = observable_layers(self.context, self.options, self.inputs)
        self.warnings += notes
        return layers

    def _calibrated(self, layers: Sequence[Layer]) -> Calibration | None:
        samples, model = self.parts.calibrate, self.context.model
        if samples is None:
            return None
        values = _observed_values(layers)
        marks = samples.mark, _model_id(model), sorted(s.key for s in values)
        key = hashlib.sha256(repr(marks).encode())
        kept = self.options.environment.cache / "calibration" / f"{key.hexdigest()[:32]}.npz"
        progress = self.context.progress
        return calibrate(model.in_float32, values, samples, progress, kept, self.threads)

    # ---- options -----------------------------------------------------------------------

    def _layer_options(self, layers: Sequence[Layer]) -> dict[str, list[LayerOption]]:
        """Return the options of each layer, with the error of each at the layer's own output."""
        data, by_layer = self._calibrated(layers), {}
        producers = {layer.producer for layer in layers}
        for i, layer in enumerate(layers):
            self.context.progress(f"analyzing layer {i + 1} of {len(layers)}")
            gram, rows = data.joint(layer.observed) if data else (None, 0)
            if data and rows < layer.known:
                self.warnings.append(
                    f"{layer.title}: --data gives {rows} rows of {layer.known} elements; with "
                    "fewer rows than elements, directions without data count as unimportant"
                )
            by_layer[layer.name] = self.layer_options.options_for(
                layer, gram, layer.name in producers
            )
        return by_layer

    def _with_output_errors(
        self, layers: Sequence[Layer], by_layer: Mapping[str, list[LayerOption]]
    ) -> dict[str, list[LayerOption]]:
        """Return the options with their errors at the model's outputs.

        One option per layer is measured; the others are scaled in proportion.  An error that grows
        with the square of a change is stored as its root, so that errors of layers add in
        quadrature under every metric.
        """
        probed = [
            (layer, option_of_median_error(by_layer[layer.name]))
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
                self.context.model.in_float32, changes, len(probed), feeds, self.meter.metric,
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
        """Run all steps; if nothing is chosen, return None and add the reason to ``warnings``."""
        layers = self._layers()
        if not layers:
            self.warnings.append("no matmul of this model has a compressible weight")
            return None
        by_layer = self._layer_options(layers)
        if not any(by_layer.values()):
            self.warnings.append(self.layer_options.why_nothing())
            return None
        by_layer = self._with_output_errors(layers, by_layer)
        chosen, error = search_within_budget(
            by_layer,
            self.budget,
            lambda some, trial: self._measured(layers, some, trial),
            self.power,
        )
        if not chosen:
            mildest = min((c.error for cs in by_layer.values() for c in cs), default=0.0)
            self.warnings.append(
                f"no compression stays within an error of {self.budget:g}: "
                f"the smallest change of a single layer has an error of {mildest**self.power:.2g}"
            )
            return None
        predicted = total_error([*chosen.values()]) ** self.power
        note = (
            f"{len(chosen)} of {len(layers)} layers were compressed; error of the outputs: "
            f"{predicted:.2g} predicted, {error:.2g} measured, {self.budget:g} allowed"
        )
        smaller = [layer for layer in layers if layer.name in chosen]
        return CompressionResult(
            self._compressed(smaller, chosen), self._rows(smaller, chosen), note
        )

    def _compressed(
        self, layers: Sequence[Layer], chosen: Mapping[str, LayerOption]
    ) -> dict[str, CompressedMatrix]:
        share = _SHARE * self.options.tolerance / max(total_error([*chosen.values()]), 1e-30)
        return {
            layer.name: CompressedMatrix(
                self.layer_options.replacement(layer, chosen[layer.name]),
                chosen[layer.name].error * share,
            )
            for layer in layers
            if layer.name in chosen
        }

    def planner_of(self, compressed: Mapping[str, CompressedMatrix]) -> Planner:
        """Return a planner that uses the compressed matrices."""
        context, symbols = self.context, self.inputs.timed[0].symbols
        return Planner(
            context.model.graph, self.options, symbols, context.libraries.target,
            context.planner.cost, compressed, context.planner.scan, context.planner.deadline,
            calibrated=context.planner.calibrated,
        )  # fmt: skip

    def _measured(
        self, layers: Sequence[Layer], chosen: Mapping[str, LayerOption], trial: int
    ) -> float:
        """Return the error of the whole model on the validation inputs."""
        context = self.context
        context.progress(f"measuring {len(chosen)} smaller layers, trial {trial + 1}")
        planner = self.planner_of(self._compressed(layers, chosen))
        folder = context.scratch / f"trial{trial}"
        folder.mkdir(parents=True, exist_ok=True)
        builder = CandidateBuilder(context.model, self.options, planner, context.libraries, folder)
        return self.meter.error(builder.build(), self.parts.validation)

    # ---- report ------------------------------------------------------------------------

    def _rows(
        self, layers: Sequence[Layer], chosen: Mapping[str, LayerOption]
    ) -> tuple[CompressionRow, ...]:
        held = self._holdout_grams(layers)
        return tuple(self._row(layer, chosen[layer.name], held) for layer in layers)

    def _holdout_grams(self, layers: Sequence[Layer]) -> Calibration | None:
        """Gram matrices over the held-out inputs."""
        if self.parts.calibrate is None:
            return None
        values = _observed_values(layers)
        found = Calibration()
        with Worker(limit=600.0) as worker:
            path = self.context.model.in_float32
            worker.open("holdout", path, threads=self.threads, extra=output_names(values))
            for label, feed in self.parts.holdout.items():
                accumulate_outputs(found, values, worker.run("holdout", feed), feed, label)
        return found

    def _row(self, layer: Layer, option: LayerOption, held: Calibration | None) -> CompressionRow:
        measured = None
        if held is not None:
            measured = self.layer_options.error_on(layer, option, held.joint(layer.observed)[0])
        return CompressionRow(
            layer.title, layer.nodes, option.technique, option.size, layer.k, layer.n, option.left,
            option.layer_error, measured, option.error**self.power, option.saved,
        )  # fmt: skip


def observable_layers(
    context: CompressionContext, options: Options, inputs: ModelInputs
) -> tuple[tuple[Layer, ...], list[str]]:
    """Return the layers whose inputs are named values of the original, and notes on the others."""
    plain = dataclasses.replace(
        options, precision="fp32", low_rank=None, prune=None, windows=(),
        skip=(*options.skip, *context.planner.backend.rules.packing),
    )  # fmt: skip
    cost, symbols = context.planner.cost, inputs.timed[0].symbols
    graph = Planner(context.model.graph, plain, symbols, cost=cost).plan(unclustered=True).graph
    layers, found = layers_of(graph, cost)
    notes = list(found)
    skeleton = context.model.skeleton.graph
    results = {v for n in skeleton.node for v in n.output}
    named = results | set(context.model.inputs)

    def seen(layer: Layer) -> bool:
        read = {*(p.x for p in layer.uses), *(s.value for s in layer.observed)}
        return named >= read and results.issuperset(p.result for p in layer.uses)

    hidden = [layer.title for layer in layers if not seen(layer)]
    if hidden:
        notes.append(
            f"{', '.join(hidden[:3])}{' …' if hidden[3:] else ''}: "
            "not compressed, because the layer's input has no name in the original"
        )
    return tuple(layer for layer in layers if seen(layer)), notes


def _observed_values(layers: Sequence[Layer]) -> list[ObservedValue]:
    """Return the values to observe for some layers, each once."""
    found = {s.key: s for layer in layers for s in layer.observed}
    return [found[key] for key in sorted(found)]


def _model_id(model: Model) -> tuple[str, int, int]:
    """Return a key that identifies a model's file."""
    found = model.path.stat()
    return str(model.path.resolve()), found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class ChosenCompression:
    """The chosen compression, and what the report says about it.

    * ``inputs``: inputs to verify and time with;
    * ``planner``: plans with the compressed matrices;
    * ``holdout_error``: measures a result on held-out inputs;
    * ``validation_error``: measures a result on the validation inputs;
    * ``own_metric``: whether errors are measured by the user's metric, not as a share of max|y|;
    * ``steers``: whether that metric decides how much precision is given up.
    """

    inputs: ModelInputs
    planner: Planner
    rows: tuple[CompressionRow, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    holdout_error: Callable[[BuiltModel], float] | None = None
    validation_error: Callable[[BuiltModel], float] | None = None
    budget: float = 0.0
    own_metric: bool = False
    steers: bool = False

    def by_metric(self, built: BuiltModel, found: Verification) -> Verification:
        """Return a verification, changed to failed if the user's metric is above the budget."""
        measures = self.steers and self.validation_error is not None
        if not measures or found.status != "passed":
            return found
        assert self.validation_error is not None
        error = self.validation_error(built)
        said = f"an error of {error:.3g} by --metric, above the {self.budget:g} allowed"
        share = error / max(self.budget, 1e-30)
        if share <= 1:
            return dataclasses.replace(found, by_metric=share)
        return dataclasses.replace(found, status="failed", sentence=said, by_metric=share)

    def confirm(self, kept: BuiltModel | None) -> tuple[float | None, tuple[str, ...]]:
        """Return the final model's error on held-out inputs, and a warning if it is over budget.

        The error is None if nothing was chosen.  Raises VerifyError if the final model exceeds the
        budget by the user's own metric on the validation inputs.
        """
        if kept is None or self.holdout_error is None or self.validation_error is None:
            return None, ()
        if self.own_metric and (error := self.validation_error(kept)) > self.budget:
            raise VerifyError(
                f"the final model has an error of {error:.3g} by --metric, "
                f"above the {self.budget:.3g} allowed"
            )
        found = self.holdout_error(kept)
        if found <= self.budget:
            return found, ()
        return found, (
            f"on held-out inputs the error is {found:.3g}, above the "
            f"{self.budget:.3g} allowed: give more --data",
        )


def choose_compression(context: CompressionContext) -> ChosenCompression:
    """Choose compressed matrices for a model; none without ``--low-rank`` and ``--prune``.

    Raises UsageError for contradictory options, data that does not fit the model, a metric that
    fails, or an unusable budget.
    """
    options = context.options
    if not options.compresses:
        if options.metric and options.precision == "fp32":
            raise UsageError(
                "--metric needs --low-rank, --prune or --precision, whose error it measures"
            )
        if not options.metric:
            return ChosenCompression(context.inputs, context.planner)
        return _compression(CompressionSearch(context), None, ())
    check_compression_options(options)
    context.timer.step("compressing")
    # layers are identified by their channels, which removing dead channels would change
    skip = (*options.skip, DEAD_CHANNELS)
    searcher = CompressionSearch(
        dataclasses.replace(context, options=dataclasses.replace(options, skip=skip))
    )
    # BLAS threads spin while they wait: limit them to the requested number
    with threadpool_limits(searcher.threads, user_api="blas"):
        result = searcher.run()
    warnings = tuple(searcher.warnings)
    if result is None and not options.metric:
        return ChosenCompression(searcher.inputs, context.planner, warnings=warnings)
    return _compression(searcher, result, warnings)


def _compression(
    searcher: CompressionSearch, result: CompressionResult | None, warnings: tuple[str, ...]
) -> ChosenCompression:
    """Wrap the search's result; without one, the metric still bounds precision losses."""
    return ChosenCompression(
        searcher.inputs,
        searcher.planner_of(result.compressed) if result else searcher.context.planner,
        result.rows if result else (),
        warnings,
        (result.note,) if result else (),
        lambda built: searcher.meter.error(built, searcher.parts.holdout),
        lambda built: searcher.meter.error(built, searcher.parts.validation),
        searcher.budget,
        bool(searcher.options.metric),
        bool(searcher.options.metric) and searcher.options.precision != "fp32",
    )


def check_compression_options(options: Options) -> None:
    """Raise UsageError for options that leave nothing to choose or nothing to measure."""
    what = "--low-rank" if options.low_rank is not None else "--prune"
    if options.low_rank is not None and not 0 < options.low_rank <= 1:
        raise UsageError(f"--low-rank takes an error above 0, at most 1, not {options.low_rank:g}")
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
