"""Programs seen from subgraph: their steps have tiles, needs and a place on the page."""

from __future__ import annotations

import pytest

from tests.graphs import Net, optimized
from tracea_graph.errors import GraphError
from tracea_graph.ops.region_subgraph import Subgraph, subgraph_of
from tracea_graph.ttg import Region, TileGraph, tile_regions
from tracea_graph.views.ttg import NOTEBOOK
from tracea_graph.views.ttg.graph_html import graph_html


def program() -> tuple[TileGraph, Region]:
    net = Net()
    x = net.input("x", "n", 16, 12, 12)
    for _ in range(3):
        weights = net.weight(16, 16, 3, 3), net.weight(16)
        x = net("Relu", net("Conv", x, *weights, pads=[1] * 4))
    graph = net.graph(x)
    optimized(graph)
    graph.subgraph_of, graph.bindings, graph.viewer = subgraph_of, {"n": 1}, NOTEBOOK
    (region,) = graph.regions()
    return graph, region


def test_a_program_shows_the_tiles_of_its_steps() -> None:
    graph, region = program()
    steps = Subgraph(graph, region).steps
    assert [s.op for s in steps] == ["FusedConv"] * 3
    assert graph.show(region.id).map.region == steps[-1].id
    middle = graph.show(steps[1].id).map
    (need,) = middle.needs
    assert need.producer == steps[0].id and need.kind == "halo"
    with pytest.raises(GraphError, match="has no step that writes its value 99"):
        graph.show(f"{region.id}#99")


def test_its_tiles_wait_for_each_other_across_steps() -> None:
    graph, region = program()
    subgraph = Subgraph(graph, region)
    lines = {s.id: (24, 0, 0) for s in subgraph.steps}  # two lines of twelve
    made = tile_regions(subgraph, subgraph.steps, {"n": 1}, lines)
    assert len(made) == 18 and [n.kind for n in made.needs] == ["halo", "halo"]
    order = made.depth_first.tolist()
    assert order.index(12) < 6, "the first end runs long before the last beginning"


def test_the_page_offers_every_step() -> None:
    graph, _ = program()
    page = graph_html(graph)
    assert page.count('"op":"FusedConv","kind"') == 3 and '"family":"program"' in page
