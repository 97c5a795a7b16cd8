"""Optimize for this machine's highest level alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tracea_graph.kernels.cpu.backend import CpuBackend
from tracea_graph.kernels.cpu.isa_levels import host_levels

__all__ = ["highest_level"]


@contextmanager
def highest_level(*, float32: bool = False) -> Iterator[None]:
    """Leave out the lower levels of targets, in tests of what does not differ between levels.

    Otherwise each of these is compiled and verified too, by default in ``test_end_to_end`` and
    ``suite/test_node_tests``.  A level above that has nothing but products of integers stays,
    and with ``float32`` the highest that has kernels in float32 does.
    """
    levels = CpuBackend.levels

    def last(self: CpuBackend, level: str, precision: str) -> tuple[str, ...]:
        found = levels(self, level, precision)
        highest = host_levels("fp32" if float32 else precision)[-1]
        return found[found.index(highest) if highest in found else -1 :]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuBackend, "levels", last)
        yield
