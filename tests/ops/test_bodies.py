"""Every custom op's body, run by ONNX Runtime, gives what its reference gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import convolutions
from tests.graphs import normal, relative_error, run_body
from tests.runtime.nbits_cases import drawn_matrix
from tracea_graph.ir import DType, Expr, TensorSpec
from tracea_graph.kernels.cpu.bitmap_sparse_format import pack_bitmap
from tracea_graph.kernels.cpu.fp16_layouts import FP16_PANELS, pack_fp16
from tracea_graph.kernels.cpu.gate_layouts import GATE_PANELS
from tracea_graph.kernels.cpu.nbits_panels import NBitsPanels
from tracea_graph.kernels.cpu.panels import (
    BF16_SINCE,
    BF16X2,
    BITMAP,
    BITMAP_BF16,
    INT8,
    INT8_ZEROS,
    INT16,
    PANEL,
    PANELS,
    VNNI2,
    WEIGHT_ONLY_BF16,
    BlockSparseBf16Panels,
    BlockSparsePanels,
    pack_bf16x2,
    pack_block_sparse,
    pack_block_sparse_vnni2,
    pack_int8,
    pack_int16,
    pack_panels,
    pack_vnni2,
    unpack_panels,
)
from tracea_graph.ops import OPS, OpParams
from tracea_graph.ops.arg_max import ARGS, ArgParams
from tracea_graph.ops.attention import UNLIMITED, AttentionParams
from tracea_graph.ops.attention_tiles import TileGrid
from tracea_graph.ops.block_quantized import ZEROS, BlockQuantized
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.concat import ConcatParams, ConcatPart
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.cumulative_sum import CumulativeSumParams
from tracea_graph.ops.dynamic_quantize import DynamicQuantizeParams
from tracea_graph.ops.elementwise import IDENTITY, ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gather import GatherParams
from tracea_graph.ops.gather_elements import GatherElementsParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.grid_sample import BEYOND, SAMPLINGS, GridSampleParams
from tracea_graph.ops.index_map import HUGE, IndexMap, ViewMove
from tracea_graph.ops.indexed_slices import SCATTERS, GatherNDParams, ScatterNDParams
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.integer_step import IntegerStepParams
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.quantize_rows import QuantizeRowsParams
from tracea_graph.ops.quantized_embedding import QuantizedEmbeddingParams
from tracea_graph.ops.recurrent import RecurrentParams
from tracea_graph.ops.reduction import REDUCTIONS, ReduceParams
from tracea_graph.ops.scatter_elements import ScatterElementsParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.ops.top_k import TopKParams
from tracea_graph.ops.weight_layouts import BLOCKS, KN, NK

OPSETS = (11, 13, 17, 18, 21)

GELU_RESIDUAL = Chain(("full", "full"), (Step("gelu", (0,)), Step("add", (2, 1))), (3,))
SUM = Chain(("full", "full"), (Step("add", (0, 1)),), (2,))
MUL_MAX = Chain(("full", "col", "row"), (Step("mul", (0, 1)), Step("max", (3, 2))), (4,))
SQUARE_ROWS = Chain(("full", "row"), (Step("mul", (0, 0)), Step("mul", (2, 1))), (3,))
ROOT_PLUS = Chain(
    ("full", "full"), (Step("abs", (0,)), Step("sqrt", (2,)), Step("add", (3, 1))), (4,)
)
SCALE_MASK = Chain(("full", "full"), (Step("mul", (0, 0.125)), Step("add", (2, 1))), (3,))
HEADS = IndexMap((ViewMove("reshape", (0, 0, 3, 4)), ViewMove("transpose", (0, 2, 1, 3))))
FRONT = IndexMap((ViewMove("slice", (3, 0, 2, 1)),))
LOW = IndexMap((ViewMove("slice", (1, 0, 2, 1)),))
ATTEND_STEPS = (Step("mul", (0, 0.125)), Step("add", (2, 1)))
LAYER, RMS = Norm("layer", 1e-5), Norm("rms", 1e-6, beta=False)

PLACES = AttentionParams(2, 3, 4, 1.0, layouts=("split",) * 4, causal="placed")


@dataclass(frozen=True)
class Case:
    """An op and the arrays of its operands; a shape stands for numbers from N(0, 1)."""

    params: OpParams
    operands: tuple[Any, ...]
    tolerance: float = 5e-6
    since: int = 0  # the first opset whose operators take these types

    def arrays(self) -> list[np.ndarray]:
        return [
            normal(*a, seed=i) if isinstance(a, tuple) else a for i, a in enumerate(self.operands)
        ]


def panels(k: int, n: int) -> np.ndarray:
    return pack_panels(normal(k, n, seed=99))


def pairs(k: int, n: int) -> np.ndarray:
    return pack_vnni2(normal(k, n, seed=99))


def integers(k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    return pack_int16(normal(k, n, seed=99))


def signed(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(-128, 127, shape, np.int8, endpoint=True)


BYTES = signed(2, 5, 11).view(np.uint8)


SQUARE = ConvWindow((3, 3), (2, 1), (1, 1), (1, 1, 1, 1))


def codes(layout: NBitsPanels, k: int, n: int) -> tuple[np.ndarray, ...]:
    """Stored codes and scales, and a bias."""
    packed, scales = drawn_matrix(layout, k, n)
    return packed, scales, normal(n, seed=6)


BYTES_OF_4_BITS = np.random.default_rng(8).integers(0, 256, (20, 3, 16), np.uint8)
ABOUT_ONE = np.random.default_rng(9).integers(1, 9, (2, 20, 3)).astype(np.float32)


def blocks(k: int, n: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Stored blocks and their places; the second and every third one of a matrix are zero."""
    count = -(-n // PANEL) * -(-k // block)
    places = np.array([i for i in range(count) if i % 3 != 1], np.int32)
    return pack_block_sparse(panels(k, n), places, block), places


def bitmap(k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Stored numbers and their map; about half of a matrix is zero."""
    kept = np.random.default_rng(k).random((k, n)) < 0.5
    return pack_bitmap(pack_panels(normal(k, n, seed=99) * kept))


def ids(*shape: int, dtype: Any = np.int64, low: int = 0, high: int = 9) -> np.ndarray:
    return np.random.default_rng(3).integers(low, high, shape, dtype)


def keep(*shape: int) -> np.ndarray:
    mask = np.random.default_rng(5).random(shape) < 0.6
    mask[..., 0] = True
    return mask


def additive(*shape: int, low: float = -3.4028234663852886e38) -> np.ndarray:
    return np.where(keep(*shape), np.float32(0), np.float32(low))


X = (2, 5, 12)
QKV = ((2, 5, 6), (2, 7, 6), (2, 7, 8))
PLACED: dict[str, Any] = {
    "widths": (12, 0, 0), "layouts": ("rows", "heads", "heads", "rows")
}  # fmt: skip
HALVES = ("rows", "heads", "heads", "rows")
KEYS_TURNED = ("rows", "transposed", "heads", "rows")
STORED: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8}
"""Types of caches by name."""
ATTEND = AttentionParams(2, 3, 4, 0.5, widths=(6, 6, 8))

CASES = {
    "gemm": Case(GemmParams(12, 32, PANELS), (X, panels(12, 32))),
    "gemm, panels in bf16": Case(
        GemmParams(12, 21, WEIGHT_ONLY_BF16, bias=True), (X, pairs(12, 21), (21,))
    ),
    "gemm, all in bf16, K odd": Case(GemmParams(11, 16, VNNI2), ((2, 5, 11), pairs(11, 16)), 1e-2),
    "gemm, in integers, K odd": Case(
        GemmParams(11, 21, INT16, bias=True),
        ((2, 5, 11), integers(11, 21)[0], (21,), integers(11, 21)[1]),
        1e-3,
    ),
    "gemm, of bytes": Case(
        GemmParams(11, 20, KN, integers=IntegerOperand(DType.U8, 7)), (BYTES, signed(11, 20))
    ),
    "gemm, of bytes, zero points": Case(
        GemmParams(11, 20, NK, integers=IntegerOperand(DType.I8, None, True)),
        (BYTES.view(np.int8), signed(20, 11), np.array(-9, np.int8), signed(20)),
    ),
    "gemm, of bytes in panels": Case(
        GemmParams(11, 20, INT8_ZEROS, integers=IntegerOperand(DType.U8, None)),
        (BYTES, pack_int8(signed(11, 20), signed(20)), np.array([200], np.uint8)),
    ),
    "conv, of bytes": Case(
        ConvIntegerParams(4, 20, SQUARE, IntegerOperand(DType.U8, 7)),
        (signed(2, 6, 5, 4).view(np.uint8), signed(20, 36)),
    ),
    "conv, of bytes in panels": Case(
        ConvIntegerParams(4, 20, SQUARE, IntegerOperand(DType.I8, None), layout=INT8),
        (signed(2, 6, 5, 4), pack_int8(signed(36, 20)), np.array(-9, np.int8)),
    ),
    "conv, of bytes, groups, zero points": Case(
        ConvIntegerParams(4, 20, SQUARE, IntegerOperand(DType.U8, 7), 2, INT8_ZEROS),
        (signed(2, 6, 5, 4).view(np.uint8), pack_int8(signed(18, 20), signed(20))),
    ),
    "conv, of bytes, lines": Case(
        ConvIntegerParams(
            6, 6, ConvWindow((3,), (1,), (2,), (2, 2)), IntegerOperand(DType.U8, 7), 6
        ),
        (signed(2, 9, 6).view(np.uint8), signed(6, 3)),
    ),
    "pool, of bytes": Case(
        PoolParams("max", SQUARE, channels_last=True), (signed(2, 6, 5, 4),), since=12
    ),
    **{
        f"gemm, {bits} bits, {zeros} zeros": Case(
            GemmParams(70, 20, NBitsPanels(bits, 32, zeros, zeros != "float"), bias=True),
            ((2, 5, 70), *codes(NBitsPanels(bits, 32, zeros), 70, 20)),
        )
        for bits in (2, 4, 8)
        for zeros in ZEROS
    },
    "gemm, 4 bits in the model's order": Case(
        GemmParams(70, 20, BlockQuantized(4, 32, "integer")),
        ((2, 5, 70), BYTES_OF_4_BITS, ABOUT_ONE),
    ),
    "dynamic quantization": Case(DynamicQuantizeParams(), (X,)),
    "quantized rows": Case(QuantizeRowsParams(), (X,)),
    "gemm, in fp16": Case(
        GemmParams(41, 21, FP16_PANELS, bias=True),
        ((2, 5, 41), pack_fp16(normal(41, 21, seed=99)), (21,)),
        2e-3,
    ),
    "gemm, as sums of two": Case(
        GemmParams(40, 21, BF16X2, bias=True),
        ((2, 5, 40), pack_bf16x2(normal(40, 21, seed=99)), (21,)),
        1e-5,
    ),
    "gemm, as sums of two, whole panels": Case(
        GemmParams(64, 32, BF16X2), ((3, 64), pack_bf16x2(normal(64, 32, seed=99))), 1e-5
    ),
    **{
        f"gemm, blocks of {block}": Case(
            GemmParams(70, 50, BlockSparsePanels(block), bias=True),
            ((2, 5, 70), blocks(70, 50, block)[0], (50,), blocks(70, 50, block)[1]),
        )
        for block in BLOCKS
    },
    **{
        f"gemm, blocks of {block} in bf16": Case(
            GemmParams(70, 50, BlockSparseBf16Panels(block), bias=True),
            (
                (2, 5, 70),
                pack_block_sparse_vnni2(blocks(70, 50, block)[0]),
                (50,),
                blocks(70, 50, block)[1],
            ),
            1e-2,
        )
        for block in BLOCKS[1:]
    },
    "gemm, blocks, gelu, residual and norm": Case(
        GemmParams(12, 32, BlockSparsePanels(4), True, GELU_RESIDUAL, LAYER),
        (X, blocks(12, 32, 4)[0], (32,), (2, 5, 32), (32,), (32,), blocks(12, 32, 4)[1]),
    ),
    **{
        f"gemm, scattered zeros, K = {k}": Case(
            GemmParams(k, 50, BITMAP, bias=True),
            ((4, k), bitmap(k, 50)[0], (50,), bitmap(k, 50)[1]),
        )
        for k in (70, 33)
    },
    "gemm, scattered zeros in bf16": Case(
        GemmParams(12, 32, BITMAP_BF16, True, GELU_RESIDUAL, LAYER),
        (
            X,
            bitmap(12, 32)[0].astype(ml_dtypes.bfloat16),
            (32,),
            (2, 5, 32),
            (32,),
            (32,),
            bitmap(12, 32)[1],
        ),
    ),
    "gemm, N not whole panels": Case(GemmParams(12, 21, PANELS), (X, panels(12, 21))),
    "gemm, one column": Case(GemmParams(12, 1, PANELS, bias=True), ((3, 12), panels(12, 1), (1,))),
    "gemm [K,N]": Case(GemmParams(12, 21, KN, bias=True), (X, (12, 21), (21,))),
    "gemm [N,K]": Case(GemmParams(12, 21, NK, bias=True), (X, (21, 12), (21,))),
    "gemm, rank 4": Case(GemmParams(12, 16, PANELS), ((2, 3, 1, 12), panels(12, 16))),
    "gemm, no rows": Case(GemmParams(12, 16, PANELS, bias=True), ((0, 12), panels(12, 16), (16,))),
    "gemm, gelu and residual": Case(
        GemmParams(12, 20, PANELS, bias=True, epilogue=GELU_RESIDUAL),
        (X, panels(12, 20), (20,), (2, 5, 20)),
    ),
    "gemm, column and row operands": Case(
        GemmParams(12, 20, PANELS, epilogue=MUL_MAX), (X, panels(12, 20), (2, 5, 1), (20,))
    ),
    "gemm, three parts": Case(
        GemmParams(12, 40, PANELS, bias=True, splits=(16, 4, 20)), (X, panels(12, 40), (40,))
    ),
    "gemm, what it takes up kept": Case(
        GemmParams(12, 20, PANELS, epilogue=Chain(("full",), (Step("relu", (0,)),), (1, 0))),
        (X, panels(12, 20)),
    ),
    "gemm, layer norm": Case(
        GemmParams(12, 20, PANELS, bias=True, norm=LAYER), (X, panels(12, 20), (20,), (20,), (20,))
    ),
    "gemm, residual, layer norm, sum kept": Case(
        GemmParams(12, 20, PANELS, bias=True, epilogue=SUM, norm=LAYER, keep_sum=True),
        (X, panels(12, 20), (20,), (2, 5, 20), (20,), (20,)),
    ),
    "gemm, rms norm": Case(GemmParams(12, 20, PANELS, norm=RMS), (X, panels(12, 20), (20,))),
    "matmul": Case(MatMulParams(), ((2, 3, 5, 7), (2, 3, 7, 4))),
    "matmul, broadcast": Case(MatMulParams(), ((3, 5, 7), (2, 1, 7, 4))),
    "matmul, transposed": Case(
        MatMulParams((0, 2, 1, 3), (0, 2, 3, 1)), ((2, 5, 3, 7), (2, 4, 3, 7))
    ),
    "matmul, scaled and masked": Case(
        MatMulParams((1, 0), (), Chain(("full", "row"), ATTEND_STEPS, (3,))),
        ((7, 5), (2, 7, 4), (2, 1, 4)),
    ),
    "matmul, two results": Case(
        MatMulParams(epilogue=Chain(("full",), (Step("relu", (0,)),), (1, 0))), ((5, 7), (7, 4))
    ),
    "matmul, heads side by side": Case(
        MatMulParams((0, 2, 1, 3), (0, 2, 3, 1), heads=(3, 3)), ((2, 5, 21), (2, 4, 21))
    ),
    **{
        f"matmul of integers, {left.short} by {right.short}": Case(
            MatMulParams(
                (0, 2, 1, 3),
                (0, 2, 3, 1),
                heads=(3, 0),
                integers=(IntegerOperand(left, 3), IntegerOperand(right, 100)),
            ),
            (signed(2, 5, 21).view(a), signed(2, 4, 3, 7).view(b)),
        )
        for left, a in ((DType.U8, np.uint8), (DType.I8, np.int8))
        for right, b in ((DType.U8, np.uint8), (DType.I8, np.int8))
    },
    "matmul, vectors": Case(MatMulParams(), ((7,), (7,))),
    "matmul, a vector on the left": Case(MatMulParams(), ((7,), (2, 7, 4))),
    "matmul, a vector on the right": Case(MatMulParams(), ((2, 5, 7), (7,))),
    "matmul, no rows": Case(MatMulParams(), ((2, 0, 7), (2, 7, 4))),
    "layer norm": Case(NormParams(LAYER), (X, (12,), (12,))),
    "layer norm without beta": Case(NormParams(Norm("layer", 1e-5, beta=False)), (X, (12,))),
    "layer norm, bare": Case(NormParams(Norm("layer", 1e-12, False, False)), (X,)),
    "rms norm": Case(NormParams(RMS), (X, (12,))),
    "rms norm, bare": Case(NormParams(Norm("rms", 1e-6, False, False)), (X,)),
    "norm of a sum": Case(NormParams(LAYER, SUM), (X, X, (12,), (12,))),
    "norm of a sum, kept": Case(NormParams(RMS, SUM, keep_sum=True), (X, X, (12,))),
    "norm with a late full operand": Case(
        NormParams(RMS, Chain(("row", "full"), (Step("mul", (0, 1)),), (2,))), ((12,), X, (12,))
    ),
    "elementwise, broadcast both ways": Case(
        ElementwiseParams(Chain(("full", "full"), (Step("add", (0, 1)),), (2,))),
        ((4, 1, 6), (1, 5, 6)),
    ),
    "elementwise, two results": Case(
        ElementwiseParams(Chain(("full",), (Step("tanh", (0,)), Step("neg", (1,))), (1, 2))), (X,)
    ),
    "elementwise through maps": Case(
        ElementwiseParams(SUM, (HEADS, IndexMap((ViewMove("slice", (2, -1, -HUGE, -1)),)))),
        (X, (2, 3, 5, 4)),
    ),
    "copy, reshaped": Case(ElementwiseParams(IDENTITY, (HEADS,), (0, -1, 2)), (X,)),
    "concat": Case(
        ConcatParams(
            2,
            (
                ConcatPart(ElementwiseParams(IDENTITY), (0,)),
                ConcatPart(
                    ConcatParams(
                        3,
                        (
                            ConcatPart(ElementwiseParams(SUM, (FRONT, LOW)), (1, 0)),
                            ConcatPart(ElementwiseParams(IDENTITY, (FRONT,)), (1,)),
                        ),
                    ),
                    (2, 1),
                ),
            ),
            (0, 0, 32),
        ),
        ((2, 3, 5, 4), (2, 3, 3, 4), (3, 4)),
    ),
    "quantized embedding": Case(
        QuantizedEmbeddingParams(70, 20, NBitsPanels(4, 32, "integer")),
        (*codes(NBitsPanels(4, 32, "integer"), 70, 20)[:2], ids(2, 5)),
    ),
    "quantized embedding, ids from the end": Case(
        QuantizedEmbeddingParams(64, 20, NBitsPanels(8, 16)),
        (*codes(NBitsPanels(8, 16), 64, 20)[:2], ids(3, low=-9, dtype=np.int32)),
    ),
    "embedding": Case(EmbeddingParams(1), ((9, 20), ids(2, 5))),
    "embedding, int32 ids": Case(EmbeddingParams(1), ((9, 20), ids(2, 5, dtype=np.int32))),
    "embedding, ids from the end": Case(EmbeddingParams(1), ((9, 20), ids(2, 5, low=-9))),
    "embedding, one id": Case(EmbeddingParams(1), ((9, 20), ids(1))),
    "take": Case(GatherElementsParams(4), ((2, 3, 5, 9), ids(1, 1, 5, 6, low=-9))),
    "take, int32 indices for each item": Case(
        GatherElementsParams(3), ((2, 5, 9), ids(2, 1, 6, dtype=np.int32))
    ),
    "slices": Case(GatherNDParams(), ((4, 3, 5), ids(2, 6, 2, low=-3, high=3))),
    "slices of items": Case(
        GatherNDParams(1), ((2, 3, 5), ids(2, 6, 1, low=-3, high=3)), since=12
    ),
    "numbers by tuples": Case(GatherNDParams(), ((4, 3), ids(6, 2, low=-3, high=3))),
    "updated slices": Case(ScatterNDParams(), ((9, 5), ids(1, 1, low=-9), (1, 5))),
    **{
        f"slices by {how}": Case(
            ScatterNDParams(how), ((4, 3, 5), ids(6, 2, low=-3, high=3), (6, 5)), since=18
        )
        for how in SCATTERS[1:]
    },
    "slices along an axis": Case(GatherParams(1), ((4, 3, 5), ids(2, 6, low=-3, high=3))),
    "one slice": Case(GatherParams(0), ((4, 3), ids(high=4))),
    "sums of lines": Case(CumulativeSumParams(1), ((4, 7, 3),)),
    "sums before each, from the end": Case(CumulativeSumParams(0, True, True), ((5, 3),)),
    "sums of integers": Case(CumulativeSumParams(1, exclusive=True), (ids(2, 6),)),
    **{
        f"elements by {how}": Case(
            ScatterElementsParams(1, how),
            ((4, 3, 5), ids(4, 6, 5, low=-3, high=3), (4, 6, 5)),
            since=18,
        )
        for how in SCATTERS
    },
    **{
        f"{sampling} samples with {beyond}, {aligned}": Case(
            GridSampleParams(sampling, beyond, aligned), ((2, 3, 5, 6), (2, 4, 7, 2)), since=16
        )
        for sampling in SAMPLINGS
        for beyond in BEYOND
        for aligned in (False, True)
    },
    **{
        f"integers by {step}": Case(
            IntegerStepParams(step), (ids(2, 6, low=-9), ids(6, low=1)), since=12
        )
        for step in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min")
    },
    "integers to int32": Case(
        IntegerStepParams("Cast", DType.I32), (ids(2, 6, low=-9),), since=12
    ),
    "take from a line": Case(GatherElementsParams(1), ((9,), ids(4))),
    "expanded": Case(
        ConcatParams(
            1,
            (
                ConcatPart(ElementwiseParams(IDENTITY), (0,), like=1),
                ConcatPart(ElementwiseParams(IDENTITY), (1,)),
            ),
        ),
        ((1, 2, 6), (3, 4, 6)),
    ),
    "centres of cells": Case(IotaParams(1, ("0.2", "0.3"), 0.5, (0.0, 1.0)), ((1, 3, 4, 5),)),
    "a grid over sizes of two, of integers too": Case(
        IotaParams(2, ("1.0", 3, Expr("mul", ("0.0", "0.1"))), -1.5, (2.0, -8.0, 0.25)),
        ((2, 3), ids(4)),
    ),
    "positions": Case(IotaParams(1, ("0.1",), 0.0, (1.0,), DType.I64), ((2, 5),)),
    "numbers of 32 bits": Case(
        IotaParams(1, ("0.1", "0.0"), -3.0, (2.0, 1.0), DType.I32), ((2, 5),)
    ),
    "positions after others": Case(
        IotaParams(2, ("1.0", "0.1"), -3.0, (2.0, 1.0), DType.I32, "0.0"), ((2, 5), ids(4))
    ),
    "one number": Case(IotaParams(1, ("0.0",), 7.0, (0.0,)), ((6,),)),
    "a grid without numbers": Case(IotaParams(1, ("0.0", 2), 1.0, (1.0, 1.0)), ((0, 3),)),
    "embedding sum, norm": Case(
        EmbeddingParams(3, LAYER),
        ((9, 20), ids(2, 5), (9, 20), ids(1, 5), (9, 20), ids(2, 1), (20,), (20,)),
    ),
    "embedding sum, norm, sum kept": Case(
        EmbeddingParams(2, RMS, keep_sum=True), ((9, 20), ids(2, 5), (9, 20), ids(5), (20,))
    ),
    **{
        f"{kind} over {axes}{'' if keepdims else ', dropped'}": Case(
            ReduceParams(kind, axes, keepdims), ((2, 5, 3, 4),)
        )
        for kind in REDUCTIONS
        for axes, keepdims in (((-1,), True), ((-3, -1), False), ((-4, -3, -2, -1), True))
    },
    "sum of a product, its root plus one": Case(
        ReduceParams("sum", (-2,), True, SQUARE_ROWS, ROOT_PLUS), ((2, 5, 6), (6,), (2, 1, 6))
    ),
    **{
        f"{'log-' if log else ''}softmax over {axis}": Case(SoftmaxParams(axis, log), ((2, 5, 6),))
        for log in (False, True)
        for axis in (-1, -2, -3)
    },
    **{
        f"index of the {kind} along {axis}{'' if keepdims else ', dropped'}": Case(
            ArgParams(kind, axis, keepdims), ((2, 5, 3, 4),)
        )
        for kind in ARGS
        for axis, keepdims in ((-1, True), (-3, False), (-4, True))
    },
    **{
        f"the {k} {'largest' if largest else 'smallest'}": Case(
            TopKParams(k, largest), ((2, 3, 7),)
        )
        for k, largest in ((1, True), (4, False), (7, True))
    },
    "index of the largest masked, scaled score": Case(
        ArgParams("max", -1, False, False, SCALE_MASK), ((2, 3, 5, 7), (2, 1, 1, 7))
    ),
    "softmax of a masked, scaled score": Case(
        SoftmaxParams(-1, False, SCALE_MASK), ((2, 3, 5, 7), (2, 1, 1, 7))
    ),
    **{
        f"{norm.kind} norm of {groups} groups": Case(
            ChannelNormParams(norm, groups, 4), ((2, 6, 3, 5), *[(6,)] * norm.operands)
        )
        for norm in (LAYER, RMS, Norm("layer", 1e-5, False, False))
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
        ((2, 5, 12), panels(12, 20), (20,), (2, 5, 20), (20,)),
    ),
    "attention, tiles": Case(
        replace(ATTEND, tiles=TileGrid(2, 3, 3, 3), zero_rows="guarded"),
        (*QKV, np.array([0, 2, 3, 4], np.int32)),
    ),
    "attention": Case(ATTEND, QKV),
    "attention, additive mask": Case(
        AttentionParams(2, 3, 4, 0.5, "add", widths=(6, 6, 8)), (*QKV, additive(2, 1, 1, 7))
    ),
    "attention, mask of -1e9 per query": Case(
        AttentionParams(2, 3, 4, 0.5, "add", widths=(6, 6, 8)), (*QKV, additive(5, 7, low=-1e9))
    ),
    "attention, a row masked throughout": Case(
        AttentionParams(2, 3, 4, 0.5, "add", widths=(6, 6, 8)),
        (*QKV, np.full((1, 1, 1, 7), -1e4, np.float32)),
        tolerance=1e-3,  # a score plus −1e4 has three decimals left
    ),
    "attention, boolean mask": Case(
        AttentionParams(2, 3, 4, 0.5, "bool", widths=(6, 6, 8)), (*QKV, keep(2, 1, 5, 7))
    ),
    "attention, boolean mask with a finite fill": Case(
        AttentionParams(2, 3, 4, 0.5, "bool", widths=(6, 6, 8), fill=-1e4),
        (*QKV, np.zeros((2, 2, 1, 7), bool)),
    ),
    "attention over one merged tensor": Case(
        AttentionParams(2, 3, 4, 0.25, "none", (0, 6, 12), (20, 20, 20)), ((2, 5, 20),) * 3
    ),
    "attention, shared keys by heads, turned": Case(
        AttentionParams(
            4, 3, 4, 0.5, kv_heads=2, layouts=("heads", "transposed", "heads", "heads")
        ),
        ((2, 4, 5, 3), (2, 2, 3, 7), (2, 2, 7, 4)),
    ),
    "attention, shared keys in columns of one tensor": Case(
        AttentionParams(4, 3, 4, 0.5, "none", (0, 12, 18), (26, 26, 26), kv_heads=2),
        ((2, 5, 26),) * 3,
    ),
    "attention, split heads": Case(
        AttentionParams(2, 3, 4, 0.5, layouts=("split",) * 4, softcap=1.5),
        ((2, 5, 2, 3), (2, 7, 2, 3), (2, 7, 2, 4)),
    ),
    "attention, keys by heads": Case(
        AttentionParams(2, 3, 4, 0.5, layouts=("heads", "heads", "heads", "rows")),
        ((2, 2, 5, 3), (2, 2, 7, 3), (2, 2, 7, 4)),
    ),
    **{
        f"attention, {order}, mask {mask}": Case(
            AttentionParams(2, 3, 4, 0.5, mask, widths=(6, 6, 8), fill=-1e9, causal=order),
            (*QKV, *operands),
        )
        for order in ("top", "bottom")
        for mask, operands in (
            ("none", ()),
            ("add", (additive(2, 1, 1, 7),)),
            ("bool", (keep(2, 1, 5, 7),)),
        )
    },
    **{
        f"attention from places{name}": Case(
            AttentionParams(4, 3, 4, 0.5, kv_heads=2, causal="placed", window=window, **PLACED),
            ((2, 3, 12), (2, 2, 7, 3), (2, 2, 7, 4), np.array([4, 1])),
        )
        for name, window in (("", None), (", window", (2, 0)))
    },
    **{
        f"attention, {before} keys before and {after} after": Case(
            AttentionParams(2, 3, 4, 0.5, widths=(6, 6, 8), window=(before, after)), QKV
        )
        for before, after in ((0, 3), (4, 1), (UNLIMITED, 2), (1, UNLIMITED))
    },
    "append": Case(
        KvCacheAppendParams(2, 3, 5, 13),
        ((2, 3, 13), (2, 2, 6, 3), np.array([6, 2]), np.zeros(9, bool)),
    ),
    **{
        f"append to {stored}": Case(
            KvCacheAppendParams(2, 3, 5, 13, stored=stored),
            (
                99 * normal(2, 3, 13),
                np.ones((2, 2, 6, 3), kind),
                np.array([6, 2]),
                np.zeros(9, bool),
            ),
        )
        for stored, kind in STORED.items()
    },
    **{
        f"attention over {stored}": Case(
            AttentionParams(2, 3, 4, 0.5, widths=(6, 0, 0), layouts=HALVES, stored=stored),
            ((2, 5, 6), *((4 * normal(2, 2, 7, d)).astype(kind) for d in (3, 4))),
        )
        for stored, kind in STORED.items()
    },
    **{
        f"append {layout}": Case(
            KvCacheAppendParams(2, 3, 0, 0, layout=layout),
            (shape, (2, 2, 6, 3), np.array([6, 2]), np.zeros(9, bool)),
        )
        for layout, shape in (("split", (2, 3, 2, 3)), ("heads", (2, 2, 3, 3)))
    },
    "append to nothing": Case(
        KvCacheAppendParams(2, 3, 0, 6, past=False),
        ((2, 3, 6), np.array([0, 0]), np.zeros(3, bool)),
    ),
    "append, cache as long as its past": Case(
        KvCacheAppendParams(2, 3, 0, 6),
        ((2, 1, 6), (2, 2, 6, 3), np.array([5, 0], np.int64), np.zeros(6, bool)),
    ),
    "lstm": Case(
        RecurrentParams("lstm", 6, 5, initial=True, results=("y", "h", "c"), layout=GATE_PANELS),
        ((7, 2, 6), (1, 2, 6, 16), (1, 2, 5, 16), (1, 32), (1, 2, 5), (1, 2, 5)),
    ),
    "lstm, reverse": Case(
        RecurrentParams("lstm", 6, 16, (True,), results=("y", "c"), layout=GATE_PANELS),
        ((7, 2, 6), (1, 4, 6, 16), (1, 4, 16, 16), (1, 64)),
    ),
    "gru, both directions": Case(
        RecurrentParams("gru", 6, 20, (False, True), True, ("y", "h"), layout=GATE_PANELS),
        ((7, 2, 6), (2, 4, 6, 16), (2, 4, 20, 16), (2, 64), (2, 32), (2, 2, 20)),
    ),
    "gru, reset before": Case(
        RecurrentParams("gru", 6, 20, (False, True), True, ("y", "h"), True, GATE_PANELS),
        ((7, 2, 6), (2, 5, 6, 16), (2, 5, 20, 16), (2, 80), (2, 2, 20)),
    ),
    "lstm, units of all gates in shared panels": Case(
        RecurrentParams("lstm", 6, 20, (False, True), layout=GATE_PANELS),
        ((7, 2, 6), (2, 5, 6, 16), (2, 5, 20, 16), (2, 80)),
    ),
    "lstm, no unit in shared panels": Case(
        RecurrentParams("lstm", 6, 30, layout=GATE_PANELS),
        ((7, 2, 6), (1, 8, 6, 16), (1, 8, 30, 16), (1, 128)),
    ),
    "gru, reset before, last gates apart": Case(
        RecurrentParams("gru", 6, 11, before=True, layout=GATE_PANELS),
        ((7, 2, 6), (1, 3, 6, 16), (1, 3, 11, 16), (1, 48)),
    ),
    "gru, last state only": Case(
        RecurrentParams("gru", 6, 16, results=("h",), layout=GATE_PANELS),
        ((1, 3, 6), (1, 3, 6, 16), (1, 3, 16, 16), (1, 48), (1, 16)),
    ),
    "lstm, plain gates": Case(
        RecurrentParams("lstm", 6, 5, (False, True), True),
        ((7, 2, 6), (2, 20, 6), (2, 20, 5), (2, 20), (2, 2, 5), (2, 2, 5)),
    ),
    "gru, plain gates": Case(
        RecurrentParams("gru", 6, 5), ((7, 2, 6), (1, 15, 6), (1, 15, 5), (1, 15), (1, 5))
    ),
    "gru, plain gates, reset before": Case(
        RecurrentParams("gru", 6, 5, before=True),
        ((7, 2, 6), (1, 15, 6), (1, 15, 5), (1, 15)),
    ),
    "attention, no queries": Case(ATTEND, ((2, 0, 6), (2, 7, 6), (2, 7, 8))),
    "attention, one head, one key": Case(
        AttentionParams(1, 3, 3, 1.0, widths=(3, 3, 3)), ((1, 4, 3), (1, 1, 3), (1, 1, 3))
    ),
}


OLDEST = ("quantized rows", "gemm, 8 bits, integer zeros")
"""Cases of integers at opset 7, whose Max does not broadcast."""
OLD = (
    "gemm, of bytes in panels", "gemm, of bytes, zero points", "quantized rows",
    "matmul of integers, u8 by i8",
    "conv, of bytes", "conv, of bytes in panels", "conv, of bytes, groups, zero points",
    "gemm, 4 bits, integer zeros", "gemm, 4 bits in the model's order",
)  # fmt: skip
"""Cases of integers, whose operators ONNX has since opset 10 or 11."""


def wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) if a.dtype == np.float32 else a


def pairs_of_name_and_opset() -> list[tuple[str, int]]:
    """Every case at every opset that has its types, and those of opset 9 that have a way there."""
    return [
        (name, opset)
        for name, case in CASES.items()
        for opset in (*OPSETS, *([9] if name in OLD else []), *([7] if name in OLDEST else []))
        if opset >= case.since
        if opset >= BF16_SINCE or not any(a.dtype.name == "bfloat16" for a in case.arrays())
    ]


@pytest.mark.parametrize(("name", "opset"), pairs_of_name_and_opset())
def test_the_body_computes_the_reference(name: str, opset: int) -> None:
    case = CASES[name]
    arrays = case.arrays()
    if isinstance(case.params, AttentionParams) and len(set(map(str, case.operands[:3]))) == 1:
        arrays[:3] = [arrays[0]] * 3
    expected = case.params.reference([wide(a) for a in arrays])
    actual = run_body(case.params.body(opset), arrays, opset)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < case.tolerance


@pytest.mark.parametrize("name", CASES)
def test_inferred_shapes_are_the_actual_ones(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays()
    assert case.params.operands == len(arrays)
    kinds = {"float32": DType.F32, "bfloat16": DType.BF16, "int64": DType.I64,
             "int32": DType.I32, "int16": DType.I16, "bool": DType.BOOL,
             "int8": DType.I8, "uint8": DType.U8, "float16": DType.F16}  # fmt: skip
    specs = case.params.infer([TensorSpec(kinds[a.dtype.name], a.shape) for a in arrays])
    results = case.params.reference([wide(a) for a in arrays])
    assert [s.shape for s in specs] == [r.shape for r in results]
    whole = [(d := np.asarray(r).dtype).kind in "iuV" or d.itemsize == 2 for r in results]
    integers = [kinds[np.asarray(r).dtype.name] if w else DType.F32
                for r, w in zip(results, whole, strict=True)]  # fmt: skip
    assert [s.dtype for s in specs] == integers


def test_every_op_has_cases() -> None:
    cases = (*CASES.values(), *convolutions.CASES.values())
    assert {type(c.params) for c in cases} == {kind for _, kind in OPS}


def test_symbols_pass_through_inference() -> None:
    spec = TensorSpec(DType.F32, ("b", "s", 6))
    known = TensorSpec(DType.I64, ("b", "s"))
    assert GemmParams(6, 20, PANELS).infer([spec])[0].shape == ("b", "s", 20)
    assert ATTEND.infer([spec, spec, spec])[0].shape == ("b", "s", 8)
    table = TensorSpec(DType.F32, (9, 20))
    assert EmbeddingParams(1).infer([table, known])[0].shape == ("b", "s", 20)


BESIDE = ConcatParams(
    1,
    (ConcatPart(ElementwiseParams(IDENTITY), (0,)), ConcatPart(ElementwiseParams(IDENTITY), (1,))),
)
OPEN = TensorSpec(DType.F32, None)


@pytest.mark.parametrize(
    ("params", "specs", "reason"),
    [
        (GemmParams(4, 4, PANELS), [OPEN, OPEN], "rank of x is unknown"),
        (MatMulParams(), [OPEN, OPEN], "rank of an operand is unknown"),
        (
            MatMulParams(),
            [TensorSpec(DType.F32, ("a", "k")), TensorSpec(DType.F32, ("j", 4))],
            "cannot be proven compatible",
        ),
        (ATTEND, [OPEN] * 3, "not a rank-3 tensor"),
        (ATTEND, [TensorSpec(DType.F32, (1, 2, 3, 4))] * 3, "not a rank-3 tensor"),
        (EmbeddingParams(1), [OPEN, OPEN], "cannot be proven to broadcast"),
        (ElementwiseParams(IDENTITY), [OPEN], "cannot be proven to broadcast"),
        (BESIDE, [OPEN, OPEN], "rank is not known"),
        (
            BESIDE,
            [TensorSpec(DType.F32, ("a", 4)), TensorSpec(DType.F32, ("b", 4))],
            "cannot be proven compatible",
        ),
    ],
)
def test_shapes_nobody_can_know_are_refused(
    params: OpParams, specs: list[TensorSpec], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        params.infer(specs)


TWO = Chain(("full",), (Step("exp", (0,)),), (0, 1))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: GemmParams(0, 4, PANELS), "invalid matrix: K=0"),
        (lambda: GemmParams(4, 4, BlockSparsePanels(3)), "no blocks of 3 steps"),
        (lambda: GemmParams(4, 4, BlockSparseBf16Panels(1)), "no blocks of 1 steps"),
        (lambda: GemmParams(3, 4, WEIGHT_ONLY_BF16), "an even K"),
        (lambda: GemmParams(4, 4, PANELS, keep_sum=True), "only if there is a norm"),
        (lambda: GemmParams(4, 4, PANELS, splits=(1, 2)), "all columns"),
        (lambda: GemmParams(4, 4, PANELS, splits=(0, 4)), "1 column or more"),
        (lambda: GemmParams(4, 4, PANELS, epilogue=TWO, norm=LAYER), "one result"),
        (lambda: GemmParams(4, 4, PANELS, epilogue=Chain(("row",), (), (0,))), "full accumulator"),
        (lambda: GatherElementsParams(0), "operands with an axis"),
        (lambda: ScatterNDParams("sub"), "combines by 'sub'"),
        (lambda: IotaParams(0, (3,), 0.0, (1.0,)), "one step per axis"),
        (lambda: IotaParams(1, ("0.0", 3), 0.0, (1.0,)), "one step per axis"),
        (lambda: MatMulParams((0, 2)), "not a permutation"),
        (lambda: MatMulParams(heads=(0, 2)), "needs a permutation"),
        (lambda: MatMulParams(epilogue=Chain(("row",), (), (0,))), "full accumulator"),
        (lambda: NormParams(LAYER, TWO), "one result"),
        (lambda: NormParams(LAYER, Chain(("row",), (), (0,))), "a full operand"),
        (lambda: Norm("batch", 1e-5), "kind 'batch'"),
        (lambda: Norm("layer", float("nan")), "ε = nan"),
        (lambda: EmbeddingParams(0), "1 to 4 tables"),
        (lambda: ElementwiseParams(SUM, (HEADS,)), "one map per operand"),
        (lambda: ConcatParams(0, ()), "1 to 16 parts"),
        (
            lambda: ConcatParams(0, (ConcatPart(ElementwiseParams(SUM), (0, 2)),)),
            "must be read by a part",
        ),
        (lambda: ConcatParams(0, (ConcatPart(ElementwiseParams(SUM), (0,)),)), "as many operands"),
        (
            lambda: ConcatParams(0, (ConcatPart(ElementwiseParams(IDENTITY, (), (-1,)), (0,)),)),
            "must not reshape",
        ),
        (lambda: ConcatParams(0, (ConcatPart(ElementwiseParams(TWO), (0,)),)), "one result each"),
        (lambda: EmbeddingParams(5), "1 to 4 tables"),
        (lambda: EmbeddingParams(1, keep_sum=True), "only if there is a norm"),
        (lambda: AttentionParams(0, 3, 4, 1.0), "0 heads"),
        (lambda: AttentionParams(2, 3, 4, 1.0, "causal", widths=(6, 6, 8)), "mask 'causal'"),
        (lambda: AttentionParams(2, 3, 4, 1.0, "none", (0, 1, 0), (6, 6, 8)), "lie outside"),
        (lambda: AttentionParams(4, 3, 4, 1.0, kv_heads=3), "do not divide 4"),
        (lambda: AttentionParams(2, 3, 4, 1.0, causal="left"), "causal 'left'"),
        (lambda: replace(PLACES, mask="add"), "with positions must have no mask"),
        (lambda: replace(PLACES, global_keys=1), "with positions must have no mask"),
        (lambda: replace(PLACES, window=(-1, 0)), "must not be negative"),
        (lambda: replace(PLACES, window=(3, 1)), "ends at the query's own position"),
        (lambda: KvCacheAppendParams(2, 3, 8, 13), "2 heads of 3 do not fit 13 columns"),
        (lambda: KvCacheAppendParams(0, 3, 0, 13), "0 heads of 3"),
        (lambda: KvCacheAppendParams(2, 3, 0, 6, stored="f64"), "caches in f64"),
        (lambda: KvCacheAppendParams(2, 3, 0, 6, layout="turned"), "layout 'turned'"),
        (lambda: AttentionParams(2, 3, 4, 1.0, stored="i4", layouts=HALVES), "stored in i4"),
        (lambda: replace(ATTEND, stored="f16", layouts=KEYS_TURNED), "transposed keys"),
        (lambda: AttentionParams(2, 3, 4, 1.0, softcap=-1.0), "cap -1.0"),
        (
            lambda: AttentionParams(2, 3, 4, 1.0, layouts=("transposed",) * 4),
            "unsupported layouts",
        ),
    ],
)
def test_impossible_parameters_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make()


# ---- panels ------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 70))
def test_unpacking_undoes_packing(k: int, n: int) -> None:
    weight = normal(k, n, seed=k * 100 + n)
    packed = pack_panels(weight)
    assert packed.shape == (-(-n // PANEL), k, PANEL)
    assert np.array_equal(unpack_panels(packed, n), weight)
    assert not unpack_panels(packed, packed.shape[0] * PANEL)[:, n:].any()


def test_a_panel_holds_sixteen_columns_side_by_side() -> None:
    weight = np.arange(3 * 20, dtype=np.float32).reshape(3, 20)
    packed = pack_panels(weight)
    assert packed[0, 1].tolist() == weight[1, :16].tolist()
    assert packed[1, 2, :5].tolist() == [*weight[2, 16:], 0.0]


@pytest.mark.parametrize("opset", [7, 9])
def test_integers_are_constants_of_any_opset(opset: int) -> None:
    """Before opset 9 ONNX's ``Constant`` holds floating-point numbers alone."""
    b = BodyBuilder(1, opset)
    body = b.done(b("Reshape", b.inputs[0], b.ints(2, -1)))
    held = [n.attrs["value"] for n in body.nodes if n.op == "Constant"]
    assert all(isinstance(v, np.ndarray) for v in held)
    assert opset >= 9 or {v.dtype.kind for v in held if isinstance(v, np.ndarray)} == {"f"}
    x = normal(6)
    (y,) = run_body(body, [x], opset)
    assert np.array_equal(y, x.reshape(2, 3))


@pytest.mark.parametrize("opset", [7, 9, 11])
def test_rounding_at_any_opset(opset: int) -> None:
    """Ties to even, of numbers of any size; before opset 11 ONNX has no ``Round``."""
    large = [2.0**22 + 0.5, 2.0**23 + 1, 2.0**24 + 2, 2.0**31, 2.0**52, 1e30, 3e38, np.inf]
    x = np.array([0.0, 0.5, 1.5, 2.5, 0.49999997, 126.5, *large, np.nan], np.float32)
    x = np.concatenate([x, -x])
    b = BodyBuilder(1, opset)
    chain = Chain(("full",), (Step("round", (0,)),), (1,))
    for body in (b.done(b.round(*b.inputs)), ElementwiseParams(chain).body(opset)):
        (y,) = run_body(body, [x], opset)
        assert np.array_equal(y, np.rint(x), equal_nan=True)
