"""Loops over row tiles: serial or parallel iterations give the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, normal, optimized
from tests.interpreter import run
from tests.runtime.answers import Answers
from tests.runtime.support import Case
from tracea_graph.config import TOLERANCE
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.ops.fused_region import RowTile

ROW_TILES = {
    "at_once": (),
    "parallel": (RowTile(1, 3, 8),),
    "parallel_twice": (RowTile(0, 1, 20), RowTile(2, 3, 3)),
    "serial": (RowTile(1, 3, 1),),
}
"""Of four convolutions that go from 41 lines to 21."""


def conv(net: Net, x: str, o: int, i: int, k: int = 1, **attrs: Any) -> str:
    weights = net.weight(o, i // attrs.get("group", 1), k, k), net.weight(o)
    return net("Relu", net("Conv", x, *weights, pads=[k // 2] * 4, **attrs))


def case(name: str) -> Case:
    net = Net()
    x = conv(net, net.input("x", "n", 16, 41, 9), 16, 16)
    middle = conv(net, conv(net, x, 32, 16), 32, 32, 3, group=32, strides=[2, 2])
    graph = net.graph(conv(net, middle, 24, 32))
    optimized(graph)
    (region,) = graph.regions()
    params = replace(region.params, row_tiles=ROW_TILES[name])
    program = lower(graph, replace(region, params=params))
    values = {n: w.array() for n, w in graph.weights.items()} | {"x": normal(2, 16, 41, 9)}
    feeds = tuple(np.asarray(values[v], np.float32) for v in region.operands)
    return Case(name, program, feeds, tuple(run(program, feeds)))


CASES = {name: case(name) for name in ROW_TILES}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    kernels = {call.name for c in CASES.values() for call in c.program.calls}
    return Answers(CASES.values(), sorted(kernels), (), host_levels(), tmp_path_factory)


def test_which_iterations_run_in_parallel() -> None:
    found = {name: [loop.parallel for loop in c.program.loops] for name, c in CASES.items()}
    assert found == {
        "at_once": [],
        "parallel": [True],
        "parallel_twice": [True] * 2,
        "serial": [False],
    }


@pytest.mark.parametrize("name", ROW_TILES)
def test_loops_compute_what_calls_do(name: str, isa: str, answers: Answers) -> None:
    (got,), (wanted,) = answers(isa)[name], CASES[name].expected
    assert np.abs(got - wanted).max() <= TOLERANCE.kernel_f32 * np.abs(wanted).max()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_count_and_tile_size_give_the_same_bits(
    threads: int, answers: Answers
) -> None:
    found = answers(answers.levels[-1], threads)
    (at_once,) = answers(answers.levels[-1], 1)["at_once"]
    for name in ROW_TILES:
        np.testing.assert_array_equal(found[name][0], at_once, err_msg=name)
