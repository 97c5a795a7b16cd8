"""Derive weights of products and convolutions with fewer channels, lazily."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Array, DType, Weight
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import KN
from tracea_graph.passes.matmul.constant_matrices import lazy_matrix, matrix_of

__all__ = [
    "Products",
    "in_channels",
    "is_depthwise",
    "out_channels",
    "pruned_bias",
    "pruned_row",
    "pruned_weight",
    "shifted_bias",
    "weights_by_result",
    "with_channels",
    "with_matrix",
]  # fmt: skip

Products = GemmParams | ConvParams
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]


def out_channels(params: Products) -> int:
    """Return the number of result channels."""
    return params.filters if isinstance(params, ConvParams) else params.n


def in_channels(params: Products) -> int:
    """Return the number of operand channels."""
    return params.channels if isinstance(params, ConvParams) else params.k


def with_channels(params: Any, side: str, n: int) -> Any:
    """Return parameters with ``n`` channels of the operand or of the result.

    ``side`` is "operand" or "result"; a depthwise convolution gets ``n`` channels on both sides.
    """
    if is_depthwise(params):
        return dataclasses.replace(params, filters=n, channels=n, groups=n)
    if isinstance(params, ConvParams):
        changed: dict[str, Any] = {"channels" if side == "operand" else "filters": n}
    else:
        changed = {"k" if side == "operand" else "n": n, "layout": KN}
    return dataclasses.replace(params, **changed)


def is_depthwise(params: Any) -> bool:
    return (
        isinstance(params, ConvParams)
        and params.groups > 1
        and params.groups == params.channels == params.filters
    )


def with_matrix(params: GemmParams, matrix: Floats) -> tuple[GemmParams, Weight]:
    """Return a product with another matrix ``[K, N]``."""
    other = lazy_matrix("with_matrix", params.k, params.n, lambda: matrix)
    return dataclasses.replace(params, layout=KN), other


def pruned_weight(
    name: str, weight: Weight, old: Products, new: Products, kept: Mask, axis: int
) -> Weight:
    """Return a matrix or filters with only the ``kept`` channels.

    With ``axis`` 0, these are channels of the result, with 1, of the operand.  ``old`` and ``new``
    are the parameters with all and with the kept channels.
    """

    def part() -> Floats:
        return np.compress(kept, weights_by_result(old, weight), axis)

    if not isinstance(new, ConvParams):
        return lazy_matrix(name, new.k, new.n, lambda: part().T)
    return Weight(name, DType.F32, new.shape, part)


def pruned_bias(name: str, weight: Weight, new: Products, kept: Mask) -> Weight:
    """Return the kept elements of a bias."""
    return Weight(name, DType.F32, (out_channels(new),), lambda: weight.array().reshape(-1)[kept])


def pruned_row(name: str, weight: Weight, kept: Mask) -> Weight:
    """Return an operand with only the kept channels; a scalar is returned unchanged."""
    if weight.count == 1:
        return Weight(name, weight.dtype, weight.shape, weight.load)
    axis = weight.shape.index(len(kept))
    shape = (*weight.shape[:axis], int(kept.sum()), *weight.shape[axis + 1 :])
    return Weight(name, weight.dtype, shape, lambda: np.compress(kept, weight.array(), axis))


def shifted_bias(
    name: str, weight: Weight, bias: Weight | None, params: Products, values: Floats
) -> Weight:
    """Return a bias to which the contribution of operand channels is added.

    ``values`` are the constants that these channels hold, 0 for other channels.
    """
    count = out_channels(params)

    def load() -> Array:
        start = np.zeros(count) if bias is None else bias.array().reshape(-1)
        total = start.astype(np.float64)
        if values.any():
            total += (
                weights_by_result(params, weight).reshape(count, len(values), -1).sum(2) @ values
            )
        return total.astype(np.float32)

    return Weight(name, DType.F32, (count,), load)


def weights_by_result(params: Products, weight: Weight) -> Floats:
    """Return the weights as ``[results, operands, …]``."""
    if isinstance(params, ConvParams):
        return np.asarray(weight.array(), np.float32)
    return matrix_of(params, weight).T
