"""Planning: which rewrites a graph gets, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tracea_graph.errors import OutOfTime, RuleError, UsageError
from tracea_graph.garbage import no_collection
from tracea_graph.ir import Node
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.moves import MoveParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.region import RegionParams
from tracea_graph.options import Options
from tracea_graph.passes import CONNECT, UNCHANGED, Request, phases
from tracea_graph.passes.sparse.compressed import Compressed
from tracea_graph.passes.sparse.structure import WeightScan
from tracea_graph.pipeline.assembly import Assembly, assemble
from tracea_graph.pipeline.clock import Deadline
from tracea_graph.pipeline.quantised import rounded_later
from tracea_graph.policy import CostModel, price
from tracea_graph.rewrite import Limits, Memo, Phase, Trace, schedule
from tracea_graph.target import Target, target_of
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Plan", "Planner", "Ruling"]

NOTHING: Mapping[str, str] = MappingProxyType({})
Barred = Mapping[str, Mapping[str, str]]
NO_BARS: Barred = MappingProxyType({})

_WORTH_US = 1.0
"""A lone region of these words that promises less is not worth a kernel of its own."""
_DOUBTFUL = (ElementwiseParams, ConcatParams, ConvParams, PoolParams, MoveParams, RegionParams)


@dataclass(frozen=True)
class Ruling:
    """What the scheduler was told to leave alone, and why: all that a plan depends on beside the
    graph, the options and the cost model."""

    frozen: Mapping[str, str]
    barred: Barred


@dataclass(frozen=True)
class Plan:
    """A scheduled graph, the account of how it came about, and what was ruled out before."""

    graph: TileGraph
    trace: Trace
    ruling: Ruling


class Planner:
    """Schedules a graph again and again, with ever more of it frozen.

    ``bindings`` are the symbol values gains are predicted for.  Where nothing is timed the cost
    model only orders proposals, so a fixed machine serves, as without a ``target`` to plan for;
    else this one is measured, once.
    ``cost`` is the model of a plan made earlier, to plan the same again; ``compressed`` has what
    stands for matrices; ``scan`` what an earlier planner found in the model's weights.  Every
    method that plans raises OutOfTime when the ``deadline``, by default none, is over.

    A rule that raises costs that rule, not the model: from then on it is left out of every plan,
    whose trace says so.  Where the environment is strict, RuleError is raised instead.
    """

    def __init__(
        self,
        graph: TileGraph,
        options: Options,
        bindings: Mapping[str, int],
        target: Target | None = None,
        cost: CostModel | None = None,
        compressed: Mapping[str, Compressed] = UNCHANGED,
        scan: WeightScan | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.deadline = deadline or Deadline()
        self.backend = (target or target_of(options.target, options.precision)).backend
        if cost is None:
            measured = options.environment if options.keep == "faster" and target else None
            levels = target.levels if target else ()
            cost = CostModel(self.backend.machine(levels, measured), bindings)
        self.cost = cost
        self.scan = scan or WeightScan()
        request = Request(
            options.precision, options.plain_weights, options.windows, compressed, self.scan
        )
        every = self._every(request)
        named = every
        if request.plain_weights:  # does without some rules, which may be named all the same
            named = self._every(replace(request, plain_weights=False))
        known = {p.name for phase in named for p in phase.passes}
        for rule in (*options.only, *options.skip):
            if rule not in known:
                every_name = ", ".join(sorted(known))
                raise UsageError(f"there is no rule {rule!r}; the rules are {every_name}")
        self._phases = every if options.custom_ops else ()
        self._graph, self._options = graph, options
        self._named = {(n.op, n.name): r for r in graph.regions() for n in r.nodes if n.name}
        self._known_petty: dict[str, str] = {}
        self._whole: Plan | None = None
        self._broken: dict[str, RuleError] = {}
        self._memo = Memo()
        self._rounded = rounded_later(graph) if options.precision == "fp32" else {}

    def _every(self, request: Request) -> tuple[Phase, ...]:
        """All phases, in order."""
        return (
            *phases(request),
            *self.backend.phases(request, self.cost.machine, self.cost.bindings),
        )

    def plan(
        self,
        frozen: Mapping[str, str] = NOTHING,
        barred: Barred = NO_BARS,
        apart: bool = False,
    ) -> Plan:
        """The scheduled graph; operators that write a frozen value stay.

        ``frozen`` says why of each; ``barred`` does for single rules.  ``apart`` leaves regions
        that could be steps of one program as nodes of their own.  A plan that was finished stands
        where there is no time to plan again without what it has too little of.
        """
        if frozen or barred or apart:
            return self._planned(frozen, barred, apart)
        self._whole = self._whole or self._planned(frozen, barred, apart)
        return self._whole

    def _planned(self, frozen: Mapping[str, str], barred: Barred, apart: bool) -> Plan:
        frozen = {**self._rounded, **self._known_petty, **frozen}
        plan = self.follow(Ruling(frozen, barred), apart)
        try:
            petty = {} if self._legal or apart else self._petty(plan)
            if petty.keys() - frozen.keys():
                self._known_petty |= petty
                return self._planned(frozen, barred, apart)
        except OutOfTime:
            self.deadline.tell(f"planning ended early: kernels below {_WORTH_US:g} µs are left in")
        return plan

    def follow(self, ruling: Ruling, apart: bool = False) -> Plan:
        """The scheduled graph under a ruling, with nothing added to it."""
        while True:
            try:
                with no_collection():  # the memo keeps what rules say
                    return self._scheduled(ruling, apart)
            except RuleError as error:
                self._leave_out(error)

    def assembled(self, plan: Callable[[], Plan]) -> tuple[Assembly, Plan]:
        """A plan of this planner's and its programs."""
        while True:
            made = plan()
            try:
                return assemble(made.graph, self.backend), made
            except RuleError as error:
                self._leave_out(error)

    def _leave_out(self, error: RuleError) -> None:
        """Plan without the rule from now on; raises the error if that is not to be, or not new."""
        if self._options.environment.strict or error.rule in self._broken:
            raise error
        self._broken[error.rule] = error
        self._whole, self._memo = None, Memo()  # both know what the rule said

    def _scheduled(self, ruling: Ruling, apart: bool) -> Plan:
        graph = self._graph.copy(self._memo.history)
        graph.bindings = {**graph.bindings, **self.cost.bindings}
        limits = Limits(
            frozenset(self._options.only),
            frozenset((*self._options.skip, *self._broken)),
            ruling.frozen,
            ruling.barred,
            # a region that joins a program costs no node of its own
            min_gain_us=float("-inf") if self._legal else -self.cost.machine.node_us,
            max_error=self._options.tolerance,
            check=self._options.environment.check,
            patient=lambda: not self.deadline.over,
            lacks=self.backend.lacks,
        )
        phases = [p for p in self._phases if self._wanted(p, apart)]
        trace = schedule(graph, phases, self.cost, limits, self._price, self._memo)
        trace.broken = tuple(self._broken.values())
        return Plan(graph, trace, ruling)

    def _wanted(self, phase: Phase, apart: bool) -> bool:
        """Row tiling pays here and costs there: it is tried where somebody measures, or asks."""
        if phase.name in (tiling := self.backend.rules.row_tiling[:1]):
            return not self._legal or not {*tiling}.isdisjoint(self._options.only)
        return not apart or phase.name != CONNECT

    @property
    def _legal(self) -> bool:
        return self._options.keep == "legal"

    def _price(self, region: Region) -> float:
        """Share of the budget a new kind of region takes; nothing where nothing is measured."""
        return 0.0 if self._legal else price(region, self._options.budget)

    def gain(self, graph: TileGraph, region: Region, bands: bool = False) -> float:
        """Predicted µs saved by a fused region over the operators it stands for; by its ``bands``
        alone, over the same region without."""
        if bands:
            plain = replace(region, params=replace(region.params, bands=()))
            return self.cost(graph, plain) - self.cost(graph, region)
        originals = (self._original(n) for n in region.nodes)
        before = {r.id: r for r in originals if r is not None}
        was = sum(self.cost(self._graph, r) for r in before.values())
        return was - self.cost(graph, region)

    def _original(self, node: Node) -> Region | None:
        """What computed the node's result, or all the rows of which the node computes some."""
        made = (self._graph.producer(v) for v in node.outputs if v)
        return next((r for r in made if r is not None), self._named.get((node.op, node.name)))

    def _petty(self, plan: Plan) -> dict[str, str]:
        """Values of regions that promise too little to be worth a kernel; of a program that does,
        those steps alone that lose by themselves, if there are such."""
        graph = plan.graph
        small = [
            r
            for r in graph.regions()
            if r.fused
            and self.gain(graph, r) < (_WORTH_US if isinstance(r.params, _DOUBTFUL) else 0.0)
        ]
        if any(isinstance(r.params, RegionParams) for r in small):
            apart = self.follow(plan.ruling, apart=True).graph
            losing = [
                r for r in apart.regions()
                if r.fused and self.gain(apart, r) < -self.cost.machine.node_us
            ]  # fmt: skip
            small = [s for r in small for s in (_of(losing, r) or [r])]
        why = {
            r: f"a kernel for {r.results[0]!r} promises less than {_WORTH_US:g} µs" for r in small
        }
        return {v: why[r] for r in small for n in r.nodes for v in n.outputs if v}


def _of(regions: Sequence[Region], program: Region) -> list[Region]:
    """Those whose every operator is the program's."""
    inside = {v for n in program.nodes for v in n.outputs}
    return [r for r in regions if all(inside.issuperset(n.outputs) for n in r.nodes)]
