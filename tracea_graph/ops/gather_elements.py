"""``FusedGatherElements``: GatherElements along the last axis; indices may be broadcast.

    y[…, j] = x[…, i[…, j]]

Broadcast indices occur in relative attention: its positions are shared by all items and heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import TensorSpec
from tracea_graph.ops.elementwise import broadcast
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

__all__ = ["GatherElementsParams"]

Floats = npt.NDArray[np.floating[Any]]

_TAKEN = 16.0
"""Instructions per vector of gathered elements."""


@dataclass(frozen=True)
class GatherElementsParams:
    """Operands: x ``[…, P]``, indices (int32 or int64) ``[…, T]`` of equal ``rank``.  Results have
    x's type.

    Each leading dimension of the indices equals that of x, or is 1 and broadcasts.  An index in
    ``[−P, 0)`` counts from the end.  The ONNX body accepts the element types that ONNX Runtime
    accepts.
    """

    rank: int

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError("GatherElements needs operands with an axis")

    @property
    def operands(self) -> int:
        return 2

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return x's shape, T as last dimension; raises ValueError if indices do not broadcast."""
        (x, index), own = (spec.shape for spec in specs), specs[0].dtype
        if x is None or index is None or not len(x) == len(index) == self.rank:
            raise ValueError(f"elements and indices are not both of rank {self.rank}")
        if broadcast([x[:-1], index[:-1]]) != x[:-1]:
            raise ValueError("the indices cannot be proven to broadcast to the elements")
        return (TensorSpec(own, (*x[:-1], index[-1])),)

    def reference(self, arrays: Sequence[Any]) -> list[Floats]:
        x, index = arrays
        whole = np.broadcast_to(index, (*x.shape[:-1], index.shape[-1]))
        return [np.take_along_axis(x, np.where(whole < 0, whole + x.shape[-1], whole), -1)]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=_TAKEN * prod(result))

    def body(self, opset: int) -> Body:
        """Write the ONNX operator; raises ValueError before opset 11."""
        if opset < 11:
            raise ValueError("GatherElements needs opset 11")
        b = BodyBuilder(self.operands, opset)
        x, index = b.inputs
        if self.rank > 1:
            lead = b("Gather", b("Shape", x), b.ints(*range(self.rank - 1)), axis=0)
            index = b("Expand", index, b("Concat", lead, b.ints(1), axis=0))
        return b.done(b("GatherElements", x, index, axis=self.rank - 1))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each result as reading a whole row of x: an index selects the element."""
        x, index = region.operands
        shape, places = graph.spec(x).shape, graph.spec(index).shape
        if shape is None or places is None:
            return None
        names, space = axes_named("d", (*shape[:-1], places[-1]))
        row = (*map(index_along, names[:-1]), index_whole(shape[-1]))
        reads = [access_map(graph, x, row), aligned_access(graph, index, names)]
        writes = [aligned_access(graph, region.results[0], names)]
        return region_model(region, space, reads, writes, (LoopWork(names, 1),), names[:-1])
