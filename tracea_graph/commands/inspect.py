"""Run the early stages alone, and explain what the passes did to each operator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracea_graph.check.symbol_bindings import choose_bindings
from tracea_graph.commands.op_type_totals import op_type_totals
from tracea_graph.errors import GraphError, UsageError
from tracea_graph.ir import DType, evaluate, symbols_of
from tracea_graph.kernels.generated_source import Source
from tracea_graph.kernels.program import Program
from tracea_graph.onnx_io import load
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.operator_iteration_spaces import COSTS
from tracea_graph.ops.program_row_tiling import plan_subgraph
from tracea_graph.ops.region_subgraph import Subgraph
from tracea_graph.options import Options
from tracea_graph.pipeline.planning import Planner, guard_initializers_if_faster
from tracea_graph.pipeline.result_assembly import Assembly
from tracea_graph.policy import CallDecision, CostModel
from tracea_graph.policy.ort_cost import SHAPE_ONLY
from tracea_graph.reason_codes import EXPECTED, Code, Reason
from tracea_graph.rewrite import DecisionTrace, TraceEntry, constant_values
from tracea_graph.target import Target, resolve_precision, target_of
from tracea_graph.ttg import MemoryLevel, Region, TileGraph
from tracea_graph.views.explain import (
    Explanation,
    LaunchRow,
    NearMiss,
    RegionExplanation,
    StepExplanation,
)
from tracea_graph.views.kernel_table import kernel_rows
from tracea_graph.views.report_record import overridable_warning, rule_rows, with_tensor_name
from tracea_graph.views.ttg import NOTEBOOK

__all__ = ["StageResults", "explain", "set_cost_model"]


def set_cost_model(cost: CostModel, graph: TileGraph) -> None:
    """Attach predicted costs to the graph's regions."""
    graph.cost_of = lambda region: {
        "microseconds": cost(graph, region),
        "bound": cost.bound(graph, region),
    }


