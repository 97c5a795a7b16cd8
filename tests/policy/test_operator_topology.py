"""From sizes and structure to a tiling and a variant, with reasons."""

from __future__ import annotations

import pytest

from tests.processors import flags_of
from tracea_graph.errors import UsageError
from tracea_graph.hardware import CpuProfile
from tracea_graph.kernels.cpu.backend import CPU
from tracea_graph.kernels.cpu.processor_families import architecture_of, pipes_of
from tracea_graph.kernels.cpu.schedule import GEMM_SCHEDULES
from tracea_graph.policy import (
    BlockSparse,
    Channelwise,
    Dense,
    LowRank,
    OperatorTopology,
    Pointwise,
    PolicyEngine,
    Rowwise,
    SearchSpace,
    Transformed,
    UnstructuredSparse,
    Windowed,
)
from tracea_graph.policy.operator_topology import Kind

ENGINE = PolicyEngine(CPU.catalog, ("scalar", "avx2", "avx512"))


def gemm(m: int, kind: Kind = Dense(), n: int = 768, k: int = 768) -> OperatorTopology:  # noqa: B008
    return OperatorTopology("gemm", m, n, k, kind)


@pytest.mark.parametrize(
    ("topology", "tiling", "reason"),
    [
        (gemm(128), "grid", "dense: 128x768 results in tiles"),
        (gemm(1), "stream", "1 row: bound by reading the 768x768 operand"),
        (gemm(128, LowRank(64)), "two-products", "64: both factors take 17% of the dense FLOPs"),
        (
            OperatorTopology("gemm_block_sparse", 128, 768, 768, BlockSparse(32, 16, 0.2)), "map",
            "20% of 32x16 blocks",
        ),
        (
            OperatorTopology("gemm_bitmap", 1, 768, 768, UnstructuredSparse(0.3)), "bitmap",
            "30% of the elements",
        ),
        (OperatorTopology("attention", 4096, 4096, 64, Windowed(128)), "band", "257 of 4096"),
        (OperatorTopology("winograd", 3136, 64, 576, Transformed(4)), "transformed", "4x4"),
        (
            OperatorTopology("depthwise", 3136, 1, 9, Channelwise(), batch=96), "grid",
            "a separate filter for each of 96 channels",
        ),
        (OperatorTopology("norm", 128, 768, 1, Rowwise()), "rows", "128 rows of 768 numbers"),
        (OperatorTopology("copy", 8, 9, 1, Pointwise()), "elements", "72 numbers"),
    ],
)  # fmt: skip
def test_structure_decides_the_tiling(
    topology: OperatorTopology, tiling: str, reason: str
) -> None:
    decision = ENGINE.decide(topology)
    assert decision.tiling == tiling
    assert reason in decision.reasons[0]
    assert decision.variant_id.endswith("__avx512")
    assert any(decision.variant_id in reason for reason in decision.reasons)
    assert decision is ENGINE.decide(topology)


def test_work_that_structure_saves_is_not_counted() -> None:
    dense = gemm(128)
    assert gemm(128, LowRank(64)).flops < 0.2 * dense.flops
    assert gemm(128, UnstructuredSparse(0.25)).flops == 0.25 * dense.flops
    window = OperatorTopology("attention", 4096, 4096, 64, Windowed(8))
    assert window.flops == 2.0 * 4096 * 17 * 64
    assert gemm(128, BlockSparse(32, 16, 0.1)).moved < dense.moved


def test_a_product_gets_a_schedule_per_range_of_rows() -> None:
    for m in (1, 4, 5, 128, 4096):
        decision = ENGINE.decide(gemm(m))
        assert decision.schedules == GEMM_SCHEDULES
        own = next(s for s in GEMM_SCHEDULES if m <= s.max_rows)
        assert decision.schedule == own and own.text in decision.reason
    limits = [s.max_rows for s in GEMM_SCHEDULES]
    assert limits == sorted(limits) and limits[-1] == 2**31 - 1
    conv = ENGINE.decide(OperatorTopology("conv", 3136, 64, 576))
    assert conv.schedules == () and conv.schedule is None
    assert "by the actual sizes" in conv.reasons[-1]


