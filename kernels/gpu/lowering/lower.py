"""Lower a fused region to a program of kernel calls.

Extents in a program are symbols that the node's inputs bind.  Each op has a lowering function that
accepts values of any layout, and chooses the layouts of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType, TensorSpec, assumed_size, product
from tracea_graph.kernels.gpu.lowering.attention import lower_attention
from tracea_graph.kernels.gpu.lowering.attention_projection import fold_attention_projections
from tracea_graph.kernels.gpu.lowering.block_quantized import (
    lower_quantize_rows,
    lower_quantized_embedding,
)
from tracea_graph.kernels.gpu.lowering.byte_results import round_where_computed
from tracea_graph.kernels.gpu.lowering.cached_attention import (
    cached_attentions,
    lower_cached_attention,
)
from tracea_graph.kernels.gpu.lowering.concat_folding import fold_concatenations
from tracea_graph.kernels.gpu.lowering.convolutions import lower_conv, lower_pool, lower_resize
from tracea_graph.kernels.gpu.lowering.depthwise_projection import projecting_steps
from tracea_graph.kernels.gpu.lowering.elements_of_lines import (
    lower_cumulative_sum,
    lower_gather,
    lower_grid_sample,
    lower_integer_step,
    lower_scatter_elements,
)
from tracea_graph.kernels.gpu.lowering.elementwise_ops import (
    Targets,
    lower_concat,
    lower_elementwise,
    lower_iota,
)
from tracea_graph.kernels.gpu.lowering.expanded_depthwise import fold_expansions
from tracea_graph.kernels.gpu.lowering.gate_folding import fold_gates
from tracea_graph.kernels.gpu.lowering.gated_matmuls import gated_matmuls, lower_gated_matmuls
from tracea_graph.kernels.gpu.lowering.grouped_integers import group_integer_matmuls
from tracea_graph.kernels.gpu.lowering.image_halves import halved_steps, run_in_halves
from tracea_graph.kernels.gpu.lowering.indexed_slices import (
    lower_gather_nd,
    lower_scatter_nd,
)
from tracea_graph.kernels.gpu.lowering.integer_convolutions import lower_conv_integer
from tracea_graph.kernels.gpu.lowering.integers import lower_dynamic_quantize
from tracea_graph.kernels.gpu.lowering.joined_copies import join_copies
from tracea_graph.kernels.gpu.lowering.layout_copies import lower_move
from tracea_graph.kernels.gpu.lowering.low_rank_pairs import fold_low_rank_pairs
from tracea_graph.kernels.gpu.lowering.matmul_ops import lower_gemm, lower_matmul
from tracea_graph.kernels.gpu.lowering.merged_projections import (
    lower_projections,
    projections_of,
)
from tracea_graph.kernels.gpu.lowering.normed_integers import fold_norms_of_integers
from tracea_graph.kernels.gpu.lowering.pack_folding import fold_packs
from tracea_graph.kernels.gpu.lowering.paged_attention import (
    lower_paged_attention,
    paged_attentions,
)
from tracea_graph.kernels.gpu.lowering.program_writer import HALVES, GpuProgramWriter
from tracea_graph.kernels.gpu.lowering.quantized_attention import fold_quantized_attentions
from tracea_graph.kernels.gpu.lowering.recurrent_cells import lower_recurrent
from tracea_graph.kernels.gpu.lowering.result_folding import fold_results
from tracea_graph.kernels.gpu.lowering.row_mlp import fold_mlps
from tracea_graph.kernels.gpu.lowering.row_ops import (
    lower_arg,
    lower_channel_norm,
    lower_embedding,
    lower_kv_append,
    lower_norm,
    lower_reduce,
    lower_softmax,
    lower_take,
    lower_top_k,
)
from tracea_graph.kernels.gpu.lowering.row_scales import scale_rows_where_computed
from tracea_graph.kernels.gpu.lowering.squeeze_excite import fold_squeeze_excite
from tracea_graph.kernels.program import Call, Program, View
from tracea_graph.kernels.program_writer import LackingError, Value
from tracea_graph.kernels.region_signature import (
    bind_at_strict_axes,
    localise_symbols,
    loose_axes,
    replace_clipped_sizes,
)
from tracea_graph.ops import OpParams
from tracea_graph.ops.arg_max import ArgParams
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.cumulative_sum import CumulativeSumParams
from tracea_graph.ops.dynamic_quantize import DynamicQuantizeParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gather import GatherParams
from tracea_graph.ops.gather_elements import GatherElementsParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.grid_sample import GridSampleParams
from tracea_graph.ops.indexed_slices import GatherNDParams, ScatterNDParams
from tracea_graph.ops.integer_step import IntegerStepParams
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.quantize_rows import QuantizeRowsParams
from tracea_graph.ops.quantized_embedding import QuantizedEmbeddingParams
from tracea_graph.ops.recurrent import RecurrentParams
from tracea_graph.ops.reduction import ReduceParams
from tracea_graph.ops.resize import ResizeParams
from tracea_graph.ops.scatter_elements import ScatterElementsParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.ops.top_k import TopKParams
from tracea_graph.ttg import Region, TileGraph

__all__ = ["MOST_GUARDED", "calls_of", "lower", "lower_guard"]

MOST_GUARDED = 64
TF32 = "tf32"
"""Precision of a step that stores float32 and rounds matmul operands to tf32."""
_TRUE = Chain((), (Step("equal", (0.0, 0.0)),), (0,))
Lowering = Callable[[GpuProgramWriter, Any, Sequence[Value], Targets], list[Value]]


def lower(graph: TileGraph, region: Region) -> Program:
    """Lower a fused region to a program.

    Scratch buffers are laid out for the sizes that the graph's bindings give.  Raises TypeError if
    the region is not fused, LackingError if a kernel is missing.
    """
    local, where = _signature(graph, region)
    shapes = [graph.spec(v).shape or () for v in region.operands]
    sizes = {s: assumed_size(shapes[i][axis], graph.bindings) for s, (i, axis) in where.items()}
    writer = _written(region, local, sizes)
    return replace(writer.done(where, sizes), loose=loose_axes(graph, region))


def calls_of(graph: TileGraph, region: Region) -> list[Call]:
    """Return the calls of a region's program.  Raises the exceptions of :func:`lower`."""
    return _written(region, _signature(graph, region)[0], {}).calls


