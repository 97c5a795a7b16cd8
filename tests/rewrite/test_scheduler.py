"""The scheduler: order by gain, verdicts with reasons, and the same trace every time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.graphs import Net
from tracea_graph.errors import GraphError, RuleError
from tracea_graph.ir import DType, Node, TensorSpec, Weight
from tracea_graph.reason_codes import Code
from tracea_graph.rewrite import (
    DecisionTrace,
    Miss,
    Phase,
    Proposal,
    SchedulerLimits,
    schedule_rewrites,
)
from tracea_graph.ttg import Region, TileGraph

WEIGHT = {"Exp": 5.0, "Relu": 1.0, "Tanh": 1.0, "Add": 1.0, "Pair": 0.5, "Triple": 0.5}


def cost(graph: TileGraph, region: Region) -> float:
    return WEIGHT.get(region.op, 1.0)


@dataclass(frozen=True)
class Fuse:
    """``second(first(x))`` becomes one region."""

    first: str
    second: str
    op: str = "Pair"
    asked: list[str] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        return f"{self.first}-{self.second}".lower()

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        self.asked.append(region.id)
        before = graph.producer(region.operands[0]) if region.operands else None
        if region.op != self.second or before is None or before.op != self.first:
            return
        if graph.only_use(region.operands[0]) is None:
            yield Miss(self.name, region.id, "read twice")
            return
        yield Proposal(self.name, (before, region), (self.fused(before, region),))

    def fused(self, before: Region, region: Region) -> Region:
        nodes = (*before.nodes, *region.nodes)
        name = f"{self.op}:{region.results[0]}"
        return Region(name, self.op, before.operands, region.results, nodes, params=self)


CHECKED = SchedulerLimits(check=True)


def run(graph: TileGraph, *passes: object, limits: SchedulerLimits = CHECKED) -> DecisionTrace:
    return schedule_rewrites(graph, (Phase("test", passes),), cost, limits)  # type: ignore[arg-type]


def chain(*ops: str) -> tuple[Net, TileGraph]:
    net = Net()
    value = net.input("x", 4)
    for op in ops:
        value = net(op, value)
    return net, net.graph(value)


def ops(graph: TileGraph) -> list[str]:
    return [r.op for r in graph.regions()]


def verdicts(trace: DecisionTrace) -> list[tuple[str, str, str]]:
    return [(d.rule, d.verdict, d.reason) for d in trace.entries]


def test_the_greater_gain_goes_first_and_supersedes_the_other() -> None:
    _, graph = chain("Tanh", "Relu", "Exp")
    trace = run(graph, Fuse("Tanh", "Relu"), Fuse("Relu", "Exp"))
    assert ops(graph) == ["Tanh", "Pair"]
    between = graph.regions()[1].nodes[0].outputs[0]
    assert verdicts(trace) == [
        ("relu-exp", "applied", ""),
        ("tanh-relu", "superseded", f"relu-exp rewrote {between!r} first"),
    ]
    assert [d.gain_us for d in trace.entries] == [5.5, 1.5]


def test_equal_gains_go_by_the_order_of_the_graph_then_of_the_passes() -> None:
    _, graph = chain("Relu", "Tanh", "Relu")
    trace = run(graph, Fuse("Tanh", "Relu"), Fuse("Relu", "Tanh"))
    assert trace.applied() == {"relu-tanh": 1}


def test_what_a_rewrite_makes_possible_is_asked_for() -> None:
    _, graph = chain("Tanh", "Relu", "Exp")
    trace = run(graph, Fuse("Tanh", "Relu"), Fuse("Pair", "Exp", "Triple"))
    assert ops(graph) == ["Triple"]
    assert trace.applied() == {"tanh-relu": 1, "pair-exp": 1}


def test_only_the_neighbourhood_is_asked_again() -> None:
    _, graph = chain("Neg", "Abs", "Tanh", "Relu", "Sqrt", "Exp", "Log")
    rule = Fuse("Tanh", "Relu")
    every = [r.id for r in graph.regions()]
    run(graph, rule)
    sqrt = every[4]
    fused = next(r.id for r in graph.regions() if r.op == "Pair")
    assert rule.asked[: len(every)] == every
    assert set(rule.asked[len(every) :]) == {fused, sqrt}, "Abs reads what it read before"


def test_no_gain_is_rejected() -> None:
    _, graph = chain("Tanh", "Relu")
    trace = run(graph, Fuse("Tanh", "Relu"), limits=SchedulerLimits(min_gain_us=1.6))
    assert [d.verdict for d in trace.entries] == ["rejected"]
    assert trace.entries[0].code is Code.NO_PREDICTED_GAIN
    assert ops(graph) == ["Tanh", "Relu"]


def test_frozen_operators_stay() -> None:
    _, graph = chain("Tanh", "Relu", "Exp")
    inner = graph.regions()[0].results[0]
    trace = run(
        graph, Fuse("Tanh", "Relu"), limits=SchedulerLimits(frozen={inner: "measured no faster"})
    )
    assert verdicts(trace) == [("tanh-relu", "rejected", "measured no faster")]


def test_what_nothing_could_run_is_not_made() -> None:
    _, graph = chain("Tanh", "Relu", "Exp")
    small = SchedulerLimits(
        lacks=lambda graph, region: "there are no triples" * (region.op == "Triple")
    )
    trace = run(graph, Fuse("Tanh", "Relu"), Fuse("Pair", "Exp", "Triple"), limits=small)
    assert ("pair-exp", "rejected", "there are no triples") in verdicts(trace)
    assert trace.applied() == {"tanh-relu": 1} and ops(graph) == ["Pair", "Exp"]


@pytest.mark.parametrize(
    ("limits", "applied"),
    [
        (SchedulerLimits(only=frozenset({"relu-exp"})), {"relu-exp"}),
        (SchedulerLimits(skip=frozenset({"relu-exp"})), {"tanh-relu"}),
        (SchedulerLimits(only=frozenset({"relu-exp"}), skip=frozenset({"relu-exp"})), set()),
    ],
)
def test_rules_can_be_chosen(limits: SchedulerLimits, applied: set[str]) -> None:
    _, graph = chain("Tanh", "Relu", "Exp")
    assert (
        set(run(graph, Fuse("Tanh", "Relu"), Fuse("Relu", "Exp"), limits=limits).applied())
        == applied
    )


def diamond() -> tuple[Net, TileGraph]:
    """y = Tanh(x); z = y + Relu(y)"""
    net = Net()
    y = net("Tanh", net.input("x", 4))
    return net, net.graph(net("Add", y, net("Relu", y)))


@dataclass(frozen=True)
class TanhWithAdd:
    """Fuses around the Relu between them, which would be a cycle."""

    name: str = "around"

    def propose(self, graph: TileGraph, region: Region) -> Iterable[Proposal]:
        if region.op != "Add":
            return
        first = graph.producer(region.operands[0])
        assert first is not None
        operands = (*first.operands, region.operands[1])
        results = (*first.results, *region.results)
        yield Proposal(
            self.name,
            (first, region),
            (Region("around", "Pair", operands, results, (), params=self),),
        )


def test_a_cycle_is_rejected_and_changes_nothing() -> None:
    _, graph = diamond()
    before = graph.copy()
    trace = run(graph, TanhWithAdd())
    assert [d.verdict for d in trace.entries] == ["rejected"]
    assert trace.entries[0].code is Code.CYCLE
    assert [r.id for r in graph.regions()] == [r.id for r in before.regions()]


@dataclass(frozen=True)
class Breaks:
    """Drops a value others read."""

    name: str = "breaks"

    def propose(self, graph: TileGraph, region: Region) -> Iterable[Proposal]:
        if region.op == "Tanh":
            fused = Region("fused", "Pair", region.operands, ("new",), region.nodes, params=self)
            yield Proposal(self.name, (region,), (fused,), {"new": graph.spec(region.results[0])})


def test_a_proposal_that_drops_a_value_in_use_is_rejected() -> None:
    _, graph = diamond()
    trace = run(graph, Breaks())
    assert trace.entries[0].verdict == "rejected"
    assert trace.entries[0].code is Code.OTHER_READERS
    graph.check()


# ---- misses ------------------------------------------------------------------------------


def shared() -> TileGraph:
    """Tanh, then Relu that reads it, then Exp that reads it too."""
    net = Net()
    y = net("Tanh", net.input("x", 4))
    return net.graph(net("Relu", y), net("Log", net("Exp", y)))


def test_a_miss_is_written_down_once() -> None:
    trace = run(shared(), Fuse("Tanh", "Relu"), Fuse("Exp", "Log"))
    assert trace.misses() == {("tanh-relu", "read twice"): 1}
    assert trace.entries[-1].verdict == "missed"


@dataclass(frozen=True)
class DropExp:
    """Takes the second reader away: Log(Exp(y)) is computed from Tanh's operand."""

    name: str = "drop-exp"

    def propose(self, graph: TileGraph, region: Region) -> Iterable[Proposal]:
        before = graph.producer(region.operands[0]) if region.operands else None
        if region.op == "Log" and before is not None and before.op == "Exp":
            fused = Region("other", "Pair", ("x",), region.results, region.nodes, params=self)
            yield Proposal(self.name, (before, region), (fused,))


