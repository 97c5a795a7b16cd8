"""Lower a fused region to a program of kernel calls.

Extents in a program are symbols bound by the node's own inputs.  Each op has one function that
emits its calls on given slots, so that ops compose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType, Expr, Extent, TensorSpec, assumed_size, symbols_of
from tracea_graph.kernels.cpu.lowering.attention import lower_append, lower_attention
from tracea_graph.kernels.cpu.lowering.conv_integer import lower_conv_integer
from tracea_graph.kernels.cpu.lowering.dynamic_quantize import (
    lower_dynamic_quantize,
    lower_quantize_rows,
)
from tracea_graph.kernels.cpu.lowering.elementwise import lower_elementwise
from tracea_graph.kernels.cpu.lowering.gemm import lower_gemm
from tracea_graph.kernels.cpu.lowering.matmul import lower_matmul
from tracea_graph.kernels.cpu.lowering.recurrent import lower_recurrent
from tracea_graph.kernels.cpu.lowering.reduce import (
    lower_arg,
    lower_channel_norm,
    lower_reduce,
    lower_softmax,
    lower_top_k,
)
from tracea_graph.kernels.cpu.lowering.region_steps import lower_region, single_step_region
from tracea_graph.kernels.cpu.lowering.region_writer import RegionWriter, Slot
from tracea_graph.kernels.cpu.lowering.row_ops import (
    lower_embedding,
    lower_norm,
    lower_quantized_embedding,
    lower_take,
)
from tracea_graph.kernels.program import Call, Program
from tracea_graph.kernels.region_signature import (
    bind_at_strict_axes,
    localise_symbols,
    loose_axes,
    replace_clipped_sizes,
)
from tracea_graph.ops import OpParams
from tracea_graph.ops.arg_max import ArgParams
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.chain import FLOATS8
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

__all__ = ["lower"]

_BROADCASTING = (
    ElementwiseParams,
    ConcatParams,
    EmbeddingParams,
    ReduceParams,
    ArgParams,
    SoftmaxParams,
    GatherElementsParams,
)
_SLIDING = (ConvParams, ConvIntegerParams, PoolParams)
"""Ops whose results have new sizes, which later operands may share."""
_DEVICE_ONLY = (CumulativeSumParams, GatherParams, GridSampleParams, IntegerStepParams)
"""Ops without a CPU kernel."""
_NARROW = ("bf16", "int16")
"""Element types of 16 bits."""


def lacking(graph: TileGraph, region: Region) -> str:
    """Return why no kernel takes a region's element types, or "" if kernels do."""
    params: OpParams = region.params
    if isinstance(params, GatherNDParams | ScatterNDParams):
        return "CPU kernels take no index tuples"
    if isinstance(params, _DEVICE_ONLY):
        return "no CPU kernel computes it"
    if isinstance(params, ScatterElementsParams):
        return "CPU kernels update no elements"
    if isinstance(params, ResizeParams) and params.cubic:
        return "CPU kernels do not interpolate cubically"
    if isinstance(params, IotaParams) and params.offset != 0:
        return "CPU kernels count from numbers, not from sizes"
    if isinstance(params, ElementwiseParams):
        for value in filter(None, (*region.operands, *region.results)):
            if graph.spec(value).dtype in (DType.F16, *FLOATS8):
                return f"CPU kernels do not convert {value!r}"
    chosen = isinstance(params, TopKParams | GatherElementsParams)
    if chosen or (isinstance(params, ArgParams) and params.prologue is None):
        value = region.operands[0]
        if graph.spec(value).dtype is not DType.F32:
            return f"{value!r} is not float32"
    return ""


def lower(graph: TileGraph, region: Region) -> Program:
    """Lower one fused region to a program.

    Its scratch is planned for the sizes that the graph's bindings give.  Raises TypeError for a
    region that is not fused.
    """
    if not region.fused:
        raise TypeError(f"{region.op} is not a fused region")
    params: OpParams = region.params
    specs = [graph.spec(v) for v in region.operands]
    wide = replace_clipped_sizes(specs) if _broadcasts(params) else specs
    local, where = localise_symbols(wide)
    loose = loose_axes(graph, region)
    local, where = _as_made(params, wide, local, bind_at_strict_axes(local, where, loose))
    writer = RegionWriter(local, params.infer(local), where)
    _lower(writer, params, writer.operands(), writer.results())
    shapes = [spec.shape or () for spec in specs]
    sizes = {s: assumed_size(shapes[i][axis], graph.bindings) for s, (i, axis) in where.items()}
    return replace(_with_fast_math(writer.done(sizes)), loose=loose)


