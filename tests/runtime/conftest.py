"""One library for every runtime test, built once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.cases import CHAINS, all_cases
from tests.runtime.support import Case, run_cases
from tracea_graph.kernels.cpu.exported_functions import KERNELS
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.library_build import build_library
from tracea_graph.kernels.program import LibraryContents
from tracea_graph.toolchain import Library

ISAS = host_levels()


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    return {case.name: case for case in all_cases()}


@pytest.fixture(scope="session")
def library(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> Library:
    types = sorted({case.type for case in cases.values()}, key=lambda t: t.name)
    out = tmp_path_factory.mktemp("library") / "tests.so"
    return build_library(LibraryContents(types, KERNELS, CHAINS), ISAS, out, quick=True)


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
