"""Cluster neighbouring regions into one program: convolutional subgraphs, transformer blocks.

FusedConv, FusedPool, elementwise expressions, channel layout ops -> one FusedRegion
FusedGemm, FusedAttention, FusedNorm, FusedElementwise            -> one FusedRegion
those and a convolutional cluster between them                    -> one FusedRegion

Values between two steps stay inside the program and are stored in the layout its kernels prefer.
``ttg.partition`` grows the clusters from predicates over regions, not over op kinds: every
region that has a kernel may be a member, and a region whose loops reduce over tiled axes is an
anchor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tracea_graph.ir import Node, TensorSpec
from tracea_graph.kernels.region_signature import localise_symbols, replace_clipped_sizes
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.passes.layout.layout_ops import read_layout_ops
from tracea_graph.passes.layout.read_views import RESHAPES
from tracea_graph.passes.pointwise.compose_elementwise import read_operation
from tracea_graph.passes.preparation_steps import (
    Steps,
    converts_halves,
    gives,
    preparation_steps,
)
from tracea_graph.passes.region_helpers import fused_region, is_f32
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import PartitionRules, Region, RegionModel, TileGraph, partition_from

__all__ = ["Cluster", "ClusterAll", "ClusterConv"]

_MAX_OPERANDS, _MAX_STEPS = 480, 200
"""Maximum number of steps per program: the kernel library's limit minus a reserve for scratch."""

_LATER = "its program begins at an earlier product or convolution"
_UNFIT = "its shapes are not proven to match those of the program"


@dataclass(frozen=True)
class ClusterConv:
    """Cluster convolutions and pools with neighbouring regions to programs."""

    name: str = "cluster-conv"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        yield from _cluster(self.name, _ConvMembership(graph), region)


@dataclass(frozen=True)
class Cluster:
    """Cluster all other reductions and the regions between them to programs.

    Convolutional clusters may join, so that a transformer block becomes one program.
    """

    name: str = "cluster"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        yield from _cluster(self.name, _Membership(graph), region)


@dataclass(frozen=True)
class ClusterAll:
    """Cluster all regions that have kernels.

    This is for targets on which it is costly to pass values from one program to another.  The
    backend's plans set the limits.
    """

    max_steps: int
    max_operands: int
    name: str = "cluster-all"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        membership = _FullMembership(graph, self.max_steps, self.max_operands)
        yield from _cluster(self.name, membership, region)


def _cluster(name: str, membership: _Membership, region: Region) -> Iterator[Proposal | Miss]:
    """Propose the program that grows around an anchor; its first anchor proposes it."""
    if not membership.is_anchor(region):
        yield from _outside(name, membership, region)
        return
    rules = PartitionRules(
        lambda r: len(membership.steps_of(r) or ()), membership.is_anchor, membership.may_end,
        membership.max_steps, membership.max_operands,
    )  # fmt: skip
    unfit, joined = set[str](), set[str]()
    for seed in filter(membership.is_anchor, partition_from(membership.graph, region, rules)):
        if seed.id in joined or (seed.id != region.id and not unfit):
            continue  # regions behind an unfit one may form a program of their own
        while len(members := partition_from(membership.graph, seed, rules, unfit)) > 1:
            out = _first_unfit(membership, members)
            if out is None:
                params, operands, results = _build(membership, members)
                new = fused_region(name, params, operands, results, members)
                new = replace(new, step_nodes=_step_nodes(membership, members))
                joined |= {r.id for r in members}
                yield Proposal(name, tuple(members), (new,))
                break
            yield Miss(name, out.id, _UNFIT)
            unfit.add(out.id)
            if out.id == seed.id:
                break
    if region.id not in joined:
        yield from list(_outside(name, membership, region)) or [Miss(name, region.id, _LATER)]


def _outside(name: str, membership: _Membership, region: Region) -> Iterator[Miss]:
    """Report why a region that could be a step or a program is not in the neighbouring program."""
    graph = membership.graph
    if not region.fused:
        return
    inside = isinstance(region.params, RegionParams) and not _is_step(region)
    near = (*graph.sources(region), *([] if inside else graph.readers(region)))
    beside = [r for r in near if isinstance(r.params, RegionParams)]
    if beside and (inside or membership.steps_of(region)):
        yield Miss(name, region.id, _why_outside(membership, region, beside[0], name))


