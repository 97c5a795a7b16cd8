"""Smaller matrices under one error budget: chosen before planning, measured end to end.

Layers are calibrated, every technique asked for is priced per layer (time saved, error), the
budget is spread, and the whole is built and measured on held-out inputs; what is given to the
layers shrinks until the error holds, or grows while there is room.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.check.worker import Worker
from tracea_graph.compress import (
    Calibration,
    Choice,
    Layer,
    Menus,
    Metric,
    Samples,
    calibrate,
    changes_of,
    layers_of,
    load_metric,
    middling,
    output_errors,
    search,
    share_of_largest,
    split,
    total_error,
)
from tracea_graph.config import TOLERANCE, Options
from tracea_graph.errors import UsageError, VerifyError, WorkerError
from tracea_graph.onnx_io import Model
from tracea_graph.passes.compressed import Compressed
from tracea_graph.pipeline.candidates import Built, Workshop
from tracea_graph.pipeline.clock import Clock
from tracea_graph.pipeline.foundry import Foundry
from tracea_graph.pipeline.inputs import Inputs
from tracea_graph.pipeline.planning import Planner
from tracea_graph.views import CompressionRow

__all__ = ["Compression", "compress"]

Floats = npt.NDArray[np.floating[Any]]
_PROBED = 2
"""Sets of inputs each layer alone is measured with."""
_SHARE = 0.5
"""Of the budget, what the scheduler books for all matrices; the rest is for roundings.  Whether it
holds is measured, not added up."""


@dataclass(frozen=True)
class Compression:
    """What was chosen, and what is told about it.

    ``inputs`` are those to verify and time with, ``planner`` plans with what was chosen;
    ``measure`` is the error of a result on held-out inputs, by the user's ``own_metric`` or as a
    share of max|y|.
    """

    inputs: Inputs
    planner: Planner
    rows: tuple[CompressionRow, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measure: Callable[[Built], float] | None = None
    budget: float = 0.0
    own_metric: bool = False

    def confirm(self, kept: Built | None) -> float | None:
        """The error of what is to be published on held-out inputs; None where nothing was chosen.

        Raises VerifyError if what was kept no longer holds the budget by the user's own metric.
        """
        if kept is None or self.measure is None:
            return None
        error = self.measure(kept)
        if self.own_metric and error > self.budget:
            raise VerifyError(
                f"what was kept has an error of {error:.3g} by --metric, "
                f"above the {self.budget:.3g} allowed"
            )
        return error


def compress(
    model: Model,
    options: Options,
    inputs: Inputs,
    planner: Planner,
    foundry: Foundry,
    scratch: Path,
    clock: Clock,
) -> Compression:
    """Choose smaller matrices for a model.  Without ``--low-rank`` and ``--prune``: nothing.

    Raises UsageError for options that contradict each other, data that does not fit, a metric that
    fails and a budget that is none.
    """
    if not options.compresses:
        return Compression(inputs, planner)
    check_options(options)
    clock.step("compressing")
    run = _Run(model, options, inputs, planner, foundry, scratch, clock.progress)
    return run.settle()


def check_options(options: Options) -> None:
    """Raise UsageError for options that leave nothing to choose, or nothing to measure."""
    what = "--low-rank" if options.low_rank is not None else "--prune"
    if options.low_rank is not None and not 0 < options.low_rank <= 1:
        raise UsageError(f"--low-rank takes an error above 0, up to 1, not {options.low_rank:g}")
    if options.max_error is not None and not options.max_error > 0:
        raise UsageError(f"{what} needs a --max-error above 0, not {options.max_error:g}")
    for name, on in (
        ("--no-custom-ops", not options.custom_ops),
        ("--plain-weights", options.plain_weights),
        ("--no-verify", not options.verify),
        ("--lock", options.lock is not None),
        ("--save-lock", options.save_lock is not None),
    ):
        if on:
            raise UsageError(f"{what} and {name} contradict each other")


class _Run:
    """One choice under way."""

    def __init__(
        self,
        model: Model,
        options: Options,
        inputs: Inputs,
        planner: Planner,
        foundry: Foundry,
        scratch: Path,
        progress: Callable[[str], None],
    ) -> None:
        self.model, self.options, self.planner = model, options, planner
        self.foundry, self.scratch, self.progress = foundry, scratch, progress
        self.threads = max(options.thread_counts)
        self.metric: Metric = load_metric(options.metric) if options.metric else share_of_largest
        self.budget = TOLERANCE.lossy if options.max_error is None else options.max_error
        self.warnings: list[str] = []
        self.samples, held, warnings = split(options.data, options.holdout, model)
        self.warnings += warnings
        self.held = held or inputs.verification
        self.inputs = dataclasses.replace(inputs, verification=self.held)
        self.wanted: dict[str, Mapping[str, npt.NDArray[Any]]] = {}
        self.menus = Menus(options.low_rank, options.prune)

    # ---- data --------------------------------------------------------------------------

    def _calibrated(self, layers: Sequence[Layer], samples: Samples) -> Calibration:
        values = sorted({v for layer in layers for v in layer.inputs})
        key = hashlib.sha256(repr((samples.mark, _model_mark(self.model), values)).encode())
        name = f"{self.model.path.stem}-{key.hexdigest()[:16]}.npz"
        kept = self.options.environment.cache / "calibration" / name
        return calibrate(self.model.path, values, samples, self.progress, kept, self.threads)

    # ---- menus -------------------------------------------------------------------------

    def _layers(self) -> tuple[Layer, ...]:
        """The layers whose inputs the original names, for only those can be seen."""
        plain = dataclasses.replace(
            self.options, precision="fp32", low_rank=None, prune=None, windows=()
        )
        symbols = self.inputs.timed[0].symbols
        planner = Planner(self.model.graph, plain, symbols, cost=self.planner.cost)
        graph = planner.plan(apart=True).graph
        layers, notes = layers_of(graph, self.planner.cost)
        self.warnings += notes
        named = {v for n in self.model.skeleton.graph.node for v in n.output}
        named |= set(self.model.inputs)
        results = {v for n in self.model.skeleton.graph.node for v in n.output}

        def seen(layer: Layer) -> bool:
            return named.issuperset(layer.inputs) and results.issuperset(
                n.outputs[0] for n in layer.nodes
            )

        hidden = [layer.title for layer in layers if not seen(layer)]
        if hidden:
            self.warnings.append(
                f"{', '.join(hidden[:3])}{' …' if hidden[3:] else ''}: "
                "what it reads has no name in the original, so it stays as it is"
            )
        return tuple(layer for layer in layers if seen(layer))

    def _sensitive(
        self, layers: Sequence[Layer], menus: Mapping[str, list[Choice]]
    ) -> dict[str, list[Choice]]:
        """The menus with what each choice does to the outputs: one is measured for each layer,
        the others in proportion."""
        probed = [(layer, middling(menus[layer.name])) for layer in layers if menus[layer.name]]
        changes = (
            change
            for i, (layer, choice) in enumerate(probed)
            for change in changes_of(i, layer, self.menus.delta(layer, choice))
        )
        feeds = list(self.held.values())[:_PROBED]
        try:
            errors = output_errors(
                self.model.path, changes, len(probed), feeds, self.metric,
                self.scratch, self.progress, self.threads,
            )  # fmt: skip
        except WorkerError as refused:
            self.warnings.append(f"layers were not measured one by one: {refused}")
            errors = [choice.layer_error for _, choice in probed]
        found = {}
        for (layer, choice), error in zip(probed, errors, strict=True):
            ratio = error / choice.layer_error if choice.layer_error else 0.0
            found[layer.name] = [
                dataclasses.replace(c, error=c.layer_error * ratio) for c in menus[layer.name]
            ]
        return found

    # ---- the budget --------------------------------------------------------------------

    def settle(self) -> Compression:
        """Everything in order: what was chosen, or nothing and why."""
        layers = self._layers()
        if not layers:
            self.warnings.append("no product of this model has a matrix that could be smaller")
            return self._nothing()
        data = self._calibrated(layers, self.samples) if self.samples else None
        menus = {}
        for i, layer in enumerate(layers):
            self.progress(f"taking apart layer {i + 1} of {len(layers)}")
            gram, rows = data.joint(layer.inputs) if data else (None, 0)
            if data and rows < layer.k:
                self.warnings.append(
                    f"--data gives {layer.title} {rows} rows, fewer than the {layer.k} numbers in "
                    "each: what was not seen counts as unimportant"
                )
            menus[layer.name] = self.menus.offered(layer, gram)
        if not any(menus.values()):
            self.warnings.append(self.menus.why_nothing())
            return self._nothing()
        menus = self._sensitive(layers, menus)
        chosen, error = search(
            menus, self.budget, lambda chosen, trial: self._measured(layers, chosen, trial)
        )
        if not chosen:
            self.warnings.append(
                f"nothing holds an error of {self.budget:g} that saves anything: "
                f"the mildest change of one layer has {_mildest(menus):.2g}"
            )
            return self._nothing()
        return self._settled(layers, chosen, error)

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

    def _planner(self, compressed: Mapping[str, Compressed]) -> Planner:
        symbols = self.inputs.timed[0].symbols
        return Planner(
            self.model.graph, self.options, symbols, self.foundry.isas, self.planner.cost,
            compressed,
        )  # fmt: skip

    def _measured(
        self, layers: Sequence[Layer], chosen: Mapping[str, Choice], trial: int
    ) -> float:
        """The error of the whole on held-out inputs."""
        self.progress(f"measuring {len(chosen)} smaller layers, trial {trial + 1}")
        planner = self._planner(self._compressed(layers, chosen))
        folder = self.scratch / f"trial{trial}"
        folder.mkdir(parents=True, exist_ok=True)
        workshop = Workshop(self.model, self.options, planner, self.foundry, folder)
        return self.measure(workshop.build())

    def measure(self, built: Built) -> float:
        """The largest error of a result over the held-out inputs."""
        worst = 0.0
        with Worker(limit=600.0) as worker:
            if not self.wanted:
                worker.open("original", self.model.path, threads=self.threads)
                self.wanted = {k: worker.run("original", f) for k, f in self.held.items()}
                worker.close("original")
            worker.open("result", built.model, built.library, threads=self.threads)
            for label, feed in self.held.items():
                worst = max(worst, self.metric(worker.run("result", feed), self.wanted[label]))
        return worst

    # ---- what is told ------------------------------------------------------------------

    def _nothing(self) -> Compression:
        return Compression(self.inputs, self.planner, warnings=tuple(self.warnings))

    def _settled(
        self, layers: Sequence[Layer], chosen: Mapping[str, Choice], error: float
    ) -> Compression:
        compressed = self._compressed(layers, chosen)
        predicted = total_error([*chosen.values()])
        note = (
            f"{len(chosen)} of {len(layers)} layers are smaller: an error of {predicted:.2g} was "
            f"predicted for the outputs, {error:.2g} was measured, {self.budget:g} was allowed"
        )
        held = self._held_gram([layer for layer in layers if layer.name in chosen])
        rows = tuple(
            self._row(layer, chosen[layer.name], held) for layer in layers if layer.name in chosen
        )
        return Compression(
            self.inputs,
            self._planner(compressed),
            rows,
            tuple(self.warnings),
            (note,),
            self.measure,
            self.budget,
            bool(self.options.metric),
        )

    def _held_gram(self, layers: Sequence[Layer]) -> Calibration | None:
        """Gram matrices over the held-out inputs."""
        if self.samples is None:
            return None
        values = sorted({v for layer in layers for v in layer.inputs})
        found = Calibration()
        with Worker(limit=600.0) as worker:
            worker.open("held out", self.model.path, threads=self.threads, extra=values)
            for feed in self.held.values():
                outputs = worker.run("held out", feed)
                for value in values:
                    found.add(value, outputs[value] if value in outputs else feed[value])
        return found

    def _row(self, layer: Layer, choice: Choice, held: Calibration | None) -> CompressionRow:
        measured = None
        if held is not None:
            gram, _ = held.joint(layer.inputs)
            delta, matrix = self.menus.delta(layer, choice), layer.matrix()
            energy = float(np.sum(matrix * (gram @ matrix)))
            measured = float(np.sqrt(np.sum(delta * (gram @ delta)) / energy)) if energy else 0.0
        left = 1 - choice.saved / layer.us if layer.us else 1.0
        return CompressionRow(
            layer.title, layer.marks, choice.technique, choice.size, layer.k, layer.n, left,
            choice.layer_error, measured, choice.error, choice.saved,
        )  # fmt: skip


def _mildest(menus: Mapping[str, Sequence[Choice]]) -> float:
    return min((c.error for choices in menus.values() for c in choices), default=0.0)


def _model_mark(model: Model) -> tuple[str, int, int]:
    """What tells a model's file from others."""
    found = model.path.stat()
    return str(model.path.resolve()), found.st_size, found.st_mtime_ns