def test_a_miss_is_tried_again_when_what_was_in_the_way_is_gone() -> None:
    graph = shared()
    trace = run(graph, Fuse("Tanh", "Relu"), DropExp())
    assert trace.applied() == {"drop-exp": 1, "tanh-relu": 1}
    assert trace.misses() == {}
    assert sorted(ops(graph)) == ["Pair", "Pair"]


# ---- the whole ---------------------------------------------------------------------------


def test_the_trace_is_the_same_every_time() -> None:
    def trace() -> list[object]:
        _, graph = chain(*("Tanh", "Relu", "Exp", "Tanh", "Relu", "Tanh", "Exp", "Relu"))
        passes = (Fuse("Tanh", "Relu"), Fuse("Relu", "Exp"), Fuse("Exp", "Tanh"))
        return [(d.rule, d.where, d.verdict, d.gain_us) for d in run(graph, *passes).entries]

    assert trace() == trace()


def test_phases_run_in_order_and_dead_regions_go_between_them() -> None:
    net = Net()
    x = net.input("x", 4)
    net("Neg", x)
    graph = net.graph(net("Exp", net("Relu", net("Tanh", x))))
    phases = (Phase("a", (Fuse("Tanh", "Relu"),)), Phase("b", (Fuse("Relu", "Exp"),)))
    trace = schedule_rewrites(graph, phases, cost)
    assert [(d.phase, d.rule) for d in trace.entries] == [("a", "tanh-relu")]
    assert ops(graph) == ["Pair", "Exp"]


