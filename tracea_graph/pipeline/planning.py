"""Planning: choose the rewrites of a graph by predicted gain, before anything is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np

from tracea_graph.errors import OutOfTime, RuleError, UsageError, did_you_mean
from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.kernels.program import OpType, Program
from tracea_graph.kernels.rule_names import RuleNames
from tracea_graph.onnx_io import LocalFunction, Model, load
from tracea_graph.onnx_io.initializer_guards import CONDITION, default_constant_name
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.options import Options
from tracea_graph.passes import (
    CLUSTERING,
    NOT_COMPRESSED,
    PARTITION,
    UNMEASURED,
    PlanRequest,
    phases,
    write_convolutions,
)
from tracea_graph.passes.layout.channels_last_transposes import TRANSPOSED
from tracea_graph.passes.quantized.calibrated_rounding import UNCALIBRATED, CalibratedRounding
from tracea_graph.passes.quantized.conv_int8 import CONV_INT8
from tracea_graph.passes.quantized.dequantize_past_views import QUANTIZE_FIRST
from tracea_graph.passes.quantized.round_results import RoundResults
from tracea_graph.passes.quantized.write_integers import INTEGER_PRECISIONS, WriteIntegers
from tracea_graph.passes.sparse.chosen_compression import CompressedMatrix
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.pipeline.backend_fallback import FallbackPlanner
from tracea_graph.pipeline.model_inputs import ModelInputs
from tracea_graph.pipeline.result_assembly import Assembly, assemble_result
from tracea_graph.pipeline.step_timer import Deadline
from tracea_graph.policy import CostModel, decision_time_share
from tracea_graph.rewrite import (
    DecisionTrace,
    PassResultCache,
    Phase,
    RulePass,
    SchedulerLimits,
    schedule_rewrites,
)
from tracea_graph.target import Backend, Target, target_of
from tracea_graph.temporary_files import gc_paused
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "STANDARD_RULES",
    "InitializerGuard",
    "PlanConstraints",
    "Planner",
    "ScheduledGraph",
    "guard_condition_nodes",
    "guard_initializers_if_faster",
    "guards_of",
    "read_with_guards",
    "values_rounded_later",
    "with_override_feed",
]

NOTHING: Mapping[str, str] = MappingProxyType({})
WRITE_INTEGERS = WriteIntegers("int8").name
_STANDARD = (WRITE_INTEGERS, CONV_INT8)
STANDARD_RULES = RuleNames(
    _STANDARD, precision_fallbacks=(_STANDARD[:1], _STANDARD[1:], _STANDARD)
)
"""Names of the rules for models without custom ops."""
Exclusions = Mapping[str, Mapping[str, str]]
NO_EXCLUSIONS: Exclusions = MappingProxyType({})

_WORTH_US = 1.0
"""Minimum predicted gain in µs of a kernel for a single region of these ops."""
_DOUBTFUL = (ElementwiseParams, ConcatParams, ConvParams, PoolParams, LayoutParams, RegionParams)


@dataclass(frozen=True)
class PlanConstraints:
    """Values that the scheduler must leave unchanged, and why.

    Graph, options, cost model and constraints determine a plan.
    """

    frozen: Mapping[str, str]
    excluded: Exclusions


@dataclass(frozen=True)
class ScheduledGraph:
    """A scheduled graph, its trace, and the constraints it was scheduled under."""

    graph: TileGraph
    trace: DecisionTrace
    constraints: PlanConstraints

    def made_by(self, rules: Container[str]) -> list[Region]:
        """Return the regions that some rules made, in order, even if fused further later."""
        made = self.trace.sites(rules)
        return self.graph.in_order(
            r for r in self.graph.regions()
            if r.rule in rules or any(not made.isdisjoint(n.outputs) for n in r.nodes)
        )  # fmt: skip


class Planner:
    """Chooses the rewrites of a graph, and chooses again whenever a constraint is added.

    * ``bindings``: symbol values for which gains are predicted;
    * ``target``: without it, or if nothing is timed, the cost model only orders proposals and
      describes a fixed machine; otherwise this machine is measured once;
    * ``cost``: cost model of an earlier plan, to repeat that plan;
    * ``compressed``: replacements, by matrix;
    * ``scan``: an earlier planner's analysis of the weights;
    * ``ranges``: measured magnitudes, by value;
    * ``calibrated``: rounding chosen for products, by matrix;
    * ``rules``: names that options may select.

    Every planning method raises OutOfTime when the ``deadline`` (by default none) is over.  A rule
    that raises is left out of every later plan, and the trace says so; with a strict environment,
    RuleError is raised instead.
    """

    def __init__(
        self,
        graph: TileGraph,
        options: Options,
        bindings: Mapping[str, int],
        target: Target | None = None,
        cost: CostModel | None = None,
        compressed: Mapping[str, CompressedMatrix] = NOT_COMPRESSED,
        scan: WeightScan | None = None,
        deadline: Deadline | None = None,
        ranges: Mapping[str, float] = UNMEASURED,
        calibrated: Mapping[str, CalibratedRounding] = UNCALIBRATED,
    ) -> None:
        self.deadline = deadline or Deadline()
        named = target or target_of(options.target, options.precision)
        self.backend, self.policy = named.backend, named.policy(options.environment.level)
        if cost is None:
            measured = options.environment if options.keep == "faster" and target else None
            levels = target.levels if target else ()
            cost = CostModel(self.backend.machine(levels, measured), bindings)
        self.cost = cost
        timed = options.keep == "faster" and target is not None
        self._fallback = (
            FallbackPlanner.of(named.fallback, options, cost.bindings, timed)
            if named.fallback
            else None
        )
        self.scan = scan or WeightScan()
        self.calibrated = calibrated
        request = PlanRequest(
            options.precision, options.prepack, options.windows, compressed, self.scan, ranges,
            calibrated=calibrated, float8=self.backend.multiplies_float8(named.levels),
            whole_models=self.backend.whole_models,
            convolves_volumes=self.backend.convolves_volumes,
            levels=named.levels,
        )  # fmt: skip
        every = self._every(request)
        nameable = every
        if not request.prepack:  # plans without some rules, but users may name them
            nameable = self._every(replace(request, prepack=True))
        self.rules = frozenset((*CLUSTERING, WRITE_INTEGERS)).union(
            p.name for phase in nameable if not phase.always for p in phase.passes
        )
        for rule in (*options.only, *options.skip):
            if rule not in self.rules:
                every_name = f"; the rules are {', '.join(sorted(self.rules))}"
                which = did_you_mean(rule, self.rules) or every_name
                raise UsageError(f"there is no rule {rule!r}{which}")
        self._phases = every if options.custom_ops else _standard_phases(request)
        self._graph, self._options = graph, options
        self._named = {(n.op, n.name): r for r in graph.regions() for n in r.nodes if n.name}
        self._known_unprofitable: dict[str, str] = {}
        self._whole: ScheduledGraph | None = None
        self._broken: dict[str, RuleError] = {}
        self._memo = PassResultCache()
        self._rounded = values_rounded_later(graph) if options.precision == "fp32" else {}

    def _every(self, request: PlanRequest) -> tuple[Phase, ...]:
        """All phases, in order."""
        return (
            *phases(request, self.backend.structure_rules(request)),
            *self.backend.phases(request, self.cost.machine, self.cost.bindings),
        )

    def plan(
        self,
        frozen: Mapping[str, str] = NOTHING,
        excluded: Exclusions = NO_EXCLUSIONS,
        unclustered: bool = False,
    ) -> ScheduledGraph:
        """Schedule the graph; operators that write a frozen value stay.

        ``frozen`` maps values to reasons, ``excluded`` maps rules to such values and reasons.
        ``unclustered`` leaves regions that could be steps of one program as separate nodes.
        Planning is repeated without kernels that do not pay; if there is no time for that, the
        first plan stands.
        """
        if frozen or excluded or unclustered:
            return self._planned(frozen, excluded, unclustered)
        self._whole = self._whole or self._planned(frozen, excluded, unclustered)
        return self._whole

    def _planned(
        self, frozen: Mapping[str, str], excluded: Exclusions, unclustered: bool
    ) -> ScheduledGraph:
        frozen = {**self._rounded, **self._known_unprofitable, **frozen}
        plan = self.plan_under(PlanConstraints(frozen, excluded), unclustered)
        try:
            unprofitable = {} if self._applies_all or unclustered else self._unprofitable(plan)
            if unprofitable.keys() - frozen.keys():
                self._known_unprofitable |= unprofitable
                return self._planned(frozen, excluded, unclustered)
        except OutOfTime:
            self.deadline.note(
                f"planning ended early: kernels that may save less than {_WORTH_US:g} µs are kept"
            )
        return plan

    def plan_under(
        self, constraints: PlanConstraints, unclustered: bool = False
    ) -> ScheduledGraph:
        """Schedule the graph under exactly these constraints."""
        while True:
            try:
                with gc_paused():  # the memo keeps the rules' answers alive
                    return self._scheduled(constraints, unclustered)
            except RuleError as error:
                self._leave_out(error)

    def assembled(self, plan: Callable[[], ScheduledGraph]) -> tuple[Assembly, ScheduledGraph]:
        """Return a plan and its assembly; if a rule raises, plan again without this rule."""
        while True:
            made = plan()
            try:
                bodies = self._fallback.body if self._fallback else None
                machine = self.cost.machine
                assembly = assemble_result(made.graph, self.backend, self.policy, bodies, machine)
                return assembly, made
            except RuleError as error:
                self._leave_out(error)

    def _leave_out(self, error: RuleError) -> None:
        """Exclude the rule from later plans; raise if strict, or if it was excluded already."""
        if self._options.environment.strict or error.rule in self._broken:
            raise error
        self._broken[error.rule] = error
        self._whole, self._memo = None, PassResultCache()  # both hold answers of the rule

    def _scheduled(self, constraints: PlanConstraints, unclustered: bool) -> ScheduledGraph:
        graph = self._graph.copy(self._memo.history)
        graph.bindings = {**graph.bindings, **self.cost.bindings}
        limits = SchedulerLimits(
            frozenset(self._options.only),
            frozenset((*self._options.skip, *self._broken)),
            constraints.frozen,
            constraints.excluded,
            # a region that joins a program saves the cost of its node
            min_gain_us=float("-inf") if self._applies_all else -self.cost.machine.node_us,
            max_error=_most_error(self._options),
            check=self._options.environment.check,
            has_time=lambda: not self.deadline.over,
            lacks=self.backend.lacks,
        )
        phases = [p for p in self._phases if self._wanted(p, unclustered)]
        trace = schedule_rewrites(graph, phases, self.cost, limits, self._price, self._memo)
        trace.broken = tuple(self._broken.values())
        return ScheduledGraph(graph, trace, constraints)

    def _wanted(self, phase: Phase, unclustered: bool) -> bool:
        """Return True if the phase runs; row tiling only if it is measured or requested."""
        if phase.name in (tiling := self.backend.rules.row_tiling[:1]):
            return not self._applies_all or not {*tiling}.isdisjoint(self._options.only)
        return not unclustered or phase.name != PARTITION

    @property
    def _applies_all(self) -> bool:
        return self._options.keep == "all"

    def _price(self, region: Region) -> float:
        """Share of the budget that a new kind of region uses; 0 if nothing is measured."""
        return 0.0 if self._applies_all else decision_time_share(region, self._options.budget)

    def gain(self, graph: TileGraph, region: Region, row_tiled: bool = False) -> float:
        """Return the predicted µs that a fused region saves over the operators it replaces.

        If ``row_tiled``, return what it saves over the region without row tiles instead.
        """
        if row_tiled:
            plain = replace(region, params=replace(region.params, row_tiles=()))
            return self.cost(graph, plain) - self.cost(graph, region)
        originals = (self._original(n) for n in region.nodes)
        before = {r.id: r for r in originals if r is not None}
        was = sum(self.cost(self._graph, r) for r in before.values())
        return was - self.cost(graph, region)

    def _original(self, node: Node) -> Region | None:
        """Return the region that computed the node's result, or a superset of its rows.

        Sinking transposes rename results that other operators may compute now.
        """
        plain = (v[: v.rfind("_")] if v.endswith(TRANSPOSED) else v for v in node.outputs)
        made = (self._graph.producer(v) for v in (*node.outputs, *plain) if v)
        return next((r for r in made if r is not None), self._named.get((node.op, node.name)))

    def _unprofitable(self, plan: ScheduledGraph) -> dict[str, str]:
        """Return values of regions whose predicted gain is too small for a kernel.

        Of a profitable program, only the steps that lose by themselves.
        """
        graph = plan.graph
        small = [
            r
            for r in graph.regions()
            if r.fused
            and self.gain(graph, r) < (_WORTH_US if isinstance(r.params, _DOUBTFUL) else 0.0)
        ]
        if any(isinstance(r.params, RegionParams) for r in small):
            unclustered = self.plan_under(plan.constraints, unclustered=True).graph
            losing = [
                r for r in unclustered.regions()
                if r.fused and self.gain(unclustered, r) < -self.cost.machine.node_us
            ]  # fmt: skip
            small = [s for r in small for s in (_of(losing, r) or [r])]
        why = {
            r: f"a kernel for {r.results[0]!r} is predicted to save less than {_WORTH_US:g} µs"
            for r in small
        }
        return {v: why[r] for r in small for n in r.nodes for v in n.outputs if v}


def _most_error(options: Options) -> float:
    """Return the predicted error, as a share of max|y|, above which rewrites are left out.

    The user's own metric is of another kind: measurements alone decide then, unless compression
    has divided its budget.
    """
    return inf if options.metric and not options.compresses else options.tolerance


def _standard_phases(request: PlanRequest) -> tuple[Phase, ...]:
    """Phases of a model that gets no custom ops."""
    if request.precision not in INTEGER_PRECISIONS:
        return ()
    products = Phase("integers", (WriteIntegers(request.precision, request.calibrated),))
    results = Phase("round-results", (RoundResults(request.calibrated), RulePass(QUANTIZE_FIRST)))
    return products, *write_convolutions(request, custom_ops=False), results


def _of(regions: Sequence[Region], program: Region) -> list[Region]:
    """Regions all of whose operators belong to the program."""
    inside = {v for n in program.nodes for v in n.outputs}
    return [r for r in regions if all(inside.issuperset(n.outputs) for n in r.nodes)]


_ROUNDED = "is rounded to integers by a recurrent layer, which amplifies a change of one bit"
_COMPARED = "is compared with thresholds, where a change of one bit can alter the result"
_EXACT: Mapping[str, str] = MappingProxyType(
    {
        "com.microsoft::DynamicQuantizeLSTM": _ROUNDED,
        "ai.onnx.ml::Binarizer": _COMPARED,
        "ai.onnx.ml::TreeEnsemble": _COMPARED,
        "ai.onnx.ml::TreeEnsembleClassifier": _COMPARED,
        "ai.onnx.ml::TreeEnsembleRegressor": _COMPARED,
        "ai.onnx.ml::ZipMap": "is returned in a map, which is compared exactly",
    }
)
"""Operators whose first operand must stay bitwise equal, and why."""


def values_rounded_later(graph: TileGraph) -> dict[str, str]:
    """Return values that reach a quantizer, a tree ensemble or a map, with the reason."""
    found: dict[str, str] = {}
    for region in graph.regions():
        if (reason := _EXACT.get(region.op)) is None:
            continue
        waiting = [region.operands[0]]
        while waiting:
            value = waiting.pop()
            producer = graph.producer(value) if value not in found else None
            if producer is None:
                continue
            found |= dict.fromkeys(producer.writes, f"{region.operands[0]!r} {reason}")
            waiting += producer.reads
    return found


_BRANCH_US = 15.0
"""µs that ONNX Runtime needs to run nodes in a branch instead of the graph."""
_EACH_US = 0.2
"""µs that ONNX Runtime needs per additional input."""
_SHARE = 0.25
"""Share of the budget for predicting what a guard gains."""
_WORTH = 0.9
"""Predicted time with a guard, relative to without, above which no guard is used."""


@dataclass(frozen=True)
class InitializerGuard:
    """A node that compares the initializers ``names`` with their defaults.

    Its output ``result`` is true if all are equal.
    """

    names: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    result: str
    backend: Backend

    @cached_property
    def program(self) -> Program:
        return self.backend.lower_guard(self.specs)

    @property
    def type(self) -> OpType:
        """The operator type of its node."""
        dtypes = tuple(s.dtype or DType.F32 for s in self.specs) * 2
        key = hashlib.sha256(",".join(d.short for d in dtypes).encode()).hexdigest()[:6]
        return OpType(f"Guard_{key}", dtypes, (DType.BOOL,))

    @property
    def function(self) -> LocalFunction:
        """A function body that returns false: without the library, the original nodes run."""
        inputs = tuple(f"x{i}" for i in range(2 * len(self.names)))
        no = Node("Constant", (), ("y",), {"value": np.array([False])})
        return LocalFunction(self.type.name, inputs, ("y",), (no,))

    def node(self, domain: str) -> Node:
        inputs = (*self.names, *map(default_constant_name, self.names))
        plan = {"plan": self.backend.encode(self.program)}
        name = f"tracea_{self.result.removeprefix('tracea:')}".replace(" ", "_")
        return Node(self.type.name, inputs, (self.result,), plan, domain, name)


def guards_of(model: Model, backend: Backend) -> tuple[InitializerGuard, ...]:
    """Return the guards of a model; one guard node compares a limited number of initializers."""
    every = [*model.guarded.items()]
    most = backend.most_guarded
    parts = [every[i : i + most] for i in range(0, len(every), most)]
    several = len(parts) > 1
    return tuple(
        InitializerGuard(
            tuple(name for name, _ in part),
            tuple(weight.spec for _, weight in part),
            f"{CONDITION} {i}" if several else CONDITION,
            backend,
        )
        for i, part in enumerate(parts)
    )


def guard_condition_nodes(guards: Sequence[InitializerGuard], domain: str) -> list[Node]:
    """Return the nodes that compute :data:`CONDITION` from all guards."""
    nodes = [guard.node(domain) for guard in guards]
    for i in range(1, len(guards)):
        last = i == len(guards) - 1
        so_far = guards[0].result if i == 1 else f"{CONDITION} to {i - 1}"
        result = CONDITION if last else f"{CONDITION} to {i}"
        nodes.append(Node("And", (so_far, guards[i].result), (result,), name=f"tracea_and_{i}"))
    return nodes


def read_with_guards(model: Model) -> Model:
    """Read a model again, with the initializers that a guard can compare as constants."""
    return replace(load(model.path, guard=True), float32_form=model.float32_form)


def guard_initializers_if_faster(
    model: Model,
    options: Options,
    symbols: Mapping[str, int],
    target: Target | None,
    deadline: Deadline | None = None,
    ranges: Mapping[str, float] = UNMEASURED,
) -> tuple[Model, Planner]:
    """Return a model and its planner, with guarded initializers if that is predicted to be faster.

    Guarded initializers become constants that callers may still feed; a check in every run
    compares what is fed with the defaults.  The model is returned unchanged if the ``deadline``
    leaves no time for the prediction.
    """
    deadline = deadline or Deadline()
    more: dict[str, Any] = {"deadline": deadline, "ranges": ranges}
    plain = Planner(model.graph, options, symbols, target, **more)
    if not model.overridable or not options.custom_ops:
        return model, plain
    guarded = read_with_guards(model)
    if not guarded.guarded or not all(map(guarded.graph.producer, guarded.graph.outputs)):
        return model, plain
    known = Planner(guarded.graph, options, symbols, target, plain.cost, **more)
    read = sum(weight.nbytes for weight in guarded.guarded.values())
    asked = _BRANCH_US + _EACH_US * len(guarded.guarded)
    compared = 2 * read / plain.cost.machine.dram_gbytes * 1e-3 + asked
    try:
        with deadline.within(_SHARE * options.budget):
            pays = _us(known) + compared < _WORTH * _us(plain)
    except OutOfTime:
        deadline.note("there was no time to predict the gain of constant initializers")
        return model, plain
    return (guarded, known) if pays else (model, plain)


def with_override_feed(model: Model, inputs: ModelInputs) -> ModelInputs:
    """Add a feed to verify with that overrides the largest initializer of a guarded model."""
    plain = next(iter(inputs.verification), None)
    sizes = {n: w.count for n, w in model.guarded.items() if w.dtype is DType.F32 and w.count}
    if plain is None or not sizes:
        return inputs
    name = max(sizes, key=sizes.__getitem__)
    default = np.asarray(model.guarded[name].array(), np.float32)
    other = np.where(default == 0, 0.5, default * 1.5).astype(np.float32)
    feed = {**inputs.verification[plain], name: other}
    added = {f"{plain}, {name} fed": feed}
    kept = {k: f for k, f in inputs.verification.items() if k not in inputs.spare}
    spare = {k: f for k, f in inputs.verification.items() if k in inputs.spare}
    return replace(inputs, verification={**kept, **added, **spare})


def _us(planner: Planner) -> float:
    """Predicted time in µs of the graph that the planner makes."""
    graph = planner.plan().graph
    return sum(planner.cost(graph, region) for region in graph.regions())
