"""Store the filters of convolutions in the layouts that the CPU kernels read.

FusedConv(x, [O, I, kernel…])    ->    FusedConv(x, filters in a layout)

Groups smaller than a channel block are merged where that multiplies few zeros.  New weights are
computed on demand and not kept in memory.
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
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.filter_layouts import PLAIN, FilterLayout
from tracea_graph.ops.function_body import BodyBuilder, bind_body
from tracea_graph.passes.convolution.derived_filters import must_stay_plain
from tracea_graph.passes.matmul.constant_matrices import nodes_making
from tracea_graph.reason_codes import not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Match, PatternPass, Rewrite
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "FEW_CHANNELS",
    "PackFilters",
    "conv",
    "filter_layouts",
    "output_extents",
    "repack_filters",
    "winograd_filters",
]

FEW_CHANNELS = 8
"""Input channels below which a block of 16 would be mostly padding."""
_MOST_GROUPS = 4
"""Largest number of groups to merge: more products with zeros cost more than blocking saves."""


def conv(op: Any, x: Any, w: Any) -> Any:
    """Pattern of a fused convolution."""
    return op.FusedConv(x, w, ...)


@dataclasses.dataclass(frozen=True)
class PackFilters(PatternPass):
    """Pack the filters of a convolution over one or two axes for the CPU kernels.

    If ``at_load``, nodes of the model pack them, and the plain filters stay in the model.
    """

    at_load: bool = False
    name: str = "pack-filters"
    patterns = (conv,)

    def check(self, m: Match) -> str | None:
        return (
            None
            if m.root.params.layout == PLAIN
            else unsuited_reason("its filters are packed already")
        )

    def rewrite(self, m: Match) -> Rewrite | str:
        graph, region, params = m.graph, m.root, m.root.params
        x, w, bias, epilogue_inputs = params.split(region.operands)
        weight, spatial = graph.weight(w), (graph.spec(x).shape or ())[2:]
        if weight is None:
            return not_constant_reason(w)
        kept = self.at_load or must_stay_plain(graph, w)
        params, weight = _laid_out(params, weight, spatial, kept)
        layout = params.layout
        if not isinstance(layout, BlockedFilters | LaneFilters):
            return unsuited_reason(f"there is no packed layout for {w!r}")
        weights, count = dict[str, Weight](), layout.biases(params.filters)
        if bias and count != params.filters:
            if (stored := graph.weight(bias)) is None:
                return not_constant_reason(bias)
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
    """The convolution with its new layout, groups merged if needed, and its plain filters.

    The filters are ``[O, I, kernel…]``; ``kept`` forbids merging, which would change them.
    """
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
    """Choose the layout for filters ``[O, I, kernel…]``."""
    o, i = shape[:2]
    if window.rank > 2:
        return PLAIN
    if groups == 1:
        if window.pointwise and all(d == 1 for d in spatial):
            return PANELS
        return FIRST_LAYER if i <= FEW_CHANNELS else BLOCKED
    if i == 1 and o == groups:
        return DEPTHWISE
    return BLOCKED if i % BLOCK == 0 and o // groups % BLOCK == 0 else PLAIN


def _groups_at_once(shape: tuple[int, ...], groups: int) -> int:
    """The number of adjacent groups of filters ``[O, I, kernel…]`` that fill whole blocks.

    1 if that would be more than :data:`_MOST_GROUPS`.
    """
    o, i = shape[0] // groups, shape[1]
    if groups == 1 or i == 1:
        return 1
    count = lcm(BLOCK // gcd(BLOCK, i), BLOCK // gcd(BLOCK, o))
    return count if count <= _MOST_GROUPS and groups % count == 0 else 1


def _side_by_side(weight: Weight, groups: int, count: int) -> Weight:
    """Merge every ``count`` groups of filters into one: ``[O, count·I, kernel…]``.

    Entries are zero where a filter and an input channel belong to different groups.
    """
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
    """The filters ``weight`` in a layout.

    ``made`` is given if the plain filters must stay in the model: other nodes read them, or the
    nodes ``made`` compute them from smaller constants.  Nodes that pack at load are appended then.
    """
    name, ((dtype, shape),) = f"{weight.name}_{layout.name}", layout.arrays(weight.shape)
    computed_by: tuple[Node, ...] = ()
    if made is not None:
        b = BodyBuilder(1, opset)
        body = b.done(layout.packed_to_onnx(b, b.inputs[0], weight.shape))
        computed_by = (*made, *bind_body(body, [weight.name], name))
    return Weight(
        name, dtype, shape,
        lambda: layout.pack(np.asarray(weight.load(), np.float32))[0], computed_by,
    )  # fmt: skip


def winograd_filters(
    weight: Weight, params: ConvParams, layout: WinogradFilters, opset: int
) -> Weight:
    """Winograd-transformed filters, from blocked ones.

    They are 1.8 (``winograd2``) or 4 times larger, so nodes in the model compute them at load.
    """

    def load() -> Array:
        stored = np.asarray(weight.load(), np.float32)
        return layout.pack(params.layout.filters((stored,), params.shape))[0]

    name = f"{weight.name.removesuffix(f'_{params.layout.name}')}_{layout.name}"
    b = BodyBuilder(1, opset)
    body = b.done(transform_to_onnx(b, b.inputs[0], layout.tile, *params.shape[:2]))
    computed_by = bind_body(body, [weight.name], name)
    return Weight(name, DType.F32, layout.shape(params.shape), load, computed_by)


def repack_filters(weight: Weight, params: ConvParams, layout: Filters) -> list[Weight]:
    """The filters of a convolution in another layout, one weight per array of that layout."""
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
    """The layouts that filters may be stored in: ``direct`` and its Winograd transforms.

    If an extent in ``spatial`` is symbolic, transforms are stored along with the direct filters
    (:class:`DispatchFilters`), and the runtime chooses by image size.
    """
    yield direct
    known = all(isinstance(d, int) for d in spatial)
    if transformable(params.window, params.groups):
        for layout in (WINOGRAD2, WINOGRAD4, WINOGRAD2_VNNI2, WINOGRAD2_INT16):
            if layout.direct == direct:
                yield layout if known else DispatchFilters(layout)


def output_extents(graph: TileGraph, region: Region) -> tuple[Extent, ...]:
    """The spatial extents of a convolution's result; empty if unknown."""
    return (graph.spec(region.results[0]).shape or ())[2:]


def _padded_bias(weight: Weight, size: int) -> Weight:
    """A bias padded with zeros to ``size`` elements."""
    (count,) = weight.shape

    def load() -> Array:
        return np.pad(np.asarray(weight.load(), np.float32), (0, size - count))

    return Weight(f"{weight.name}_blocks", DType.F32, (size,), load)
