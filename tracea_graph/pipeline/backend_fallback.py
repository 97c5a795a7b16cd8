"""Function bodies that call kernels of another backend, for machines without the first one.

A body computes the steps of one program.  The steps are planned again for the fallback backend, in
float32.  Both backends share the stored weights: if a kernel of the fallback reads another layout,
nodes of the body pack the weight; ONNX Runtime runs these nodes once, when a session opens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from tracea_graph.ir import DType, Node, Weight
from tracea_graph.ops import OpParams
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.function_body import Body, splice_body
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.region_subgraph import Subgraph
from tracea_graph.options import Options
from tracea_graph.passes import PlanRequest
from tracea_graph.pipeline.result_assembly import FALLBACK_DOMAIN, Assembly, assemble_result
from tracea_graph.policy import CostModel, PolicyEngine
from tracea_graph.rewrite import SchedulerLimits, schedule_rewrites
from tracea_graph.target import Target
from tracea_graph.ttg import Region, TileGraph

__all__ = ["FallbackPlanner"]

_MOST_CONSTANT_BYTES = 1 << 20
"""Maximum bytes of weights that a body stores in another form; with more, its operators stay
standard ones."""


@dataclass
class FallbackPlanner:
    """Plans function bodies that call kernels of ``target``."""

    target: Target
    options: Options
    cost: CostModel
    _made: dict[tuple[RegionParams, tuple[str, ...]], tuple[Body, Assembly]] = field(
        default_factory=dict
    )

    @classmethod
    def of(
        cls, target: Target, options: Options, bindings: Mapping[str, int], timed: bool
    ) -> FallbackPlanner:
        """Create a planner; if ``timed``, its cost model uses measurements of this machine."""
        measured = options.environment if timed else None
        machine = target.backend.machine(target.levels, measured)
        return cls(target, options, CostModel(machine, bindings))

    def body(self, graph: TileGraph, region: Region, into: Assembly) -> Body:
        """Return a region's body; add the kernels, types and chains it needs to ``into``."""
        key = (_program(region), region.operands)
        if key not in self._made:
            self._made[key] = self._planned(graph, replace(region, params=key[0]))
        body, assembly = self._made[key]
        into.backend = assembly.backend
        into.placed += assembly.placed
        into.types |= assembly.types
        into.kernels |= assembly.kernels
        into.chains |= assembly.chains
        return body

    def _planned(self, graph: TileGraph, region: Region) -> tuple[Body, Assembly]:
        backend, options = self.target.backend, self.options
        plain, steps = _separated(Subgraph(graph, region), backend.lacks)
        steps.bindings = {**graph.bindings, **self.cost.bindings}
        request = PlanRequest(prepack=options.prepack, pack_at_load=True, windows=options.windows)
        tiling = backend.rules.row_tiling[:1]  # only pays if it is measured
        phases = [
            phase
            for phase in backend.phases(request, self.cost.machine, self.cost.bindings)
            if phase.name not in tiling
        ]
        limits = SchedulerLimits(
            skip=frozenset(options.skip), min_gain_us=-inf, max_error=options.tolerance,
            lacks=backend.lacks,
        )  # fmt: skip
        schedule_rewrites(steps, phases, self.cost, limits)
        policy: PolicyEngine = self.target.policy(options.environment.level)
        assembly = assemble_result(steps, backend, policy)
        new = _new_weights(steps, region, assembly.constant_nodes())
        if sum(weight.nbytes for weight in new.values()) > _MOST_CONSTANT_BYTES:
            return region.params.body(graph.opset), Assembly(steps, backend)
        return _body(region, steps, assembly, plain, new), assembly


def _program(region: Region) -> RegionParams:
    """Return a region's steps; a single op is a program of one step."""
    params = region.params
    if isinstance(params, RegionParams):
        return params
    count, results = len(region.operands), len(region.results)
    step = RegionStep(params, tuple(range(count)), results)
    return RegionParams(count, (step,), tuple(range(count, count + results)))


def _separated(
    whole: Subgraph, lacks: Callable[[TileGraph, Region], str]
) -> tuple[Mapping[str, OpParams], TileGraph]:
    """Return the steps that stay standard operators, by name, and all steps as a graph.

    Standard operators move values that are not float32 (shapes, positions, masks), because kernels
    that move data exist for float32 only, and these values are small; and they compute the steps
    that the fallback backend lacks.
    """
    plain = {
        s.id: s.params
        for s in whole.steps
        if (
            isinstance(s.params, LayoutParams | ConcatParams)
            and (
                any(whole.spec(v).dtype is not DType.F32 for v in (s.operands[0], *s.results))
                or (isinstance(s.params, LayoutParams) and s.params.kind == "expand")
            )
        )
        or lacks(whole, s)
    }
    regions = [replace(s, params=None) if s.id in plain else s for s in whole.steps]
    steps = TileGraph(
        regions, whole.inputs, whole.outputs, whole.weights, whole.specs, whole.opset
    )
    steps.model_of = whole.model_of
    return plain, steps


def _body(
    region: Region,
    steps: TileGraph,
    assembly: Assembly,
    plain: Mapping[str, OpParams],
    new: Mapping[str, Weight],
) -> Body:
    """Write a body whose nodes are those of the assembled steps."""
    unfit = {id(r) for r, _ in assembly.unfit}
    custom = {id(i.region): i for i in assembly.placed if id(i.region) not in unfit}
    assembly.placed = list(custom.values())
    inputs = tuple(f"i{i}" for i in range(len(region.operands)))
    names = {"": "", **dict(zip(region.operands, inputs, strict=True))}
    names |= {v: f"c{i}" for i, v in enumerate(new)}
    nodes = [Node("Constant", (), (names[v],), {"value": w.array()}) for v, w in new.items()]
    for node in assembly.constant_nodes():
        names |= {v: f"p{len(nodes)}_{i}" for i, v in enumerate(node.outputs)}
        reads = tuple(names[v] for v in node.inputs)
        made = tuple(names[v] for v in node.outputs)
        nodes.append(replace(node, inputs=reads, outputs=made))
    for own in steps.regions():
        reads = tuple(names[v] for v in own.operands)
        if item := custom.get(id(own)):
            made = tuple(f"t{len(nodes)}_{i}" if v else "" for i, v in enumerate(own.results))
            plan = {"plan": tuple(assembly.backend.encode(item.program))}
            nodes.append(Node(item.type, reads, made, plan, FALLBACK_DOMAIN))
        else:
            params = plain.get(own.id, own.params)
            made = tuple(splice_body(nodes, params.body(steps.opset), reads))
        names |= dict(zip(own.results, made, strict=True))
    outputs = tuple(f"o{i}" for i in range(len(region.results)))
    results: Sequence[str] = [*steps.outputs]
    nodes += (Node("Identity", (names[v],), (o,)) for v, o in zip(results, outputs, strict=True))
    return Body(inputs, outputs, tuple(nodes))


def _new_weights(steps: TileGraph, region: Region, nodes: Sequence[Node]) -> dict[str, Weight]:
    """Return the weights that a plan added, without those that ``nodes`` compute."""
    made = {*region.operands, *(v for node in nodes for v in node.outputs)}
    reads = [v for node in nodes for v in node.reads]
    reads += (v for own in steps.regions() for v in own.reads)
    return {v: steps.weights[v] for v in reads if v in steps.weights and v not in made}
