"""Windows of convolutions and pools over ``[N, C, spatial…]``: sizes, and NumPy views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Expr, Extent, combine

__all__ = ["ConvWindow", "add_constant", "sliding_windows", "window_count"]

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class ConvWindow:
    """Kernel, strides and dilations per axis; ``pads`` are all starts, then all ends (ONNX)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    def __post_init__(self) -> None:
        rank = len(self.kernel)
        same = len(self.strides) == len(self.dilations) == rank == len(self.pads) // 2
        if not same or min((*self.kernel, *self.strides, *self.dilations, 1)) < 1:
            raise ValueError(f"invalid window: {self}")
        if min((*self.pads, 0)) < 0:
            raise ValueError(f"padding must not be negative: {self.pads}")

    @classmethod
    def unit(cls, kernel: Sequence[int]) -> ConvWindow:
        """Return a window of stride and dilation 1 without padding."""
        ones = (1,) * len(kernel)
        return cls(tuple(kernel), ones, ones, (0,) * (2 * len(kernel)))

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def spans(self) -> tuple[int, ...]:
        """Input elements from the first to the last tap of a window, per axis."""
        pairs = zip(self.kernel, self.dilations, strict=True)
        return tuple(d * (k - 1) + 1 for k, d in pairs)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Padding before and after, per axis."""
        return tuple(zip(self.pads[: self.rank], self.pads[self.rank :], strict=True))

    @property
    def padded(self) -> bool:
        return any(self.pads)

    @property
    def pointwise(self) -> bool:
        """Whether the kernel has one tap and visits every position."""
        return not self.padded and set(self.kernel) | set(self.strides) == {1}

    def sizes(self, spatial: Sequence[Extent]) -> tuple[Extent, ...]:
        """Number of positions per axis."""
        axes = zip(spatial, self.spans, self.strides, self.pairs, strict=True)
        return tuple(
            window_count(size, sum(pad) - span, stride) for size, span, stride, pad in axes
        )


def window_count(size: Extent, slack: int, stride: int) -> Extent:
    """Return the number of windows along an axis, ``⌊(size + slack) / stride⌋ + 1``, simplified.

    ``slack`` is the total padding minus the extent of a window.
    """
    return combine("floordiv", add_constant(size, slack + stride), stride)


def add_constant(size: Extent, number: int) -> Extent:
    """Return ``size + number``, adding up the numbers in nested sums."""
    if isinstance(size, Expr) and size.op == "add":
        inner, more = size.args
        if isinstance(more, int):
            size, number = inner, number + more
    if number < 0:
        return combine("sub", size, -number)
    return combine("add", size, number)


def sliding_windows(x: Floats, window: ConvWindow, fill: float) -> Floats:
    """Return ``[N, C, positions…, kernel…]``: every window of an array padded with ``fill``."""
    widths = [(0, 0), (0, 0), *window.pairs]
    padded = np.pad(x, widths, constant_values=fill)
    axes = tuple(range(2, x.ndim))
    whole = np.lib.stride_tricks.sliding_window_view(padded, window.spans, axes)
    steps = (slice(None, None, s) for s in window.strides)
    taps = (slice(None, None, d) for d in window.dilations)
    result: Floats = whole[(slice(None), slice(None), *steps, *taps)]
    return result
