"""Products and convolutions in fp16, for Arm's processors with arithmetic in fp16.

Sums are in fp16 over 64 steps of k, and these sums are added up in float32
(``micro/half_sums.h``).  The error is half that of bf16 with sums in float32 where signs mix, and
about 2.5 times as large for numbers of one sign.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.kernels.cpu.filters import BLOCKED
from tracea_graph.kernels.cpu.fp16_layouts import (
    FP16_FILTERS,
    FP16_PANELS,
    LARGEST,
    SMALLEST,
    pack_fp16,
)
from tracea_graph.kernels.cpu.panels import PANELS, unpack_panels
from tracea_graph.kernels.cpu.phases.lower_precision import (
    FP16_ERROR,
    lowered_products,
    with_lowered_weights,
)
from tracea_graph.kernels.cpu.phases.pack_filters import conv, repack_filters
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.passes import UNMEASURED
from tracea_graph.reason_codes import (
    Code,
    Reason,
    not_constant_reason,
    out_of_range_reason,
    unsuited_reason,
)
from tracea_graph.rewrite import Match, Miss, PatternPass, Proposal, Rewrite
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ConvFp16", "GemmFp16"]


def _outside(ranges: Mapping[str, float], value: str) -> Reason | None:
    """Why a value cannot be rounded to fp16, by its largest measured magnitude; None if it can."""
    return out_of_range_reason(value, ranges.get(value, 0.0), "fp16", SMALLEST, LARGEST)


@dataclass(frozen=True)
class GemmFp16:
    """Convert the packed float32 weights of a product to fp16."""

    ranges: Mapping[str, float] = field(default_factory=lambda: UNMEASURED, compare=False)
    name: str = "gemm-fp16"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        alone = isinstance(params, GemmParams) and params.layout == PANELS
        if alone and (why := _outside(self.ranges, region.operands[0])):
            yield Miss(self.name, region.id, why)
            return
        yield from lowered_products(self.name, FP16_ERROR, (PANELS,), self._lower, graph, region)

    def _lower(
        self, graph: TileGraph, params: GemmParams, panels: str
    ) -> tuple[GemmParams, Weight] | str:
        stored = graph.weight(panels)
        if stored is None:
            return not_constant_reason(panels)
        return dataclasses.replace(params, layout=FP16_PANELS), _in_fp16(stored, params.n)


@dataclass(frozen=True)
class ConvFp16(PatternPass):
    """Let a dense convolution of blocked values multiply fp16."""

    ranges: Mapping[str, float] = field(default_factory=lambda: UNMEASURED, compare=False)
    name: str = "conv-fp16"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        if m.root.params.layout != BLOCKED:
            return unsuited_reason("its filters are not float32 in channel blocks")
        return _outside(self.ranges, m.values["x"])

    def rewrite(self, m: Match) -> Rewrite | str:
        weight, params = m.graph.weight(m.values["w"]), m.root.params
        if weight is None:
            return Reason("its filters are not constant", Code.NOT_CONSTANT)
        lower = dataclasses.replace(params, layout=FP16_FILTERS)
        filters = repack_filters(weight, params, FP16_FILTERS)
        return with_lowered_weights(self.name, m.root, lower, filters, FP16_ERROR)


def _in_fp16(panels: Weight, n: int) -> Weight:
    """The matrix of ``panels`` in fp16, computed on demand."""
    k = panels.shape[1]

    def load() -> Array:
        return pack_fp16(unpack_panels(np.asarray(panels.array(), np.float32), n))

    return Weight(f"{panels.name}_fp16", DType.F16, FP16_PANELS.shape(k, n), load)
