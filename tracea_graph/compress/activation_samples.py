"""Sample rows of the values that layers read, in a pass over calibration data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.check.worker_process import Worker
from tracea_graph.compress.calibration_data import Samples
from tracea_graph.compress.gram_matrices import ObservedValue, output_names
from tracea_graph.errors import UsageError, WorkerError

__all__ = ["SAMPLED_SETS", "sample_rows"]

Floats = npt.NDArray[np.float32]
SAMPLED_SETS, _ROWS = 32, 64
"""Number of input sets to read, and of rows of a value to keep from each set."""


def sample_rows(
    model: Path,
    values: Sequence[ObservedValue],
    samples: Samples,
    progress: Callable[[str], None] = lambda step: None,
    threads: int = 1,
) -> dict[str, Floats]:
    """Return rows ``[rows, K]`` of each value, evenly spaced in every set of inputs.

    Raises UsageError for sets that do not fit the model, for inputs that it rejects, for values
    that are not finite, and for data without any set.
    """
    kept: dict[str, list[Floats]] = {seen.key: [] for seen in values}
    with Worker(limit=600.0) as worker:
        for at, (label, feed) in enumerate(itertools.islice(samples, SAMPLED_SETS)):
            if not at:
                worker.open("sample", model, threads=threads, extra=output_names(values))
            progress(f"reading activations, {label}")
            try:
                outputs = worker.run("sample", feed)
            except WorkerError as error:
                raise UsageError(f"the model rejects {label} of --data: {error}") from error
            for seen in values:
                rows = _rows(seen, {**feed, **outputs})
                if not np.isfinite(rows).all():
                    why = f"{seen.value!r} is not finite"
                    raise UsageError(f"the model fails on {label} of --data: {why}")
                kept[seen.key].append(rows)
    if not all(kept.values()):
        raise UsageError("--data holds no set of inputs to calibrate with")
    return {key: np.concatenate(rows) for key, rows in kept.items()}


def _rows(seen: ObservedValue, found: Mapping[str, npt.NDArray[Any]]) -> Floats:
    rows = seen.rows(found[seen.value])
    some = np.unique(np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int))
    made: Floats = rows[some].astype(np.float32)
    return made
