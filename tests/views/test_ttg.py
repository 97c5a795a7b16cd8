"""The notebook view, and the graph's own way to tiles."""

from __future__ import annotations

import itertools
import json
from typing import Any
from xml.etree import ElementTree

import networkx as nx
import pytest

from tests.ttg.models import gemm, rows
from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.ops.operator_iteration_spaces import space_of
from tracea_graph.ttg import MemoryLevel, Region, RegionModel, TileGraph
from tracea_graph.ttg.repeated_blocks import repeated_blocks
from tracea_graph.views.ttg import NOTEBOOK
from tracea_graph.views.ttg.graph_html import _facts, graph_html
from tracea_graph.views.ttg.graph_svg import HEIGHT

EVIL = '<script>alert("x")</script>&\x00\ud800'
F32 = DType.F32


def shown(graph: TileGraph, name: str, *how: Any) -> Any:
    """What a notebook shows of a region."""
    graph.viewer = NOTEBOOK
    return graph.show(name, *how)


def chain(length: int, name: str = "", rule: str = "") -> TileGraph:
    """``x -> Relu -> … -> y`` with the first region made by ``rule``."""
    values = ["x", *(f"{name}v{i}" for i in range(length - 1)), "y"]
    nodes = [Node("Relu", (a,), (b,), name=name) for a, b in itertools.pairwise(values)]
    regions = [
        Region(f"n{i}", n.op + name, n.inputs, n.outputs, (n,), rule=rule if i == 0 else "")
        for i, n in enumerate(nodes)
    ]
    specs = {v: TensorSpec(F32, (name or "batch", 4)) for v in values}
    return TileGraph(regions, ["x"], ["y"], {}, specs, name=name)


def test_every_node_is_drawn_once() -> None:
    html = graph_html(chain(3, rule="fuse-it"))
    assert html.count("<g data-node=") == 5 and html.count("<path") == 4
    assert html.count(">Relu</text>") == 3 and "fuse-it × 1" in html
    assert "v0: f32[batch,4]" in html and "are drawn" not in html


def test_strings_of_the_model_are_escaped() -> None:
    html = graph_html(chain(2, EVIL, EVIL))
    assert html.count("<script") == 1 and "\x00" not in html and "&lt;script&gt;" in html
    assert '"x")</script>' not in html
    root = ElementTree.fromstring(html.encode())
    assert root.tag == "div"


def mixed(length: int) -> TileGraph:
    """A chain in which nothing repeats: every region has an operator of its own."""
    nodes = [Node(f"Op{i}", (f"v{i}",), (f"v{i + 1}",)) for i in range(length)]
    return TileGraph.of_nodes(nodes, ["v0"], [f"v{length}"], {}, {})


def test_large_graphs_are_capped_and_say_so() -> None:
    html = graph_html(mixed(3000))
    assert html.count("<g data-node=") == 2500
    assert "3000 regions" in html and "the first 2500 of 3002 nodes are drawn" in html


def layers(count: int) -> TileGraph:
    """``count`` layers of ten operators between a head and a tail, each layer with a cache."""
    values = ["x", *(f"v{i}" for i in range(10 * count + 1)), "y"]
    nodes = [Node(f"Op{i % 10}", (values[1 + i],), (values[2 + i],)) for i in range(10 * count)]
    for layer in range(count):
        old = nodes[10 * layer]
        nodes[10 * layer] = Node(old.op, (*old.inputs, f"past{layer}"), old.outputs)
    nodes = [Node("Head", ("x",), ("v0",)), *nodes, Node("Tail", (values[-2],), ("y",))]
    inputs = ["x", *(f"past{i}" for i in range(count))]
    return TileGraph.of_nodes(nodes, inputs, ["y"], {}, {})


def test_what_repeats_is_drawn_once() -> None:
    graph = layers(6)
    (block,) = repeated_blocks(graph)
    assert [len(copy) for copy in block.copies] == [10] * 6
    html = graph_html(graph)
    # x, past0, head, one layer, tail, y
    assert html.count("<g data-node=") == 15
    assert "× 6</text>" in html and "62 regions" in html


