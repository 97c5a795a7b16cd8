"""Embedding sums.

Gather(table, ids)                          -> FusedEmbedding
Add(FusedEmbedding, FusedEmbedding)         -> FusedEmbedding of both tables
FusedNorm(FusedEmbedding)                   -> FusedEmbedding(…, norm)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tracea_graph.ir import DType
from tracea_graph.ops.embedding import MAX_TABLES, EmbeddingParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.passes.regions import attribute, fused, operand_producer
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["AbsorbEmbeddingNorm", "LiftEmbedding", "MergeEmbeddings"]

_MIN_COLUMNS = 16
"""Narrower tables are index arithmetic, not embeddings."""


class LiftEmbedding:
    """Rows of a constant float32 table looked up by integer ids."""

    name = "embedding"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Gather" or region.fused:
            return
        table, ids = region.operands
        weight, spec = graph.weight(table), graph.spec(ids)
        if weight is None or weight.dtype is not DType.F32 or len(weight.shape) != 2:
            return
        if attribute(region, "axis", 0) != 0 or weight.shape[1] < _MIN_COLUMNS:
            return
        if spec.dtype not in (DType.I64, DType.I32) or not spec.rank:
            yield Miss(self.name, region.id, "the ids are not an integer tensor of known rank")
            return
        new = fused(self.name, EmbeddingParams(1), (table, ids), region.results, [region])
        yield Proposal(self.name, (region,), (new,))


def _sum_behind(graph: TileGraph, value: str) -> Region | None:
    region = operand_producer(graph, value, "FusedEmbedding")
    return region if region is not None and region.params.norm is None else None


class MergeEmbeddings:
    """The sum of two look-ups is one pass over the rows."""

    name = "embedding-sum"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Add":
            return
        parts = [_sum_behind(graph, v) for v in region.operands]
        a, b = parts
        if a is None or b is None or a.id == b.id:
            return
        if (
            graph.only_use(region.operands[0]) is None
            or graph.only_use(region.operands[1]) is None
        ):
            yield Miss(self.name, region.id, "a look-up has other readers")
            return
        tables = a.params.tables + b.params.tables
        if tables > MAX_TABLES:
            yield Miss(self.name, region.id, f"more than {MAX_TABLES} tables")
            return
        operands = (*a.operands, *b.operands)
        ids = {graph.spec(v).dtype for v in operands[1::2]}
        params = EmbeddingParams(tables)
        try:
            spec = params.infer([graph.spec(v) for v in operands])[0]
        except ValueError as error:
            yield Miss(self.name, region.id, str(error))
            return
        if len(ids) > 1:
            yield Miss(self.name, region.id, "the ids have different integer types")
            return
        new = fused(self.name, params, operands, region.results, (a, b, region))
        yield Proposal(self.name, (a, b, region), (new,), {region.results[0]: spec})


class AbsorbEmbeddingNorm:
    """The normalisation of an embedding sum runs on each block of rows."""

    name = "embedding-norm"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not isinstance(region.params, NormParams) or region.params.prologue is not None:
            return
        value = region.operands[0]
        if (first := _sum_behind(graph, value)) is None:
            return
        keep = graph.is_output(value) or any(u.region.id != region.id for u in graph.uses(value))
        params = dataclasses.replace(first.params, norm=region.params.norm, keep_sum=keep)
        results = (region.results[0], *([value] if keep else []))
        operands = (*first.operands, *region.operands[1:])
        new = fused(self.name, params, operands, results, (first, region))
        yield Proposal(self.name, (first, region), (new,))
