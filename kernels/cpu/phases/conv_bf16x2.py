"""Convolutions of sums of two numbers in bf16: three products in bf16, nearly as exact as float32.

On matrix tiles those are faster than one in float32, and than one in 16-bit integers, where those
have no instruction of their own.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tracea_graph.kernels.cpu.filters import BF16X2, BLOCKED
from tracea_graph.kernels.cpu.phases.pack_filters import conv, repack_filters
from tracea_graph.kernels.cpu.phases.precision import BF16X2_ERROR, no_bf16, with_lowered_weights
from tracea_graph.reasons import Code, Reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite

__all__ = ["ConvBf16x2"]


@dataclass(frozen=True)
class ConvBf16x2(PatternPass):
    """A dense convolution between blocked values splits them, and its filters are stored so."""

    name: str = "conv-bf16x2"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        return None if m.root.params.layout == BLOCKED else ""

    def rewrite(self, m: Match) -> Rewrite | str:
        weight, params = m.graph.weight(m.values["w"]), m.root.params
        if weight is None:
            return Reason("its filters are not constant", Code.NOT_CONSTANT)
        if why := no_bf16(m.graph):
            return why
        lower = dataclasses.replace(params, layout=BF16X2)
        return with_lowered_weights(
            self.name, m.root, lower, repack_filters(weight, params, BF16X2), BF16X2_ERROR
        )
