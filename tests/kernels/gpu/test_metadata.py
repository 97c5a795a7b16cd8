"""What is known about GPU kernels: from the table of variants, and from cubins."""

from __future__ import annotations

import pytest

from tracea_graph.commands.build_kernel_library import list_kernels, show_kernel
from tracea_graph.errors import GraphError
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import emit_kernel
from tracea_graph.kernels.gpu.kernel_facts import typical_call
from tracea_graph.kernels.gpu.variants import VARIANTS

HOPPER = "cuda:sm_90"


def test_every_variant_of_an_architecture_is_listed_once() -> None:
    found = list_kernels(HOPPER)
    assert len({one.name for one in found}) == len(found) == len(VARIANTS)
    older = list_kernels("cuda:sm_75")
    assert 0 < len(older) < len(found)
    assert not any("wgmma" in one.features for one in older)


@pytest.mark.parametrize("op", ["gemm", "conv", "attention", "norm", "softmax", "reduce", "pool"])
def test_variants_compute_the_typical_call_of_their_op(op: str) -> None:
    target = Target(CUDA, ARCHITECTURES["sm_90a"])
    for variant in (v for v in VARIANTS if v.op == op):
        call = typical_call(op, variant.dtype)
        assert call is not None
        try:
            source = emit_kernel(call, variant, target)
        except GraphError as error:
            pytest.fail(f"{variant}: {error}")
        assert source.threads == variant.threads


@pytest.mark.compiler
def test_resources_are_read_from_the_cubin() -> None:
    name = "f16_gemm_128x128x64x6x2__sm_90a"
    found = show_kernel(name, HOPPER)
    assert found.resources is not None
    assert found.launch.threads == 384
    assert found.launch.shared_bytes > 6 * 2 * 128 * 64 * 2
    assert 64 < found.resources.registers <= 168
    assert (found.resources.stack_bytes, found.resources.spills) == (0, 0)
    assert found.fragments["stages"] == 6
