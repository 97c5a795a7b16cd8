"""Gram matrices of what layers read or write, in one pass over data that may exceed memory.

G = Σ xᵀx over all rows x [K] of a value, in double precision: all that the error of any change of
the layer's matrix depends on, ‖X·D‖² = tr(Dᵀ·G·D).  Of what a layer writes, C = WᵀGW tells the
error of leaving directions of it out, ‖Y·(I − VVᵀ)‖² = tr(C) − tr(VᵀCV).  Memory is bounded by
one set of inputs, its activations, and a K × K matrix per value.  What was summed is kept in a
file now and then, so that an interrupted pass goes on where it was.
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

from tracea_graph.check.worker import Worker
from tracea_graph.compress.samples import Samples
from tracea_graph.errors import UsageError, WorkerError
from tracea_graph.ir import Weight
from tracea_graph.toolchain.trust import make_private, trusted

__all__ = ["Calibration", "ObservedValue", "add_all", "calibrate", "output_names"]

Floats = npt.NDArray[np.floating[Any]]
_KEEP_EVERY = 20.0
"""Seconds between writing down what was summed."""


@dataclass(frozen=True)
class ObservedValue:
    """A value of the model, the axis its rows ``[K]`` lie along, and what is taken off them: the
    bias, of what a convolution writes."""

    value: str
    axis: int = -1
    shift: Weight | None = None

    @property
    def key(self) -> str:
        """What tells it from other readings of the value."""
        return self.value if self.axis == -1 else f"{self.value} along {self.axis}"

    def rows(self, array: npt.NDArray[Any]) -> Floats:
        """``[rows, K]`` in double precision."""
        last = np.moveaxis(array, self.axis, -1)
        flat = last.reshape(-1, last.shape[-1]).astype(np.float64)
        if self.shift is not None:
            flat -= np.asarray(self.shift.array(), np.float64).reshape(-1)[: flat.shape[1]]
        return flat


@dataclass
class Calibration:
    """Gram matrices ``[K, K]`` by ``ObservedValue.key``, the rows behind each, and the number of
    sets read."""

    grams: dict[str, Floats] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    sets: int = 0

    def add(self, seen: ObservedValue, array: npt.NDArray[Any]) -> None:
        """Add the rows of a value.  Raises ValueError if one is not finite."""
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
        """The Gram matrix over the rows of several values, and how many rows these are."""
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
    """Run the model over all sets and sum what ``values`` are, each once.

    ``kept`` is the file what was summed is kept in: a pass that was interrupted goes on, one that
    was finished is not repeated.  Raises UsageError for sets that do not fit, for inputs the model
    rejects, and for activations that are not finite.
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
            add_all(found, values, outputs, feed, label)
            if kept and time.monotonic() - last > _KEEP_EVERY:
                _keep(found, kept)
                last = time.monotonic()
    if not found.sets:
        raise UsageError("--data holds no set of inputs to calibrate with")
    if kept and found.sets > done:
        _keep(found, kept)
    return found


def _bar(samples: Samples, label: str, width: int = 20) -> str:
    """How many of the files are done, drawn."""
    names = [file.name for file in samples.files]
    done = names.index(label.rpartition("[")[0]) / len(names)
    return "█" * round(done * width) + "░" * (width - round(done * width))


def output_names(values: Sequence[ObservedValue]) -> list[str]:
    """What a worker is to give out for them."""
    return sorted({s.value for s in values})


def add_all(
    found: Calibration,
    values: Sequence[ObservedValue],
    outputs: Mapping[str, npt.NDArray[Any]],
    feed: Mapping[str, npt.NDArray[Any]],
    label: str,
) -> None:
    """Add one set of inputs.  Raises UsageError for what is not finite."""
    try:
        for seen in values:
            found.add(seen, outputs[seen.value] if seen.value in outputs else feed[seen.value])
    except ValueError as error:
        raise UsageError(f"with {label} of --data, {error} in the model") from error
    found.sets += 1


def _keep(found: Calibration, path: Path) -> None:
    """Write what was summed, whole or not at all; not where others can write to."""
    make_private(path.parent)
    if not trusted(path.parent, path.parent):
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
    """What an earlier pass summed; nothing if there was none, or of other values.

    What others can have written is none.
    """
    if not trusted(path, path.parent):
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
