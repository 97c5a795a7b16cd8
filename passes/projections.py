"""Q, K and V of one input as one product.

FusedAttention(x·Wq, x·Wk, x·Wv)    ->    FusedAttention(x·[Wq Wk Wv])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from tracea_graph.ir import DType, Weight
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.gemm import PANEL
from tracea_graph.passes.gemm import merge_columns
from tracea_graph.passes.regions import fused, operand_producer
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["MergeProjections"]


class MergeProjections:
    """Q, K and V of one input become one product whose columns attention reads in place."""

    name = "merge-projections"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not isinstance(region.params, AttentionParams) or any(region.params.offsets):
            return
        if region.params.layouts[:3] != ("rows",) * 3:
            return
        gemms = [operand_producer(graph, v, "FusedGemm") for v in region.operands[:3]]
        q, k, v = gemms
        if q is None or k is None or v is None or len({g.id for g in (q, k, v)}) < 3:
            return
        parts = (q, k, v)
        if (reason := self._check(graph, region, parts)) is not None:
            yield Miss(self.name, region.id, reason)
            return
        yield self._build(graph, region, parts)

    def _check(self, graph: TileGraph, region: Region, parts: tuple[Region, ...]) -> str | None:
        if len({g.operands[0] for g in parts}) > 1:
            return "the projections read different inputs"
        if any(g.params.epilogue or g.params.norm for g in parts):
            return "a projection has an epilogue"
        if any(g.params.layout != "panels" for g in parts):
            return "the projections' matrices stay as they are"
        if any(g.params.n % PANEL for g in parts) or len({g.params.bias for g in parts}) > 1:
            return "the projections' columns do not fall on panel borders"
        if any(graph.only_use(g.results[0]) is None for g in parts):
            return "a projection has other readers"
        if parts[0].params.bias and any(graph.weight(g.operands[2]) is None for g in parts):
            return "a bias is not constant"
        return None

    def _build(self, graph: TileGraph, region: Region, parts: tuple[Region, ...]) -> Proposal:
        first = parts[0]
        merged = f"{first.results[0]}_qkv"
        weights = {}
        panels = merge_columns([graph.weights[g.operands[1]] for g in parts], f"{merged}_panels")
        weights[panels.name] = panels
        operands = [first.operands[0], panels.name]
        total = sum(g.params.n for g in parts)
        if first.params.bias:
            biases = [graph.weights[g.operands[2]] for g in parts]
            bias = Weight(
                f"{merged}_bias",
                DType.F32,
                (total,),
                lambda: np.concatenate([b.array().reshape(-1) for b in biases]),
            )
            weights[bias.name] = bias
            operands.append(bias.name)
        params = dataclasses.replace(first.params, n=total)
        gemm = fused(self.name, params, operands, (merged,), parts)
        spec = params.infer([graph.spec(first.operands[0])])[0]
        offsets = (0, parts[0].params.n, parts[0].params.n + parts[1].params.n)
        attention = fused(
            f"{self.name}-read",
            dataclasses.replace(region.params, offsets=offsets, widths=(total,) * 3),
            (merged, merged, merged, *region.operands[3:]),
            region.results,
            [region],
        )
        old = (*parts, region)
        return Proposal(self.name, old, (attention, gemm), {merged: spec}, weights)
