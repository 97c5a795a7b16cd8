"""Largest magnitudes of a model's inputs and inner values, measured on feeds.

The range of a 16-bit float may be smaller than that of float32: a value may be stored as a 16-bit
float only if no feed shows it outside that range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from tracea_graph.check.input_feeds import Feeds
from tracea_graph.check.worker_pool import AcquireWorker, new_worker
from tracea_graph.check.worker_process import Array
from tracea_graph.errors import WorkerError
from tracea_graph.ir import DType, assumed_size, product
from tracea_graph.ttg.region_graph import TileGraph

__all__ = ["largest_magnitudes"]

_FEEDS = 4
_MOST_BYTES = 256 << 20
"""Bytes of inner values that one run keeps."""


def largest_magnitudes(
    original: Path,
    graph: TileGraph,
    feeds: Feeds,
    bindings: Mapping[str, int],
    acquire: AcquireWorker = new_worker,
) -> dict[str, float]:
    """Return the largest finite magnitude of each float32 value of the original, by name.

    Only the first few ``feeds`` are run; ``bindings`` are the symbol values of the first feed.
    Values that cannot be read are left out.  The result is empty if the original does not run.
    """
    found = {
        name: _largest(np.asarray(weight.array()))
        for name, weight in graph.weights.items()
        if weight.dtype is DType.F32
    }
    taken = list(islice(feeds.values(), _FEEDS))
    for name, array in (item for feed in taken for item in feed.items()):
        if array.dtype == np.float32:
            found[name] = max(found.get(name, 0.0), _largest(array))
    try:
        with acquire(None, {}) as worker:
            written = frozenset(worker.values(original))
            values = [
                v for r in graph.regions() for v in r.writes
                if v in written and graph.spec(v).dtype is DType.F32
            ]  # fmt: skip
            for group in _groups(graph, values, bindings):
                worker.open("ranges", original, level="basic", extra=group)
                for feed in taken:
                    for name, array in worker.run("ranges", feed).items():
                        if array.dtype == np.float32:
                            found[name] = max(found.get(name, 0.0), _largest(array))
                worker.close("ranges")
    except WorkerError:  # verification says why
        return {}
    return found


def _largest(array: Array) -> float:
    """Return the largest finite magnitude; 0 if there is none."""
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _groups(
    graph: TileGraph, values: Sequence[str], bindings: Mapping[str, int]
) -> list[list[str]]:
    """Divide values into groups of a limited total size."""
    groups, taken = list[list[str]](), 0
    for value in values:
        shape = graph.spec(value).shape or ()
        size = 4 * assumed_size(product(shape), bindings)
        if not groups or taken + size > _MOST_BYTES:
            groups.append([])
            taken = 0
        groups[-1].append(value)
        taken += size
    return groups
