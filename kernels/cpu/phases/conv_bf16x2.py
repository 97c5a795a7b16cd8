"""Convolutions of sums of two numbers in bf16: three products in bf16, nearly as exact as float32.

On matrix tiles those are faster than one in float32, and than one in 16-bit integers, where those
have no instruction of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from tracea_graph.kernels.cpu.filters import BLOCKED, SPLIT
from tracea_graph.kernels.cpu.phases.pack_filters import repacked
from tracea_graph.kernels.cpu.phases.precision import BF16X2_ERROR, no_bf16, stored_as
from tracea_graph.ops.conv import ConvParams
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ConvBf16x2"]


@dataclass(frozen=True)
class ConvBf16x2:
    """A dense convolution between blocked values splits them, and its filters are stored so."""

    name: str = "conv-bf16x2"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, ConvParams) or params.layout != BLOCKED:
            return
        weight = graph.weight(region.operands[1])
        if weight is None:
            yield Miss(self.name, region.id, "its filters are not constant")
        elif why := no_bf16(graph):
            yield Miss(self.name, region.id, why)
        else:
            lower = dataclasses.replace(params, layout=SPLIT)
            made = repacked(weight, params, SPLIT)
            yield stored_as(self.name, region, lower, made, BF16X2_ERROR)
