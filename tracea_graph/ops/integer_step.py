"""``FusedIntegerStep``: one elementwise step on int32 or int64, exact for all of their values.

Chains compute in float32, which holds integers below 2^24 only.  Indices that a program finds are
divided and compared between look-ups, for example the class and the box of a detection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import aligned_access, axes_named, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["INTEGER_STEPS", "IntegerStepParams"]

Array = npt.NDArray[Any]


def _quotient(a: Array, b: Array) -> Array:
    """Round towards zero; 0 for a divisor of 0."""
    whole = np.where(b == 0, 1, b)
    made = np.abs(a) // np.abs(whole) * np.sign(a) * np.sign(whole)
    return np.where(b == 0, 0, made).astype(a.dtype)


def _modulo(a: Array, b: Array) -> Array:
    """Take the divisor's sign; 0 for a divisor of 0."""
    return np.where(b == 0, 0, a % np.where(b == 0, 1, b)).astype(a.dtype)


_NUMPY: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _quotient, "Mod": _modulo,
        "Max": np.maximum, "Min": np.minimum, "Less": np.less, "LessOrEqual": np.less_equal,
        "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Equal": np.equal,
        "Where": np.where, "Cast": lambda a: a,
    }
)  # fmt: skip
INTEGER_STEPS = tuple(_NUMPY)
"""ONNX operators that are steps on integers."""
_TESTS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
_COUNTS = MappingProxyType({"Cast": 1, "Where": 3})
_STEP = 4.0
"""Instructions per vector of results."""


@dataclass(frozen=True)
class IntegerStepParams:
    """Operands of one integer type that broadcast; the first one of Where is bool.

    ``to`` is the type that Cast converts to, int32 or int64.  Max and Min take two operands.
    """

    op: str
    to: DType | None = None

    def __post_init__(self) -> None:
        if self.op not in INTEGER_STEPS or (self.op == "Cast") != (self.to is not None):
            raise ValueError(f"no step on integers: {self}")

    @property
    def operands(self) -> int:
        return int(_COUNTS.get(self.op, 2))

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the result's spec; raises ValueError if operands do not broadcast."""
        shapes = [s.shape for s in specs]
        shape = None if None in shapes else broadcast([s or () for s in shapes])
        if shape is None:
            raise ValueError("operand shapes are not proven to broadcast")
        own = specs[-1].dtype
        dtype = DType.BOOL if self.op in _TESTS else self.to or own
        return (TensorSpec(dtype, shape),)

    def reference(self, arrays: Sequence[Array]) -> list[Array]:
        made = np.asarray(_NUMPY[self.op](*arrays))
        if self.to is not None:
            made = made.astype(np.int32 if self.to is DType.I32 else np.int64)
        return [made]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=_STEP * prod(result))

    def body(self, opset: int) -> Body:
        """Write the ONNX operator; raises ValueError before opset 12."""
        if opset < 12:
            raise ValueError("steps on integers need opset 12")
        b = BodyBuilder(self.operands, opset)
        attrs = {} if self.to is None else {"to": self.to.onnx}
        return b.done(b(self.op, *b.inputs, **attrs))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each result as reading its elements of the operands."""
        shape = graph.spec(region.results[0]).shape
        if shape is None:
            return None
        names, space = axes_named("d", shape)
        reads = [aligned_access(graph, v, names) for v in region.operands]
        writes = [aligned_access(graph, region.results[0], names)]
        return region_model(region, space, reads, writes, (LoopWork(names, 1),), names)
