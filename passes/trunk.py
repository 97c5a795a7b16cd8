"""Neighbouring regions become the steps of one program: convolutional trunks, transformer blocks.

FusedConv, FusedPool, elementwise chains, moves of channels … -> one FusedRegion
FusedGemm, FusedAttention, FusedNorm, FusedElementwise …      -> one FusedRegion

What lies between two steps never leaves the program, so it lies as the kernels like it.  Where a
program begins and ends is the tile graph's to say (``ttg.programs``); here stands what kernels can
do: which words can be steps, and which of them (convolutions, pools, resizing; products and
attention) are worth a program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops import OpParams
from tracea_graph.ops.append import AppendParams
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.moves import MoveParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.reduction import ReduceParams
from tracea_graph.ops.region import RegionParams, RegionStep
from tracea_graph.ops.resize import ResizeParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.passes.lowering.writer import localise
from tracea_graph.passes.movement.moves import read_moves
from tracea_graph.passes.regions import fused, is_f32
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Joining, Region, TileGraph, program_from

__all__ = ["ConnectBlocks", "ConnectTrunk"]

_TRUNK_CORE = (ConvParams, PoolParams, ResizeParams)
_TRUNK = (*_TRUNK_CORE, ElementwiseParams, GemmParams, NormParams, MoveParams)
_BLOCK_CORE = (GemmParams, AttentionParams)
_BLOCK = (
    *_BLOCK_CORE, ElementwiseParams, NormParams, ConcatParams, EmbeddingParams, MatMulParams,
    SoftmaxParams, ReduceParams, AppendParams,
)  # fmt: skip
_MAX_OPERANDS, _MAX_STEPS = 240, 200
"""Of one program: what the library accepts, with room for scratch."""

Steps = Sequence[tuple[OpParams, tuple[str, ...], tuple[str, ...]]]
"""Parameters, operands and results."""


@dataclass(frozen=True)
class ConnectTrunk:
    """Everything around a convolution that can be a step of its program."""

    name: str = "trunk"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        yield from _connect(self.name, _Trunk(graph), region)


@dataclass(frozen=True)
class ConnectBlocks:
    """The blocks of a transformer: products and attention with what lies between them."""

    name: str = "blocks"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        yield from _connect(self.name, _Blocks(graph), region)


def _connect(name: str, family: _Family, region: Region) -> Iterator[Proposal | Miss]:
    """One program of a core and everything around it, proposed by its first step."""
    if not family.is_core(region):
        return
    joining = Joining(
        lambda r: len(family.steps_of(r) or ()), family.is_core, family.ends, _MAX_STEPS,
        _MAX_OPERANDS,
    )  # fmt: skip
    unfit = set[str]()
    while len(members := program_from(family.graph, region, joining, unfit)) > 1:
        out = _first_unfit(family, members)
        if out is None:
            params, operands, results = _build(family, members)
            new = fused(name, params, operands, results, members)
            yield Proposal(name, tuple(members), (new,))
            return
        if out.id == region.id:
            return
        yield Miss(name, out.id, "its shapes do not provably fit inside a program")
        unfit.add(out.id)


@dataclass(frozen=True)
class _Family:
    """What can be a step of one kind of program, and what is worth ending with."""

    graph: TileGraph
    cores: ClassVar[tuple[type, ...]]

    def is_core(self, region: Region) -> bool:
        return isinstance(region.params, self.cores)

    def steps_of(self, region: Region) -> Steps | None:
        """The steps a region would be; None if it cannot be one."""
        raise NotImplementedError

    def ends(self, region: Region) -> bool:
        """True if what follows the last core in vain is better a step than a node."""
        raise NotImplementedError


class _Trunk(_Family):
    cores = _TRUNK_CORE

    def steps_of(self, region: Region) -> Steps | None:
        return _steps_of(self.graph, region)

    def ends(self, region: Region) -> bool:
        """Chains and concatenations finish what cores began; so does what reads a
        pooled vector.  A move at the end only moves."""
        if isinstance(region.params, (GemmParams, NormParams)):
            return self.graph.spec(region.results[0]).rank == 2
        done = isinstance(region.params, (ElementwiseParams, MoveParams))
        return done or region.op == "Concat"


class _Blocks(_Family):
    cores = _BLOCK_CORE

    def steps_of(self, region: Region) -> Steps | None:
        values = (*region.reads, *region.writes)
        known = all(s.dtype and s.rank is not None for s in map(self.graph.spec, values))
        fits = isinstance(region.params, _BLOCK) and region.results and known
        return ((region.params, region.operands, region.results),) if fits else None

    def ends(self, region: Region) -> bool:
        return isinstance(region.params, (ElementwiseParams, NormParams))


def _steps_of(graph: TileGraph, region: Region) -> Steps | None:
    params = region.params
    if isinstance(params, RegionParams) or not region.results:
        return None
    if isinstance(params, _TRUNK):
        whole = is_f32(graph, *_numbers(graph, region))
        ranks = {graph.spec(v).rank for v in region.writes}
        single = len(region.results) == 1 or not isinstance(params, ElementwiseParams)
        known = None not in ranks and whole and single and _channels_known(graph, region)
        return ((params, region.operands, region.results),) if known else None
    moves = read_moves(graph, region)
    return None if moves is None else [(p, names, (result,)) for p, names, result in moves]


def _numbers(graph: TileGraph, region: Region) -> list[str]:
    """What a region reads and writes, but for constants in bf16 and in integers."""
    values, other = (*region.reads, *region.writes), (DType.BF16, DType.I16)
    return [v for v in values if not graph.weight(v) or graph.spec(v).dtype not in other]


def _channels_known(graph: TileGraph, region: Region) -> bool:
    """True if what may lie in blocks says how many channels it has."""
    shapes = [graph.spec(v).shape or () for v in (*region.reads, *region.writes)]
    return all(isinstance(s[1], int) for s in shapes if len(s) in (3, 4))


def _first_unfit(family: _Family, members: Sequence[Region]) -> Region | None:
    """The first region whose shapes do not follow from those of what is outside."""
    outside = sorted(
        {v for r in members for v in r.reads} - {v for r in members for v in r.writes}
    )
    graph = family.graph
    # as the program will know them: sizes are symbols of its own
    local, _ = localise([graph.spec(v) for v in outside], True)
    specs: dict[str, TensorSpec] = dict(zip(outside, local, strict=True))
    for region in members:
        for params, reads, results in family.steps_of(region) or ():
            try:
                found = params.infer([specs[v] for v in reads])
            except ValueError:
                return region
            specs |= zip(results, found, strict=False)
    return None


def _build(
    family: _Family, members: Sequence[Region]
) -> tuple[RegionParams, tuple[str, ...], tuple[str, ...]]:
    """The program of some regions, what it reads and what others read of it."""
    graph = family.graph
    steps = [s for r in members for s in family.steps_of(r) or ()]
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
