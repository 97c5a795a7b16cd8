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
    Choice,
    Layer,
    Menus,
    Metric,
    Seen,
    add_all,
    calibrate,
    changes_of,
    layers_of,
    load_metric,
    middling,
    names_of,
    output_errors,
    search,
    share_of_largest,
    split,
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

__all__ = ["Chooser", "Compression", "Gauge", "Setting", "Settled", "compress"]

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass
class Gauge:
    """Compares results with the model at ``original``."""

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
class Setting:
    """What choices for one model are made with."""

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
class Settled:
    """What stands for matrices, a row per layer, and the whole in a sentence."""

    compressed: Mapping[str, Compressed]
    rows: tuple[CompressionRow, ...]
    note: str


class Chooser:
    """One choice under way; what is to be said to the user gathers in ``warnings``."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.options = setting, setting.options
        options, model = setting.options, setting.model
        self.threads = max(options.thread_counts)
        self.budget = TOLERANCE.lossy if options.max_error is None else options.max_error
        metric = load_metric(options.metric) if options.metric else share_of_largest
        self.gauge = Gauge(model.path, metric, self.threads)
        self.parts = split(options.data, options.holdout, model, setting.inputs.verification)
        self.warnings = list(self.parts.warnings)
        self.inputs = dataclasses.replace(
            setting.inputs,
            verification=self.parts.steer,
            real=self.parts.calibrate is not None,
        )
        self.menus = Menus(options.low_rank, options.prune)
        self.power = 1

    # ---- layers ------------------------------------------------------------------------

    def _layers(self) -> tuple[Layer, ...]:
        """The layers whose inputs the original names, for only those can be seen."""
        setting = self.setting
        plain = dataclasses.replace(
            self.options, precision="fp32", low_rank=None, prune=None, windows=(),
            skip=(*self.options.skip, *setting.planner.backend.rules.packing),
        )  # fmt: skip
        cost, symbols = setting.planner.cost, self.inputs.timed[0].symbols
        graph = Planner(setting.model.graph, plain, symbols, cost=cost).plan(apart=True).graph
        layers, notes = layers_of(graph, cost)
        self.warnings += notes
        skeleton = setting.model.skeleton.graph
        results = {v for n in skeleton.node for v in n.output}
        named = results | set(setting.model.inputs)

        def seen(layer: Layer) -> bool:
            read = {*(p.x for p in layer.places), *(s.value for s in layer.seen)}
            return named >= read and results.issuperset(p.result for p in layer.places)

        hidden = [layer.title for layer in layers if not seen(layer)]
        if hidden:
            self.warnings.append(
                f"{', '.join(hidden[:3])}{' …' if hidden[3:] else ''}: "
                "what it reads has no name in the original, so it stays as it is"
            )
        return tuple(layer for layer in layers if seen(layer))

    def _calibrated(self, layers: Sequence[Layer]) -> Calibration | None:
        samples, model = self.parts.calibrate, self.setting.model
        if samples is None:
            return None
        values = _seen(layers)
        marks = samples.mark, _model_mark(model), sorted(s.key for s in values)
        key = hashlib.sha256(repr(marks).encode())
        kept = self.options.environment.cache / "calibration" / f"{key.hexdigest()[:32]}.npz"
        progress = self.setting.progress
        return calibrate(model.path, values, samples, progress, kept, self.threads)

    # ---- menus -------------------------------------------------------------------------

    def _offered(self, layers: Sequence[Layer]) -> dict[str, list[Choice]]:
        """What could become of each layer, and what it costs the layer's own output."""
        data, menus = self._calibrated(layers), {}
        makers = {layer.maker for layer in layers}
        for i, layer in enumerate(layers):
            self.setting.progress(f"taking apart layer {i + 1} of {len(layers)}")
            gram, rows = data.joint(layer.seen) if data else (None, 0)
            if data and rows < layer.known:
                self.warnings.append(
                    f"--data gives {layer.title} {rows} rows, fewer than the {layer.known} "
                    "numbers in each: what was not seen counts as unimportant"
                )
            menus[layer.name] = self.menus.offered(layer, gram, layer.name in makers)
        return menus

    def _sensitive(
        self, layers: Sequence[Layer], menus: Mapping[str, list[Choice]]
    ) -> dict[str, list[Choice]]:
        """The menus with what each choice does to the outputs: one is measured for each layer,
        the others in proportion.

        An error that grows with the square of a change is given as its root: then errors of
        layers add in quadrature, whatever the metric.
        """
        probed = [(layer, middling(menus[layer.name])) for layer in layers if menus[layer.name]]
        changes = (
            change
            for i, (layer, choice) in enumerate(probed)
            for change in changes_of(i, layer, self.menus.delta(layer, choice))
        )
        feeds = list(self.parts.steer.values())[:_PROBED]
        try:
            errors, self.power = output_errors(
                self.setting.model.path, changes, len(probed), feeds, self.gauge.metric,
                self.setting.scratch, self.setting.progress, self.threads,
            )  # fmt: skip
        except WorkerError as refused:
            self.warnings.append(f"layers were not measured one by one: {refused}")
            errors = [choice.layer_error for _, choice in probed]
        found = {}
        for (layer, choice), error in zip(probed, errors, strict=True):
            root = error ** (1 / self.power)
            ratio = root / choice.layer_error if choice.layer_error else 0.0
            found[layer.name] = [
                dataclasses.replace(c, error=c.layer_error * ratio) for c in menus[layer.name]
            ]
        return found

    # ---- the budget --------------------------------------------------------------------

    def settle(self) -> Settled | None:
        """Everything in order; None if nothing was chosen, and ``warnings`` say why."""
        layers = self._layers()
        if not layers:
            self.warnings.append("no product of this model has a matrix that could be smaller")
            return None
        menus = self._offered(layers)
        if not any(menus.values()):
            self.warnings.append(self.menus.why_nothing())
            return None
        menus = self._sensitive(layers, menus)
        chosen, error = search(
            menus, self.budget, lambda some, trial: self._measured(layers, some, trial), self.power
        )
        if not chosen:
            mildest = min((c.error for cs in menus.values() for c in cs), default=0.0)
            self.warnings.append(
                f"nothing holds an error of {self.budget:g} that saves anything: "
                f"the mildest change of one layer has {mildest**self.power:.2g}"
            )
            return None
        predicted = total_error([*chosen.values()]) ** self.power
        note = (
            f"{len(chosen)} of {len(layers)} layers are smaller: an error of {predicted:.2g} was "
            f"predicted for the outputs, {error:.2g} was measured, "
            f"{self.budget:g} was allowed"
        )
        smaller = [layer for layer in layers if layer.name in chosen]
        return Settled(self._compressed(smaller, chosen), self._rows(smaller, chosen), note)

    def _compressed(
        self, layers: Sequence[Layer], chosen: Mapping[str, Choice]
    ) -> dict[str, Compressed]:
        share = _SHARE * self.options.tolerance / max(total_error([*chosen.values()]), 1e-30)
        return {
            layer.name: Compressed(
                self.menus.other(layer, chosen[layer.name]), chosen[layer.name].error * share
            )
            for layer in layers
            if layer.name in chosen
        }

    def planner_of(self, compressed: Mapping[str, Compressed]) -> Planner:
        """A planner that puts them in."""
        setting, symbols = self.setting, self.inputs.timed[0].symbols
        return Planner(
            setting.model.graph, self.options, symbols, setting.libraries.target,
            setting.planner.cost, compressed, setting.planner.scan, setting.planner.deadline,
        )  # fmt: skip

    def _measured(
        self, layers: Sequence[Layer], chosen: Mapping[str, Choice], trial: int
    ) -> float:
        """The error of the whole on the inputs that steer."""
        setting = self.setting
        setting.progress(f"measuring {len(chosen)} smaller layers, trial {trial + 1}")
        planner = self.planner_of(self._compressed(layers, chosen))
        folder = setting.scratch / f"trial{trial}"
        folder.mkdir(parents=True, exist_ok=True)
        builder = CandidateBuilder(setting.model, self.options, planner, setting.libraries, folder)
        return self.gauge.error(builder.build(), self.parts.steer)

    # ---- what is told ------------------------------------------------------------------

    def _rows(
        self, layers: Sequence[Layer], chosen: Mapping[str, Choice]
    ) -> tuple[CompressionRow, ...]:
        held = self._reported(layers)
        return tuple(self._row(layer, chosen[layer.name], held) for layer in layers)

    def _reported(self, layers: Sequence[Layer]) -> Calibration | None:
        """Gram matrices over the inputs that are only reported of."""
        if self.parts.calibrate is None:
            return None
        values = _seen(layers)
        found = Calibration()
        with Worker(limit=600.0) as worker:
            path = self.setting.model.path
            worker.open("reported", path, threads=self.threads, extra=names_of(values))
            for label, feed in self.parts.report.items():
                add_all(found, values, worker.run("reported", feed), feed, label)
        return found

    def _row(self, layer: Layer, choice: Choice, held: Calibration | None) -> CompressionRow:
        measured = None
        if held is not None:
            measured = self.menus.error_on(layer, choice, held.joint(layer.seen)[0])
        return CompressionRow(
            layer.title, layer.marks, choice.technique, choice.size, layer.k, layer.n, choice.left,
            choice.layer_error, measured, choice.error**self.power, choice.saved,
        )  # fmt: skip


