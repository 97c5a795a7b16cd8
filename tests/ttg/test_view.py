"""The notebook view, and the graph's own way to tiles."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest
from ttg.models import gemm, rows

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.ttg import MemoryLevel, Region, RegionModel, TileGraph

EVIL = '<script>alert("x")</script>&\x00\ud800'
F32 = DType.F32


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
    html = chain(3, rule="fuse-it")._repr_html_()
    assert html.count("<rect") == 5 and html.count("<path") == 4
    assert html.count(">Relu</text>") == 3 and "fuse-it × 1" in html
    assert "v0: f32[batch,4]" in html and "are drawn" not in html


def test_strings_of_the_model_are_escaped() -> None:
    html = chain(2, EVIL, EVIL)._repr_html_()
    assert "<script" not in html and "\x00" not in html and "&lt;script&gt;" in html
    root = ElementTree.fromstring(html.encode())
    assert root.tag == "div"


def test_large_graphs_are_capped_and_say_so() -> None:
    html = chain(1000)._repr_html_()
    assert html.count("<rect") == 200
    assert "1000 regions" in html and "the first 200 of 1002 nodes are drawn" in html


def test_parallel_branches_lie_beside_each_other() -> None:
    nodes = [Node("Relu", ("x",), ("a",)), Node("Tanh", ("x",), ("b",))]
    nodes.append(Node("Add", ("a", "b"), ("y",)))
    html = TileGraph.of_nodes(nodes, ["x"], ["y"], {}, {})._repr_html_()
    boxes = [
        (float(r.get("x", 0)), float(r.get("y", 0)))
        for r in ElementTree.fromstring(html).iter("{http://www.w3.org/2000/svg}rect")
    ]
    assert len(set(boxes)) == 5 and len({y for _, y in boxes}) == 4


def test_a_graph_without_regions_is_drawn() -> None:
    assert "0 regions" in TileGraph([], ["x"], ["x"], {}, {})._repr_html_()


def _describe(region: Region, graph: TileGraph) -> RegionModel | None:
    if region.op == "MatMul":
        return gemm("seq", 16, 8, ("x", "w", "c"))  # type: ignore[arg-type]
    return rows(12, 16, "c", "y") if region.op == "Softmax" else None


def _pair() -> TileGraph:
    nodes = [Node("MatMul", ("x", "w"), ("c",)), Node("Softmax", ("c",), ("y",))]
    return TileGraph.of_nodes(nodes, ["x", "w"], ["y"], {}, {})


def test_the_graph_expands_and_stages_its_regions() -> None:
    graph = _pair()
    graph.describe = _describe
    first, second = graph.copy().regions()
    tiles = graph.copy().expand(first, {"seq": 12}, (4, 8, 0))
    assert tiles.grid == (3, 2)
    staging = graph.stage([first, second], {"seq": 12}, {"L2": (4, 0, 0)})
    assert set(staging.traffic_of(MemoryLevel("L2", 1e6))) == {"x", "w", "y"}


def test_what_others_need_is_written_out() -> None:
    nodes = [Node("MatMul", ("x", "w"), ("c",)), Node("Softmax", ("c",), ("y",))]
    graph = TileGraph.of_nodes(nodes, ["x", "w"], ["y", "c"], {}, {})
    graph.describe = _describe
    level = MemoryLevel("L2", 1e6)
    kept = graph.stage(graph.regions(), {"seq": 12}, {"L2": (4, 0, 0)})
    assert kept.traffic_of(level) == {"x": 384, "w": 512, "c": 768, "y": 768}
    nodes.append(Node("Relu", ("c",), ("z",)))
    graph = TileGraph.of_nodes(nodes, ["x", "w"], ["y", "z"], {}, {})
    graph.describe = _describe
    pair = [r for r in graph.regions() if r.op != "Relu"]
    assert "c" in graph.stage(pair, {"seq": 12}, {}).traffic_of(level)


def test_opaque_regions_have_no_tiles() -> None:
    graph = _pair()
    with pytest.raises(GraphError, match=r"region n0 \(MatMul\) is opaque"):
        graph.expand(graph.regions()[0], {})
