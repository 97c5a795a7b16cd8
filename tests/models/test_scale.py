"""The size limits of the region graph: see ``python -m models.scale`` for the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.scale import layers, million_tiles, planned
from tracea_graph.ir import Node
from tracea_graph.ttg import TileGraph


def test_import_grows_with_the_graph_and_no_faster(tmp_path: Path) -> None:
    """Ten times the operators take about ten times as long; quadratic would be a hundred."""
    paths = {count: tmp_path / f"{count}.onnx" for count in (1_000, 10_000)}
    for count, path in paths.items():
        path.write_bytes(layers(count).SerializeToString())
    rounds = [
        {count: planned(str(path), schedule=False) for count, path in paths.items()}
        for _ in range(3)
    ]
    assert all(found[count]["nodes"] == count for found in rounds for count in paths)
    least = {count: min(found[count]["import"] for found in rounds) for count in paths}
    assert least[10_000] < 25 * least[1_000]


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
    assert found["import"] < 100 and found["mb"] < 2048  # 21 s on a quiet machine


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
