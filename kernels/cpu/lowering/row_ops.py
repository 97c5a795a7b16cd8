"""Lower ops that work row by row: norms, softmax and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import DType, TensorSpec, product
from tracea_graph.kernels.cpu.lowering.region_writer import (
    RegionWriter,
    Slot,
    as_matrix,
    broadcast_view,
    over_rows,
)
from tracea_graph.kernels.cpu.nbits_panels import NBitsPanels
from tracea_graph.kernels.program import View
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gather_elements import GatherElementsParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.quantized_embedding import QuantizedEmbeddingParams
from tracea_graph.passes.pointwise.bound_expressions import IDENTITY

__all__ = [
    "lower_embedding",
    "lower_norm",
    "lower_quantized_embedding",
    "lower_take",
    "norm_call",
    "sum_destination",
    "with_bf16_stores",
]  # fmt: skip


def norm_call(w: RegionWriter, norm: Norm, x: View, affine: Sequence[Slot], y: Slot) -> None:
    """Emit a normalisation of rows; ``affine`` lists gamma and beta, each if present."""
    gamma = affine[0].view if norm.gamma else None
    beta = affine[norm.gamma].view if norm.beta else None
    w.call(
        "norm", x=x, gamma=gamma, beta=beta, y=as_matrix(y.in_f32) if y.in_f32 else None,
        y_bf16=as_matrix(y.in_bf16) if y.in_bf16 else None, kind=norm.kind, epsilon=norm.epsilon,
    )  # fmt: skip


def sum_destination(w: RegionWriter, results: Sequence[Slot]) -> View:
    """The destination of the sum that is normalised: a result of the op, or scratch."""
    last = results[-1]
    return as_matrix(last.in_f32 or w.temp(TensorSpec(DType.F32, last.spec.shape)))


def with_bf16_stores(
    chain: Chain | None, results: Sequence[Slot]
) -> tuple[Chain | None, list[Slot]]:
    """Let a chain store a result in bf16, or in fp32 and bf16, if its slot asks for that.

    Returns the chain and the slots that it stores to.
    """
    slots = [s for slot in results for s in (slot.in_f32, slot.in_bf16) if s]
    if any(slot.in_bf16 for slot in results):
        chain = chain or IDENTITY
        types = tuple(s.spec.dtype or DType.F32 for s in slots)
        chain = replace(chain, results=chain.results * len(slots), stores=types)
    return chain, slots


def lower_norm(
    w: RegionWriter, p: NormParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    data, affine = operands[: p.data_operands], operands[p.data_operands :]
    if p.prologue is None:
        total = as_matrix(data[0])
    else:
        total = sum_destination(w, results)
        rows, columns = total.dims
        views = [
            over_rows(slot, kind, rows, columns)
            for slot, kind in zip(data, p.prologue.operands, strict=True)
        ]
        w.call("elementwise", x=views, y=total, chain=p.prologue)
    norm_call(w, p.norm, total, affine, results[0])


def lower_embedding(
    w: RegionWriter, p: EmbeddingParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    shape = results[0].shape
    tables, numbers = operands[: 2 * p.tables : 2], operands[1 : 2 * p.tables : 2]
    ids = [broadcast_view(slot, shape[:-1]) for slot in numbers]
    kind = numbers[0].spec.dtype or DType.I64
    total = sum_destination(w, results)
    target = View.dense(total.buffer, shape)
    w.call(
        "embedding", tables=[t.view for t in tables], ids=ids, y=target, count=p.tables,
        index_type=kind.short,
    )  # fmt: skip
    if p.norm is not None:
        norm_call(w, p.norm, total, operands[2 * p.tables :], results[0])


def lower_quantized_embedding(
    w: RegionWriter,
    p: QuantizedEmbeddingParams,
    operands: Sequence[Slot],
    results: Sequence[Slot],
) -> None:
    codes, scales, ids = operands
    layout = p.layout
    assert isinstance(layout, NBitsPanels), "a phase packs tables"
    rows = product(ids.shape)
    w.call(
        "gather_nbits", w=View.dense(codes.buffer, layout.shape(p.k, p.n)),
        scales=View.dense(scales.buffer, layout.scales_shape(p.k, p.n)),
        ids=View(ids.buffer, (rows,), (1,)), y=as_matrix(results[0]), columns=p.n,
        bits=layout.bits, block=layout.block, zeros=layout.zeros,
    )  # fmt: skip


def lower_take(
    w: RegionWriter, p: GatherElementsParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    x, places = operands
    kind = places.spec.dtype or DType.I64
    index = broadcast_view(places, results[0].shape)
    w.call("gather_elements", x=x.view, index=index, y=results[0].view, index_type=kind.short)
