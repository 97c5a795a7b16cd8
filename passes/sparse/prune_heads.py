"""Remove attention heads that compression chose to prune.

FusedGemm(FusedAttention(FusedGemm(x, [Q K V])), O)    ->    all three with fewer heads
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.passes.matmul.constant_matrices import replaceable_matrix
from tracea_graph.passes.region_helpers import fused_region, only_read_by
from tracea_graph.passes.sparse.chosen_compression import (
    CompressedMatrix,
    pruned_for,
    reason_not_compressed,
)
from tracea_graph.passes.sparse.pruned_weights import (
    pruned_bias,
    pruned_weight,
    with_channels,
    with_matrix,
)
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PruneHeads", "prunable_heads"]

Mask = npt.NDArray[np.bool_]


def prunable_heads(graph: TileGraph, region: Region) -> tuple[Region, Region] | None:
    """Return the projection and the attention that compute what a product reads.

    None if heads of the attention must not be removed.
    """
    attention = graph.producer(region.operands[0])
    if attention is None or not isinstance(attention.params, AttentionParams):
        return None
    p = attention.params
    if p.layouts != ("rows",) * 4 or p.shared_heads != p.heads or p.in_bf16:
        return None
    merged = {*attention.operands[:3]}
    qkv = graph.producer(attention.operands[0]) if len(merged) == 1 else None
    if qkv is None or replaceable_matrix(graph, qkv) is None:
        return None
    g: GemmParams = qkv.params
    alone = only_read_by(graph, attention.operands[0], attention)
    if g.epilogue or g.norm or g.splits or not alone or g.n != sum(p.sizes):
        return None
    if not only_read_by(graph, region.operands[0], region):
        return None
    mask = graph.spec(attention.operands[3]).shape if p.mask != "none" else ()
    if mask is None or (len(mask) > 2 and mask[-3] != 1):
        return None  # one mask per head
    constant = all(graph.weight(v) is not None for v in qkv.operands[1:])
    return (qkv, attention) if constant else None


@dataclass(frozen=True)
class PruneHeads:
    """Remove attention heads whose rows in the output projection's pruned matrix are all zero."""

    chosen: Mapping[str, CompressedMatrix]
    name: str = "prune-heads"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not isinstance(region.params, GemmParams):
            return
        if (found := pruned_for(self.chosen, graph, region)) is None:
            yield Miss(self.name, region.id, reason_not_compressed(region.operands[1]))
            return
        if (behind := prunable_heads(graph, region)) is None:
            why = f"no attention with removable heads computes {region.operands[0]!r}"
            yield Miss(self.name, region.id, why)
            return
        (matrix,) = found.matrices
        p: AttentionParams = behind[1].params
        kept = np.any(matrix.reshape(p.heads, -1), axis=1)
        if not kept.all() and kept.any():
            yield self._without(graph, (*behind, region), kept, found)
        else:
            why = Reason(
                f"in {region.operands[1]!r}, no head or every head has only zeros",
                Code.DENSE_WEIGHTS,
            )
            yield Miss(self.name, region.id, why)

    def _without(
        self,
        graph: TileGraph,
        regions: tuple[Region, Region, Region],
        kept: Mask,
        found: CompressedMatrix,
    ) -> Proposal:
        qkv, attention, last = regions
        p: AttentionParams = attention.params
        heads, columns = int(kept.sum()), np.zeros(qkv.params.n, np.bool_)
        for start, size in zip(p.offsets, p.sizes, strict=True):
            columns[start : start + size] = np.repeat(kept, size // p.heads)
        widths = [size // p.heads * heads for size in p.sizes]
        total = sum(widths)
        q, k, v = (
            sum(w for w, at in zip(widths, p.offsets, strict=True) if at < start)
            for start in p.offsets
        )
        first: Any = with_channels(qkv.params, "result", total)
        near = dataclasses.replace(
            p, heads=heads, kv_heads=0, offsets=(q, k, v), widths=(total,) * 3
        )
        other: Any = with_channels(last.params, "operand", heads * p.head_v)
        weights, stem = graph.weights, f"{attention.results[0]}_heads{heads}"
        merged, read = f"{stem}_qkv", f"{stem}_alive"
        own = [pruned_weight(f"{stem}_a", weights[qkv.operands[1]], qkv.params, first, columns, 0)]
        if first.bias:
            own.append(pruned_bias(f"{stem}_bias", weights[qkv.operands[2]], first, columns))
        old, whole = with_matrix(last.params, found.matrices[0])
        rows = np.repeat(kept, p.head_v)
        matrix = pruned_weight(f"{stem}_b", whole, old, other, rows, 1)
        new = (
            fused_region(
                self.name, first, (qkv.operands[0], *(w.name for w in own)), (merged,), [qkv]
            ),
            fused_region(
                self.name, near, (merged,) * 3 + attention.operands[3:], (read,), [attention]
            ),
            fused_region(
                self.name, other, (read, matrix.name, *last.operands[2:]), last.results, [last]
            ),
        )
        specs = {merged: first.infer([graph.spec(qkv.operands[0])])[0]}
        specs[read] = near.infer([specs[merged]] * 3)[0]
        stored = {w.name: w for w in (*own, matrix)}
        return Proposal(self.name, regions, new, specs, stored, found.error)
