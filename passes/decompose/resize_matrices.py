"""Write a Resize of known sizes as a matrix product along each axis that it changes.

Resize(x)  ->  x · w for the last axis, h · x for the one before it …

A matrix has a column for each result: the weights of the elements that it reads.  So there is one
rule for cubic and antialiased interpolation, for volumes, and for all ways to map and to round
coordinates.  Forms for which there are kernels are left to them, as are large axes, whose matrices
would take longer to multiply than an image to read.
Source: ONNX's Resize; ONNX Runtime's arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.ops.resize import cubic_weight
from tracea_graph.passes.convolution.resize import left_to_kernels
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["axis_matrix", "decompose_resize"]

Floats = npt.NDArray[np.floating[Any]]

_SINCE = 11
"""Opset from which Resize states how it maps coordinates."""
_LARGEST = 1 << 17
"""Maximum number of elements of an axis's matrix."""
_ROUNDINGS: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(
    {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
)
_MODES = ("nearest", "linear", "cubic")


@dataclass(frozen=True)
class _Way:
    """How an axis is resized: the attributes of ONNX's Resize, by their first words."""

    mode: str
    coordinates: str
    rounding: str
    slope: float
    inside: bool
    antialias: bool


def decompose_resize(s: OnnxBuilder) -> OnnxBuilder:
    x = s.operands[0]
    if s.graph.opset < _SINCE or left_to_kernels(s.graph, s.region):
        raise CannotDecompose("")
    way = _Way(
        str(s.attribute("mode", "nearest")),
        str(s.attribute("coordinate_transformation_mode", "half_pixel")),
        str(s.attribute("nearest_mode", "round_prefer_floor")),
        float(s.attribute("cubic_coeff_a", -0.75)), s.attribute("exclude_outside", 0) == 1,
        s.attribute("antialias", 0) == 1,
    )  # fmt: skip
    before, after = s.image(x), s.spec(s.region.results[0]).shape
    if way.mode not in _MODES or way.coordinates not in _PLACES or after is None:
        raise CannotDecompose(f"no matrix holds {way.mode} with {way.coordinates} coordinates")
    if s.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise CannotDecompose("its keep_aspect_ratio_policy is not stretch")
    scales = _scales(s, len(before))
    pairs = enumerate(zip(before, after, strict=True))
    axes = [i for i, (a, b) in pairs if a != b]
    if any(scale != 1.0 and i not in axes for i, scale in scales.items()):
        raise CannotDecompose("a scale leaves the size of an axis as it was")
    sizes = [(before[i], after[i]) for i in axes]
    if not axes or not all(isinstance(n, int) and n > 0 for pair in sizes for n in pair):
        raise CannotDecompose("its sizes are not known")
    shape, y = list(before), x
    for i, (size, count) in reversed([*zip(axes, sizes, strict=True)]):
        assert isinstance(size, int) and isinstance(count, int)
        if size * count > _LARGEST:
            raise CannotDecompose("the matrix of an axis would be too large")
        scale, last = scales.get(i, count / size), i == len(shape) - 1
        shape[i], own = count, (size, count, scale)

        def load(own: tuple[int, int, float] = own, last: bool = last) -> Floats:
            made = axis_matrix(*own, way)
            return np.ascontiguousarray(made if last else made.T)

        matrix = s.entered(DType.F32, (size, count) if last else (count, size), load)
        y = _multiplied(s, y, matrix, i, tuple(shape))
    return s


def _multiplied(s: OnnxBuilder, y: str, matrix: str, axis: int, made: tuple[Extent, ...]) -> str:
    """Multiply along an axis: from the right along the last one, else from the left."""
    rank, spec = len(made), TensorSpec(DType.F32, made)
    if axis == rank - 1:
        return s("MatMul", y, matrix, spec=spec)
    if axis == rank - 2:
        return s("MatMul", matrix, y, spec=spec)
    order = (*range(axis), *range(axis + 1, rank), axis)
    shape = s.spec(y).shape or ()
    turned = TensorSpec(DType.F32, tuple(shape[a] for a in order))
    y = s("Transpose", y, perm=order, spec=turned)
    back = s.weights[matrix]
    flipped = s.entered(DType.F32, back.shape[::-1], lambda: np.ascontiguousarray(back.load().T))
    y = s("MatMul", y, flipped, spec=TensorSpec(DType.F32, tuple(made[a] for a in order)))
    inverse = tuple(order.index(a) for a in range(rank))
    return s("Transpose", y, perm=inverse, spec=spec)


def _scales(s: OnnxBuilder, rank: int) -> dict[int, float]:
    """Return the constant scales by axis; they are those of the sizes where there are none."""
    given = s.graph.weight(s.operands[2]) if s.operands[2] else None
    axes = [int(a) % rank for a in s.attribute("axes", ())] or list(range(rank))
    if s.operands[2] and (given is None or given.count not in (0, len(axes))):
        raise CannotDecompose("its scales are not constant")
    if given is None or not given.count:
        return {}
    return dict(zip(axes, map(float, given.array().reshape(-1)), strict=True))


def axis_matrix(size: int, count: int, scale: float, way: _Way) -> Floats:
    """Return ``[size, count]``: the weights by which each result adds up its elements."""
    where, factor = np.arange(count, dtype=np.float32), float(np.float32(scale))
    place = _PLACES[way.coordinates](where, size, count, factor)
    made = np.zeros((size, count))
    if way.mode == "nearest":
        near = np.clip(_ROUNDINGS[way.rounding](place), 0, size - 1).astype(int)
        made[near, np.arange(count)] = 1
        return made.astype(np.float32)
    wide = max(1 / scale, 1.0) if way.antialias else 1.0
    linear = way.mode == "linear"
    reach, weigh = (1, _linear) if linear else (2, partial(cubic_weight, slope=way.slope))
    taps = 2 * math.ceil(reach * wide) + 2
    first = np.floor(place).astype(int) - taps // 2
    at = first[:, None] + np.arange(taps + 1)
    weights = weigh(np.abs(at - place[:, None]) / wide)
    if way.inside:
        weights = np.where((at < 0) | (at >= size), 0, weights)
    if way.antialias or way.inside:
        weights = weights / weights.sum(1, keepdims=True)
    columns = np.broadcast_to(np.arange(count)[:, None], at.shape)
    np.add.at(made, (np.clip(at, 0, size - 1), columns), weights)
    return made.astype(np.float32)


def _linear(away: Floats) -> Floats:
    return np.asarray(np.maximum(1 - away, 0))


def _half_pixel(at: Floats, size: int, count: int, scale: float) -> Floats:
    return np.asarray((at + 0.5) / scale - 0.5)


def _symmetric(at: Floats, size: int, count: int, scale: float) -> Floats:
    """Keep the center of the axis where it is if the scaled size is not whole."""
    shift = size / 2 * (1 - count / (scale * size))
    return np.asarray(shift + _half_pixel(at, size, count, scale))


_PLACES: Mapping[str, Callable[[Floats, int, int, float], Floats]] = MappingProxyType(
    {
        "half_pixel": _half_pixel,
        "half_pixel_symmetric": _symmetric,
        "pytorch_half_pixel": lambda at, size, count, scale: (
            _half_pixel(at, size, count, scale) if count > 1 else np.zeros(count)
        ),
        "asymmetric": lambda at, size, count, scale: at / scale,
        "align_corners": lambda at, size, count, scale: at * (size - 1) / max(count - 1, 1),
    }
)
"""Source positions of results, in elements."""
