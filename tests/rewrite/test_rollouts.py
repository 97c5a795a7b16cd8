"""Rivals for one site: what each leaves possible decides which goes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.graphs import Net
from tracea_graph.rewrite import (
    DecisionTrace,
    PassResultCache,
    Phase,
    Proposal,
    SchedulerLimits,
    schedule_rewrites,
)
from tracea_graph.ttg import Region, TileGraph

CHECKED = SchedulerLimits(check=True)


@dataclass(frozen=True)
class Replace:
    """A chain of operators ``old`` becomes one region ``op``."""

    name: str
    old: tuple[str, ...]
    op: str
    error: float = 0.0

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal]:
        found, at = list[Region](), region
        for op in reversed(self.old):
            if at is None or at.op != op:
                return
            found.insert(0, at)
            at = graph.producer(at.operands[0])  # type: ignore[assignment]
        nodes = tuple(n for r in found for n in r.nodes)
        name = f"{self.op}:{region.results[0]}"
        new = Region(name, self.op, found[0].operands, region.results, nodes, params=self)
        yield Proposal(self.name, tuple(found), (new,), error=self.error)


def run(
    ops: str,
    rules: tuple[Replace, ...],
    costs: Mapping[str, float],
    limits: SchedulerLimits = CHECKED,
    rollouts: bool = True,
    memo: PassResultCache | None = None,
) -> tuple[list[str], DecisionTrace]:
    net = Net()
    value = net.input("x", 4)
    for op in ops.split():
        value = net(op, value)
    graph = net.graph(value)
    graph.record((memo := memo or PassResultCache()).history)
    phase = Phase("test", rules, rollouts=rollouts)
    trace = schedule_rewrites(
        graph, (phase,), lambda _, r: costs.get(r.op, 10.0), limits, memo=memo
    )
    return [r.op for r in graph.regions()], trace


MIDDLE = Replace("middle", ("Abs", "Sqrt"), "Middle")
ENDS = Replace("first", ("Neg", "Abs"), "First"), Replace("last", ("Sqrt", "Sin"), "Last")
PAIRS = {"Middle": 8.0, "First": 11.0, "Last": 11.0}
"""The middle gains 12, either end 9."""


def test_two_rewrites_that_one_precludes_go_first_if_they_gain_more() -> None:
    assert run("Neg Abs Sqrt Sin", (MIDDLE, *ENDS), PAIRS)[0] == ["First", "Last"]


def test_by_its_own_gain_the_largest_goes_first() -> None:
    found, _ = run("Neg Abs Sqrt Sin", (MIDDLE, *ENDS), PAIRS, rollouts=False)
    assert found == ["Neg", "Middle", "Sin"]


def test_a_loser_has_the_times_of_both() -> None:
    """Four operators of 10 µs: 8 + 20 with the middle, 11 + 11 without."""
    _, trace = run("Neg Abs Sqrt Sin", (MIDDLE, *ENDS), PAIRS)
    (lost,) = (e for e in trace.entries if e.rule == "middle")
    assert lost.verdict == "superseded" and lost.times_us == (28.0, 22.0)


def test_a_small_rewrite_that_a_large_one_precludes_is_combined_with_it() -> None:
    """Narrowing gains 1, storing 5, storing what is narrow 6 more."""
    rules = (
        Replace("store", ("Neg",), "Stored"),
        Replace("narrow", ("Neg",), "Narrow"),
        Replace("store-narrow", ("Narrow",), "Both"),
    )
    costs = {"Stored": 5.0, "Narrow": 9.0, "Both": 3.0}
    found, trace = run("Neg", rules, costs)
    assert found == ["Both"] and trace.applied() == {"narrow": 1, "store-narrow": 1}


def test_a_rollout_stays_within_the_error_allowed() -> None:
    """Both ends together would exceed it."""
    ends = tuple(Replace(r.name, r.old, r.op, error=0.8) for r in ENDS)
    limits = SchedulerLimits(max_error=1.0)
    assert run("Neg Abs Sqrt Sin", (MIDDLE, *ends), PAIRS, limits)[0] == ["Neg", "Middle", "Sin"]


def test_a_rewrite_that_is_not_allowed_is_no_rival() -> None:
    limits = SchedulerLimits(frozen={"v0": "measured no faster"})  # the result of Neg
    assert run("Neg Abs Sqrt Sin", (MIDDLE, *ENDS), PAIRS, limits)[0] == ["Neg", "Middle", "Sin"]


def test_equal_sites_are_rolled_out_once() -> None:
    memo = PassResultCache()
    ops = "Neg Abs Sqrt Sin Exp Neg Abs Sqrt Sin"
    found, _ = run(ops, (MIDDLE, *ENDS), PAIRS, memo=memo)
    assert found == ["First", "Last", "Exp", "First", "Last"]
    assert len(memo.rollouts) == 1
