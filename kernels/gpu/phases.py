"""Phases that prepare a graph for GPUs before lowering: views, programs, precision.

fp16 and bf16 apply to matmul operands and to the values between the steps of a program; sums,
statistics, and inputs and outputs of the program stay float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType

from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.region import RegionParams, RegionStep
from tracea_graph.passes import LAYOUT, PARTITION, Request, partition
from tracea_graph.passes.regions import fused
from tracea_graph.reasons import unsuited
from tracea_graph.rewrite import Miss, Phase, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["MIXED_PRECISION", "TYPES", "phases"]

_MAX_STEPS, _MAX_OPERANDS = 2000, 1000
"""Limits of one program: what a plan holds, with a margin for scratch buffers."""
TYPES = MappingProxyType({"fp16": "f16", "bf16": "bf16"})
"""Compute type of each reduced precision."""
MIXED_PRECISION = "mixed-precision"
_ERRORS = MappingProxyType({"f16": 2.0**-11 / 12, "bf16": 2.0**-8 / 12})
"""Estimated error that one matmul adds to the outputs, as a fraction of max|y|."""
_PRODUCTS = (GemmParams, MatMulParams, ConvParams, AttentionParams)


@dataclass(frozen=True)
class MixedPrecision:
    """Rule: compute the matmuls of a program, and store values between its steps, in 16 bits."""

    dtype: str
    name: str = MIXED_PRECISION

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not region.fused:
            return
        params = region.params
        if not isinstance(params, RegionParams):
            count, results = params.operands, len(region.results)
            step = RegionStep(params, tuple(range(count)), results)
            params = RegionParams(count, (step,), tuple(range(count, count + results)))
        if params.narrow or not any(isinstance(s.params, _PRODUCTS) for s in params.steps):
            yield Miss(self.name, region.id, unsuited("it has no product left in float32"))
            return
        lower = replace(params, narrow=self.dtype)
        new = fused(self.name, lower, region.operands, region.results, [region])
        error = _ERRORS[self.dtype]
        yield Proposal(self.name, (region,), (new,), error=error, step=True)


def phases(request: Request) -> tuple[Phase, ...]:
    """Return the phases that follow those of :func:`tracea_graph.passes.phases`."""
    dtype = TYPES.get(request.precision)
    return (
        *LAYOUT,
        Phase(PARTITION, (partition.ClusterAll(_MAX_STEPS, _MAX_OPERANDS),)),
        *((Phase("precision", (MixedPrecision(dtype),)),) if dtype else ()),
    )
