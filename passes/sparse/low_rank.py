"""Replace the matrix of a product, convolution or lookup by two chosen factors.

FusedGemm(x, [K,N])           ->    FusedGemm(FusedGemm(x, [K,R]), [R,N])
FusedConv(x, [O, C, taps])    ->    FusedConv(FusedConv(x, [R, C, taps]), [O, R, 1])
Gather([V, N], ids)           ->    FusedGemm(FusedEmbedding([V, R], ids), [R, N])

The first convolution keeps the window, so that Winograd still applies.  Separating the window's
axes (Jaderberg et al. 2014, arXiv:1405.3866) would lose that, which costs more than it saves.
Source: Zhang et al. 2016, arXiv:1505.06798.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracea_graph.ir import Array, DType, Node, TensorSpec, Weight
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.passes.matmul.constant_matrices import gemm_pattern
from tracea_graph.passes.region_helpers import attribute, fused_region
from tracea_graph.passes.sparse.chosen_compression import (
    CompressedMatrix,
    chosen_for,
    reason_not_compressed,
)
from tracea_graph.passes.sparse.low_rank_exact import two_products
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite
from tracea_graph.ttg import Region

__all__ = ["LowRankConv", "LowRankEmbedding", "LowRankGemm", "conv_of", "conv_output", "table_key"]


def conv_of(region: Region) -> Node | None:
    """Return the original Conv node that a fused region computes."""
    return next((n for n in region.nodes if n.op == "Conv"), None)


def conv_output(region: Region) -> str:
    """Return the original value that holds the result of a region's convolution.

    If a batch normalisation was folded into the convolution, it is the result of that.
    """
    node = conv_of(region)
    assert node is not None
    norms = (n for n in region.nodes if n.op == "BatchNormalization")
    behind = next((n for n in norms if n.inputs[0] == node.outputs[0]), node)
    return behind.outputs[0]


def table_key(table: str) -> str:
    """Return the key under which a table's replacement for lookups is found.

    Replacements for products with the table have its name as their key.
    """
    return f"{table} looked up"


def _conv(op: Any, x: Any, w: Any) -> Any:
    return op.FusedConv(x, w, ...)


def _look_up(op: Any, table: Any, ids: Any) -> Any:
    return op.Gather(table, ids)


@dataclass(frozen=True)
class LowRankGemm(PatternPass):
    """Replace a product's matrix by the two factors chosen for it."""

    chosen: Mapping[str, CompressedMatrix]
    name: str = "low-rank-gemm"
    patterns = (gemm_pattern,)

    def rewrite(self, m: Match) -> Rewrite | str:
        if m.root.rule == self.name:
            return Reason("it is already a factor of a low-rank product", Code.OTHER_FORM)
        if (found := chosen_for(self.chosen, m.root, 2)) is None:
            return reason_not_compressed(m.root.operands[1])
        shape = m.graph.spec(m.root.results[0]).shape
        if shape is None:
            return f"the rank of {m.root.results[0]!r} is not known"
        a, b = found.matrices
        return two_products(self.name, m.root, a, b, shape[:-1], found.error)


@dataclass(frozen=True)
class LowRankConv(PatternPass):
    """Replace the filters of an ungrouped convolution before they are transformed."""

    chosen: Mapping[str, CompressedMatrix]
    name: str = "low-rank-conv"
    patterns = (_conv,)

    def check(self, m: Match) -> str | None:
        params: ConvParams = m.root.params
        if m.root.rule == self.name:
            return Reason("it is already a factor of a low-rank product", Code.OTHER_FORM)
        other = params.groups > 1 or params.window.rank > 2
        said = "the convolution is grouped, or has more than two spatial axes"
        return Reason(said, Code.NOT_APPLICABLE) if other else None

    def rewrite(self, m: Match) -> Rewrite | str:
        region, params = m.root, m.root.params
        found = self.chosen.get(conv_output(region)) if conv_of(region) else None
        spec = m.graph.spec(region.results[0])
        if found is None:
            return reason_not_compressed(region.operands[1])
        if spec.shape is None:
            return Reason(f"the rank of {region.results[0]!r} is not known", Code.UNKNOWN_SHAPE)
        a, b = found.matrices
        rank = a.shape[1]
        middle = f"{region.results[0]}_rank{rank}"
        first = ConvParams(params.channels, rank, params.window)
        axes = params.window.rank
        point = ConvWindow((1,) * axes, (1,) * axes, (1,) * axes, (0,) * (2 * axes))
        last = dataclasses.replace(params, channels=rank, window=point)
        own = _held(f"{middle}_a", a.T.reshape(first.shape))
        other = _held(f"{middle}_b", b.T.reshape(last.shape))
        operands = (middle, other.name, *region.operands[2:])
        new = (
            fused_region(self.name, first, (region.operands[0], own.name), (middle,), [region]),
            fused_region(self.name, last, operands, region.results, [region]),
        )
        shape = (spec.shape[0], rank, *spec.shape[2:])
        specs, weights = {middle: TensorSpec(DType.F32, shape)}, {w.name: w for w in (own, other)}
        return Rewrite(new, specs=specs, weights=weights, error=found.error)


@dataclass(frozen=True)
class LowRankEmbedding(PatternPass):
    """Replace the table of a lookup before lookups are merged."""

    chosen: Mapping[str, CompressedMatrix]
    name: str = "low-rank-embedding"
    patterns = (_look_up,)

    def check(self, m: Match) -> str | None:
        first = attribute(m.root, "axis", 0) == 0
        return (
            None if first else Reason("it does not look up rows of a table", Code.NOT_APPLICABLE)
        )

    def rewrite(self, m: Match) -> Rewrite | str:
        region, table, ids = m.root, m.values["table"], m.values["ids"]
        found, spec = self.chosen.get(table_key(table)), m.graph.spec(region.results[0])
        if found is None:
            return reason_not_compressed(table)
        if spec.shape is None:
            return Reason(f"the rank of {region.results[0]!r} is not known", Code.UNKNOWN_SHAPE)
        a, b = found.matrices
        rank, stem = a.shape[1], f"{table}_rank{a.shape[1]}"
        middle = f"{region.results[0]}_rank{rank}"
        own, other = _held(f"{stem}_a", a), _held(f"{stem}_b", b)
        params = GemmParams(rank, b.shape[1])
        new = (
            fused_region(self.name, EmbeddingParams(1), (own.name, ids), (middle,), [region]),
            fused_region(self.name, params, (middle, other.name), region.results, [region]),
        )
        specs = {middle: TensorSpec(DType.F32, (*spec.shape[:-1], rank))}
        weights = {w.name: w for w in (own, other)}
        return Rewrite(new, specs=specs, weights=weights, error=found.error, step=True)


def _held(name: str, array: Array) -> Weight:
    return Weight(name, DType.F32, array.shape, lambda: array)
