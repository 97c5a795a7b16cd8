"""Compute 3x3 convolutions by Winograd's transform, with transformed filters in the model."""

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
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.reason_codes import not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite

__all__ = ["FEW_FILTERS", "ConvWinograd"]

FEW_FILTERS = 4
"""Filter count up to which direct summation is cheaper than transforming the input."""


class ConvWinograd(PatternPass):
    """Compute a 3x3 convolution by Winograd's F(2x2, 3x3) or F(4x4, 3x3).

    The error of F(2x2) is below that of direct summation, that of F(4x4) about ten times above.
    If image sizes are symbolic, the direct filters are kept as well: for images of a few pixels,
    reading the transformed filters, which are several times larger, takes longer than direct
    summation.
    Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016).
    """

    name = "conv-winograd"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        params: ConvParams = m.root.params
        fits = params.layout == BLOCKED and params.filters > FEW_FILTERS
        said = f"it has up to {FEW_FILTERS} filters, or they are not float32 in channel blocks"
        return None if fits else unsuited_reason(said)

    def rewrite(self, m: Match) -> Sequence[Rewrite] | str:
        graph, region, params, made = m.graph, m.root, m.root.params, list[Rewrite]()
        weight = graph.weight(m.values["w"])
        if weight is None:
            return not_constant_reason(m.values["w"])
        for layout in filter_layouts(BLOCKED, params, output_extents(graph, region)):
            whole = layout.transformed if isinstance(layout, DispatchFilters) else layout
            if not isinstance(whole, WinogradFilters):
                continue
            filters = winograd_filters(weight, params, whole, graph.opset)
            kept = region.operands[1:2] if layout.fallbacks else ()
            operands = (region.operands[0], filters.name, *region.operands[2:], *kept)
            other = dataclasses.replace(params, layout=layout)
            new = fused_region(self.name, other, operands, region.results, [region])
            weights = {filters.name: filters}
            made.append(Rewrite((new,), weights=weights))
        return made or unsuited_reason(
            "Winograd's transform does not apply to its window or sizes"
        )
