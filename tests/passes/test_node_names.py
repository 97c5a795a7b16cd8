"""Nodes that rules copy get names of their own: a model with two of one name does not load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import Net, schedule_only
from tracea_graph import load
from tracea_graph.ir import Node
from tracea_graph.passes.layout.hoist_gather import HoistGather
from tracea_graph.passes.layout.hoist_slice import HoistSlice
from tracea_graph.rewrite import Pass

WIDTH = 16


def flattened(net: Net, x: str) -> str:
    """A product over the rows of all items."""
    flat = net("Gemm", net("Reshape", x, net.ints(-1, WIDTH)), net.weight(WIDTH, 8), net.weight(8))
    return net("Reshape", flat, net.ints(-1, 5, 8))


def two_selections(net: Net, x: str) -> tuple[str, ...]:
    """Both select of one product, which each then computes for itself."""
    both = net("Add", flattened(net, x), flattened(net, x))
    last = net("Gather", both, np.array(-1, np.int64), axis=1)
    return last, net("Gather", net("Add", flattened(net, x), 1.0), np.array(1), axis=1)


def a_pick(net: Net, x: str) -> tuple[str, ...]:
    """One row of each item, of what two branches make."""
    y = net("Add", net("MatMul", x, net.weight(WIDTH, WIDTH)), x)
    y = net("Mul", y, net("Sigmoid", net("MatMul", y, net.weight(WIDTH, WIDTH))))
    return (net("Gather", net("Flatten", y, axis=2), net.ids("flat", 2), axis=0),)


@pytest.mark.parametrize(
    ("made", "rule"),
    [(two_selections, HoistSlice()), (a_pick, HoistGather())],
    ids=["select", "pick"],
)
def test_nodes_keep_names_of_their_own(made: object, rule: Pass, tmp_path: Path) -> None:
    net = Net()
    sizes = (2, 5, WIDTH) if made is two_selections else (2, "seq", WIDTH)
    net.graph(*made(net, net.input("x", *sizes)))  # type: ignore[operator]
    for i, node in enumerate(net.model.graph.node):
        node.name = f"node {i}"
    onnx.save(net.model, tmp_path / "named.onnx")
    graph = load(tmp_path / "named.onnx")
    assert schedule_only(graph, rule).applied()
    names = [n.name for r in graph.regions() for n in r.nodes if n.name]
    assert names and len(names) == len(set(names))


def test_a_node_without_a_name_is_called_by_an_output_that_it_has() -> None:
    assert Node("LSTM", ("x", "w", "r"), ("", "", "c")).label == "c"
    assert Node("LSTM", ("x", "w", "r"), ("", "h"), name="cell").label == "cell"
