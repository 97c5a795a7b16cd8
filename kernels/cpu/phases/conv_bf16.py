"""Convolutions in bf16, where the caller asked for it: what they read is rounded, sums are not.

Dense ones take filters in bf16, pairs of channels at a time, with matrix tiles 32 channels, which
one instruction takes; 3x3 ones also by Winograd's transform of 2 x 2 results (4 x 4 would lose too
much).  Depthwise ones gain by
what they read being half as long, and where filters may be rounded too by products of two columns
at once.
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
from tracea_graph.kernels.cpu.phases.pack_filters import (
    conv,
    filter_layouts,
    output_extents,
    repack_filters,
)
from tracea_graph.kernels.cpu.phases.precision import (
    PRODUCT_ERROR,
    no_bf16,
    rounded_as_read,
    with_lowered_weights,
)
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.layout import LayoutParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.reasons import Code, Reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite
from tracea_graph.ttg import TileGraph

__all__ = ["ConvBf16", "DepthwiseBf16"]


@dataclass(frozen=True)
class ConvBf16(PatternPass):
    """A convolution between blocked values reads them, and dense filters, in bf16; in ``nchw32c``
    blocks what others write so."""

    nchw32c: bool = False
    name: str = "conv-bf16"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        layout = m.root.params.layout
        dense = layout == BLOCKED
        return (
            None if not layout.rounds and (dense or isinstance(layout, DepthwiseFilters)) else ""
        )

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
            return f"{params.channels} channels are no pairs"
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
    """A depthwise convolution that reads bf16 may round its filters as well."""

    name: str = "depthwise-bf16"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        layout = m.root.params.layout
        fits = isinstance(layout, DepthwiseFilters) and layout.in_bf16 and not layout.rounded
        return None if fits else ""

    def rewrite(self, m: Match) -> Rewrite:
        # a quarter of its cycles at most: less than plans count
        lower = dataclasses.replace(m.root.params.layout, rounded=True)
        return rounded_as_read(self.name, m.root, step=True, layout=lower)


def _reads_nchw32c(graph: TileGraph, value: str, reader: ConvParams) -> bool:
    """True if a dense convolution makes what another reads, or what is pooled or moved before:
    those write nchw32c, where others would have to be copied."""
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
    """Of an image; 1 if nobody knows."""
    shape = graph.spec(value).shape or ()
    channels = shape[1] if len(shape) > 2 else 1
    return channels if isinstance(channels, int) else 1