def _why_outside(membership: _Membership, region: Region, program: Region, name: str) -> str:
    graph, made = membership.graph, region.results[0]
    inside = isinstance(region.params, RegionParams)
    steps = len(region.params.steps if inside else membership.steps_of(region) or ())
    if program.rule != name:
        return f"the program of {program.results[0]!r} was formed before this region was fused"
    between = [r for r in graph.convex((program, region)) if r not in (program, region)]
    if strange := [r for r in between if not membership.steps_of(r)]:
        value = next(iter(strange[0].writes), strange[0].op)
        return f"{value!r} lies between {made!r} and the program and has no kernel"
    if program in graph.readers(region) and not membership.is_anchor(region):
        return (
            f"a program starts at its first product or convolution, and {made!r} comes before it"
        )
    if len(program.params.steps) + steps > membership.max_steps:
        return f"with {made!r} the program would have more than {membership.max_steps} steps"
    if len({*program.operands, *region.operands}) > membership.max_operands:
        return f"with {made!r} the program would read more than {membership.max_operands} values"
    if not membership.may_end(region):
        return f"no step of the program reads {made!r}, so it is computed after the program"
    return _UNFIT


class _Membership:
    """Predicates for the partitioner: which regions may be members, anchors and sinks."""

    def __init__(
        self, graph: TileGraph, max_steps: int = _MAX_STEPS, max_operands: int = _MAX_OPERANDS
    ) -> None:
        self.graph = graph
        self.max_steps, self.max_operands = max_steps, max_operands
        self._models: dict[str, RegionModel | None] = {}

    def model(self, region: Region) -> RegionModel | None:
        """Return the loop model of a region that kernels can run, or None if it is not known."""
        if region.id not in self._models:
            self._models[region.id] = self.graph.model(region) if region.fused else None
        return self._models[region.id]

    def is_anchor(self, region: Region) -> bool:
        """Return whether the region reduces, that is, does more than move values."""
        if _is_conv_cluster(region):
            return True
        model = self.model(region)
        return model is not None and bool(model.depth)

    def steps_of(self, region: Region) -> Steps | None:
        """Return the steps that a region becomes, one per op; None if it must stay outside."""
        if not region.fused:
            return self._moves(region)
        if _is_conv_cluster(region):
            return _inside(region)
        values = (*region.reads, *region.writes)
        known = all(s.dtype and s.rank is not None for s in map(self.graph.spec, values))
        fits = not isinstance(region.params, RegionParams)
        return ((region.params, region.operands, region.results),) if fits and known else None

    def _moves(self, region: Region) -> Steps | None:
        """Steps of a view (reshape, slice): inside a program it only reinterprets a stored
        value."""
        graph = self.graph
        values = [v for v in region.results if v and (graph.is_output(v) or graph.uses(v))]
        if region.op not in (*RESHAPES, "Split") or not is_f32(graph, region.operands[0], *values):
            return None
        steps = []
        for value in values:
            seen = read_operation(graph, region, value)
            if seen is None or not gives(graph, seen, value):
                return None
            steps.append((seen.params, seen.names, (value,)))
        return steps

    def may_end(self, region: Region) -> bool:
        """Whether a region after the last anchor should join the program.

        A trailing Reshape should not: it is free in ONNX Runtime.
        """
        return region.fused


def _is_conv_cluster(region: Region) -> bool:
    return region.rule == ClusterConv.name and isinstance(region.params, RegionParams)


def _is_step(region: Region) -> bool:
    """Whether the region is a program of one step, which waits to join others."""
    params = region.params
    return isinstance(params, RegionParams) and len(params.steps) == 1


def _inside(region: Region) -> Steps:
    """Steps of a clustered region; values that never leave it get local names."""
    params, values = region.params, list(region.operands)
    assert isinstance(params, RegionParams)
    leaving = dict(zip(params.results, region.results, strict=True))
    steps = []
    for step in params.steps:
        made = range(len(values), len(values) + step.results)
        reads = tuple(values[i] for i in step.operands)
        values += [leaving.get(i, f"{region.id} {i}") for i in made]
        steps.append((step.params, reads, tuple(values[made.start :])))
    return steps


class _ConvMembership(_Membership):
    """Predicates of convolutional clusters; the rows of matrices are clustered later."""

    def is_anchor(self, region: Region) -> bool:
        model = self.model(region)
        return model is not None and bool(model.depth) and _of_images(model)

    def steps_of(self, region: Region) -> Steps | None:
        if region.fused:
            return None if _is_conv_cluster(region) else super().steps_of(region)
        moves = read_layout_ops(self.graph, region)
        return None if moves is None else [(p, names, (v,)) for p, names, v in moves]

    def may_end(self, region: Region) -> bool:
        """Whether a region after the last anchor should join the program.

        Three kinds of op join: ops on single positions or vectors, ops that reduce all channels to
        one number, and ops that join several values.  Any other trailing layout op stays outside.
        """
        if not region.fused:
            return any(len(reads) > 1 for _, reads, _ in self.steps_of(region) or ())
        model = self.model(region)
        pooled = self.graph.spec(region.results[0]).rank == 2
        return pooled or model is None or not model.space.reductions or _of_channels(model)


