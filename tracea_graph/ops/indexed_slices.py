"""``FusedGatherND`` and ``FusedScatterND``: slices of a tensor, read or updated by index tuples.

    gather    y[b, …] = x[b, i[b, …, 0], …, i[b, …, K−1]]
    scatter   y = x;  y[i[n, 0], …, i[n, K−1]] = f(y[…], u[n]) for each n in order

An index in ``[−d, 0)`` counts from the end of its axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Extent, TensorSpec
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import (
    Shape,
    access_map,
    aligned_access,
    axes_named,
    region_model,
)
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import index_along, index_whole
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["SCATTERS", "GatherNDParams", "ScatterNDParams"]

Array = npt.NDArray[Any]

SCATTERS = ("none", "add", "mul", "min", "max")
"""How ScatterND combines an update with what is there: ``none`` replaces it."""
_COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
_SINCE = {"none": 11, "add": 16, "mul": 16, "min": 18, "max": 18}
"""First opset with each way of combining."""
_PICKED = 16.0
"""Instructions per vector of gathered or updated elements."""


def _known(spec: TensorSpec, what: str) -> Shape:
    if spec.shape is None:
        raise ValueError(f"the rank of the {what} is unknown")
    return spec.shape


def _depth(index: Shape, axes: int) -> int:
    """Return the number of indices in a tuple; raises ValueError unless it is in 1 … ``axes``."""
    last: Extent = index[-1] if index else 0
    if not isinstance(last, int) or not 1 <= last <= axes:
        raise ValueError(f"the indices are not tuples of 1 to {axes} numbers")
    return last


@dataclass(frozen=True)
class GatherNDParams:
    """Operands: x, and indices (int32 or int64) ``[…, K]``.  Results have x's type.

    The first ``batch_dims`` axes of both operands are the same items.
    """

    batch_dims: int = 0

    @property
    def operands(self) -> int:
        return 2

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the spec of the slices; raises ValueError if the operands do not fit."""
        x, index = _known(specs[0], "elements"), _known(specs[1], "indices")
        at = self.batch_dims
        depth = _depth(index, len(x) - at)
        if at >= len(index) or x[:at] != index[:at]:
            raise ValueError("elements and indices cannot be proven to have the same items")
        return (TensorSpec(specs[0].dtype, (*index[:-1], *x[at + depth :])),)

    def reference(self, arrays: Sequence[Array]) -> list[Array]:
        """Raises IndexError for an index outside of its axis."""
        x, index = arrays
        items, depth = x.shape[: self.batch_dims], index.shape[-1]
        own = x.reshape(prod(items), *x.shape[self.batch_dims :])
        each = index.reshape(prod(items), -1, depth)
        made = own[(np.arange(len(own))[:, None], *np.moveaxis(each, -1, 0))]
        return [made.reshape(*index.shape[:-1], *x.shape[self.batch_dims + depth :])]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=_PICKED * prod(result))

    def body(self, opset: int) -> Body:
        """Write the ONNX operator; raises ValueError before the opset that has it."""
        since = 12 if self.batch_dims else 11
        if opset < since:
            raise ValueError(f"GatherND needs opset {since}")
        b = BodyBuilder(self.operands, opset)
        batch = {"batch_dims": self.batch_dims} if self.batch_dims else {}
        return b.done(b("GatherND", *b.inputs, **batch))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each slice as reading x along the indexed axes as a whole."""
        x, index = region.operands
        shape, tuples = graph.spec(x).shape, graph.spec(index).shape
        if shape is None or tuples is None:
            return None
        (made,) = self.infer([graph.spec(x), graph.spec(index)])
        names, space = axes_named("d", made.shape or ())
        rows, depth, at = len(tuples) - 1, _depth(tuples, len(shape)), self.batch_dims
        reads = [
            access_map(graph, x, (
                *map(index_along, names[:at]), *map(index_whole, shape[at : at + depth]),
                *map(index_along, names[rows:]),
            )),
            access_map(graph, index, (*map(index_along, names[:rows]), index_whole(depth))),
        ]  # fmt: skip
        writes = [aligned_access(graph, region.results[0], names)]
        return region_model(region, space, reads, writes, (LoopWork(names, 1),), names[:rows])


@dataclass(frozen=True)
class ScatterNDParams:
    """Operands: x, indices (int32 or int64) ``[…, K]``, updates.  The result has x's spec.

    Updates have one slice of x for each tuple of indices.  Tuples may repeat: updates are combined
    in order, and with ``none`` the last one stays.
    """

    reduction: str = "none"

    def __post_init__(self) -> None:
        if self.reduction not in SCATTERS:
            raise ValueError(f"no ScatterND combines by {self.reduction!r}")

    @property
    def operands(self) -> int:
        return 3

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return x's spec; raises ValueError if the operands do not fit."""
        x, index = _known(specs[0], "elements"), _known(specs[1], "indices")
        wanted = (*index[:-1], *x[_depth(index, len(x)) :])
        if specs[2].shape != wanted:
            raise ValueError("the updates cannot be proven to be slices of the elements")
        return (specs[0],)

    def reference(self, arrays: Sequence[Array]) -> list[Array]:
        """Raises IndexError for an index outside of its axis."""
        x, index, updates = arrays
        y, at = x.copy(), tuple(np.moveaxis(index, -1, 0))
        if self.reduction == "none":
            y[at] = updates
        else:
            _COMBINE[self.reduction].at(y, at, updates)
        return [y]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=_PICKED * (prod(result) + prod(operands[2])))

    def body(self, opset: int) -> Body:
        """Write the ONNX operator; raises ValueError before the opset that has it."""
        if opset < (since := _SINCE[self.reduction]):
            raise ValueError(f"ScatterND by {self.reduction} needs opset {since}")
        b = BodyBuilder(self.operands, opset)
        how = {} if self.reduction == "none" else {"reduction": self.reduction}
        return b.done(b("ScatterND", *b.inputs, **how))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each slice of the result as reading its own elements and all updates of it."""
        x, index, updates = region.operands
        shape, tuples = graph.spec(x).shape, graph.spec(index).shape
        if shape is None or tuples is None:
            return None
        names, space = axes_named("d", shape)
        depth = _depth(tuples, len(shape))
        reads = [
            aligned_access(graph, x, names),
            access_map(graph, index, tuple(map(index_whole, tuples))),
            access_map(graph, updates, (
                *map(index_whole, tuples[:-1]), *map(index_along, names[depth:]),
            )),
        ]  # fmt: skip
        writes = [aligned_access(graph, region.results[0], names)]
        return region_model(region, space, reads, writes, (LoopWork(names, 1),), names[:depth])