def _seen(layers: Sequence[Layer]) -> list[Seen]:
    """All that is to be seen of some layers, each once."""
    found = {s.key: s for layer in layers for s in layer.seen}
    return [found[key] for key in sorted(found)]


def _model_mark(model: Model) -> tuple[str, int, int]:
    """What tells a model's file from others."""
    found = model.path.stat()
    return str(model.path.resolve()), found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class Compression:
    """What was chosen, and what is told about it.

    ``inputs`` are those to verify and time with, ``planner`` plans with what was chosen;
    ``measure`` is the error of a result on inputs that steered nothing, by the user's
    ``own_metric`` or as a share of max|y|.
    """

    inputs: Inputs
    planner: Planner
    rows: tuple[CompressionRow, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measure: Callable[[BuiltModel], float] | None = None
    steered: Callable[[BuiltModel], float] | None = None
    budget: float = 0.0
    own_metric: bool = False

    def confirm(self, kept: BuiltModel | None) -> tuple[float | None, tuple[str, ...]]:
        """The error of what is to be published on inputs that steered nothing, and a warning if
        it is above the budget there; None where nothing was chosen.

        Raises VerifyError if what was kept no longer holds the budget by the user's own metric on
        the inputs that steered the search.
        """
        if kept is None or self.measure is None or self.steered is None:
            return None, ()
        if self.own_metric and (error := self.steered(kept)) > self.budget:
            raise VerifyError(
                f"what was kept has an error of {error:.3g} by --metric, "
                f"above the {self.budget:.3g} allowed"
            )
        found = self.measure(kept)
        if found <= self.budget:
            return found, ()
        return found, (
            f"on inputs that steered nothing the error is {found:.3g}, above the "
            f"{self.budget:.3g} allowed: more --data would show it earlier",
        )


def compress(setting: Setting) -> Compression:
    """Choose smaller matrices for a model.  Without ``--low-rank`` and ``--prune``: nothing.

    Raises UsageError for options that contradict each other, data that does not fit, a metric that
    fails and a budget that is none.
    """
    options = setting.options
    if not options.compresses:
        if options.metric:
            raise UsageError("--metric measures --low-rank and --prune: give one of them with it")
        return Compression(setting.inputs, setting.planner)
    check_options(options)
    setting.timer.step("compressing")
    # layers are known by their own channels; what is dropped between them would hide them
    skip = (*options.skip, DEAD_CHANNELS)
    chooser = Chooser(
        dataclasses.replace(setting, options=dataclasses.replace(options, skip=skip))
    )
    # threads of BLAS spin for each other: no more of them than were asked for
    with threadpool_limits(chooser.threads, user_api="blas"):
        settled = chooser.settle()
    warnings = tuple(chooser.warnings)
    if settled is None and not options.metric:
        return Compression(chooser.inputs, setting.planner, warnings=warnings)
    return _told(chooser, settled, warnings)


def _told(chooser: Chooser, settled: Settled | None, warnings: tuple[str, ...]) -> Compression:
    """What was chosen; where nothing was, the metric still judges what precision costs."""
    return Compression(
        chooser.inputs,
        chooser.planner_of(settled.compressed) if settled else chooser.setting.planner,
        settled.rows if settled else (),
        warnings,
        (settled.note,) if settled else (),
        lambda built: chooser.gauge.error(built, chooser.parts.report),
        lambda built: chooser.gauge.error(built, chooser.parts.steer),
        chooser.budget,
        bool(chooser.options.metric),
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
