"""Decompose pools of volumes and of other norms into pools of images and arithmetic.

MaxPool, AveragePool over three axes  ->  a pool of rows and columns, then one along the depth
LpPool                                ->  |x|^p, AveragePool, its window's size, the p-th root
GlobalLpPool                          ->  ReduceL1 or ReduceL2
LRN                                   ->  x² by a banded 1x1 Conv, then x divided by a power

A box's sum, maximum and number of elements in the image are those of its rows and columns, then of
its depth: so are averages, whether or not they count padding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, Extent, TensorSpec, combine
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["decompose_global_lp_pool", "decompose_lp_pool", "decompose_lrn", "decompose_pool"]

_VOLUME = 5
_MOST_CHANNELS = 2048
"""Maximum number of channels whose sums over neighbours are a convolution."""


def decompose_pool(s: OnnxBuilder) -> OnnxBuilder:
    """Write a pool of volumes as two pools of images."""
    x, op = s.operands[0], s.region.op
    shape, made = s.spec(x).shape, s.spec(s.region.results[0]).shape
    if shape is None or len(shape) != _VOLUME:
        raise CannotDecompose("")
    s.image(x)
    s.unread(1)
    batch, *known = shape
    sizes = made[2:] if made else ()
    if len(sizes) != 3 or not all(isinstance(d, int) and d > 0 for d in (*known, *sizes)):
        raise CannotDecompose("the sizes of its volumes are not known")
    channels, depth, *image = known
    planes = combine("mul", batch, depth)
    y = s("Transpose", x, perm=(0, 2, 1, 3, 4), spec=_f32(batch, depth, channels, *image))
    y = s.reshaped(y, planes, channels, *image)
    y = s(op, y, spec=_f32(planes, channels, *sizes[1:]), **_window(s, slice(1, 3), 0))
    across = math.prod(int(str(d)) for d in sizes[1:])
    y = s.reshaped(y, batch, depth, channels, across)
    y = s("Transpose", y, perm=(0, 2, 1, 3), spec=_f32(batch, channels, depth, across))
    y = s(op, y, spec=_f32(batch, channels, sizes[0], across), **_window(s, slice(0, 1), 1))
    s.reshaped(y, batch, channels, *sizes)
    return s


def _window(s: OnnxBuilder, axes: slice, more: int) -> dict[str, Any]:
    """Return a pool's attributes for some of its axes, and for ``more`` axes of windows of 1."""
    ones = (1,) * more
    found: dict[str, Any] = {"kernel_shape": (*s.attribute("kernel_shape", ())[axes], *ones)}
    for name in ("strides", "dilations"):
        if given := s.attribute(name, ()):
            found[name] = (*given[axes], *ones)
    if pads := s.attribute("pads", ()):
        half, none = len(pads) // 2, (0,) * more
        found["pads"] = (*pads[:half][axes], *none, *pads[half:][axes], *none)
    for name in ("ceil_mode", "count_include_pad", "auto_pad"):
        if (value := s.attribute(name, None)) is not None:
            found[name] = value
    return found


def decompose_lp_pool(s: OnnxBuilder) -> OnnxBuilder:
    """Write the p-norm of windows with an average that counts padding, times a window's size."""
    x, p, kernel = s.operands[0], s.attribute("p", 2), s.attribute("kernel_shape", ())
    s.image(x)
    if s.attribute("ceil_mode", 0) or {*s.attribute("dilations", ())} - {1}:
        raise CannotDecompose("its windows are dilated or may end behind the padding")
    shape = s.spec(s.region.results[0]).shape
    if shape is None or p < 1:
        raise CannotDecompose("its result's sizes are not known")
    attributes = {name: value for name in ("kernel_shape", "strides", "pads", "auto_pad")
                  if (value := s.attribute(name, None))}  # fmt: skip
    y = s("Mul", x, x) if p == 2 else s("Abs", x)
    y = y if p <= 2 else s("Pow", y, float(p))
    y = s("AveragePool", y, spec=_f32(*shape), count_include_pad=1, **attributes)
    y = s("Mul", y, float(math.prod(kernel)))
    if p == 2:
        s("Sqrt", y)
    elif p > 2:
        s("Pow", y, 1 / p)
    return s


def decompose_global_lp_pool(s: OnnxBuilder) -> OnnxBuilder:
    """Write the 1- or 2-norm of whole images as a reduction."""
    x, p = s.operands[0], s.attribute("p", 2)
    if p not in (1, 2):
        raise CannotDecompose("it is neither the 1-norm nor the 2-norm")
    s.reduce("ReduceL1" if p == 1 else "ReduceL2", x, tuple(range(2, len(s.image(x)))))
    return s


def decompose_lrn(s: OnnxBuilder) -> OnnxBuilder:
    """Write x / (bias + alpha / size · Σ x²)^beta; the sum over channels is a 1x1 convolution."""
    x = s.operands[0]
    shape, size = s.image(x), int(s.attribute("size", 1))
    channels: Extent = shape[1] if len(shape) > 2 else 0
    if not isinstance(channels, int) or not 0 < channels <= _MOST_CHANNELS:
        raise CannotDecompose("its channels are not known, or too many")
    alpha, beta = (float(s.attribute(n, d)) for n, d in (("alpha", 1e-4), ("beta", 0.75)))
    count, ones = channels, (1,) * (len(shape) - 2)

    def summed_channels() -> Array:
        apart = np.arange(count)[None] - np.arange(count)[:, None]
        near = (apart >= -((size - 1) // 2)) & (apart <= size // 2)
        return (near * np.float32(alpha / size)).astype(np.float32).reshape(count, count, *ones)

    filters = s.entered(DType.F32, (count, count, *ones), summed_channels)
    bias = s.constant(np.full(count, float(s.attribute("bias", 1.0)), np.float32))
    total = s("Conv", s("Mul", x, x), filters, bias, spec=_f32(*shape), kernel_shape=ones)
    if beta == 0.75:
        root = s("Sqrt", total)
        s("Div", x, s("Mul", root, s("Sqrt", root)))
    else:
        s("Div", x, s("Pow", total, beta) if beta != 0.5 else s("Sqrt", total))
    return s


def _f32(*shape: Extent) -> TensorSpec:
    return TensorSpec(DType.F32, shape)
