"""Convolutions of sums of two numbers in bf16: three products in bf16, nearly as exact as float32.

On matrix tiles those are faster than one in float32, and than one in 16-bit integers, where those
have no instruction of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.filters import pack_filters, stored_shape, unpack_filters
from tracea_graph.passes.precision import BF16X2_ERROR, no_bf16, stored_as
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ConvInBf16x2"]

_LAYOUT = "split"


@dataclass(frozen=True)
class ConvInBf16x2:
    """A dense convolution between blocked values splits them, and its filters are stored so."""

    name: str = "bf16x2-conv"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, ConvParams) or params.layout != "blocked":
            return
        weight = graph.weight(region.operands[1])
        if weight is None:
            yield Miss(self.name, region.id, "its filters are not constant")
        elif why := no_bf16(graph):
            yield Miss(self.name, region.id, why)
        else:
            lower = dataclasses.replace(params, layout=_LAYOUT)
            made = _in_halves(weight, params)
            yield stored_as(self.name, region, lower, (made,), BF16X2_ERROR)


def _in_halves(weight: Weight, params: ConvParams) -> Weight:
    """The same filters as sums of two numbers in bf16; nothing is kept between calls."""

    def load() -> Array:
        stored = np.asarray(weight.array(), np.float32)
        return pack_filters(unpack_filters(stored, params.layout, params.shape), _LAYOUT)

    shape = stored_shape(_LAYOUT, params.shape)
    return Weight(f"{weight.name}_{_LAYOUT}", DType.BF16, shape, load)
