"""``FusedTopK``: the k largest or smallest elements along the last axis, and their indices.

    y, i = the first k of x in descending (ascending) order, and their indices

Ties are broken by the lower index, and NaN sorts above all numbers, as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import aligned_access, axes_named, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import Axis, IterationSpace
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["TopKParams"]

Array = npt.NDArray[Any]

_CHOSEN = 250.0
"""Vector instructions per selected element of a row, which enters the heap several times."""


@dataclass(frozen=True)
class TopKParams:
    """One operand x ``[…,N]``; results of x's type ``[…,k]`` and int64 ``[…,k]``.

    Raises ValueError for a k below 1.
    """

    k: int
    largest: bool = True

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError("k must be at least 1")

    @property
    def operands(self) -> int:
        return 1

    @property
    def flops(self) -> int:
        """Vector instructions per element of x: nearly all elements fail the first comparison."""
        return 1

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return both specs; raises ValueError unless x has k elements along its last axis."""
        (x,) = specs
        if not x.shape:
            raise ValueError("the operand has no last axis")
        if isinstance(x.shape[-1], int) and x.shape[-1] < self.k:
            raise ValueError("the last axis has fewer than k elements")
        shape = (*x.shape[:-1], self.k)
        return TensorSpec(x.dtype, shape), TensorSpec(DType.I64, shape)

    def reference(self, arrays: Sequence[Array]) -> list[Array]:
        (x,) = arrays
        negated = ~x if x.dtype.kind == "i" else -x  # -x of the least integer is itself
        order = np.argsort(negated if self.largest else x, axis=-1, kind="stable")
        if self.largest:  # NumPy sorts NaN last in either order
            lost = np.isnan(np.take_along_axis(x, order, axis=-1))
            first = np.argsort(~lost, axis=-1, kind="stable")
            order = np.take_along_axis(order, first, axis=-1)
        places = order[..., : self.k].astype(np.int64)
        return [np.take_along_axis(x, places, axis=-1), places]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=prod(operands[0]) * self.flops + _CHOSEN * prod(result))

    def body(self, opset: int) -> Body:
        """Write the ONNX operator; raises ValueError for the smallest elements before opset 11."""
        b = BodyBuilder(1, opset)
        if opset < 11 and not self.largest:
            raise ValueError("TopK of the smallest elements needs opset 11")
        k = (b.ints(self.k),) if opset >= 10 else ()
        attrs = {"axis": -1} if opset >= 10 else {"axis": -1, "k": self.k}
        if opset >= 11:
            attrs["largest"] = int(self.largest)
        return b.done(*b.node("TopK", (b.inputs[0], *k), ("values", "places"), attrs))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each result as reading its whole row."""
        shape, chosen = graph.spec(region.operands[0]).shape, graph.spec(region.results[0]).shape
        if shape is None or chosen is None:
            return None
        names, space = axes_named("d", chosen)
        data = (*names[:-1], "t")
        axes = (*space.axes, Axis("t", shape[-1], True))
        reads = [aligned_access(graph, region.operands[0], data)]
        writes = [aligned_access(graph, y, names) for y in region.results]
        return region_model(
            region, IterationSpace(axes), reads, writes, (LoopWork(data, self.flops),), names[:-1]
        )
