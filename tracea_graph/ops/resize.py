"""``FusedResize``: linear, cubic or nearest-neighbor interpolation of images or sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import access_map, region_model
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import Axis, IterationSpace, index_along, index_whole
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["COORDINATES", "NEAREST", "WAYS", "ResizeParams", "cubic_weight"]

Floats = npt.NDArray[np.floating[Any]]
COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
"""Source coordinate of a result: ONNX's ``coordinate_transformation_mode``."""
NEAREST = "nearest"
"""No interpolation: take the position at or before the ``asymmetric`` coordinate."""
WAYS = (*COORDINATES, NEAREST)
_FIRST_OPSET = 11
"""Earlier versions of Resize have neither sizes nor a choice of coordinates."""


@dataclass(frozen=True)
class ResizeParams:
    """Parameters of a resize of ``[N, C, H, W]`` or ``[N, C, W]``.

    The spatial sizes of the result are given in one of three ways: as ``sizes``; as ``scales`` of
    the operand's sizes, float32 numbers whose products are rounded down; or, with ``like``, by a
    second operand, which is read for its sizes only.  ``cubic`` is the slope of the cubic kernel
    at 1, or 0 for linear interpolation.  Source: ONNX's Resize, and ONNX Runtime's arithmetic.
    """

    how: str
    scales: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    like: bool = False
    cubic: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError unless the size is given in exactly one way and is positive."""
        if self.cubic and self.how == NEAREST:
            raise ValueError(f"the nearest position is not interpolated: {self}")
        given = self.scales or self.sizes
        ways = bool(self.scales) + bool(self.sizes) + self.like
        if self.how not in WAYS or ways != 1 or len(given) > 2:
            raise ValueError(f"invalid resizing: {self}")
        if given and min(given) <= 0:
            raise ValueError(f"sizes and scales must be above zero: {self}")

    @property
    def operands(self) -> int:
        return 1 + self.like

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the result's spec; raises ValueError for a wrong rank or an undetermined size."""
        shape = specs[0].shape
        if shape is None or len(shape) not in (3, 4):
            raise ValueError("x is not known to have one or two spatial axes")
        sizes: tuple[Extent, ...] = self.sizes
        if self.like:
            wanted = specs[1].shape
            if wanted is None or len(wanted) != len(shape):
                raise ValueError("the operand that gives the size is not known to have these axes")
            sizes = wanted[2:]
        elif self.scales:
            sizes = tuple(_scaled(d, s) for d, s in zip(shape[2:], self.scales, strict=True))
        return (TensorSpec(DType.F32, (*shape[:2], *sizes)),)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        x = arrays[0]
        (spec,) = self.infer([TensorSpec(DType.F32, a.shape) for a in arrays])
        for axis, size in enumerate((spec.shape or ())[2:], 2):
            assert isinstance(size, int)
            if self.cubic:
                x = self._cubic(x, axis, size)
                continue
            low, high, share = self._places(axis - 2, x.shape[axis], size)
            if self.how == NEAREST:
                x = np.take(x, low, axis)
                continue
            share = share.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - axis - 1))
            x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
        return [x]

    def _cubic(self, x: Floats, axis: int, count: int) -> Floats:
        """Interpolate along an axis by four positions, of which the outermost ones repeat."""
        size, place = x.shape[axis], self._place(axis - 2, x.shape[axis], count)
        low, total = np.floor(place), np.zeros((*x.shape[:axis], count, *x.shape[axis + 1 :]))
        for k in range(-1, 3):
            away = np.abs(place - low - k).astype(x.dtype)
            weight = cubic_weight(away, self.cubic).reshape(-1, *(1,) * (x.ndim - axis - 1))
            at = np.clip(low + k, 0, size - 1).astype(np.int64)
            total = total + np.take(x, at, axis) * weight
        return total.astype(x.dtype)

    def _place(self, axis: int, size: int, count: int) -> Floats:
        """Return the source position of each result along an axis."""
        at = np.arange(count, dtype=np.float32)
        scale = np.float32(self.scales[axis] if self.scales else count / size)
        half = np.float32(0.5)
        if self.how == "align_corners":
            place = at * np.float32(size - 1) / np.float32(max(count - 1, 1))
        elif self.how in ("asymmetric", NEAREST):
            place = at / scale
        else:
            place = (at + half) / scale - half
        if count == 1 and self.how in ("align_corners", "pytorch_half_pixel"):
            place = np.zeros(1, np.float32)
        return np.asarray(place)

    def _places(self, axis: int, size: int, count: int) -> tuple[Any, Any, Any]:
        """Return, per result, its two source positions and the weight of the second."""
        place = np.clip(self._place(axis, size, count), 0, size - 1)
        low = np.minimum(place.astype(np.int64), size - 1)
        return low, np.minimum(low + 1, size - 1), place - low.astype(np.float32)

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        blends = 4 if self.cubic else 1
        return OpCost(vector=fit.instructions["fused blend"] * prod(result) * blends)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        x = b.inputs[0]
        mode = "nearest" if self.how == NEAREST else "cubic" if self.cubic else "linear"
        if opset < _FIRST_OPSET and self.cubic:
            raise ValueError(f"cubic interpolation needs opset {_FIRST_OPSET}")
        if opset < 9:
            factors = (1.0, 1.0, *self.scales)
            return b.done(b("Upsample", x, mode=mode, scales=factors))
        if opset < _FIRST_OPSET:
            scales = b("Constant", value=np.asarray((1, 1, *self.scales), np.float32))
            return b.done(b("Upsample" if opset < 10 else "Resize", x, scales, mode=mode))
        # opsets 11 and 12 require every operand, even if empty
        none = b("Constant", value=np.zeros(0, np.float32)) if opset < 13 else ""
        how = {"coordinate_transformation_mode": self.how, "mode": mode}
        if self.cubic:
            how["cubic_coeff_a"] = self.cubic  # type: ignore[assignment]
        if self.how == NEAREST:
            how |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        if self.scales:
            scales = b("Constant", value=np.asarray((1, 1, *self.scales), np.float32))
            return b.done(b("Resize", x, none, scales, **how))
        kept = b.slice_last(b("Shape", x), 0, 2, 0)
        last = b.ints(*self.sizes)
        if self.like:
            last = b.slice_last(b("Shape", b.inputs[1]), 2, 4, 0)
        sizes = b("Concat", kept, last, axis=0)
        return b.done(b("Resize", x, none, none, sizes, **how))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each result as reading two positions per spatial axis, which the scale selects."""
        shape, result = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
        if shape is None or result is None or len(shape) != len(result):
            return None
        places, taps = (tuple(f"{a}{i}" for i in range(len(shape) - 2)) for a in "pt")
        axes = [Axis(p, e) for p, e in zip(("n", "c", *places), result, strict=True)]
        space = IterationSpace((*axes, *(Axis(t, 2, True) for t in taps)))
        spread = (index_whole(d, (p, t)) for d, p, t in zip(shape[2:], places, taps, strict=True))
        seen = (index_along("n"), index_along("c"), *spread)
        reads = [access_map(graph, region.operands[0], seen)]
        writes = [
            access_map(graph, region.results[0], tuple(map(index_along, ("n", "c", *places))))
        ]
        return region_model(
            region, space, reads, writes, (LoopWork(space.names, 2),), places, ("c",), taps, ("n",)
        )


def cubic_weight(away: Floats, slope: float) -> Floats:
    """Return the weights of positions that are ``away`` from a result, 0 from 2 on."""
    near = ((slope + 2) * away - (slope + 3)) * away * away + 1
    far = ((slope * away - 5 * slope) * away + 8 * slope) * away - 4 * slope
    return np.asarray(np.where(away <= 1, near, np.where(away < 2, far, 0)), away.dtype)


def _scaled(size: Extent, scale: float) -> Extent:
    """Scale a size; raises ValueError if a symbolic size has no whole multiple."""
    if isinstance(size, int):
        return math.floor(np.float32(size) * np.float32(scale))
    if not float(scale).is_integer():
        raise ValueError(f"{size} times {scale} is not a whole number of pixels")
    return combine("mul", size, int(scale))
