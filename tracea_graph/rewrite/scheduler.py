"""The priority scheduler: passes propose, it disposes, and it writes down why.

Within a phase every proposal waits in one heap ordered by predicted gain.  The best one that is
still legal is applied; then only the passes whose neighbourhood changed are asked again, and once
the heap is empty those that found something in the way.  The outcome is deterministic: ties break
by the order of passes and regions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tracea_graph.errors import GraphError
from tracea_graph.ir import TensorSpec, Weight
from tracea_graph.rewrite.pattern import Miss, Rule, match
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Cost", "Decision", "Pass", "Phase", "Proposal", "RulePass", "Trace", "schedule"]

Cost = Callable[[TileGraph, Region], float]
"""Predicted time of one region in µs."""


@dataclass(frozen=True)
class Proposal:
    """Replace ``old`` by ``new``; ``specs`` and ``weights`` describe values that are new.

    A ``step`` is applied whatever it gains: it is there for what others make of it, and whoever
    planned looks in the end at what is left alone.
    """

    rule: str
    old: tuple[Region, ...]
    new: tuple[Region, ...]
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)
    weights: Mapping[str, Weight] = field(default_factory=dict)
    error: float = 0.0
    step: bool = False

    @property
    def where(self) -> str:
        """The value that names the site."""
        return self.new[0].results[0]


class Pass(Protocol):
    """Something that proposes rewrites anchored at one region."""

    @property
    def name(self) -> str:
        """The name ``--only`` and ``--skip`` use."""
        ...

    def propose(self, graph: TileGraph, region: Region) -> Iterable[Proposal | Miss]:
        """Proposals whose last operator is ``region``, and near misses with their reason."""
        ...


@dataclass(frozen=True)
class RulePass:
    """A pattern rule as a pass."""

    rule: Rule

    @property
    def name(self) -> str:
        return self.rule.name

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not region.results:
            return
        for pattern in self.rule.patterns:
            found = match(pattern, graph, region)
            if found is None:
                continue
            if isinstance(found, Miss):
                yield Miss(self.name, found.where, found.reason)
                continue
            if (reason := self.rule.check(found)) is not None:
                yield Miss(self.name, region.id, reason)
                continue
            yield Proposal(self.name, found.covered, (self.rule.rewrite(found),))
            return


@dataclass(frozen=True)
class Phase:
    """Passes that run to a fixed point together, before the next phase starts."""

    name: str
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Decision:
    """One line of the trace."""

    phase: str
    rule: str
    where: str
    verdict: str
    """``applied``, ``rejected``, ``superseded`` or ``missed``."""
    reason: str = ""
    gain_us: float = 0.0
    nodes: tuple[str, ...] = ()
    """The original operators it was about: their names, or first results."""


@dataclass
class Trace:
    """What was proposed, and what became of it, in order."""

    decisions: list[Decision] = field(default_factory=list)

    def add(self, *args: object) -> None:
        self.decisions.append(Decision(*args))  # type: ignore[arg-type]

    def applied(self) -> dict[str, int]:
        """How often each rule was applied."""
        counts: dict[str, int] = {}
        for decision in self.decisions:
            if decision.verdict == "applied":
                counts[decision.rule] = counts.get(decision.rule, 0) + 1
        return counts

    def misses(self) -> dict[tuple[str, str], int]:
        """(rule, reason) of every near miss, with its count."""
        counts: dict[tuple[str, str], int] = {}
        for decision in self.decisions:
            if decision.verdict in ("missed", "rejected"):
                key = (decision.rule, decision.reason)
                counts[key] = counts.get(key, 0) + 1
        return counts


@dataclass(frozen=True)
class Limits:
    """What the caller allows: rules, and the least gain in µs.

    ``frozen`` maps values whose operators stay as they are to the reason; ``barred`` does so for
    single rules.
    """

    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    frozen: Mapping[str, str] = field(default_factory=dict)
    barred: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    min_gain_us: float = 0.0
    check: bool = False


def schedule(
    graph: TileGraph, phases: Sequence[Phase], cost: Cost, limits: Limits = Limits()
) -> Trace:
    """Run the phases in order on ``graph``, in place.

    Raises GraphError naming the rule if a rewrite breaks the graph.
    """
    trace = Trace()
    for phase in phases:
        passes = [p for p in phase.passes if _wanted(p.name, limits)]
        _Run(graph, phase.name, passes, cost, limits, trace).run()
        graph.prune()
    return trace


def _wanted(name: str, limits: Limits) -> bool:
    return name not in limits.skip and (not limits.only or name in limits.only)


class _Run:
    """One phase: the heap, and who has to be asked again."""

    def __init__(
        self,
        graph: TileGraph,
        phase: str,
        passes: Sequence[Pass],
        cost: Cost,
        limits: Limits,
        trace: Trace,
    ) -> None:
        self.graph, self.phase, self.passes = graph, phase, passes
        self.cost, self.limits, self.trace = cost, limits, trace
        self.heap: list[tuple[float, int, Proposal]] = []
        self.count = 0
        # by region and pass, as of the last time they were asked
        self.missed: dict[tuple[str, str], dict[Miss, None]] = {}
        self.took: dict[str, str] = {}  # regions that are gone, and the rule that took them

    def run(self) -> None:
        for region in self.graph.regions():
            self.ask(region, self.passes)
        while self.drain():
            for where, name in list(self.missed):
                if (again := self.graph.region(where)) is not None:
                    self.ask(again, [p for p in self.passes if p.name == name])
        for (where, _), misses in self.missed.items():
            still = self.graph.region(where)
            nodes = _names([still] if still else [])
            for miss in misses:
                said = miss.rule, miss.where, "missed", miss.reason
                self.trace.add(self.phase, *said, 0.0, nodes)

    def drain(self) -> int:
        """Dispose of everything in the heap; return how many rewrites were applied."""
        applied = 0
        while self.heap:
            gain, _, proposal = heapq.heappop(self.heap)
            applied += self.dispose(proposal, -gain)
        return applied

    def ask(self, region: Region, passes: Iterable[Pass]) -> None:
        for p in passes:
            self.missed.pop((region.id, p.name), None)
            for item in p.propose(self.graph, region):
                if isinstance(item, Miss):
                    self.missed.setdefault((region.id, p.name), {})[item] = None
                else:
                    self.push(item)

    def push(self, proposal: Proposal) -> None:
        gain = sum(self.cost(self.graph, r) for r in proposal.old)
        preview = _Preview(self.graph, proposal)
        gain -= sum(self.cost(preview, r) for r in proposal.new)
        heapq.heappush(self.heap, (-gain, self.count, proposal))
        self.count += 1

    def dispose(self, proposal: Proposal, gain: float) -> bool:
        """Apply the proposal if it is still legal; write down what became of it."""
        rule, where, nodes = proposal.rule, proposal.where, _names(proposal.old)
        verdict = self.verdict(proposal, gain)
        if verdict is not None:
            self.trace.add(self.phase, rule, where, *verdict, gain, nodes)
            return False
        try:
            self.graph.replace(proposal.old, proposal.new, proposal.specs, proposal.weights)
            if self.limits.check:
                self.graph.check()
        except GraphError as error:
            self.trace.add(self.phase, rule, where, "rejected", str(error), gain, nodes)
            return False
        self.trace.add(self.phase, rule, where, "applied", "", gain, nodes)
        for gone in proposal.old:
            self.missed.pop((gone.id, rule), None)
            self.took[gone.id] = rule
        for region in self.neighbourhood(proposal.new):
            self.ask(region, self.passes)
        return True

    def verdict(self, proposal: Proposal, gain: float) -> tuple[str, str] | None:
        if gone := [r.id for r in proposal.old if self.graph.region(r.id) is not r]:
            taker = next((self.took[name] for name in gone if name in self.took), "another rule")
            return "superseded", f"{taker} took part of it first"
        written = [v for r in proposal.old for n in r.nodes for v in n.outputs]
        for kept in (self.limits.frozen, self.limits.barred.get(proposal.rule, {})):
            if found := next((v for v in written if v in kept), None):
                return "rejected", kept[found]
        if gain < self.limits.min_gain_us and not proposal.step:
            return "rejected", "no gain predicted"
        return None

    def neighbourhood(self, regions: Iterable[Region]) -> list[Region]:
        near: dict[str, Region] = {}
        for region in regions:
            near[region.id] = region
            for value in region.reads:
                if (producer := self.graph.producer(value)) is not None:
                    near[producer.id] = producer
            for value in region.writes:
                for use in self.graph.uses(value):
                    near[use.region.id] = use.region
        return list(near.values())


def _names(regions: Iterable[Region]) -> tuple[str, ...]:
    """What the original operators of some regions are called."""
    nodes = {id(n): n for r in regions for n in r.nodes}
    return tuple(n.name or next(iter(n.outputs), n.op) for n in nodes.values())


class _Preview(TileGraph):
    """A graph's questions, answered as if a proposal's new values existed."""

    def __init__(self, graph: TileGraph, proposal: Proposal) -> None:
        self._graph, self._proposal = graph, proposal
        self.opset = graph.opset

    def spec(self, value: str) -> TensorSpec:
        if value in self._proposal.specs:
            return self._proposal.specs[value]
        weight = self._proposal.weights.get(value)
        return weight.spec if weight else self._graph.spec(value)

    def weight(self, value: str) -> Weight | None:
        return self._proposal.weights.get(value) or self._graph.weight(value)
