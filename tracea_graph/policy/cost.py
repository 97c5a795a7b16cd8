"""The cost model: a roofline over arithmetic and traffic, with ONNX Runtime's known weak spots.

    one pass        t = node + max(arithmetic, traffic)   products, attention, fused chains
    several passes  t = node + arithmetic + traffic       everything else

It ranks proposals and decides what is not worth measuring; what stays is decided by timing.
A tensor moves at the speed of the memory level it fits in; a written byte counts twice, as its
cache line is read first.  Constants come from memory: models are larger than caches.
Source: Williams, Waterman, Patterson, "Roofline" (CACM 2009).  Weights below are vector
instructions per element, fitted to ONNX Runtime 1.31 per operator on Zen 5 with AVX-512.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tracea_graph.ir import Extent, TensorSpec, evaluate, symbols_of
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.policy.machine import Machine
from tracea_graph.ttg import Region, TileGraph

__all__ = ["CostModel"]

_UNKNOWN_EXTENT = 16
"""Assumed for a dimension no binding covers."""
_SHAPE_ONLY = frozenset(
    ("Shape", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Constant", "ConstantOfShape",
     "Flatten")
)  # fmt: skip
_PARTS = frozenset(("Slice", "Split"))
"""Operators that read as much as they write."""
_PRODUCTS = frozenset(("MatMul", "Gemm", "Conv"))
_HEAVY = {"Erf": 30, "Tanh": 30, "Sigmoid": 27, "Exp": 15, "Gelu": 33, "Pow": 30, "Div": 12,
          "Sqrt": 12, "Softmax": 21, "LayerNormalization": 45, "Transpose": 18,
          "Where": 18}  # fmt: skip
_LIGHT = 3
"""Vector instructions per element of any other operator."""
_RANDOM = 0.25
"""Share of the memory's bandwidth that rows fetched here and there get."""
_FUSED_PRODUCT, _ATTENTION_PRODUCT = 0.95, 0.7
"""Shares of the peak that this package's kernels reach."""
_HEAD_US = 0.3
"""What one head of an attention costs beside its arithmetic."""
_OVERLAPPING = (GemmParams, AttentionParams, ElementwiseParams)
"""One pass each; norms and look-ups take several passes over a row."""
_MANY_ROWS = 64


@dataclass(frozen=True)
class CostModel:
    """Predicted µs of a region on one core, under given symbol values."""

    machine: Machine
    bindings: Mapping[str, int]

    def __call__(self, graph: TileGraph, region: Region) -> float:
        """µs for one run of the region."""
        traffic, arithmetic = self._traffic_us(graph, region), self._arithmetic_us(graph, region)
        overlap = isinstance(region.params, _OVERLAPPING) or region.op in _PRODUCTS
        busy = max(arithmetic, traffic) if overlap else arithmetic + traffic
        return self.machine.node_us + busy

    # ---- traffic -----------------------------------------------------------------------

    def _traffic_us(self, graph: TileGraph, region: Region) -> float:
        if region.op in _SHAPE_ONLY:
            return 0.0
        tables = self._gathered(region)
        written = sum(self._warm_us(graph.spec(v)) for v in {*region.writes})
        if region.op in _PARTS:
            return written + 2.0 * written
        whole = {v for v in region.reads if v not in tables}
        constant = {v for v in whole if graph.weight(v) is not None}
        most = self._bytes(graph.spec(region.results[0]))
        rows = sum(min(most, self._bytes(graph.spec(v))) for v in tables)
        cold = sum(self._bytes(graph.spec(v)) for v in constant) + rows / _RANDOM
        read = sum(self._warm_us(graph.spec(v)) for v in whole - constant)
        return read + 2.0 * written + cold / self.machine.dram_gbytes * 1e-3

    def _warm_us(self, spec: TensorSpec) -> float:
        """Reading what another operator has just written."""
        size = self._bytes(spec)
        return size / self.machine.gbytes(size) * 1e-3

    def _gathered(self, region: Region) -> tuple[str, ...]:
        """Tables of which only as many elements are read as the result has, row by row."""
        if isinstance(region.params, EmbeddingParams):
            return region.operands[: 2 * region.params.tables : 2]
        return region.operands[:1] if region.op == "Gather" else ()

    # ---- arithmetic --------------------------------------------------------------------

    def _arithmetic_us(self, graph: TileGraph, region: Region) -> float:
        params, count = region.params, self._count(graph.spec(region.results[0]))
        if isinstance(params, GemmParams):
            extra = params.epilogue.flops if params.epilogue else 0
            norm = 6 if params.norm else 0
            product = self._product(2.0 * count * params.k, _FUSED_PRODUCT)
            return product + self._vector(count * (1 + extra + norm))
        if isinstance(params, AttentionParams):
            return self._attention(graph, region, params)
        if isinstance(params, ElementwiseParams):
            return self._vector(count * params.chain.flops)
        if isinstance(params, NormParams):
            return self._vector(count * (6 + (params.prologue.flops if params.prologue else 0)))
        if isinstance(params, EmbeddingParams):
            return self._vector(count * (params.tables + (6 if params.norm else 0)))
        return self._original(graph, region, count)

    def _original(self, graph: TileGraph, region: Region, count: float) -> float:
        if region.op in _SHAPE_ONLY:
            return 0.0
        if region.op == "Conv":
            inner = prod(map(self._value, (graph.spec(region.operands[1]).shape or (1, 1))[1:]))
            return self._product(2.0 * count * inner, 0.85)
        if region.op in ("MatMul", "Gemm"):
            inner = self._value((graph.spec(region.operands[0]).shape or (1,))[-1])
            rows = count / max(1.0, self._value((graph.spec(region.results[0]).shape or (1,))[-1]))
            return self._product(2.0 * count * inner, 0.85 if rows >= _MANY_ROWS else 0.5)
        return self._vector(count * _HEAVY.get(region.op, _LIGHT))

    def _attention(self, graph: TileGraph, region: Region, p: AttentionParams) -> float:
        try:
            extents = [p.extents(i, graph.spec(v)) for i, v in enumerate(region.operands[:2])]
        except ValueError:
            return 0.0
        (batch, queries), (_, keys) = [tuple(map(self._value, e)) for e in extents]
        heads = batch * p.heads
        seen = keys if p.causal == "none" else max(1.0, keys - (min(queries, keys) - 1) / 2)
        scores = heads * queries * seen
        product = self._product(2.0 * scores * (p.head + p.head_v), _ATTENTION_PRODUCT)
        return product + self._vector(scores * 10) + heads * _HEAD_US

    def _product(self, flops: float, efficiency: float) -> float:
        return flops / (self.machine.gflops * efficiency) * 1e-3

    def _vector(self, operations: float) -> float:
        return operations / self.machine.vector_gops * 1e-3

    # ---- sizes -------------------------------------------------------------------------

    def _count(self, spec: TensorSpec) -> float:
        return float(prod(self._value(d) for d in spec.shape or ()))

    def _bytes(self, spec: TensorSpec) -> float:
        return self._count(spec) * (spec.dtype.size if spec.dtype else 4.0)

    def _value(self, extent: Extent) -> float:
        known = {s: self.bindings.get(s, _UNKNOWN_EXTENT) for s in symbols_of(extent)}
        return float(max(0, evaluate(extent, known)))
