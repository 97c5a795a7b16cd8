"""Split products by a matrix of exactly low rank into two.

FusedGemm(x, [K,N])    ->    FusedGemm(FusedGemm(x, [K,R]), [R,N])

The epilogue moves to the second product.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import KN, round_up_aligned
from tracea_graph.passes.matmul.constant_matrices import (
    gemm_pattern,
    lazy_matrix,
    replaceable_matrix,
    why_not_replaceable,
)
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.passes.sparse.find_exact_low_rank import EPSILON, Floats
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite
from tracea_graph.ttg import Region, TileGraph

__all__ = ["LOW_RANK", "LOW_RANK_EXACT", "LowRankExact", "two_products"]

LOW_RANK_EXACT = "low-rank-exact"
"""Rule that splits a product by exact factors of its matrix."""
LOW_RANK = ("low-rank-gemm", "low-rank-conv", "low-rank-embedding")
"""Rules that split a product by approximate factors of its matrix."""


@dataclass(frozen=True)
class LowRankExact(PatternPass):
    """Split a product whose constant matrix has exactly low rank."""

    scan: WeightScan = field(default_factory=WeightScan)
    name: str = LOW_RANK_EXACT
    patterns = (gemm_pattern,)

    def check(self, m: Match) -> str | None:
        if m.root.rule == self.name:
            return Reason("it is already a factor of a low-rank product", Code.OTHER_FORM)
        if m.root.params.splits:
            return Reason("it is a merged product with several results", Code.OTHER_FORM)
        return (
            None if replaceable_matrix(m.graph, m.root) else why_not_replaceable(m.graph, m.root)
        )

    def rewrite(self, m: Match) -> Rewrite | str:
        graph, region = m.graph, m.root
        shape = graph.spec(region.results[0]).shape
        if shape is None:
            return Reason(f"the rank of {region.results[0]!r} is not known", Code.UNKNOWN_SHAPE)
        factors = self._factors(graph, region)
        if factors is None:
            return Reason(f"the rank of {region.operands[1]!r} is not low", Code.DENSE_WEIGHTS)
        return two_products(self.name, region, *factors, shape[:-1], EPSILON)

    def _factors(self, graph: TileGraph, region: Region) -> tuple[Floats, Floats] | None:
        """Return factors ``[K, R]`` and ``[R, N]`` of the product's current matrix, or None.

        A matrix that lost channels has at most the rank of the model's matrix, which is searched
        first: most have full rank, and a matrix without some channels must be computed to be
        searched.  A merged matrix is not searched.
        """
        products = [n for n in region.nodes if n.op in ("MatMul", "Gemm")]
        source = graph.weight(products[0].inputs[1]) if len(products) == 1 else None
        if source is None or source.dtype is not DType.F32:
            return None
        matrix = graph.weights[region.operands[1]]
        if self.scan.ranks.factors(source) is None:
            return None
        found = self.scan.ranks.factors(matrix)
        if found is None:
            return None
        a, b = found
        return (b.T, a.T) if region.params.layout.transposed else (a, b)


def two_products(
    rule: str,
    region: Region,
    a: npt.NDArray[Any],
    b: npt.NDArray[Any],
    rows: tuple[Any, ...],
    error: float,
) -> Rewrite:
    """Return products with ``a`` ``[K, R]`` and ``b`` ``[R, N]`` that replace a product.

    The second has the epilogue of the replaced ``region``.  R is padded with zeros to a multiple
    of the vector width.
    """
    rank = round_up_aligned(a.shape[1])
    middle = f"{region.results[0]}_rank{a.shape[1]}"
    fill = rank - a.shape[1]
    name_a, name_b = f"{middle}_a", f"{middle}_b"
    weights = {
        name_a: lazy_matrix(name_a, len(a), rank, lambda: np.pad(a, ((0, 0), (0, fill)))),
        name_b: lazy_matrix(name_b, rank, b.shape[1], lambda: np.pad(b, ((0, fill), (0, 0)))),
    }
    first = GemmParams(len(a), rank)
    second: GemmParams = dataclasses.replace(region.params, k=rank, layout=KN)
    operands = (middle, name_b, *region.operands[2:])
    new = (
        fused_region(rule, first, (region.operands[0], name_a), (middle,), [region]),
        fused_region(rule, second, operands, region.results, [region]),
    )
    specs = {middle: TensorSpec(DType.F32, (*rows, rank))}
    return Rewrite(new, specs=specs, weights=weights, error=error)
