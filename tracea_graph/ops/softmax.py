"""``FusedSoftmax``: softmax or log-softmax over one axis, with an elementwise prologue.

s = prologue(a, b, …)                         (the operand itself without a prologue)
y = exp(s − max(s)) / sum(exp(s − max(s)))    or its logarithm
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.along_axis import AlongAxis
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import (
    SOFTMAX_COST,
    aligned_access,
    axes_named,
    region_model,
)
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import Axis, IterationSpace
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["SoftmaxParams"]

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class SoftmaxParams(AlongAxis):
    """Parameters of a softmax along one axis, with an optional elementwise prologue.

    Operands: those of the prologue, or x.  ``axis`` counts from the end.
    """

    axis: int
    log: bool = False
    prologue: Chain | None = None

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return (TensorSpec(DType.F32, self.full([s.shape for s in specs])),)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        x = self.prologue.reference(arrays)[0] if self.prologue else arrays[0]
        if not x.size:
            return [x]
        with np.errstate(invalid="ignore"):
            d = x - x.max(self.axis, keepdims=True)
        total = np.exp(d).sum(self.axis, keepdims=True)
        return [d - np.log(total) if self.log else np.exp(d) / total]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        before = self.prologue.flops if self.prologue else 0
        return OpCost(vector=prod(result) * (fit.instructions["fused softmax"] + before))

    def body(self, opset: int) -> Body:
        """Write one operator; before opset 13, several for any axis but the last."""
        b = BodyBuilder(self.operands, opset)
        x = self.prologue.to_onnx(b, b.inputs)[0] if self.prologue else b.inputs[0]
        if opset >= 13 or self.axis == -1:
            return b.done(b("LogSoftmax" if self.log else "Softmax", x, axis=self.axis))
        d = b("Sub", x, b.reduce("ReduceMax", x, (self.axis,)))
        e = b("Exp", d)
        total = b.reduce("ReduceSum", e, (self.axis,))
        return b.done(b("Sub", d, b("Log", total)) if self.log else b("Div", e, total))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each result as reading its whole axis."""
        full = self.full([graph.spec(v).shape for v in region.operands])
        names, space = axes_named("d", full)
        place = len(full) + self.axis
        data = tuple("t" if i == place else n for i, n in enumerate(names))
        axes = (*space.axes, Axis("t", full[place], True))
        reads = [aligned_access(graph, v, data) for v in region.operands]
        writes = [aligned_access(graph, region.results[0], names)]
        work = (
            LoopWork(names, SOFTMAX_COST),
            LoopWork(data, (self.prologue.flops if self.prologue else 0)),
        )
        rows = tuple(n for i, n in enumerate(names) if i != place)
        return region_model(region, IterationSpace(axes), reads, writes, work, rows)