def _signature(
    graph: TileGraph, region: Region
) -> tuple[tuple[TensorSpec, ...], dict[str, tuple[int, int]]]:
    """Return the operands' specs with symbols local to the program, and what binds each symbol."""
    if not region.fused:
        raise TypeError(f"{region.op} is not a fused region")
    specs = replace_clipped_sizes([graph.spec(v) for v in region.operands])
    local, where = localise_symbols(specs)
    return local, bind_at_strict_axes(local, where, loose_axes(graph, region))


def _written(
    region: Region, local: tuple[TensorSpec, ...], sizes: Mapping[str, int]
) -> GpuProgramWriter:
    """Write the calls of a region."""
    w = GpuProgramWriter(local, tuple(region.params.infer(local)), sizes=sizes)
    results = w.slots("output")
    made = lower_op(w, region.params, w.slots("input"), results)
    for value, target in zip(made, results, strict=True):
        if value.view != target.view:
            w.copy(value, target)
    round_where_computed(w)
    scale_rows_where_computed(w)
    fold_results(w)
    fold_packs(w)
    w.drop_unread()
    fold_expansions(w)
    fold_squeeze_excite(w)
    fold_mlps(w)
    fold_gates(w)
    fold_low_rank_pairs(w)
    fold_attention_projections(w)
    fold_quantized_attentions(w)
    group_integer_matmuls(w)
    fold_norms_of_integers(w)
    fold_concatenations(w)
    join_copies(w)
    return w


