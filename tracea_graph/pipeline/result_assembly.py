"""Turn a scheduled graph into nodes, functions, weights, operator types and elementwise chains."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tracea_graph.errors import GraphError, RuleErrorContext
from tracea_graph.ir import DType, Extent, Node, Weight
from tracea_graph.kernels.program import NO_CONTENTS, Call, LibraryContents, OpType, Program
from tracea_graph.onnx_io import LocalFunction
from tracea_graph.onnx_io.kernel_call_origins import encode_calls
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.function_body import Body
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.region_subgraph import Subgraph
from tracea_graph.passes.sparse.low_rank_exact import LOW_RANK, LOW_RANK_EXACT
from tracea_graph.policy import CallDecision, CostModel, Machine, PolicyEngine
from tracea_graph.target import Backend, Target
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.tuning import ScheduleTables, Workload, problems_of, with_schedules

__all__ = [
    "FALLBACK_DOMAIN", "AssembledNode", "Assembly", "assemble_result", "row_tiling_key",
    "untuned_ops_us",
]  # fmt: skip

FALLBACK_DOMAIN = "tracea.fallback"
"""Domain of kernels that function bodies call, until the library is built."""
_TUNED = (GemmParams, ConvParams, AttentionParams)
MakeBody = Callable[[TileGraph, Region, "Assembly"], Body]
"""Function that returns a region's body, and adds to an assembly what the body calls."""


@dataclass(frozen=True)
class AssembledNode:
    """A custom-op node with its region, type, program, and the group it is timed in.

    ``decisions`` are the policy's decisions, one for each kernel call of the program.
    """

    region: Region
    type: str
    program: Program
    body: Body
    group: str
    decisions: tuple[CallDecision, ...] = ()

    @property
    def originals(self) -> tuple[str, ...]:
        """Names of the original nodes that this node replaces, or of their first outputs, once."""
        return tuple(dict.fromkeys(n.label for n in self.region.nodes))

    @property
    def step_originals(self) -> tuple[tuple[str, ...], ...]:
        """Names of the original nodes of each step of the program; empty if they are not known."""
        return tuple(tuple(n.label for n in nodes) for nodes in self.region.step_nodes)

    @property
    def call_originals(self) -> tuple[tuple[str, ...], ...]:
        """Names of the original nodes that each kernel call computes."""
        steps = self.step_originals
        if not steps:
            return (self.originals,) * len(self.program.calls)
        return tuple(steps[c.step] if c.step >= 0 else () for c in self.program.calls)


def row_tiling_key(group: str) -> str:
    """Return the key that drops the row tiles of a group's programs and keeps the programs."""
    return f"{group} row tiles"


