"""Convolutions in bf16, on request: operands are rounded, sums stay in float32.

Dense convolutions store filters in bf16 and multiply pairs of input channels, or 32 channels per
instruction with matrix tiles.  3x3 ones may use Winograd's F(2x2, 3x3); F(4x4, 3x3) loses too much
precision.  Depthwise convolutions read half the bytes and, if their filters may be rounded too,
multiply two columns at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tracea_graph.kernels.cpu.filters import (
    BLOCK,
    BLOCKED,
    NCHW32C,
    VNNI2,
    DepthwiseFilters,
)
from tracea_graph.kernels.cpu.phases.lower_precision import (
    PRODUCT_ERROR,
    no_bf16,
    rounded_as_read,
    with_lowered_weights,
)
from tracea_graph.kernels.cpu.phases.pack_filters import (
    conv,
    filter_layouts,
    output_extents,
    repack_filters,
)
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite
from tracea_graph.ttg import TileGraph

__all__ = ["ConvBf16", "DepthwiseBf16"]


@dataclass(frozen=True)
class ConvBf16(PatternPass):
    """Let a convolution read blocked values in bf16.

    Filters in channel blocks are rounded to bf16; depthwise filters stay as they are.  If
    ``nchw32c``, the convolution reads blocks of 32 channels where the producer can write them.
    """

    nchw32c: bool = False
    name: str = "conv-bf16"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        layout = m.root.params.layout
        dense = layout == BLOCKED
        fits = not layout.rounds and (dense or isinstance(layout, DepthwiseFilters))
        return None if fits else unsuited_reason("its filters are not float32 in channel blocks")

    def rewrite(self, m: Match) -> Rewrite | Sequence[Rewrite] | str:
        graph, region, params = m.graph, m.root, m.root.params
        if isinstance(params.layout, DepthwiseFilters):
            lower = dataclasses.replace(params.layout, in_bf16=True)
            return rounded_as_read(self.name, region, layout=lower)
        weight = graph.weight(m.values["w"])
        if why := no_bf16(graph):
            return why
        if weight is None:
            return Reason("its filters are not constant", Code.NOT_CONSTANT)
        if params.channels % BLOCK % 2:
            return f"its {params.channels} channels cannot be paired"
        made, nchw32c = (
            list[Rewrite](),
            self.nchw32c and _reads_nchw32c(graph, m.values["x"], params),
        )
        for layout in filter_layouts(VNNI2, params, output_extents(graph, region)):
            layout = NCHW32C if layout == VNNI2 and nchw32c else layout
            lower = dataclasses.replace(params, layout=layout)
            filters = repack_filters(weight, params, layout)
            made.append(with_lowered_weights(self.name, region, lower, filters, PRODUCT_ERROR))
        return made


@dataclass(frozen=True)
class DepthwiseBf16(PatternPass):
    """Round the filters of a depthwise convolution that already reads x in bf16."""

    name: str = "depthwise-bf16"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        layout = m.root.params.layout
        fits = isinstance(layout, DepthwiseFilters) and layout.in_bf16 and not layout.rounded
        return (
            None if fits else unsuited_reason("it is not a depthwise convolution of bf16 values")
        )

    def rewrite(self, m: Match) -> Rewrite:
        # saves at most a quarter of the cycles, which the cost model does not resolve
        lower = dataclasses.replace(m.root.params.layout, rounded=True)
        return rounded_as_read(self.name, m.root, step=True, layout=lower)


def _reads_nchw32c(graph: TileGraph, value: str, reader: ConvParams) -> bool:
    """Return True if the producer of a dense convolution's input can write nchw32c.

    A dense convolution can, directly or followed by max pooling, layout ops, Concat or Split; the
    result of any other producer would have to be copied.
    """
    region = graph.producer(value)
    if reader.groups > 1 or reader.channels % (2 * BLOCK) or region is None:
        return False
    params = region.params
    if isinstance(params, ConvParams):
        return params.layout in (BLOCKED, VNNI2, NCHW32C) and params.groups == 1
    pooled = isinstance(params, PoolParams) and params.kind == "max" and params.window is not None
    moved = isinstance(params, LayoutParams) or region.op in ("Concat", "Split")
    parts = region.operands if region.op == "Concat" else (value,)
    whole = all(_channels(graph, part) % (2 * BLOCK) == 0 for part in parts)
    return (pooled or moved) and whole and _reads_nchw32c(graph, region.operands[0], reader)


def _channels(graph: TileGraph, value: str) -> int:
    """Channels of an image value; 1 if unknown."""
    shape = graph.spec(value).shape or ()
    channels = shape[1] if len(shape) > 2 else 1
    return channels if isinstance(channels, int) else 1
