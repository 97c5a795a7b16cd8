"""Lower dynamic quantization: the range of a tensor, its scale and zero point, its integers."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import DType, TensorSpec, product
from tracea_graph.kernels.cpu.lowering.writer import RegionWriter, Slot
from tracea_graph.kernels.program import View
from tracea_graph.ops.dynamic_quantize import (
    HIGH,
    LOW,
    PARAMETERS,
    QUANTIZE,
    DynamicQuantizeParams,
)

__all__ = ["lower_dynamic_quantize"]


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