@dataclass
class Assembly:
    """A lowered result: its graph, its custom-op nodes, and what its library must contain.

    ``unfit`` lists regions whose programs exceed a limit of the runtime, with the reason.
    ``fallback`` holds the kernels of another backend that function bodies call.
    """

    graph: TileGraph
    backend: Backend
    placed: list[AssembledNode] = field(default_factory=list)
    types: dict[str, OpType] = field(default_factory=dict)
    kernels: set[str] = field(default_factory=set)
    chains: dict[int, Chain] = field(default_factory=dict)
    unfit: list[tuple[Region, str]] = field(default_factory=list)
    fallback: Assembly | None = None

    @property
    def contents(self) -> LibraryContents:
        """What its library holds, apart from the fallback: types, kernels and chains, sorted."""
        own = LibraryContents(self.types.values(), self.kernels, self.chains.values())
        return NO_CONTENTS | own  # which sorts

    @property
    def groups(self) -> dict[str, list[AssembledNode]]:
        """Custom-op nodes by group, in graph order; the row tiles of a program are a group too."""
        groups: dict[str, list[AssembledNode]] = {}
        for item in self.placed:
            groups.setdefault(item.group, []).append(item)
            if isinstance(item.region.params, RegionParams) and item.region.params.row_tiles:
                groups.setdefault(row_tiling_key(item.group), []).append(item)
        return groups

    @property
    def decisions(self) -> Iterator[CallDecision]:
        """The policy's decisions about all kernel calls, in graph order."""
        return (one for item in self.placed for one in item.decisions)

    def nodes_said(self, nodes: int, cost: CostModel) -> str:
        """Say how many of the result's nodes are kernels, and their share of the predicted time.

        ``nodes`` is the number of all nodes.
        """
        times = [(region.fused, cost(self.graph, region)) for region in self.graph.regions()]
        share = sum(us for fused, us in times if fused) / (sum(us for _, us in times) or 1.0)
        kernels = len(self.placed)
        if not kernels:
            return str(nodes)
        if nodes == kernels:
            return f"{nodes} kernel{'s' * (nodes > 1)}"
        kind = "kernels" if kernels > 1 else "a kernel"
        part = "less than 1%" if share < 0.01 else f"{share:.0%}"
        return f"{nodes}, {kernels} of them {kind} with {part} of the time"

    def within(self, other: Assembly) -> bool:
        """Return True if ``other`` contains every group, kernel and chain of this assembly."""
        return (
            self.groups.keys() <= other.groups.keys()
            and self.kernels <= other.kernels
            and self.chains.keys() <= other.chains.keys()
        )

    def weights(self) -> Mapping[str, Weight]:
        """Constants that some node reads and that no node computes."""
        graph, made = self.graph, self.constant_nodes()
        reads = {v for r in graph.regions() for v in r.reads} | set(graph.outputs)
        reads |= {v for node in made for v in node.reads}
        written = {v for node in made for v in node.outputs}
        return {
            v: graph.weights[v]
            for v in graph.weights
            if v in reads and v not in written and not graph.producer(v)
        }

    def constant_nodes(self) -> list[Node]:
        """Nodes that compute constants from smaller constants when a session opens, in order."""
        weights, made = self.graph.weights, dict[str, Node]()
        waiting = [v for r in self.graph.regions() for v in r.reads if v in weights]

        def make(value: str) -> None:
            for node in weights[value].computed_by if value in weights else ():
                for source in node.reads:
                    make(source)
                made.update(dict.fromkeys(node.outputs, node))

        for value in waiting:
            make(value)
        return list(dict.fromkeys(made.values()))

    def need(self, call: Call) -> None:
        """Record the kernels and chains that a call needs in the library."""
        self.kernels |= self.backend.kernels_of(call)
        if call.chain is not None:
            self.chains[call.chain.key] = call.chain

    @property
    def weight_bytes(self) -> int:
        """Bytes of all constants that regions of the graph read."""
        values = {v for region in self.graph.regions() for v in region.operands}
        return sum(w.nbytes for w in map(self.graph.weight, values) if w is not None)

    def workloads(self, bindings: Sequence[Mapping[str, int]]) -> tuple[Workload, ...]:
        """Return the problems to tune, with the row counts that ``bindings`` give."""
        spec, schedule_space = self.graph.spec, self.backend.schedule_space
        if schedule_space is None:
            return ()
        items = ((i.program, [spec(v) for v in i.region.operands]) for i in self.placed)
        return problems_of(items, schedule_space.problem_of, bindings)

    def tuned(self, schedules: ScheduleTables) -> Assembly:
        """Return this assembly with tuned schedules in its programs, and the kernels they name."""
        if not schedules or (schedule_space := self.backend.schedule_space) is None:
            return self
        programs = (
            with_schedules(i.program, schedule_space.problem_of, schedules) for i in self.placed
        )
        placed = [replace(i, program=p) for i, p in zip(self.placed, programs, strict=True)]
        made = replace(
            self, placed=placed, kernels=set(self.kernels), chains=dict(self.chains)
        )  # fmt: skip
        for call in (call for item in placed for call in item.program.calls):
            made.need(call)
        return made

    def unlinked(self) -> Assembly:
        """Return this assembly with programs in which the library decides what separates calls."""
        placed = []
        for item in self.placed:
            calls = (replace(c, barrier_from=0, barrier_rows=0) for c in item.program.calls)
            decisions = tuple(replace(one, link="") for one in item.decisions)
            program = replace(item.program, calls=tuple(calls))
            placed.append(replace(item, program=program, decisions=decisions))
        return replace(self, placed=placed)

    @property
    def notes(self) -> tuple[str, ...]:
        """The report's note about what runs instead of this backend's kernels; may be empty."""
        if (inner := self.fallback) is None:
            return ()
        count = len(inner.placed)
        kernels = f"{count} kernels run" if count > 1 else "a kernel runs"
        what = f"{kernels} on the {inner.backend.name}" if count else "standard operators run"
        return (f"where {self.backend.name} cannot run, {what} instead",)

    def functions(self, fallback: str = "", plain: bool = True) -> list[LocalFunction]:
        """Return a function body per operator type, including the types of the fallback.

        ``fallback`` is the domain of the kernels that bodies call.  If not ``plain``, bodies that
        consist of standard operators only are left out.
        """
        bodies = {item.type: item.body for item in self.placed}
        if self.fallback is None and not plain:
            return []
        made = [
            LocalFunction(t, b.inputs, b.outputs, _in_domain(b.nodes, fallback))
            for t, b in sorted(bodies.items())
        ]
        inner = self.fallback.functions() if self.fallback and plain else ()
        return made + [replace(one, domain=fallback) for one in inner]

    def nodes(self, domain: str) -> list[Node]:
        """Return the result's nodes in order; original nodes are unchanged."""
        custom = {id(item.region): item for item in self.placed}
        nodes = self.constant_nodes()
        made = set(nodes)
        for region in self.graph.regions():
            if (item := custom.get(id(region))) is None:
                nodes.extend(n for n in region.nodes if n not in made)
            else:
                plan = self.backend.encode(item.program)
                nodes.append(_custom_node(item, plan, domain, len(nodes)))
        return nodes

    def metadata(self, nodes: Sequence[Node], domain: str) -> dict[str, dict[str, str]]:
        """Return, by custom node, the original nodes that it replaced, and the rule that did this.

        A program of several steps also says which of the original nodes each kernel call computes.
        """
        by_result = {item.region.results[0]: item for item in self.placed}
        custom = {n.name: by_result[n.outputs[0]] for n in nodes if domain and n.domain == domain}
        return {name: _metadata(item) for name, item in custom.items()}