def test_a_phase_without_passes_does_nothing() -> None:
    _, graph = chain("Tanh", "Relu")
    assert schedule_rewrites(graph, (Phase("empty", ()),), cost).entries == []
    assert ops(graph) == ["Tanh", "Relu"]


def test_passes_of_one_name_cannot_share_a_phase() -> None:
    one, other = Fuse("Tanh", "Relu"), Fuse("Tanh", "Relu", "Other")
    assert one.name == other.name
    with pytest.raises(ValueError, match=f"'a' has two passes called '{one.name}'"):
        Phase("a", (one, other))


def test_graph_errors_of_replace_leave_the_graph_usable() -> None:
    _, graph = chain("Tanh", "Relu")
    first, second = graph.regions()
    with pytest.raises(GraphError, match="is still read by"):
        graph.replace([first], [])
    graph.check()
    assert graph.regions() == [first, second]


# ---- rules that raise ----------------------------------------------------------------------


@dataclass(frozen=True)
class Raising(Fuse):
    """Raises where it would propose."""

    def fused(self, before: Region, region: Region) -> Region:
        raise KeyError(region.id)


def test_a_rule_that_raises_is_named() -> None:
    _, graph = chain("Tanh", "Relu")
    with pytest.raises(RuleError, match="rule 'tanh-relu' raised KeyError: ") as caught:
        run(graph, Raising("Tanh", "Relu"))
    assert caught.value.rule == "tanh-relu" and isinstance(caught.value.__cause__, KeyError)


