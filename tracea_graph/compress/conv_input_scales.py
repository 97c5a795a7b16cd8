"""Choose scales that round inputs of convolutions to 8 bits, by the error on real inputs.

All convolutions that read a value share its scale.  The scale covers the whole range of the value,
unless a narrower range (percentiles, or the one of least squared error) clearly lowers the error
of the convolutions' results.  The mean error of each filter's results is added back to them
(Nagel et al. 2019, arXiv:1906.04721).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.check.worker_process import Worker
from tracea_graph.compress.activation_samples import SAMPLED_SETS
from tracea_graph.compress.calibration_data import Samples
from tracea_graph.compress.int8_rounding import (
    range_candidates,
    round_static,
    uint8_scale_zero_point,
)
from tracea_graph.errors import UsageError, WorkerError
from tracea_graph.ops.conv_windows import ConvWindow, sliding_windows
from tracea_graph.ops.int8_matmul import round_columns
from tracea_graph.passes.quantized.calibrated_rounding import CalibratedRounding

__all__ = [
    "ConvLayer",
    "ConvSamples",
    "choose_conv_int8",
    "conv_rounding_summary",
    "sample_convolutions",
]

Floats = npt.NDArray[np.floating[Any]]
_PATCH_ELEMENTS, _LEAST, _MOST = 1 << 15, 2, 64
"""Elements in the patches of one set of inputs, and the fewest and most patches of a set."""
_CUT_MARGIN = 0.8
"""A narrower range is taken if its error is below this multiple of the whole range's error: the
numbers that it cuts off have larger errors than others."""
_ELEMENTS = 4096
"""Elements of a value that are kept from each set."""


@dataclass(frozen=True)
class ConvLayer:
    """A convolution from ``x`` to ``result``; ``load`` returns the filters ``[O, I, …]``."""

    x: str
    result: str
    window: ConvWindow
    groups: int
    load: Callable[[], npt.NDArray[Any]]

    def patches(self, image: Floats, random: np.random.Generator) -> Floats:
        """Return the inputs of filters at some positions, ``[patches, groups, I · taps]``."""
        seen = sliding_windows(image.astype(np.float32), self.window, 0.0)
        rank = self.window.rank
        places = (seen.shape[0], *seen.shape[2 : 2 + rank])
        each = int(np.prod(seen.shape)) // max(int(np.prod(places)), 1)
        count = min(max(_PATCH_ELEMENTS // max(each, 1), _LEAST), _MOST, int(np.prod(places)))
        flat = random.choice(int(np.prod(places)), count, replace=False)
        first, *rest = np.unravel_index(np.sort(flat), places)
        made: Floats = np.moveaxis(seen, 1, 1 + rank)[(first, *rest)]
        return made.reshape(count, self.groups, -1)

    def filters(self) -> Floats:
        """Return the filters as ``[groups, I · taps, O / groups]``."""
        whole = np.asarray(self.load(), np.float32)
        return whole.reshape(self.groups, len(whole) // self.groups, -1).transpose(0, 2, 1)


@dataclass
class ConvSamples:
    """Samples for calibrating convolutions.

    ``elements`` are sampled elements of each value, its minimum and maximum among them.
    ``patches`` are sampled windows to which filters are applied, by the name of the
    convolution's result.
    """

    elements: dict[str, list[Floats]] = field(default_factory=lambda: defaultdict(list))
    patches: dict[str, list[Floats]] = field(default_factory=lambda: defaultdict(list))

    def add(self, value: str, array: Floats, random: np.random.Generator) -> None:
        """Keep some elements of a value, and its least and largest one."""
        flat = np.asarray(array, np.float32).reshape(-1)
        some = flat[random.integers(0, len(flat), min(len(flat), _ELEMENTS))]
        self.elements[value].append(np.append(some, (flat.min(), flat.max())))


def sample_convolutions(
    model: Path,
    layers: Sequence[ConvLayer],
    others: Sequence[str],
    samples: Samples,
    progress: Callable[[str], None] = lambda step: None,
    threads: int = 1,
) -> ConvSamples:
    """Run the model on calibration data; return samples of the inputs of convolutions.

    ``others`` are further values to sample.  Raises UsageError for sets that do not fit the model,
    for inputs that it rejects, for values that are not finite, and for data without any set.
    """
    found, random = ConvSamples(), np.random.default_rng(0)
    values = {*(layer.x for layer in layers), *others}
    with Worker(limit=600.0) as worker:
        for at, (label, feed) in enumerate(itertools.islice(samples, SAMPLED_SETS)):
            if not at:
                worker.open("sample", model, threads=threads, extra=sorted(values))
            progress(f"reading images, {label}")
            try:
                outputs = {**feed, **worker.run("sample", feed)}
            except WorkerError as error:
                raise UsageError(f"the model rejects {label} of --data: {error}") from error
            for value in sorted(values):
                if not np.isfinite(outputs[value]).all():
                    why = f"{value!r} is not finite"
                    raise UsageError(f"the model fails on {label} of --data: {why}")
                if outputs[value].size:
                    found.add(value, outputs[value], random)
            for layer in layers:
                if outputs[layer.x].size:
                    patches = layer.patches(outputs[layer.x], random)
                    found.patches[layer.result].append(patches)
    if not found.elements:
        raise UsageError("--data holds no set of inputs to calibrate with")
    return found


def choose_conv_int8(
    layers: Sequence[ConvLayer], samples: ConvSamples, progress: Callable[[str], None]
) -> dict[str, CalibratedRounding]:
    """Choose the 8-bit rounding of sampled values and convolution results; return it by name.

    * An input of convolutions gets one scale and zero point, chosen for the smallest error of the
      results of all convolutions that read it.
    * A convolution's result gets its error, relative to its norm, and the correction to be added
      to it.
    * Any other value gets the scale and zero point with the smallest error of its own elements.
    """
    readers, found = defaultdict(list), dict[str, CalibratedRounding]()
    for layer in layers:
        if samples.patches.get(layer.result):
            readers[layer.x].append(layer)
    for value, own in readers.items():
        progress(f"choosing the scale of {value}")
        elements = np.concatenate(samples.elements[value])
        lost = [_Lost.of(layer, samples) for layer in own]

        def distance(scale: float, zero: int, lost: Sequence[_Lost] = lost) -> float:
            return float(sum(each.error(scale, zero) ** 2 for each in lost) ** 0.5)

        scale, zero = _best_grid(elements, distance)
        found[value] = replace(found.get(value, CalibratedRounding(0.0)), scale=scale, zero=zero)
        for layer, each in zip(own, lost, strict=True):
            error, correction = each.corrected(scale, zero)
            before = found.get(layer.result, CalibratedRounding(0.0))
            found[layer.result] = replace(before, error=error, correction=correction)
    for value in samples.elements.keys() - readers.keys():
        elements = np.concatenate(samples.elements[value])
        scale, zero = _best_grid(elements, partial(_distance, elements))
        found[value] = replace(found.get(value, CalibratedRounding(0.0)), scale=scale, zero=zero)
    return found


def _best_grid(elements: Floats, error: Callable[[float, int], float]) -> tuple[float, int]:
    """Return scale and zero point of the whole range, or of one that is clearly better."""
    whole, *narrower = (
        uint8_scale_zero_point(low, high) for low, high in range_candidates(elements)
    )
    best = min(narrower, key=lambda grid: error(*grid))
    return best if error(*best) < _CUT_MARGIN * error(*whole) else whole


def _distance(elements: Floats, scale: float, zero: int) -> float:
    return float(np.linalg.norm(round_static(elements, scale, zero) - elements))


@dataclass(frozen=True)
class _Lost:
    """What a convolution's results lose on sampled patches."""

    patches: Floats
    rounded: Floats
    exact: Floats

    @classmethod
    def of(cls, layer: ConvLayer, samples: ConvSamples) -> _Lost:
        patches = np.concatenate(samples.patches[layer.result]).transpose(1, 0, 2)
        filters = layer.filters()
        fitted = [round_columns(group) for group in filters]
        rounded = np.stack([whole.astype(np.float32) * scale for whole, scale in fitted])
        return cls(patches, rounded, patches @ filters)

    def _results(self, scale: float, zero: int) -> Floats:
        lost: Floats = self.exact - round_static(self.patches, scale, zero) @ self.rounded
        return lost

    def _relative(self, lost: Floats) -> float:
        return float(np.linalg.norm(lost)) / (float(np.linalg.norm(self.exact)) or 1.0)

    def error(self, scale: float, zero: int) -> float:
        return self._relative(self._results(scale, zero))

    def corrected(self, scale: float, zero: int) -> tuple[float, Floats | None]:
        """Return the error of rounding with a scale and zero point, and the correction to add.

        The correction is the mean error per channel; None if adding it does not reduce the error.
        """
        lost = self._results(scale, zero)
        mean = lost.mean(1, keepdims=True)
        plain, less = self._relative(lost), self._relative(lost - mean)
        return (less, mean.reshape(-1).astype(np.float32)) if less < plain else (plain, None)


def conv_rounding_summary(
    found: Mapping[str, CalibratedRounding], layers: Sequence[ConvLayer]
) -> str:
    """Return a sentence about the errors of calibrated convolutions."""
    errors = [found[layer.result].error for layer in layers if layer.result in found]
    return (
        f"{len(errors)} convolutions were calibrated; their own errors are "
        f"{float(np.mean(errors)):.2g} on average and up to {max(errors):.2g}"
    )