class _FullMembership(_Membership):
    """Predicates of whole-model clusters: every region that has a kernel, and layout ops."""

    def is_anchor(self, region: Region) -> bool:
        if region.fused:
            return not isinstance(region.params, RegionParams) or _is_step(region)
        return bool(self._prepared(region)) and self._prepares(region)

    def _prepared(self, region: Region) -> Steps | None:
        return preparation_steps(self.graph, region)

    def may_end(self, region: Region) -> bool:
        """Whether a region after the last anchor should join: kernels, and casts to fp16."""
        return super().may_end(region) or converts_halves(self.graph, region)

    def _prepares(self, region: Region) -> bool:
        """Whether kernels consume all of the region's results, possibly through views.

        Such a region is a free node in front of a program.
        """
        graph = self.graph
        readers = graph.readers(region)
        return (
            bool(readers)
            and not any(map(graph.is_output, region.results))
            and all(r.fused or self._passes_on(region, r) for r in readers)
        )

    def _passes_on(self, region: Region, reader: Region) -> bool:
        """Whether ``reader`` is a view of the region's result whose own readers are kernels.

        A reader that uses the result only as a size does not count.
        """
        own = reader.operands[0] in region.results and self._prepared(reader)
        return bool(own) and self._prepares(reader)

    def steps_of(self, region: Region) -> Steps | None:
        if _is_step(region):
            return _inside(region)
        moves = None if region.fused else read_layout_ops(self.graph, region)
        if moves is None:
            return super().steps_of(region) or self._prepared(region)
        return [(p, names, (v,)) for p, names, v in moves]


def _of_images(model: RegionModel) -> bool:
    """Whether the region's channels, summed or tiled, come before its spatial axes."""
    first = model.reads[0].dims
    channels = {*model.cols, *model.depth}
    return len(first) > 2 and any(axis in channels for axis, _ in first[1].terms)


def _of_channels(model: RegionModel) -> bool:
    """Whether the region reduces all channels of a position to one number."""
    dims, over = model.reads[0].dims, model.space.reductions
    gone = len(model.space.axes) == len(dims) > 2
    return gone and over == tuple(name for name, _ in dims[1].terms)


def _first_unfit(membership: _Membership, members: Sequence[Region]) -> Region | None:
    """Return the first member whose shapes do not follow from those of outside values, or None."""
    steps = [(r, step) for r in members for step in membership.steps_of(r) or ()]
    made = {v for r in members for v in r.writes} | {v for _, step in steps for v in step[2]}
    reads = {v for r in members for v in r.reads} | {v for _, step in steps for v in step[1]}
    outside = sorted(reads - made)  # steps may read sizes of further values
    graph = membership.graph
    # shapes as the program sees them, over its own symbols
    local, _ = localise_symbols(replace_clipped_sizes([graph.spec(v) for v in outside]))
    specs: dict[str, TensorSpec] = dict(zip(outside, local, strict=True))
    for region, (params, operands, results) in steps:
        try:
            found = params.infer([specs[v] for v in operands])
        except ValueError:
            return region
        specs |= zip(results, found, strict=False)
    return None


def _step_nodes(
    membership: _Membership, members: Sequence[Region]
) -> tuple[tuple[Node, ...], ...]:
    """Return the original operators of each step of the program that ``members`` make."""
    found: list[tuple[Node, ...]] = []
    for region in members:
        count = len(membership.steps_of(region) or ())
        known = len(region.step_nodes) == count
        found += region.step_nodes if known else (region.nodes,) * count
    return tuple(found)


def _roundings(region: Region, count: int) -> Sequence[tuple[str, float]]:
    """Return ``narrow`` and ``factor`` of each of a member's steps."""
    if isinstance(region.params, RegionParams):
        return [(step.narrow, step.factor) for step in region.params.steps]
    return [("", 0.0)] * count


def _build(
    membership: _Membership, members: Sequence[Region]
) -> tuple[RegionParams, tuple[str, ...], tuple[str, ...]]:
    """Return the program's parameters, its operands, and its results that others read."""
    graph = membership.graph
    steps = [s for r in members for s in membership.steps_of(r) or ()]
    types = [n for r in members for n in _roundings(r, len(membership.steps_of(r) or ()))]
    inside = {v for _, _, results in steps for v in results}
    operands = tuple(dict.fromkeys(v for _, reads, _ in steps for v in reads if v not in inside))
    numbers = {v: i for i, v in enumerate(operands)}
    made = []
    for (params, reads, results), rounded in zip(steps, types, strict=True):
        made.append(RegionStep(params, tuple(numbers[v] for v in reads), len(results), *rounded))
        for value in results:
            numbers[value] = len(numbers)
    ids = {r.id for r in members}
    results = tuple(
        v
        for r in members
        for v in r.writes
        if graph.is_output(v) or any(u.region.id not in ids for u in graph.uses(v))
    )
    return (
        RegionParams(len(operands), tuple(made), tuple(numbers[v] for v in results)),
        operands,
        results,
    )
