"""Read sets of real inputs, one file at a time, and split them for calibration and holdout."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt

from tracea_graph.check.input_feeds import read_input_sets
from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import Model

__all__ = ["DataSplit", "Samples", "split_data"]

Feed = Mapping[str, npt.NDArray[Any]]
_ALL = frozenset(range(5))
_VALIDATION, _HOLDOUT = frozenset({1}), frozenset({3})
"""Of every five sets, the second is for validation and the fourth for holdout."""
_HELD = 16
"""Maximum number of sets to measure the error with."""


@dataclass(frozen=True)
class Samples:
    """Input sets of a model from ``.npz`` files, as ``--data`` takes them.

    Only sets whose index modulo 5 is in ``part`` are used.
    """

    model: Model
    files: tuple[Path, ...]
    option: str = "--data"
    part: frozenset[int] = _ALL

    @classmethod
    def of(cls, path: Path, model: Model, option: str = "--data") -> Samples:
        """Find the files with the input sets of a model.

        ``path`` is an ``.npz`` file or a folder.  In a folder, the file named like the model is
        used if it exists, otherwise all ``.npz`` files.  Raises UsageError if there is no such
        file, or if a file is not in ``.npz`` format.  ``option`` is the flag that messages name.
        """
        own = path / f"{model.path.stem}.npz"
        if path.is_dir():
            found = (own,) if own.is_file() else tuple(sorted(path.glob("*.npz")))
            if not found:
                raise UsageError(f"{option} {path} holds no .npz file; numpy.savez writes one")
        else:
            found = (path,)
        for file in found:
            if not file.is_file():
                raise UsageError(f"{option} {file} does not exist")
            if not is_zipfile(file):
                raise UsageError(f"{option} {file} is not an .npz file; numpy.savez writes one")
        return cls(model, found, option)

    def __iter__(self) -> Iterator[tuple[str, Feed]]:
        """Yield each set and its name.  Raises UsageError for sets that do not fit or hold NaN."""
        index = 0
        for file in self.files:
            for i, feed in enumerate(read_input_sets(file, self.model.graph, self.model.inputs)):
                if index % len(_ALL) in self.part:
                    name = f"{file.name}[{i}]"
                    self._check(name, feed)
                    yield name, feed
                index += 1

    def _check(self, name: str, feed: Feed) -> None:
        for value, array in feed.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise UsageError(f"{value!r} in {name} of {self.option} is not finite everywhere")

    @property
    def mark(self) -> str:
        """Fingerprint of the files: names, sizes and times."""
        stats = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in self.files]
        return hashlib.sha256(repr((stats, sorted(self.part))).encode()).hexdigest()


@dataclass(frozen=True)
class DataSplit:
    """Input sets by purpose.

    * ``calibrate``: sets to observe values with; None without data.
    * ``validation``: sets on which the search measures errors.
    * ``holdout``: sets on which the reported error is measured.
    * ``warnings``: sentences about sets that are missing or used twice.
    """

    calibrate: Samples | None
    validation: Mapping[str, Feed]
    holdout: Mapping[str, Feed]
    warnings: tuple[str, ...] = ()


def split_data(
    data: Path | None, holdout: Path | None, model: Model, other: Mapping[str, Feed]
) -> DataSplit:
    """Split input sets into calibration, validation and holdout sets.

    Holdout sets are read from ``holdout``; without it, every fifth set of ``data`` is a holdout
    set.  Without any data, the errors are measured on the ``other`` inputs.  Raises UsageError for
    unreadable files and for files without sets.
    """
    samples = Samples.of(data, model) if data is not None else None
    kept = _first(Samples.of(holdout, model, "--holdout")) if holdout is not None else {}
    if holdout is not None and not kept:
        raise UsageError(f"--holdout {holdout} holds no set of inputs")
    if samples is None:
        validation, held = _halves(kept) if kept else (other, other)
        said = (_NO_DATA, *(_same(validation, held) if kept else (_NO_HOLDOUT,)))
        return DataSplit(None, validation, held, said)
    validation = _first(replace(samples, part=_VALIDATION))
    if kept:
        validation, held = (validation, kept) if validation else _halves(kept)
        return DataSplit(
            replace(samples, part=_ALL - _VALIDATION), validation, held, _same(validation, held)
        )
    if not validation:
        only = dict(samples)
        return DataSplit(samples, only, only, (_ONE,))
    held = _first(replace(samples, part=_HOLDOUT)) or validation
    calibrate = replace(samples, part=_ALL - _VALIDATION - _HOLDOUT)
    return DataSplit(calibrate, validation, held, _same(validation, held))


def _first(samples: Samples) -> dict[str, Feed]:
    return dict(itertools.islice(samples, _HELD))


def _halves(sets: Mapping[str, Feed]) -> tuple[Mapping[str, Feed], Mapping[str, Feed]]:
    """Return every other set in two mappings; a single set is in both."""
    if len(sets) < 2:
        return sets, sets
    names = [*sets]
    first, second = ({n: sets[n] for n in names[i::2]} for i in (0, 1))
    return first, second


def _same(validation: Mapping[str, Feed], held: Mapping[str, Feed]) -> tuple[str, ...]:
    return (_SAME,) if validation is held else ()


_NO_DATA = "no --data: plain SVD and magnitudes are used, which do not depend on inputs"
_NO_HOLDOUT = "the error was measured with synthesised inputs: the figure means little"
_SAME = "too few sets of inputs for a holdout: the reported error is of sets used in the search"
_ONE = "--data has one set of inputs: the error was measured on the set used to calibrate"
