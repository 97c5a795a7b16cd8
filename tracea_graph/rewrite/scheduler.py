"""Apply the proposals of passes in order of predicted gain, and record every decision.

All proposals wait in one :class:`ProposalQueue`.  The passes of a phase are asked when no earlier
phase has anything left to decide, and their proposals come after those of earlier phases.  The
legal sites of the best group are applied; then the passes of that phase are asked again about the
changed neighbourhood, and once the heap is empty also about the sites where they reported a miss.
The outcome is deterministic: ties break by the order of passes and regions.

A rewrite may preclude a better one, or a pair that is better together.  In phases with
``rollouts``, the best proposal is therefore compared with its rivals, which replace some of the
same regions: each is applied to a copy of the graph, followed by all rewrites that its
neighbourhood allows, in order of predicted gain.  The proposal with the largest total is applied
first.  Rivals that are still possible afterwards are applied too; the others are superseded.
Source: Bertsekas, Tsitsiklis, Wu,
"Rollout Algorithms for Combinatorial Optimization" (J. Heuristics 1997).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from math import hypot

from tracea_graph.errors import CycleError, GraphError, OutOfTime, RuleErrorContext, StillReadError
from tracea_graph.ir import LOOP_VALUE, RANDOM_OPS, Weight
from tracea_graph.reason_codes import EXPECTED, Code, Reason, code_of, other_readers_reason
from tracea_graph.rewrite.decision_trace import DecisionTrace
from tracea_graph.rewrite.pass_result_cache import PassResultCache
from tracea_graph.rewrite.pattern import Miss
from tracea_graph.rewrite.proposal import (
    Cost,
    Pass,
    Phase,
    Price,
    Proposal,
    ProposalPreview,
    SchedulerLimits,
)
from tracea_graph.rewrite.proposal_queue import ProposalQueue, QueuedProposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["constant_values", "schedule_rewrites"]

NO_SCHEDULER_LIMITS = SchedulerLimits()


def schedule_rewrites(
    graph: TileGraph,
    phases: Sequence[Phase],
    cost: Cost,
    limits: SchedulerLimits = NO_SCHEDULER_LIMITS,
    price: Price = lambda region: 0.0,
    memo: PassResultCache | None = None,
) -> DecisionTrace:
    """Run the phases in order on ``graph``, in place, and return the trace of decisions.

    A ``memo`` of earlier runs saves repeated work; it must come from runs with equal phases and
    costs on copies of this graph that share its history.

    Raises RuleError if a rule raises or a rewrite breaks the graph, and OutOfTime if
    ``limits.has_time`` returns False; ``graph`` is invalid then.
    """
    if memo is None:
        graph.record((memo := PassResultCache()).history)
    run = _Run(graph, phases, cost, limits, price, memo)
    for index in range(len(phases)):
        if run.open(index) or not index:  # the input may contain dead regions
            graph.prune()
    return run.trace


def _wanted(name: str, limits: SchedulerLimits) -> bool:
    return name not in limits.skip and (not limits.only or name in limits.only)


def constant_values(graph: TileGraph) -> frozenset[str]:
    """Return the values that depend on no input.

    ONNX Runtime folds them when a session opens, while kernels would recompute them in every run.
    """
    known = set(graph.weights)
    for region in graph.in_order(graph.regions()):
        foldable = not region.fused and not region.captures and region.op not in _RECOMPUTED
        if foldable and known.issuperset(region.reads):
            known |= set(region.writes)
    return frozenset(known)


_RECOMPUTED = RANDOM_OPS | {
    "DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear", "::".join(LOOP_VALUE),
}  # fmt: skip
"""Operators that ONNX Runtime does not fold."""

_Asked = tuple[str, int, str]
"""Region, phase and pass of a question."""


class _Run:
    """State of a run: the heap, the phases opened so far and the answers to revisit."""

    def __init__(
        self,
        graph: TileGraph,
        phases: Sequence[Phase],
        cost: Cost,
        limits: SchedulerLimits,
        price: Price,
        memo: PassResultCache,
    ) -> None:
        self.graph, self.phases, self.cost, self.limits = graph, phases, cost, limits
        self.heap, self.trace, self.memo = ProposalQueue(price, memo), DecisionTrace(), memo
        self.opened: dict[tuple[int, str], Pass] = {}
        # latest answers by region, phase and pass
        self.missed: dict[_Asked, dict[Miss, None]] = {}
        self.waiting: dict[_Asked, list[QueuedProposal]] = {}
        self.spoke: dict[tuple[str, int], set[str]] = {}  # passes that answered
        self.told: set[Miss] = set()
        self.took: dict[str, str] = {}  # removed regions, and the rule that did it
        self.times: dict[Region, float] = {}
        self.error = 0.0  # predicted for all applied rewrites
        self.constant = constant_values(graph)
        self.own = dict(graph.weights)
        self.within: set[str] | None = None  # regions that a rollout may ask about
        self.lost: dict[Proposal, tuple[float, float]] = {}  # times of losers and winners

    def open(self, index: int) -> int:
        """Ask the passes of a phase about every region and apply proposals to a fixed point;
        return the number of applied rewrites."""
        opened = self.phases[index]
        passes = [p for p in opened.passes if opened.always or _wanted(p.name, self.limits)]
        self.opened |= {(index, p.name): p for p in passes}
        for region in self.graph.regions():
            self.ask(region, index, passes)
        applied = 0
        while more := self.drain():
            applied += more
            for (where, phase, name), misses in list(self.missed.items()):
                if all(code_of(miss.reason) in EXPECTED for miss in misses):
                    continue  # what makes it another site changes its neighbourhood
                if (again := self.graph.region(where)) is not None:
                    self.ask(again, phase, [self.opened[phase, name]], name)
        self.tell_misses()
        return applied

    def tell_misses(self) -> None:
        for (where, phase, _), misses in self.missed.items():
            still = self.graph.region(where)
            nodes = _names([still] if still else [])
            for miss in [m for m in misses if m not in self.told]:
                said = miss.rule, miss.where, "missed", miss.reason
                self.trace.add(self.phases[phase].name, *said, 0.0, nodes)
            self.told |= misses.keys()
        self.missed.clear()

    def drain(self) -> int:
        """Decide every proposal in the heap; return the number of applied rewrites."""
        applied = 0
        while (site := self.heap.pop()) is not None:
            applied += self.dispose(self.first_of(site))
        return applied

    def first_of(self, site: QueuedProposal) -> QueuedProposal:
        """Return the site or rival with the largest gain, including what follows it."""
        if self.within is not None or not self.phases[site.phase].rollouts:
            return site
        if self.verdict(site) is not None or not (rivals := self.rivals(site)):
            return site
        options = [site, *rivals]
        key = (site.phase, *(self.memo.pattern(self.graph, o.proposal) for o in options))
        gains = self.memo.rollouts.get(key)
        if gains is None:
            gains = self.memo.rollouts[key] = tuple(self.rollout(o, options) for o in options)
        best = max(range(len(options)), key=lambda i: gains[i])  # the first of equal ones
        regions = {r.id: r for option in options for r in option.proposal.old}
        before = sum(self.time(self.graph, r) for r in regions.values())
        for option, gain in zip(options, gains, strict=True):
            self.lost[option.proposal] = before - gain, before - gains[best]
        if best:
            self.heap.withdraw(options[best])
            self.heap.push(self.graph, site)
        return options[best]

    def tell_loser(self, site: QueuedProposal) -> None:
        """Record a rival that is no longer proposed because a region it would replace is gone."""
        if any(self.graph.region(r.id) is not r for r in site.proposal.old):
            self.dispose(site)

    def rivals(self, site: QueuedProposal) -> list[QueuedProposal]:
        """Return, for each other rule, the best legal rival of a site, ordered by rule name."""
        found: dict[str, QueuedProposal] = {}
        for other in self.heap.rivals(site):
            rule = other.proposal.rule
            if rule == site.proposal.rule or self.verdict(other) is not None:
                continue
            if rule not in found or other.gain > found[rule].gain:
                found[rule] = other
        return [found[rule] for rule in sorted(found)]

    def rollout(self, site: QueuedProposal, options: Sequence[QueuedProposal]) -> float:
        """Return the gain in µs of a site and of all rewrites near it that then become possible.

        The rewrites counted are near any of ``options``, so that their rollouts are comparable.
        """
        graph = self.graph.copy(self.memo.history)
        limits = replace(self.limits, check=False)
        trial = _Run(graph, self.phases, self.cost, limits, self.heap.price, self.memo)
        trial.constant, trial.own, trial.error = self.constant, self.own, self.error
        trial.opened = {k: p for k, p in self.opened.items() if k[0] == site.phase}
        near = self.neighbourhood(r for o in options for r in o.proposal.old)
        trial.within = {r.id for r in near}
        if not trial.dispose(site):
            return 0.0
        passes = list(trial.opened.values())
        for region in filter(None, (graph.region(r.id) for r in near)):
            trial.ask(region, site.phase, passes)
        trial.drain()
        return sum(e.gain_us for e in trial.trace.entries if e.verdict == "applied")

    def ask(
        self, region: Region, phase: int, passes: Sequence[Pass], key: Hashable = None
    ) -> None:
        """Ask ``passes`` about a region; ``key`` is None if they are all passes of the phase."""
        if not self.limits.has_time():
            raise OutOfTime("planning took too long")
        if self.within is not None and region.id not in self.within:
            return
        if region.writes and self.constant.issuperset(region.writes):
            return
        said = self.memo.ask(self.graph, region, (self.phases[phase], key), passes)
        spoke = self.spoke.setdefault((region.id, phase), set())
        for name in [p.name for p in passes if p.name in spoke] if spoke else ():
            asked = region.id, phase, name
            self.missed.pop(asked, None)
            for earlier in self.waiting.pop(asked, ()):
                if self.heap.withdraw(earlier) and earlier.proposal in self.lost:
                    self.tell_loser(earlier)
        for name, item in said:
            asked = region.id, phase, name
            spoke.add(name)
            if isinstance(item, Miss):
                self.missed.setdefault(asked, {})[item] = None
                continue
            with RuleErrorContext(name):
                site = QueuedProposal(phase, item, self.gain(item))
            self.waiting.setdefault(asked, []).append(site)
            self.heap.push(self.graph, site)

    def gain(self, proposal: Proposal) -> float:
        gains = self.memo.gains
        if proposal not in gains:
            preview = ProposalPreview(self.graph, proposal)
            before = sum(self.time(self.graph, r) for r in proposal.old)
            gains[proposal] = before - sum(self.time(preview, r) for r in proposal.new)
        return gains[proposal]

    def time(self, graph: TileGraph, region: Region) -> float:
        """Return the predicted time of a region from a cache.

        Neither the region nor the shapes around it change.
        """
        if region not in self.times:
            self.times[region] = self.cost(graph, region)
        return self.times[region]

    def dispose(self, site: QueuedProposal) -> bool:
        """Apply a proposal if it is still legal, and record the verdict."""
        proposal, phase = site.proposal, self.phases[site.phase].name
        rule, where, nodes = proposal.rule, proposal.where, _names(proposal.old)
        if (verdict := self.verdict(site)) is not None:
            times = self.lost.get(proposal) if verdict[0] == "superseded" else None
            self.trace.add(phase, rule, where, *verdict, site.gain, nodes, times)
            return False
        missing = (r for r in proposal.shared if self.graph.region(r.id) is None)
        new = (*proposal.new, *missing)
        with RuleErrorContext(rule):
            try:
                self.graph.replace(proposal.old, new, proposal.specs, proposal.weights)
            except GraphError as error:
                why = _impossible(proposal, error)
                self.trace.add(phase, rule, where, "rejected", why, site.gain, nodes)
                return False
            if self.limits.check:
                self.graph.check()
        self.trace.add(phase, rule, where, "applied", "", site.gain, nodes)
        self.error = hypot(self.error, proposal.error)
        self.heap.resolve(proposal)
        for gone in proposal.old:
            self.missed.pop((gone.id, site.phase, rule), None)
            self.took[gone.id] = rule
        if self.within is not None:
            self.within.update(r.id for r in new)
        passes = [p for (i, _), p in self.opened.items() if i == site.phase]
        for region in self.neighbourhood(new):
            self.ask(region, site.phase, passes)
        return True

    def verdict(self, site: QueuedProposal) -> tuple[str, str] | None:
        proposal, limits = site.proposal, self.limits
        if gone := [r.id for r in proposal.old if self.graph.region(r.id) is not r]:
            known = next((r for r in proposal.old if r.id in gone and r.id in self.took), None)
            if known is None:
                return "superseded", "another rule rewrote part of it first"
            return "superseded", f"{self.took[known.id]} rewrote {known.results[0]!r} first"
        if taken := next(filter(self.is_taken, proposal.weights.values()), None):
            return "rejected", Reason(
                f"the model has another value called {taken.name!r}", Code.NAME_CLASH
            )
        if self.graph.iterations and len({self.iterations(r) for r in proposal.old}) > 1:
            why = f"part of {proposal.where!r} is computed in each iteration of a loop"
            return "rejected", Reason(why, Code.IN_LOOP)
        if lacking := self.lacking(proposal):
            return "rejected", Reason(lacking, Code.NO_KERNEL)
        written = [v for r in proposal.old for n in r.nodes for v in n.outputs]
        for kept in (limits.frozen, limits.excluded.get(proposal.rule, {})):
            if found := next((v for v in written if v in kept), None):
                return "rejected", Reason(kept[found], Code.EXCLUDED)
        if site.gain < limits.min_gain_us and not proposal.step:
            return "rejected", Reason(
                f"no gain is predicted for {proposal.where!r}", Code.NO_PREDICTED_GAIN
            )
        if proposal.error and hypot(self.error, proposal.error) > limits.max_error:
            return "rejected", Reason(
                f"its predicted error of {proposal.error:.2g} would bring that of all rewrites "
                f"above the {limits.max_error:.2g} allowed",
                Code.ERROR_BUDGET,
            )
        return None

    def iterations(self, region: Region) -> frozenset[str]:
        """Return the loops on whose iteration a region depends."""
        known = self.graph.iterations
        return frozenset[str]().union(*(known.get(v, ()) for v in (*region.reads, *region.writes)))

    def lacking(self, proposal: Proposal) -> str:
        """Return why no kernel can run one of a proposal's regions; "" if kernels can run all."""
        preview = ProposalPreview(self.graph, proposal)
        fused = (r for r in (*proposal.new, *proposal.shared) if r.fused)
        with RuleErrorContext(proposal.rule):
            return next(filter(None, (self.limits.lacks(preview, r) for r in fused)), "")

    def is_taken(self, weight: Weight) -> bool:
        """Return whether a new constant's name is taken by a different value.

        Rules name constants after their content, so those of equal name and shape are equal.
        Checks compare the numbers too; otherwise large ones would be computed for this alone.
        """
        name = weight.name
        if self.graph.producer(name) is not None or name in self.graph.inputs:
            return True
        known = self.graph.weights.get(name)
        if known is None or known is weight:
            return False
        if known.spec != weight.spec:
            return True
        compared = self.limits.check or name in self.own
        return compared and known.digest != weight.digest

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


def _impossible(proposal: Proposal, error: GraphError) -> str:
    """Return why the graph refused a rewrite, in terms of the model's values."""
    if isinstance(error, StillReadError):
        return other_readers_reason(error.value)
    if not isinstance(error, CycleError):
        return str(error)
    written = " and ".join(repr(r.results[0]) for r in proposal.old if r.results)
    return Reason(
        f"{written} cannot be computed by one op: one is an input of something that the other "
        "needs",
        Code.CYCLE,
    )


def _names(regions: Iterable[Region]) -> tuple[str, ...]:
    """Return the names of the original operators of some regions."""
    nodes = {id(n): n for r in regions for n in r.nodes}
    return tuple(n.name or next(iter(n.outputs), n.op) for n in nodes.values())
