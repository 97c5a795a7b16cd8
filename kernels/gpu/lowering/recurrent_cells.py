"""Lower recurrent cells: matmuls over all steps at once, then one call for the steps."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.lowering.elementwise_ops import Targets
from tracea_graph.kernels.gpu.lowering.product_calls import product_call
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program_writer import LackingError, Value
from tracea_graph.ops.index_map import ViewMove
from tracea_graph.ops.recurrent import PLAIN_GATES, RecurrentParams

__all__ = ["lower_recurrent"]

_LARGEST = 2048
"""Maximum number of units: their state must fit the shared memory of a block."""


def lower_recurrent(
    w: GpuProgramWriter, p: RecurrentParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    if p.layout != PLAIN_GATES or p.hidden > _LARGEST:
        raise LackingError(f"GPU kernels support recurrent cells of up to {_LARGEST} units")
    x, weight, back, bias, rest, initial = p.split(operands)
    steps, batch, _ = x.shape
    ahead = w.temp(DType.F32, (p.directions, steps, batch, p.gates * p.hidden))
    for d in range(p.directions):
        own = ViewMove("select", (0, d))
        product_call(
            w, w.matrix(x), weight.moved(own), "nk", None, (), [w.matrix(ahead.moved(own))],
            bias.moved(own),
        )  # fmt: skip
    states = [w.typed_as(v, DType.F32) for v in initial]
    specs = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    made = {name: w.temp(DType.F32, spec.shape or ())
            for name, spec in zip(p.results, specs, strict=True)}  # fmt: skip
    kind = "gru_before" if p.before else p.kind
    w.call(
        "recurrent", w.narrow.short, p=ahead.view, r=w.typed_as(back, w.narrow).view,
        rest=w.typed_as(rest, DType.F32).view if rest else None, kind=kind, hidden=p.hidden,
        reverse=sum(transposed << d for d, transposed in enumerate(p.reverse)),
        **{name: v.view for name, v in zip(("h0", "c0"), states, strict=False)},
        **{name: v.view for name, v in made.items()},
    )  # fmt: skip
    return list(made.values())
