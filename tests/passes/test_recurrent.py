"""Recurrent cells become regions where the kernel computes what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, every_phase, normal, only, reasons, schedule_only
from tracea_graph.errors import GraphError
from tracea_graph.kernels.cpu.gate_layouts import GATE_PANELS
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.kernels.cpu.phases.pack_gates import PackGates
from tracea_graph.ops.recurrent import PLAIN_GATES
from tracea_graph.passes.recurrent import RECURRENT
from tracea_graph.rewrite import RulePass, SchedulerLimits, schedule_rewrites

GATES = {"LSTM": 4, "GRU": 3}
STATES = {"LSTM": 2, "GRU": 1}
STEPS, BATCH, INPUTS, HIDDEN = 6, 3, 7, 5


def cell(op: str, directions: int = 1, bias: bool = True, **attrs: Any) -> tuple[Net, list[str]]:
    """A net with x and the cell's first operands."""
    net, gates = Net(14), GATES[op]
    x = net.input("x", "steps", "batch", INPUTS)
    w = net.const(0.3 * normal(directions, gates * HIDDEN, INPUTS, seed=1))
    r = net.const(0.3 * normal(directions, gates * HIDDEN, HIDDEN, seed=2))
    return net, [x, w, r, net.weight(directions, 2 * gates * HIDDEN) if bias else ""]


def usual(op: str) -> dict[str, Any]:
    return {"hidden_size": HIDDEN} | ({"linear_before_reset": 1} if op == "GRU" else {})


def test_layers_of_equal_weights_reset_before_and_after_the_product() -> None:
    net, operands = cell("GRU")
    results = [
        net.many("GRU", 1, *operands, hidden_size=HIDDEN, linear_before_reset=late)[0]
        for late in (0, 1)
    ]
    graph = net.graph(*results)
    assert schedule_only(graph, RulePass(RECURRENT)).applied() == {"recurrent": 2}
    assert schedule_only(graph, PackGates()).applied() == {"pack-gates": 2}
    assert_same(net, graph, {"x": normal(STEPS, BATCH, INPUTS)}, 2e-6)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op", GATES)
def test_a_cell_is_a_region(op: str, bias: bool, initial: bool, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    net, operands = cell(op, directions, bias)
    feeds = {"x": normal(STEPS, BATCH, INPUTS)}
    if initial:
        operands.append("")
        for name in ("h", "c")[: STATES[op]]:
            operands.append(net.input(name, directions, "batch", HIDDEN))
            feeds[name] = normal(directions, BATCH, HIDDEN, seed=9)
    results = net.many(op, 1 + STATES[op], *operands, direction=direction, **usual(op))
    graph = net.graph(*results)
    assert schedule_only(graph, RulePass(RECURRENT)).applied() == {"recurrent": 1}
    params = only(graph, "FusedRecurrent").params
    assert params.results == ("y", "h", "c")[: 1 + STATES[op]]
    assert (params.directions, params.initial) == (directions, initial)
    assert_same(net, graph, feeds, 2e-6)
    assert schedule_only(graph, PackGates()).applied() == {"pack-gates": 1}
    region = only(graph, "FusedRecurrent")
    assert region.params.layout == GATE_PANELS and region.rule == "recurrent"
    assert_same(net, graph, feeds, 2e-6)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("initial", [False, True])
def test_a_gru_that_resets_before_its_product(initial: bool, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    net, operands = cell("GRU", directions)
    feeds = {"x": normal(STEPS, BATCH, INPUTS)}
    if initial:
        operands += ["", net.input("h", directions, "batch", HIDDEN)]
        feeds["h"] = normal(directions, BATCH, HIDDEN, seed=9)
    results = net.many("GRU", 2, *operands, direction=direction, hidden_size=HIDDEN)
    graph = net.graph(*results)
    assert schedule_only(graph, RulePass(RECURRENT)).applied() == {"recurrent": 1}
    assert only(graph, "FusedRecurrent").params.before
    assert_same(net, graph, feeds, 2e-6)
    assert schedule_only(graph, PackGates()).applied() == {"pack-gates": 1}
    assert_same(net, graph, feeds, 2e-6)


def test_gates_are_packed_whatever_rules_are_allowed() -> None:
    """No kernel reads them otherwise."""
    net, operands = cell("LSTM")
    graph = net.graph(net.many("LSTM", 1, *operands, **usual("LSTM"))[0])
    limits = SchedulerLimits(only=frozenset({"recurrent"}), min_gain_us=float("-inf"))
    schedule_rewrites(graph, every_phase(), lambda g, r: 1.0, limits)
    region = only(graph, "FusedRecurrent")
    assert [call.op for call in lower(graph, region).calls] == ["gemm", "recurrent"]
    plain = replace(region, params=replace(region.params, layout=PLAIN_GATES))
    with pytest.raises(GraphError, match="no kernel reads gates stored as 'plain'"):
        lower(graph, plain)


def test_results_nobody_wants_are_not_computed() -> None:
    net, operands = cell("LSTM")
    _, h, _ = net.many("LSTM", 3, *operands, **usual("LSTM"))
    net.nodes[-1].output[0] = net.nodes[-1].output[2] = ""
    graph = net.graph(h)
    schedule_only(graph, RulePass(RECURRENT))
    assert only(graph, "FusedRecurrent").params.results == ("h",)
    assert_same(net, graph, {"x": normal(STEPS, BATCH, INPUTS)}, 2e-6)


@pytest.mark.parametrize(
    ("op", "attrs", "reason"),
    [
        ("LSTM", {"clip": 0.5}, "it sets clip, input_forget or layout"),
        ("LSTM", {"input_forget": 1}, "it sets clip, input_forget or layout"),
        ("LSTM", {"activations": ["Tanh"] * 3}, "its activations are not the defaults"),
    ],
)  # fmt: skip
def test_what_the_kernel_does_not_compute_stays(op: str, attrs: Any, reason: str) -> None:
    net, operands = cell(op)
    graph = net.graph(net(op, *operands, **(usual(op) | attrs)))
    trace = schedule_only(graph, RulePass(RECURRENT))
    assert trace.applied() == {} and reasons(trace, "recurrent") == {reason}


def test_lengths_and_fed_matrices_are_named() -> None:
    net, operands = cell("GRU")
    lengths = net.const(np.full(BATCH, STEPS), np.int32)
    graph = net.graph(net("GRU", *operands, lengths, **usual("GRU")))
    trace = schedule_only(graph, RulePass(RECURRENT))
    assert reasons(trace, "recurrent") == {f"its sequences have individual lengths, {lengths!r}"}
    net, operands = cell("GRU")
    operands[2] = net.input("r", 1, 3 * HIDDEN, HIDDEN)
    trace = schedule_only(net.graph(net("GRU", *operands, **usual("GRU"))), RulePass(RECURRENT))
    assert reasons(trace, "recurrent") == {
        f"the matrices {operands[1]!r} and 'r' are not both constant"
    }
