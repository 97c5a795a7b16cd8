"""From shape and structure to a tiling, with reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest
from processors import flags_of

from tracea_graph.errors import UsageError
from tracea_graph.hardware import CpuProfile
from tracea_graph.kernels.cpu.architectures import ARCHITECTURES as PROCESSORS
from tracea_graph.kernels.cpu.architectures import architecture_of
from tracea_graph.kernels.gpu.heroes import HEROES
from tracea_graph.policy import (
    BlockSparse,
    Dense,
    LowRank,
    OperatorTopology,
    Windowed,
    decide_topology,
)
from tracea_graph.policy.topology import Kind, modelled_us
from tracea_graph.ttg.orders import ORDERS

ARCHITECTURES = {**PROCESSORS, **HEROES}
ZEN4 = ARCHITECTURES["zen4"]


def gemm(m: int, kind: Kind = Dense(), n: int = 768, k: int = 768) -> OperatorTopology:  # noqa: B008
    return OperatorTopology("gemm", m, n, k, kind)


@pytest.mark.parametrize(
    ("topology", "tiling", "reason"),
    [
        (gemm(128), "grid", "128x768 results, all of them computed"),
        (gemm(1), "stream", "1 rows: time goes into reading the 768x768 operand once"),
        (gemm(128, LowRank(64)), "two-products", "through rank 64 take 17%"),
        (gemm(128, LowRank(700)), "grid", "rank 700 is too high"),
        (gemm(128, BlockSparse(32, 32, 0.2)), "map", "only 20% of the 32x32 blocks"),
        (gemm(128, BlockSparse(32, 32, 0.9)), "grid", "90% of the blocks are stored"),
        (OperatorTopology("attention", 4096, 4096, 64, Windowed(128)), "band", "sees 257 of 4096"),
        (OperatorTopology("attention", 128, 128, 64, Windowed(128)), "grid", "hides hardly any"),
    ],
)
def test_structure_decides_the_tiling(
    topology: OperatorTopology, tiling: str, reason: str
) -> None:
    decision = decide_topology(topology, ZEN4)
    assert decision.tiling == tiling
    assert reason in decision.reasons[0]
    assert decision.order in ORDERS and len(decision.reasons) == 4


def test_the_order_follows_what_fits() -> None:
    assert decide_topology(gemm(512, k=256, n=256), ZEN4).order == "row-major"
    assert decide_topology(gemm(64, k=768, n=8192), ZEN4).order == "column-major"
    assert decide_topology(gemm(4096, k=4096, n=4096), ZEN4).order == "z-order"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_heroes_are_legal_and_go_first(name: str) -> None:
    on = ARCHITECTURES[name]
    for m, hero in ((1024, "square"), (16, "flat")):
        decision = decide_topology(gemm(m, n=1024, k=1024), on, "f32" if m == 16 else "bf16")
        heroes = list(decision.space.heroes())
        assert len(heroes) == len(on.heroes[hero]), (name, hero)
        assert decision.configs[: len(heroes)] == tuple(heroes)
        assert len(decision.configs) == 16
        assert decision.space.size > sum(1 for _ in decision.space.legal()) > 16


def test_blocks_and_tiles_nest() -> None:
    configs = decide_topology(gemm(128, BlockSparse(128, 48, 0.1)), ZEN4, limit=500).configs
    assert {c["tile_n"] for c in configs} == {16, 48}


def test_modelled_time_prefers_tiles_that_fill_the_units() -> None:
    space = decide_topology(gemm(512), ZEN4).space
    bare = replace(space, seeds=())
    best = bare.ranked(modelled_us(gemm(512), ZEN4))
    first, last = best[0], best[-1]
    assert first["tile_m"] * first["tile_n"] >= 8 * ZEN4.lanes
    assert last["tile_m"] == 1


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (("gemm", 0, 1, 1, Dense()), "sizes above 0"),
        (("gemm", 8, 8, 8, LowRank(9)), "rank 9 is not between 1 and 8"),
        (("gemm", 8, 8, 8, BlockSparse(4, 4, 1.5)), "density 1.5"),
        (("attention", 8, 8, 8, Windowed(0)), "a window of 0 contains no columns"),
    ],
)
def test_impossible_topologies_say_why(
    topology: tuple[str, int, int, int, Kind], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        OperatorTopology(*topology)
    with pytest.raises(UsageError, match="unknown dtype 'f64'"):
        decide_topology(gemm(8), ZEN4, "f64")


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
        ("Apple M2", ("scalar",), (128, 4096, 0), "apple-m"),
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
