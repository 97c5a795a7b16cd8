"""Footprint and traffic against closed forms and a window simulated step by step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.ttg.models import blur, gemm, rows
from tracea_graph.errors import GraphError
from tracea_graph.ttg import (
    AccessMap,
    Axis,
    IterationSpace,
    MemoryLevel,
    RegionModel,
    StagedRegions,
    expand_tiles,
    index_along,
)

M, N, K = 64, 48, 32
TILE = (16, 8, 0)
ONE_TILE = 4 * (16 * K + K * 8 + 16 * 8)


def _gemm(order: str = "row-major") -> StagedRegions:
    return StagedRegions([gemm("m", N, K)], {"m": M}, {"L1": TILE, "L2": TILE}, order)


def test_footprint_is_the_boxes_of_one_tile() -> None:
    assert _gemm().footprint(MemoryLevel("L1", 1e9)) == ONE_TILE
    assert _gemm().footprint(MemoryLevel("DRAM", 1e9)) == 4 * (M * K + K * N + M * N)
    assert _gemm().fits(MemoryLevel("L1", ONE_TILE))
    assert not _gemm().fits(MemoryLevel("L1", ONE_TILE - 1))


def test_one_tile_at_a_time_reloads_what_the_order_does_not_keep() -> None:
    by_row = _gemm().traffic_of(MemoryLevel("L1", ONE_TILE))
    assert by_row == {"A": 4 * M * K, "B": 4 * K * N * (M // 16), "C": 4 * M * N}
    by_column = _gemm("column-major").traffic_of(MemoryLevel("L1", ONE_TILE))
    assert by_column == {"A": 4 * M * K * (N // 8), "B": 4 * K * N, "C": 4 * M * N}


def test_room_for_everything_moves_everything_once() -> None:
    level = MemoryLevel("L1", 1e9)
    assert _gemm().traffic(level) == _gemm().least_traffic == 4 * (M * K + K * N + M * N)


def test_too_small_a_level_keeps_nothing() -> None:
    steps = (M // 16) * (N // 8)
    assert _gemm().traffic(MemoryLevel("L1", ONE_TILE - 1)) == steps * ONE_TILE


def test_curves_beat_rows_in_a_middling_cache() -> None:
    def moved(order: str) -> float:
        staging = StagedRegions([gemm(512, 512, 64)], {}, {"L2": (16, 16, 0)}, order)
        return staging.traffic(MemoryLevel("L2", 80e3))

    assert moved("hilbert") < 0.6 * moved("row-major")
    assert moved("z-order") < 0.7 * moved("row-major")


def _windows(staging: StagedRegions, level: MemoryLevel) -> np.ndarray:
    """Mean bytes of distinct boxes for every window length, counted one by one."""
    (model,) = staging.models
    tiles = staging._walk(level).tiles
    starts, stops = tiles.ranges()
    steps: list[dict[tuple[object, ...], float]] = [{} for _ in starts]
    for access in (*model.bind(staging.bindings).reads, *model.bind(staging.bindings).writes):
        lo, hi = access.box(starts, stops)
        for t, (a, b) in enumerate(zip(lo.tolist(), hi.tolist(), strict=True)):
            steps[t][access.value, *a, *b] = float(np.prod(np.subtract(b, a))) * 4
    means = []
    for w in range(1, len(steps) + 1):
        sums = [
            sum({k: v for step in steps[i : i + w] for k, v in step.items()}.values())
            for i in range(len(steps) - w + 1)
        ]
        means.append(np.mean(sums))
    return np.array(means)


@pytest.mark.parametrize("order", ["row-major", "hilbert", "wavefront"])
def test_the_working_set_is_the_mean_over_all_windows(order: str) -> None:
    staging = StagedRegions([gemm(20, 15, 9)], {}, {"L1": (4, 5, 4)}, order)
    level = MemoryLevel("L1", 1e9)
    found = staging._walk(level).working_set
    np.testing.assert_allclose(found, _windows(staging, level), rtol=1e-12)
    assert (np.diff(found) >= -1e-9).all()


def test_traffic_never_rises_with_capacity() -> None:
    staging = StagedRegions([gemm(96, 96, 40)], {}, {"L1": (8, 16, 10)}, "z-order")
    sizes = np.geomspace(100, 1e6, 40)
    moved = [staging.traffic(MemoryLevel("L1", size)) for size in sizes]
    assert all(a >= b for a, b in itertools.pairwise(moved))
    assert moved[-1] == staging.least_traffic < moved[0]


def test_an_evicted_sum_is_read_back() -> None:
    """Slices of k in the outer loop: with no room to stay, C goes out and comes back."""
    tiles = expand_tiles(gemm(8, 8, 8).bind({}), (8, 4, 4))
    order = np.array([0, 2, 1, 3], np.int32)
    by_slice = type(tiles)(tiles.table, order, tiles.grid, tiles.tile, model=tiles.model)
    staging = StagedRegions([gemm(8, 8, 8)], {}, {"L1": by_slice})
    one = staging.footprint(MemoryLevel("L1", 0))
    assert staging.traffic_of(MemoryLevel("L1", one))["C"] == 3 * 4 * 64
    kept = StagedRegions([gemm(8, 8, 8)], {}, {"L1": tiles})
    assert kept.traffic_of(MemoryLevel("L1", one))["C"] == 4 * 64


def test_a_fused_pair_keeps_the_intermediate_inside() -> None:
    pair = [gemm(M, N, K), rows(M, N, "C", "y")]
    level = MemoryLevel("L2", 1e9)
    fused = StagedRegions(pair, {}, {"L2": (16, 0, 0)})
    assert fused.traffic(level) == 4 * (M * K + K * N + M * N)
    assert fused.footprint(level) == 4 * (16 * K + K * N + 2 * 16 * N)
    apart = sum(StagedRegions([model], {}, {}).traffic(level) for model in pair)
    assert apart - fused.traffic(level) == 2 * 4 * M * N
    assert fused.intensity(level) == fused.flops(level) / fused.traffic(level)


def test_recomputed_producers_are_counted() -> None:
    def flops(models: list[RegionModel], tile: tuple[int, int, int]) -> float:
        return StagedRegions(models, {}, {"L2": tile}).flops(MemoryLevel("L2", 1e9))

    first, second = gemm(32, 24, 16), gemm(32, 8, 24, "CDE")
    once = first.flops({}) + second.flops({})
    assert flops([first, second], (8, 0, 0)) == once
    assert flops([first, second], (8, 4, 0)) == once + first.flops({})
    halo = [blur(32, 8, "x", "C"), blur(32, 8, "C", "y")]
    assert flops(halo, (8, 0, 0)) == sum(m.flops({}) for m in halo) + 3 * 6 * 8


def test_flops_of_split_sums_add_up() -> None:
    for tile in ((0, 0, 0), (3, 5, 2), (8, 8, 8)):
        staging = StagedRegions([gemm(10, 11, 12)], {}, {"L1": tile})
        assert staging.flops(MemoryLevel("L1", 1)) == 2 * 10 * 11 * 12 + 3 * 10 * 11


def test_skipped_tiles_move_nothing() -> None:
    tiles = expand_tiles(gemm(8, 8, 8).bind({}), (4, 4, 0))
    skip = np.array([[False, True], [True, False]])
    staging = StagedRegions([gemm(8, 8, 8)], {}, {"L1": tiles.skipping(skip)})
    assert staging.traffic_of(MemoryLevel("L1", 1e9)) == {"A": 256, "B": 256, "C": 128}
    nothing = StagedRegions([gemm(8, 8, 8)], {}, {"L1": tiles.skipping(~np.zeros((2, 2), bool))})
    assert nothing.traffic(MemoryLevel("L1", 1e9)) == 0


def test_the_roofline_is_the_longer_of_the_two() -> None:
    level = MemoryLevel("DRAM", 1e9, bandwidth=1e9)
    staging = _gemm()
    assert staging.roofline_seconds(level, 1e3) == staging.flops(level) / 1e3
    assert staging.roofline_seconds(level, 1e15) == staging.traffic(level) / 1e9


def test_a_tensor_read_twice_in_the_same_tile_moves_once() -> None:
    """``y = softmax(x) + x``: the sum's elements of x lie inside the softmax's rows."""
    maps = [AccessMap(v, (index_along("m"), index_along("n")), (16, 8)) for v in ("p", "x", "y")]
    space = IterationSpace((Axis("m", 16), Axis("n", 8)))
    add = RegionModel("add", space, (maps[0], maps[1]), (maps[2],), (), ("m",), ("n",))
    staging = StagedRegions([rows(16, 8, "x", "p"), add], {}, {"L1": (4, 8, 0)})
    assert staging.traffic_of(MemoryLevel("L1", 1)) == {"y": 4 * 16 * 8, "x": 4 * 16 * 8}


def test_a_set_must_hang_together() -> None:
    with pytest.raises(GraphError, match="'gemmABC' passes no value to those after it"):
        StagedRegions([gemm(4, 4, 4), gemm(4, 4, 4, "DEF")], {}, {})
    with pytest.raises(GraphError, match="at least one region"):
        StagedRegions([], {}, {})
    with pytest.raises(GraphError, match="no binding for 'm'"):
        StagedRegions([gemm("m", 4, 4)], {}, {})
