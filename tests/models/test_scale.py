"""The size limits of the region graph: see ``python -m models.scale`` for the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.scale import layers, million_tiles, planned
from tracea_graph.ir import Node
from tracea_graph.ttg import TileGraph


def test_ten_thousand_operators_are_imported_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "layers.onnx"
    path.write_bytes(layers(10_000).SerializeToString())
    found = planned(str(path), schedule=False)
    assert found["nodes"] == 10_000 and found["import"] < 2


def test_scheduling_grows_with_the_graph_and_no_faster(tmp_path: Path) -> None:
    """Eight times the operators take about eight times as long; quadratic would be 64."""
    seconds = []
    for count in (250, 2000):
        path = tmp_path / f"{count}.onnx"
        path.write_bytes(layers(count).SerializeToString())
        seconds.append(min(planned(str(path))["schedule"] for _ in range(2)))
    assert seconds[1] < 20 * seconds[0]


@pytest.mark.slow
def test_a_hundred_thousand_operators_fit(tmp_path: Path) -> None:
    path = tmp_path / "layers.onnx"
    path.write_bytes(layers(100_000).SerializeToString())
    found = planned(str(path), schedule=False)
    assert found["import"] < 25 and found["mb"] < 2048


@pytest.mark.slow
def test_a_chain_of_a_million() -> None:
    """Nothing recurses, whatever the depth."""
    count = 1_000_000
    nodes = (Node("Relu", (f"v{i}",), (f"v{i + 1}",)) for i in range(count))
    graph = TileGraph.of_nodes(nodes, ["v0"], [f"v{count}"], {}, {})
    path, _ = graph.critical_path()
    assert len(path) == len(graph.convex((path[0], path[-1]))) == count
    assert graph.prune() == 0
    graph.check()


def test_a_million_tiles_are_arrays() -> None:
    found = million_tiles()
    assert found["tiles"] == 1 << 20 and found["seconds"] < 1.5 and found["mb"] < 200
