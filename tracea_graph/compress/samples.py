"""Sets of real inputs, read one file at a time: the part to calibrate with, the part held out."""

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

from tracea_graph.check.feeds import from_file
from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import Model

__all__ = ["Samples", "split"]

Feed = Mapping[str, npt.NDArray[Any]]
_EVERY = 5
"""Without data of its own, every fifth set is held out."""
_HELD = 16
"""Sets to measure with, at most."""


@dataclass(frozen=True)
class Samples:
    """Input sets of a model, over ``.npz`` files as ``--data`` takes them.

    ``part``: ``all`` sets, those to ``calibrate`` with, or those ``held out`` of them.
    """

    model: Model
    files: tuple[Path, ...]
    option: str = "--data"
    part: str = "all"

    @classmethod
    def of(cls, path: Path, model: Model, option: str = "--data") -> Samples:
        """Of a file; of a folder the file that is named like the model, else every ``.npz``.

        Raises UsageError if there is none.
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
                raise UsageError(f"{option} {file} is no .npz file; numpy.savez writes one")
        return cls(model, found, option)

    def __iter__(self) -> Iterator[tuple[str, Feed]]:
        """Sets with a name for each.  Raises UsageError for what does not fit, NaN among it."""
        index = 0
        for file in self.files:
            for i, feed in enumerate(from_file(file, self.model.graph, self.model.inputs)):
                if self._mine(index):
                    name = f"{file.name}[{i}]"
                    self._check(name, feed)
                    yield name, feed
                index += 1

    def _mine(self, index: int) -> bool:
        held = index % _EVERY == 1
        return self.part == "all" or held == (self.part == "held out")

    def _check(self, name: str, feed: Feed) -> None:
        for value, array in feed.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise UsageError(f"{value!r} in {name} of {self.option} is not finite everywhere")

    @property
    def mark(self) -> str:
        """What tells these sets from others: names, sizes and times of the files."""
        stats = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in self.files]
        return hashlib.sha256(repr((stats, self.part)).encode()).hexdigest()


def split(
    data: Path | None, holdout: Path | None, model: Model
) -> tuple[Samples | None, dict[str, Feed], list[str]]:
    """What to calibrate with, the sets to measure with, and what is to be said about them.

    Raises UsageError for files that are none, and for data without a set.
    """
    samples = Samples.of(data, model) if data is not None else None
    if holdout is not None:
        held = dict(itertools.islice(Samples.of(holdout, model, "--holdout"), _HELD))
        if not held:
            raise UsageError(f"--holdout {holdout} holds no set of inputs")
        return samples, held, [] if samples else [_NO_DATA]
    if samples is None:
        return None, {}, [_NO_DATA, _NO_HOLDOUT]
    held = dict(itertools.islice(replace(samples, part="held out"), _HELD))
    if held:
        return replace(samples, part="calibrate"), held, []
    only = "--data has one set of inputs: the error was measured with what calibrated it"
    return samples, dict(samples), [only]


_NO_DATA = "no --data: plain SVD and magnitudes, whatever the inputs are like"
_NO_HOLDOUT = "the error was measured with synthesised inputs: the figure means little"