def _in_domain(nodes: Sequence[Node], domain: str) -> tuple[Node, ...]:
    """Move calls of fallback kernels to the domain that their library turned out to have."""
    return tuple(replace(n, domain=domain) if n.domain == FALLBACK_DOMAIN else n for n in nodes)


def _metadata(item: AssembledNode) -> dict[str, str]:
    said = {"tracea.nodes": "\n".join(item.originals), "tracea.rule": item.region.rule}
    if item.step_originals:
        said["tracea.calls"] = encode_calls(item.originals, item.call_originals)
    return said


def assemble_result(
    graph: TileGraph,
    backend: Backend,
    policy: PolicyEngine | None = None,
    make_body: MakeBody | None = None,
    machine: Machine | None = None,
) -> Assembly:
    """Lower every fused region of a graph, with the schedules that the policy decides.

    Without a ``policy``, the one for this machine decides; without ``make_body``, function bodies
    are standard operators.  The figures of ``machine`` decide what separates calls; without them
    the library decides.  Raises RuleError if a region cannot be lowered; the error names the rule
    that made the region.
    """
    policy = policy or Target(backend, backend.levels("", "fp32")).policy()
    inner = Assembly(graph, backend) if make_body else None
    result = Assembly(graph, backend, fallback=inner)
    bodies: dict[Any, Body] = {}
    for region in graph.regions():
        if not region.fused:
            continue
        with RuleErrorContext(region.rule):
            specs = [graph.spec(v) for v in region.operands]
            program, decisions = policy.planned(
                backend.lower(graph, region), specs, graph.bindings, _rank(graph, region), machine
            )
            if make_body and inner:
                body = make_body(graph, region, inner)
            else:
                body = bodies.setdefault(region.params, region.params.body(graph.opset))
            try:
                backend.encode(program)
            except GraphError as error:
                result.unfit.append((region, str(error)))
        _place(result, region, program, body, decisions)
    return result


