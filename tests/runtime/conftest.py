"""One library for every runtime test, built once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
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


@pytest.fixture(scope="session")
def library(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> Library:
    types = sorted({case.type for case in cases.values()}, key=lambda t: t.name)
    out = tmp_path_factory.mktemp("library") / "tests.so"
    contents = LibraryContents(types, kernels_for(cases.values()), CHAINS)
    return build_library(contents, ISAS, out, quick=True)


@pytest.fixture(scope="session")
def answers(
    cases: dict[str, Case], library: Library, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Any]]:
    """Every case's outputs or error under one instruction set; one worker process each."""
    known: dict[str, dict[str, Any]] = {}

    def of(isa: str) -> dict[str, Any]:
        if isa not in known:
            folder = tmp_path_factory.mktemp(isa)
            known[isa] = run_cases(list(cases.values()), library.path, library.domain, folder, isa)
        return known[isa]

    return of
