"""``FusedIota``: index ramps (Range, arange) whose lengths are sizes of other tensors.

    y[i, j, …] = start + steps[0] · i + steps[1] · j + …

Replaces Range and ConstantOfShape over tensor sizes, with scaling, shifting and repetition: cell
centers, coordinates, positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Extent, TensorSpec, evaluate
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import aligned_access, axes_named, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ops.size_expressions import resolve_extent, size_to_onnx
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["DTYPES", "IotaParams"]

Numbers = npt.NDArray[Any]
DTYPES: Mapping[DType, Any] = MappingProxyType(
    {DType.F32: np.float32, DType.I32: np.int32, DType.I64: np.int64}
)
"""NumPy's type of each element type of results."""
_SINCE = 11
"""Opset that introduced Range."""


@dataclass(frozen=True)
class IotaParams:
    """Parameters of an index ramp; ``steps`` has one number per axis of the result.

    ``offset`` is an expression over the operands' dimensions that is added to ``start``; it is
    never negative.  The result's ``dtype`` is float32, int32 or int64; a ramp of integers has an
    integer start and integer steps.  ``sizes``, those of the result, are expressions over the
    operands' dimensions (:mod:`tracea_graph.ops.size_expressions`) that are never negative.
    Operands are read for their sizes only.
    """

    operands: int
    sizes: tuple[Extent, ...]
    start: float
    steps: tuple[float, ...]
    dtype: DType = DType.F32
    offset: Extent = 0

    def __post_init__(self) -> None:
        if self.operands < 1 or not self.sizes or len(self.sizes) != len(self.steps):
            raise ValueError(f"an iota must have operands and one step per axis, not {self}")
        if self.dtype not in DTYPES:
            raise ValueError(f"an iota must be float32, int32 or int64, not {self.dtype}")
        whole = all(float(n).is_integer() for n in (self.start, *self.steps))
        if self.dtype is not DType.F32 and not whole:
            raise ValueError(f"an iota of integers must have integer steps, not {self.steps}")

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the result's spec; raises ValueError if the rank of an operand is unknown."""
        shapes = [s.shape for s in specs if s.shape is not None]
        if len(shapes) != len(specs):
            raise ValueError("the rank of an operand is unknown")
        return (TensorSpec(self.dtype, tuple(resolve_extent(s, shapes) for s in self.sizes)),)

    def reference(self, arrays: Sequence[Any]) -> list[Numbers]:
        shapes = [np.shape(a) for a in arrays]
        sizes = [evaluate(resolve_extent(s, shapes), {}) for s in self.sizes]
        counts = np.indices(sizes, np.float64)
        steps = np.reshape(self.steps, (-1, *(1,) * len(sizes)))
        start = self.start + evaluate(resolve_extent(self.offset, shapes), {})
        return [np.asarray(start + (steps * counts).sum(0), DTYPES[self.dtype])]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=prod(result))

    def body(self, opset: int) -> Body:
        """Write ONNX nodes; raises ValueError before opset 11."""
        if opset < _SINCE:
            raise ValueError(f"an iota needs opset {_SINCE} or later")
        b = BodyBuilder(self.operands, opset)
        sizes = [size_to_onnx(b, s) for s in self.sizes]
        total, rank = self._number(b, self.start), len(sizes)
        if self.offset != 0:
            first = b("Reshape", size_to_onnx(b, self.offset), b.ints())
            if self.dtype is not DType.I64:
                first = b("Cast", first, to=self.dtype.onnx)
            total = b("Add", total, first)
        for axis, (size, step) in enumerate(zip(sizes, self.steps, strict=True)):
            if step:
                count = self._count_to_onnx(b, size)
                if self.dtype is not DType.I64:
                    count = b("Cast", count, to=self.dtype.onnx)
                line = b("Reshape", count, b.ints(-1, *(1,) * (rank - axis - 1)))
                total = b("Add", total, b("Mul", line, self._number(b, step)))
        shape = b("Concat", *sizes, axis=0)
        return b.done(b("Expand", total, shape))

    def _number(self, b: BodyBuilder, value: float) -> str:
        if self.dtype is DType.F32:
            return b.number(value)
        return b("Constant", value=np.asarray(int(value), DTYPES[self.dtype]))

    @staticmethod
    def _count_to_onnx(b: BodyBuilder, size: str) -> str:
        zero, one = (b("Constant", value=np.asarray(i, np.int64)) for i in (0, 1))
        return b("Range", zero, b("Reshape", size, b.ints()), one)

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model one point per element of the result; only the sizes of operands are read."""
        shape = graph.spec(region.results[0]).shape
        if shape is None:
            return None
        names, space = axes_named("d", shape)
        writes = [aligned_access(graph, region.results[0], names)]
        return region_model(
            region, space, [], writes, (LoopWork(names, 1),), names[:-1], names[-1:]
        )
