"""``FusedPool``: maximum or average over windows, or over all positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Expr, Extent, TensorSpec, combine, symbols_of
from tracea_graph.ops.conv_windows import ConvWindow, add_constant, sliding_windows, window_count
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ops.window_space import global_pool, pooling
from tracea_graph.ttg.loop_nest_model import RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["PoolParams"]

Floats = npt.NDArray[np.floating[Any]]
KINDS = ("max", "average", "average-inside")
"""Maximum, or NaN if a window has only NaN; average over all taps, with zeros in the padding;
average over the taps inside the image.
"""


@dataclass(frozen=True)
class PoolParams:
    """Parameters of a pooling op, whose operand is ``[N, C, spatial…]``.

    Without a window, all positions are pooled: the result is ``[N, C, 1…]``, or ``[N, C]`` if
    ``flat``.  ONNX's ``ceil_mode`` is expressed by padding, so that no window starts beyond the
    padding.  With ``channels_last``, the operand is ``[N, spatial…, C]`` and holds 8-bit integers;
    each result is the maximum of a window.
    """

    kind: str
    window: ConvWindow | None = None
    flat: bool = False
    channels_last: bool = False

    operands = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.flat and self.window):
            raise ValueError(f"invalid pooling: {self}")
        if self.channels_last and (self.kind != "max" or self.window is None):
            raise ValueError("channels_last needs a maximum over a window")

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        shape = specs[0].shape
        if shape is None or len(shape) < 3:
            raise ValueError("the rank of x is unknown or too low")
        if self.channels_last:
            return (TensorSpec(specs[0].dtype, (shape[0], *self._sizes(shape[1:-1]), shape[-1])),)
        if self.window is not None:
            return (TensorSpec(DType.F32, (*shape[:2], *self._sizes(shape[2:]))),)
        ones = () if self.flat else (1,) * (len(shape) - 2)
        return (TensorSpec(DType.F32, (*shape[:2], *ones)),)

    def _sizes(self, spatial: Sequence[Extent]) -> tuple[Extent, ...]:
        assert self.window is not None
        w = self.window
        axes = zip(spatial, w.spans, w.strides, w.pairs, strict=True)
        return tuple(_positions(n, sum(pad) - span, stride) for n, span, stride, pad in axes)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        x = arrays[0]
        if self.channels_last:
            first = replace(self, channels_last=False)
            wide = np.moveaxis(np.asarray(x, np.float64), -1, 1)
            return [np.moveaxis(first.reference([wide])[0], 1, -1).astype(x.dtype)]
        axes = tuple(range(2, x.ndim))
        reduce = _nan_max if self.kind == "max" else np.mean
        if self.window is None:
            return [reduce(x, axis=axes, keepdims=not self.flat)]
        inner = tuple(a + self.window.rank for a in axes)
        if self.kind == "max":
            inside = sliding_windows(np.ones_like(x), self.window, 0.0)
            return [_nan_max(sliding_windows(x, self.window, -np.inf), inner, inside=inside > 0)]
        total = sliding_windows(x, self.window, 0.0)
        if self.kind == "average":
            return [np.mean(total, axis=inner)]
        return [
            np.sum(total, inner)
            / np.sum(sliding_windows(np.ones_like(x), self.window, 0.0), inner)
        ]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        taps = prod(self.window.kernel) if self.window else 1
        return OpCost(vector=prod(operands[0]) + prod(result) * taps)

    def body(self, opset: int) -> Body:
        b = BodyBuilder(1, opset)
        x = b.inputs[0]
        word = "MaxPool" if self.kind == "max" else "AveragePool"
        if self.window is None:
            y = b(f"Global{word}", x)
            return b.done(b("Flatten", y, axis=1) if self.flat else y)
        window, rank = self.window, self.window.rank
        if self.channels_last:
            x = b("Transpose", x, perm=(0, rank + 1, *range(1, rank + 1)))
        attrs: dict[str, Any] = {
            "kernel_shape": window.kernel, "strides": window.strides, "pads": window.pads,
        }  # fmt: skip
        if set(window.dilations) != {1}:  # dilated averages need opset 19
            attrs["dilations"] = window.dilations
        if self.kind != "max":
            attrs["count_include_pad"] = int(self.kind == "average")
        y = b(word, x, **attrs)
        return b.done(
            b("Transpose", y, perm=(0, *range(2, rank + 2), 1)) if self.channels_last else y
        )

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model the window each result reads, or all positions of a channel."""
        if self.window is None:
            return global_pool(region, graph)
        return pooling(region, graph, self.window, self.channels_last)


def _nan_max(
    x: Floats, axis: tuple[int, ...], keepdims: bool = False, inside: Any = True
) -> Floats:
    """Return the maximum along axes; NaN if all elements ``inside`` are NaN."""
    numbers = np.where(np.isnan(x), -np.inf, x)
    lost = (np.isnan(x) | np.logical_not(inside)).all(axis, keepdims=keepdims)
    lost &= np.isnan(x).any(axis, keepdims=keepdims)
    return np.where(lost, np.nan, np.max(numbers, axis=axis, keepdims=keepdims))


def _positions(size: Extent, slack: int, stride: int) -> Extent:
    """Return ``(size + slack) / stride + 1``, rounded towards zero like ONNX Runtime.

    A window that exceeds the padded size by less than one stride still counts as one position.
    """
    down = window_count(size, slack, stride)
    if isinstance(down, int) or stride == 1 or slack >= -1:
        return down
    if slack + stride == 0:
        return combine("max", down, _any(size))
    up = combine("ceildiv", add_constant(size, slack + stride), stride)
    return combine("max", down, combine("min", up, 1))


def _any(size: Extent) -> Extent:
    """Return 1 if an axis is not empty, else 0.

    A size made by :func:`_positions` is replaced by the size it was made from: successive pools
    would otherwise double the expression.
    """
    if isinstance(size, Expr) and size.op == "max":
        down, some = size.args
        made = isinstance(some, Expr) and some.op == "min" and some.args[1] == 1
        if made and set(symbols_of(down)) == set(symbols_of(some)):
            return some
    return combine("min", size, 1)
