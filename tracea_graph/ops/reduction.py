"""``FusedReduce``: a reduction over any axes, with elementwise chains before and after.

    s = prologue(a, b, …)          (the operand itself without a prologue)
    r = reduce(s) over the axes
    y = epilogue(r, c, d, …)       (r itself without an epilogue)

L2 is ``sum_square`` followed by Sqrt; LogSum is ``sum`` followed by Log.
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
from tracea_graph.ops.chain import COL, FULL, Chain, Step
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import Shape, aligned_access, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import Axis, IterationSpace
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["FOLDS", "LOG_OF_SUM", "REDUCTIONS", "SHIFTED_EXP", "ReduceParams"]

Floats = npt.NDArray[np.floating[Any]]


def _log_sum_exp(x: Floats, axis: tuple[int, ...], keepdims: bool) -> Floats:
    most = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    most = np.where(np.isfinite(most), most, 0)
    with np.errstate(divide="ignore"):
        y = most + np.log(np.sum(np.exp(x - most), axis=axis, keepdims=True))
    return y if keepdims else np.asarray(np.squeeze(y, axis))


def _with_start(numpy: Callable[..., Any], start: float) -> Callable[..., Any]:
    def reduce(x: Floats, axis: tuple[int, ...], keepdims: bool) -> Any:
        return numpy(x, axis=axis, keepdims=keepdims, initial=start)

    return reduce


REDUCTIONS: Mapping[str, tuple[str, Callable[..., Any]]] = MappingProxyType(
    {
        "sum": ("ReduceSum", np.sum),
        "mean": ("ReduceMean", np.mean),
        "max": ("ReduceMax", _with_start(np.max, -np.inf)),
        "min": ("ReduceMin", _with_start(np.min, np.inf)),
        "prod": ("ReduceProd", np.prod),
        "l1": ("ReduceL1", lambda x, axis, keepdims: np.abs(x).sum(axis, keepdims=keepdims)),
        "sum_square": (
            "ReduceSumSquare", lambda x, axis, keepdims: np.sum(x * x, axis, keepdims=keepdims)
        ),
        "log_sum_exp": ("ReduceLogSumExp", _log_sum_exp),
    }
)  # fmt: skip
"""ONNX operator and NumPy meaning of each kind."""
FOLDS: Mapping[str, str] = MappingProxyType(
    {
        "sum": "sum", "mean": "sum", "l1": "absolutes", "sum_square": "squares", "max": "max",
        "min": "min", "prod": "product",
    }
)  # fmt: skip
"""Fold a kernel runs for each kind that takes a single fold."""
SHIFTED_EXP = Chain(
    (FULL, COL),
    (Step("is_inf", (1,)), Step("where", (2, 0.0, 1)), Step("sub", (0, 3)), Step("exp", (4,))),
    (5,),
)
"""exp(x − m) if m is finite, else exp(x)."""
LOG_OF_SUM = Chain(
    (FULL, FULL),
    (Step("is_inf", (1,)), Step("where", (2, 0.0, 1)), Step("log", (0,)), Step("add", (4, 3))),
    (5,),
)
"""log(sum) + m, with m as in :data:`SHIFTED_EXP`: the part of log(sum(exp)) after the sum."""


@dataclass(frozen=True)
class ReduceParams:
    """Parameters of a reduction with optional elementwise prologue and epilogue.

    Operands: those of the prologue (or x), then epilogue inputs.  ``axes`` are negative and in
    ascending order: −1 is the last axis of the broadcast operands.
    """

    kind: str
    axes: tuple[int, ...]
    keepdims: bool = True
    prologue: Chain | None = None
    epilogue: Chain | None = None

    def __post_init__(self) -> None:
        if self.kind not in REDUCTIONS:
            raise ValueError(f"unknown kind of reduction: {self.kind!r}")
        if not self.axes or tuple(sorted(set(self.axes))) != self.axes or self.axes[-1] >= 0:
            raise ValueError("axes must be negative (counted from the end) and ascend")
        for chain in filter(None, (self.prologue, self.epilogue)):
            if chain.result_types != (DType.F32,):
                raise ValueError("a chain around a reduction must have one float32 result")

    @property
    def data_operands(self) -> int:
        return len(self.prologue.operands) if self.prologue else 1

    @property
    def operands(self) -> int:
        epilogue_inputs = len(self.epilogue.operands) - 1 if self.epilogue else 0
        return self.data_operands + epilogue_inputs

    def full(self, shapes: Sequence[Shape | None]) -> Shape:
        """Return the shape of the value to reduce; raises ValueError if it is undetermined."""
        data = [s for s in shapes[: self.data_operands] if s is not None]
        shape = broadcast(data) if len(data) == self.data_operands else None
        if shape is None or len(shape) < -self.axes[0]:
            raise ValueError(
                "operand shapes are not proven to broadcast to a shape with those axes"
            )
        return shape

    def reduced(self, full: Shape) -> Shape:
        """Return the shape that remains after the reduction."""
        gone = {len(full) + a for a in self.axes}
        if self.keepdims:
            return tuple(1 if i in gone else d for i, d in enumerate(full))
        return tuple(d for i, d in enumerate(full) if i not in gone)

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return one float32 result; raises ValueError if its shape is undetermined."""
        return (TensorSpec(DType.F32, self.reduced(self.full([s.shape for s in specs]))),)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        data, epilogue_inputs = arrays[: self.data_operands], arrays[self.data_operands :]
        x = self.prologue.reference(data)[0] if self.prologue else data[0]
        y = np.asarray(REDUCTIONS[self.kind][1](x, axis=self.axes, keepdims=self.keepdims))
        return self.epilogue.reference([y, *epilogue_inputs]) if self.epilogue else [y]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        largest = max(map(prod, operands[: self.data_operands]))
        each = 1 + (self.prologue.flops if self.prologue else 0)
        return OpCost(vector=largest * each, one_pass=True)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        data, epilogue_inputs = b.inputs[: self.data_operands], b.inputs[self.data_operands :]
        x = self.prologue.to_onnx(b, data)[0] if self.prologue else data[0]
        y = b.reduce(REDUCTIONS[self.kind][0], x, self.axes, self.keepdims)
        return b.done(self.epilogue.to_onnx(b, [y, *epilogue_inputs])[0] if self.epilogue else y)

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model kept axes as parallel, with the epilogue's operands indexed by them."""
        full = self.full([graph.spec(v).shape for v in region.operands])
        gone = {len(full) + a for a in self.axes}
        names = tuple(f"d{i}" for i in range(len(full)))
        axes = tuple(
            Axis(n, e, i in gone) for i, (n, e) in enumerate(zip(names, full, strict=True))
        )
        kept = tuple(n for i, n in enumerate(names) if self.keepdims or i not in gone)
        parallel = tuple(n for i, n in enumerate(names) if i not in gone)
        reads = [aligned_access(graph, v, names) for v in region.operands[: self.data_operands]]
        reads += [aligned_access(graph, v, kept) for v in region.operands[self.data_operands :]]
        writes = [aligned_access(graph, region.results[0], kept)]
        before = self.prologue.flops if self.prologue else 0
        after = self.epilogue.flops if self.epilogue else 0
        work = (LoopWork(names, 1 + before), LoopWork(parallel, after))
        return region_model(region, IterationSpace(axes), reads, writes, work, parallel)
