"""Convolutions and pools: the box of x that an output tile reads, against perturbed inputs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, normal, only, schedule_only
from tracea_graph.ops.operator_iteration_spaces import space_of
from tracea_graph.passes.convolution.resize import RESIZE
from tracea_graph.rewrite import RulePass
from tracea_graph.ttg import MemoryLevel, StagedRegions

CASES = {
    "plain": ("Conv", (1, 4, 9, 8), (6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ("Conv", (2, 4, 9, 8), (4, 4, 3, 2), {"strides": [2, 1], "pads": [0, 1, 1, 0]}),
    "dilated": ("Conv", (1, 2, 12, 9), (3, 2, 3, 3), {"dilations": [2, 3]}),
    "grouped": ("Conv", (1, 6, 7, 7), (4, 3, 3, 3), {"group": 2}),
    "depthwise": ("Conv", (1, 5, 7, 7), (5, 1, 3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
    "one axis": ("Conv", (1, 4, 20), (6, 4, 5), {"strides": [3], "pads": [2, 2]}),
    "same": ("Conv", (1, 2, 8, 9), (3, 2, 3, 4), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "same lower": ("Conv", (1, 2, 8, 9), (3, 2, 4, 4), {"auto_pad": "SAME_LOWER"}),
    "max": ("MaxPool", (1, 3, 9, 9), (), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    "mean": ("AveragePool", (1, 3, 8), (), {"kernel_shape": [4], "pads": [1, 2]}),
    "global": ("GlobalAveragePool", (2, 3, 5, 4), (), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_tile_reads_its_box_and_no_element_outside(name: str) -> None:
    op, shape, weight, attrs = CASES[name]
    net = Net()
    x = net.input("x", *shape)
    operands = (x, normal(*weight, seed=3)) if weight else (x,)
    graph = net.graph(net(op, *operands, **attrs))
    graph.model_of = space_of
    (region,) = graph.regions()
    model = space_of(region, graph)
    assert model is not None
    before = np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape)
    before = before.astype(np.float32)
    tiles = graph.expand(region, {}, (5, 2, 0))
    (read,), (write,) = (
        [a for a in maps if a.value == value]
        for maps, value in (
            (model.bind({}).reads, "x"),
            (model.bind({}).writes, region.results[0]),
        )
    )
    ranges = tiles.ranges()
    results, inputs = write.box(*ranges), read.box(*ranges)
    expected = net.run({"x": before})[0]
    covered = np.zeros(expected.shape, int)
    for i in range(len(tiles)):
        here = tuple(slice(a, b) for a, b in zip(results[0][i], results[1][i], strict=True))
        kept = tuple(slice(a, b) for a, b in zip(inputs[0][i], inputs[1][i], strict=True))
        covered[here] += 1
        outside = before + 1e4
        outside[kept] = before[kept]
        np.testing.assert_array_equal(net.run({"x": outside})[0][here], expected[here])
    assert covered.min() >= 1


def test_operations_are_those_of_the_formula() -> None:
    net = Net()
    y = net("Conv", net.input("x", 1, 8, 10, 10), net.weight(16, 4, 3, 3), group=2)
    graph = net.graph(y)
    model = space_of(graph.regions()[0], graph)
    assert model is not None and model.flops({}) == 2 * 16 * 4 * 9 * 64


def test_two_convolutions_share_a_band() -> None:
    """A band of four rows of the second needs six of the first and eight of the input."""
    net = Net()
    x = net.input("x", 1, 4, 32, 16)
    h = net("Conv", x, net.weight(4, 4, 3, 3), pads=[1, 1, 1, 1])
    graph = net.graph(net("Conv", h, net.weight(4, 4, 3, 3), pads=[1, 1, 1, 1]))
    models = [m for r in graph.regions() if (m := space_of(r, graph)) is not None]
    staging = StagedRegions(models, {}, {"L2": (4 * 16, 0, 0)})
    level = MemoryLevel("L2", 1e6)
    row, weights = 4 * 4 * 16, 2 * 4 * 4 * 4 * 9
    assert staging.footprint(level) == (4 + 6 + 8) * row + weights


def test_unknown_padding_is_opaque() -> None:
    net = Net()
    x = net.input("x", 1, 4, "h", 16)
    y = net("Conv", x, net.weight(4, 4, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER")
    graph = net.graph(y)
    assert space_of(graph.regions()[0], graph) is None


def test_a_resized_image_is_read_where_its_scale_says() -> None:
    """Any row may be meant, but at most two for each of a tile's: less than the image is read."""
    net = Net()
    x = net.input("x", 1, 4, 32, 16)
    sizes = net.ints(1, 4, 48, 24)
    graph = net.graph(net("Resize", x, "", "", sizes, mode="linear"))
    schedule_only(graph, RulePass(RESIZE))
    region = only(graph, "FusedResize")
    model = space_of(region, graph)
    assert model is not None and model.depth == ("t0", "t1") and model.flops({}) == 8 * 4 * 48 * 24
    tiles = graph.expand(region, {}, (4 * 24, 0, 0))
    bound = model.bind({})
    starts, stops = bound.reads[0].box(*tiles.ranges())
    assert starts.tolist()[3] == [0, 0, 0, 0] and stops.tolist()[3] == [1, 4, 32, 16]
    assert len(tiles) == 12
