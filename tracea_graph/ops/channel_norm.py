"""``FusedChannelNorm``: normalization of ``[N, C, …]`` with per-channel gamma and beta.

    groups = G > 0:  over the C/G channels of a group and every position   (G = C: instance norm)
    groups = 0:      over the channels at each position

Sources: Wu & He 2018 (group), Ulyanov et al. 2016 (instance), Liu et al. 2022 (over channels).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import (
    access_map,
    aligned_access,
    axes_named,
    region_model,
)
from tracea_graph.ops.norm import Norm
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import Axis, IterationSpace, index_along
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["ChannelNormParams"]

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class ChannelNormParams:
    """Operands: x of ``rank`` axes, then gamma and beta of C elements each, if present."""

    norm: Norm
    groups: int
    rank: int

    def __post_init__(self) -> None:
        if self.groups < 0 or self.rank < 2:
            raise ValueError(f"invalid normalization: {self.groups} groups, rank {self.rank}")

    @property
    def operands(self) -> int:
        return 1 + self.norm.operands

    @property
    def _bare(self) -> Norm:
        return replace(self.norm, gamma=False, beta=False)

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return (TensorSpec(DType.F32, specs[0].shape),)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        x, *affine = arrays
        if not x.size:
            return [x]
        if self.groups:
            y = self._bare.reference(x.reshape(x.shape[0], self.groups, -1), ()).reshape(x.shape)
        else:
            y = np.moveaxis(self._bare.reference(np.moveaxis(x, 1, -1), ()), -1, 1)
        by_channel = [a.reshape(-1, *[1] * (self.rank - 2)) for a in affine]
        if self.norm.gamma:
            y = y * by_channel[0]
        return [y + by_channel[-1] if self.norm.beta else y]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=prod(result) * fit.instructions["fused norm"])

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        x, *affine = b.inputs
        if self.groups:
            groups = b.split_last(b("Flatten", x, axis=1), 2, self.groups)
            back = {"allowzero": 1} if opset >= 14 else {}
            y = b("Reshape", self._bare.to_onnx(b, groups, ()), b("Shape", x), **back)
        else:
            y = self._bare.to_onnx(b, x, (), 1 - self.rank)
        shape = b.ints(-1, *[1] * (self.rank - 2))
        by_channel = [b("Reshape", a, shape) for a in affine]
        if self.norm.gamma:
            y = b("Mul", y, by_channel[0])
        return b.done(b("Add", y, by_channel[-1]) if self.norm.beta else y)

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each result as reading its group or, without groups, all channels there."""
        shape = graph.spec(region.results[0]).shape
        if shape is None:
            return None
        names, space = axes_named("d", shape)
        over = range(1, len(shape)) if self.groups else (1,)
        data = tuple(f"r{i}" if i in over else n for i, n in enumerate(names))
        axes = (*space.axes, *(Axis(f"r{i}", shape[i], True) for i in over))
        vectors = [
            access_map(graph, v, (index_along(names[1]),),
                (shape[1],)) for v in region.operands[1:]
        ]  # fmt: skip
        reads = [aligned_access(graph, region.operands[0], data), *vectors]
        writes = [aligned_access(graph, region.results[0], names)]
        work = (LoopWork(names, self.norm.cost),)
        rows = tuple(n for i, n in enumerate(names) if i not in over)
        return region_model(region, IterationSpace(axes), reads, writes, work, rows)
