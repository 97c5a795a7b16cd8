"""Merge products of one input into one product.

FusedAttention(x·Wq, x·Wk, x·Wv)    ->    FusedAttention(x·[Wq Wk Wv])
x·W1, x·W2, x·W3 …                  ->    x·[W1 W2 W3 …] with one result each
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.gemm import MAX_SPLITS, GemmParams
from tracea_graph.ops.weight_layouts import ALIGNED
from tracea_graph.passes.matmul.constant_matrices import lazy_matrix, matrix_of, replaceable_matrix
from tracea_graph.passes.region_helpers import fused_region, operand_producer
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["MergeGemms", "MergeQkv"]


class MergeQkv:
    """Merge the products that compute Q, K and V from one input into one product.

    Attention reads Q, K and V as columns of its result, without copies.
    """

    name = "merge-qkv"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, AttentionParams):
            return
        if any(params.offsets) or params.layouts[:3] != ("rows",) * 3:
            yield Miss(
                self.name,
                region.id,
                unsuited_reason("its queries, keys and values are not stored as rows"),
            )
            return
        gemms = [operand_producer(graph, v, "FusedGemm") for v in region.operands[:3]]
        q, k, v = gemms
        if q is None or k is None or v is None or len({g.id for g in (q, k, v)}) < 3:
            why = unsuited_reason("its queries, keys and values do not come from three products")
            yield Miss(self.name, region.id, why)
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
        if any(replaceable_matrix(graph, g) is None for g in parts):
            return "a projection's matrix may not be replaced"
        if any(g.params.n % ALIGNED for g in parts) or len({g.params.bias for g in parts}) > 1:
            return "the projections' columns are not whole vectors, or only some have a bias"
        if any(graph.only_use(g.results[0]) is None for g in parts):
            return Reason("a projection has other readers", Code.OTHER_READERS)
        if parts[0].params.bias and any(graph.weight(g.operands[2]) is None for g in parts):
            return Reason("a bias is not constant", Code.NOT_CONSTANT)
        return None

    def _build(self, graph: TileGraph, region: Region, parts: tuple[Region, ...]) -> Proposal:
        merged = f"{parts[0].results[0]}_qkv"
        params, operands, weights = _side_by_side(graph, parts, merged)
        gemm = fused_region(self.name, params, operands, (merged,), parts)
        spec = params.infer([graph.spec(operands[0])])[0]
        offsets = (0, parts[0].params.n, parts[0].params.n + parts[1].params.n)
        attention = fused_region(
            f"{self.name}-read",
            dataclasses.replace(region.params, offsets=offsets, widths=(params.n,) * 3),
            (merged, merged, merged, *region.operands[3:]),
            region.results,
            [region],
        )
        old = (*parts, region)
        return Proposal(self.name, old, (attention, gemm), {merged: spec}, weights)


class MergeGemms:
    """Merge products that read one input and have no epilogue into one with several results."""

    name = "merge-gemms"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not _alone(graph, region):
            return
        x = region.operands[0]
        found = {u.region.id: u.region for u in graph.uses(x) if u.operand == 0}
        parts = tuple(r for r in found.values() if _alone(graph, r))[:MAX_SPLITS]
        if len(parts) < 2 or parts[0].id != region.id:
            why = unsuited_reason(
                "no other product reads its input, or one of them was rewritten first"
            )
            yield Miss(self.name, region.id, why)
            return
        widths = tuple(r.params.n for r in parts)
        merged = f"{parts[0].results[0]}_merged"
        params, operands, weights = _side_by_side(graph, parts, merged)
        params = dataclasses.replace(params, splits=widths)
        results = [r.results[0] for r in parts]
        new = fused_region(self.name, params, operands, results, parts)
        yield Proposal(self.name, parts, (new,), weights=weights)


def _alone(graph: TileGraph, region: Region) -> bool:
    """Return whether a product can be merged with others.

    It needs constant weights, no epilogue, and columns in a multiple of the vector width.
    """
    p = region.params
    if (
        not isinstance(p, GemmParams)
        or p.n % ALIGNED
        or p.epilogue
        or p.norm
        or p.splits
        or p.integers
    ):
        return False
    constant = all(graph.weight(v) is not None for v in region.operands[2:])
    return constant and replaceable_matrix(graph, region) is not None


def _side_by_side(
    graph: TileGraph, parts: Sequence[Region], name: str
) -> tuple[GemmParams, list[str], dict[str, Weight]]:
    """Return the parameters, operands and new weights of the merged product.

    The names of the weights begin with ``name``.
    """
    k, total = parts[0].params.k, sum(g.params.n for g in parts)
    stored = [(g.params, graph.weights[g.operands[1]]) for g in parts]

    def columns() -> Array:
        return np.concatenate([matrix_of(params, weight) for params, weight in stored], axis=1)

    matrix = lazy_matrix(f"{name}_matrix", k, total, columns)
    weights, operands = {matrix.name: matrix}, [parts[0].operands[0], matrix.name]
    biased = any(g.params.bias for g in parts)
    if biased:
        bias = Weight(f"{name}_bias", DType.F32, (total,), _biases(graph, parts))
        weights[bias.name] = bias
        operands.append(bias.name)
    return GemmParams(k, total, bias=biased), operands, weights


def _biases(graph: TileGraph, parts: Sequence[Region]) -> Callable[[], Array]:
    """Return the concatenated biases, with zeros for products without one."""
    known = [(graph.weights[g.operands[2]] if g.params.bias else None, g.params.n) for g in parts]
    return lambda: np.concatenate(
        [np.zeros(n, np.float32) if w is None else w.array().reshape(-1) for w, n in known]
    )
