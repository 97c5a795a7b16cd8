"""Parts that are cut from a concatenation as it was joined."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.graphs import Net, assert_same, normal, ops, optimized, reasons, schedule_only
from tracea_graph.passes.layout.slice_of_concat import SliceOfConcat

Write = Callable[[Net], tuple[str, ...]]
A, B, C = ("a", "batch", 3, 4, 5), ("b", "batch", 2, 4, 5), ("c", "batch", 6, 4, 5)
FEEDS = {name: normal(2, *shape, seed=i) for i, (name, _, *shape) in enumerate((A, B, C))}


def sliced(net: Net, value: str, start: int, end: int, axis: int = 1) -> str:
    return net("Slice", value, *(net.ints(i) for i in (start, end, axis)))


def split(net: Net, value: str, *sizes: int, axis: int = 1) -> list[str]:
    return net.many("Split", len(sizes), value, net.ints(*sizes), axis=axis)


def joined(net: Net) -> str:
    return net("Concat", *(net.input(*x) for x in (A, B, C)), axis=1)


def read(net: Net, parts: list[str]) -> tuple[str, ...]:
    return tuple(net("Relu", part) for part in parts)


def levels(net: Net, shared: bool = False) -> tuple[str, ...]:
    """As detectors do: two levels of boxes and classes, flattened and put together."""
    flat = []
    for i in range(2):
        both = net("Concat", net.input(f"p{i}", "batch", 3, 2 + i, 5),
                   net.input(f"q{i}", "batch", 4, 2 + i, 5), axis=1)  # fmt: skip
        flat.append(net("Reshape", both, net.ints(0, 7, -1)))
    together = net("Concat", *flat, axis=2)
    parts = split(net, together, 3, 4)
    return (*parts, *([net("Exp", together)] if shared else []))


def turned(net: Net) -> tuple[str, ...]:
    whole = net("Unsqueeze", net("Transpose", joined(net), perm=[0, 2, 3, 1]), net.ints(1))
    return read(net, split(net, whole, 3, 8, axis=4))


CUT: dict[str, tuple[Write, list[str]]] = {
    "all parts": (lambda n: read(n, split(n, joined(n), 3, 2, 6)), ["Relu"] * 3),
    "two parts together": (
        lambda n: read(n, split(n, joined(n), 3, 8)), ["Concat", "Relu", "Relu"],
    ),
    "one part": (lambda n: read(n, [sliced(n, joined(n), 3, 5)]), ["Relu"]),
    "one part by numbers from behind": (
        lambda n: read(n, [sliced(n, joined(n), -6, 2**31 - 1)]), ["Relu"],
    ),
    "read twice by one operator": (
        lambda n: (n("Add", *[sliced(n, joined(n), 3, 5)] * 2),), ["Add"],
    ),
    "one operator reads parts of two": (
        lambda n: (n("Add", sliced(n, y := joined(n), 0, 3), sliced(n, n("Concat", y, "a", axis=1),
                                                                   11, 14)),), ["Add"],
    ),
    "levels of a detector": (levels, ["Concat", "Concat", *["Reshape"] * 4]),
    "channels last": (turned, ["Concat", *["Relu"] * 2, *["Transpose"] * 2, *["Unsqueeze"] * 2]),
}  # fmt: skip
LEFT: dict[str, tuple[Write, str]] = {
    "between seams": (lambda n: read(n, split(n, joined(n), 4, 7)), ""),
    "one of the parts": (lambda n: read(n, split(n, joined(n), 3, 4, 4)), ""),
    "every other place": (
        lambda n: read(n, [n("Slice", joined(n), n.ints(3), n.ints(5), n.ints(1), n.ints(2))]), "",
    ),
    "another axis": (lambda n: read(n, split(n, joined(n), 1, 3, axis=2)), ""),
    "the whole is read, behind moves": (lambda n: levels(n, shared=True), ""),
    "a part is an output": (
        lambda n: tuple(split(n, joined(n), 3, 2, 6)), "a part is a graph output",
    ),
}  # fmt: skip


def feeds(net: Net) -> dict[str, object]:
    shapes = {f"{n}{i}": (2, 3 + (n == "q"), 2 + i, 5) for n in "pq" for i in range(2)}
    more = {name: normal(*shape, seed=7) for name, shape in shapes.items()}
    return {k: v for k, v in {**FEEDS, **more}.items() if k in net.inputs}


@pytest.mark.parametrize("name", CUT)
def test_parts_are_what_was_joined(name: str) -> None:
    net = Net()
    graph = net.graph(*CUT[name][0](net))
    schedule_only(graph, SliceOfConcat())
    assert sorted(ops(graph)) == sorted(CUT[name][1])
    assert_same(net, graph, feeds(net))


@pytest.mark.parametrize("name", LEFT)
def test_anything_else_stays(name: str) -> None:
    net = Net()
    write, reason = LEFT[name]
    graph = net.graph(*write(net))
    before = ops(graph)
    trace = schedule_only(graph, SliceOfConcat())
    assert ops(graph) == before
    assert not reason or any(reason in r for r in reasons(trace, SliceOfConcat.name))


@pytest.mark.parametrize("name", [*CUT, *LEFT])
def test_whole_pipelines_agree(name: str) -> None:
    net = Net()
    write = CUT[name][0] if name in CUT else LEFT[name][0]
    graph = net.graph(*write(net))
    optimized(graph)
    assert_same(net, graph, feeds(net))
