"""Inputs to verify and to time one model with: synthesized, or the caller's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.check.input_feeds import (
    read_input_sets,
    synthesize_containers,
    synthesize_inputs,
)
from tracea_graph.check.input_sensitivity import FACTOR, OutputSensitivity, input_dependent_outputs
from tracea_graph.check.memory_limit import largest_oversized_value
from tracea_graph.check.symbol_bindings import (
    Binding,
    binding_from_dims,
    choose_bindings,
    inputs_to_feed,
)
from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import Model
from tracea_graph.options import Options
from tracea_graph.ttg.region_graph import TileGraph

__all__ = ["ModelInputs", "gather_inputs", "inputs_to_run", "synthesized"]

Feed = Mapping[str, npt.NDArray[Any]]

_SMALL, _MANY = 8 << 20, 8
"""Models of fewer bytes than the first are verified with the second number of inputs."""
_TIMED, _BRIEF = 3, 4
"""Number of real input sets that are timed, and that ISA levels below the highest are checked
with.
"""


@dataclass(frozen=True)
class ModelInputs:
    """Feeds to time and to verify with, by label.

    * ``timed``: the bindings to time;
    * ``timing``, ``verification``: the feeds to time, and to verify with;
    * ``spare``: feeds to verify with only if the model runs quickly;
    * ``real``: whether the feeds to verify with are the caller's, of which there may be hundreds;
    * ``trouble``: why the model must not run with these inputs; empty if it may;
    * ``others``: more feeds, for models whose outputs hardly change with these;
    * ``calibrated``: whether scales of integers were chosen for these inputs, so that larger
      inputs would be clipped.
    """

    timed: tuple[Binding, ...]
    timing: Mapping[str, Feed] = field(repr=False)
    verification: Mapping[str, Feed] = field(repr=False)
    spare: frozenset[str] = frozenset()
    real: bool = False
    trouble: str = ""
    others: Mapping[str, Feed] = field(default_factory=dict, repr=False)
    calibrated: bool = False

    @property
    def brief(self) -> tuple[str, ...]:
        """Labels of the feeds to verify with if running all real inputs would take too long."""
        labels = tuple(self.verification)
        return _spread(labels, _BRIEF) if self.real else labels

    @property
    def foremost(self) -> str:
        """The label of the feed to verify with if there is time for one only.

        Of the first and the last feed that is not spare (the timed and the padded one), it is the
        one with fewer bytes.
        """
        labels = [label for label in self.brief if label not in self.spare]
        return min(labels[-1:] + labels[:1], key=self.bytes_of, default="")

    def sensitivity(self, graph: TileGraph, tolerance: float) -> OutputSensitivity:
        """Return how much the model's outputs must change for errors to show."""
        return OutputSensitivity(
            input_dependent_outputs(graph), FACTOR * tolerance, self.others, self.foremost,
            not self.calibrated,
        )  # fmt: skip

    def bytes_of(self, label: str) -> int:
        """Return the bytes of a feed to verify with; for other labels, of the foremost one."""
        known = label in self.verification
        feed = self.verification[label if known else self.foremost]
        return sum(array.nbytes for array in feed.values())

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.timing)

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why sizes to time differ from the defaults."""
        return tuple(dict.fromkeys(note for one in self.timed for note in one.notes))


def gather_inputs(model: Model, options: Options) -> ModelInputs:
    """Return the feeds for a model.

    Data given for calibration is not timed; inputs of the requested sizes are.  Real input
    sets are all used to verify with; a few of them are timed, unless ``shapes`` say what to time.
    Raises UsageError for data or shapes that do not fit the model, or that are too large.
    """
    graph, names = model.with_defaults, model.inputs
    timed, verified = choose_bindings(graph, options.shapes, names)
    if options.shapes and (huge := largest_oversized_value(graph, timed)):
        raise UsageError(f"{huge}; give smaller sizes with --shape")
    if not options.compresses and (data := _data_of(model, options)) is not None:
        real = _real(model, data)
        sizes = {
            label: binding_from_dims(
                label, graph, {name: array.shape for name, array in feed.items()}
            )
            for label, feed in real.items()
        }
        asked = timed if options.shapes else ()
        trouble = largest_oversized_value(graph, (*asked, *sizes.values()))
        if options.shapes:
            made = {b.label: synthesized(model, b, options.seed) for b in timed}
            return ModelInputs(timed, made, real, real=True, trouble=trouble)
        chosen = {label: real[label] for label in _spread(tuple(real), _TIMED)}
        return ModelInputs(
            tuple(sizes[b] for b in chosen), chosen, real, real=True, trouble=trouble
        )
    if huge := largest_oversized_value(graph, (*timed, *verified), inputs_to_feed(graph, names)):
        advice = "; give smaller sizes with --shape, or real inputs with --data"
        raise UsageError(f"{huge}{advice if timed[0].symbols else ''}")
    checked = {b.label: synthesized(model, b, options.seed) for b in verified}
    timing = {b.label: synthesized(model, b, options.seed) for b in timed}
    count = _MANY if model.size < _SMALL else 1
    more = _uniform(timed[0].label, timing, options.seed, count)
    trouble = largest_oversized_value(graph, (*timed, *verified))
    found = ModelInputs(timed, timing, checked | more, frozenset(more), trouble=trouble)
    same = next(b for b in verified if b.label == found.foremost)
    other = {f"{same.label}, other values": synthesized(model, same, options.seed + 1)}
    return replace(found, others=other)


def inputs_to_run(model: Model, options: Options) -> ModelInputs:
    """Return the feeds for a model that will be run in any case.

    Raises UsageError if default sizes would make its values too large.
    """
    found = gather_inputs(model, options)
    asked = options.shapes or options.data
    if not asked and (huge := largest_oversized_value(model.graph, found.timed)):
        raise UsageError(f"{huge}; give other sizes with --shape")
    return found


def _real(model: Model, data: Path) -> dict[str, Feed]:
    if not (sets := read_input_sets(data, model.graph, model.inputs)):
        raise UsageError(f"--data {data} holds no set of inputs")
    return {f"data[{i}]": feed for i, feed in enumerate(sets)}


def _spread(labels: Sequence[str], count: int) -> tuple[str, ...]:
    """Return at most ``count`` labels, evenly spread, including the first."""
    step = max(1.0, len(labels) / count)
    return tuple(labels[int(i * step)] for i in range(min(count, len(labels))))


def synthesized(model: Model, binding: Binding, seed: int) -> Feed:
    """Return synthetic inputs of a model with the sizes of a binding."""
    containers = {n: c for n, c in model.containers.items() if n in model.inputs}
    plain = synthesize_inputs(model.with_defaults, binding, seed, model.inputs)
    return {**plain, **synthesize_containers(containers, binding, seed)}


def _data_of(model: Model, options: Options) -> Path | None:
    """Return the file of real inputs; in a folder, the file named like the model, if any."""
    if options.data is None or not options.data.is_dir():
        return options.data
    found = options.data / f"{model.path.stem}.npz"
    return found if found.is_file() else None


def _uniform(label: str, feeds: Mapping[str, Feed], seed: int, count: int) -> dict[str, Feed]:
    """Repeat the first feed ``count`` times with its free floats drawn from [0, 1), if it has any.

    This exercises activations that N(0, 1) inputs saturate.
    """
    found: dict[str, Feed] = {}
    free = [n for n, a in feeds[label].items() if _is_free(a)]
    for i in range(count if free else 0):
        rng = np.random.default_rng([seed, i])
        fresh = {n: rng.random(feeds[label][n].shape, np.float32) for n in free}
        found[f"{label}, uniform {i}"] = {**feeds[label], **fresh}
    return found


def _is_free(array: npt.NDArray[Any]) -> bool:
    """Return True for floats of both signs, which cannot be lengths, masks or positions."""
    return array.dtype == np.float32 and array.size > 1 and bool(array.min() < 0)