def test_a_rewrite_that_breaks_the_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where graphs are checked after every rewrite."""

    def check(graph: TileGraph) -> None:
        if "Pair" in ops(graph):
            raise GraphError("it has a hole")

    monkeypatch.setattr(TileGraph, "check", check)
    _, graph = chain("Tanh", "Relu")
    with pytest.raises(RuleError, match="rule 'tanh-relu' raised GraphError: it has a hole"):
        run(graph, Fuse("Tanh", "Relu"))


# ---- gain per cost, and the error budget ---------------------------------------------------


def test_equal_sites_are_disposed_of_together() -> None:
    _, graph = chain("Tanh", "Relu", "Relu", "Exp", "Tanh", "Relu")
    trace = run(graph, Fuse("Tanh", "Relu"), Fuse("Relu", "Exp"))
    assert [d.rule for d in trace.entries] == ["relu-exp", "tanh-relu", "tanh-relu"]


def test_what_takes_less_of_the_budget_goes_first_where_gains_are_close() -> None:
    def applied(share: float) -> set[str]:
        _, graph = chain("Relu", "Tanh", "Sqrt")
        dear, cheap = Fuse("Relu", "Tanh", "Triple"), Fuse("Tanh", "Sqrt", "Pair")
        phases = (Phase("test", (dear, cheap)),)
        trace = schedule_rewrites(graph, phases, cost, price=lambda r: share * (r.op == "Triple"))
        return set(trace.applied())

    assert applied(0.0) == {"relu-tanh"}
    assert applied(0.5) == {"tanh-sqrt"}


def test_a_kind_of_region_has_its_price_named_once() -> None:
    _, graph = chain("Tanh", "Relu", "Exp", "Tanh", "Relu", "Exp", "Tanh", "Relu")
    asked = list[str]()

    def price(region: Region) -> float:
        asked.append(region.op)
        return 1.0

    trace = schedule_rewrites(graph, (Phase("test", (Fuse("Tanh", "Relu"),)),), cost, price=price)
    assert trace.applied() == {"tanh-relu": 3}
    assert asked == ["Pair"]


def test_a_graph_is_pruned_when_it_comes_and_when_it_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pruned = list[int]()
    prune = TileGraph.prune

    def counted(graph: TileGraph) -> int:
        pruned.append(len(graph.regions()))
        return prune(graph)

    monkeypatch.setattr(TileGraph, "prune", counted)
    _, graph = chain("Tanh", "Relu", "Exp")
    phases = [Phase(str(i), (rule,)) for i, rule in enumerate(
        (Fuse("Exp", "Exp"), Fuse("Relu", "Relu"), Fuse("Tanh", "Relu"), Fuse("Exp", "Relu"))
    )]  # fmt: skip
    schedule_rewrites(graph, phases, cost)
    assert pruned == [3, 2]


@dataclass(frozen=True)
class Rough:
    """Replaces every Tanh by something that is off by a hundredth."""

    name: str = "rough"

    def propose(self, graph: TileGraph, region: Region) -> Iterable[Proposal]:
        if region.op == "Tanh":
            new = Region(region.id, "Pair", region.operands, region.results, (), params=self)
            yield Proposal(self.name, (region,), (new,), error=0.01)


def test_rewrites_stay_within_the_error_allowed() -> None:
    _, graph = chain("Tanh", "Tanh", "Tanh")
    trace = run(graph, Rough(), limits=SchedulerLimits(max_error=0.015))
    assert [d.verdict for d in trace.entries] == ["applied", "applied", "rejected"]
    assert trace.entries[-1].reason == (
        "its predicted error of 0.01 would bring that of all rewrites above the 0.015 allowed"
    )


def test_what_no_input_decides_is_left_to_be_folded() -> None:
    """ONNX Runtime computes it once; what is random is none of it."""
    net = Net()
    table = net("Relu", net("Exp", net.const([1.0, 2.0, 3.0, 4.0])))
    noise = net("Relu", net("Exp", net("RandomNormal", shape=[4])))
    graph = net.graph(net("Add", net("Relu", net("Exp", net.input("x", 4))), table), noise)
    rule = Fuse("Exp", "Relu")
    trace = run(graph, rule)
    assert sorted(r.op for r in graph.regions()) == [
        "Add", "Exp", "Pair", "Pair", "RandomNormal", "Relu",
    ]  # fmt: skip
    assert table not in rule.asked and trace.applied() == {rule.name: 2}


@pytest.mark.parametrize(
    ("sizes", "numbers", "check", "verdicts"),
    [
        ((1, 1), (3.0, 3.0), True, {"applied"}),
        ((1, 1), (3.0, 2.0), True, {"applied", "rejected"}),  # seen by checks only
        ((1, 4), (3.0, 3.0), False, {"applied", "rejected"}),
    ],
)
def test_rules_make_equal_constants_of_one_name(
    sizes: tuple[int, int], numbers: tuple[float, float], check: bool, verdicts: set[str]
) -> None:
    net = Net()
    x = net.input("x", 4)
    graph = net.graph(net("Relu", x), net("Exp", x))
    rules = [
        Scaled("made", number, f"scaled-{op}", op, size)
        for number, op, size in zip(numbers, ("Relu", "Exp"), sizes, strict=True)
    ]
    trace = run(graph, *rules, limits=SchedulerLimits(min_gain_us=-np.inf, check=check))
    assert {d.verdict for d in trace.entries} == verdicts


@dataclass(frozen=True)
class Scaled:
    """``op`` becomes a product with a constant of this name, number and size."""

    constant: str
    number: float
    name: str = "scaled"
    op: str = "Relu"
    size: int = 1

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal]:
        if region.op == self.op:
            array = np.full(self.size, self.number, np.float32)
            node = Node("Mul", (region.operands[0], self.constant), region.results)
            new = Region(f"scaled:{region.id}", "Mul", node.inputs, node.outputs, (node,))
            weight = Weight(self.constant, DType.F32, (self.size,), lambda: array)
            yield Proposal(self.name, (region,), (new,), weights={self.constant: weight})


@pytest.mark.parametrize(
    ("name", "number", "verdict"),
    [
        ("two", 2.0, "applied"),  # equal to the model's own
        ("fresh", 3.0, "applied"),
        ("two", 3.0, "rejected"),
        ("x", 3.0, "rejected"),
        ("middle", 3.0, "rejected"),
    ],
)
def test_a_constant_never_takes_a_name_that_means_something_else(
    name: str, number: float, verdict: str
) -> None:
    """``Relu(middle) + two`` with ``middle = Tanh(x)``."""
    two = np.array([2.0], np.float32)
    nodes = [
        Node("Tanh", ("x",), ("middle",)), Node("Relu", ("middle",), ("a",)),
        Node("Add", ("a", "two"), ("y",)),
    ]  # fmt: skip
    specs = {v: TensorSpec(DType.F32, (4,)) for v in ("x", "middle", "a", "y")}
    weights = {"two": Weight("two", DType.F32, (1,), lambda: two)}
    graph = TileGraph.of_nodes(nodes, ("x",), ("y",), weights, specs)
    trace = run(
        graph, Scaled(name, number), limits=SchedulerLimits(min_gain_us=-np.inf, check=True)
    )
    assert [d.verdict for d in trace.entries] == [verdict]
    if verdict == "rejected":
        assert trace.entries[0].code is Code.NAME_CLASH and name in trace.entries[0].reason
        assert graph.weights["two"].array() == 2
