"""Neighbouring regions become the steps of one program: the convolutional trunk.

FusedConv, FusedPool, elementwise chains, moves of channels … -> one FusedRegion

What lies between two steps never leaves the program, so it lies as the kernels like it.  Cores
(convolutions and pools) hold a trunk together; other steps come along where they lie between
cores, or follow one at the end.  A trunk is convex: no path leaves it and comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tracea_graph.ir import TensorSpec
from tracea_graph.ops import OpParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.moves import MoveParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.region import RegionParams, RegionStep
from tracea_graph.passes.moves import read_moves
from tracea_graph.passes.regions import fused, is_f32
from tracea_graph.passes.writer import localise
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ConnectTrunk"]

_CORE = (ConvParams, PoolParams)
_WORDS = (*_CORE, ElementwiseParams, GemmParams, NormParams, MoveParams)
_MAX_OPERANDS, _MAX_STEPS = 240, 200
"""Of one program: what the library accepts, with room for scratch."""

Steps = Sequence[tuple[OpParams, tuple[str, ...], tuple[str, ...]]]
"""Parameters, operands and results."""


@dataclass(frozen=True)
class ConnectTrunk:
    """Everything around a convolution that can be a step of its program."""

    name: str = "trunk"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not isinstance(region.params, _CORE):
            return
        around = _Neighbourhood(graph)
        members = around.grow(region)
        while members and members[0].id == region.id and len(members) > 1:
            unfit = _first_unfit(graph, members)
            if unfit is None:
                params, operands, results = _build(graph, members)
                new = fused(self.name, params, operands, results, members)
                yield Proposal(self.name, tuple(members), (new,))
                return
            if unfit.id == region.id:
                return
            yield Miss(self.name, unfit.id, "its shapes do not provably fit inside a program")
            around.exclude(unfit)
            members = around.grow(region)


def _steps_of(graph: TileGraph, region: Region) -> Steps | None:
    """The steps a region would be; None if it cannot be one."""
    params = region.params
    if isinstance(params, RegionParams) or not region.results:
        return None
    if isinstance(params, _WORDS):
        whole = is_f32(graph, *region.reads, *region.writes)
        ranks = {graph.spec(v).rank for v in region.writes}
        single = len(region.results) == 1 or not isinstance(params, ElementwiseParams)
        known = None not in ranks and whole and single and _channels_known(graph, region)
        return ((params, region.operands, region.results),) if known else None
    moves = read_moves(graph, region)
    return None if moves is None else [(p, names, (result,)) for p, names, result in moves]


def _channels_known(graph: TileGraph, region: Region) -> bool:
    """True if what may lie in blocks says how many channels it has."""
    shapes = [graph.spec(v).shape or () for v in (*region.reads, *region.writes)]
    return all(isinstance(s[1], int) for s in shapes if len(s) in (3, 4))


class _Neighbourhood:
    """Who around a region can be a step of its program."""

    def __init__(self, graph: TileGraph) -> None:
        self.graph = graph
        self._known: dict[str, Steps | None] = {}

    def steps(self, region: Region) -> Steps | None:
        if region.id not in self._known:
            self._known[region.id] = _steps_of(self.graph, region)
        return self._known[region.id]

    def exclude(self, region: Region) -> None:
        """A region that cannot be a step after all."""
        self._known[region.id] = None

    def grow(self, seed: Region) -> list[Region]:
        """The largest convex set of steps around a region, producers first."""
        chosen, refused = {seed.id: seed}, set[str]()
        waiting = [seed]
        while waiting:
            at = waiting.pop(0)
            readers = self.graph.in_order(self.graph.readers(at))
            for near in (*self.graph.sources(at), *readers):
                if near.id in chosen or near.id in refused or self.steps(near) is None:
                    continue
                more = self._closure(chosen, near)
                if more is None:
                    refused.add(near.id)
                    continue
                chosen |= {r.id: r for r in more}
                waiting += more
        return self._trimmed(self.graph.in_order(chosen.values()))

    def _closure(self, chosen: Mapping[str, Region], near: Region) -> list[Region] | None:
        """``near`` and everything on paths between it and the chosen; None if not all can join."""
        every = self.graph.convex((*chosen.values(), near))
        more = [r for r in every if r.id not in chosen]
        if any(self.steps(r) is None for r in more):
            return None
        steps = sum(len(self.steps(r) or ()) for r in every)
        operands = {v for r in every for v in r.reads}
        return None if steps > _MAX_STEPS or len(operands) > _MAX_OPERANDS + steps else more

    def _trimmed(self, chosen: Sequence[Region]) -> list[Region]:
        """Without what has no core before it, and what follows the last core in vain.

        The chosen are convex: what lies before or behind one of them does so inside.
        """
        after, before = (
            _with_core(chosen, self.graph.sources),
            _with_core(chosen[::-1], self.graph.readers),
        )
        inside, kept = {r.id for r in chosen}, dict[str, Region]()
        for region in chosen:
            core, behind = isinstance(region.params, _CORE), region.id in after
            sources = (s.id for s in self.graph.sources(region) if s.id in inside)
            tail = behind and self._worth_ending_with(region) and all(s in kept for s in sources)
            if core or (behind and region.id in before) or tail:
                kept[region.id] = region
        return list(kept.values())

    def _worth_ending_with(self, region: Region) -> bool:
        """Chains and concatenations finish what cores began; so does what reads a
        pooled vector.  A move at the end only moves."""
        if isinstance(region.params, (GemmParams, NormParams)):
            return self.graph.spec(region.results[0]).rank == 2
        done = isinstance(region.params, (ElementwiseParams, MoveParams))
        return done or region.op == "Concat"


def _with_core(regions: Sequence[Region], near: Callable[[Region], Sequence[Region]]) -> set[str]:
    """Of regions in order those that a core comes before, by way of ``near``."""
    found, reached = set[str](), set[str]()
    for region in regions:
        names = {r.id for r in near(region)}
        if not names.isdisjoint(reached):
            found.add(region.id)
        if region.id in found or isinstance(region.params, _CORE):
            reached.add(region.id)
    return found


def _first_unfit(graph: TileGraph, members: Sequence[Region]) -> Region | None:
    """The first region whose shapes do not follow from those of what is outside."""
    outside = sorted(
        {v for r in members for v in r.reads} - {v for r in members for v in r.writes}
    )
    # as the program will know them: sizes are symbols of its own
    local, _ = localise([graph.spec(v) for v in outside], True)
    specs: dict[str, TensorSpec] = dict(zip(outside, local, strict=True))
    for region in members:
        for params, reads, results in _steps_of(graph, region) or ():
            try:
                found = params.infer([specs[v] for v in reads])
            except ValueError:
                return region
            specs |= zip(results, found, strict=False)
    return None


def _build(
    graph: TileGraph, members: Sequence[Region]
) -> tuple[RegionParams, tuple[str, ...], tuple[str, ...]]:
    """The program of some regions, what it reads and what others read of it."""
    steps = [s for r in members for s in _steps_of(graph, r) or ()]
    inside = {v for _, _, results in steps for v in results}
    operands = tuple(dict.fromkeys(v for _, reads, _ in steps for v in reads if v not in inside))
    numbers = {v: i for i, v in enumerate(operands)}
    made = []
    for params, reads, results in steps:
        made.append(RegionStep(params, tuple(numbers[v] for v in reads), len(results)))
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
