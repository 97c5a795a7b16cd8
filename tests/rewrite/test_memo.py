"""What passes said is said again as long as all they looked at is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.unrolled_scan import unrolled
from tests.rewrite.test_scheduler import Fuse, chain, cost
from tracea_graph.ir import Node
from tracea_graph.onnx_io import load
from tracea_graph.options import Options
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel, Machine
from tracea_graph.rewrite import (
    Miss,
    PassResultCache,
    Phase,
    Proposal,
    SchedulerLimits,
    schedule_rewrites,
)
from tracea_graph.rewrite import pass_result_cache as memos
from tracea_graph.ttg import Region, TileGraph


def test_a_second_run_asks_nothing_and_decides_the_same() -> None:
    _, graph = chain("Exp", "Relu", "Tanh", "Exp", "Relu")
    rule, memo = Fuse("Exp", "Relu"), PassResultCache()
    phases = (Phase("test", (rule,)),)
    first = schedule_rewrites(graph.copy(memo.history), phases, cost, memo=memo)
    asked = len(rule.asked)
    second = schedule_rewrites(graph.copy(memo.history), phases, cost, memo=memo)
    assert asked and len(rule.asked) == asked
    assert second.entries == first.entries


def test_what_became_of_a_neighbour_is_asked_about() -> None:
    _, graph = chain("Exp", "Relu", "Tanh", "Exp", "Relu")
    rule, memo = Fuse("Exp", "Relu"), PassResultCache()
    phases = (Phase("test", (rule,)),)
    schedule_rewrites(graph.copy(memo.history), phases, cost, memo=memo)
    frozen = {graph.regions()[1].results[0]: "it is frozen"}
    before = len(rule.asked)
    trace = schedule_rewrites(
        graph.copy(memo.history), phases, cost, SchedulerLimits(frozen=frozen), memo=memo
    )
    assert trace.applied() == {rule.name: 1}
    # what Tanh reads and writes differs from the first run, where both pairs were fused
    assert len(rule.asked) <= before + 3


class Wide:
    """Says how many regions there are: an answer that depends on all of them."""

    name = "wide"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        yield Miss(self.name, region.id, str(len(graph.regions())))


def test_an_answer_about_the_whole_graph_holds_for_that_graph_only() -> None:
    _, graph = chain("Exp", "Relu", "Tanh")
    memo, phase = PassResultCache(), Phase("test", (Wide(),))
    one = graph.copy(memo.history)
    last = one.regions()[-1]

    def said(about: TileGraph) -> str:
        ((_, item),) = memo.ask(about, last, (phase, None), phase.passes)
        assert isinstance(item, Miss)
        return item.reason

    assert said(one) == "3"
    first, second = one.regions()[:2]
    one.replace((first, second), (Fuse("Exp", "Relu").fused(first, second),))
    assert said(one) == "2"
    assert said(graph.copy(memo.history)) == "3"


def test_what_is_known_of_a_value_is_part_of_its_state() -> None:
    _, graph = chain("Exp", "Relu")
    copy = graph.copy({})
    first, second = copy.regions()
    with copy.watched() as seen:
        copy.producer(first.results[0])
    before = copy.states(seen)
    spec = copy.spec(second.results[0])
    copy.replace((second,), (second,), {second.operands[0]: type(spec)(spec.dtype, (7, 7))})
    assert copy.states(seen) != before


@pytest.mark.parametrize("keep", ["all", "faster"])
def test_every_answer_a_plan_takes_from_memory_is_right(
    keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(unrolled(2, 6), tmp_path / "m.onnx")
    graph, sizes = load(tmp_path / "m.onnx").graph, {"batch": 1}
    ask, kept = PassResultCache.ask, [0, 0]

    def checked(memo, graph, region, key, passes):  # type: ignore[no-untyped-def]
        found = ask(memo, graph, region, key, passes)
        fresh = [(p.name, item) for p in passes for item in p.propose(graph, region)]
        assert [*map(told, found)] == [*map(told, fresh)]
        kept[0] += 1
        return found

    def made(entry: object) -> object:
        kept[1] += 1
        return entry

    entry = memos._Entry
    monkeypatch.setattr(memos, "_Entry", lambda *args: made(entry(*args)))
    monkeypatch.setattr(PassResultCache, "ask", checked)
    planner = Planner(graph, Options(keep=keep), sizes, cost=CostModel(Machine(), sizes))
    first = planner.plan()
    asked, fresh = kept
    second = planner.plan_under(first.constraints)
    assert kept[1] == fresh < asked < kept[0], "the second plan has all from memory"
    assert second.trace.entries == first.trace.entries


def told(answer: tuple[str, Proposal | Miss]) -> object:
    name, item = answer
    if isinstance(item, Miss):
        return item
    new = [(r.id, r.op, r.operands, r.results, r.params) for r in item.new]
    return name, item.rule, [r.id for r in item.old], new, item.error, item.step


@pytest.mark.parametrize("seed", range(8))
def test_what_joins_a_convex_set_keeps_it_convex(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = [
        Node("Op", tuple(f"v{j}" for j in set(rng.integers(0, i + 1, 2).tolist())), (f"v{i + 1}",))
        for i in range(40)
    ]
    graph = TileGraph.of_nodes(nodes, ["v0"], [f"v{i}" for i in range(1, 41)], {}, {})
    regions = graph.regions()
    inside = {regions[20].id: regions[20]}
    for i in rng.permutation(40):
        near = regions[i]
        if near.id in inside:
            continue
        more = graph.convex_closure(inside, near)
        every = graph.convex((*inside.values(), near))
        assert more == [r for r in every if r.id not in inside]
        if len(inside) < 20:
            inside |= {r.id: r for r in more}
