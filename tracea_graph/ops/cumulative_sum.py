"""``FusedCumSum``: sums of all elements up to each one, along one axis.

y[…, j, …] = Σ x[…, i, …] over i ≤ j        exclusive: i < j        reverse: i ≥ j
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import TensorSpec
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import (
    access_map,
    aligned_access,
    axes_named,
    region_model,
)
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import index_along, index_whole
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["CumulativeSumParams"]

Array = npt.NDArray[Any]

_SINCE = 11
"""Opset that introduced CumSum."""
_ADDED = 8.0
"""Instructions per vector of elements, each of which waits for the one before it."""


@dataclass(frozen=True)
class CumulativeSumParams:
    """One operand (float32, int32 or int64); one result of its spec.

    ``axis`` counts from the start.  Sums of integers wrap around.
    """

    axis: int
    exclusive: bool = False
    reverse: bool = False

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ValueError("the axis must be counted from the start")

    @property
    def operands(self) -> int:
        return 1

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return x's spec; raises ValueError if x has no such axis."""
        shape = specs[0].shape
        if shape is None or self.axis >= len(shape):
            raise ValueError("the operand has no known axis to sum along")
        return (specs[0],)

    def reference(self, arrays: Sequence[Array]) -> list[Array]:
        (x,) = arrays
        x = np.flip(x, self.axis) if self.reverse else x
        y = np.cumsum(x, self.axis, dtype=x.dtype)
        if self.exclusive:
            first = np.zeros_like(np.take(y, [0] * (y.shape[self.axis] > 0), self.axis))
            y = np.concatenate([first, y], self.axis).take(range(y.shape[self.axis]), self.axis)
        return [np.flip(y, self.axis) if self.reverse else y]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=_ADDED * prod(result))

    def body(self, opset: int) -> Body:
        """Write the ONNX operator; raises ValueError before opset 11."""
        if opset < _SINCE:
            raise ValueError(f"CumSum needs opset {_SINCE}")
        b = BodyBuilder(self.operands, opset)
        axis = b("Constant", value=np.asarray(self.axis, np.int64))
        how = {"exclusive": int(self.exclusive), "reverse": int(self.reverse)}
        return b.done(b("CumSum", b.inputs[0], axis, **how))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each sum as reading its whole line."""
        shape = graph.spec(region.operands[0]).shape
        if shape is None:
            return None
        names, space = axes_named("d", shape)
        line = list(map(index_along, names))
        line[self.axis] = index_whole(shape[self.axis])
        reads = [access_map(graph, region.operands[0], tuple(line))]
        writes = [aligned_access(graph, region.results[0], names)]
        free = tuple(n for i, n in enumerate(names) if i != self.axis)
        return region_model(region, space, reads, writes, (LoopWork(names, 1),), free)
