"""Updates by index tuples that form a box, which become concatenations."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, assert_same, loaded, normal, ops, schedule_only
from tracea_graph.ir import DType
from tracea_graph.passes.layout.updated_boxes import UpdatedBox

UPDATED = UpdatedBox()
SHAPE = (2, 5, 4)


def grid(net: Net, box: list[tuple[int, int]], order: tuple[int, ...] | None = None) -> str:
    """Index tuples of a box, computed as PyTorch's exporter does: a range for each axis."""
    sizes, parts = [n for _, n in box], list[str]()
    for axis, (start, count) in enumerate(box):
        numbers = (net.const(n, np.int64) for n in (start, start + count, 1))
        line = net("Range", *numbers)
        column = net("Reshape", line, net.const([-1] + [1] * (len(box) - axis - 1), np.int64))
        wide = net("Expand", column, net.const(sizes, np.int64))
        parts.append(net("Unsqueeze", wide, net.const([-1], np.int64)))
    return net("Concat", *(parts[a] for a in order or range(len(parts))), axis=-1)


@pytest.mark.parametrize(
    ("box", "parts"),
    [
        ([(0, 2), (1, 3), (0, 4)], 2), ([(0, 2), (0, 3), (0, 4)], 1), ([(0, 2), (2, 3)], 1),
        ([(1, 1)], 1), ([(0, 2), (0, 5), (1, 2)], 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("constant", [False, True])
def test_an_updated_range_of_an_axis_is_concatenated(
    box: list[tuple[int, int]], parts: int, constant: bool
) -> None:
    net, written = Net(), (*(n for _, n in box), *SHAPE[len(box) :])
    x, u = net.input("x", *SHAPE), net.input("u", *written)
    tuples = np.stack(np.meshgrid(*(range(a, a + n) for a, n in box), indexing="ij"), -1)
    index = net.const(tuples, np.int64) if constant else grid(net, box)
    graph = loaded(net, net("ScatterND", x, index, u))
    assert schedule_only(graph, UPDATED).applied() == {"updated-box": 1}
    assert sorted(ops(graph)) == ["Concat", *["Slice"] * parts]
    assert_same(net, graph, {"x": normal(*SHAPE), "u": normal(*written, seed=1)})


def test_other_updates_stay() -> None:
    swapped = (1, 0)
    for box, order, how in (
        ([(0, 1), (1, 2)], None, "none"), ([(0, 2), (0, 2)], swapped, "none"),
        ([(0, 2), (1, 3)], None, "add"),
    ):  # fmt: skip
        net = Net(18)
        u = net.input("u", *(n for _, n in box), SHAPE[-1])
        out = net("ScatterND", net.input("x", *SHAPE), grid(net, box, order), u, reduction=how)
        graph = loaded(net, out)
        assert not schedule_only(graph, UPDATED).applied()
        assert "ScatterND" in ops(graph)


def test_positions_that_repeat_or_jump_stay() -> None:
    for rows in ([1, 1], [0, 2], [3, 2], [-2, -1]):
        net = Net()
        x, u = net.input("x", *SHAPE), net.input("u", 2, 2, 4)
        tuples = np.stack(np.meshgrid(range(2), rows, indexing="ij"), -1)
        graph = loaded(net, net("ScatterND", x, net.const(tuples, np.int64), u))
        assert not schedule_only(graph, UPDATED).applied()


def test_integers_are_updated_too() -> None:
    net = Net()
    x = net.input("x", *SHAPE, dtype=DType.I64)
    u = net.input("u", 2, 2, 4, dtype=DType.I64)
    graph = loaded(net, net("ScatterND", x, grid(net, [(0, 2), (3, 2), (0, 4)]), u))
    assert schedule_only(graph, UPDATED).applied() == {"updated-box": 1}
    given = {"x": np.arange(40).reshape(SHAPE), "u": -np.arange(16).reshape(2, 2, 4)}
    assert_same(net, graph, given)