@dataclass(frozen=True)
class StageResults:
    """What each stage made of one model; fields of stages that have not run are empty.

    * ``graph``: the graph after the last stage that changes it; ``imported``: before the passes.
    * ``levels``: the memory levels of the machine that programs are planned for.
    * ``programs``: operator types with their programs.
    * ``decisions``: the kernel choices for the calls of a region, by the region's first result.
    * ``launches``: the device launches of a region, by the region's first result.
    * ``overridable``: number of initializers that a caller may feed; they cannot be kernel
      constants.
    * ``cost``: the model that predicted the times; None before programs are planned.
    """

    graph: TileGraph
    trace: DecisionTrace
    imported: TileGraph
    levels: tuple[MemoryLevel, ...]
    programs: tuple[tuple[str, Program], ...] = ()
    decisions: Mapping[str, tuple[CallDecision, ...]] = field(default_factory=dict)
    launches: Mapping[str, tuple[LaunchRow, ...]] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    overridable: int = 0
    cost: CostModel | None = None

    @classmethod
    def run(
        cls, path: Path, options: Options, until: str, measured: Target | None = None
    ) -> StageResults:
        """Run the pipeline up to and including the stage ``until``; nothing is written.

        Gains are predicted for this machine and the target ``measured``; if it is None, for a
        fixed reference machine.
        """
        precision, _ = resolve_precision(options.target, options.precision)
        options = replace(options, precision=precision)
        unrolled = until != "import"  # as a run reads the model
        model = load(path, freeze=options.freeze_initializers, unrolled=unrolled)
        symbols = choose_bindings(model.graph, options.shapes, model.inputs)[0][0].symbols
        if until == "import":
            planner = Planner(model.graph, options, symbols, measured)
        else:
            model, planner = guard_initializers_if_faster(model, options, symbols, measured)
        graph = model.graph
        graph.bindings, graph.viewer = symbols, NOTEBOOK
        levels = planner.cost.machine.levels
        set_cost_model(planner.cost, graph)
        if until == "import":
            return cls(graph, DecisionTrace(), graph, levels)
        if until == "passes":
            plan = planner.plan()
            set_cost_model(planner.cost, plan.graph)
            overridable = len(model.unknown)
            return cls(plan.graph, plan.trace, graph, levels, overridable=overridable)
        assembly, plan = planner.assembled(planner.plan)
        planned, trace = plan.graph, plan.trace
        set_cost_model(planner.cost, planned)
        programs = tuple((item.type, item.program) for item in assembly.placed)
        decisions = {item.region.results[0]: item.decisions for item in assembly.placed}
        made = cls(
            planned, trace, graph, levels, programs, decisions, _launches(assembly),
            overridable=len(model.unknown), cost=planner.cost,
        )  # fmt: skip
        if until == "lower":
            return made
        target = target_of(options.target, options.precision)
        sources = target.backend.sources(assembly.contents, target.levels)
        return replace(made, sources=tuple(sources))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: regions, types with their kernels, sources by symbol."""
        graph = self.graph
        return {
            "regions": [
                {
                    "op": r.op,
                    "rule": r.rule,
                    "reads": list(r.reads),
                    "writes": {v: str(graph.spec(v)) for v in r.writes},
                }
                for r in graph.regions()
            ],
            "programs": {name: [c.name for c in p.calls] for name, p in self.programs},
            "sources": {source.symbol: source.text for source in self.sources},
        }


_Placed = tuple[int, TraceEntry]
"""A decision and the number of decisions before it."""


def explain(
    path: Path,
    options: Options,
    node: str = "",
    result: Path | None = None,
    measured_for: Target | None = None,
) -> Explanation:
    """Run the passes on a model and explain what became of every operator.

    ``result`` is the report (JSON) or the plan lock of an earlier run, from which measured gains
    are taken; by default the report of ``NAME.tracea.onnx`` in the model's folder, if there is
    one for the same target.  Other gains are predicted for this machine and the target
    ``measured_for``; if it is None, for a fixed reference machine.  Raises UsageError if ``node``
    is no operator or value of the model, ModelError if ``path`` is no model.
    """
    made = StageResults.run(path, options, "lower", measured_for)
    measured = _measured(result) if result else _measured_beside(path, options)
    by_node: dict[str, list[_Placed]] = {}
    for placed in enumerate(made.trace.entries):
        for name in placed[1].nodes:
            by_node.setdefault(name, []).append(placed)
    explained = tuple(_explained(made, r, by_node, measured, node) for r in made.graph.regions())
    sizes = ", ".join(f"{k}={v}" for k, v in made.graph.bindings.items()) or "its fixed shapes"
    assert made.cost is not None
    explanation = Explanation(
        str(path), sizes, explained, rule_rows(made.trace), _note(made),
        op_type_totals(made.imported, made.cost), op_type_totals(made.graph, made.cost),
    )  # fmt: skip
    if node and not explanation.about(node):
        raise UsageError(f"{path.name} has no operator or value {node!r}; --json lists all")
    return explanation


def _explained(
    made: StageResults,
    region: Region,
    by_node: Mapping[str, Sequence[_Placed]],
    measured: Mapping[str, str],
    node: str = "",
) -> RegionExplanation:
    """Explain a region; with ``node``, the rules of the step that computes it alone."""
    before, after = made.imported, made.graph
    names = tuple(n.name or next(iter(n.outputs), n.op) for n in region.nodes)
    inner = _steps(after, region)
    asked = next((step.nodes for step in inner if node in step.nodes), names)
    found = {place: d for name in asked for place, d in by_node.get(name, ())}
    decisions = [found[place] for place in sorted(found)]
    steps = tuple(dict.fromkeys(d.rule for d in decisions if d.verdict == "applied"))
    # a rule that lost to itself merely proposed a rewrite twice
    lost = [d for d in decisions if not d.reason.startswith(f"{d.rule} took ")]
    # and a region that a rule has made has nothing left for it
    decisions = [d for d in decisions if d.code not in EXPECTED or d.rule not in steps]
    originals = {r.id: r for n in region.nodes for v in n.outputs if (r := before.producer(v))}
    missed = _reasons(region, decisions, "missed", "rejected")
    superseded = _reasons(region, lost, "superseded")
    near = superseded or any(miss.code not in EXPECTED for miss in missed)
    untouched = None if region.fused or near else _why_left(after, region)
    return RegionExplanation(
        region.op,
        region.rule,
        region.writes,
        names,
        tuple(n.op for n in region.nodes),
        sum(_microseconds(before, r) for r in originals.values()),
        _microseconds(after, region),
        next((measured[name] for name in names if name in measured and region.fused), ""),
        steps,
        missed,
        superseded,
        untouched or "",
        untouched.code if untouched else None,
        _inside(made, region),
        kernel_rows(made.decisions.get(region.results[0], ())) if region.results else (),
        inner,
        made.launches.get(region.results[0], ()) if region.results else (),
    )


def _launches(assembly: Assembly) -> dict[str, tuple[LaunchRow, ...]]:
    """Return what a device launches for each region, by the region's first result."""
    made = dict[str, tuple[LaunchRow, ...]]()
    for item in assembly.placed:
        operands, nodes = item.region.operands, item.call_originals
        fixed = frozenset(i for i, v in enumerate(operands) if assembly.graph.weight(v))
        dims = {
            symbol: (assembly.graph.spec(operands[i]).shape or ())[axis]
            for symbol, (i, axis) in item.program.symbols.items()
        }
        known = assembly.graph.bindings
        sizes = {
            s: evaluate(d, known) for s, d in dims.items() if known.keys() >= set(symbols_of(d))
        }
        made[item.region.results[0]] = tuple(
            LaunchRow(one.kernel, nodes[one.call], one.reason)
            for one in assembly.backend.launch_order(item.program, fixed, sizes)
        )
    return made


def _steps(graph: TileGraph, region: Region) -> tuple[StepExplanation, ...]:
    """Return the steps of a program, with the original operators that each computes."""
    if not isinstance(region.params, RegionParams):
        return ()
    return tuple(
        StepExplanation(step.op, tuple(n.name or next(iter(n.outputs), n.op) for n in step.nodes))
        for step in Subgraph(graph, region).regions()
    )


