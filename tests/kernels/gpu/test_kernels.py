"""Every case on this machine: the kernels' own text in the host dialect, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.gpu.cases import CASES, Case, check
from tests.kernels.gpu.machine import Memory, run_here
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.dialect import HOST, Target
from tracea_graph.kernels.gpu.emitter import emit, launch_of
from tracea_graph.kernels.gpu.variants import find

pytestmark = pytest.mark.compiler
HERE = Target(HOST, ARCHITECTURES["sm_90a"])
ALL = [pytest.param(c, t, id=f"{c.name} {t}".strip()) for c in CASES for t in c.tiles]


@pytest.mark.parametrize(("case", "tile"), ALL)
def test_kernels_compute_what_calls_mean(case: Case, tile: str) -> None:
    for seed in (0, 1):
        memory = Memory()
        call, expected = case.make(memory, np.random.default_rng(seed))
        variant = find(call, HERE.architecture, tile)
        run_here(emit(call, variant, HERE), launch_of(call, variant, HERE), memory, seed)
        check(memory, expected)
