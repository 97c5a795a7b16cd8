"""The size limits of the region graph: see ``python -m models.scale`` for the figures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from models.scale import layers, million_tiles, planned
from tracea_graph.ir import Node
from tracea_graph.ttg import TileGraph

ROUNDS = 12
"""A busy machine only ever adds to processor time: the least of several rounds counts, and as soon
as that is good there are no more."""


def growth(folder: Path, what: str, counts: tuple[int, int], bound: float) -> float:
    """How many times as long the larger graph takes, measured until it is below ``bound``."""
    paths = [folder / f"{count}.onnx" for count in counts]
    for count, path in zip(counts, paths, strict=True):
        path.write_bytes(layers(count).SerializeToString())
    least = [math.inf, math.inf]
    for _ in range(ROUNDS):
        found = [planned(str(path), schedule=what == "schedule") for path in paths]
        assert tuple(f["nodes"] for f in found) == counts
        least = [min(best, f[what]) for best, f in zip(least, found, strict=True)]
        if least[1] < bound * least[0]:
            break
    return least[1] / least[0]


def test_import_grows_with_the_graph_and_no_faster(tmp_path: Path) -> None:
    """Ten times the operators take about ten times as long; quadratic would be a hundred."""
    assert growth(tmp_path, "import", (1_000, 10_000), 25) < 25


def test_scheduling_grows_with_the_graph_and_no_faster(tmp_path: Path) -> None:
    """Eight times the operators take about eight times as long; quadratic would be 64."""
    assert growth(tmp_path, "schedule", (250, 2000), 20) < 20


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
    """Objects would take ten times as much of both."""
    found = million_tiles()
    assert found["tiles"] == 1 << 20 and found["mb"] < 200
    seconds = [found["seconds"]]
    while min(seconds) > 1.5 and len(seconds) < ROUNDS:
        seconds.append(million_tiles()["seconds"])
    assert min(seconds) < 1.5
