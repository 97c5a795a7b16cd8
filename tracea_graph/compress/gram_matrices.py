"""Accumulate Gram matrices of what layers read or write in one pass over calibration data.

G = Σ xᵀx over all rows x [K] of a value, in double precision, determines the error of any change D
of the layer's matrix: ‖X·D‖² = tr(Dᵀ·G·D).  For a layer's output, C = WᵀGW determines the error of
dropping directions: ‖Y·(I − VVᵀ)‖² = tr(C) − tr(VᵀCV).  Memory holds one set of inputs, its
activations and a K × K matrix per value.  The sums are saved at intervals, so that an interrupted
pass resumes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from tracea_graph.check.worker_process import Worker
from tracea_graph.compress.calibration_data import Samples
from tracea_graph.errors import UsageError, WorkerError
from tracea_graph.ir import Weight
from tracea_graph.toolchain.cache_trust import is_trusted, make_private

__all__ = ["Calibration", "ObservedValue", "accumulate_outputs", "calibrate", "output_names"]

Floats = npt.NDArray[np.floating[Any]]
_KEEP_EVERY = 20.0
"""Seconds between saves of the sums."""


@dataclass(frozen=True)
class ObservedValue:
    """A value of the model whose rows are accumulated.

    ``axis`` is the axis along which a row ``[K]`` lies.  If a convolution writes the value,
    ``shift`` is its bias, which is subtracted from every row.
    """

    value: str
    axis: int = -1
    shift: Weight | None = None

    @property
    def key(self) -> str:
        """Key of the value and axis, unique within a model."""
        return self.value if self.axis == -1 else f"{self.value} along {self.axis}"

    def rows(self, array: npt.NDArray[Any]) -> Floats:
        """Return the rows ``[rows, K]`` in double precision."""
        last = np.moveaxis(array, self.axis, -1)
        flat = last.reshape(-1, last.shape[-1]).astype(np.float64)
        if self.shift is not None:
            flat -= np.asarray(self.shift.array(), np.float64).reshape(-1)[: flat.shape[1]]
        return flat


@dataclass
class Calibration:
    """Gram matrices of observed values.

    ``grams`` ``[K, K]`` and the numbers of accumulated ``rows`` are keyed by
    ``ObservedValue.key``; ``sets`` is the number of input sets read.
    """

    grams: dict[str, Floats] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    sets: int = 0

    def add(self, seen: ObservedValue, array: npt.NDArray[Any]) -> None:
        """Add the rows of a value.  Raises ValueError if an element is not finite."""
        flat, key = seen.rows(array), seen.key
        product = flat.T @ flat
        if not np.isfinite(product).all():
            raise ValueError(f"{seen.value!r} is not finite")
        if key in self.grams:
            self.grams[key] += product
            self.rows[key] += len(flat)
        else:
            self.grams[key], self.rows[key] = product, len(flat)

    def joint(self, seen: Sequence[ObservedValue]) -> tuple[Floats, int]:
        """Return the Gram matrix over the rows of several values, and the number of rows."""
        total: Floats = np.sum([self.grams[s.key] for s in seen], axis=0)
        return total, sum(self.rows[s.key] for s in seen)


def calibrate(
    model: Path,
    values: Sequence[ObservedValue],
    samples: Samples,
    progress: Callable[[str], None] = lambda step: None,
    kept: Path | None = None,
    threads: int = 1,
) -> Calibration:
    """Run the model on all input sets and accumulate the Gram matrices of ``values``.

    The matrices are saved to the file ``kept``, from which an interrupted pass resumes; a finished
    pass is not repeated.  Raises UsageError for sets that do not fit the model, for inputs that it
    rejects, for data without any set, and for values that are not finite.
    """
    found = _resumed(kept, values) if kept else Calibration()
    done, index, last = found.sets, 0, time.monotonic()
    with Worker(limit=600.0) as worker:
        for label, feed in samples:
            index += 1
            if index <= done:
                continue
            if index == done + 1:
                worker.open("calibrate", model, threads=threads, extra=output_names(values))
            progress(f"calibrating {_bar(samples, label)} {label}, {found.sets} sets done")
            try:
                outputs = worker.run("calibrate", feed)
            except WorkerError as error:
                raise UsageError(f"the model rejects {label} of --data: {error}") from error
            accumulate_outputs(found, values, outputs, feed, label)
            if kept and time.monotonic() - last > _KEEP_EVERY:
                _keep(found, kept)
                last = time.monotonic()
    if not found.sets:
        raise UsageError("--data holds no set of inputs to calibrate with")
    if kept and found.sets > done:
        _keep(found, kept)
    return found


def _bar(samples: Samples, label: str, width: int = 20) -> str:
    """Return a progress bar over the files."""
    names = [file.name for file in samples.files]
    done = names.index(label.rpartition("[")[0]) / len(names)
    return "█" * round(done * width) + "░" * (width - round(done * width))


def output_names(values: Sequence[ObservedValue]) -> list[str]:
    """Return the names of the outputs that a worker must return for ``values``."""
    return sorted({s.value for s in values})


def accumulate_outputs(
    found: Calibration,
    values: Sequence[ObservedValue],
    outputs: Mapping[str, npt.NDArray[Any]],
    feed: Mapping[str, npt.NDArray[Any]],
    label: str,
) -> None:
    """Add the values of one input set to ``found``.

    Raises UsageError if a value is not finite.
    """
    try:
        for seen in values:
            found.add(seen, outputs[seen.value] if seen.value in outputs else feed[seen.value])
    except ValueError as error:
        raise UsageError(f"the model fails on {label} of --data: {error}") from error
    found.sets += 1


def _keep(found: Calibration, path: Path) -> None:
    """Write the sums atomically, unless others can write to the folder."""
    make_private(path.parent)
    if not is_trusted(path.parent, path.parent):
        return
    arrays: dict[str, Any] = {f"g{i}": g for i, g in enumerate(found.grams.values())}
    arrays["names"] = np.array(list(found.grams))
    arrays["rows"] = np.array(list(found.rows.values()), np.int64)
    arrays["sets"] = np.array(found.sets)
    draft = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(draft, **arrays)
    draft.chmod(0o600)
    os.replace(draft, path)


def _resumed(path: Path, values: Sequence[ObservedValue]) -> Calibration:
    """Return the sums of an earlier pass; empty if there was none, or over other values.

    A file that others could have written is ignored.
    """
    if not is_trusted(path, path.parent):
        return Calibration()
    try:
        with np.load(path, allow_pickle=False) as data:
            names = [str(n) for n in data["names"]]
            if sorted(names) != sorted({s.key for s in values}):
                return Calibration()
            grams = {n: data[f"g{i}"] for i, n in enumerate(names)}
            rows = dict(zip(names, map(int, data["rows"]), strict=True))
            return Calibration(grams, rows, int(data["sets"]))
    except (OSError, ValueError, KeyError, BadZipFile, EOFError):
        return Calibration()
