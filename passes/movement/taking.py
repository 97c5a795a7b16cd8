"""Elements picked along the last axis, as relative positions pick scores.

GatherElements(x, i, axis=-1)                   -> FusedTake(x, i)
GatherElements(x, Expand(i, …), axis=-1)        -> the same: what repeats is read where it lies
"""

from __future__ import annotations

from collections.abc import Iterator

from tracea_graph.ir import DType
from tracea_graph.ops.take import TakeParams
from tracea_graph.passes.regions import attribute, fused, is_f32, operand_producer, with_feeders
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["LiftTake"]

_SINCE = 11
"""The opset GatherElements came with."""


class LiftTake:
    """GatherElements along the last axis."""

    name = "take"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or region.op != "GatherElements" or graph.opset < _SINCE:
            return
        x, index = region.operands
        rank = graph.spec(x).rank
        if not rank or not is_f32(graph, x):
            return
        if attribute(region, "axis", 0) not in (-1, rank - 1):
            yield Miss(self.name, region.id, "it does not pick along the last axis")
            return
        if graph.spec(index).dtype not in (DType.I32, DType.I64):
            yield Miss(self.name, region.id, f"{index!r} is {graph.spec(index)}")
            return
        params, wanted = TakeParams(rank), graph.spec(region.results[0]).shape
        repeat = operand_producer(graph, index, "Expand")
        for value in (*([repeat.operands[0]] if repeat else []), index):
            try:
                made = params.infer([graph.spec(x), graph.spec(value)])[0].shape
            except ValueError as why:
                reason = str(why)
                continue
            if made != wanted:
                reason = f"the shape of {region.results[0]!r} is not proven"
                continue
            covered = with_feeders(graph, [region], (x, value))
            new = fused(self.name, params, (x, value), region.results, covered)
            yield Proposal(self.name, tuple(covered), (new,))
            return
        yield Miss(self.name, region.id, reason)
