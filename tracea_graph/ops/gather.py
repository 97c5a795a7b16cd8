"""``FusedGather``: slices of a tensor along one axis, which a tensor of indices names.

    y[…, i…, …] = x[…, index[i…], …]

An index in ``[−d, 0)`` counts from the end of the axis.
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

__all__ = ["GatherParams"]

Array = npt.NDArray[Any]

_PICKED = 16.0
"""Instructions per vector of gathered elements."""


@dataclass(frozen=True)
class GatherParams:
    """Operands: x, and indices (int32 or int64) of any shape.  The result has x's type.

    Its shape is x's, with the shape of the indices in place of ``axis``, counted from the start.
    """

    axis: int

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ValueError("the axis must be counted from the start")

    @property
    def operands(self) -> int:
        return 2

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the spec of the slices; raises ValueError if x has no such axis."""
        x, index = specs[0].shape, specs[1].shape
        if x is None or index is None or self.axis >= len(x):
            raise ValueError("the elements have no known axis to gather along")
        return (TensorSpec(specs[0].dtype, (*x[: self.axis], *index, *x[self.axis + 1 :])),)

    def reference(self, arrays: Sequence[Array]) -> list[Array]:
        """Raises IndexError for an index outside of its axis."""
        x, index = arrays
        return [np.take(x, index, self.axis)]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=_PICKED * prod(result))

    def body(self, opset: int) -> Body:
        """Write the ONNX operator; raises ValueError for negative indices before opset 11."""
        if opset < 11:
            raise ValueError("Gather of negative indices needs opset 11")
        b = BodyBuilder(self.operands, opset)
        return b.done(b("Gather", *b.inputs, axis=self.axis))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each slice as reading x along the indexed axis as a whole."""
        x, index = region.operands
        shape, places = graph.spec(x).shape, graph.spec(index).shape
        if shape is None or places is None:
            return None
        (made,) = self.infer([graph.spec(x), graph.spec(index)])
        names, space = axes_named("d", made.shape or ())
        at, behind = self.axis, self.axis + len(places)
        row = (
            *map(index_along, names[:at]), index_whole(shape[at]),
            *map(index_along, names[behind:]),
        )  # fmt: skip
        reads = [access_map(graph, x, row), aligned_access(graph, index, names[at:behind])]
        writes = [aligned_access(graph, region.results[0], names)]
        return region_model(region, space, reads, writes, (LoopWork(names, 1),), names)
