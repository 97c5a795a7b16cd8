"""Rewrite convolutions that cut volumes into patches as convolutions of images.

Conv(x [N,C,D,H,W], W [O,C,d,h,w]), windows that tile depth and height
    ->  Conv(x' [N,C·d,D/d·H,W], W' [O,C·d,h,w]), the images of a volume stacked vertically

Video models embed patches this way.  A volume of batch size 1 and known extents is left to
``conv3d-to-conv2d``, which converts whole nets.
"""

from __future__ import annotations

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.passes.convolution.window_attributes import read_window
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["decompose_patch_conv3d"]


def decompose_patch_conv3d(s: OnnxBuilder) -> OnnxBuilder:
    x, w, *rest = s.region.operands
    weight, shape = s.graph.weight(w), s.graph.spec(x).shape
    result = s.graph.spec(s.region.results[0]).shape
    if weight is None or any(v is None or len(v) != 5 for v in (shape, result, weight.shape)):
        raise CannotDecompose("")
    s.image(x, w, *filter(None, rest))
    batch, *known = shape or ()
    filters, _, step, *kernel = weight.shape
    if batch == 1 or s.attribute("group", 1) != 1 or not all(isinstance(d, int) for d in known):
        raise CannotDecompose("")
    channels, deep, rows, cols = (int(str(d)) for d in known)
    window = read_window(s.region, weight.shape[2:], shape[2:] if shape else ())
    if isinstance(window, str) or not _tiles(window, 0, deep) or not _tiles(window, 1, rows):
        raise CannotDecompose("")
    depth, across = deep // step, (result or ())[4]
    y = s.reshaped(x, batch, channels, depth, step, rows * cols)
    if step > 1:
        spec = TensorSpec(DType.F32, (batch, channels, step, depth, rows * cols))
        y = s("Transpose", y, perm=(0, 1, 3, 2, 4), spec=spec)
    y = s.reshaped(y, batch, channels * step, depth * rows, cols)
    high = depth * rows // kernel[0]
    y = s(
        "Conv", y, s.derived(weight, (filters, channels * step, *kernel)), *rest,
        kernel_shape=tuple(kernel), strides=window.strides[1:], dilations=window.dilations[1:],
        pads=(0, window.pairs[2][0], 0, window.pairs[2][1]),
        spec=TensorSpec(DType.F32, (batch, filters, high, across)),
    )  # fmt: skip
    s.reshaped(y, batch, filters, depth, high // depth, int(str(across)))
    return s


def _tiles(window: ConvWindow, axis: int, size: int) -> bool:
    """Return whether windows tile an axis without overlap or gap."""
    kernel, stride = window.kernel[axis], window.strides[axis]
    whole = kernel == stride and not any(window.pairs[axis]) and size % kernel == 0
    return whole and (kernel == 1 or window.dilations[axis] == 1)
