"""``FusedScatterElements``: elements of a tensor, updated where indices along one axis say.

    y = x;  y[…, index[…, t, …], …] = f(y[…], u[…, t, …]) for each t in order

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
from tracea_graph.ops.indexed_slices import SCATTERS
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

__all__ = ["ScatterElementsParams"]

Array = npt.NDArray[Any]

_COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
_SINCE = {"none": 11, "add": 16, "mul": 16, "min": 18, "max": 18}
"""First opset with each way of combining."""
_COMPARED = 1.0
"""Instructions per vector of elements for each update of their line."""


@dataclass(frozen=True)
class ScatterElementsParams:
    """Operands: x, indices (int32 or int64), updates.  The result has x's spec.

    Indices and updates have one shape: that of x, but for ``axis``, counted from the start.
    Indices may repeat: updates are combined in order, and with ``none`` the last one stays.
    """

    axis: int
    reduction: str = "none"

    def __post_init__(self) -> None:
        if self.reduction not in SCATTERS:
            raise ValueError(f"no ScatterElements combines by {self.reduction!r}")
        if self.axis < 0:
            raise ValueError("the axis must be counted from the start")

    @property
    def operands(self) -> int:
        return 3

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return x's spec; raises ValueError if the operands do not fit."""
        x, index, updates = (s.shape for s in specs)
        if x is None or index is None or self.axis >= len(x):
            raise ValueError("the elements have no known axis to scatter along")
        if index != updates or self._others(x) != self._others(index):
            raise ValueError("indices and updates cannot be proven to have the elements' lines")
        return (specs[0],)

    def _others(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        return (*shape[: self.axis], *shape[self.axis + 1 :])

    def reference(self, arrays: Sequence[Array]) -> list[Array]:
        """Raises IndexError for an index outside of its axis."""
        x, index, updates = arrays
        y = x.copy()
        at: list[Array] = list(np.indices(index.shape, sparse=True))
        at[self.axis] = index
        if self.reduction == "none":
            for t in range(index.shape[self.axis]):
                part = (slice(None),) * self.axis + (slice(t, t + 1),)
                y[tuple(np.broadcast_to(a, index.shape)[part] for a in at)] = updates[part]
        else:
            _COMBINE[self.reduction].at(y, tuple(at), updates)
        return [y]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=_COMPARED * prod(result) * (1 + operands[1][self.axis]))

    def body(self, opset: int) -> Body:
        """Write the ONNX operator; raises ValueError before the opset that has it."""
        if opset < (since := _SINCE[self.reduction]):
            raise ValueError(f"ScatterElements by {self.reduction} needs opset {since}")
        b = BodyBuilder(self.operands, opset)
        how = {} if self.reduction == "none" else {"reduction": self.reduction}
        return b.done(b("ScatterElements", *b.inputs, axis=self.axis, **how))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each element as reading its own value and all updates of its line."""
        x, index, updates = region.operands
        shape, places = graph.spec(x).shape, graph.spec(index).shape
        if shape is None or places is None:
            return None
        names, space = axes_named("d", shape)
        line = list(map(index_along, names))
        line[self.axis] = index_whole(places[self.axis])
        reads = [
            aligned_access(graph, x, names),
            *(access_map(graph, v, tuple(line)) for v in (index, updates)),
        ]
        writes = [aligned_access(graph, region.results[0], names)]
        return region_model(region, space, reads, writes, (LoopWork(names, 1),), names)
