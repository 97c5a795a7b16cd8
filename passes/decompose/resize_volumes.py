"""Write a Resize of volumes as one along the depth, then one of the images of all depths.

Resize(x [N,C,D,H,W])  ->  Resize([N,C,D,H·W]), Resize([N·D',C,H,W])

Linear and cubic interpolation are separable, and so is the choice of the nearest element.  Forms
for which there are kernels of images are decomposed alone.
Source: ONNX's Resize.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.ops.resize import COORDINATES
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["decompose_volume_resize"]

_SINCE, _RANK = 11, 5
"""Opset from which Resize states how it maps coordinates, and the rank of volumes."""
_KEPT = ("mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a")


def decompose_volume_resize(s: OnnxBuilder) -> OnnxBuilder:
    """Write a resize of volumes as two resizes of images."""
    x = s.operands[0]
    before, after = s.spec(x).shape, s.spec(s.region.results[0]).shape
    if s.graph.opset < _SINCE or before is None or len(before) != _RANK or after is None:
        raise CannotDecompose("")
    s.image(x)
    if not all(isinstance(d, int) and d > 0 for d in (*before[1:], *after[2:])):
        raise CannotDecompose("the sizes of its volumes are not known")
    if before[:2] != after[:2] or not _is_of_images(s):
        raise CannotDecompose("no kernel resizes the images of its volumes that way")
    batch, channels = before[:2]
    depth, high, wide, deep, *image = (int(str(d)) for d in (*before[2:], *after[2:]))
    scales = _scales(s)
    y = s.reshaped(x, batch, channels, depth, high * wide)
    if deep != depth:
        y = _resized(s, y, (batch, channels, deep, high * wide), (scales[0], 1.0))
    y = s.reshaped(y, batch, channels, deep, high, wide)
    if [high, wide] == image:
        return s
    planes = combine("mul", batch, deep)
    y = s("Transpose", y, perm=(0, 2, 1, 3, 4), spec=_f32(batch, deep, channels, high, wide))
    y = s.reshaped(y, planes, channels, high, wide)
    y = _resized(s, y, (planes, channels, *image), scales[1:])
    y = s.reshaped(y, batch, deep, channels, *image)
    s("Transpose", y, perm=(0, 2, 1, 3, 4), spec=_f32(*after))
    return s


def _is_of_images(s: OnnxBuilder) -> bool:
    """Whether kernels resize images that way."""
    how = s.attribute("coordinate_transformation_mode", "half_pixel")
    mode = s.attribute("mode", "nearest")
    plain = s.attribute("axes", None) is None and not any(
        s.attribute(name, 0) for name in ("antialias", "exclude_outside")
    )
    plain = plain and s.attribute("keep_aspect_ratio_policy", "stretch") == "stretch"
    if mode == "nearest":
        rounded = s.attribute("nearest_mode", "round_prefer_floor")
        return plain and (how, rounded) == ("asymmetric", "floor")
    return plain and mode in ("linear", "cubic") and how in COORDINATES


def _scales(s: OnnxBuilder) -> tuple[float, ...]:
    """Return the constant scales of the axes of space; 0 for those that sizes give."""
    given = s.operands[2]
    weight = s.graph.weight(given) if given else None
    if given and (weight is None or weight.count not in (0, _RANK)):
        raise CannotDecompose("its scales are not constant")
    if weight is None or not weight.count:
        return (0.0,) * 3
    return tuple(map(float, weight.array().reshape(-1)[2:]))


def _resized(s: OnnxBuilder, y: str, shape: tuple[Extent, ...], scales: tuple[float, ...]) -> str:
    """Resize images by scales, or to the sizes of their result."""
    kept: dict[str, Any] = {n: v for n in _KEPT if (v := s.attribute(n, None)) is not None}
    if all(scales):
        factors = s.constant(np.array([1, 1, *scales]))
        return s("Resize", y, "", factors, spec=_f32(*shape), **kept)
    batch = shape[0]
    if not isinstance(batch, int):
        raise CannotDecompose("it has no scales, and an unknown number of volumes")
    sizes = s.constant(np.array(shape, np.int64), np.int64)
    return s("Resize", y, "", "", sizes, spec=_f32(*shape), **kept)


def _f32(*shape: Extent) -> TensorSpec:
    return TensorSpec(DType.F32, shape)
