"""Lower convolutions, pooling and resizing, on plain and blocked values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.filters import (
    BLOCK,
    INT16,
    Bf16x2Filters,
    DepthwiseFilters,
    DispatchFilters,
    Filters,
    FirstLayerFilters,
    Nchw32cFilters,
    PointwiseFilters,
)
from tracea_graph.kernels.cpu.fp16_layouts import FP16_FILTERS
from tracea_graph.kernels.cpu.lowering.channel_blocked_values import (
    NCHW32C,
    BlockedValue,
    channel_tail,
)
from tracea_graph.kernels.cpu.lowering.choose_bf16_storage import accepts_nchw32c_epilogue
from tracea_graph.kernels.cpu.lowering.choose_layouts import halo_of, stored_halo
from tracea_graph.kernels.cpu.lowering.fold_channel_scales import DeferredScale, scale_filters
from tracea_graph.kernels.cpu.lowering.region_values import RegionValues, with_four_axes
from tracea_graph.kernels.cpu.lowering.region_writer import Shape, Slot
from tracea_graph.kernels.program import View
from tracea_graph.ops.chain import COL, FULL, ROW
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.filter_layouts import PLAIN
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.post_ops import post_ops_of
from tracea_graph.ops.resize import ResizeParams

__all__ = ["lower_conv", "lower_pool", "lower_resize"]


def lower_conv(
    v: RegionValues,
    p: ConvParams,
    operands: Sequence[int],
    result: int,
    scaled: DeferredScale | None = None,
) -> None:
    """Emit the call of one convolution, by its filter layout.

    With ``scaled``, the call reads the unscaled source, and the channel scales are folded into the
    filters.  Raises GraphError for a filter layout that no CPU kernel reads.
    """
    if isinstance(p.layout, PointwiseFilters):
        _panels(v, p, operands, result)
    elif isinstance(p.layout, Filters):
        _blocked(v, p, p.layout, operands, result, scaled)
    elif p.layout == PLAIN:
        _plain(v, p, operands, result)
    else:
        raise GraphError(f"no kernel reads filters stored as {p.layout.name!r}")


# ---- blocked -----------------------------------------------------------------------------


def _blocked(
    v: RegionValues, p: ConvParams, layout: Filters, operands: Sequence[int], result: int,
    scaled: DeferredScale | None,
) -> None:  # fmt: skip
    """Emit ``conv``, ``conv_first_layer`` or ``depthwise`` with its add, clamp and chain."""
    x, w, bias, epilogue_inputs = p.split(operands)
    post_ops = post_ops_of(p.epilogue)
    window = _two(p.window)
    source = v.shape(w)
    dst = v.dst(result)
    inner = dst.with_block(BLOCK).view()  # for views of the chain's operands
    direct = [v.slot(w).view for w in operands[len(operands) - layout.fallbacks :]]
    views = [
        v.over(e, result, inner, lanes=True)
        for i, e in enumerate(epilogue_inputs)
        if i != post_ops.add
    ]
    add, chain = _added(v, p, epilogue_inputs, post_ops.add, result), post_ops.chain
    rounds = dst.dtype is DType.BF16
    if chain and rounds:
        chain = replace(chain, stores=(dst.dtype,))
    named: dict[str, object] = {}
    if isinstance(layout, FirstLayerFilters):
        op, read = "conv_first_layer", with_four_axes(v.view(x))
        named |= {"pads": halo_of(window)}
    else:
        block, each = _read(v, layout, scaled.source if scaled else x)
        op, read = "conv", block.view(stored_halo(p))
        if each:
            filter_scales = v.slot(operands[2 + p.bias + p.epilogue_inputs]).view
            named |= {"image_scales": each.view, "filter_scales": filter_scales}
    if isinstance(layout, DepthwiseFilters):
        _, left, _, right = halo_of(window)
        op, named["tail"], named["columns"] = "depthwise", channel_tail(p.filters), (left, right)
        named |= {"rounded_filters": layout.rounded} if layout.in_bf16 else {}
    else:
        named["oc_tail"] = channel_tail(p.filters)
    if layout.side > 1:
        op = "conv_dispatch" if isinstance(layout, DispatchFilters) else "winograd"
        named["tile"] = layout.side
        named["ic_tail"] = channel_tail(p.channels)
        named |= dict(zip(("direct", "direct_scales"), direct, strict=False))
    else:
        named |= {"strides": window.strides, "dilations": window.dilations}
    if op == "conv":
        whole = isinstance(layout, Bf16x2Filters | Nchw32cFilters)
        named |= {"groups": p.groups, "ic_tail": BLOCK if whole else channel_tail(p.channels)}
        named["zeros"] = stored_halo(p)
    weight = View(v.slot(w).buffer, source, dense_strides(source))
    if scaled is not None:
        weight = scale_filters(v, p, w, x, scaled.scale)
    v.w.call(
        op, "bf16" if isinstance(layout, FirstLayerFilters) and rounds else layout.product_type,
        **named,
        x=read, w=weight, bias=v.slot(bias).view if bias is not None else None, add=add,
        inputs=views, y=dst.padded, halo=dst.halo, low=post_ops.low, high=post_ops.high,
        chain=chain,
    )  # fmt: skip
    v.blocks[result] = dst


def _read(v: RegionValues, layout: Filters, value: int) -> tuple[BlockedValue, Slot | None]:
    """The input as the kernel reads it, and the per-image scales of an int16 one."""
    if layout == INT16:
        return v.block_in_int16(value)
    if layout.product_type == "int16":
        return v.block(value), v.image_scales(value)
    if isinstance(layout, Bf16x2Filters):
        return v.block_in_bf16x2(value), None
    if layout == FP16_FILTERS:
        return v.block_in_fp16(value), None
    if layout.rounds:
        return v.block_in_bf16(
            value, NCHW32C if isinstance(layout, Nchw32cFilters) else BLOCK
        ), None
    return v.block(value), None


def _added(
    v: RegionValues, p: ConvParams, epilogue_inputs: Sequence[int], index: int | None, result: int
) -> View | None:
    """The operand that is added to the sum in registers."""
    if index is None:
        return None
    if p.layout.rounds:
        block = v.block(epilogue_inputs[index]).block if accepts_nchw32c_epilogue(p) else BLOCK
        return v.block_in_bf16(epilogue_inputs[index], block).view()
    return v.over(epilogue_inputs[index], result, v.interior(result), lanes=True)


def _two(window: ConvWindow) -> ConvWindow:
    """Extend a window over one axis to two axes."""
    if window.rank == 2:
        return window
    before, after = window.pads
    kernel, strides, dilations = (
        (1, *ints) for ints in (window.kernel, window.strides, window.dilations)
    )
    return ConvWindow(kernel, strides, dilations, (0, before, 0, after))


# ---- plain -------------------------------------------------------------------------------


def _panels(v: RegionValues, p: ConvParams, operands: Sequence[int], result: int) -> None:
    """Emit a convolution over a single position as a product ``[N, C] x [C, O]``."""
    x, w, bias, epilogue_inputs = p.split(operands)
    rows = v.shape(result)[0]

    def flat(slot: Slot, columns: int, kind: str = FULL) -> View:
        strides: dict[str, Shape] = {FULL: (columns, 1), ROW: (0, 1)}
        return View(slot.buffer, (rows, columns), strides.get(kind, (0, 0)))

    kinds = p.epilogue.operands[1:] if p.epilogue else ()
    views = []
    for extra, kind in zip(epilogue_inputs, kinds, strict=True):
        batches = kind == ROW and len(v.shape(extra)) == len(v.shape(result))
        whole = batches and v.shape(extra)[0] != 1
        views.append(flat(v.slot(extra), p.filters, FULL if whole else kind))
    v.w.call(
        "gemm", x=flat(v.slot(x), p.channels), w=v.slot(w).view,
        bias=v.slot(bias).view if bias is not None else None, inputs=views,
        y=flat(v.out(result), p.filters), layout="panels", chain=p.epilogue,
    )  # fmt: skip


def _plain(v: RegionValues, p: ConvParams, operands: Sequence[int], result: int) -> None:
    """Emit a convolution on plain values; the chain's rows are channels, columns the last axis."""
    x, w, bias, epilogue_inputs = p.split(operands)
    y = v.out(result)
    views, kinds = [], [FULL]
    for extra in epilogue_inputs:
        view, kind = _spread(v, extra, y)
        views.append(view)
        kinds.append(kind)
    chain = replace(p.epilogue, operands=tuple(kinds)) if p.epilogue else None
    window = p.window
    v.w.call(
        "conv_plain", x=v.slot(x).view, w=v.slot(w).view,
        bias=v.slot(bias).view if bias is not None else None, inputs=views, y=y.view,
        groups=p.groups, strides=window.strides, dilations=window.dilations,
        starts=window.pads[: window.rank], chain=chain,
    )  # fmt: skip


