"""Tiles of several regions: numbers, edges across regions, and an order that goes depth first."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from tests.ttg.models import blur, gemm, named, rows
from tracea_graph.errors import GraphError
from tracea_graph.ttg import EdgeKind, RegionTiles, TileGraph, tile_regions


def chain() -> TileGraph:
    """A product, a window of three rows over it, and a norm over its rows."""
    return named([gemm(32, 16, 8), blur(32, 16, "C", "b"), rows(32, 16, "b", "y")])


def tiling(graph: TileGraph) -> RegionTiles:
    tiles = {"n0": (8, 8, 4), "n1": (8, 16, 0), "n2": (4, 0, 0)}
    return tile_regions(graph, graph.regions(), {}, tiles)


def test_tiles_are_numbered_through() -> None:
    made = tiling(chain())
    assert [len(s) for s in made.sets] == [16, 4, 8] and len(made) == 28
    assert [made.region_of(t) for t in (0, 15, 16, 20, 27)] == ["n0", "n0", "n1", "n2", "n2"]
    assert made[17].region_m == 1 and len(made.table) == 28
    assert [need.kind for need in made.needs] == ["halo", "one-to-one"]


def test_every_edge_between_regions_is_a_dependence() -> None:
    """Checked against the elements: tile rows of C that rows r - 1 to r + 1 touch."""
    made = tiling(chain())
    halo = made.needs[0].rectangles
    for tile, m0, m1, n0, n1 in halo.tolist():
        assert (m0, m1) == (max(0, 8 * tile - 1) // 8, -(-min(32, 8 * tile + 9) // 8))
        assert (n0, n1) == (0, 2)
    data = made.edges[made.edges["kind"] == EdgeKind.DATA]
    assert len(data) == 4 + 8
    assert (data["source"] < data["target"]).all()
    inner = sum(len(s.edges) for s in made.sets)
    assert len(made.edges) == inner + len(data)
    view = made.to_networkx()
    assert len(view) == 28 and nx.is_directed_acyclic_graph(view)
    assert view.nodes[16]["region"] == "n1"


def test_depth_first_runs_a_tile_when_it_has_what_it_needs() -> None:
    made = tiling(chain())
    order = made.depth_first.tolist()
    assert sorted(order) == list(range(28))
    place = {tile: i for i, tile in enumerate(order)}
    for source, target, kind in made.edges.tolist():
        if kind in (EdgeKind.DATA, EdgeKind.K_PIPELINE):
            assert place[source] < place[target]
    first_end = place[20]  # the first four rows of the end
    assert first_end == 8 + 1, "two rows of product tiles of two slices, one window, then the end"
    assert max(np.diff([place[t] for t in range(20, 28)])) < 12


def test_opaque_regions_are_one_tile() -> None:
    graph = chain()
    described = graph.model_of

    graph.model_of = lambda region, g: None if region.id == "n1" else described(region, g)
    made = tiling_without(graph)
    assert [len(s) for s in made.sets] == [16, 1, 8]
    assert [need.kind for need in made.needs] == ["all", "one-to-one"]
    assert len(made.needs[1].rectangles) == 8
    assert made.depth_first.tolist()[:17] == [*range(16), 16]


def tiling_without(graph: TileGraph) -> RegionTiles:
    return tile_regions(graph, graph.regions(), {}, {"n0": (8, 8, 4), "n2": (4, 0, 0)})


def test_a_name_that_is_no_region_is_refused() -> None:
    graph = chain()
    with pytest.raises(GraphError, match="no region in this list is called 'n9'"):
        tile_regions(graph, graph.regions(), {}, {"n9": (1, 1, 1)})
