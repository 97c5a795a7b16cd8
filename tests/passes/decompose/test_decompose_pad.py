"""Padding of other axes than an image's is written as padding of images."""

from __future__ import annotations

import pytest

from tests.graphs import Net, assert_same, loaded, normal, ops, optimized, reasons, schedule_only
from tracea_graph.passes.decompose.decompose import Decompose
from tracea_graph.passes.layout.read_views import RESHAPES

Sizes = tuple[int | str, ...]


@pytest.mark.parametrize(
    ("sizes", "pads"),
    [
        (("n", 5, 6, 16), (0, 0, 0, 0, 0, 2, 1, 0)),  # windows of maps, channels last
        (("n", 5, 6, 16), (0, 1, 0, 0, 0, 2, 0, 0)),
        ((3, 5, 6, 16), (1, 2, 0, 0, 1, 0, 0, 0)),
        (("n", 5, 16), (0, 2, 0, 0, 0, 0)),  # a causal convolution's frames
        (("n", "t", 16), (0, 2, 0, 0, 0, 0)),
        ((2, 5, "t"), (0, 0, 1, 0, 0, 3)),
        (("n", 2, 5, 3, 4), (0, 0, 1, 0, 0, 0, 0, 2, 0, 0)),
        ((5, 16), (1, 2, 3, 4)),
    ],
)
def test_padding_is_part_of_a_program(sizes: Sizes, pads: tuple[int, ...]) -> None:
    net = Net()
    x = net.input("x", *sizes)
    last = sizes[-1]
    inner = net("MatMul", x, net.weight(last, last)) if isinstance(last, int) else x
    width = (last + pads[len(sizes) - 1] + pads[-1]) if isinstance(last, int) else 0
    y = net("Pad", inner, net.ints(*pads))
    y = net("MatMul", y, net.weight(width, 8)) if width else net("Relu", y)
    graph = loaded(net, y)
    trace = optimized(graph)
    assert trace.applied()["decompose"] == 1, trace.misses()
    if width:
        assert [op for op in ops(graph) if op not in RESHAPES] == ["FusedRegion"], trace.misses()
    assert "Pad" not in ops(graph), trace.misses()
    fed = normal(*(s if isinstance(s, int) else 2 + i for i, s in enumerate(sizes)))
    assert_same(net, graph, {"x": fed}, 5e-6)


def test_axes_by_name() -> None:
    net = Net(opset=18)
    y = net("Pad", net.input("x", "n", 5, 16), net.ints(1, 2), "", net.ints(-2))
    graph = loaded(net, y)
    trace = schedule_only(graph, Decompose())
    assert trace.applied() == {"decompose": 1}, trace.misses()
    assert ops(graph) == ["Unsqueeze", "Pad", "Squeeze"]
    assert_same(net, graph, {"x": normal(3, 5, 16)})


@pytest.mark.parametrize("pads", [(0, 2, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0)])
def test_rows_of_any_length_in_any_number(pads: tuple[int, ...]) -> None:
    net = Net()
    graph = loaded(net, net("Pad", net.input("x", "n", "t", 16), net.ints(*pads)))
    assert schedule_only(graph, Decompose()).applied() == {"decompose": 1}
    for sizes in ((2, 3), (2, 0), (0, 3)):
        assert_same(net, graph, {"x": normal(*sizes, 16)})


@pytest.mark.parametrize(
    ("sizes", "pads", "value", "reason"),
    [
        (("n", 3, 5, 6), (0, 0, 1, 1, 0, 0, 1, 1), 0.0, None),  # an image as it is
        (("n", 5, 6, 16), (0, 0, 0, 0, 0, -1, 1, 0), 0.0, "an amount of padding is negative"),
        (("n", 5, 16), (0, 2, 0, 0, 0, 0), 1.0, "the padding is not zero"),
        (("n", 5, 6, 16), (0, 1, 0, 1, 0, 0, 0, 0), 0.0,
         "the padded axes are not two neighbouring ones"),
        (("n", 5, 6, "c"), (0, 1, 0, 0, 0, 0, 0, 0), 0.0,
         "an extent behind the padded axes is not known"),
        (("n", "m", 5, 6, 16), (0, 0, 1, 0, 0, 0, 0, 0, 0, 0), 0.0,
         "the sizes of its axes are not known"),
    ],
)  # fmt: skip
def test_other_padding_stays(
    sizes: Sizes, pads: tuple[int, ...], value: float, reason: str | None
) -> None:
    net = Net()
    graph = loaded(net, net("Pad", net.input("x", *sizes), net.ints(*pads), net.const(value)))
    trace = schedule_only(graph, Decompose())
    assert reasons(trace, "decompose") == ({reason} if reason else set())
    assert ops(graph) == ["Pad"]


def test_what_a_convolution_pads_by_itself_stays_with_it() -> None:
    net = Net()
    y = net("Pad", net.input("x", "n", 4, 9), net.ints(0, 0, 2, 0, 0, 0))
    graph = loaded(net, net("Conv", y, net.weight(8, 4, 3)))
    assert not schedule_only(graph, Decompose()).applied()
