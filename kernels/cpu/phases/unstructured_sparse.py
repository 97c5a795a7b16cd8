"""Store the matrix of a product of few rows as its nonzero elements and a bitmap.

FusedGemm(x, [K, N])    ->    FusedGemm(x, nonzero elements, map)        x has at most 4 rows

Such a product is bound by the bytes of its matrix: one bit per position, and the nonzero elements.
The result is exact: the kernel multiplies by the zeros too.  The cost model chooses between the
bitmap, blocks and the dense form; the choice is kept if it was measured faster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tracea_graph.ir import Array, DType, Weight, product
from tracea_graph.kernels.cpu.bitmap_sparse_format import bitmap_words, pack_bitmap
from tracea_graph.kernels.cpu.panels import BITMAP, PANEL, pack_panels
from tracea_graph.kernels.cpu.phases.block_sparse import (
    dense_matrix,
    sources_of,
    why_dense,
    without_scatter,
)
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import Floats
from tracea_graph.passes.matmul.constant_matrices import gemm_pattern, matrix_of
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite
from tracea_graph.ttg import Region

__all__ = ["FEW_ROWS", "UnstructuredSparseGemm"]

FEW_ROWS = 4
"""Rows up to which reading the matrix dominates the time; one row for bf16."""
_MOST_STORED = 0.8
"""Share of nonzero elements above which nothing is gained; the bitmap itself adds 3 %."""


@dataclass(frozen=True)
class UnstructuredSparseGemm(PatternPass):
    """Store only the nonzero elements of the matrix of a product of at most ``most_rows`` rows.

    ``twice``: do so even if other nodes need the dense matrix, which is then stored as well.
    """

    scan: WeightScan = field(default_factory=WeightScan)
    most_rows: int = FEW_ROWS
    twice: bool = False
    name: str = "unstructured-sparse-gemm"
    patterns = (gemm_pattern,)

    def rewrite(self, m: Match) -> Rewrite | str:
        graph, region = m.graph, m.root
        weight = dense_matrix(graph, region, self.twice)
        if weight is None:
            return why_dense(graph, region, self.twice)
        matrix = partial(matrix_of, region.params, weight)
        count = self.scan.zeros.stored(sources_of(graph, region), weight)
        if not 0 < count <= _MOST_STORED * region.params.k * region.params.n:
            return Reason(f"{weight.name!r} has few zeros", Code.DENSE_WEIGHTS)
        if reason := without_scatter(graph):
            return reason
        shape = graph.spec(region.operands[0]).shape
        rows = product(shape[:-1]) if shape else None
        if not isinstance(rows, int) or rows > self.most_rows:
            said = f"{rows} rows" if isinstance(rows, int) else "any number of rows"
            return f"{region.operands[0]!r} has {said}: zeros are skipped up to {self.most_rows}"
        return _reading(self.name, region, weight.name, matrix, count)


def _reading(
    rule: str, region: Region, name: str, matrix: Callable[[], Floats], count: int
) -> Rewrite:
    params: GemmParams = dataclasses.replace(region.params, layout=BITMAP)

    def packed() -> tuple[Array, Array]:
        return pack_bitmap(pack_panels(matrix()))

    words = (-(-params.n // PANEL), bitmap_words(params.k))
    stored = Weight(f"{name}_numbers", DType.F32, (count,), lambda: packed()[0])
    at = Weight(f"{name}_bits", DType.I32, words, lambda: packed()[1])
    operands = (region.operands[0], stored.name, *region.operands[2:], at.name)
    new = fused_region(rule, params, operands, region.results, [region])
    return Rewrite((new,), weights={w.name: w for w in (stored, at)})
