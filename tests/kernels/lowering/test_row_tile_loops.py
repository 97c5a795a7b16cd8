"""Row tiles: fused over tiles of rows, programs compute exactly what they compute untiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, normal, optimized
from tests.interpreter import check_lifetimes, run
from tracea_graph.ir import evaluate
from tracea_graph.kernels.cpu.call_stats import call_stats
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.kernels.cpu.lowering.row_tile_loops import _LoopBuilder
from tracea_graph.kernels.cpu.lowering.rows_read_by_calls import NotTileable
from tracea_graph.kernels.cpu.plan_encoding import encode
from tracea_graph.kernels.program import Program
from tracea_graph.ops.fused_region import RowTile
from tracea_graph.ttg import Region, TileGraph


def conv(net: Net, x: str, o: int, i: int, k: int = 3, **attrs: Any) -> str:
    groups = attrs.get("group", 1)
    pads = attrs.pop("pads", [k // 2] * 4)
    weights = net.weight(o, i // groups, k, k), net.weight(o)
    return net("Conv", x, *weights, pads=pads, kernel_shape=[k, k], **attrs)


def bottleneck(height: int, stride: int = 1, k: int = 3) -> tuple[Net, TileGraph]:
    """1×1, depthwise, 1×1: the middle one reads rows of the previous iteration."""
    net = Net()
    x = net("Relu", conv(net, net.input("x", "n", 16, height, 7), 16, 16, 1))
    wide = net("Relu", conv(net, x, 32, 16, 1))
    middle = net("Relu", conv(net, wide, 32, 32, k, group=32, strides=[stride, stride]))
    return net, net.graph(conv(net, middle, 24, 32, 1))


def perceptron() -> tuple[Net, TileGraph]:
    net = Net()
    x = net.input("x", "batch", "rows", 16)
    hidden = net("Relu", net("Add", net("MatMul", x, net.weight(16, 48)), net.weight(48)))
    out = net("Add", net("Add", net("MatMul", hidden, net.weight(48, 16)), net.weight(16)), x)
    scale = net.weight(16), net.weight(16)
    return net, net.graph(net("LayerNormalization", out, *scale, axis=-1))


def program(graph: TileGraph, *row_tiles: RowTile) -> tuple[Region, Program]:
    optimized(graph)
    (region,) = graph.regions()
    return region, lower(
        graph, replace(region, params=replace(region.params, row_tiles=row_tiles))
    )


def outputs(graph: TileGraph, region: Region, made: Program, x: Any) -> list[Any]:
    values = {n: w.array() for n, w in graph.weights.items()} | {"x": x}
    check_lifetimes(made)
    return run(made, [values[v] for v in region.operands])


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 20])
@pytest.mark.parametrize(("stride", "k"), [(1, 3), (2, 3), (1, 5), (2, 5), (3, 3)])
def test_lines_of_images_are_tiled(stride: int, k: int, rows: int) -> None:
    _, graph = bottleneck(17, stride, k)
    region, plain = program(graph)
    try:
        _, row_tiled = program(graph, RowTile(1, 3, rows))
    except NotTileable as error:
        assert "fewer rows than its windows share" in str(error) and rows * stride < k
        return
    x = normal(2, 16, 17, 7)
    for want, got in zip(*(outputs(graph, region, p, x) for p in (plain, row_tiled)), strict=True):
        assert np.array_equal(want, got)
    (loop,) = row_tiled.loops
    assert loop.step == rows
    iterations = -(-((17 - 1) // stride + 1) // rows)
    twice = (iterations - 1) * max(0, k - stride)  # rows that two iterations read
    assert loop.parallel == (twice <= 17 / 8), "few rows are made twice"


@pytest.mark.parametrize(("stride", "k", "rows"), [(1, 3, 16), (1, 5, 40), (2, 5, 40), (1, 3, 17)])
def test_iterations_in_the_middle_are_alike(
    stride: int, k: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop over many lines is the one that a simulation of all its iterations gives."""
    simulated, found = list[int](), []
    one = _LoopBuilder._simulate_iteration

    def counted(self: _LoopBuilder, *args: Any) -> dict[int, int]:
        simulated[-1] += 1
        return one(self, *args)

    monkeypatch.setattr(_LoopBuilder, "_simulate_iteration", counted)
    for _ in range(2):
        simulated.append(0)
        _, graph = bottleneck(4001, stride, k)
        _, made = program(graph, RowTile(1, 3, rows))
        assert [loop.parallel for loop in made.loops] == [True]
        found.append(encode(made))
        monkeypatch.setattr(
            _LoopBuilder, "_distinct_starts", lambda self, step: list(range(0, self.extent, step))
        )
    assert found[0] == found[1] and simulated[0] < simulated[1]


