"""``FusedGatherElements``: GatherElements along the last axis; indices may be broadcast.

    y[…, j] = x[…, i[…, j]]

ONNX's GatherElements over the last axis, whose indices are broadcast to x: relative positions are
the same for every item and head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.body import Body, BodyBuilder
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.ops.op_cost import Dims, Fitted, OpCost
from tracea_graph.ops.space_parts import access, aligned, axes_named, model_of
from tracea_graph.ttg.graph import Region, TileGraph
from tracea_graph.ttg.model import RegionModel, Work
from tracea_graph.ttg.space import along, whole

__all__ = ["GatherElementsParams"]

Floats = npt.NDArray[np.floating[Any]]

_TAKEN = 16.0
"""Instructions per vector of elements that are taken one by one."""


@dataclass(frozen=True)
class GatherElementsParams:
    """Operands: x ``[…, P]``, indices (int32 or int64) ``[…, T]`` of the same ``rank``, each of
    whose leading dimensions is x's or 1.  An index in ``[−P, 0)`` counts from the end.  The body
    takes what ONNX Runtime takes.
    """

    rank: int

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError("there is no axis to take elements along")

    @property
    def operands(self) -> int:
        return 2

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """x's leading dimensions and T.  Raises ValueError unless the indices broadcast to it."""
        x, index = (spec.shape for spec in specs)
        if x is None or index is None or not len(x) == len(index) == self.rank:
            raise ValueError(f"elements and indices are not both of rank {self.rank}")
        if broadcast([x[:-1], index[:-1]]) != x[:-1]:
            raise ValueError("the indices do not provably broadcast to the elements")
        return (TensorSpec(DType.F32, (*x[:-1], index[-1])),)

    def reference(self, arrays: Sequence[Any]) -> list[Floats]:
        x, index = arrays
        whole = np.broadcast_to(index, (*x.shape[:-1], index.shape[-1]))
        return [np.take_along_axis(x, np.where(whole < 0, whole + x.shape[-1], whole), -1)]

    def cost(self, fit: Fitted, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=_TAKEN * prod(result))

    def body(self, opset: int) -> Body:
        """Raises ValueError before opset 11, which GatherElements came with."""
        if opset < 11:
            raise ValueError("elements are gathered since opset 11")
        b = BodyBuilder(self.operands, opset)
        x, index = b.inputs
        if self.rank > 1:
            lead = b("Gather", b("Shape", x), b.ints(*range(self.rank - 1)), axis=0)
            index = b("Expand", index, b("Concat", lead, b.ints(1), axis=0))
        return b.done(b("GatherElements", x, index, axis=self.rank - 1))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Each result is an element of its row, which an index decides: all of it is read."""
        x, index = region.operands
        shape, places = graph.spec(x).shape, graph.spec(index).shape
        if shape is None or places is None:
            return None
        names, space = axes_named("d", (*shape[:-1], places[-1]))
        row = (*map(along, names[:-1]), whole(shape[-1]))
        reads = [access(graph, x, row), aligned(graph, index, names)]
        writes = [aligned(graph, region.results[0], names)]
        return model_of(region, space, reads, writes, (Work(names, 1),), names[:-1])