def _why_left(graph: TileGraph, region: Region) -> Reason:
    """Return why no rule considered an operator."""
    if region.op.startswith("tracea."):
        return Reason("it is a kernel from an earlier optimization", Code.NO_RULE)
    if region.captures or region.op in ("If", "Loop", "Scan"):
        return Reason(
            "control flow itself is not rewritten, nor bodies with random numbers or sequences",
            Code.NO_RULE,
        )
    if not region.results:
        return Reason("it has no results", Code.NOTHING_TO_COMPUTE)
    result, types = region.results[0], {v: graph.spec(v).dtype for v in region.results}
    if region.op in SHAPE_ONLY:
        return Reason(
            f"it computes nothing: {result!r} is a shape, a constant or a view of another value",
            Code.NOTHING_TO_COMPUTE,
        )
    if constant_values(graph).issuperset(region.writes):
        return Reason(
            f"{result!r} is computed once, when a session opens", Code.NOTHING_TO_COMPUTE
        )
    types |= {v: graph.spec(v).dtype for v in region.reads[:1]}
    for value, dtype in types.items():
        if dtype is None:
            return Reason(f"the type of {value!r} is not known", Code.UNSUPPORTED_DTYPE)
        if dtype is not DType.F32:
            return Reason(
                f"{value!r} has type {dtype.short}, but kernels read and write float32",
                Code.UNSUPPORTED_DTYPE,
            )
    if why := _why_sizes(graph, region):
        return Reason(why, Code.UNKNOWN_SHAPE)
    return Reason(f"no rule handles what {region.op} computes for {result!r}", Code.NO_RULE)


def _why_sizes(graph: TileGraph, region: Region) -> str:
    """Return which shapes rule out any kernel; empty if none do."""
    shapes = {v: graph.spec(v).shape for v in (*region.reads, *region.writes)}
    for value, shape in shapes.items():
        if shape is None:
            return f"the rank of {value!r} is not known"
        if 0 in shape:
            return f"{value!r} is empty"
    read = [shapes[v] or () for v in region.reads]
    sizes = any(graph.spec(v).dtype is DType.I64 for v in region.reads)  # e.g. Expand
    alike = region.op in COSTS and read and not sizes
    if alike and broadcast(read) != shapes[region.results[0]]:
        return f"the sizes of {' and '.join(map(repr, region.reads))} cannot be proven compatible"
    return ""


def _inside(made: StageResults, region: Region) -> str:
    """Describe how a program of several steps runs."""
    if not isinstance(region.params, RegionParams):
        return ""
    steps = Subgraph(made.graph, region)
    try:
        return plan_subgraph(steps, made.graph.bindings, made.levels).describe()
    except GraphError:
        return "some of its sizes are known only at run time"


def _note(made: StageResults) -> str:
    """Return a note about models optimized before, and about initializers that may be fed."""
    if any(r.op.startswith("tracea.") for r in made.imported.regions()):
        return (
            "this model is a result: tracea explain ORIGINAL.onnx says how its kernels were made"
        )
    return overridable_warning(made.overridable) if made.overridable else ""


def _reasons(
    region: Region, decisions: Iterable[TraceEntry], *verdicts: str
) -> tuple[NearMiss, ...]:
    """Return rules and why they were not applied; the default tensor is the region's result."""
    at = next(iter(region.writes), "")
    found = (
        NearMiss(d.rule, with_tensor_name(d.reason, at), d.code, d.times_us)
        for d in decisions
        if d.verdict in verdicts
    )
    return tuple(dict.fromkeys(found))


def _microseconds(graph: TileGraph, region: Region) -> float:
    return float(graph.cost_of(region).get("microseconds", 0.0))


def _measured_beside(model: Path, options: Options) -> dict[str, str]:
    """Return the gains of the result beside a model; {} without one for the options' target."""
    report = model.with_suffix(".tracea.json")
    allowed = target_of(options.target, options.precision).every_level
    return _measured(report, allowed) if report.exists() else {}


def _measured(report: Path, allowed: Sequence[str] | None = None) -> dict[str, str]:
    """Map each original operator to the measured gain of its group, from a report.

    A report of kernels for other levels than those ``allowed`` has no gains to compare with.
    """
    try:
        document = json.loads(report.read_text(encoding="utf-8"))
        if allowed is not None and not set(document["levels"]) <= set(allowed):
            return {}
        return {
            name: _range(group["gains"]) + ("" if group["kept"] else ", dropped")
            for group in document["groups"]
            for name in group["originals"]
            if group["gains"]
        }
    except FileNotFoundError:
        raise UsageError(f"there is no report {report}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{report} is not a report of this tool: {error}") from error


def _range(gains: Sequence[float]) -> str:
    low, high = f"{min(gains):.2f}×", f"{max(gains):.2f}×"
    return low if low == high else f"{low} to {high}"
