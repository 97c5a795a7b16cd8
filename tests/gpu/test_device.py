"""Run every kernel case on a GPU, and compare cubin facts with the driver's."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.gpu.device import Device, Loaded
from tests.kernels.gpu import words
from tests.kernels.gpu.all_cases import CASES
from tests.kernels.gpu.cases import Case, check
from tests.kernels.gpu.machine import Memory
from tracea_graph.config import Environment
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel, launch_of
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.variants import find
from tracea_graph.temporary_files import lock_file

pytestmark = pytest.mark.gpu
ALL = [pytest.param(c, t, id=f"{c.name} {t}".strip()) for c in CASES for t in c.tiles]


@cache
def device() -> Device:
    return Device()


@cache
def target() -> Target:
    return Target(CUDA, device().architecture)


@cache
def kernels() -> dict[str, Loaded]:
    """Compile and load all kernels of all cases; one process compiles while others wait."""
    sources: dict[str, KernelSource] = {}
    for case in CASES:
        for tile in case.tiles:
            call, _ = case.make(Memory(), np.random.default_rng(0))
            variant = find(call, target().architecture, tile)
            source = emit_kernel(call, variant, target())
            known = sources.get(source.symbol, source)  # some differ in shared memory alone
            sources[source.symbol] = max(source, known, key=lambda one: one.shared)
    name = target().architecture.name
    folder = Environment().cache
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "all-cases.lock").open("w") as alone:
        lock_file(alone.fileno(), wait=True)
        built = compile_sources(list(sources.values()), [name])
    return {one.source.symbol: Loaded(one) for one in built}


@pytest.mark.parametrize(("case", "tile"), ALL)
def test_kernels_compute_what_calls_mean(case: Case, tile: str) -> None:
    for seed in (0, 1):
        memory = Memory()
        call, expected = case.make(memory, np.random.default_rng(seed))
        variant = find(call, target().architecture, tile)
        launch = launch_of(call, variant, target())
        device().run(kernels()[launch.symbol], launch, memory)
        check(memory, expected())


def test_cubins_say_what_the_driver_says() -> None:
    for loaded in kernels().values():
        facts, source = loaded.built.facts, loaded.built.source
        assert facts is not None
        assert loaded.built.refused is None or "local memory" in loaded.built.refused
        assert facts.registers == loaded.attribute("NUM_REGS")
        assert facts.shared == loaded.attribute("SHARED_SIZE_BYTES")
        assert facts.stack >= loaded.attribute("LOCAL_SIZE_BYTES")
        assert facts.threads == loaded.attribute("MAX_THREADS_PER_BLOCK")
        found = facts.occupancy(target().architecture, source.threads, source.shared)
        assert found.blocks == loaded.blocks_of_an_sm()


def test_steps_mean_what_chains_mean() -> None:
    (built,) = compile_sources([words.kernel(target())], [target().architecture.name])
    assert built.refused is None
    memory = Memory()
    launch, z = words.launch(memory)
    device().run(Loaded(built), launch, memory)
    assert {name: e for name, e in words.check(z).items() if e > 4e-6} == {}


def test_ptx_is_compiled_by_the_driver() -> None:
    """Run PTX, which newer architectures use, on this GPU."""
    case = next(c for c in CASES if c.name == "layer late")
    memory = Memory()
    call, expected = case.make(memory, np.random.default_rng(0))
    variant = find(call, target().architecture, case.tiles[0])
    level = "compute_90" if device().capability >= 90 else "compute_80"
    (built,) = compile_sources([emit_kernel(call, variant, target())], [level])
    device().run(Loaded(built), launch_of(call, variant, target()), memory)
    check(memory, expected())