def _with_fast_math(program: Program) -> Program:
    """Relax the precision of a program that multiplies 16-bit numbers or bf16x2.

    With 16-bit products, chains use fast math; with 16-bit or bf16x2 products, first layers
    multiply bf16.
    """
    narrow = any(call.dtype in _NARROW for call in program.calls)
    if not narrow and not any(call.dtype == "bf16x2" for call in program.calls):
        return program
    return replace(program, calls=tuple(_fast_call(call, narrow) for call in program.calls))


def _fast_call(call: Call, narrow: bool) -> Call:
    """Lower a first layer's call to bf16; let chains use fast math if ``narrow``."""
    if call.op == "conv_first_layer":
        call = replace(call, dtype="bf16")
    if call.chain and narrow:
        call = replace(call, chain=replace(call.chain, fast_math=True))
    return call


def _as_made(
    params: OpParams,
    specs: Sequence[TensorSpec],
    local: Sequence[TensorSpec],
    where: Mapping[str, tuple[int, int]],
) -> tuple[tuple[TensorSpec, ...], dict[str, tuple[int, int]]]:
    """Rebind operand shapes to local symbols.

    If the graph proves that an operand has the same size as a strided convolution's or pool's
    result, that expression is used for it instead of a new symbol.
    """
    steps = params.steps if isinstance(params, RegionParams) else ()
    steps = steps or (RegionStep(params, tuple(range(len(specs)))),)
    wide, near, symbols = list(specs), list(local), dict(where)
    for step in steps:
        known = step.params.infer([wide[i] for i in step.operands])[: step.results]
        found = step.params.infer([near[i] for i in step.operands])[: step.results]
        wide, near = [*wide, *known], [*near, *found]
        if not isinstance(step.params, _SLIDING):
            continue
        for size, made in zip(_sizes(known), _sizes(found), strict=True):
            pairs = zip(_sizes(wide), _sizes(near), strict=True)
            same = {n for w, n in pairs if w == size and n in symbols and isinstance(made, Expr)}
            same -= set(symbols_of(made))
            symbols = {symbol: place for symbol, place in symbols.items() if symbol not in same}
            near = [_resized(spec, same, made) for spec in near]
    return tuple(near[: len(specs)]), symbols


def _sizes(specs: Sequence[TensorSpec]) -> list[Extent]:
    return [dim for spec in specs for dim in spec.shape or ()]


def _resized(spec: TensorSpec, old: Collection[Extent], new: Extent) -> TensorSpec:
    return replace(spec, shape=spec.shape and tuple(new if d in old else d for d in spec.shape))


def _broadcasts(params: OpParams) -> bool:
    steps = params.steps if isinstance(params, RegionParams) else ()
    return isinstance(params, _BROADCASTING) or any(_broadcasts(s.params) for s in steps)


def _lower(
    w: RegionWriter, params: OpParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    _LOWERINGS[type(params)](w, params, operands, results)


def _lower_region(
    w: RegionWriter, p: RegionParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    lower_region(w, p, operands, results, _lower)


def _lower_alone(
    w: RegionWriter,
    p: ConvParams | PoolParams | LayoutParams | ResizeParams | ConcatParams | IotaParams,
    operands: Sequence[Slot],
    results: Sequence[Slot],
) -> None:
    """Lower an op that only exists inside regions as a region of one step."""
    lower_region(w, single_step_region(p), operands, results, _lower)


Lowering = Callable[[RegionWriter, Any, Sequence[Slot], Sequence[Slot]], None]
_LOWERINGS: Mapping[type, Lowering] = MappingProxyType(
    {
        GemmParams: lower_gemm,
        MatMulParams: lower_matmul,
        NormParams: lower_norm,
        ElementwiseParams: lower_elementwise,
        ConcatParams: _lower_alone,
        AttentionParams: lower_attention,
        KvCacheAppendParams: lower_append,
        EmbeddingParams: lower_embedding,
        QuantizedEmbeddingParams: lower_quantized_embedding,
        ConvParams: _lower_alone,
        ConvIntegerParams: lower_conv_integer,
        PoolParams: _lower_alone,
        LayoutParams: _lower_alone,
        ResizeParams: _lower_alone,
        IotaParams: _lower_alone,
        ChannelNormParams: lower_channel_norm,
        ReduceParams: lower_reduce,
        ArgParams: lower_arg,
        TopKParams: lower_top_k,
        SoftmaxParams: lower_softmax,
        GatherElementsParams: lower_take,
        RecurrentParams: lower_recurrent,
        DynamicQuantizeParams: lower_dynamic_quantize,
        QuantizeRowsParams: lower_quantize_rows,
        RegionParams: _lower_region,
    }
)
