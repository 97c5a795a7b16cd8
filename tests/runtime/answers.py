"""What the cases of one file give under every level and thread count, by one library."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.runtime.support import Case, model, mutate, run_cases, run_worker
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.library_build import build_library
from tracea_graph.kernels.cpu.plan_encoding import encode
from tracea_graph.kernels.program import LibraryContents
from tracea_graph.ops.chain import Chain
from tracea_graph.toolchain import Library

__all__ = ["Answers", "assert_never_crashes", "assert_threads_agree"]

_AT_ONCE = 100
"""Cases of one worker process, whose time is limited."""


class Answers:
    """``answers(level, threads)``: name of a case to its outputs; asked for once each.

    A level's library holds what ``calls`` need, ``chains``, and those of the cases; it is built
    when a test asks for the level.
    """

    def __init__(
        self,
        cases: Iterable[Case],
        calls: Collection[str],
        chains: Sequence[Chain],
        levels: Sequence[str],
        folders: pytest.TempPathFactory,
    ) -> None:
        self.cases = {case.name: case for case in cases}
        self.levels, self._calls = tuple(levels), calls
        made = (call.chain for c in self.cases.values() for call in c.program.calls)
        self._chains = tuple({c.key: c for c in (*chains, *made) if c is not None}.values())
        self._folders = folders
        self._known: dict[tuple[str, int], dict[str, Any]] = {}
        self._libraries: dict[str, Library] = {}

    @property
    def library(self) -> Library:
        """All that the calls need, for the highest level."""
        return self._library(self.levels[-1])

    def _library(self, level: str) -> Library:
        if level not in self._libraries:
            self._libraries[level] = self._built(level)
        return self._libraries[level]

    def _built(self, level: str) -> Library:
        types = sorted({case.type for case in self.cases.values()}, key=lambda t: t.name)
        kernels = sorted({kernel for call in self._calls for kernel in CALLS[call].needs})
        out = self._folders.mktemp("library") / "answers.so"
        contents = LibraryContents(types, kernels, self._chains)
        return build_library(contents, (level,), out, quick=True)

    def __call__(self, level: str, threads: int = 2) -> dict[str, Any]:
        if (level, threads) not in self._known:
            library, found = self._library(level), self._known.setdefault((level, threads), {})
            cases = list(self.cases.values())
            for i in range(0, len(cases), _AT_ONCE):
                some, folder = cases[i : i + _AT_ONCE], self._folders.mktemp(level)
                found |= run_cases(some, library.path, library.domain, folder, level, threads)
        return self._known[level, threads]


def assert_within(case: Case, answer: Any, tolerance: float) -> None:
    """Results differ by a share of their largest magnitude at most; the same ones are NaN."""
    assert isinstance(answer, tuple), answer
    for wanted, got in zip(case.expected, answer, strict=True):
        assert got.shape == wanted.shape
        assert np.array_equal(np.isnan(got), np.isnan(wanted))
        limit = tolerance * max(np.nanmax(np.abs(wanted), initial=0), 1e-3)
        assert np.nanmax(np.abs(got - wanted), initial=0) <= limit


def assert_threads_agree(answers: Answers) -> None:
    """One thread gives the bits of two, wherever the reference says anything."""
    one, two = (answers(answers.levels[-1], threads) for threads in (1, 2))
    for name, case in answers.cases.items():
        for i, wanted in enumerate(case.expected):
            asked = ~np.isnan(wanted)
            np.testing.assert_array_equal(one[name][i][asked], two[name][i][asked], err_msg=name)


def assert_never_crashes(case: Case, library: Library, folder: Path) -> None:
    """A hundred damaged plans: each is refused or runs."""
    chance, count = random.Random(case.name), 100
    for i in range(count):
        plan = mutate(encode(case.program), chance)
        onnx.save(model(case.program, library.domain, plan), folder / f"{i:03}.onnx")
    np.savez(folder / "feeds.npz", **{f"x{i}": x for i, x in enumerate(case.feeds)})
    job = {"task": "mutants", "library": str(library.path), "folder": str(folder)}
    refused, ran = run_worker(job)
    assert refused + ran == count
    assert refused > count // 3
