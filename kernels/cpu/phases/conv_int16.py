"""Convolutions in 16-bit integers, for layers where bf16 is too coarse.

Each image and each filter has one scale.  Only dense convolutions gain.  An input is rounded once
for all its readers; 3x3 convolutions may use Winograd's F(2x2, 3x3) on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tracea_graph.kernels.cpu.filters import BLOCKED, INT16, transformable
from tracea_graph.kernels.cpu.phases.lower_precision import INT16_ERROR, with_lowered_weights
from tracea_graph.kernels.cpu.phases.pack_filters import (
    conv,
    filter_layouts,
    output_extents,
    repack_filters,
)
from tracea_graph.ops.conv import ConvParams
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite

__all__ = ["ConvInt16"]

_MOST_TAPS = 25
"""With more taps, a 32-bit sum over a channel block leaves operands fewer than bf16's 8 bits."""


@dataclass(frozen=True)
class ConvInt16(PatternPass):
    """Let a dense convolution of blocked values multiply int16 numbers.

    If ``transformed``, the rule only applies where the Winograd transform also applies.
    """

    transformed: bool = False
    name: str = "conv-int16"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        params: ConvParams = m.root.params
        direct = self.transformed and not transformable(params.window, params.groups)
        if params.layout != BLOCKED:
            return unsuited_reason("its filters are not float32 in channel blocks")
        return unsuited_reason("Winograd's transform does not apply to it") if direct else None

    def rewrite(self, m: Match) -> Sequence[Rewrite] | str:
        weight, params, made = m.graph.weight(m.values["w"]), m.root.params, list[Rewrite]()
        if weight is None:
            return Reason("its filters are not constant", Code.NOT_CONSTANT)
        taps = params.taps // (params.channels // params.groups)
        if taps > _MOST_TAPS:
            return f"32-bit sums over {taps} taps leave operands too few bits"
        for layout in filter_layouts(INT16, params, output_extents(m.graph, m.root)):
            lower = dataclasses.replace(params, layout=layout)
            filters = repack_filters(weight, params, layout)
            made.append(with_lowered_weights(self.name, m.root, lower, filters, INT16_ERROR))
        return made
