"""Every elementary step of chains, in the host dialect and compiled for GPUs."""

from __future__ import annotations

import pytest

from tests.kernels.gpu import words
from tests.kernels.gpu.machine import Memory, run_here
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.dialect import CUDA, HOST, Target
from tracea_graph.kernels.gpu.nvrtc import compile_sources

pytestmark = pytest.mark.compiler


def test_steps_mean_what_chains_mean() -> None:
    memory = Memory()
    launch, z = words.launch(memory)
    run_here(words.kernel(Target(HOST, ARCHITECTURES["sm_80"])), launch, memory)
    errors = words.check(z)
    assert {name: e for name, e in errors.items() if e > 4e-6} == {}


@pytest.mark.parametrize("name", ["sm_75", "sm_90a"])
def test_steps_stay_in_registers(name: str) -> None:
    (built,) = compile_sources([words.kernel(Target(CUDA, ARCHITECTURES[name]))], [name])
    assert built.refused is None
