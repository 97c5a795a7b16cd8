"""Lowering of recurrent cells: the input's products of all steps, then the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import DType, TensorSpec, product
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.ops.program import View
from tracea_graph.ops.recurrent import RecurrentParams
from tracea_graph.passes.lowering.gemm import DRIVERS
from tracea_graph.passes.lowering.writer import Slot, Writer, matrix

__all__ = ["lower_recurrent"]


def lower_recurrent(
    w: Writer, p: RecurrentParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    x, weight, back, bias, rest, initial = p.split(operands)
    steps, batch, _ = x.shape
    rows, columns = product((steps, batch)), p.columns
    ahead = w.temp(TensorSpec(DType.F32, (p.directions, steps, batch, columns)))
    for d in range(p.directions):
        w.call(
            "gemm", matrix(x), _at(weight, d), _at(bias, d),
            View(ahead.buffer, (rows, columns), (columns, 1), product((d, rows, columns))),
            ints=(0, 1), drivers=DRIVERS,
        )  # fmt: skip
    found = dict(zip(p.results, results, strict=True))
    whole, last = replace(p, results=("y", "h")).infer([x.spec])
    y = found.get("y") or w.temp(whole)
    cell = found.get("c") or (w.temp(last) if p.kind == "lstm" else None)
    states = [*(slot.view for slot in initial), None, None]
    optional = [slot.view if slot else None for slot in (rest, found.get("h"), cell)]
    reverse = sum(1 << d for d, turned in enumerate(p.reverse) if turned)
    w.call(
        "recurrent", ahead.view, back.view, optional[0], *states[:2], *optional[1:], y.view,
        ints=((p.kind == "gru") + p.before, reverse),
    )  # fmt: skip


def _at(slot: Slot, direction: int) -> View:
    """One direction's part of an operand."""
    dims = slot.shape[1:]
    return View(slot.buffer, dims, dense_strides(dims), product((direction, *dims)))