def test_a_space_is_pruned_to_what_is_worth_measuring() -> None:
    space = SearchSpace().axis("a", (8, 9, 10, 11, 12, 50)).seed(a=50)
    pruned = ENGINE.decide(gemm(8)).prune(space, lambda c: float(c["a"]), {"a": 12})
    assert [c["a"] for c in pruned.legal()] == [8, 9, 10, 12, 50]  # near the best, kept, a seed
    assert "modelled time" in pruned.reason({"a": 11})


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (("gemm", 0, 1, 1, Dense()), "sizes above 0"),
        (("gemm", 8, 8, 8, LowRank(9)), "rank 9 is not between 1 and 8"),
        (("gemm", 8, 8, 8, BlockSparse(4, 4, 1.5)), "density 1.5"),
        (("gemm", 8, 8, 8, UnstructuredSparse(-1)), "density -1"),
        (("attention", 8, 8, 8, Windowed(0)), "a window of 0 contains no columns"),
    ],
)
def test_impossible_topologies_say_why(
    topology: tuple[str, int, int, int, Kind], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        OperatorTopology(*topology)


@pytest.mark.parametrize(
    ("model", "levels", "caches", "name"),
    [
        ("AMD EPYC 9R14", ("scalar", "avx2", "avx512"), (32, 1024, 32), "zen4"),
        ("AMD EPYC 9R45", ("scalar", "avx2", "avx512"), (48, 1024, 32), "zen5"),
        ("AMD Ryzen 9 3900X", ("scalar", "avx2"), (32, 512, 16), "zen2"),
        ("AMD Ryzen 9 5950X", ("scalar", "avx2"), (32, 512, 32), "zen3"),
        ("Intel(R) Xeon(R) 8375C", ("scalar", "avx2", "avx512"), (48, 1280, 54), "ice-lake"),
        ("Intel(R) Xeon(R) 8488C", ("scalar", "avx2", "avx512"), (48, 2048, 105),
         "sapphire-rapids"),
        ("Apple M2", ("scalar", "neon"), (128, 4096, 0), "apple-m2"),
        ("Apple M3 Max", ("scalar", "neon"), (128, 4096, 0), "apple-m3"),
        ("Apple M7", ("scalar", "neon"), (192, 8192, 0), "apple-m4"),
        ("arm 0x41 0xd03", ("scalar", "neon"), (32, 512, 0), "cortex-a53"),
        ("arm 0x41 0xd0b", ("scalar", "neon"), (64, 512, 2), "cortex-a76"),
        ("arm 0x41 0xd0c", ("scalar", "neon"), (64, 1024, 32), "neoverse-n1"),
        ("arm 0x41 0xd40", ("scalar", "neon"), (64, 1024, 32), "neoverse-v1"),
        ("arm 0x41 0xd4f", ("scalar", "neon"), (64, 2048, 36), "neoverse-v2"),
        ("arm 0x48 0xd01", ("scalar", "neon"), (64, 512, 32), None),
        ("VIA Nano", ("scalar",), (64, 1024, 0), None),
    ],
)  # fmt: skip
def test_processors_are_recognised(
    model: str, levels: tuple[str, ...], caches: tuple[int, int, int], name: str | None
) -> None:
    l1, l2, l3 = caches
    found = architecture_of(
        CpuProfile(model, flags_of(*levels), 8, 8, l1 << 10, l2 << 10, l3 << 20)
    )
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("model", "levels", "width", "pipes"),
    [
        ("AMD EPYC 9R14", ("scalar", "avx2", "avx512"), 16, 1),
        ("AMD EPYC 9R14", ("scalar", "avx2", "avx512"), 8, 2),
        ("arm 0x41 0xd0c", ("scalar", "neon"), 4, 2),
        ("arm 0x41 0xd40", ("scalar", "neon"), 4, 4),
        ("arm 0x41 0xd03", ("scalar", "neon"), 4, 1),
        ("VIA Nano", ("scalar",), 1, 2),
    ],
)
def test_cores_multiply_as_many_vectors_as_their_families_do(
    model: str, levels: tuple[str, ...], width: int, pipes: int
) -> None:
    cpu = CpuProfile(model, flags_of(*levels), 8, 8, 32 << 10, 1 << 20, 32 << 20)
    assert pipes_of(cpu, width) == pipes
