"""The cost model: a roofline over flops and bytes, with ONNX Runtime's known weak spots.

    t = calls · overhead + max(flops / (peak · efficiency), bytes / bandwidth)

It ranks proposals and decides what is not worth measuring; what stays is decided by timing.
Source: Williams, Waterman, Patterson, "Roofline" (CACM 2009); efficiencies measured on Zen 5.
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
from tracea_graph.ttg import Region, TileGraph

__all__ = ["CostModel", "Machine"]

_UNKNOWN_EXTENT = 16
"""Assumed for a dimension no binding covers."""
_SHAPE_ONLY = frozenset(
    "Shape Reshape Squeeze Unsqueeze Identity Constant ConstantOfShape Flatten".split()
)
_HEAVY = {"Erf": 20, "Tanh": 20, "Sigmoid": 18, "Exp": 10, "Gelu": 22, "Pow": 20, "Softmax": 14,
          "Div": 8, "Sqrt": 8, "LayerNormalization": 30}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """One core: GFLOP/s in fp32, GB/s from the cache a model's activations live in, and costs."""

    gflops: float = 240.0
    gbytes: float = 25.0
    vector: int = 16
    ghz: float = 4.0
    node_us: float = 0.4


@dataclass(frozen=True)
class CostModel:
    """Predicted µs of a region on one core, under given symbol values."""

    machine: Machine
    bindings: Mapping[str, int]

    def __call__(self, graph: TileGraph, region: Region) -> float:
        """µs for one run of the region."""
        moved = sum(self._bytes(graph.spec(v)) for v in {*region.reads, *region.writes})
        memory = moved / self.machine.gbytes * 1e-3
        compute = self._compute_us(graph, region)
        return self.machine.node_us + (compute + memory if not region.fused else max(compute, memory))

    def _compute_us(self, graph: TileGraph, region: Region) -> float:
        params, rows = region.params, self._count(graph.spec(region.results[0]))
        if isinstance(params, GemmParams):
            extra = params.epilogue.flops if params.epilogue else 0
            norm = 6 if params.norm else 0
            return self._gemm(2.0 * rows * params.k, 0.95) + self._vector(rows * (1 + extra + norm))
        if isinstance(params, AttentionParams):
            return self._attention(graph, region, params)
        if isinstance(params, ElementwiseParams):
            return self._vector(rows * params.chain.flops)
        if isinstance(params, NormParams):
            return self._vector(rows * (6 + (params.prologue.flops if params.prologue else 0)))
        if isinstance(params, EmbeddingParams):
            return self._vector(rows * (params.tables + (6 if params.norm else 0)))
        return self._original(graph, region, rows)

    def _original(self, graph: TileGraph, region: Region, count: float) -> float:
        if region.op in _SHAPE_ONLY:
            return 0.0
        if region.op in ("MatMul", "Gemm"):
            inner = (graph.spec(region.operands[0]).shape or (1,))[-1]
            rows = count / max(1.0, self._value((graph.spec(region.results[0]).shape or (1,))[-1]))
            efficiency = 0.85 if rows >= 64 else 0.5
            return self._gemm(2.0 * count * self._value(inner), efficiency)
        return self._vector(count * _HEAVY.get(region.op, 2)) * 1.5

    def _attention(self, graph: TileGraph, region: Region, p: AttentionParams) -> float:
        shape = graph.spec(region.operands[0]).shape or (1, 1, 1)
        keys = self._value((graph.spec(region.operands[1]).shape or (1, 1, 1))[1])
        scores = self._value(shape[0]) * p.heads * self._value(shape[1]) * keys
        return self._gemm(2.0 * scores * (p.head + p.head_v), 0.7) + self._vector(scores * 10)

    def _gemm(self, flops: float, efficiency: float) -> float:
        return flops / (self.machine.gflops * efficiency) * 1e-3

    def _vector(self, operations: float) -> float:
        return operations / self.machine.vector / self.machine.ghz * 1e-3

    def _count(self, spec: TensorSpec) -> float:
        return float(prod(self._value(d) for d in spec.shape or ()))

    def _bytes(self, spec: TensorSpec) -> float:
        return self._count(spec) * (spec.dtype.size if spec.dtype else 4.0)

    def _value(self, extent: Extent) -> float:
        known = {s: self.bindings.get(s, _UNKNOWN_EXTENT) for s in symbols_of(extent)}
        return float(max(0, evaluate(extent, known)))
