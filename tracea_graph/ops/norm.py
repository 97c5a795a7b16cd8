"""``FusedNorm``: layer or RMS normalization over the last axis, with an elementwise prologue.

    s = prologue(a, b, …)                           (the operand itself without a prologue)
    layer:  y = (s − mean(s)) / sqrt(var(s) + ε) · γ + β
    rms:    y = s / sqrt(mean(s²) + ε) · γ

Sources: Ba et al. 2016 (layer), Zhang & Sennrich 2019 (RMS).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import aligned_access, region_model, rows_and_columns
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import IterationSpace
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["KINDS", "Norm", "NormParams"]

KINDS = ("layer", "rms")

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Norm:
    """A normalization over the last axis; gamma and beta, if it has them, are operands."""

    kind: str
    epsilon: float
    gamma: bool = True
    beta: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not self.epsilon >= 0:
            raise ValueError(f"invalid normalization: kind {self.kind!r}, ε = {self.epsilon}")

    @property
    def operands(self) -> int:
        return self.gamma + self.beta

    def reference(self, x: Floats, affine: Sequence[Floats]) -> Floats:
        """Evaluate in the precision of ``x``; ``affine`` is gamma, then beta, if present."""
        centred = x - x.mean(-1, keepdims=True) if self.kind == "layer" else x
        y: Floats = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.epsilon)
        if self.gamma:
            y = y * affine[0]
        return y + affine[-1] if self.beta else y

    def to_onnx(
        self,
        b: BodyBuilder,
        x: str,
        affine: Sequence[str],
        axis: int = -1,
        square_by_mul: bool = False,
    ) -> str:
        """Write the norm as nodes, or as one LayerNormalization if the opset has it.

        ``axis`` may differ from −1 only without gamma and beta.  ``square_by_mul`` writes squares
        as products, which ONNX Runtime does not take for a part of a norm.
        """
        if self.kind == "layer" and b.opset >= 17 and self.gamma:
            return b("LayerNormalization", x, *affine, axis=-1, epsilon=self.epsilon)
        mean = partial(b.reduce, "ReduceMean", axes=(axis,))
        centred = b("Sub", x, mean(x)) if self.kind == "layer" else x
        square = b("Mul", centred, centred) if square_by_mul else b("Pow", centred, b.number(2.0))
        variance = mean(square)
        deviation = b("Sqrt", b("Add", variance, b.number(self.epsilon)))
        y = b("Div", centred, deviation)
        if self.gamma:
            y = b("Mul", y, affine[0])
        return b("Add", y, affine[-1]) if self.beta else y

    @property
    def cost(self) -> int:
        """Vector instructions per element: center, square, sum, scale."""
        return 6 if self.kind == "layer" else 4


@dataclass(frozen=True)
class NormParams:
    """Parameters of a norm over the last axis, with an optional elementwise prologue.

    Operands: those of the prologue (or x), then gamma and beta, if present.  Results: y and, with
    ``keep_sum``, the prologue's result s.
    """

    norm: Norm
    prologue: Chain | None = None
    keep_sum: bool = False

    def __post_init__(self) -> None:
        if self.prologue and (
            "full" not in self.prologue.operands or len(self.prologue.results) > 1
        ):
            raise ValueError("a prologue must have a full operand and one result")

    @property
    def data_operands(self) -> int:
        return len(self.prologue.operands) if self.prologue else 1

    @property
    def operands(self) -> int:
        return self.data_operands + self.norm.operands

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return a float32 spec of the shape of the first operand of kind ``full``, per result."""
        kinds = self.prologue.operands if self.prologue else ("full",)
        spec = TensorSpec(DType.F32, specs[kinds.index("full")].shape)
        return (spec, spec) if self.keep_sum else (spec,)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        data, affine = arrays[: self.data_operands], arrays[self.data_operands :]
        total = self.prologue.reference(data)[0] if self.prologue else data[0]
        y = self.norm.reference(total, affine)
        return [y, total] if self.keep_sum else [y]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        before = self.prologue.flops if self.prologue else 0
        return OpCost(vector=prod(result) * (fit.instructions["fused norm"] + before))

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        data, affine = b.inputs[: self.data_operands], b.inputs[self.data_operands :]
        total = self.prologue.to_onnx(b, data)[0] if self.prologue else data[0]
        # ONNX Runtime takes mean(x) − x for x − mean(x) before a Pow, and returns −y
        minus = self.prologue and self.prologue.steps and self.prologue.steps[-1].op == "sub"
        y = self.norm.to_onnx(b, total, affine, square_by_mul=bool(minus))
        return b.done(*((y, total) if self.keep_sum else (y,)))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model rows that are read and written whole; the prologue's other operands broadcast."""
        shape = graph.spec(region.results[0]).shape
        if not shape:
            return None
        rows, column, axes = rows_and_columns(shape, self.norm)
        data, out = (*rows, "n"), (*rows, column)
        reads = [aligned_access(graph, v, data) for v in region.operands[: self.data_operands]]
        reads += [aligned_access(graph, v, out) for v in region.operands[self.data_operands :]]
        writes = [
            aligned_access(graph, v, n) for v, n in zip(region.results, (out, data), strict=False)
        ]
        work = (
            LoopWork(data, (self.prologue.flops if self.prologue else 0)),
            LoopWork(out, self.norm.cost),
        )
        return region_model(region, IterationSpace(axes), reads, writes, work, rows)
