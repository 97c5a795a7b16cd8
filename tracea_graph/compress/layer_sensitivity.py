"""Measure what an error in one layer does to the model's outputs, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.check.worker_process import Worker
from tracea_graph.compress.compressible_layers import Layer
from tracea_graph.compress.error_metric import Metric
from tracea_graph.onnx_io.switchable_models import SWITCHES, SwitchableChange, write_switched

__all__ = ["output_errors", "perturbations_of"]

Floats = npt.NDArray[np.floating[Any]]
Feed = Mapping[str, npt.NDArray[Any]]
_LEAST, _BETWEEN = 1e-7, 1.5
"""An error that is larger than rounding, and the power half way between 1 and 2."""


def perturbations_of(switch: int, layer: Layer, delta: Floats) -> Iterable[SwitchableChange]:
    """Yield, for each operator that uses a layer's matrix, the change of its own weight.

    ``delta`` ``[k, n]`` is the change of the matrix; ``switch`` is the index of the switch that
    turns the yielded changes on.
    """
    for place in layer.uses:
        end = None if place.width is None else place.start + place.width
        own = delta[:, place.start : end]
        if place.shape is not None:
            own = own.T.reshape(place.shape)
        yield SwitchableChange(switch, place.x, place.result, own, place.op, place.attrs)


def output_errors(
    model: Path,
    changes: Iterable[SwitchableChange],
    count: int,
    feeds: Sequence[Feed],
    metric: Metric,
    folder: Path,
    progress: Callable[[str], None],
    threads: int = 1,
) -> tuple[list[float], int]:
    """Measure the error of the model's outputs under each of ``count`` changes alone.

    Returns the largest error over the feeds for each change, and the power by which errors grow
    with the size of a change: 1 for a distance, 2 for a metric such as 1 − cosine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    switched = folder / "switched.onnx"
    write_switched(model, changes, switched)
    worst, powers = [0.0] * count, list[float]()
    with Worker(limit=600.0) as worker:
        worker.open("switched", switched, threads=threads)

        def error(feed: Feed, wanted: Feed, change: int, part: float) -> float:
            on = np.zeros(count, np.float32)
            on[change] = part
            return metric(worker.run("switched", {**feed, SWITCHES: on}), wanted)

        for feed in feeds:
            wanted = worker.run("switched", {**feed, SWITCHES: np.zeros(count, np.float32)})
            for i in range(count):
                progress(f"measuring what layer {i + 1} of {count} does to the outputs")
                whole = error(feed, wanted, i, 1.0)
                worst[i] = max(worst[i], whole)
                if feed is feeds[0] and (half := error(feed, wanted, i, 0.5)) > _LEAST:
                    powers.append(float(np.log2(max(whole, half) / half)))
    return worst, 2 if powers and float(np.median(powers)) > _BETWEEN else 1