def _spread(v: RegionValues, value: int, y: Slot) -> tuple[View, str]:
    """View an epilogue operand over a plain result; also return its kind along the last axis."""
    shape, full = v.shape(value), y.shape
    slot = v.slot(value)
    if shape == full:
        return slot.view, FULL
    wide = (*(1,) * (len(full) - len(shape)), *shape)
    pairs = zip(wide, dense_strides(wide), strict=True)
    strides = tuple(0 if d == 1 else s for d, s in pairs)
    return View(slot.buffer, full, strides), COL


# ---- pools -------------------------------------------------------------------------------


def lower_pool(v: RegionValues, p: PoolParams, operands: Sequence[int], result: int) -> None:
    """Emit ``pool`` between blocked values, or ``global_pool`` to a plain ``[N, C]``; with
    channels last ``pool_nhwc``."""
    if p.channels_last:
        _pool_bytes(v, p, operands[0], result)
        return
    source = v.block(operands[0])
    kind = p.kind.replace("-", "_")
    if p.window is None:
        slot = v.out(result)
        flat = View(slot.buffer, (source.batch, source.channels), (source.channels, 1))
        v.w.call(
            "global_pool", x=source.view(), y=flat, tail=channel_tail(source.channels), kind=kind
        )
        return
    window = _two(p.window)
    dst = v.dst(result)
    v.w.call(
        "pool", "bf16" if dst.dtype is DType.BF16 else "f32", x=source.view(), y=dst.padded,
        kind=kind, kernel=window.kernel, strides=window.strides, dilations=window.dilations,
        pads=halo_of(window), halo=dst.halo,
    )  # fmt: skip
    v.blocks[result] = dst


def _pool_bytes(v: RegionValues, p: PoolParams, value: int, result: int) -> None:
    assert p.window is not None
    window, images = _two(p.window), []
    for slot in (v.slot(value), v.out(result)):
        shape = slot.shape if len(slot.shape) == 4 else (slot.shape[0], 1, *slot.shape[1:])
        images.append(View(slot.buffer, shape, dense_strides(shape)))
    v.w.call(
        "pool_nhwc", "int8", x=images[0], y=images[1], kernel=window.kernel,
        strides=window.strides, dilations=window.dilations, pads=halo_of(window),
    )  # fmt: skip


# ---- resizing ----------------------------------------------------------------------------


def lower_resize(v: RegionValues, p: ResizeParams, operands: Sequence[int], result: int) -> None:
    """Emit ``resize`` between blocked values; scales of 0 are derived from the sizes."""
    dst = v.dst(result)
    v.w.call(
        "resize", x=v.block(operands[0]).view(), y=dst.padded, coordinates=p.how, halo=dst.halo,
        scales=(1.0, *p.scales)[-2:] if p.scales else (0.0, 0.0),
    )  # fmt: skip
    v.blocks[result] = dst