def test_values_between_calls_shrink_to_one_tile() -> None:
    _, graph = bottleneck(48)
    sizes, products = [], []
    for row_tiles in ((), (RowTile(1, 3, 4),)):
        _, made = program(graph, *row_tiles)
        (batch,) = made.symbols
        sizes.append(sum(evaluate(t.count, {batch: 1}) for t in made.temps))
        products.append(sum(c.products for c in call_stats(encode(made), [1])))
    assert products[0] == products[1], "iterations compute no row twice"
    line = 2 * 16 * 7  # of what lies between the three; lines are padded when they are read
    assert sizes[0] - sizes[1] == line * (50 - 6) + line * (48 - 4)


@pytest.mark.parametrize("rows", [1, 4, 7, 64])
def test_rows_of_a_perceptron_are_tiled(rows: int) -> None:
    """A norm in place at the end; the batch and the rows are symbols."""
    _, graph = perceptron()
    region, plain = program(graph)
    steps = len(region.params.steps)
    _, row_tiled = program(graph, RowTile(0, steps - 1, rows))
    x = normal(2, 9, 16)
    for want, got in zip(*(outputs(graph, region, p, x) for p in (plain, row_tiled)), strict=True):
        assert np.allclose(want, got, rtol=0, atol=1e-12)  # NumPy's sums depend on the row count
    assert any(t.count == rows * 48 for t in row_tiled.temps)
    assert all(loop.parallel for loop in row_tiled.loops)


def test_two_loops_and_winograd() -> None:
    net = Net()
    y = net.input("x", "n", 16, 16, 12)
    for _ in range(4):
        y = net("Relu", conv(net, y, 16, 16))
    graph = net.graph(y)
    region, plain = program(graph)
    assert any(c.name == "winograd" for c in plain.calls)
    _, row_tiled = program(graph, RowTile(0, 1, 8), RowTile(2, 3, 12))
    assert len(row_tiled.loops) == 2
    x = normal(1, 16, 16, 12)
    for want, got in zip(*(outputs(graph, region, p, x) for p in (plain, row_tiled)), strict=True):
        assert np.allclose(want, got, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("count", "rows"), [(2, 64), (2, 80), (3, 128)])
def test_parallel_iterations_make_whole_winograd_tiles(count: int, rows: int) -> None:
    """Rows that are made together begin before those that an iteration reads."""
    net = Net()
    y = net.input("x", "n", 16, 256, 12)
    for _ in range(count):
        y = net("Relu", conv(net, y, 16, 16))
    graph = net.graph(y)
    region, plain = program(graph)
    assert sum(c.name == "winograd" for c in plain.calls) == count
    _, row_tiled = program(graph, RowTile(0, count - 1, rows))
    assert [loop.parallel for loop in row_tiled.loops] == [True]
    x = normal(1, 16, 256, 12)
    for want, got in zip(*(outputs(graph, region, p, x) for p in (plain, row_tiled)), strict=True):
        assert np.allclose(want, got, rtol=0, atol=1e-12)


def test_what_cannot_be_cut_is_said() -> None:
    _, graph = bottleneck(17)
    with pytest.raises(NotTileable, match="there is only one call"):
        program(graph, RowTile(3, 3, 4))
    net = Net()
    x = net("Relu", conv(net, net.input("x", "n", 16, "h", "w"), 16, 16, 1))
    unknown = net.graph(net("Relu", conv(net, x, 16, 16, 1)))
    with pytest.raises(NotTileable, match="sizes of an image are not known"):
        program(unknown, RowTile(0, 1, 4))
    net = Net()
    x = net("Relu", conv(net, net.input("x", "n", 16, 8, 8), 16, 16, 1))
    pooled = net("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    other = net.graph(net("Relu", conv(net, pooled, 16, 16, 1)))
    with pytest.raises(NotTileable, match="pool does not work row by row"):
        program(other, RowTile(0, 2, 2))