def _narrow(step: RegionStep, operands: Sequence[Value]) -> DType:
    """Return the type in which a step stores numbers; a view or copy keeps its operand's type."""
    params = step.params
    moves = isinstance(params, LayoutParams) or (
        isinstance(params, ElementwiseParams) and not params.chain.steps
    )
    if moves and operands[0].dtype in HALVES:
        return operands[0].dtype
    return _type_of(step)


def _type_of(step: RegionStep) -> DType:
    """Return the type to which the results of a step may be rounded."""
    return next((t for t in DType if t.short == step.narrow), DType.F32)


def lower_op(
    w: GpuProgramWriter, params: OpParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    """Write the calls of an op and return its results."""
    if (lowering := _LOWERINGS.get(type(params))) is None:
        name = type(params).__name__.removesuffix("Params")
        raise LackingError(f"there is no GPU kernel for {name}")
    made = lowering(w, params, operands, targets)
    assert all(v.dtype for v in made)
    return made


def _lower_region(
    w: GpuProgramWriter, p: RegionParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    """Write the steps in order; results of the program are written to their outputs directly."""
    wanted = dict(zip(p.results, targets, strict=True))
    values = dict(enumerate(operands))
    starts = p.starts
    rounded = _rounded_where_computed(p, starts, wanted)
    wanted |= {source: wanted[result] for source, result in rounded.items()}
    joined = cached_attentions(p)
    later = {number for one in joined.values() for number in one.earlier}
    paged = paged_attentions(p)
    later.update(number for one in paged.values() for number in one.earlier)
    merged = projections_of(p, joined.values())
    later.update(number for one in merged.values() for number in one.steps[1:])
    gated = gated_matmuls(p) if any(_type_of(step) in HALVES for step in p.steps) else {}
    later.update(one.gate for one in gated.values())
    projecting = projecting_steps(p)
    halved = halved_steps(w, p, operands)

    def run(number: int, own: dict[int, Value]) -> None:
        first, w.projects = len(w.calls), number in projecting
        _lower_step(w, p.steps[number], starts[number], own, {})
        w.calls[first:] = [replace(call, step=number) for call in w.calls[first:]]

    if halved is not None:
        values = run_in_halves(w, p, operands, halved, run)
        later.update(range(halved.end))
    for number, step in enumerate(p.steps):
        if number in later:
            continue
        made, target = values.get(step.operands[0]), wanted.get(starts[number])
        if starts[number] in rounded.values() and made and target and made.view == target.view:
            values[starts[number]] = made
            continue
        first, group, pages = len(w.calls), joined.get(number), paged.get(number)
        w.narrow, w.projects = _type_of(step), number in projecting
        if number in merged:
            w.rounds = step.narrow == TF32
            lower_projections(w, p, merged[number], values)
        elif number in gated:
            lower_gated_matmuls(w, p, gated[number], number, starts, values, wanted)
        elif not (
            (group and lower_cached_attention(w, group, values, wanted))
            or (pages and lower_paged_attention(w, pages, values, wanted))
        ):
            for each in (*(one.earlier if (one := group or pages) else ()), number):
                _lower_step(w, p.steps[each], starts[each], values, wanted)
        w.calls[first:] = [replace(call, step=number) for call in w.calls[first:]]
    return [wanted[i] or values[i] for i in p.results]


def _rounded_where_computed(
    p: RegionParams, starts: Sequence[int], wanted: Mapping[int, Value | None]
) -> dict[int, int]:
    """Find results that are a step's value in the type to which the step may round it.

    The kernels of such a step write the result, so that nothing has to be converted.  Returns the
    result's number for that of the value.
    """
    makers = {at + i: step for step, at in zip(p.steps, starts, strict=False)
              for i in range(step.results)}  # fmt: skip
    found = dict[int, int]()
    for step, at in zip(p.steps, starts, strict=False):
        target, own = wanted.get(at), step.params
        if target is None or not isinstance(own, ElementwiseParams) or own.moves:
            continue
        if target.dtype not in HALVES:  # no chain rounds to it
            continue
        source = step.operands[0]
        narrowed = own.chain == Chain((FULL,), (), (0,), (), (target.dtype,))
        inner = source not in wanted and source not in found and source in makers
        if narrowed and inner and makers[source].narrow == target.dtype.short:
            found[source] = at
    return found


def _lower_step(
    w: GpuProgramWriter, step: RegionStep, at: int, values: dict[int, Value],
    wanted: Mapping[int, Value | None],
) -> None:  # fmt: skip
    """Write a step and add its results to ``values``, under numbers from ``at`` on."""
    reads = [values[i] for i in step.operands]
    asked = [wanted.get(at + i) for i in range(step.results)]
    count = len(step.params.infer([TensorSpec(v.dtype, v.shape) for v in reads]))
    asked += [None] * (count - step.results)
    w.narrow, w.rounds = _narrow(step, reads), step.narrow == TF32
    w.factor, w.promoted = step.factor, step.promoted
    made = lower_op(w, step.params, reads, asked)
    for i, (value, target) in enumerate(zip(made[: step.results], asked, strict=False)):
        if target is not None and value.view != target.view:
            w.copy(value, target)
            value = target if target.dtype is value.dtype else value
        values[at + i] = value


def lower_guard(specs: Sequence[TensorSpec]) -> Program:
    """Compare tensors of these specs bytewise with reference tensors; the result is bool ``[1]``.

    Raises ValueError if a size is symbolic.
    """
    if any(s.shape is None or any(not isinstance(d, int) for d in s.shape) for s in specs):
        raise ValueError("a guard can only compare tensors of known sizes")
    w = GpuProgramWriter((*specs, *specs), (TensorSpec(DType.BOOL, (1,)),))
    slots, (result,) = w.slots("input"), w.slots("output")
    w.chain(_TRUE, [], [result])
    for i in range(len(specs)):
        both = []
        for value in (slots[i], slots[len(specs) + i]):
            count = product(value.shape) * int(value.dtype.size)  # type: ignore[operator]
            both.append(View.dense(value.view.buffer, (count,)))
        w.call("same", "b1", x=both[0], reference=both[1], y=result.view)
    return w.done({}, {})


_LOWERINGS: Mapping[type, Lowering] = MappingProxyType(
    {
        GemmParams: lower_gemm,
        MatMulParams: lower_matmul,
        AttentionParams: lower_attention,
        ElementwiseParams: lower_elementwise,
        ConcatParams: lower_concat,
        LayoutParams: lower_move,
        IotaParams: lower_iota,
        NormParams: lower_norm,
        EmbeddingParams: lower_embedding,
        GatherElementsParams: lower_take,
        GatherNDParams: lower_gather_nd,
        ScatterNDParams: lower_scatter_nd,
        GatherParams: lower_gather,
        ScatterElementsParams: lower_scatter_elements,
        CumulativeSumParams: lower_cumulative_sum,
        GridSampleParams: lower_grid_sample,
        IntegerStepParams: lower_integer_step,
        ArgParams: lower_arg,
        SoftmaxParams: lower_softmax,
        ReduceParams: lower_reduce,
        ChannelNormParams: lower_channel_norm,
        ConvParams: lower_conv,
        ConvIntegerParams: lower_conv_integer,
        DynamicQuantizeParams: lower_dynamic_quantize,
        PoolParams: lower_pool,
        ResizeParams: lower_resize,
        QuantizedEmbeddingParams: lower_quantized_embedding,
        QuantizeRowsParams: lower_quantize_rows,
        RecurrentParams: lower_recurrent,
        TopKParams: lower_top_k,
        KvCacheAppendParams: lower_kv_append,
        RegionParams: _lower_region,
    }
)
