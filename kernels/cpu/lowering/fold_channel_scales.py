"""Fold a per-channel scale into the filters of the pointwise convolution that reads it.

``Σ_c w[o, c] · (s[c] · x[c]) = Σ_c (w[o, c] · s[c]) · x[c]``: the filters are scaled instead of
the value (squeeze-and-excite) if they have fewer elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracea_graph.ir import TensorSpec, combine
from tracea_graph.kernels.cpu.filters import BLOCK, BLOCKED, blocks
from tracea_graph.kernels.cpu.lowering.choose_layouts import RegionLayout
from tracea_graph.kernels.cpu.lowering.region_values import RegionValues
from tracea_graph.kernels.program import View
from tracea_graph.ops.chain import COL, FULL, ROW, Chain, Step
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.index_map import dense_strides

__all__ = ["DeferredScale", "scale_filters", "scaled_values"]

_PRODUCT = Chain((FULL, COL), (Step("mul", (0, 1)),), (2,))


@dataclass(frozen=True)
class DeferredScale:
    """A product that is not computed: ``source`` times ``scale``, one number per channel."""

    source: int
    scale: int


def scaled_values(
    p: RegionParams, specs: Sequence[TensorSpec], layout: RegionLayout
) -> Mapping[int, DeferredScale]:
    """The results of a region's steps that can be folded into the filters of their reader.

    Steps in row tiles are excluded.
    """
    reads = [v for step in p.steps for v in step.operands]
    readers = {s.operands[0]: (i, s) for i, s in enumerate(p.steps) if s.operands}
    row_tiled = {i for row_tile in p.row_tiles for i in range(row_tile.first, row_tile.last + 1)}
    found, value = dict[int, DeferredScale](), p.inputs
    for i, step in enumerate(p.steps):
        at, reader = readers.get(value, (i, step))
        once = reads.count(value) == 1 and value not in p.results
        if once and {i, at}.isdisjoint(row_tiled) and _scales_less(reader, specs[value]):
            scaled = _as_scaled(step, value, layout)
            if scaled is not None:
                found[value] = scaled
        value += step.results
    return found


def _scales_less(step: RegionStep, spec: TensorSpec) -> bool:
    """Return True for a pointwise convolution with fewer filter elements than input elements."""
    params, positions = step.params, (spec.shape or ())[2:]
    if not isinstance(params, ConvParams) or params.layout != BLOCKED:
        return False
    count = 1
    for size in positions:
        if not isinstance(size, int):
            return False
        count *= size
    return params.groups == 1 and params.window.pointwise and params.filters < count


def _as_scaled(step: RegionStep, value: int, layout: RegionLayout) -> DeferredScale | None:
    params = step.params
    if not isinstance(params, ElementwiseParams) or value not in layout.blocked:
        return None
    (only, *others) = params.chain.steps or (None,)
    if only is None or others or only.op != "mul" or sorted(map(str, only.args)) != ["0", "1"]:
        return None
    for source, scale in (step.operands, step.operands[::-1]):
        kinds = (layout.lies_over(source, value), layout.lies_over(scale, value))
        if kinds == (FULL, ROW) and source in layout.blocked:
            return DeferredScale(source, scale)
    return None


def scale_filters(v: RegionValues, p: ConvParams, filters: int, value: int, scale: int) -> View:
    """Multiply the blocked filters of a pointwise convolution that reads ``value`` by ``scale``.

    ``[Ob, Ib, 1, 1, 16, 16]`` becomes ``[N·Ob, Ib, 1, 1, 16, 16]``: filters per image, with N = 1
    if all images share the scale.
    """
    slot, batches = v.by_channel(scale, value)
    n = v.shape(value)[0] if batches else 1
    outer, inner = blocks(p.filters), blocks(p.channels)
    dims = (n, outer, inner, BLOCK, BLOCK)
    made = v.w.temp(TensorSpec(v.specs[filters].dtype, dims))
    _, *strides = dense_strides(dims)
    stored = View(v.slot(filters).buffer, dims, (0, *strides))
    spread = View(slot.buffer, dims, (BLOCK * inner if batches else 0, 0, BLOCK, 1, 0))
    v.w.call("elementwise", x=[stored, spread], y=made.view, chain=_PRODUCT)
    shape = (combine("mul", n, outer), inner, 1, 1, BLOCK, BLOCK)
    return View(made.buffer, shape, dense_strides(shape))
