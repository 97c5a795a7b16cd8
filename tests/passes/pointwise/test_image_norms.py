"""Group, instance and batch norms, and layer norms over the channels, in every spelling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, only, ops, optimized, reasons, schedule_only
from tracea_graph.passes.convolution.batch_norm import BATCH_NORM
from tracea_graph.passes.pointwise import image_norms
from tracea_graph.rewrite import RulePass

RULES = tuple(map(RulePass, image_norms.RULES))
FEEDS = {"x": normal(2, 6, 5, 7) * 2 + 1}
Write = Callable[[Net, str], str]


def new(opset: int = 21) -> tuple[Net, str]:
    net = Net(opset)
    return net, net.input("x", "batch", 6, "seq", 7)


def group_norm(net: Net, x: str, scale: float = 1.0, back: str = "") -> str:
    """As PyTorch's exporters write it."""
    flat = net("Reshape", x, net.ints(0, 3, -1))
    ones, zeros = net.const(np.full(3, scale)), net.const(np.zeros(3))
    y = net("InstanceNormalization", flat, ones, zeros, epsilon=1e-6)
    return net("Reshape", y, back or net("Shape", x))


def spelled(net: Net, x: str, axis: int = 1) -> str:
    d = net("Sub", x, net.mean(x, axis))
    variance = net("Add", net.mean(net("Mul", d, d), axis), 1e-6)
    return net("Div", d, net("Sqrt", variance))


def turned(net: Net, x: str, back: tuple[int, ...] = (0, 3, 1, 2)) -> str:
    last = net("Transpose", x, perm=(0, 2, 3, 1))
    y = net("LayerNormalization", last, net.weight(6), net.weight(6), epsilon=1e-6)
    return net("Transpose", y, perm=back)


FORMS: dict[str, tuple[Write, str, int]] = {
    "InstanceNormalization": (
        lambda n, x: n("InstanceNormalization", x, n.weight(6), n.weight(6)), "channel-norm-op", 6
    ),
    "GroupNormalization": (
        lambda n, x: n("GroupNormalization", x, n.weight(6), n.weight(6), num_groups=2),
        "channel-norm-op", 2,
    ),
    "group norm": (
        lambda n, x: n("Add", n("Mul", group_norm(n, x), n.weight(6, 1, 1)), n.weight(6, 1, 1)),
        "group-norm", 3,
    ),
    "group norm, bare": (lambda n, x: group_norm(n, x), "group-norm", 3),
    "layer norm over channels": (
        lambda n, x: n("Add", n("Mul", n.weight(6, 1, 1), spelled(n, x)), n.weight(1, 6, 1, 1)),
        "layer-norm-over-channels", 0,
    ),
    "layer norm over channels, bare": (spelled, "layer-norm-over-channels", 0),
    "rms norm over channels": (
        lambda n, x: n(
            "Mul", n("Div", x, n("Sqrt", n("Add", n.mean(n("Mul", x, x), 1), 1e-6))),
            n.weight(6, 1, 1),
        ), "rms-norm-over-channels", 0,
    ),
    "turned": (turned, "transposed-layer-norm", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_spelling_is_a_channel_norm(name: str) -> None:
    write, rule, groups = FORMS[name]
    net, x = new()
    graph = net.graph(write(net, x))
    trace = schedule_only(graph, *RULES)
    assert trace.applied() == {rule: 1}
    assert only(graph, "FusedChannelNorm").params.groups == groups
    assert_same(net, graph, FEEDS)


MISSED: dict[str, tuple[Write, str, str]] = {
    "per group": (
        lambda n, x: group_norm(n, x, 2.0), "group-norm",
        "its InstanceNormalization also has weights per group"
    ),
    "another shape": (
        lambda n, x: group_norm(n, x, back=n.ints(0, 3, -1, 7)),
        "group-norm", "the result does not have the shape of x",
    ),
    "another axis": (
        lambda n, x: spelled(n, x, 2), "layer-norm-over-channels",
        "a mean is not over the channels alone",
    ),
    "turned elsewhere": (
        lambda n, x: turned(n, x, (0, 3, 2, 1)), "transposed-layer-norm",
        "the result is not transposed back to channels first",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSED)
def test_what_is_no_channel_norm_stays(name: str) -> None:
    write, rule, reason = MISSED[name]
    net, x = new()
    graph = net.graph(write(net, x))
    trace = schedule_only(graph, *(r for r in RULES if r.name == rule))
    assert reasons(trace, rule) == {reason}
    assert "FusedChannelNorm" not in ops(graph)


def batch_norm(net: Net, x: str, **attrs: int) -> str:
    statistics = [net.weight(6), net.weight(6), net.weight(6), net.const(np.abs(normal(6)) + 0.5)]
    return net("BatchNormalization", x, *statistics, **attrs)


def test_a_batch_norm_is_a_product_and_a_sum() -> None:
    net, x = new()
    graph = net.graph(net("Relu", batch_norm(net, x)))
    trace = optimized(graph)
    assert ops(graph) == ["FusedElementwise"] and trace.applied()["batch-norm"] == 1
    assert only(graph, "FusedElementwise").params.chain.text.endswith(
        "|mul(0,1);add(3,2);relu(4)|5"
    )
    assert_same(net, graph, FEEDS, 2e-6)


def test_a_batch_norm_over_vectors() -> None:
    net = Net(15)
    graph = net.graph(batch_norm(net, net.input("x", "batch", 6)))
    schedule_only(graph, RulePass(BATCH_NORM))
    assert ops(graph) == ["FusedElementwise"]
    assert_same(net, graph, {"x": normal(4, 6)}, 2e-6)
