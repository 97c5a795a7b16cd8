"""3x3 convolutions computed by Winograd's transform, their filters stored as it makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tracea_graph.kernels.cpu.filters import BLOCKED, DispatchFilters, WinogradFilters
from tracea_graph.kernels.cpu.phases.pack_filters import (
    conv,
    filter_layouts,
    output_extents,
    winograd_filters,
)
from tracea_graph.ops.conv import ConvParams
from tracea_graph.passes.regions import fused
from tracea_graph.rewrite import Match, PatternPass, Rewrite

__all__ = ["ConvWinograd"]

_FEW = 4
"""Filters up to which summing over input channels takes less than the transform of the input."""


class ConvWinograd(PatternPass):
    """A 3x3 convolution by Winograd's transform, of 2 x 2 or 4 x 4 results at a time.

    The error of the first is below, of the second about ten times that of direct summation.  Where
    images may have any size the filters stay there as they are, too: on maps of a few pixels
    reading the transformed ones, several times as many, takes longer than summing directly.
    Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).
    """

    name = "conv-winograd"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        params: ConvParams = m.root.params
        return None if params.layout == BLOCKED and params.filters > _FEW else ""

    def rewrite(self, m: Match) -> Sequence[Rewrite]:
        graph, region, params, made = m.graph, m.root, m.root.params, list[Rewrite]()
        weight = graph.weight(m.values["w"])
        if weight is None:
            return ()
        for layout in filter_layouts(BLOCKED, params, output_extents(graph, region)):
            whole = layout.transformed if isinstance(layout, DispatchFilters) else layout
            if not isinstance(whole, WinogradFilters):
                continue
            filters = winograd_filters(weight, params, whole, graph.opset)
            kept = region.operands[1:2] if layout.fallbacks else ()
            operands = (region.operands[0], filters.name, *region.operands[2:], *kept)
            other = dataclasses.replace(params, layout=layout)
            new = fused(self.name, other, operands, region.results, [region])
            weights = {filters.name: filters}
            made.append(Rewrite((new,), weights=weights))
        return made
