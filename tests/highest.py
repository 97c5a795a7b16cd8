"""Optimize for this machine's highest level alone, and compile as libraries of candidates are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tracea_graph.kernels.cpu import backend
from tracea_graph.kernels.cpu.backend import CpuBackend
from tracea_graph.kernels.cpu.isa_levels import host_levels

__all__ = ["highest_level"]


@contextmanager
def highest_level(*, float32: bool = False) -> Iterator[None]:
    """Leave out the lower levels of targets, in tests of what does not differ between levels.

    Otherwise each of these is compiled and verified too, by default in ``test_end_to_end`` and
    ``suite/test_node_tests``.  A level above that has nothing but products of integers stays,
    and with ``float32`` the highest that has kernels in float32 does.

    Libraries of results are compiled as those of candidates are, with ``-O1`` and chains
    together: what ``-O3`` makes of kernels and chains is tested in ``tests/kernels``.
    """
    levels = CpuBackend.levels

    def last(self: CpuBackend, level: str, precision: str) -> tuple[str, ...]:
        found = levels(self, level, precision)
        highest = host_levels("fp32" if float32 else precision)[-1]
        return found[found.index(highest) if highest in found else -1 :]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuBackend, "levels", last)
        for name in ("build_library", "compile_part"):
            patch.setattr(backend, name, _quickly(getattr(backend, name)))
        yield


def _quickly(build: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``library_build`` that is always asked to save compile time."""

    def made(*args: Any, **named: Any) -> Any:
        return build(*args, **{**named, "quick": True})

    return made
