"""The region graph: questions, surgery, and that a refused surgery changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import networkx as nx
import numpy as np
import pytest

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Node, TensorSpec, Weight
from tracea_graph.ttg import Region, TileGraph, ValueUse
from tracea_graph.ttg.topological_order import TopologicalOrder

SPEC = TensorSpec(DType.F32, ("n", 4))


def weight(name: str) -> Weight:
    return Weight(name, DType.F32, (4,), lambda: np.zeros(4, np.float32))


def tiny() -> TileGraph:
    """h = Add(x, w); y = Relu(h); z = Mul(h, h); outputs y and z"""
    nodes = [
        Node("Add", ("x", "w"), ("h",)),
        Node("Relu", ("h",), ("y",)),
        Node("Mul", ("h", "h"), ("z",)),
    ]
    specs = dict.fromkeys(("x", "h", "y", "z"), SPEC)
    return TileGraph.of_nodes(nodes, ["x"], ["y", "z"], {"w": weight("w")}, specs)


def snapshot(graph: TileGraph) -> tuple[Any, ...]:
    """Everything a caller can see."""
    edges = sorted((a, b, str(k)) for a, b, k in graph.nx.edges(keys=True))
    uses = {v: [(u.region.id, u.operand) for u in graph.uses(v)] for v in ("x", "w", "h", "y")}
    regions = [(r.id, r.op, r.operands, r.results) for r in graph.regions()]
    return regions, edges, sorted(graph.nx.nodes), uses, dict(graph.specs), dict(graph.weights)


def by_op(graph: TileGraph, op: str) -> Region:
    return next(r for r in graph.regions() if r.op == op)


def test_it_answers_who_writes_and_who_reads() -> None:
    graph = tiny()
    add, relu, mul = graph.regions()
    assert graph.producer("h") is add and graph.producer("x") is graph.producer("w") is None
    assert graph.uses("h") == (ValueUse(relu, 0), ValueUse(mul, 0), ValueUse(mul, 1))
    assert graph.only_use("x") == ValueUse(add, 0) and graph.only_use("h") is None
    assert graph.is_output("y") and not graph.is_output("h")
    assert graph.region(mul.id) is mul and graph.region("nobody") is None


def test_an_output_has_no_only_use() -> None:
    nodes = [Node("Relu", ("x",), ("y",)), Node("Exp", ("y",), ("z",))]
    graph = TileGraph.of_nodes(nodes, ["x"], ["y", "z"], {}, {})
    assert len(graph.uses("y")) == 1 and graph.only_use("y") is None


def test_specs_are_known_for_weights_and_never_fail() -> None:
    graph = tiny()
    assert graph.spec("w") == TensorSpec(DType.F32, (4,))
    assert graph.spec("h") == SPEC
    assert graph.spec("unheard of") == TensorSpec(None, None)
    assert graph.weight("x") is None


def test_the_networkx_view_has_an_edge_for_each_operand() -> None:
    graph = tiny()
    add, relu, mul = (r.id for r in graph.regions())
    assert set(graph.nx.nodes) == {"input:x", "const:w", add, relu, mul, "output:y", "output:z"}
    assert graph.nx.number_of_edges(add, mul) == 2
    assert graph.nx.edges["input:x", add, ("x", 0)]["operand"] == 0


def test_the_networkx_graph_is_the_graph_and_cannot_be_changed() -> None:
    graph = tiny()
    held = graph.nx
    assert held.nodes["n0"]["region"] is graph.regions()[0]
    with pytest.raises(nx.NetworkXError, match="Frozen graph"):
        held.add_edge("input:x", "output:y")
    graph.replace([by_op(graph, "Mul")], [fused(("h",), ("z",))])
    assert "fused" in held and "n2" not in held


def test_producers_come_before_consumers_and_else_the_original_order_holds() -> None:
    nodes = [
        Node("Exp", ("b",), ("c",)),
        Node("Neg", ("x",), ("other",)),
        Node("Relu", ("x",), ("b",)),
    ]
    graph = TileGraph.of_nodes(nodes, ["x"], ["c", "other"], {}, {})
    assert [r.op for r in graph.regions()] == ["Neg", "Relu", "Exp"]


def test_captures_are_reads_and_absent_operands_are_not() -> None:
    node = Node("If", ("c", ""), ("y",), captures=("x",))
    graph = TileGraph.of_nodes([node], ["c", "x"], ["y"], {}, {})
    assert graph.regions()[0].reads == ("c", "x")
    assert graph.uses("x") == (ValueUse(graph.regions()[0], -1),)


def test_domains_are_part_of_the_name() -> None:
    nodes = [Node("Gelu", ("x",), ("y",), domain="com.microsoft"), Node("Relu", ("y",), ("z",))]
    graph = TileGraph.of_nodes(nodes, ["x"], ["z"], {}, {})
    assert [r.op for r in graph.regions()] == ["com.microsoft::Gelu", "Relu"]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([Node("Relu", ("y",), ("z",)), Node("Relu", ("z",), ("y",))], "has a cycle"),
        ([Node("Relu", ("x",), ("y",)), Node("Exp", ("x",), ("y",))], "'y' is written twice"),
        ([Node("Relu", ("lost",), ("y",))], "'lost' is read but nothing produces it"),
        ([Node("Relu", ("x",), ("z",))], "'y' is read but nothing produces it"),
    ],
)
def test_impossible_graphs_are_refused(nodes: list[Node], reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        TileGraph.of_nodes(nodes, ["x"], ["y"], {}, {})


# ---- surgery -----------------------------------------------------------------------------


def fused(operands: tuple[str, ...], results: tuple[str, ...], name: str = "fused") -> Region:
    return Region(name, "Fused", operands, results, (), params=object())


def test_replace_puts_new_regions_in_the_place_of_old_ones() -> None:
    graph = tiny()
    add, relu, mul = graph.regions()
    new = fused(("x", "w2"), ("y", "h"))
    spec = TensorSpec(DType.F32, (1,))
    graph.replace([add, relu], [new], {"y": spec}, {"w2": weight("w2")})
    graph.check()
    assert graph.regions() == [new, mul]
    assert graph.producer("h") is new and graph.spec("y") == spec
    assert graph.uses("w") == () and "const:w" not in graph.nx and "const:w2" in graph.nx
    assert graph.nx.number_of_edges(new.id, mul.id) == 2


def test_a_new_value_may_pass_between_new_regions() -> None:
    graph = tiny()
    mul = by_op(graph, "Mul")
    first, second = fused(("h",), ("between",), "one"), fused(("between",), ("z",), "two")
    graph.replace([mul], [second, first])
    graph.check()
    assert [r.id for r in graph.regions()][-2:] == ["one", "two"]


def refused(graph: TileGraph, reason: str, *args: Any) -> None:
    """The replacement raises with this reason and the graph is what it was."""
    before = snapshot(graph)
    with pytest.raises(GraphError, match=reason):
        graph.replace(*args)
    assert snapshot(graph) == before
    graph.check()


def test_a_value_others_read_cannot_be_dropped() -> None:
    graph = tiny()
    add, relu, _ = graph.regions()
    refused(graph, "'h' is still read by", [add, relu], [fused(("x", "w"), ("y",))])


def test_a_graph_output_cannot_be_dropped() -> None:
    graph = tiny()
    refused(graph, "'y' is still read by the outputs", [by_op(graph, "Relu")], [])


def test_a_cycle_is_refused() -> None:
    nodes = [
        Node("Exp", ("x",), ("a",)),
        Node("Neg", ("a",), ("b",)),
        Node("Add", ("a", "b"), ("y",)),
    ]
    graph = TileGraph.of_nodes(nodes, ["x"], ["y"], {}, dict.fromkeys("xaby", SPEC))
    exp, _, add = graph.regions()
    new = fused(("x", "b", "w"), ("a", "y"))
    refused(graph, "would make a cycle", [exp, add], [new], {"a": SPEC}, {"w": weight("w")})


def test_a_region_that_reads_what_nothing_produces_is_refused() -> None:
    graph = tiny()
    new = fused(("lost",), ("y",))
    refused(graph, "'lost' is read but nothing produces it", [by_op(graph, "Relu")], [new])


def test_a_value_cannot_be_written_twice() -> None:
    graph = tiny()
    new = fused(("h",), ("y", "z"))
    refused(graph, "'z' is written twice", [by_op(graph, "Relu")], [new])


def test_prune_drops_what_nobody_needs_and_says_how_much() -> None:
    nodes = [
        Node("Exp", ("x",), ("a",)),
        Node("Neg", ("a",), ("b",)),
        Node("Relu", ("x",), ("y",)),
    ]
    graph = TileGraph.of_nodes(nodes, ["x"], ["y"], {}, {})
    assert graph.prune() == 2
    assert [r.op for r in graph.regions()] == ["Relu"]
    assert graph.prune() == 0
    graph.check()


def test_prune_keeps_a_region_with_one_live_result() -> None:
    graph = TileGraph.of_nodes([Node("Split", ("x",), ("y", "unused"))], ["x"], ["y"], {}, {})
    assert graph.prune() == 0


def test_a_copy_is_independent() -> None:
    graph = tiny()
    before, other = snapshot(graph), graph.copy()
    assert snapshot(other) == before
    add, relu, mul = other.regions()
    other.replace([add, relu, mul], [fused(("x", "w"), ("y", "z"))], {"y": SPEC})
    assert snapshot(graph) == before
    assert len(other.regions()) == 1


def test_check_finds_a_value_without_a_source() -> None:
    graph = tiny()
    graph.check()
    del graph.weights["w"]
    with pytest.raises(GraphError, match="reads 'w', which nothing produces"):
        graph.check()


# ---- size --------------------------------------------------------------------------------


def long_chain(length: int) -> TileGraph:
    nodes = (Node("Relu", (f"v{i}",), (f"v{i + 1}",)) for i in range(length))
    return TileGraph.of_nodes(nodes, ["v0"], [f"v{length}"], {}, {})


def test_a_chain_of_any_length_needs_no_recursion() -> None:
    """Ordered, changed at both ends, checked, and walked along its critical path."""
    graph = long_chain(40_000)
    assert len(graph.regions()) == 40_000
    first, last = graph.regions()[0], graph.regions()[-1]
    with pytest.raises(GraphError, match="cycle"):
        graph.replace([first, last], [fused(("v0", "v39999"), ("v1", "v40000"))])
    graph.replace([first], [fused(("v0",), ("v1",))])
    graph.check()
    assert len(graph.convex([graph.regions()[0], last])) == 40_000
    assert len(graph.critical_path()[0]) == 40_000


def test_a_replacement_looks_at_its_neighbourhood_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the pairs of a chain are fused: what is visited does not grow with the graph."""
    graph, seen = long_chain(4000), 0
    readers = TopologicalOrder.readers

    def counted(topology: TopologicalOrder, name: str) -> Iterator[str]:
        nonlocal seen
        seen += 1
        return readers(topology, name)

    monkeypatch.setattr(TopologicalOrder, "readers", counted)
    regions = graph.regions()
    seen = 0
    for i, (a, b) in enumerate(zip(regions[::2], regions[1::2], strict=True)):
        graph.replace([a, b], [fused(a.operands, b.results, f"f{i}")])
    assert len(graph.regions()) == 2000 and seen < 4 * 4000


