"""``FusedDynamicQuantize``: a tensor in uint8, with scale and zero point from its range.

low, high = min(x, 0), max(x, 0)            over the whole tensor
scale     = (high - low) / 255              1 if the range is empty
zero      = round(-low / scale)             ties to even, saturated to 0 … 255
y         = round(x / scale) + zero         ties to even, saturated to 0 … 255
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.chain import FULL, SCALAR, Chain, Step
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import aligned_access, axes_named, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import Axis, IterationSpace
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["HIGH", "LOW", "PARAMETERS", "QUANTIZE", "DynamicQuantizeParams"]

HIGH = Chain((FULL,), (Step("saturate", (0, 0.0, math.inf)),), (1,))
LOW = Chain((FULL,), (Step("neg", (0,)), Step("saturate", (1, 0.0, math.inf))), (2,))
"""How far an element is above 0 (HIGH) and below 0 (LOW); NaN gives 0 and so does not count."""
PARAMETERS = Chain(
    (FULL, FULL),
    (
        Step("max", (0, 0.0)),  # the largest of no elements is -inf
        Step("max", (1, 0.0)),
        Step("add", (2, 3)),
        Step("equal", (4, 0.0)),
        Step("div", (4, 255.0)),
        Step("where", (5, 1.0, 6)),
        Step("div", (3, 7)),
        Step("round", (8,)),
        Step("saturate", (9, 0.0, 255.0)),
    ),
    (7, 10),
    (),
    (DType.F32, DType.U8),
)
"""Scale and zero point from how far the elements reach above 0 and below."""
QUANTIZE = Chain(
    (FULL, SCALAR, SCALAR),
    (
        Step("div", (0, 1)),
        Step("round", (3,)),
        Step("add", (4, 2)),
        Step("saturate", (5, 0.0, 255.0)),
    ),
    (6,),
    (DType.F32, DType.F32, DType.U8),
    (DType.U8,),
)
"""The integers, from x, the scale and the zero point."""


@dataclass(frozen=True)
class DynamicQuantizeParams:
    """One float32 operand; results y, scale and zero point, the latter two of rank 0."""

    operands: ClassVar[int] = 1
    flops: ClassVar[int] = 10

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the results' specs; raises ValueError if the rank of the operand is unknown."""
        if specs[0].shape is None:
            raise ValueError("the rank of the operand is unknown")
        return (
            TensorSpec(DType.U8, specs[0].shape), TensorSpec(DType.F32, ()),
            TensorSpec(DType.U8, ()),
        )  # fmt: skip

    def reference(self, arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Evaluate with NumPy in the operand's precision."""
        (x,) = arrays
        reach = [chain.reference([x])[0].max(initial=0.0) for chain in (HIGH, LOW)]
        scale, zero = PARAMETERS.reference(reach)
        (y,) = QUANTIZE.reference([x, scale, zero])
        return [y, scale, zero]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=prod(result) * self.flops)

    def body(self, opset: int) -> Body:
        """Write DynamicQuantizeLinear; before opset 11, what it consists of."""
        b = BodyBuilder(1, opset)
        if opset < 11:
            (x,) = b.inputs
            high = b("Max", b("ReduceMax", x, keepdims=0), b.number(0.0))
            low = b("Max", b("Neg", b("ReduceMin", x, keepdims=0)), b.number(0.0))
            span = b("Add", high, low)
            some = b("Cast", b("Cast", span, to=DType.BOOL.onnx), to=DType.F32.onnx)
            scale = b("Add", b("Div", span, b.number(255.0)), b("Sub", b.number(1.0), some))
            zero = b("Cast", b.round(b("Div", low, scale)), to=DType.U8.onnx)
            return b.done(_rounded(b, x, scale, zero), scale, zero)
        return b.done(*b.node("DynamicQuantizeLinear", b.inputs, ("y", "scale", "zero"), {}))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each result as depending on the whole tensor, whose range reductions find."""
        shape = graph.spec(region.operands[0]).shape or ()
        names, space = axes_named("d", shape)
        over = tuple(f"r{i}" for i in range(len(shape)))
        axes = (*space.axes, *(Axis(r, e, True) for r, e in zip(over, shape, strict=True)))
        reads = [aligned_access(graph, region.operands[0], over)]
        writes = [aligned_access(graph, region.results[0], names)]
        writes += [aligned_access(graph, v, ()) for v in region.results[1:]]
        work = (LoopWork(over, 2), LoopWork(names, 12))
        return region_model(
            region, IterationSpace(axes), reads, writes, work, names[:-1], (), over
        )


def _rounded(b: BodyBuilder, x: str, scale: str, zero: str) -> str:
    """Write :data:`QUANTIZE` without operators that came with opset 9; returns the integers.

    As an int32, NaN is the lowest integer.
    """
    places = b("Add", b.round(b("Div", x, scale)), b("Cast", zero, to=DType.F32.onnx))
    whole = b("Cast", b("Clip", places, min=0.0, max=255.0), to=DType.I32.onnx)
    numbers = b("Clip", b("Cast", whole, to=DType.F32.onnx), min=0.0, max=255.0)
    return b("Cast", numbers, to=DType.U8.onnx)