def untuned_ops_us(graph: TileGraph, cost: CostModel) -> float:
    """Return the predicted µs of all operators that are not tuned.

    These are all but matmuls, convolutions and attention.
    """
    return sum(_unscheduled_us(cost, graph, region) for region in graph.regions())


def _unscheduled_us(
    cost: CostModel, graph: TileGraph, region: Region, inside: bool = False
) -> float:
    if isinstance(region.params, RegionParams):
        steps = Subgraph(graph, region)
        return sum(_unscheduled_us(cost, steps, step, inside=True) for step in steps.steps)
    if isinstance(region.params, _TUNED):
        return 0.0
    return cost.within(graph, region) if inside else cost(graph, region)


def _rank(graph: TileGraph, region: Region) -> int | None:
    """The rank of the matrix that a region's product is a factor of; None if of none."""
    if region.rule not in (LOW_RANK_EXACT, *LOW_RANK):
        return None
    rank = _middle(graph, region)
    return rank if isinstance(rank, int) else None


def _middle(graph: TileGraph, region: Region) -> Extent:
    """The extent between both factors of a low-rank pair."""
    written = {v for n in region.nodes for v in n.outputs}
    middle = region.operands[0] if region.results[0] in written else region.results[0]
    axes = graph.spec(middle).shape or (0, 0)
    return axes[1 if "Conv" in region.op else -1]


def _place(
    result: Assembly,
    region: Region,
    program: Program,
    body: Body,
    decisions: tuple[CallDecision, ...],
) -> None:
    """Add a region's node, with the type, kernels and chains it needs."""
    inputs = tuple(s.dtype or DType.F32 for s in program.inputs)
    outputs = tuple(s.dtype or DType.F32 for s in program.outputs)
    type_name = f"{region.op}_{_type_key(body, inputs, outputs)}"
    result.types[type_name] = OpType(type_name, inputs, outputs)
    group = _group(result.graph, region, type_name)
    result.placed.append(AssembledNode(region, type_name, program, body, group, decisions))
    for call in program.calls:
        result.need(call)


def _type_key(body: Body, inputs: Sequence[DType], outputs: Sequence[DType]) -> str:
    dtypes = ",".join(d.short for d in (*inputs, *outputs))
    return hashlib.sha256(f"{body.key}{dtypes}".encode()).hexdigest()[:6]


_OF = ("MatMul", "Gemm", "Conv", "Gather")
"""Operators whose weight matrix a low-rank pair can replace."""


def _group(graph: TileGraph, region: Region, type_name: str) -> str:
    """Group nodes with equal programs and weight shapes, and both factors of a low-rank pair."""
    if region.rule in (LOW_RANK_EXACT, *LOW_RANK):
        weights = [graph.weight(n.inputs[n.op != "Gather"]) for n in region.nodes if n.op in _OF]
        shapes = "+".join("x".join(map(str, w.shape)) for w in weights if w)
        return f"{region.rule} {shapes} rank {_middle(graph, region)}"
    if isinstance(region.params, GemmParams):
        return f"{type_name} {region.params.k}x{region.params.n}"
    return type_name


def _custom_node(item: AssembledNode, plan: Sequence[int], domain: str, index: int) -> Node:
    region = item.region
    attrs: dict[str, Any] = {"plan": tuple(plan)}
    if isinstance(region.params, GemmParams):
        attrs |= {"K": region.params.k, "N": region.params.n}
    name = f"tracea_{index}_{item.type}"
    return Node(item.type, region.operands, region.results, attrs, domain, name)
