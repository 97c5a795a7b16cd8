"""Where programs begin and end: convex, around anchors, within what a library takes."""

from __future__ import annotations

from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.ttg import PartitionRules, Region, TileGraph, partition_from


def graph_of(*lines: str) -> TileGraph:
    """Lines such as ``anchor a = x w``: what nobody writes goes in, what nobody reads out."""
    nodes = []
    for line in lines:
        left, right = line.split("=")
        op, result = left.split()
        nodes.append(Node(op, tuple(right.split()), (result,), name=result))
    written = [n.outputs[0] for n in nodes]
    read = dict.fromkeys(v for n in nodes for v in n.inputs)
    inputs = [v for v in read if v not in written]
    outputs = [v for v in written if v not in read]
    specs = dict.fromkeys((*written, *read), TensorSpec(DType.F32, (4,)))
    return TileGraph.of_nodes(nodes, inputs, outputs, {}, specs)


def rules(steps: int = 99, operands: int = 99) -> PartitionRules:
    """Everything but ``odd`` joins; a program may end with ``end``."""
    return PartitionRules(
        lambda r: int(r.op != "odd"), lambda r: r.op == "anchor", lambda r: r.op == "end", steps,
        operands,
    )  # fmt: skip


def program(
    graph: TileGraph, first: str, how: PartitionRules, without: tuple[str, ...] = ()
) -> str:
    seed = graph.producer(first)
    assert isinstance(seed, Region)
    skipped = [r.id for v in without if (r := graph.producer(v))]
    return " ".join(r.results[0] for r in partition_from(graph, seed, how, skipped))


def test_cores_hold_what_lies_between_them() -> None:
    graph = graph_of("step a = x", "anchor b = a", "step c = b", "anchor d = c", "end e = d",
                     "step f = e")  # fmt: skip
    assert program(graph, "b", rules()) == "b c d e"
    assert program(graph, "d", rules()) == "", "the program is its first anchor's"
    assert program(graph, "b", rules(), ("c",)) == "b"


def test_no_path_leaves_a_program_and_comes_back() -> None:
    graph = graph_of("anchor a = x", "odd b = a", "anchor c = a b", "anchor d = a")
    assert program(graph, "a", rules()) == "a d"
    assert program(graph, "c", rules()) == "c"
    first, odd, last, _ = graph.regions()
    assert graph.convex([first, last]) == [first, odd, last]
    assert graph.convex([odd, first]) == [first, odd]


def test_what_lies_on_the_way_comes_along() -> None:
    graph = graph_of("anchor a = x", "step b = a", "step c = b", "anchor d = a c")
    assert program(graph, "a", rules()) == "a b c d"
    assert program(graph, "a", rules(), ("c",)) == "a"


def test_a_program_is_no_larger_than_a_library_takes() -> None:
    lines = [f"anchor v{i + 1} = v{i} w{i}" for i in range(12)]
    graph = graph_of(*lines)
    assert program(graph, "v1", rules(steps=5)) == "v1 v2 v3 v4 v5"
    assert program(graph, "v1", rules(operands=4)) == "v1 v2 v3"


def test_what_leads_to_the_first_core_keeps_nobody_out() -> None:
    """Sizes taken of an embedding come back as a mask: it is outside anyway."""
    graph = graph_of("step e = x", "odd s = e", "step m = s", "anchor a = e", "anchor b = a m",
                     "anchor c = b m e")  # fmt: skip
    assert program(graph, "a", rules()) == "a b c"
    assert program(graph, "b", rules()) == "", "the program is its first anchor's"


def test_later_cores_find_the_first_past_what_lies_between() -> None:
    graph = graph_of("step p = x", "step q = p", "anchor a = q", "step b = a", "step c = b",
                     "anchor d = c q")  # fmt: skip
    assert program(graph, "a", rules()) == "a b c d"
    assert program(graph, "d", rules()) == ""
