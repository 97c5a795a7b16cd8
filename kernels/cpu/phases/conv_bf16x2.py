"""Convolutions in bf16x2: operands split into two bf16 terms, nearly as exact as float32.

Three bf16 products on matrix tiles are faster than one in float32, and faster than one in 16-bit
integers, for which matrix tiles have no instruction.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tracea_graph.kernels.cpu.filters import BF16X2, BLOCKED
from tracea_graph.kernels.cpu.phases.lower_precision import (
    BF16X2_ERROR,
    no_bf16,
    with_lowered_weights,
)
from tracea_graph.kernels.cpu.phases.pack_filters import conv, repack_filters
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite

__all__ = ["ConvBf16x2"]


@dataclass(frozen=True)
class ConvBf16x2(PatternPass):
    """Split the input and the filters of a dense blocked convolution into two bf16 terms."""

    name: str = "conv-bf16x2"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        blocked = m.root.params.layout == BLOCKED
        return (
            None if blocked else unsuited_reason("its filters are not float32 in channel blocks")
        )

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
