"""Programs: they compute what the op's reference computes, inside their buffers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import convolutions
from tests.graphs import normal, relative_error
from tests.interpreter import bind, check_lifetimes, check_views, run, written
from tracea_graph.ir import DType, Expr, Extent, TensorSpec, evaluate, symbols_of
from tracea_graph.kernels.cpu.gate_layouts import GATE_PANELS
from tracea_graph.kernels.cpu.lowering.lower import lacking, lower
from tracea_graph.kernels.cpu.nbits_panels import NBitsPanels
from tracea_graph.kernels.cpu.panels import (
    BF16X2,
    INT8,
    INT8_ZEROS,
    INT16,
    PANELS,
    VNNI2,
    WEIGHT_ONLY_BF16,
)
from tracea_graph.kernels.program import Buffer, Program
from tracea_graph.ops import OPS, OpParams
from tracea_graph.ops.arg_max import ARGS, ArgParams
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.concat import ConcatParams, ConcatPart
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.cumulative_sum import CumulativeSumParams
from tracea_graph.ops.dynamic_quantize import DynamicQuantizeParams
from tracea_graph.ops.elementwise import IDENTITY, ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gather import GatherParams
from tracea_graph.ops.gather_elements import GatherElementsParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.grid_sample import GridSampleParams
from tracea_graph.ops.index_map import HUGE, IndexMap, ViewMove
from tracea_graph.ops.indexed_slices import GatherNDParams, ScatterNDParams
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.integer_step import IntegerStepParams
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.quantize_rows import QuantizeRowsParams
from tracea_graph.ops.quantized_embedding import QuantizedEmbeddingParams
from tracea_graph.ops.recurrent import RecurrentParams
from tracea_graph.ops.reduction import REDUCTIONS, ReduceParams
from tracea_graph.ops.scatter_elements import ScatterElementsParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.ops.top_k import TopKParams
from tracea_graph.ops.weight_layouts import KN, NK
from tracea_graph.ttg import Region, TileGraph

Shape = tuple[Extent, ...]
F32, I64, I32, BOOL, BF16 = DType.F32, DType.I64, DType.I32, DType.BOOL, DType.BF16
I16 = DType.I16
KINDS = {
    F32: np.float32, I64: np.int64, I32: np.int32, I16: np.int16, BOOL: np.bool_,
    DType.I8: np.int8, DType.U8: np.uint8,
}  # fmt: skip


def map_of(*moves: tuple[str, tuple[int, ...]]) -> IndexMap:
    return IndexMap(tuple(ViewMove(*m) for m in moves))


LAYER, RMS = Norm("layer", 1e-5), Norm("rms", 1e-6, beta=False)
RELU = Chain(("full",), (Step("relu", (0,)),), (1,))
FOUR_KINDS = Chain(
    ("full", "row", "col", "scalar", "full"),
    (Step("mul", (0, 1)), Step("add", (5, 2)), Step("sub", (6, 3)), Step("max", (7, 4))),
    (8,),
)
SUM = Chain(("full", "full"), (Step("add", (0, 1)),), (2,))
RESCALE = Chain(("full", "row"), (Step("mul", (0, 1)),), (2,))
TWICE = Chain(("full", "full"), (Step("mul", (0, 1)), Step("exp", (0,))), (2, 3))

LAST = map_of(("unsqueeze", (3,)))
HEAD_SPLIT = map_of(("reshape", (0, 0, 3, 4)), ("transpose", (0, 2, 1, 3)))
FRONT, BACK = map_of(("slice", (2, 0, 6, 1))), map_of(("slice", (2, 6, HUGE, 1)))
ROTATED = Chain(
    ("full",) * 4, (Step("mul", (0, 2)), Step("mul", (1, 3)), Step("sub", (4, 5))), (6,)
)
HALVES = tuple(map_of(("slice", (2, a, a + 2, 1))) for a in (0, 2))
ROTARY = ConcatParams(
    3,
    tuple(
        ConcatPart(
            ElementwiseParams(
                ROTATED,
                (
                    HEAD_SPLIT.then(ViewMove("slice", (3, a, a + 2, 1))),
                    HEAD_SPLIT.then(ViewMove("slice", (3, 2 - a, 4 - a, 1))),
                    HALVES[a // 2],
                    HALVES[a // 2],
                ),
            ),
            (0, 0, 1, 2),
        )
        for a in (0, 2)
    ),
)
MASKED = Chain(("full", "row", "full"), (Step("add", (0, 1)), Step("mul", (3, 2))), (4,))

BS: Shape = ("b", "s")
X: Shape = (*BS, 12)
Y: Shape = (*BS, 20)
STORED: Shape = (2, 12, 16)
CLIPPED = Expr("min", ("s", 512))


@dataclass(frozen=True)
class Case:
    """An op, the shapes of its operands and their types where not float32.

    Integers lie in [-9, 9), or in [0, ``places``], a symbol.
    """

    params: OpParams
    shapes: tuple[Shape, ...]
    dtypes: tuple[DType, ...] = ()
    places: str = ""

    @property
    def specs(self) -> list[TensorSpec]:
        kinds = (*self.dtypes, *(F32,) * len(self.shapes))
        return [TensorSpec(t, s) for t, s in zip(kinds, self.shapes, strict=False)]

    @property
    def program(self) -> Program:
        names = [f"o{i}" for i in range(len(self.shapes))]
        results = tuple(f"r{i}" for i in range(len(self.params.infer(self.specs))))
        op = next(o for o, kind in OPS if isinstance(self.params, kind))
        region = Region("region", op, tuple(names), results, (), self.params)
        specs = dict(zip(names, self.specs, strict=True))
        return lower(TileGraph([region], names, results, {}, specs), region)

    @property
    def symbols(self) -> list[str]:
        return sorted({n for s in self.shapes for d in s for n in symbols_of(d)})

    def arrays(self, symbols: dict[str, int]) -> list[Any]:
        result = []
        for i, spec in enumerate(self.specs):
            assert spec.dtype is not None and spec.shape is not None
            shape = tuple(evaluate(d, symbols) for d in spec.shape)
            if spec.dtype is F32:
                result.append(normal(*shape, seed=i))
            elif spec.dtype is BF16:
                result.append(normal(*shape, seed=i).astype(ml_dtypes.bfloat16))
            elif spec.dtype is BOOL:
                result.append(normal(*shape, seed=i) > -0.5)
            else:
                low, high = (0, symbols[self.places] + 1) if self.places else (-9, 9)
                draw = np.random.default_rng(i).integers(low, high, shape)
                result.append(draw.astype(KINDS[spec.dtype]))
        return result


HEADS: dict[str, Any] = {"heads": 2, "head": 3, "head_v": 4, "scale": 0.5, "widths": (6, 6, 8)}
MASKS: tuple[Shape, ...] = (
    ("b", 1, 1, "t"), ("b", 1, "s", "t"), (1, 2, "s", "t"), ("s", "t"), ("t",),
)  # fmt: skip
QKV: tuple[Shape, ...] = (("b", "s", 6), ("b", "t", 6), ("b", "t", 8))
IDS = (F32, I64, F32, I64, F32, I64)

CASES = {
    "gemm": Case(GemmParams(12, 20, PANELS), (X, STORED)),
    "gemm, panels in bf16": Case(
        GemmParams(12, 20, WEIGHT_ONLY_BF16, True), (X, (2, 6, 16, 2), (20,)), (F32, BF16)
    ),
    "gemm, all in bf16, K odd": Case(
        GemmParams(11, 20, VNNI2, epilogue=RELU), ((*BS, 11), (2, 6, 16, 2)), (F32, BF16)
    ),
    "gemm, in integers, K odd": Case(
        GemmParams(11, 20, INT16, True, RELU),
        ((*BS, 11), (2, 6, 16, 2), (20,), (32,)),
        (F32, I16),
    ),
    "gemm, in integers, parts": Case(
        GemmParams(12, 20, INT16, splits=(16, 4)), (X, (2, 6, 16, 2), (32,)), (F32, I16)
    ),
    "gemm, as sums of two": Case(
        GemmParams(40, 20, BF16X2, True, RELU), ((*BS, 40), (2, 64, 16, 2), (20,)), (F32, BF16)
    ),
    "gemm, as sums of two, parts": Case(
        GemmParams(32, 20, BF16X2, splits=(16, 4)), ((*BS, 32), (2, 32, 16, 2)), (F32, BF16)
    ),
    "gemm, of bytes": Case(
        GemmParams(12, 20, INT8, integers=IntegerOperand(DType.U8, 3)),
        (X, (2, 4, 16, 4)),
        (DType.U8, DType.I8),
    ),
    "gemm, of bytes, zero points": Case(
        GemmParams(12, 20, INT8_ZEROS, integers=IntegerOperand(DType.I8, None), epilogue=RESCALE),
        (X, (2, 5, 16, 4), (), (20,)),
        (DType.I8, DType.I8, DType.I8),
    ),
    "gemm, of codes": Case(
        GemmParams(12, 20, NBitsPanels(4, 16, "integer"), bias=True, epilogue=RESCALE),
        (X, (2, 192), (2, 1, 1, 16), (20,), (20,)),
        (F32, DType.U8),
    ),
    "gemm, of codes, parts": Case(
        GemmParams(12, 20, NBitsPanels(2, 16, "float", True), splits=(16, 4)),
        (X, (2, 64), (2, 1, 2, 16)),
        (F32, DType.U8),
    ),
    "dynamic quantization": Case(DynamicQuantizeParams(), (X,)),
    "quantized rows": Case(QuantizeRowsParams(), (X,)),
    "gemm, one row": Case(GemmParams(12, 20, PANELS), ((1, 12), STORED)),
    "gemm [K,N], bias": Case(GemmParams(12, 20, KN, True), (X, (12, 20), (20,))),
    "gemm [N,K], bias": Case(GemmParams(12, 20, NK, True), (X, (20, 12), (20,))),
    "gemm, activation": Case(
        GemmParams(12, 20, PANELS, bias=True, epilogue=RELU), (X, STORED, (20,))
    ),
    "gemm, every kind of operand": Case(
        GemmParams(12, 20, PANELS, epilogue=FOUR_KINDS), (X, STORED, (1, 20), (*BS, 1), (1, 1), Y)
    ),
    "gemm, parts": Case(GemmParams(12, 20, PANELS, splits=(16, 3, 1)), (X, STORED)),
    "gemm, two results": Case(GemmParams(12, 20, PANELS, epilogue=TWICE), (X, STORED, Y)),
    "matmul": Case(MatMulParams(), (("b", 3, "s", 7), ("b", 3, 7, "t"))),
    "matmul, heads transposed, masked": Case(
        MatMulParams((0, 2, 1, 3), (0, 2, 3, 1), MASKED),
        (("b", "s", 3, 7), ("b", "t", 3, 7), ("b", 1, 1, "t"), ("b", 1, "s", "t")),
    ),
    "matmul, heads side by side": Case(
        MatMulParams((0, 2, 1, 3), (0, 2, 3, 1), heads=(3, 3)),
        (("b", "s", 21), ("b", "t", 21)),
    ),
    "matmul, heads of one side": Case(
        MatMulParams((0, 2, 1, 3), (), SUM, (3, 0)),
        (("b", "s", 21), (1, 3, 7, "t"), ("s", "t")),
    ),
    "matmul, one matrix for all": Case(MatMulParams(), ((*BS, 7), (7, "t"))),
    "matmul, one matrix, its result scaled by rows": Case(
        MatMulParams(epilogue=MASKED), ((*BS, 7), (7, 4), (1, 4), (*BS, 4))
    ),
    "matmul, one matrix, a table over positions": Case(
        MatMulParams(epilogue=SUM), ((*BS, 7), (7, 4), ("s", 4))
    ),
    "matmul, constant on the left": Case(MatMulParams((1, 0)), ((7, 9), ("b", 7, "s"))),
    "matmul, broadcast": Case(MatMulParams(), ((3, 5, 7), ("b", 1, 7, 4))),
    "matmul, vectors": Case(MatMulParams(), (("t",), ("t",))),
    "matmul, a vector on the left": Case(MatMulParams(), (("t",), ("b", "t", 4))),
    "matmul, a vector on the right": Case(MatMulParams(), (("b", 5, "t"), ("t",))),
    "gemm, norm": Case(GemmParams(12, 20, PANELS, norm=LAYER), (X, STORED, (20,), (20,))),
    "gemm, residual, norm": Case(
        GemmParams(12, 20, PANELS, bias=True, epilogue=SUM, norm=RMS), (X, STORED, (20,), Y, (20,))
    ),
    "gemm, residual, norm, sum kept": Case(
        GemmParams(12, 20, PANELS, bias=True, epilogue=SUM, norm=LAYER, keep_sum=True),
        (X, STORED, (20,), Y, (20,), (20,)),
    ),
    "gemm, rank 4": Case(GemmParams(12, 20, PANELS), (("b", 2, "s", 12), STORED)),
    "gemm of an expression's rows": Case(
        GemmParams(12, 20, PANELS), ((Expr("mul", ("b", "s")), 12), STORED)
    ),
    "norm": Case(NormParams(LAYER), (X, (12,), (12,))),
    "norm of a vector": Case(NormParams(RMS), ((12,), (12,))),
    "norm, bare": Case(NormParams(Norm("rms", 1e-6, False, False)), (X,)),
    "norm of a sum": Case(NormParams(LAYER, SUM), (X, X, (12,), (12,))),
    "norm of a sum, kept": Case(NormParams(RMS, SUM, keep_sum=True), (X, X, (12,))),
    "norm of every kind of operand": Case(
        NormParams(RMS, FOUR_KINDS, keep_sum=True), (X, (12,), (*BS, 1), (1,), X, (12,))
    ),
    "elementwise": Case(ElementwiseParams(RELU), (X,)),
    "elementwise on one number": Case(ElementwiseParams(RELU), ((),)),
    "elementwise, broadcast both ways": Case(ElementwiseParams(SUM), (("b", 1, 12), (1, "s", 12))),
    "elementwise, middle and last axes repeated": Case(
        ElementwiseParams(SUM), (("b", 1, 7, 1), ("b", "s", 7, 5))
    ),
    "elementwise, lower rank": Case(ElementwiseParams(SUM), ((12,), X)),
    "elementwise, clipped": Case(ElementwiseParams(SUM), (X, (1, CLIPPED, 12))),
    "elementwise, two results": Case(ElementwiseParams(TWICE), (X, ("s", 1))),
    "elementwise through maps": Case(
        ElementwiseParams(SUM, (HEAD_SPLIT, IndexMap())), (("b", "s", 12), ("b", 3, "s", 4))
    ),
    "elementwise through slices": Case(
        ElementwiseParams(SUM, (FRONT, BACK)), (("b", "s", 12), ("b", "s", 12))
    ),
    "copy": Case(ElementwiseParams(IDENTITY, (HEAD_SPLIT,)), (X,)),
    "copy, merged heads": Case(
        ElementwiseParams(IDENTITY, (map_of(("transpose", (0, 2, 1, 3))),), (0, 0, 12)),
        (("b", 3, "s", 4),),
    ),
    "copy, reversed": Case(
        ElementwiseParams(IDENTITY, (map_of(("slice", (1, -1, -HUGE, -1))),)), (X,)
    ),
    "copy, a stretch of a symbol": Case(
        ElementwiseParams(
            IDENTITY, (map_of(("slice", (1, 2, 4, 1)), ("slice", (0, -3, HUGE, 2))),)
        ),
        (X,),
    ),
    "concat of what was and is": Case(
        ConcatParams(
            2,
            (
                ConcatPart(ElementwiseParams(IDENTITY), (0,)),
                ConcatPart(ElementwiseParams(SUM, (HEAD_SPLIT, IndexMap())), (1, 2)),
            ),
        ),
        (("b", 3, "t", 4), X, ("b", 1, "s", 1)),
    ),
    "rotary": Case(ROTARY, (X, (1, "s", 4), (1, "s", 4))),
    "rotary behind what was": Case(
        ConcatParams(
            2, (ConcatPart(ElementwiseParams(IDENTITY), (3,)), ConcatPart(ROTARY, (0, 1, 2)))
        ),
        (X, (1, "s", 4), (1, "s", 4), ("b", 3, "t", 4)),
    ),
    "concat, interleaved": Case(
        ConcatParams(
            3,
            (
                ConcatPart(ElementwiseParams(RELU, (LAST,)), (0,)),
                ConcatPart(ElementwiseParams(SUM, (LAST, map_of(("unsqueeze", (2,))))), (0, 1)),
            ),
            (0, 0, 24),
        ),
        (X, ("s", 12)),
    ),
    "a grid over sizes of two": Case(
        IotaParams(2, ("1.0", Expr("mul", ("0.1", 2))), 0.5, (1.0, -2.0)),
        ((*BS, 3), ("t",)),
        (F32, I64),
    ),
    "take": Case(GatherElementsParams(4), (("b", 3, "s", 9), (1, 1, "s", "t")), (F32, I64)),
    "take, int32, of each row": Case(GatherElementsParams(3), ((*BS, 9), (*BS, "t")), (F32, I32)),
    "quantized embedding": Case(
        QuantizedEmbeddingParams(12, 20, NBitsPanels(4, 16, "integer")),
        ((2, 192), (2, 1, 1, 16), BS),
        (DType.U8, F32, I64),
    ),
    "embedding": Case(EmbeddingParams(1), ((9, 20), BS), IDS),
    "embedding, int32": Case(EmbeddingParams(1), ((9, 20), BS), (F32, I32)),
    "embedding sum": Case(
        EmbeddingParams(3), ((9, 20), BS, (9, 20), (1, "s"), (9, 20), ("b", 1)), IDS
    ),
    "embedding sum, clipped positions": Case(
        EmbeddingParams(2), ((9, 20), BS, (9, 20), (1, CLIPPED)), IDS
    ),
    "embedding sum, norm": Case(
        EmbeddingParams(2, LAYER), ((9, 20), BS, (9, 20), ("s",), (20,), (20,)), IDS[:4]
    ),
    "embedding sum, norm, sum kept": Case(
        EmbeddingParams(2, RMS, True), ((9, 20), BS, (9, 20), BS, (20,)), IDS[:4]
    ),
    **{
        f"{kind} over {axes}": Case(ReduceParams(kind, axes, kind != "max"), (("b", 3, "s", 4),))
        for kind in REDUCTIONS
        for axes in ((-1,), (-3, -1), (-4, -3, -2, -1))
    },
    "log-sum-exp of a sum": Case(ReduceParams("log_sum_exp", (-2,), False, SUM), (X, (12,))),
    "sum with chains around it": Case(
        ReduceParams("sum", (-2,), True, SUM, SUM), (X, (12,), ("b", 1, 12))
    ),
    **{
        f"index of the {kind} along {axis}": Case(ArgParams(kind, axis, kind == "max"), (X,))
        for kind in ARGS
        for axis in (-1, -2, -3)
    },
    "last index of the largest of a sum, middle axis": Case(
        ArgParams("max", -2, False, True, SUM), (X, ("s", 1))
    ),
    "the three largest": Case(TopKParams(3), (X,)),
    "the smallest": Case(TopKParams(1, largest=False), (X,)),
    "softmax": Case(SoftmaxParams(-1), (X,)),
    "log-softmax of a sum, middle axis": Case(SoftmaxParams(-2, True, SUM), (X, ("s", 1))),
    **{
        f"norm of {groups} groups": Case(
            ChannelNormParams(LAYER, groups, 4), (("b", 6, "s", 5), (6,), (6, 1, 1))
        )
        for groups in (0, 1, 2, 6)
    },
    "region": Case(
        RegionParams(
            5,
            (
                RegionStep(GemmParams(12, 20, PANELS, bias=True), (0, 1, 2)),
                RegionStep(NormParams(LAYER, SUM, keep_sum=True), (3, 5, 4, 4), 2),
                RegionStep(ElementwiseParams(SUM), (6, 7)),
            ),
            (8, 6),
        ),
        (X, STORED, (20,), Y, (20,)),
    ),
    "attention": Case(AttentionParams(**HEADS), QKV),
    "attention, merged": Case(
        AttentionParams(2, 3, 4, 0.5, "none", (0, 6, 12), (20, 20, 20)), (Y, Y, Y)
    ),
    "attention, q alone merged": Case(
        AttentionParams(2, 3, 4, 0.5, "none", (2, 0, 0), (20, 6, 8)), (Y, *QKV[1:])
    ),
    **{
        f"attention, mask {shape}": Case(AttentionParams(mask="add", **HEADS), (*QKV, shape))
        for shape in MASKS
    },
    "attention, boolean mask": Case(
        AttentionParams(mask="bool", fill=-1e9, **HEADS),
        (*QKV, ("b", 1, "s", "t")),
        (F32, F32, F32, BOOL),
    ),
}

GROUPED: dict[str, Any] = {"heads": 4, "head": 3, "head_v": 4, "scale": 0.5, "kv_heads": 2}
LAYOUTS = ("heads", "transposed", "split", "heads")
BY_HEADS: tuple[Shape, ...] = (("b", 4, "s", 3), ("b", 2, 3, "t"), ("b", "t", 2, 4))
for order in ("top", "bottom"):
    CASES |= {
        f"attention, {order}": Case(
            AttentionParams(causal=order, fill=-1e9, softcap=2.0, **HEADS), QKV
        ),
        f"attention, {order}, layouts": Case(
            AttentionParams(causal=order, fill=-1e9, layouts=LAYOUTS, **GROUPED), BY_HEADS
        ),
    }
CASES["attention, shared heads side by side"] = Case(
    AttentionParams(widths=(12, 14, 14), offsets=(0, 0, 6), **GROUPED),
    ((*BS, 12), ("b", "t", 14), ("b", "t", 14)),
)
ROOM = Expr("add", ("t", "s"))
PLACED: tuple[Shape, ...] = ((*BS, 12), ("b", 2, ROOM, 3), ("b", 2, ROOM, 4), ("b",))
CASES |= {
    f"attention from places, window {name}": Case(
        AttentionParams(
            causal="placed", widths=(12, 0, 0), layouts=("rows", "heads", "heads", "rows"),
            window=window, **GROUPED
        ),
        PLACED, (F32, F32, F32, DType.I64), "t",
    )
    for name, window in ((0, None), (3, (2, 0)))
}  # fmt: skip
CASES |= {
    "convolution of bytes": Case(
        ConvIntegerParams(
            4,
            20,
            ConvWindow((3, 3), (2, 1), (1, 1), (1, 1, 1, 1)),
            IntegerOperand(DType.U8, 3),
            layout=INT8,
        ),
        (("b", 6, 5, 4), (2, 10, 16, 4)),
        (DType.U8, DType.I8),
    ),
    "pointwise convolution of bytes": Case(
        ConvIntegerParams(
            8, 20, ConvWindow.unit((1, 1)), IntegerOperand(DType.I8, None), layout=INT8
        ),
        (("b", 6, 5, 8), (2, 3, 16, 4), ()),
        (DType.I8, DType.I8, DType.I8),
    ),
    "append": Case(
        KvCacheAppendParams(2, 3, 5, 13),
        ((*BS, 13), ("b", 2, "t", 3), ("b",), (ROOM,)),
        (F32, F32, DType.I64, BOOL),
        "t",
    ),
    "append to nothing": Case(
        KvCacheAppendParams(2, 3, 0, 6, past=False),
        ((*BS, 6), ("b",), (ROOM,)),
        (F32, DType.I64, BOOL),
        "t",
    ),
    "lstm": Case(
        RecurrentParams("lstm", 6, 5, initial=True, results=("y", "h", "c"), layout=GATE_PANELS),
        (("s", "b", 6), (1, 2, 6, 16), (1, 2, 5, 16), (1, 32), (1, "b", 5), (1, "b", 5)),
    ),
    "gru, both directions": Case(
        RecurrentParams("gru", 6, 20, (False, True), results=("h",), layout=GATE_PANELS),
        (("s", "b", 6), (2, 4, 6, 16), (2, 4, 20, 16), (2, 64), (2, 32)),
    ),
    "gru, reset before": Case(
        RecurrentParams("gru", 6, 20, (False, True), False, ("h",), True, GATE_PANELS),
        (("s", "b", 6), (2, 5, 6, 16), (2, 5, 20, 16), (2, 80)),
    ),
    "lstm, reverse": Case(
        RecurrentParams("lstm", 6, 16, (True,), layout=GATE_PANELS),
        (("s", "b", 6), (1, 4, 6, 16), (1, 4, 16, 16), (1, 64)),
    ),
}
VALUES = {"b": 2, "s": 5, "t": 7}


def wide(a: Any) -> Any:
    return a.astype(np.float64) if a.dtype == np.float32 else a


@pytest.mark.parametrize("name", CASES)
def test_a_program_computes_its_reference(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays(VALUES)
    results = run(case.program, arrays)
    expected = case.params.reference([wide(a) for a in arrays])
    assert len(results) == len(expected)
    for actual, want in zip(results, expected, strict=True):
        assert relative_error(actual, np.asarray(want)) < 1e-12


@settings(deadline=None, max_examples=25)
@given(st.fixed_dictionaries({n: st.integers(0, 600) for n in "bst"}))
def test_no_view_leaves_its_buffer_whatever_the_sizes(symbols: dict[str, int]) -> None:
    for case in CASES.values():
        if any(CLIPPED in s for s in case.shapes):
            symbols = symbols | {"s": min(symbols["s"], 512)}
        program = case.program
        shapes = [tuple(evaluate(d, symbols) for d in spec.shape or ()) for spec in case.specs]
        check_views(program, bind(program, shapes))


@pytest.mark.parametrize("sizes", [(0, 5, 7), (2, 0, 7), (1, 1, 1), (3, 17, 16)])
@pytest.mark.parametrize("name", CASES)
def test_empty_and_odd_sizes(name: str, sizes: tuple[int, int, int]) -> None:
    case, symbols = CASES[name], dict(zip("bst", sizes, strict=True))
    arrays = case.arrays(symbols)
    if isinstance(case.params, ArgParams) and not arrays[0].shape[case.params.axis]:
        for compute in (case.params.reference, partial(run, case.program)):
            with pytest.raises(ValueError, match="zero-size"):
                compute(arrays)
        return
    with np.errstate(all="ignore"):
        expected = case.params.reference([wide(a) for a in arrays])
        results = run(case.program, arrays)
    for actual, want in zip(results, map(np.asarray, expected), strict=True):
        finite = np.isfinite(want)  # the mean of nothing is not a number
        np.testing.assert_array_equal(actual[~finite], want[~finite])
        assert relative_error(actual[finite], want[finite]) < 1e-12


@pytest.mark.parametrize("name", CASES)
def test_every_symbol_is_bound_once_by_an_input(name: str) -> None:
    program = CASES[name].program
    used = {
        symbol
        for spec in (*program.inputs, *program.outputs)
        for extent in spec.shape or ()
        for symbol in symbols_of(extent)
    }
    for call in program.calls:
        for view in filter(None, call.views):
            used |= {n for e in (*view.dims, *view.strides, view.offset) for n in symbols_of(e)}
    assert used == set(program.symbols)
    assert len(set(program.symbols.values())) == len(program.symbols)
    for symbol, (i, axis) in program.symbols.items():
        shape = program.inputs[i].shape
        assert shape is not None and shape[axis] == symbol


@pytest.mark.parametrize("name", CASES)
def test_temporaries_live_as_long_as_they_are_used(name: str) -> None:
    check_lifetimes(CASES[name].program)


@pytest.mark.parametrize("name", CASES)
def test_every_output_is_written_and_no_input_is(name: str) -> None:
    program = CASES[name].program
    outputs = {Buffer("output", i) for i in range(len(program.outputs))}
    results = {v.buffer for c in program.calls for v in written(c) if v is not None}
    assert outputs <= results and not any(b.kind == "input" for b in results)


# ---- what the views say ------------------------------------------------------------------


def test_symbols_are_local_and_their_other_uses_are_checked() -> None:
    program = CASES["gemm, residual, norm"].program
    assert program.symbols == {"s0": (0, 0), "s1": (0, 1)}
    assert program.inputs[3].shape == ("s0", "s1", 20)
    with pytest.raises(ValueError, match=r"input 3 is \(2, 4, 20\)"):
        bind(program, [(2, 5, 12), (2, 12, 16), (20,), (2, 4, 20), (20,)])


def test_an_expression_is_a_symbol_like_any_other() -> None:
    assert CASES["gemm of an expression's rows"].program.symbols == {"s0": (0, 0)}


def test_clipped_extents_are_the_extent_they_clip_where_operands_broadcast() -> None:
    program = CASES["embedding sum, clipped positions"].program
    assert program.symbols == {"s0": (1, 0), "s1": (1, 1)}
    with pytest.raises(ValueError, match="input 3"):
        bind(program, [(9, 20), (2, 600), (9, 20), (1, 512)])


def test_queries_clipped_to_a_window_are_not_the_keys() -> None:
    clipped: Shape = ("b", CLIPPED, 6)
    case = Case(AttentionParams(**HEADS), (clipped, ("b", "s", 6), ("b", "s", 8)))
    assert len(case.program.symbols) == 3


def test_repeated_axes_have_stride_zero() -> None:
    views = CASES["elementwise, middle and last axes repeated"].program.calls[0].views
    assert views[0] is not None and views[1] is not None
    assert views[0].strides[1] == 0 and views[0].strides[3] == 0
    assert all(s != 0 for s in views[1].strides)


def test_kernels_require_unit_strides_where_they_say() -> None:
    for case in CASES.values():
        for call in case.program.calls:
            steps = [v.strides[-1] if v and v.strides else 1 for v in call.views]
            if call.name == "gemm":
                assert steps[-1] == 1
            if call.name == "attention":
                assert steps[0] == steps[2] == steps[4] == 1 and steps[3] in (0, 1)
                assert call.views[1] and 1 in call.views[1].strides[2:]


def test_elementwise_kinds_say_only_whether_the_last_axis_moves() -> None:
    chain = CASES["elementwise, two results"].program.calls[0].chain
    assert chain is not None and chain.operands == ("full", "col")


def test_only_fused_regions_are_lowered() -> None:
    region = Region("r", "Relu", ("x",), ("y",), ())
    graph = TileGraph([region], ["x"], ["y"], {}, {"x": TensorSpec(F32, (2,))})
    with pytest.raises(TypeError, match="Relu is not a fused region"):
        lower(graph, region)


def test_every_word_is_lowered_somewhere() -> None:
    cases = (*CASES.values(), *convolutions.CASES.values())
    kinds = {kind for _, kind in OPS}
    on_gpus = {GatherNDParams, ScatterNDParams, GatherParams, GridSampleParams,
               CumulativeSumParams, IntegerStepParams, ScatterElementsParams}  # fmt: skip
    assert {type(c.params) for c in cases} == kinds - on_gpus


def test_index_tuples_stay_with_onnx_runtime() -> None:
    specs = {"x": TensorSpec(F32, (4, 3)), "i": TensorSpec(I64, (2, 1))}
    region = Region("r", "FusedGatherND", ("x", "i"), ("y",), (), GatherNDParams())
    graph = TileGraph([region], [*specs], ["y"], {}, specs)
    assert lacking(graph, region) == "CPU kernels take no index tuples"


def test_ramps_from_a_size_on_stay_with_onnx_runtime() -> None:
    ramp = IotaParams(1, ("0.1",), 0.0, (1.0,), I64, "0.0")
    region = Region("r", "FusedIota", ("x",), ("y",), (), ramp)
    graph = TileGraph([region], ["x"], ["y"], {}, {"x": TensorSpec(F32, (4, 3))})
    assert lacking(graph, region) == "CPU kernels count from numbers, not from sizes"
