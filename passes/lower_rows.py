"""Lowering of what works row by row."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import DType
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.program import View
from tracea_graph.passes.writer import Slot, Writer, broadcast, dense, matrix, over_rows

__all__ = ["lower_embedding", "lower_norm", "norm_call", "result_and_sum"]


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
