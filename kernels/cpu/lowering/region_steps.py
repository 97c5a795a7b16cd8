"""Lower a region step by step, over plain and blocked values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tracea_graph.kernels.cpu.lowering.channel_block_norms import lower_norm_in_blocks
from tracea_graph.kernels.cpu.lowering.channel_blocked_values import per_channel
from tracea_graph.kernels.cpu.lowering.choose_bf16_storage import StoredTypes
from tracea_graph.kernels.cpu.lowering.choose_layouts import RegionLayout
from tracea_graph.kernels.cpu.lowering.conv import lower_conv, lower_pool, lower_resize
from tracea_graph.kernels.cpu.lowering.elementwise import lower_grid, part_views, write_part
from tracea_graph.kernels.cpu.lowering.fold_channel_scales import DeferredScale, scaled_values
from tracea_graph.kernels.cpu.lowering.layout_ops import lower_layout, written_by_pad
from tracea_graph.kernels.cpu.lowering.region_values import RegionValues
from tracea_graph.kernels.cpu.lowering.region_writer import RegionWriter, Slot
from tracea_graph.kernels.cpu.lowering.row_tile_loops import loop_over_row_tiles
from tracea_graph.ops import OpParams
from tracea_graph.ops.chain import FULL
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams, is_pure_reshape
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.resize import ResizeParams
from tracea_graph.passes.pointwise.bound_expressions import inline_producer

__all__ = ["Lower", "lower_region", "single_step_region"]

Lower = Callable[[RegionWriter, OpParams, Sequence[Slot], Sequence[Slot]], None]
"""Function that emits the calls of one op on contiguous slots."""


def single_step_region(
    params: ConvParams | PoolParams | LayoutParams | ResizeParams | ConcatParams | IotaParams,
) -> RegionParams:
    """Make a region of one step."""
    count = params.operands
    return RegionParams(count, (RegionStep(params, tuple(range(count))),), (count,))


def lower_region(
    w: RegionWriter,
    p: RegionParams,
    operands: Sequence[Slot],
    results: Sequence[Slot],
    lower: Lower,
) -> None:
    """Emit the calls of a region's steps; ``lower`` does so for ops that have no blocked form.

    Raises NotTileable if the region asks for row tiles and a call cannot be tiled.
    """
    specs = p.infer_all([s.spec for s in operands])
    targets = dict(zip(p.results, results, strict=True))
    layout = RegionLayout.plan(specs, p.steps, p.inputs)
    rounding = StoredTypes.plan(p, specs, layout)
    layout = RegionLayout.plan(specs, p.steps, p.inputs, rounding.apart)
    reads = p.readers
    v = RegionValues(
        w,
        layout,
        specs,
        rounding,
        targets=targets,
        written_by_pad=written_by_pad(p, layout, reads),
        reads=reads,
    )
    v.dense |= dict(enumerate(operands))
    value, begins, scaled = p.inputs, list[int](), scaled_values(p, specs, layout)
    needed = _needed(p)
    for number, step in enumerate(p.steps):
        begins.append(len(w.calls))
        if value not in scaled and not needed.isdisjoint(range(value, value + step.results)):
            _lower_step(v, step, value, lower, scaled)
        w.calls[begins[-1] :] = [replace(call, step=number) for call in w.calls[begins[-1] :]]
        value += step.results
    begins.append(len(w.calls))
    for result in p.results:
        v.slot(result)
    for row_tile in reversed(p.row_tiles):
        loop_over_row_tiles(
            w, begins[row_tile.first], begins[row_tile.last + 1] - 1, row_tile.rows
        )


def _needed(p: RegionParams) -> set[int]:
    """Return the values whose elements are read; of all others, only sizes are read."""
    needed, value = set(p.results), p.inputs + sum(step.results for step in p.steps)
    for step in reversed(p.steps):
        value -= step.results
        if not needed.isdisjoint(range(value, value + step.results)):
            needed |= set(_read(step))
    return needed


def _read(step: RegionStep) -> Sequence[int]:
    """Return the operands of a step whose elements it reads."""
    if isinstance(step.params, IotaParams):
        return ()
    sized = isinstance(step.params, LayoutParams) and step.params.sizes
    return step.operands[:1] if sized or isinstance(step.params, ResizeParams) else step.operands


def _lower_step(
    v: RegionValues,
    step: RegionStep,
    value: int,
    lower: Lower,
    scaled: Mapping[int, DeferredScale],
) -> None:
    params = step.params
    if value in v.rounding.views:
        v.alias(step.operands[0], value)
    elif isinstance(params, ConvParams):
        lower_conv(v, params, step.operands, value, scaled.get(step.operands[0]))
    elif isinstance(params, PoolParams) and len(v.shape(step.operands[0])) < 5:
        lower_pool(v, params, step.operands, value)
    elif isinstance(params, ResizeParams):
        lower_resize(v, params, step.operands, value)
    elif isinstance(params, ElementwiseParams) and value in v.layout.blocked:
        _lower_chain(v, params, step.operands, value)
    elif isinstance(params, ChannelNormParams) and value in v.layout.blocked:
        lower_norm_in_blocks(v, params, step.operands, value)
    elif isinstance(params, ConcatParams):
        _lower_concat(v, params, step.operands, value)
    elif isinstance(params, IotaParams):
        lower_grid(v.w, params, [v.shape(i) for i in step.operands], v.out(value))
    elif isinstance(params, LayoutParams):
        lower_layout(v, params, step.operands, value)
    else:
        made = [v.out(value + i) for i in range(step.results)]
        lower(v.w, params, [v.slot(i) for i in step.operands], made)


def _lower_concat(v: RegionValues, p: ConcatParams, operands: Sequence[int], result: int) -> None:
    """Lower a concat; blocked operands are reordered straight into the result."""
    stretches = part_views(p, [v.shape(i) for i in operands], v.out(result))
    for part, place in zip(p.parts, stretches, strict=True):
        own, params = [operands[i] for i in part.operands], part.params
        whole = part.like < 0 and is_pure_reshape(params)
        if not (whole and v.unblock_into(own[0], place)):
            write_part(v.w, part, [v.slot(i) for i in own], place)


def _lower_chain(
    v: RegionValues, p: ElementwiseParams, operands: Sequence[int], result: int
) -> None:
    """Lower a chain over a blocked value without its halo; absorb the deferred norms it reads."""
    dst, inner = v.dst(result), v.interior(result)
    kinds = tuple(v.layout.lies_over(i, result) for i in operands)
    chain, rows = replace(p.chain, operands=kinds), dict[str, tuple[Slot, bool]]()
    names = tuple(map(str, operands))
    for value in dict.fromkeys(operands):
        shifted = v.shifted.get(value)
        if shifted is None or value in v.blocks or v.layout.lies_over(value, result) != FULL:
            continue
        own = {f"{value}.{i}": row for i, row in enumerate(shifted.rows)}
        joined = inline_producer(
            (chain, names), str(value), (shifted.chain, (str(shifted.source), *own))
        )
        if joined is not None:
            (chain, names), rows = joined, {**rows, **own}
    views = [
        per_channel(*rows[n], dst.channels, inner) if n in rows else v.over(int(n), result, inner)
        for n in names
    ]
    v.w.call("elementwise", x=views, y=inner, chain=replace(chain, stores=(dst.dtype,)))
    v.finish(result, dst)
