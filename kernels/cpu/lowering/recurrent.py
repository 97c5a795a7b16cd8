"""Lower recurrent cells: the input's product for all time steps at once, then the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, TensorSpec, product
from tracea_graph.kernels.cpu.gate_layouts import GatePanels
from tracea_graph.kernels.cpu.lowering.region_writer import RegionWriter, Slot, as_matrix
from tracea_graph.kernels.program import View
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.ops.recurrent import RecurrentParams

__all__ = ["lower_recurrent"]


def lower_recurrent(
    w: RegionWriter, p: RecurrentParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    x, weight, back, bias, rest, initial = p.split(operands)
    steps, batch, _ = x.shape
    if not isinstance(p.layout, GatePanels):
        raise GraphError(f"no kernel reads gates stored as {p.layout.name!r}")
    rows, columns = product((steps, batch)), p.layout.columns(p.groups, p.hidden)
    ahead = w.temp(TensorSpec(DType.F32, (p.directions, steps, batch, columns)))
    for d in range(p.directions):
        w.call(
            "gemm", x=as_matrix(x), w=_at(weight, d), bias=_at(bias, d),
            y=View(ahead.buffer, (rows, columns), (columns, 1), product((d, rows, columns))),
            layout="panels",
        )  # fmt: skip
    found = dict(zip(p.results, results, strict=True))
    whole, last = replace(p, results=("y", "h")).infer([x.spec])
    y = found.get("y") or w.temp(whole)
    cell = found.get("c") or (w.temp(last) if p.kind == "lstm" else None)
    states = [*(slot.view for slot in initial), None, None]
    rest_view, h, c = (slot.view if slot else None for slot in (rest, found.get("h"), cell))
    w.call(
        "recurrent", p=ahead.view, r=back.view, rest=rest_view, h0=states[0], c0=states[1], h=h,
        c=c, y=y.view, cell="gru_reset_before" if p.before else p.kind,
        reverse=tuple(d for d, backward in enumerate(p.reverse) if backward),
    )  # fmt: skip


def _at(slot: Slot, direction: int) -> View:
    """View one direction of an operand."""
    dims = slot.shape[1:]
    return View(slot.buffer, dims, dense_strides(dims), product((direction, *dims)))
