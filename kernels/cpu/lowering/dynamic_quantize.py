"""Lower dynamic quantization of a tensor, by its range, or of rows, each by its own range."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import DType, TensorSpec, product
from tracea_graph.kernels.cpu.lowering.region_writer import RegionWriter, Slot, as_matrix
from tracea_graph.kernels.program import View
from tracea_graph.ops.dynamic_quantize import (
    HIGH,
    LOW,
    PARAMETERS,
    QUANTIZE,
    DynamicQuantizeParams,
)
from tracea_graph.ops.quantize_rows import QuantizeRowsParams

__all__ = ["lower_dynamic_quantize", "lower_quantize_rows"]


def lower_dynamic_quantize(
    w: RegionWriter, _: DynamicQuantizeParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    count = product(operands[0].shape)
    x, y = (View(slot.buffer, (count,), (1,)) for slot in (operands[0], results[0]))
    reach = [w.temp(TensorSpec(DType.F32, (1,))).view for _ in (HIGH, LOW)]
    for chain, found in zip((HIGH, LOW), reach, strict=True):
        total = View(found.buffer, (1,), (0,))
        w.call("reduce", x=[x], y=total, kind="max", mean=False, axes=(0,), chain=chain)
    parameters = [View(slot.buffer, (1,), (1,)) for slot in results[1:]]
    w.call("elementwise", x=reach, y=parameters, chain=PARAMETERS)
    scalars = [v.stretched((count,)) for v in parameters]
    w.call("elementwise", x=[x, *scalars], y=[y], chain=QUANTIZE)


def lower_quantize_rows(
    w: RegionWriter, p: QuantizeRowsParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    x, (y, scales) = as_matrix(operands[0]), results
    factors = View(operands[1].buffer, x.dims[1:], (1,)) if p.scaled else None
    of_rows = View(scales.buffer, x.dims[:1], (1,))
    w.call("round", "int8", x=x, factors=factors, y=as_matrix(y), scales=of_rows)
