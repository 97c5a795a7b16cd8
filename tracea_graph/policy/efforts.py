"""What a region computes: operations of products, vector instructions, and fixed costs.

One function for each custom op, in ``EFFORTS``; the operators of ONNX Runtime are in
``original``.  Shapes come as numbers, as do those that were fitted (``tables``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from tracea_graph.ops.append import AppendParams
from tracea_graph.ops.arg import ArgParams
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.grid import GridParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.moves import MoveParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.recurrent import RecurrentParams
from tracea_graph.ops.reduction import ReduceParams
from tracea_graph.ops.resize import ResizeParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.ops.take import TakeParams
from tracea_graph.ops.top_k import TopKParams
from tracea_graph.policy.tables import Tables
from tracea_graph.policy.weights import Dims, instructions

__all__ = [
    "BLOCK_ROWS",
    "EFFORTS",
    "OVERLAPPING",
    "PRODUCTS",
    "SHAPE_ONLY",
    "STEP_ROWS",
    "Effort",
    "original",
]

SHAPE_ONLY = frozenset(
    ("Shape", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Constant", "ConstantOfShape",
     "Flatten")
)  # fmt: skip
PRODUCTS = frozenset(("MatMul", "Gemm", "Conv", "LSTM", "GRU"))
_PAST = MappingProxyType(
    {
        "Attention": 4, "com.microsoft::GroupQueryAttention": 3,
        "com.microsoft::MultiHeadAttention": 6,
    }
)  # fmt: skip
"""Attention in one operator, and which operand is the cache of its keys."""
OVERLAPPING = (
    GemmParams,
    MatMulParams,
    AttentionParams,
    ElementwiseParams,
    ConcatParams,
    ConvParams,
    ReduceParams,
    ArgParams,
)
"""One pass each; norms and look-ups take several passes over a row."""

_MANY_ROWS = 64
"""Rows from which a product of ONNX Runtime runs at full speed."""
STEP_ROWS, BLOCK_ROWS = 4.0, 12.0
"""Rows that a stored step of k takes as long as at least, and a block of them beside its steps
(``python -m models.steps`` measures both)."""
_PAIRED = ("pairs", "int16")
"""Layouts of products that multiply two numbers at once."""
_TAKEN = 16.0
"""Instructions per vector of elements that are taken one by one."""
_CHOSEN = 250.0
"""The same for each of the k elements chosen of a row: it enters a heap several times."""
_QUERY_BLOCK = 40
"""Keys a block of queries sees beyond the window of one."""


@dataclass(frozen=True)
class Effort:
    """``product``: operations of matrix products over the share of the peak they run at;
    ``vector``: instructions; ``us``: what neither explains."""

    product: float = 0.0
    vector: float = 0.0
    us: float = 0.0

    def __add__(self, other: Effort) -> Effort:
        return Effort(self.product + other.product, self.vector + other.vector, self.us + other.us)


def _gemm(t: Tables, p: GemmParams, operands: Sequence[Dims], result: Dims) -> Effort:
    count = prod(result)
    beside = (
        1
        + (p.epilogue.flops if p.epilogue else 0)
        + (t.instructions["fused norm"] if p.norm else 0)
    )
    if p.layout.scattered:
        placing = t.instructions["fused placing"] * p.k * p.n
        return Effort(2.0 * count * p.k / t.shares["FusedGemm"], count * beside + placing)
    if block := p.layout.block_steps:
        rows, stored = prod(operands[0][:-1]), prod(operands[1])
        busy = max(rows, STEP_ROWS + BLOCK_ROWS / block)
        product = 2.0 * busy * stored / t.shares[f"FusedGemm block {block}"]
        if p.layout.rounds:  # two steps of k in one
            product *= t.shares["FusedGemm"] / t.shares["FusedGemm pairs"]
        return Effort(product, count * beside + t.instructions["fused packing"] * rows * p.k)
    paired = p.layout.name in _PAIRED
    share = t.shares[f"FusedGemm {p.layout.name}" if paired else "FusedGemm"]
    return Effort(2.0 * count * p.k / share, count * beside)


def _matmul(t: Tables, p: MatMulParams, operands: Sequence[Dims], result: Dims) -> Effort:
    a, heads = operands[0], p.heads[0]
    a = (*a[:-1], heads, a[-1] / heads) if heads else a
    k = a[p.a_perm[-1] if p.a_perm else -1]
    beside = 1 + (p.epilogue.flops if p.epilogue else 0)
    return Effort(2.0 * prod(result) * k / t.shares["FusedMatMul"], prod(result) * beside)


def _attention(t: Tables, p: AttentionParams, operands: Sequence[Dims], result: Dims) -> Effort:
    batch, rows = (operands[0][axis] for axis in p.axes(0))
    keys = operands[1][p.axes(1)[1]]
    if p.causal != "none":  # the last query sees them all, the first its own
        keys = max(1.0, keys - (min(rows, keys) - 1.0) / 2.0)
    heads = batch * p.heads
    if p.window:  # besides, blocks of queries see what any of theirs does
        keys = min(keys, sum(p.reach) + 1 + p.everywhere + _QUERY_BLOCK)
    scores = heads * rows * keys
    share = t.shares["FusedAttention bf16" if p.in_bf16 else "FusedAttention"]
    product = 2.0 * scores * (p.head + p.head_v) / share
    return Effort(
        product, scores * t.instructions["fused softmax"], heads * t.us["attention head"]
    )


def _append(t: Tables, p: AppendParams, operands: Sequence[Dims], result: Dims) -> Effort:
    return Effort(vector=prod(result))


def _elementwise(
    t: Tables, p: ElementwiseParams | ConcatParams, operands: Sequence[Dims], result: Dims
) -> Effort:
    return Effort(vector=prod(result) * max(p.flops, 1))


def _norm(t: Tables, p: NormParams, operands: Sequence[Dims], result: Dims) -> Effort:
    return Effort(
        vector=prod(result)
        * (t.instructions["fused norm"] + (p.prologue.flops if p.prologue else 0))
    )


def _embedding(t: Tables, p: EmbeddingParams, operands: Sequence[Dims], result: Dims) -> Effort:
    return Effort(
        vector=prod(result) * (p.tables + (t.instructions["fused norm"] if p.norm else 0))
    )


def _conv(t: Tables, p: ConvParams, operands: Sequence[Dims], result: Dims) -> Effort:
    """Winograd's counts the products of a direct convolution, over whole tiles."""
    count, m = prod(result), p.layout.side
    if m > 1:
        count *= prod(-(-side // m) * m / max(side, 1.0) for side in result[2:])
    beside = prod(result) * (1 + (p.epilogue.flops if p.epilogue else 0))
    return Effort(2.0 * count * p.taps / t.shares[f"FusedConv {p.layout.name}"], beside)


def _pool(t: Tables, p: PoolParams, operands: Sequence[Dims], result: Dims) -> Effort:
    taps = prod(p.window.kernel) if p.window else 1
    return Effort(vector=prod(operands[0]) + prod(result) * taps)


def _resize(t: Tables, p: ResizeParams, operands: Sequence[Dims], result: Dims) -> Effort:
    return Effort(vector=t.instructions["fused blend"] * prod(result))


def _move(t: Tables, p: MoveParams, operands: Sequence[Dims], result: Dims) -> Effort:
    return Effort(
        vector=t.instructions["fused spread"] * prod(result) if p.kind == "spread" else 0.0
    )


def _channel_norm(
    t: Tables, p: ChannelNormParams, operands: Sequence[Dims], result: Dims
) -> Effort:
    return Effort(vector=prod(result) * t.instructions["fused norm"])


def _reduce(t: Tables, p: ReduceParams, operands: Sequence[Dims], result: Dims) -> Effort:
    largest = max(map(prod, operands[: p.data_operands]))
    return Effort(vector=largest * (1 + (p.prologue.flops if p.prologue else 0)))


def _arg(t: Tables, p: ArgParams, operands: Sequence[Dims], result: Dims) -> Effort:
    return Effort(vector=max(map(prod, operands)) * p.flops)


def _top_k(t: Tables, p: TopKParams, operands: Sequence[Dims], result: Dims) -> Effort:
    return Effort(vector=prod(operands[0]) * p.flops + _CHOSEN * prod(result))


def _take(t: Tables, p: TakeParams, operands: Sequence[Dims], result: Dims) -> Effort:
    return Effort(vector=_TAKEN * prod(result))


def _grid(t: Tables, p: GridParams, operands: Sequence[Dims], result: Dims) -> Effort:
    return Effort(vector=prod(result))


def _softmax(t: Tables, p: SoftmaxParams, operands: Sequence[Dims], result: Dims) -> Effort:
    return Effort(
        vector=prod(result)
        * (t.instructions["fused softmax"] + (p.prologue.flops if p.prologue else 0))
    )


def _recurrent(t: Tables, p: RecurrentParams, operands: Sequence[Dims], result: Dims) -> Effort:
    return _cell(t, operands, t.shares["FusedGemm"], t.shares["state product"], 0.0)


def _cell(
    t: Tables, operands: Sequence[Dims], ahead: float, back: float, step_us: float
) -> Effort:
    """A recurrent cell; ``ahead`` and ``back`` are its products' shares of the peak."""
    x, w, r = operands[:3]
    steps, batch = x[0], prod(x[:2])
    units = prod(r[:2]) * (r[3] if len(r) > 3 else 1)  # of all gates; stored in four axes or three
    product = 2.0 * batch * (prod(w) / ahead + prod(r) / back)
    return Effort(product, batch * units * t.instructions["fused gate"], steps * w[0] * step_us)


EFFORTS: Mapping[type, Callable[[Tables, Any, Sequence[Dims], Dims], Effort]] = MappingProxyType(
    {
        AttentionParams: _attention,
        AppendParams: _append,
        ConvParams: _conv,
        PoolParams: _pool,
        MoveParams: _move,
        ResizeParams: _resize,
        ChannelNormParams: _channel_norm,
        ConcatParams: _elementwise,
        ElementwiseParams: _elementwise,
        EmbeddingParams: _embedding,
        GemmParams: _gemm,
        MatMulParams: _matmul,
        NormParams: _norm,
        RecurrentParams: _recurrent,
        ReduceParams: _reduce,
        ArgParams: _arg,
        TopKParams: _top_k,
        SoftmaxParams: _softmax,
        TakeParams: _take,
        GridParams: _grid,
    }
)


def _one_attention(
    t: Tables, op: str, attrs: Mapping[str, Any], operands: Sequence[Dims]
) -> Effort:
    """Attention-23, MultiHeadAttention or GroupQueryAttention: every query over every key.

    Packed queries, keys and values count as if all of them were queries.
    """
    q, k = operands[0], operands[1] if len(operands) > 1 else ()
    past = operands[_PAST[op]] if len(operands) > _PAST[op] else ()
    heads = q[1] if len(q) == 4 else float(attrs.get("num_heads", attrs.get("q_num_heads", 1)))
    rows = q[2] if len(q) == 4 else q[1]
    keys = (k[2] if len(k) == 4 else k[1] if k else rows) + (past[2] if len(past) == 4 else 0.0)
    scores = q[0] * heads * rows * keys
    product = 4.0 * prod(q) * keys / t.shares["flat product"]
    return Effort(product, scores * t.instructions["Softmax"])


def original(
    t: Tables, op: str, attrs: Mapping[str, Any], operands: Sequence[Dims], result: Dims
) -> Effort:
    """An operator of ONNX Runtime."""
    if op in SHAPE_ONLY:
        return Effort()
    if op == "Conv":
        taps = prod(operands[1][1:])
        depthwise = operands[1][1] == 1 and attrs.get("group", 1) > 1
        share = t.shares["depthwise product"] if depthwise else t.shares["product"]
        return Effort(2.0 * prod(result) * taps / share)
    if op == "ConvTranspose":
        return Effort(2.0 * prod(operands[0]) * prod(operands[1][1:]) / t.shares["flat product"])
    if op in ("MatMul", "Gemm"):
        depth, columns = (dims[-1] if dims else 1.0 for dims in (operands[0], result))
        rows = prod(result) / max(1.0, columns)
        share = t.shares["product"] if rows >= _MANY_ROWS else t.shares["flat product"]
        return Effort(2.0 * prod(result) * depth / share)
    if op in ("LSTM", "GRU"):
        return _cell(
            t, operands, t.shares["product"], t.shares["state product"], t.us["recurrent step"]
        )
    if op in _PAST and len(operands[0]) in (3, 4):
        return _one_attention(t, op, attrs, operands)
    return Effort(vector=instructions(t, op.rpartition("::")[2], attrs, operands, result))
