"""Convolutions in 16-bit integers, where bf16 is too coarse: images and filters share scales.

Dense ones alone: what a convolution reads is rounded once for all that read it, and 3x3 ones may
transform it first, two results a side.  Others gain nothing by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from tracea_graph.ir import Weight
from tracea_graph.kernels.cpu.filters import BLOCKED, INT16, transformable
from tracea_graph.kernels.cpu.phases.pack_filters import image_of, repacked, ways
from tracea_graph.kernels.cpu.phases.precision import INT16_ERROR, stored_as
from tracea_graph.ops.conv import ConvParams
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ConvInt16"]

_MOST_TAPS = 25
"""With more of them a block of channels leaves its integers less than bf16's eight bits."""


@dataclass(frozen=True)
class ConvInt16:
    """A dense convolution between blocked values reads them, and its filters, in integers;
    ``transformed``: only one that Winograd's transform can do."""

    transformed: bool = False
    name: str = "conv-int16"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, ConvParams) or params.layout != BLOCKED:
            return
        if self.transformed and not transformable(params.window, params.groups):
            return
        weight = graph.weight(region.operands[1])
        if why := _unfit(params, weight):
            yield Miss(self.name, region.id, why)
        elif weight is not None:
            for layout in ways(INT16, params, image_of(graph, region)):
                lower = dataclasses.replace(params, layout=layout)
                made = repacked(weight, params, layout)
                yield stored_as(self.name, region, lower, made, INT16_ERROR)


def _unfit(params: ConvParams, weight: Weight | None) -> str | None:
    """Why a dense convolution stays in float32, or None."""
    if weight is None:
        return "its filters are not constant"
    taps = params.taps // (params.channels // params.groups)
    if taps > _MOST_TAPS:
        return f"sums of {taps} taps leave too little of 32 bits"
    return None
