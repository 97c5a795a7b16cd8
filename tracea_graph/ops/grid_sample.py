"""``FusedGridSample``: images, interpolated at the positions that a grid names.

    y[n, c, p, q] = x[n, c] at row g[n, p, q, 1] and column g[n, p, q, 0]

−1 and 1 are the centers of the outermost pixels if corners are ``aligned``, else their outer
edges.  Source: ONNX's GridSample, and ONNX Runtime's arithmetic.
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
from tracea_graph.ops.iteration_space_parts import access_map, aligned_access, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ops.resize import cubic_weight
from tracea_graph.ttg.iteration_space import Axis, IterationSpace, index_along, index_whole
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["BEYOND", "SAMPLINGS", "GridSampleParams"]

Array = npt.NDArray[Any]

SAMPLINGS = ("linear", "nearest", "cubic")
BEYOND = ("zeros", "border", "reflection")
"""What is read outside of an image: ONNX's ``padding_mode``."""
_OLD = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
"""Names of the samplings before opset 20."""
_SINCE, _RENAMED = 16, 20
_SLOPE = -0.75
"""Slope of the cubic kernel at 1."""
_TAPS = {"linear": 4, "nearest": 1, "cubic": 16}


@dataclass(frozen=True)
class GridSampleParams:
    """Operands: x ``[N, C, H, W]`` and a grid ``[N, P, Q, 2]``; the result is ``[N, C, P, Q]``."""

    sampling: str = "linear"
    beyond: str = "zeros"
    aligned: bool = False

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLINGS or self.beyond not in BEYOND:
            raise ValueError(f"invalid sampling: {self}")

    @property
    def operands(self) -> int:
        return 2

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the result's spec; raises ValueError if the operands do not fit."""
        x, grid = (s.shape for s in specs)
        if x is None or grid is None or len(x) != 4 or len(grid) != 4 or grid[3] != 2:
            raise ValueError("the operands are not an image and a grid of pairs")
        if x[0] != grid[0]:
            raise ValueError("image and grid cannot be proven to have as many items")
        return (TensorSpec(DType.F32, (*x[:2], *grid[1:3])),)

    def reference(self, arrays: Sequence[Array]) -> list[Array]:
        x, grid = arrays
        sizes, total = x.shape[2:], np.zeros((*x.shape[:2], *grid.shape[1:3]), x.dtype)
        at = [self._place(grid[..., 1 - i], size) for i, size in enumerate(sizes)]
        taps = [self._taps(position) for position in at]
        items = np.arange(len(x))[:, None, None]
        for row, down in taps[0]:
            for col, across in taps[1]:
                (i, inside), (j, within) = (
                    self._pixel(p, size) for p, size in zip((row, col), sizes, strict=True)
                )
                seen = np.moveaxis(x[items, :, i, j], -1, 1) if x.size else total
                weight = down * across * (inside & within)
                total = total + seen * weight[:, None].astype(x.dtype)
        return [total]

    def _place(self, grid: Array, size: int) -> Array:
        """Return positions in pixels, moved into the image unless zeros are read beyond it."""
        position = (grid + 1) / 2 * (size - 1) if self.aligned else ((grid + 1) * size - 1) / 2
        if self.sampling == "nearest":
            position = np.rint(position)
        if self.beyond == "border" and self.sampling != "cubic":
            return np.clip(position, 0, size - 1)
        return self._reflected(position, size) if self.beyond == "reflection" else position

    def _reflected(self, position: Array, size: int) -> Array:
        low = 0.0 if self.aligned else -0.5
        span = size - 1.0 if self.aligned else float(size)
        if not span:
            return np.zeros_like(position)
        away = np.abs(position - low)
        turns = np.floor(away / span)
        rest = away - turns * span
        return np.asarray(low + np.where(turns % 2, span - rest, rest), position.dtype)

    def _taps(self, position: Array) -> list[tuple[Array, Array]]:
        """Return the positions that a result reads along an axis, and their weights."""
        if self.sampling == "nearest":
            return [(position, np.ones_like(position))]
        low = np.floor(position)
        share = position - low
        if self.sampling == "linear":
            return [(low, 1 - share), (low + 1, share)]
        return [(low + k, cubic_weight(np.abs(share - k), _SLOPE)) for k in range(-1, 3)]

    def _pixel(self, position: Array, size: int) -> tuple[Array, Array]:
        """Return the pixels of whole positions, and whether they are read."""
        inside = (position >= 0) & (position <= size - 1)
        if self.beyond == "reflection":
            position = np.where(inside, position, self._reflected(position, size))
        read = inside if self.beyond == "zeros" else np.ones_like(inside)
        return np.nan_to_num(np.clip(position, 0, size - 1)).astype(np.int64), read

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        taps = _TAPS[self.sampling]
        return OpCost(vector=fit.instructions["fused blend"] * prod(result) * taps / 4)

    def body(self, opset: int) -> Body:
        """Write the ONNX operator; raises ValueError before opset 16."""
        if opset < _SINCE:
            raise ValueError(f"GridSample needs opset {_SINCE}")
        b = BodyBuilder(self.operands, opset)
        mode = self.sampling if opset >= _RENAMED else _OLD[self.sampling]
        return b.done(
            b("GridSample", *b.inputs, mode=mode, padding_mode=self.beyond,
              align_corners=int(self.aligned))
        )  # fmt: skip

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each result as reading its channel of the image as a whole."""
        shape, made = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
        if shape is None or made is None:
            return None
        names = ("n", "c", "p", "q")
        space = IterationSpace(tuple(Axis(n, d) for n, d in zip(names, made, strict=True)))
        image = (index_along("n"), index_along("c"), *map(index_whole, shape[2:]))
        grid = (*map(index_along, ("n", "p", "q")), index_whole(2))
        reads = [
            access_map(graph, v, m) for v, m in zip(region.operands, (image, grid), strict=True)
        ]
        writes = [aligned_access(graph, region.results[0], names)]
        work = (LoopWork(names, _TAPS[self.sampling]),)
        return region_model(region, space, reads, writes, work, ("n", "p", "q"))
