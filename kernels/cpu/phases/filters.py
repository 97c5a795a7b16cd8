"""How the CPU stores the filters of convolutions: in the layouts its kernels read.

FusedConv(x, [O, I, kernel…])    ->    FusedConv(x, filters in a layout)

Groups that fill no whole blocks are taken together where that multiplies few zeros.  Every new
weight is computed when it is asked for; nothing is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from math import gcd, lcm

import numpy as np

from tracea_graph.ir import Array, DType, Extent, Node, Weight
from tracea_graph.ops.body import BodyBuilder, placed
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.filters import (
    BLOCK,
    WINOGRAD,
    blocks,
    pack_filters,
    spell_packed,
    stored_shape,
    unpack_filters,
)
from tracea_graph.ops.windows import Window
from tracea_graph.ops.winograd import spell_transform
from tracea_graph.passes.convolution.filters import others_need
from tracea_graph.passes.products.matrices import making
from tracea_graph.rewrite import Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["PackFilters", "image_of", "in_16_bits", "transformed"]

_STEM = 8
"""Input channels below which a block of 16 would be mostly padding."""
_MOST_GROUPS = 4
"""Of groups taken together: so many times as many products take less than one by one."""


class PackFilters:
    """A convolution over one or two axes reads filters as its kernels like them best."""

    name = "filters"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal]:
        params = region.params
        if not isinstance(params, ConvParams) or params.layout != "plain":
            return
        x, w, bias, extras = params.split(region.operands)
        weight, spatial = graph.weight(w), (graph.spec(x).shape or ())[2:]
        if weight is None:
            return
        kept = others_need(graph, w)
        params, weight = _laid_out(params, weight, spatial, kept)
        if params.layout == "plain":
            return
        weights = dict[str, Weight]()
        if params.padded_bias and bias:
            if (stored := graph.weight(bias)) is None:
                return
            padded = _padded_bias(stored)
            bias, weights[padded.name] = padded.name, padded
        made = making(graph, w) if kept else None
        packed = _packed(weight, params.layout, graph.opset, made)
        operands = (x, packed.name, *([bias] if bias else []), *extras)
        new = dataclasses.replace(region, params=params, operands=operands)
        weights[packed.name] = packed
        yield Proposal(self.name, (region,), (new,), weights=weights, step=True)


def _laid_out(
    params: ConvParams, weight: Weight, spatial: tuple[Extent, ...], kept: bool
) -> tuple[ConvParams, Weight]:
    """The convolution in the layout it gets, perhaps of several groups as one, and its filters
    ``[O, I, kernel…]``."""
    layout = _layout_for(weight.shape, params.groups, params.window, spatial)
    together = _groups_at_once(weight.shape, params.groups)
    if layout == "plain" and together > 1 and not kept:
        wide, fewer = _side_by_side(weight, params.groups, together), params.groups // together
        layout = _layout_for(wide.shape, fewer, params.window, spatial)
        if layout != "plain":
            return dataclasses.replace(params, groups=fewer, layout=layout), wide
    return dataclasses.replace(params, layout=layout), weight


def _layout_for(
    shape: tuple[int, ...], groups: int, window: Window, spatial: tuple[Extent, ...]
) -> str:
    """The layout of weights ``[O, I, kernel…]``."""
    o, i = shape[:2]
    if window.rank > 2:
        return "plain"
    if groups == 1:
        if window.pointwise and all(d == 1 for d in spatial):
            return "panels"
        return "stem" if i <= _STEM else "blocked"
    if i == 1 and o == groups:
        return "depthwise"
    return "blocked" if i % BLOCK == 0 and o // groups % BLOCK == 0 else "plain"


def _groups_at_once(shape: tuple[int, ...], groups: int) -> int:
    """How many neighbouring groups of filters ``[O, I, kernel…]`` fill whole blocks; 1 if that
    takes more than :data:`_MOST_GROUPS`."""
    o, i = shape[0] // groups, shape[1]
    if groups == 1 or i == 1:
        return 1
    count = lcm(BLOCK // gcd(BLOCK, i), BLOCK // gcd(BLOCK, o))
    return count if count <= _MOST_GROUPS and groups % count == 0 else 1


def _side_by_side(weight: Weight, groups: int, count: int) -> Weight:
    """Filters of as many groups as one: ``[O, count·I, kernel…]``, zeros where a filter and an
    input belong to different groups."""
    o, i, *kernel = weight.shape

    def load() -> Array:
        stored = np.asarray(weight.load(), np.float32)
        split = stored.reshape(groups // count, count, o // groups, i, *kernel)
        joined = np.zeros((groups // count, count, o // groups, count, i, *kernel), np.float32)
        for group in range(count):
            joined[:, group, :, group] = split[:, group]
        return joined.reshape(o, count * i, *kernel)

    name = f"{weight.name}_by_{count}"
    return Weight(name, weight.dtype, (o, count * i, *kernel), load)


def _packed(weight: Weight, layout: str, opset: int, made: Sequence[Node] | None = None) -> Weight:
    """The same weights in a layout.

    Given ``made``, they stay as they are, others need them too, or those nodes compute them from
    smaller constants: further nodes pack them at load.
    """
    name, shape = f"{weight.name}_{layout}", stored_shape(layout, weight.shape)
    recipe: tuple[Node, ...] = ()
    if made is not None:
        b = BodyBuilder(1, opset)
        body = b.done(spell_packed(b, b.inputs[0], layout, weight.shape))
        recipe = (*made, *placed(body, [weight.name], name))
    return Weight(
        name, DType.F32, shape,
        lambda: pack_filters(np.asarray(weight.load(), np.float32), layout), recipe,
    )  # fmt: skip


def transformed(weight: Weight, params: ConvParams, layout: str, opset: int) -> Weight:
    """Blocked filters by Winograd's transform.

    They take 1.8 (``winograd2``) or four times the bytes, so the runtime is left to compute them.
    """

    def load() -> Array:
        stored = np.asarray(weight.load(), np.float32)
        return pack_filters(unpack_filters(stored, params.layout, params.shape), layout)

    name = f"{weight.name.removesuffix(f'_{params.layout}')}_{layout}"
    b = BodyBuilder(1, opset)
    m, (o, i) = WINOGRAD[layout], params.shape[:2]
    body = b.done(spell_transform(b, b.inputs[0], m, o, i))
    recipe = placed(body, [weight.name], name)
    return Weight(name, DType.F32, stored_shape(layout, params.shape), load, recipe)


def in_16_bits(weight: Weight, params: ConvParams, layout: str) -> Weight:
    """The same filters in a layout of bf16."""

    def load() -> Array:
        stored = np.asarray(weight.array(), np.float32)
        return pack_filters(unpack_filters(stored, params.layout, params.shape), layout)

    shape = stored_shape(layout, params.shape)
    return Weight(f"{weight.name}_{layout}", DType.BF16, shape, load)


def image_of(graph: TileGraph, region: Region) -> tuple[Extent, ...]:
    """The spatial extents of what a convolution makes; none if they are not known."""
    return (graph.spec(region.results[0]).shape or ())[2:]


def _padded_bias(weight: Weight) -> Weight:
    """A bias filled up with zeros to whole blocks."""
    (count,) = weight.shape
    size = BLOCK * blocks(count)

    def load() -> Array:
        return np.pad(np.asarray(weight.load(), np.float32), (0, size - count))

    return Weight(f"{weight.name}_blocks", DType.F32, (size,), load)
