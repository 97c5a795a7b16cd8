"""Kernels without matrix instructions in HIP, compiled for AMD GPUs by the clang in zig's wheel.

They are not run: there is no GPU of AMD among the test machines, and no runtime for one.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.deploy.emulation import zig
from tests.kernels.gpu.all_cases import CASES
from tests.kernels.gpu.machine import Memory
from tracea_graph.errors import GraphError
from tracea_graph.kernels.gpu.architecture import Architecture
from tracea_graph.kernels.gpu.dialect import HIP, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant, find
from tracea_graph.kernels.program import Call

GPUS = ("gfx90a", "gfx942", "gfx1100")
"""Two with waves of 64 lanes, and one with waves of 32."""
FLAGS = ("-x", "hip", "--offload-device-only", "-nogpuinc", "-nogpulib", "-std=c++17", "-O2", "-S",
         "-Werror", "-Wno-unused-command-line-argument")  # fmt: skip
PLAIN = {v.template for v in VARIANTS} - HIP.lacks
OUTSIDE = {f"__ocml_{name}_f32" for name in ("erf", "expm1", "log1p", "pow", "tanh")}
"""Functions that AMD's device library defines."""


def kernels(gpu: str) -> dict[str, KernelSource]:
    """Return a kernel of each template and op, by both."""
    target = Target(HIP, Architecture(gpu, 0, 32, 32, 64 << 10, 64 << 10))
    found: dict[str, KernelSource] = {}
    for case in CASES:
        call, _ = case.make(Memory(), np.random.default_rng(0))
        for variant in (variant_of(call, tile, target) for tile in case.tiles):
            if variant is not None and f"{variant.template} {call.op}" not in found:
                found[f"{variant.template} {call.op}"] = emit_kernel(call, variant, target)
    return found


def variant_of(call: Call, tile: str, target: Target) -> Variant | None:
    try:
        found = find(call, target.architecture, tile)
    except GraphError:  # one of Hopper's
        return None
    return None if found.template in HIP.lacks else found


def test_kernels_with_matrix_instructions_are_refused() -> None:
    case = next(c for c in CASES if c.name == "f16 layer")
    call, _ = case.make(Memory(), np.random.default_rng(0))
    target = Target(HIP, Architecture("gfx90a", 0, 32, 32, 64 << 10, 64 << 10))
    with pytest.raises(GraphError, match=r"the dialect hip lacks gemm\.cu\.in"):
        emit_kernel(call, find(call, target.architecture, case.tiles[0]), target)
    assert HIP.lacks < {v.template for v in VARIANTS}


@pytest.mark.compiler
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs the ziglang wheel")
@pytest.mark.parametrize(
    ("gpu", "some"),
    [("gfx90a", slice(0, None, 2)), ("gfx1100", slice(1, None, 2))]
    + [pytest.param(gpu, slice(None), marks=pytest.mark.slow) for gpu in GPUS],
)
def test_kernels_compile_for_amd(gpu: str, some: slice, tmp_path: Path) -> None:
    """Default tests compile half of the kernels for either kind of wave."""
    found, called = kernels(gpu), set[str]()
    assert {key.split()[0] for key in found} == PLAIN
    for number, source in enumerate(list(found.values())[some]):
        (tmp_path / f"{number}.hip").write_text(source.text)
        compiler = (zig("x86_64-linux-gnu")[0], "clang", f"--offload-arch={gpu}", *FLAGS)
        command = (*compiler, f"{number}.hip", "-o", f"{number}.s")
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert not done.returncode, f"{source.symbol}\n{done.stderr[:2000]}"
        text = (tmp_path / f"{number}.s").read_text()
        assert f".amdhsa_kernel {source.symbol}" in text
        facts = dict(re.findall(r"^ +\.(\w+): +(\d+)$", text, re.MULTILINE))
        assert (facts["vgpr_spill_count"], facts["private_segment_fixed_size"]) == ("0", "0")
        assert int(facts["max_flat_workgroup_size"]) == source.threads
        called.update(re.findall(r"\b(\w+)@(?:gotpcrel|rel)", text))
    assert called <= OUTSIDE and (called or some.step)