def test_a_short_repeat_is_not_worth_a_frame() -> None:
    assert repeated_blocks(layers(1)) == []
    assert repeated_blocks(chain(6)) == []


def test_parallel_branches_lie_beside_each_other() -> None:
    nodes = [Node("Relu", ("x",), ("a",)), Node("Tanh", ("x",), ("b",))]
    nodes.append(Node("Add", ("a", "b"), ("y",)))
    html = graph_html(TileGraph.of_nodes(nodes, ["x"], ["y"], {}, {}))
    boxes = [
        (float(r.get("x", 0)), float(r.get("y", 0)))
        for r in ElementTree.fromstring(html).iter("{http://www.w3.org/2000/svg}rect")
        if r.get("height") == str(HEIGHT)
    ]
    assert len(set(boxes)) == 5 and len({y for _, y in boxes}) == 4


def test_a_graph_without_regions_is_drawn() -> None:
    assert "0 regions" in graph_html(TileGraph([], ["x"], ["x"], {}, {}))


def _describe(region: Region, graph: TileGraph) -> RegionModel | None:
    if region.op == "MatMul":
        return gemm("seq", 16, 8, ("x", "w", "c"))  # type: ignore[arg-type]
    return rows(12, 16, "c", "y") if region.op == "Softmax" else None


def _pair() -> TileGraph:
    nodes = [Node("MatMul", ("x", "w"), ("c",)), Node("Softmax", ("c",), ("y",))]
    return TileGraph.of_nodes(nodes, ["x", "w"], ["y"], {}, {})


def test_the_graph_expands_and_stages_its_regions() -> None:
    graph = _pair()
    graph.model_of = _describe
    first, second = graph.copy().regions()
    tiles = graph.copy().expand(first, {"seq": 12}, (4, 8, 0))
    assert tiles.grid == (3, 2)
    staging = graph.stage([first, second], {"seq": 12}, {"L2": (4, 0, 0)})
    assert set(staging.traffic_of(MemoryLevel("L2", 1e6))) == {"x", "w", "y"}


def test_what_others_need_is_written_out() -> None:
    nodes = [Node("MatMul", ("x", "w"), ("c",)), Node("Softmax", ("c",), ("y",))]
    graph = TileGraph.of_nodes(nodes, ["x", "w"], ["y", "c"], {}, {})
    graph.model_of = _describe
    level = MemoryLevel("L2", 1e6)
    kept = graph.stage(graph.regions(), {"seq": 12}, {"L2": (4, 0, 0)})
    assert kept.traffic_of(level) == {"x": 384, "w": 512, "c": 768, "y": 768}
    nodes.append(Node("Relu", ("c",), ("z",)))
    graph = TileGraph.of_nodes(nodes, ["x", "w"], ["y", "z"], {}, {})
    graph.model_of = _describe
    pair = [r for r in graph.regions() if r.op != "Relu"]
    assert "c" in graph.stage(pair, {"seq": 12}, {}).traffic_of(level)


def test_opaque_regions_have_no_tiles() -> None:
    graph = _pair()
    with pytest.raises(GraphError, match=r"region n0 \(MatMul\) is opaque"):
        graph.expand(graph.regions()[0], {})


# ---- tile maps, exports, differences -----------------------------------------------------


def test_a_region_shows_its_tiles_and_what_they_wait_for() -> None:
    graph = _pair()
    graph.model_of = _describe
    view = shown(graph, "y", {"seq": 12}, (4, 0, 0))
    drawn = view.map
    assert drawn.op == "Softmax" and drawn.grid == (3, 1) and drawn.order == (0, 1, 2)
    (need,) = drawn.needs
    assert need.value == "c" and need.kind == "halo"
    # rows 4 to 7 of the product, whose 12 × 16 grid of single elements is drawn as 12 × 8 tiles
    assert [tuple(r[1:3]) for r in need.rectangles] == [(0, 4), (4, 8), (8, 12)]
    root = ElementTree.fromstring(view._repr_html_())
    assert root.tag == "div"


