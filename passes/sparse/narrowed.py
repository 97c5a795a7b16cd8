"""Weights of products and convolutions with fewer channels, computed when they are asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.filters import pack_filters, stored_shape, unpack_filters
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.panels import PANELS, pack_panels, unpack_panels
from tracea_graph.passes.convolution.filters import bias_size

__all__ = [
    "Products", "ins", "is_depthwise", "narrowed", "narrowed_bias", "narrowed_row", "outs",
    "packed", "plain_weights", "shifted_bias", "with_channels",
]  # fmt: skip

Products = GemmParams | ConvParams
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]


def outs(params: Products) -> int:
    """Channels of the result."""
    return params.filters if isinstance(params, ConvParams) else params.n


def ins(params: Products) -> int:
    """Channels of the operand."""
    return params.channels if isinstance(params, ConvParams) else params.k


def with_channels(params: Any, side: str, n: int) -> Any:
    """A product of ``n`` channels on one side; a depthwise one has as many on both."""
    if is_depthwise(params):
        return dataclasses.replace(params, filters=n, channels=n, groups=n)
    names = ("filters", "channels") if isinstance(params, ConvParams) else ("n", "k")
    return dataclasses.replace(params, **{names[side == "operand"]: n})


def is_depthwise(params: Any) -> bool:
    return isinstance(params, ConvParams) and params.layout == "depthwise" and not params.in_bf16


def packed(name: str, matrix: Floats) -> Weight:
    """A matrix ``[k, n]`` as panels under a name."""
    panels = pack_panels(np.asarray(matrix, np.float32))
    return Weight(name, DType.F32, panels.shape, lambda: panels)


def narrowed(
    name: str, weight: Weight, old: Products, new: Products, kept: Mask, axis: int
) -> Weight:
    """The matrix or filters with the kept channels of the result (axis 0) or operand (1)."""
    if isinstance(new, ConvParams):
        shape = stored_shape(new.layout, new.shape)
    else:
        shape = PANELS.shape(new.k, new.n)

    def load() -> Array:
        part = np.compress(kept, plain_weights(old, weight), axis)
        return (
            pack_filters(part, new.layout) if isinstance(new, ConvParams) else pack_panels(part.T)
        )

    return Weight(name, DType.F32, shape, load)


def narrowed_bias(name: str, weight: Weight, new: Products, kept: Mask) -> Weight:
    """The kept numbers of a bias, filled up as its layout wants it."""
    n, size = outs(new), _bias_length(new)

    def load() -> Array:
        return np.pad(weight.array().reshape(-1)[: len(kept)][kept], (0, size - n))

    return Weight(name, DType.F32, (size,), load)


def narrowed_row(name: str, weight: Weight, kept: Mask) -> Weight:
    """The kept numbers of an operand with one per channel; one for all stays."""
    if weight.count == 1:
        return Weight(name, weight.dtype, weight.shape, weight.load)
    axis = weight.shape.index(len(kept))
    shape = (*weight.shape[:axis], int(kept.sum()), *weight.shape[axis + 1 :])
    return Weight(name, weight.dtype, shape, lambda: np.compress(kept, weight.array(), axis))


def shifted_bias(
    name: str, weight: Weight, bias: Weight | None, params: Products, values: Floats
) -> Weight:
    """The bias with what the weights make of channels of constant ``values``."""
    count, size = outs(params), _bias_length(params)

    def load() -> Array:
        start = np.zeros(count) if bias is None else bias.array().reshape(-1)[:count]
        total = start.astype(np.float64)
        if values.any():
            total += plain_weights(params, weight).reshape(count, len(values), -1).sum(2) @ values
        return np.pad(total.astype(np.float32), (0, size - count))

    return Weight(name, DType.F32, (size,), load)


def plain_weights(params: Products, weight: Weight) -> Floats:
    """``[results, operands, …]``."""
    stored = np.asarray(weight.array(), np.float32)
    if isinstance(params, ConvParams):
        return unpack_filters(stored, params.layout, params.shape)
    return unpack_panels(stored, params.n).T


def _bias_length(params: Products) -> int:
    return bias_size(params) if isinstance(params, ConvParams) else params.n
