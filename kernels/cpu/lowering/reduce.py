"""Lower reductions, ArgMax, ArgMin, TopK, softmax and norms over groups or channels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tracea_graph.ir import DType, TensorSpec, product
from tracea_graph.kernels.cpu.lowering.elementwise import chain_call, columns_of
from tracea_graph.kernels.cpu.lowering.region_writer import (
    RegionWriter,
    Shape,
    Slot,
    as_matrix,
    broadcast_view,
)
from tracea_graph.kernels.program import View
from tracea_graph.ops.arg_max import ArgParams
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.ops.reduction import FOLDS, LOG_OF_SUM, SHIFTED_EXP, ReduceParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.ops.top_k import TopKParams

__all__ = ["lower_arg", "lower_channel_norm", "lower_reduce", "lower_softmax", "lower_top_k"]


def lower_channel_norm(
    w: RegionWriter, p: ChannelNormParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    """Emit ``channel_norm`` on ``[N, C, positions]``, gamma and beta ``[C]``."""
    batch, channels, *space = results[0].shape
    dims: Shape = (batch, channels, product(tuple(space)))
    x, y = View.dense(operands[0].buffer, dims), View.dense(results[0].buffer, dims)
    affine = [View.dense(slot.buffer, (channels,)) for slot in operands[1:]]
    gamma = affine[0] if p.norm.gamma else None
    beta = affine[-1] if p.norm.beta else None
    w.call(
        "channel_norm", x=x, gamma=gamma, beta=beta, y=y, kind=p.norm.kind, groups=p.groups,
        epsilon=p.norm.epsilon,
    )  # fmt: skip


def lower_reduce(
    w: RegionWriter, p: ReduceParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    """Emit the reduction and its epilogue; log-sum-exp subtracts the maximum first."""
    data, epilogue_inputs = operands[: p.data_operands], operands[p.data_operands :]
    full = p.full([s.shape for s in operands])
    spec = TensorSpec(DType.F32, p.reduced(full))
    y = w.temp(spec) if p.epilogue else results[0]
    if p.kind != "log_sum_exp":
        _reduce_call(w, p, p.kind, p.prologue, data, full, y)
    else:
        if p.prologue:
            x = w.temp(TensorSpec(DType.F32, full))
            chain_call(w, p.prologue, data, (x,))
            data = (x,)
        most, total = w.temp(spec), w.temp(spec)
        _reduce_call(w, p, "max", None, data, full, most)
        kept = replace(most, spec=TensorSpec(DType.F32, replace(p, keepdims=True).reduced(full)))
        _reduce_call(w, p, "sum", SHIFTED_EXP, (*data, kept), full, total)
        chain_call(w, LOG_OF_SUM, (total, most), (y,))
    if p.epilogue:
        chain_call(w, p.epilogue, (y, *epilogue_inputs), results)


def _reduce_call(
    w: RegionWriter,
    p: ReduceParams,
    kind: str,
    chain: Chain | None,
    data: Sequence[Slot],
    full: Shape,
    y: Slot,
) -> None:
    gone = {len(full) + a for a in p.axes}
    view = _without(y, full, gone)
    views = [broadcast_view(slot, full) for slot in data]
    chain = chain and columns_of(chain, views, full)
    w.call(
        "reduce", x=views, y=view, kind=FOLDS[kind], mean=kind == "mean",
        axes=tuple(sorted(gone)), chain=chain,
    )  # fmt: skip


def _without(y: Slot, full: Shape, gone: Collection[int]) -> View:
    """View a dense result over the shape it was reduced from, with size 1 for reduced axes."""
    dims = tuple(1 if i in gone else d for i, d in enumerate(full))
    steps = dense_strides(dims)
    return View(y.buffer, dims, tuple(0 if i in gone else s for i, s in enumerate(steps)))


def lower_arg(
    w: RegionWriter, p: ArgParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    full = p.full([s.shape for s in operands])
    place = len(full) + p.axis
    views = [broadcast_view(slot, full) for slot in operands]
    chain = p.prologue and columns_of(p.prologue, views, full)
    w.call(
        "arg_reduce", x=views, y=_without(results[0], full, {place}), axis=place,
        smallest=p.kind == "min", last=p.select_last, chain=chain,
    )  # fmt: skip


def lower_top_k(
    w: RegionWriter, p: TopKParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    x, y, index = (as_matrix(slot) for slot in (*operands, *results))
    w.call("top_k", x=x, y=y, index=index, smallest=not p.largest)


def lower_softmax(
    w: RegionWriter, p: SoftmaxParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    full = results[0].shape
    views = [broadcast_view(slot, full) for slot in operands]
    chain = p.prologue and columns_of(p.prologue, views, full)
    w.call("softmax", x=views, y=results[0].view, axis=len(full) + p.axis, log=p.log, chain=chain)
