"""``FusedQuantizeRows``: rows in uint8 around 128, with a scale for each row from its values.

scale[r]  = max |x[r] * factors| / 127
y[r]      = round(x[r] * factors * (1 / scale[r])) + 128        ties to even

A row of zeros has scale 0; a row with a number that is not finite has scale NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import aligned_access, axes_named, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import Axis, IterationSpace
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["LARGEST", "NOTHING", "ZERO", "QuantizeRowsParams", "quantize_rows"]

ZERO, LARGEST = 128, 127
"""The zero point, and the largest distance of an integer from it."""
NOTHING = 1e-30
"""A row whose largest magnitude is below this counts as zero."""

Array = npt.NDArray[Any]


def quantize_rows(x: Array) -> tuple[Array, Array]:
    """Return rows ``[..., K]`` as integers, without :data:`ZERO` added, and scales ``[..., 1]``.

    Both have the type of ``x``; the arithmetic is float32.
    """
    rows = np.asarray(x, np.float32)
    high = np.abs(rows).max(-1, keepdims=True, initial=0.0)
    finite = np.isfinite(rows).all(-1, keepdims=True)
    fits = finite & (high > NOTHING)
    times = np.where(fits, np.float32(LARGEST) / np.where(fits, high, 1), np.float32(0))
    whole = np.rint(np.where(fits, rows, 0) * times)
    scale = np.where(fits, high / np.float32(LARGEST), np.where(finite, 0, np.nan))
    return whole.astype(x.dtype), scale.astype(x.dtype)


@dataclass(frozen=True)
class QuantizeRowsParams:
    """Operands: float32 x ``[..., K]`` and, if ``scaled``, factors ``[K]``.

    Results: y ``[..., K]`` in uint8 and the scales ``[..., 1]``.
    """

    scaled: bool = False
    flops: ClassVar[int] = 4

    @property
    def operands(self) -> int:
        return 1 + self.scaled

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the results' specs; raises ValueError if the rank of x is unknown or zero."""
        shape = specs[0].shape
        if not shape:
            raise ValueError("the rank of x is unknown or zero")
        return TensorSpec(DType.U8, shape), TensorSpec(DType.F32, (*shape[:-1], 1))

    def reference(self, arrays: Sequence[Array]) -> list[Array]:
        """Evaluate with NumPy in the precision of x."""
        x = arrays[0] * arrays[1] if self.scaled else arrays[0]
        whole, scale = quantize_rows(x)
        return [(whole + ZERO).astype(np.uint8), scale]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=prod(result) * (self.flops + self.scaled))

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        x = b("Mul", *b.inputs) if self.scaled else b.inputs[0]
        high = b.reduce("ReduceMax", b("Abs", x), (-1,))
        some = b.at_least(high, NOTHING)
        whole = b.round(b("Mul", x, b("Div", b.number(float(LARGEST)), some)))
        y = b("Cast", b("Add", whole, b.number(float(ZERO))), to=DType.U8.onnx)
        return b.done(y, b("Div", high, b.number(float(LARGEST))))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each result as needing the range of its row."""
        shape = graph.spec(region.operands[0]).shape or ()
        names, space = axes_named("d", shape)
        *rows, column = names
        axes = (*space.axes, Axis("k", shape[-1], True))
        reads = [aligned_access(graph, region.operands[0], (*rows, "k"))]
        reads += [aligned_access(graph, v, ("k",)) for v in region.operands[1:]]
        writes = [aligned_access(graph, v, names) for v in region.results]
        work = (LoopWork((*rows, "k"), 2), LoopWork(names, 3))
        return region_model(
            region, IterationSpace(axes), reads, writes, work, tuple(rows), (column,), ("k",)
        )
