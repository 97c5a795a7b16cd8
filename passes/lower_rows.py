"""Lowering of what works row by row or element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import DType, TensorSpec, product
from tracea_graph.ops.chain import COL, FULL, Chain, Step
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.program import View
from tracea_graph.ops.reduction import ReduceParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.passes.writer import (
    Shape,
    Slot,
    Writer,
    broadcast,
    dense,
    matrix,
    over_rows,
    strides_of,
)

__all__ = [
    "lower_channel_norm", "lower_elementwise", "lower_embedding", "lower_norm", "lower_reduce",
    "lower_softmax", "norm_call", "result_and_sum",
]  # fmt: skip


def norm_call(w: Writer, norm: Norm, x: View, affine: Sequence[Slot], y: View) -> None:
    """A normalisation of rows; ``affine`` is gamma, then beta, where present."""
    gamma = affine[0].view if norm.gamma else None
    beta = affine[norm.gamma].view if norm.beta else None
    kind = ("layer", "rms").index(norm.kind)
    w.call("norm", x, gamma, beta, y, ints=(kind,), floats=(norm.epsilon,))


def result_and_sum(results: Sequence[Slot]) -> tuple[View, View]:
    """Where a normalised op writes y, and where the sum before it: its own result, or with y."""
    return matrix(results[0]), matrix(results[-1])


def lower_norm(
    w: Writer, p: NormParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    y, total = result_and_sum(results)
    data, affine = operands[: p.data_operands], operands[p.data_operands :]
    if p.prologue is None:
        total = matrix(data[0])
    else:
        rows, columns = total.dims
        views = [
            over_rows(slot, kind, rows, columns)
            for slot, kind in zip(data, p.prologue.operands, strict=True)
        ]
        w.call("elementwise", *views, total, chain=p.prologue)
    norm_call(w, p.norm, total, affine, y)


def lower_channel_norm(
    w: Writer, p: ChannelNormParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    """Everything as ``[N, C, positions]``, gamma and beta as vectors."""
    batch, channels, *space = results[0].shape
    dims: Shape = (batch, channels, product(tuple(space)))
    x, y = dense(operands[0].buffer, dims), dense(results[0].buffer, dims)
    affine = [dense(slot.buffer, (channels,)) for slot in operands[1:]]
    gamma = affine[0] if p.norm.gamma else None
    beta = affine[-1] if p.norm.beta else None
    ints = (("layer", "rms").index(p.norm.kind), p.groups)
    w.call("channel_norm", x, gamma, beta, y, ints=ints, floats=(p.norm.epsilon,))


def lower_elementwise(
    w: Writer, p: ElementwiseParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    _chain_call(w, p.chain, operands, results)


def _chain_call(
    w: Writer, chain: Chain, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    full = results[0].shape
    chain = _columns_of(chain, [s.shape for s in operands], full)
    views = [broadcast(slot, full) for slot in operands]
    w.call("elementwise", *views, *(slot.view for slot in results), chain=chain)


def _columns_of(chain: Chain, shapes: Sequence[Shape], full: Shape) -> Chain:
    """The chain with two kinds only: an operand moves along the last axis, or it does not.

    The runtime merges axes as the actual sizes allow, so finer kinds would promise too much.
    """
    kinds = tuple(FULL if s and s[-1] == full[-1] else COL for s in shapes)
    return replace(chain, operands=kinds)


_REDUCTIONS = {"sum": 0, "mean": 0, "l1": 1, "sum_square": 2, "max": 3, "min": 4, "prod": 5}
_SHIFTED = Chain(
    (FULL, COL),
    (Step("is_inf", (1,)), Step("where", (2, 0.0, 1)), Step("sub", (0, 3)), Step("exp", (4,))),
    (5,),
)
"""exp(x − m), where m is finite; else exp(x)."""
_LOG_SUM = Chain(
    (FULL, FULL),
    (Step("is_inf", (1,)), Step("where", (2, 0.0, 1)), Step("log", (0,)), Step("add", (4, 3))),
    (5,),
)
"""log(sum) + m, with m as above."""


def lower_reduce(
    w: Writer, p: ReduceParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    """The reduction, then its epilogue; of log(sum(exp)) the maximum first."""
    data, extras = operands[: p.data_operands], operands[p.data_operands :]
    full = p.full([s.shape for s in operands])
    spec = TensorSpec(DType.F32, p.reduced(full))
    y = w.temp(spec) if p.epilogue else results[0]
    if p.kind != "log_sum_exp":
        _reduce_call(w, p, p.kind, p.prologue, data, full, y)
    else:
        if p.prologue:
            x = w.temp(TensorSpec(DType.F32, full))
            _chain_call(w, p.prologue, data, (x,))
            data = (x,)
        most, total = w.temp(spec), w.temp(spec)
        _reduce_call(w, p, "max", None, data, full, most)
        kept = replace(most, spec=TensorSpec(DType.F32, replace(p, keepdims=True).reduced(full)))
        _reduce_call(w, p, "sum", _SHIFTED, (*data, kept), full, total)
        _chain_call(w, _LOG_SUM, (total, most), (y,))
    if p.epilogue:
        _chain_call(w, p.epilogue, (y, *extras), results)


def _reduce_call(
    w: Writer,
    p: ReduceParams,
    kind: str,
    chain: Chain | None,
    data: Sequence[Slot],
    full: Shape,
    y: Slot,
) -> None:
    gone = {len(full) + a for a in p.axes}
    dims = tuple(1 if i in gone else d for i, d in enumerate(full))
    steps = strides_of(dims)
    view = View(y.buffer, dims, tuple(0 if i in gone else s for i, s in enumerate(steps)))
    ints = (_REDUCTIONS[kind], int(kind == "mean"), sum(1 << i for i in gone))
    chain = chain and _columns_of(chain, [s.shape for s in data], full)
    w.call("reduce", *(broadcast(s, full) for s in data), view, ints=ints, chain=chain)


def lower_softmax(
    w: Writer, p: SoftmaxParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    full = results[0].shape
    chain = p.prologue and _columns_of(p.prologue, [s.shape for s in operands], full)
    views = [broadcast(slot, full) for slot in operands]
    ints = (len(full) + p.axis, int(p.log))
    w.call("softmax", *views, results[0].view, ints=ints, chain=chain)


def lower_embedding(
    w: Writer, p: EmbeddingParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    shape = results[0].shape
    tables, numbers = operands[: 2 * p.tables : 2], operands[1 : 2 * p.tables : 2]
    ids = [broadcast(slot, shape[:-1]) for slot in numbers]
    kind = numbers[0].spec.dtype or DType.I64
    y, total = result_and_sum(results)
    target = dense(total.buffer, shape)
    w.call("embedding", *(t.view for t in tables), *ids, target, ints=(p.tables, kind.onnx))
    if p.norm is not None:
        norm_call(w, p.norm, total, operands[2 * p.tables :], y)
