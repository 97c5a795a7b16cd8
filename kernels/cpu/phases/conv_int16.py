"""Convolutions in 16-bit integers, where bf16 is too coarse: images and filters share scales.

Dense ones alone: what a convolution reads is rounded once for all that read it, and 3x3 ones may
transform it first, two results a side.  Others gain nothing by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tracea_graph.kernels.cpu.filters import BLOCKED, INT16, transformable
from tracea_graph.kernels.cpu.phases.pack_filters import (
    conv,
    filter_layouts,
    output_extents,
    repack_filters,
)
from tracea_graph.kernels.cpu.phases.precision import INT16_ERROR, with_lowered_weights
from tracea_graph.ops.conv import ConvParams
from tracea_graph.reasons import Code, Reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite

__all__ = ["ConvInt16"]

_MOST_TAPS = 25
"""With more of them a block of channels leaves its integers less than bf16's eight bits."""


@dataclass(frozen=True)
class ConvInt16(PatternPass):
    """A dense convolution between blocked values reads them, and its filters, in integers;
    ``transformed``: only one that Winograd's transform can do."""

    transformed: bool = False
    name: str = "conv-int16"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        params: ConvParams = m.root.params
        direct = self.transformed and not transformable(params.window, params.groups)
        return "" if params.layout != BLOCKED or direct else None

    def rewrite(self, m: Match) -> Sequence[Rewrite] | str:
        weight, params, made = m.graph.weight(m.values["w"]), m.root.params, list[Rewrite]()
        if weight is None:
            return Reason("its filters are not constant", Code.NOT_CONSTANT)
        taps = params.taps // (params.channels // params.groups)
        if taps > _MOST_TAPS:
            return f"sums of {taps} taps leave too little of 32 bits"
        for layout in filter_layouts(INT16, params, output_extents(m.graph, m.root)):
            lower = dataclasses.replace(params, layout=layout)
            filters = repack_filters(weight, params, layout)
            made.append(with_lowered_weights(self.name, m.root, lower, filters, INT16_ERROR))
        return made