@pytest.mark.parametrize("seed", range(8))
def test_random_replacements_are_refused_exactly_where_they_make_a_cycle(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = [
        Node("Op", tuple(f"v{j}" for j in set(rng.integers(0, i + 1, 2).tolist())), (f"v{i + 1}",))
        for i in range(40)
    ]
    graph = TileGraph.of_nodes(nodes, ["v0"], [f"v{i}" for i in range(1, 41)], {}, {})
    for step in range(60):
        regions = graph.regions()
        picked = [regions[i] for i in set(rng.integers(0, len(regions), 2).tolist())]
        names = {r.id for r in picked}
        outside = {v for r in picked for v in r.reads} - {v for r in picked for v in r.writes}
        new = fused(tuple(sorted(outside)), tuple(v for r in picked for v in r.writes), f"f{step}")
        convex = {r.id for r in graph.convex(picked)} == names
        whole = nx.DiGraph((a if a not in names else "new", b if b not in names else "new")
                           for a, b in nx.DiGraph(graph.nx).edges)  # fmt: skip
        whole.remove_edges_from([("new", "new")])
        assert nx.is_directed_acyclic_graph(whole) == convex
        if convex:
            graph.replace(picked, [new])
        else:
            refused(graph, "would make a cycle", picked, [new])
        graph.check()


def test_a_part_is_ordered_without_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting all regions for each part takes time with the square of the graph."""
    graph, looked = long_chain(2000), list[int]()
    regions = graph.regions()
    sort = TopologicalOrder._sorted

    def counted(self: TopologicalOrder, names: Collection[str]) -> list[str]:
        looked.append(len(names))
        return sort(self, names)

    monkeypatch.setattr(TopologicalOrder, "_sorted", counted)
    for i in range(10, 1990, 20):
        a, b, c = regions[i : i + 3]
        assert graph.convex([c, a]) == [a, b, c]
        graph.replace([a, b, c], [fused(a.operands, c.results, f"f{i}")])
    assert sum(looked) <= 2000 + 3 * 99
