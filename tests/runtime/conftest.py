"""Libraries that runtime tests share, each built once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.cases import CHAINS, all_cases
from tests.runtime.support import Case, run_cases
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.exported_functions import KERNELS
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.library_build import build_library
from tracea_graph.kernels.program import LibraryContents
from tracea_graph.toolchain import Library

ISAS = host_levels()
_NARROW = ("_bf16", "_bf16x2", "_int16")


def kernels_for(cases: Iterable[Case]) -> Collection[str]:
    """Return the kernels that the cases call, and all others that compute in float32.

    Mutated plans call the latter.  The rest is decoded by the same lines, and has tests and
    libraries of its own, which do without the float32 levels that take long to compile.
    """
    called = {call.name for case in cases for call in case.program.calls}
    needed = {kernel for call in called for kernel in CALLS[call].needs}
    return [name for name in KERNELS if name in needed or not name.endswith(_NARROW)]


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    return {case.name: case for case in all_cases()}


def built(cases: Collection[Case], kernels: Collection[str], level: str, out: Path) -> Library:
    """Build a library for one level, with the types of all cases."""
    types = sorted({case.type for case in cases}, key=lambda t: t.name)
    return build_library(LibraryContents(types, kernels, CHAINS), (level,), out, quick=True)


@pytest.fixture(scope="session")
def library(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> Library:
    """All kernels of :func:`kernels_for`, for this machine's highest level."""
    out = tmp_path_factory.mktemp("library") / "tests.so"
    return built(cases.values(), kernels_for(cases.values()), ISAS[-1], out)


@pytest.fixture(scope="session")
def answers(
    cases: dict[str, Case],
    library: Library,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], dict[str, Any]]:
    """Outputs or error of the cases that run under a level; one library and worker each."""
    known: dict[str, dict[str, Any]] = {}
    asked = (item.callspec.params for item in request.session.items if hasattr(item, "callspec"))
    names = {(p["level"], p["name"]) for p in asked if {"level", "name"} <= p.keys()}

    def of(level: str) -> dict[str, Any]:
        if level not in known:
            folder = tmp_path_factory.mktemp(level)
            some = [case for name, case in cases.items() if (level, name) in names]
            called = {call.name for case in some for call in case.program.calls}
            kernels = sorted({kernel for name in called for kernel in CALLS[name].needs})
            own = library if level == ISAS[-1] else built(some, kernels, level, folder / "own.so")
            known[level] = run_cases(some, own.path, own.domain, folder, level)
        return known[level]

    return of
