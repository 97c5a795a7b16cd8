"""How the CPU stores the filters of convolutions: in the layouts its kernels read.

FusedConv(x, [O, I, kernel…])    ->    FusedConv(x, filters in a layout)

Groups that fill no whole blocks are taken together where that multiplies few zeros.  Every new
weight is computed when it is asked for; nothing is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from math import gcd, lcm
from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, Extent, Node, Weight
from tracea_graph.kernels.cpu.filters import (
    BLOCK,
    BLOCKED,
    DEPTHWISE,
    FIRST_LAYER,
    PANELS,
    WINOGRAD2,
    WINOGRAD2_INT16,
    WINOGRAD2_VNNI2,
    WINOGRAD4,
    BlockedFilters,
    DispatchFilters,
    Filters,
    LaneFilters,
    WinogradFilters,
    transformable,
)
from tracea_graph.kernels.cpu.winograd import transform_to_onnx
from tracea_graph.ops.body import BodyBuilder, placed
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.filters import PLAIN, FilterLayout
from tracea_graph.ops.windows import ConvWindow
from tracea_graph.passes.convolution.filters import must_stay_plain
from tracea_graph.passes.matmul.constant_matrices import nodes_making
from tracea_graph.rewrite import Match, PatternPass, Rewrite
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "PackFilters",
    "conv",
    "filter_layouts",
    "output_extents",
    "repack_filters",
    "winograd_filters",
]

_STEM = 8
"""Input channels below which a block of 16 would be mostly padding."""
_MOST_GROUPS = 4
"""Of groups taken together: so many times as many products take less than one by one."""


def conv(op: Any, x: Any, w: Any) -> Any:
    """The pattern of a convolution."""
    return op.FusedConv(x, w, ...)


class PackFilters(PatternPass):
    """A convolution over one or two axes reads filters as its kernels like them best."""

    name = "pack-filters"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        return None if m.root.params.layout == PLAIN else ""

    def rewrite(self, m: Match) -> Rewrite | str:
        graph, region, params = m.graph, m.root, m.root.params
        x, w, bias, epilogue_inputs = params.split(region.operands)
        weight, spatial = graph.weight(w), (graph.spec(x).shape or ())[2:]
        if weight is None:
            return ""
        kept = must_stay_plain(graph, w)
        params, weight = _laid_out(params, weight, spatial, kept)
        layout = params.layout
        if not isinstance(layout, BlockedFilters | LaneFilters):
            return ""
        weights, count = dict[str, Weight](), layout.biases(params.filters)
        if bias and count != params.filters:
            if (stored := graph.weight(bias)) is None:
                return ""
            padded = _padded_bias(stored, count)
            bias, weights[padded.name] = padded.name, padded
        made = nodes_making(graph, w) if kept else None
        packed = _packed(weight, layout, graph.opset, made)
        operands = (x, packed.name, *([bias] if bias else []), *epilogue_inputs)
        new = dataclasses.replace(region, params=params, operands=operands)
        weights[packed.name] = packed
        return Rewrite((new,), weights=weights, step=True)


def _laid_out(
    params: ConvParams, weight: Weight, spatial: tuple[Extent, ...], kept: bool
) -> tuple[ConvParams, Weight]:
    """The convolution in the layout it gets, perhaps of several groups as one, and its filters
    ``[O, I, kernel…]``."""
    layout = _layout_for(weight.shape, params.groups, params.window, spatial)
    together = _groups_at_once(weight.shape, params.groups)
    if layout == PLAIN and together > 1 and not kept:
        wide, fewer = _side_by_side(weight, params.groups, together), params.groups // together
        layout = _layout_for(wide.shape, fewer, params.window, spatial)
        if layout != PLAIN:
            return dataclasses.replace(params, groups=fewer, layout=layout), wide
    return dataclasses.replace(params, layout=layout), weight


def _layout_for(
    shape: tuple[int, ...], groups: int, window: ConvWindow, spatial: tuple[Extent, ...]
) -> FilterLayout:
    """The layout of weights ``[O, I, kernel…]``."""
    o, i = shape[:2]
    if window.rank > 2:
        return PLAIN
    if groups == 1:
        if window.pointwise and all(d == 1 for d in spatial):
            return PANELS
        return FIRST_LAYER if i <= _STEM else BLOCKED
    if i == 1 and o == groups:
        return DEPTHWISE
    return BLOCKED if i % BLOCK == 0 and o // groups % BLOCK == 0 else PLAIN


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


def _packed(
    weight: Weight,
    layout: BlockedFilters | LaneFilters,
    opset: int,
    made: Sequence[Node] | None = None,
) -> Weight:
    """The same weights in a layout.

    Given ``made``, they stay as they are, others need them too, or those nodes compute them from
    smaller constants: further nodes pack them at load.
    """
    name, ((dtype, shape),) = f"{weight.name}_{layout.name}", layout.arrays(weight.shape)
    computed_by: tuple[Node, ...] = ()
    if made is not None:
        b = BodyBuilder(1, opset)
        body = b.done(layout.packed_to_onnx(b, b.inputs[0], weight.shape))
        computed_by = (*made, *placed(body, [weight.name], name))
    return Weight(
        name, dtype, shape,
        lambda: layout.pack(np.asarray(weight.load(), np.float32))[0], computed_by,
    )  # fmt: skip


def winograd_filters(
    weight: Weight, params: ConvParams, layout: WinogradFilters, opset: int
) -> Weight:
    """Blocked filters by Winograd's transform.

    They take 1.8 (``winograd2``) or four times the bytes, so the runtime is left to compute them.
    """

    def load() -> Array:
        stored = np.asarray(weight.load(), np.float32)
        return layout.pack(params.layout.filters((stored,), params.shape))[0]

    name = f"{weight.name.removesuffix(f'_{params.layout.name}')}_{layout.name}"
    b = BodyBuilder(1, opset)
    body = b.done(transform_to_onnx(b, b.inputs[0], layout.tile, *params.shape[:2]))
    computed_by = placed(body, [weight.name], name)
    return Weight(name, DType.F32, layout.shape(params.shape), load, computed_by)


def repack_filters(weight: Weight, params: ConvParams, layout: Filters) -> list[Weight]:
    """The same filters in another layout, each of its arrays; nothing is kept between calls."""
    if isinstance(layout, DispatchFilters):
        parts = (layout.transformed, layout.direct)
        return [made for part in parts for made in repack_filters(weight, params, part)]

    def load(part: int) -> Array:
        stored = np.asarray(weight.array(), np.float32)
        return layout.pack(params.layout.filters((stored,), params.shape))[part]

    name = f"{weight.name}_{layout.name}"
    return [
        Weight(f"{name}_scale" if part else name, dtype, shape, partial(load, part))
        for part, (dtype, shape) in enumerate(layout.arrays(params.shape))
    ]


def filter_layouts(
    direct: Filters, params: ConvParams, spatial: Sequence[Extent]
) -> Iterator[Filters]:
    """What filters may be kept in: ``direct``, or one of its transforms; with ``spatial`` results
    of any size either, of which the runtime takes what pays.
    """
    yield direct
    known = all(isinstance(d, int) for d in spatial)
    if transformable(params.window, params.groups):
        for layout in (WINOGRAD2, WINOGRAD4, WINOGRAD2_VNNI2, WINOGRAD2_INT16):
            if layout.direct == direct:
                yield layout if known else DispatchFilters(layout)


def output_extents(graph: TileGraph, region: Region) -> tuple[Extent, ...]:
    """The spatial extents of what a convolution makes; none if they are not known."""
    return (graph.spec(region.results[0]).shape or ())[2:]


def _padded_bias(weight: Weight, size: int) -> Weight:
    """A bias filled up with zeros to so many numbers."""
    (count,) = weight.shape

    def load() -> Array:
        return np.pad(np.asarray(weight.load(), np.float32), (0, size - count))

    return Weight(f"{weight.name}_blocks", DType.F32, (size,), load)
