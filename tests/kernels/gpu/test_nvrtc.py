"""GPU kernels are compiled without a GPU, and what they take is read from their cubins."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tracea_graph.config import Environment
from tracea_graph.errors import BuildError
from tracea_graph.kernels.gpu import nvrtc
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.cubin import KernelFacts, read_cubin, why_not_launchable
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.nvrtc import Built, compile_sources, find_nvrtc

pytestmark = pytest.mark.compiler

SMALL = KernelSource(
    "tracea_small",
    """extern "C" __global__ void __launch_bounds__(96) tracea_small(
    float* y, const float* x, int n, unsigned char last) {
  __shared__ float turned[96];
  turned[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = expf(turned[95 - threadIdx.x]) * n + last;
}
""",
    96,
)
SPILLING = KernelSource(
    "tracea_spilling",
    """extern "C" __global__ void __launch_bounds__(1024, 2) tracea_spilling(float* y) {
  float held[96];
#pragma unroll
  for (int i = 0; i < 96; i++) held[i] = y[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; i++) y[i * 1024 + threadIdx.x] = held[95 - i];
}
""",
    1024,
)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(cache=tmp_path / "cache")


def of(built: Built) -> KernelFacts:
    assert built.facts is not None
    return built.facts


def test_every_architecture_is_compiled_for(environment: Environment) -> None:
    assert {a.capability for a in ARCHITECTURES.values()} <= set(find_nvrtc().capabilities)
    for built in compile_sources([SMALL], list(ARCHITECTURES), environment):
        facts, log = of(built), built.log
        assert built.refused is None
        assert struct.unpack_from("<I", built.data, 0x30)[0] >> 8 & 255 == (
            ARCHITECTURES[built.target].capability
        )
        assert facts.symbol == "tracea_small" and facts.threads == 96 and facts.barriers == 1
        assert facts.parameters == ((0, 8), (8, 8), (16, 4), (20, 1))
        used = re.search(r"Used (\d+) registers.*?(\d+) bytes smem", log)
        assert used and (facts.registers, facts.shared) == tuple(map(int, used.groups()))
        assert facts.shared == 384 and facts.stack == 0 and facts.code % 16 == 0


def test_ptx_is_text_for_architectures_to_come(environment: Environment) -> None:
    (built,) = compile_sources([SMALL], ["compute_90"], environment)
    text = built.data.decode()
    assert ".target sm_90" in text and ".visible .entry tracea_small(" in text
    assert built.facts is None and built.refused is None


def test_a_kernel_that_spills_is_refused(environment: Environment) -> None:
    (built,) = compile_sources([SPILLING], ["sm_80"], environment)
    (frame,) = re.findall(r"(\d+) bytes stack frame", built.log)
    assert of(built).stack == int(frame) > 0
    assert built.refused == (
        f"tracea_spilling on sm_80 keeps {frame} bytes a thread in local memory."
    )


def test_the_cache_keeps_what_was_compiled(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_nvrtc()
    first = compile_sources([SMALL, SMALL], ["sm_80", "sm_90a"], environment)
    monkeypatch.setattr(nvrtc, "run_command", None)
    again = compile_sources([SMALL], ["sm_80", "sm_90a"], environment)
    assert first == [*again, *again]
    changed = replace(SMALL, text=SMALL.text + "// another\n")
    with pytest.raises(TypeError):
        compile_sources([changed], ["sm_80"], environment)


def test_wrong_text_is_told_with_the_compilers_words(environment: Environment) -> None:
    wrong = KernelSource("tracea_wrong", "__global__ void tracea_wrong() { missing(); }", 32)
    with pytest.raises(BuildError, match=r"does not compile tracea_wrong for sm_80") as caught:
        compile_sources([SMALL, wrong], ["sm_80"], environment)
    assert '"missing" is undefined' in caught.value.stderr
    with pytest.raises(BuildError, match="sm_12345") as caught:
        compile_sources([SMALL], ["sm_12345"], environment)
    assert "--gpu-architecture" in caught.value.stderr


def test_a_missing_compiler_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("import sys; sys.exit('no module named cuda')")
    monkeypatch.setattr(nvrtc, "_WORKER", worker)
    with pytest.raises(BuildError, match=r'pip install "tracea-graph\[cuda\]"') as caught:
        find_nvrtc.__wrapped__()
    assert "no module named cuda" in caught.value.stderr


# ---- what is read ---------------------------------------------------------------------------

FACTS = KernelFacts("tracea_f", 64, 0, 0, 256, 1, ((0, 8),), 128)


@pytest.mark.parametrize(
    ("changed", "name", "threads", "dynamic", "why"),
    [
        ({}, "sm_80", 256, 0, None),
        ({"stack": 8}, "sm_80", 256, 0, "keeps 8 bytes a thread"),
        ({"shared": 1024}, "sm_86", 256, 101_000, "takes 102024 bytes of shared memory; a block"),
        ({"shared": 1024}, "sm_90a", 256, 101_000, None),
        ({}, "sm_80", 512, 0, "is compiled for 256 threads a block, not 512"),
        ({"threads": 0}, "sm_80", 2048, 0, "the limit is 1024"),
        ({"registers": 128, "threads": 0}, "sm_80", 1024, 0, "128 registers for 1024 threads"),
        ({"parameters": ((0, 5000),)}, "sm_80", 256, 0, "more than 4096 bytes of parameters"),
    ],
)
def test_limits(
    changed: dict[str, int], name: str, threads: int, dynamic: int, why: str | None
) -> None:
    found = why_not_launchable(replace(FACTS, **changed), ARCHITECTURES[name], threads, dynamic)  # type: ignore[arg-type]
    assert found is None if why is None else found is not None and why in found


@pytest.mark.parametrize(
    ("name", "registers", "shared", "threads", "blocks", "limit"),
    [
        ("sm_80", 32, 0, 256, 8, "warps"),
        ("sm_80", 33, 0, 256, 6, "registers"),
        ("sm_80", 255, 0, 128, 2, "registers"),
        ("sm_86", 32, 0, 256, 6, "warps"),
        ("sm_86", 24, 0, 32, 16, "blocks"),
        ("sm_90a", 168, 200 << 10, 384, 1, "registers"),
        ("sm_90a", 64, 110 << 10, 256, 2, "shared memory"),
        ("sm_75", 64, 0, 1024, 1, "warps"),
        ("sm_80", 32, 164 << 10, 64, 0, "shared memory"),
    ],
)
def test_occupancy(
    name: str, registers: int, shared: int, threads: int, blocks: int, limit: str
) -> None:
    """Against NVIDIA's calculator; the driver's own answers are compared on a GPU."""
    found = ARCHITECTURES[name].occupancy(registers, shared, threads)
    assert (found.blocks, found.limit) == (blocks, limit)


@pytest.mark.parametrize("cut", [0, 5, 63, 500])
def test_what_is_no_cubin_is_refused(cut: int, environment: Environment) -> None:
    (built,) = compile_sources([SMALL], ["sm_80"], Environment())
    with pytest.raises(BuildError, match="cannot be read"):
        read_cubin(built.data[:cut])
