"""Connect, schedule, plan memory: levels, groups and arenas that follow from shapes alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ttg.models import blur, gemm, named, rows

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.ttg import MemoryLevel, RegionModel, TileGraph, make_plan, row_blocks
from tracea_graph.ttg.arena import Life, lay_out

LEVELS = (MemoryLevel("L1", 32e3), MemoryLevel("L2", 1e6), MemoryLevel("L3", 32e6))


def copy(m: int, n: int, read: str, write: str) -> RegionModel:
    """An elementwise operator."""
    around = blur(m, n, read, write)
    like = around.writes[0]
    return replace(around, name=f"copy{write}", reads=(replace(like, value=read),))


def mlp(rows_: int, width: int, inner: int) -> TileGraph:
    first = gemm(rows_, inner, width, "XWH")
    second = gemm(rows_, width, inner, "HVY")
    return named([first, second])


def test_an_elementwise_consumer_takes_its_operand_in_registers() -> None:
    graph = named([gemm(64, 32, 16), copy(64, 32, "C", "y")])
    plan = graph.plan({}, LEVELS)
    assert plan.level("C", "n1") == "registers"
    assert [g.regions for g in plan.groups] == [("n0", "n1")] and plan.arena.bytes == 0
    with pytest.raises(GraphError, match="no region hands 'A' to 'n0'"):
        plan.level("A", "n0")


def test_a_norm_takes_rows_of_a_product_in_a_cache() -> None:
    graph = named([gemm(512, 384, 384), rows(512, 384, "C", "y")])
    (group,) = graph.plan({}, LEVELS).groups
    assert group.level == "L2" and group.footprint <= 1e6
    assert 1 < group.tile[0] < 512


def test_an_mlp_is_joined_only_where_its_weights_allow_it() -> None:
    """Rows of the inner value stay in L2 while both weights do; larger ones stream again and
    again, which costs more than the inner value."""
    small = mlp(4096, 96, 192).plan({}, LEVELS)
    assert len(small.groups) == 1 and small.groups[0].level == "L2"
    large = mlp(512, 384, 1536).plan({}, LEVELS)
    assert len(large.groups) == 2 and large.level("H", "n1") == "L3"
    assert large.arena.bytes == 512 * 1536 * 4


def test_the_decision_depends_on_the_level() -> None:
    roomy = (MemoryLevel("L1", 32e3), MemoryLevel("L2", 64e6), MemoryLevel("L3", 256e6))
    assert len(mlp(2048, 384, 1536).plan({}, roomy).groups) == 1


def test_stencils_become_bands() -> None:
    """Depth first: two stencils over a large image share bands; a band's halo is computed twice,
    so that thin bands are refused."""
    models = [blur(4096, 512, "x", "h"), replace(blur(4096, 512, "h", "y"), name="again")]
    (group,) = named(models).plan({}, LEVELS).groups
    assert group.level == "L1" and group.tile[0] >= 16
    assert min(c.tile[0] for c in row_blocks(models, {}, LEVELS, best=10)) == 16
    roomy = row_blocks(models, {}, LEVELS[1:2], best=1)[0]
    assert roomy.tile[0] > group.tile[0] and roomy.traffic < group.traffic


def test_a_product_streams_columns_past_as_many_rows_as_fit() -> None:
    """512 × 384 by 384 × 1536 in 1 MB: whole weights do not fit, columns of them do; the more
    rows stay, the fewer times the weights pass by.  Twice the width halves the rows."""
    level = LEVELS[1]
    best = row_blocks([gemm(512, 1536, 384)], {}, (level,))[0]
    wide = row_blocks([gemm(512, 3072, 768)], {}, (level,))[0]
    assert best.tile[:2] == (256, 64) and wide.tile[:2] == (128, 64)
    # x and the result once; the weights once for each of two blocks
    assert best.traffic == 4 * (512 * 384 + 2 * 384 * 1536 + 512 * 1536)


def test_row_blocks_are_rejected_by_footprint_and_ranked_by_traffic() -> None:
    models = [gemm(512, 384, 384), rows(512, 384, "C", "y")]
    found = row_blocks(models, {}, LEVELS)
    by_level = {level.name: [c for c in found if c.level == level.name] for level in LEVELS}
    assert not by_level["L1"] and 0 < len(by_level["L2"]) <= 3
    for level in LEVELS:
        moved = [c.traffic for c in by_level[level.name]]
        assert moved == sorted(moved)
        assert all(c.footprint <= level.bytes for c in by_level[level.name])


def test_a_group_is_convex() -> None:
    """``y = f(a) + g(a)``, where f is opaque: the sum cannot join a's region around it."""
    nodes = [Node("Relu", ("x",), ("a",)), Node("Odd", ("a",), ("b",)),
             Node("Add", ("a", "b"), ("y",))]  # fmt: skip
    specs = dict.fromkeys("xaby", TensorSpec(DType.F32, (64, 32)))
    graph = TileGraph.of_nodes(nodes, ["x"], ["y"], {}, specs)
    one = copy(64, 32, "x", "a")
    add = copy(64, 32, "a", "y")
    add = replace(add, reads=(*add.reads, replace(add.reads[0], value="b")))
    graph.describe = lambda r, g: {"Relu": one, "Add": add}.get(r.op)
    assert len(graph.plan({}, LEVELS).groups) == 3
    first, odd, last = graph.regions()
    assert graph.convex([first, last]) == [first, odd, last]
    assert graph.convex([odd, first]) == [first, odd]


def test_symbols_change_the_plan() -> None:
    graph = named([gemm("s", 384, 384), replace(gemm("s", 384, 384, "CVY"), name="next")])
    sizes = [make_plan(graph, {"s": s}, LEVELS).arena.bytes for s in (64, 128)]
    assert sizes == [64 * 384 * 4, 128 * 384 * 4]
    with pytest.raises(GraphError, match="no binding for 's'"):
        make_plan(graph, {}, LEVELS)


@pytest.mark.parametrize("seed", range(20))
def test_values_alive_together_lie_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lives = []
    for i in range(30):
        first, length = rng.integers(0, 20), rng.integers(0, 8)
        lives.append(Life(f"v{i}", int(rng.integers(0, 100)), int(first), int(first + length)))
    lives.sort(key=lambda life: life.first)
    arena = lay_out(lives)
    for i, a in enumerate(lives):
        for j, b in enumerate(lives[:i]):
            apart = arena.offsets[i] >= arena.offsets[j] + b.bytes
            apart = apart or arena.offsets[j] >= arena.offsets[i] + a.bytes
            assert apart or not a.meets(b) or not a.bytes or not b.bytes
    assert arena.least <= arena.bytes <= sum(life.bytes for life in lives)
    for a, at in zip(lives, arena.offsets, strict=True):  # as low as it can be
        assert at == 0 or any(
            b.meets(a) and start + b.bytes == at
            for b, start in zip(lives, arena.offsets, strict=True)
        )
