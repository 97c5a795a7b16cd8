"""Connect, schedule, plan memory: levels, row tiles and arenas that follow from shapes alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.ttg.models import blur, gemm, named, rows
from tracea_graph.errors import GraphError
from tracea_graph.ttg import MemoryLevel, TileGraph, make_execution_plan
from tracea_graph.ttg.arena_allocation import Lifetime, live_range, place_values, placement_order

LEVELS = (MemoryLevel("L1", 32e3), MemoryLevel("L2", 1e6), MemoryLevel("L3", 32e6))


def mlp(rows_: int, width: int, inner: int) -> TileGraph:
    first = gemm(rows_, inner, width, "XWH")
    second = gemm(rows_, width, inner, "HVY")
    return named([first, second])


def test_a_value_is_taken_from_the_innermost_level_that_keeps_it() -> None:
    for count, level in ((32, "L1"), (512, "L2"), (8192, "L3"), (1 << 17, "DRAM")):
        graph = named([gemm(count, 64, 16), gemm(count, 1 << 20, 64, "CVY")])
        plan = make_execution_plan(graph, {}, LEVELS, lambda region: None)
        assert plan.level("C", "n1") == level and not plan.row_tilings
        (link,) = plan.links
        assert link.bytes == 4 * count * 64 == plan.arena.bytes
        with pytest.raises(GraphError, match="no region passes 'A' to 'n0'"):
            plan.level("A", "n0")


def test_a_norm_takes_rows_of_a_product_near_the_core() -> None:
    """Whole, the product would have left; what is there meanwhile is one row tile."""
    graph = named([gemm(4096, 384, 384), rows(4096, 384, "C", "y")])
    plan = make_execution_plan(graph, {}, LEVELS)
    (tiling,) = plan.row_tilings
    assert tiling.regions == ("n0", "n1") and plan.level("C", "n1") == "L2"
    assert plan.arena.bytes == tiling.held["C"] == 4 * 384 * tiling.rows < 4 * 384 * 4096
    assert plan.describe() == (
        f"values passed between steps: 1, 1 in L2; 2 regions in {tiling.iterations} row tiles "
        f"of {tiling.rows} rows; "
        f"arena {plan.arena.bytes / 1e6:.3g} MB"
    )


def test_rows_of_an_mlp_stay_only_where_its_weights_allow_it() -> None:
    """Larger weights stream again and again, which costs more than the inner value."""
    assert make_execution_plan(mlp(16384, 96, 192), {}, LEVELS).row_tilings
    large = make_execution_plan(mlp(512, 768, 3072), {}, LEVELS)
    assert not large.row_tilings and large.level("H", "n1") == "L3"
    assert large.arena.bytes == 512 * 3072 * 4


def test_the_decision_depends_on_the_level() -> None:
    roomy = (MemoryLevel("L1", 32e3), MemoryLevel("L2", 64e6), MemoryLevel("L3", 256e6))
    plan = make_execution_plan(mlp(16384, 96, 192), {}, roomy)
    assert not plan.row_tilings and plan.level("H", "n1") == "L2"


def test_stencils_become_bands() -> None:
    """Depth first: two stencils over a large image hand three rows more than they make on."""
    models = [blur(4096, 512, "x", "h"), replace(blur(4096, 512, "h", "y"), name="again")]
    plan = make_execution_plan(named(models), {}, LEVELS)
    (tiling,) = plan.row_tilings
    assert tiling.regions == ("n0", "n1") and plan.level("h", "n1") == "L2"
    assert plan.arena.bytes == 4 * 512 * (tiling.rows + 2)


def test_symbols_change_the_plan() -> None:
    graph = named([gemm("s", 384, 384), replace(gemm("s", 384, 384, "CVY"), name="next")])
    sizes = [make_execution_plan(graph, {"s": s}, LEVELS).arena.bytes for s in (64, 128)]
    assert sizes == [64 * 384 * 4, 128 * 384 * 4]
    with pytest.raises(GraphError, match="no binding for 's'"):
        make_execution_plan(graph, {}, LEVELS)


def test_values_that_cross_a_loop_border_live_as_long_as_the_loop() -> None:
    iterations = [(2, 4), (6, 8)]
    assert live_range([3, 4], iterations) == (3, 4)
    assert live_range([3, 4], iterations, carried=True) == (2, 4)
    assert live_range([0, 3], iterations) == (0, 4)
    assert live_range([3, 7], iterations) == (2, 8)
    assert live_range([1, 5], iterations) == (1, 5)


def assert_apart(lives: list[Lifetime]) -> None:
    """No two values that live at the same time overlap, and the arena is nearly full once."""
    arena = place_values([lives[i] for i in placement_order(lives)])
    placed = list(zip(arena.lives, arena.offsets, strict=True))
    for i, (a, at) in enumerate(placed):
        for b, start in placed[:i]:
            assert not a.meets(b) or at >= start + b.bytes or start >= at + a.bytes
    assert arena.least <= arena.bytes <= 1.25 * arena.least


@pytest.mark.parametrize("seed", range(40))
def test_plans_of_random_graphs(seed: int) -> None:
    """Every value lives from its maker to its last reader; the arena holds what lives at once."""
    rng = np.random.default_rng(seed)
    models, made = [], ["x0"]
    for i in range(30):
        near = made[-6:]
        reads = [str(v) for v in rng.choice(near, min(len(near), int(rng.integers(1, 4))), False)]
        like = rows(8, 1, "x0", f"x{i + 1}")
        models.append(replace(like, name=f"r{i}", reads=tuple(
            replace(like.writes[0], value=v) for v in reads)))  # fmt: skip
        made.append(f"x{i + 1}")
    graph = named(models)
    sizes = {v: int(2 ** rng.uniform(0, 14)) * 16 for v in made}
    graph.specs = {v: replace(graph.spec(v), shape=(sizes[v], "s")) for v in graph.specs}
    for s in (1, 3):
        arena = make_execution_plan(graph, {"s": s}, LEVELS, lambda region: None).arena
        order = [r.id for r in graph.regions()]
        for life in arena.lives:
            readers = [order.index(u.region.id) for u in graph.uses(life.value)]
            maker = graph.producer(life.value)
            assert maker and (life.first, life.last) == (order.index(maker.id), max(readers))
            assert life.bytes == 4 * sizes[life.value] * s
        assert_apart(list(arena.lives))