def test_a_region_is_found_by_the_operator_it_stands_for() -> None:
    nodes = [Node("MatMul", ("x", "w"), ("c",), name="product")]
    graph = TileGraph.of_nodes(nodes, ["x", "w"], ["c"], {}, {})
    graph.model_of = _describe
    graph.bindings = {"seq": 12}
    assert shown(graph, "product").map.region == shown(graph, "n0").map.region == "n0"
    with pytest.raises(GraphError, match="no region is called 'nothing'"):
        shown(graph, "nothing")


def test_opaque_and_unbound_regions_show_why_not() -> None:
    graph = _pair()
    with pytest.raises(GraphError, match="opaque"):
        shown(graph, "y")
    graph.model_of = _describe
    with pytest.raises(GraphError, match="no binding for 'seq'"):
        shown(graph, "c")


def test_needs_name_the_producers_of_the_region_that_is_shown() -> None:
    """Equal regions share one tile map, not the names in it."""
    layers = [f"v{i}" for i in range(4)]
    nodes = [Node("Relu", (a,), (b,), name=b) for a, b in itertools.pairwise(layers)]
    specs = {v: TensorSpec(F32, (8, 8)) for v in layers}
    graph = TileGraph.of_nodes(nodes, ["v0"], ["v3"], {}, specs)
    graph.model_of = space_of
    facts = _facts(graph, ("n1", "n2"))
    kinds = {node["kind"] for node in facts["nodes"].values()}
    assert len(kinds) == 1, "both read what an equal region writes"
    (need,) = facts["kinds"][kinds.pop()]["map"]["needs"]
    at = need["read"]
    shown = {n: (f["reads"][at], f["sources"][at]) for n, f in facts["nodes"].items()}
    assert shown == {"n1": ("v1: f32[8,8]", "n0"), "n2": ("v2: f32[8,8]", "n1")}


def test_exports_hold_every_region_and_edge() -> None:
    graph = chain(3, rule="fuse-it")
    plain = graph.to_networkx()
    assert plain.nodes["n0"] == {
        "kind": "region",
        "op": "Relu",
        "rule": "fuse-it",
        "nodes": "Relu",
    }
    again = nx.node_link_graph(json.loads(graph.to_json()), edges="links")
    assert nx.utils.graphs_equal(nx.DiGraph(again), nx.DiGraph(plain))
    dot = graph.to_dot()
    assert dot.count(" -> ") == 4 and dot.count("shape=oval") == 2
    assert '"Relua\\"b\\\\"' in chain(2, 'a"b\\').to_dot()


def test_a_difference_colours_what_became_one_region() -> None:
    before = chain(4)
    after = before.copy()
    first, second = after.regions()[:2]
    fused = Region(
        "f",
        "Fused",
        first.operands,
        second.results,
        (*first.nodes, *second.nodes),
        object(),
        "rule",
    )
    after.replace([first, second], [fused])
    html = NOTEBOOK.diff(before, after)._repr_html_()
    assert "before: 4 regions" in html and "after: 3 regions" in html
    root = ElementTree.fromstring(html)
    boxes = [
        (g.get("data-node"), r.get("fill"))
        for g in root.iter("{http://www.w3.org/2000/svg}g")
        for r in g.iter("{http://www.w3.org/2000/svg}rect")
    ]
    colours = {name: {f for n, f in boxes if n == name} for name, _ in boxes}
    assert colours["f"] == colours["n0"] == colours["n1"] != colours["n2"]


def test_copies_of_a_block_cost_a_page_nothing() -> None:
    def page(count: int) -> str:
        nodes = [Node("Relu", (f"v{i}",), (f"v{i + 1}",)) for i in range(count)]
        return graph_html(TileGraph.of_nodes(nodes, ["v0"], [f"v{count}"], {}, {}))

    assert abs(len(page(2000)) - len(page(200))) < 50


def test_a_graph_that_nobody_draws_says_so() -> None:
    graph = chain(2)
    assert graph._repr_html_() is None
    with pytest.raises(GraphError, match="has no viewer"):
        graph.show("y")
