"""What an error in one layer does to the model's outputs, measured layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.check.worker import Worker
from tracea_graph.compress.layers import Layer
from tracea_graph.compress.metric import Metric
from tracea_graph.onnx_io.switches import SWITCHES, Change, write_switched

__all__ = ["changes_of", "output_errors"]

Floats = npt.NDArray[np.floating[Any]]
Feed = Mapping[str, npt.NDArray[Any]]


def changes_of(switch: int, layer: Layer, delta: Floats) -> Iterable[Change]:
    """What a change ``[k, n]`` of a layer's matrix adds to each operator that multiplies by it."""
    for node, start, width in zip(layer.nodes, layer.starts, layer.widths, strict=True):
        own = delta[:, start : start + width]
        yield Change(switch, node.inputs[0], node.outputs[0], own)


def output_errors(
    model: Path,
    changes: Iterable[Change],
    count: int,
    feeds: Sequence[Feed],
    metric: Metric,
    folder: Path,
    progress: Callable[[str], None],
    threads: int = 1,
) -> list[float]:
    """The largest error over the feeds, of the outputs under each of ``count`` changes alone."""
    folder.mkdir(parents=True, exist_ok=True)
    switched = folder / "switched.onnx"
    write_switched(model, changes, switched)
    worst = [0.0] * count
    with Worker(limit=600.0) as worker:
        worker.open("switched", switched, threads=threads)
        for feed in feeds:
            off = np.zeros(count, np.float32)
            wanted = worker.run("switched", {**feed, SWITCHES: off})
            for i in range(count):
                progress(f"measuring what layer {i + 1} of {count} does to the outputs")
                on = off.copy()
                on[i] = 1.0
                found = worker.run("switched", {**feed, SWITCHES: on})
                worst[i] = max(worst[i], metric(found, wanted))
    return worst
