"""Storage layouts of convolution filters: the interface, and ONNX's own layout.

Mathematically, filters are ``[O, I, kernel…]``.  Kernels may store them otherwise: blocked by
channels, in another type, transformed.  A :class:`FilterLayout` describes the storage and writes
its inverse in ONNX, so that convolutions do not depend on particular layouts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tracea_graph.ops.bf16 import round_bf16
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.function_body import BodyBuilder
from tracea_graph.ops.weight_layouts import Floats, Numbers

__all__ = ["PLAIN", "FilterLayout", "PlainFilters", "Sums"]

Sums = Callable[[Floats, Floats], Floats]
"""Returns the convolution of x with filters ``[O, I, kernel…]``."""


@dataclass(frozen=True)
class FilterLayout(ABC):
    """One way to store filters ``[O, I, kernel…]`` in one or several arrays.

    I counts the input channels of one group.  Layouts define:

    * ``name``: unique, together with the type that values are rounded to, among the layouts of a
      backend;
    * ``rounds``: whether x, and the operand that is added to the sum first, are read in bf16;
    * ``reads_reordered`` and ``writes_reordered``: whether x, or the result, has its axes in the
      kernel's own order.
    """

    name: ClassVar[str]
    reads_reordered: ClassVar[bool] = False
    writes_reordered: ClassVar[bool] = False

    @property
    def operands(self) -> int:
        """Number of arrays; those after the first are the last operands of the convolution."""
        return 1

    @property
    def fallbacks(self) -> int:
        """Number of arrays at the end that are fallback weights, read instead of the others."""
        return 0

    @property
    def rounds(self) -> bool:
        return False

    @property
    def side(self) -> int:
        """Results along an axis per tile; a partial tile costs as much as a full one."""
        return 1

    def check(self, shape: Sequence[int], groups: int, window: ConvWindow) -> None:
        """Raise ValueError for filters this layout cannot store."""
        if min(shape) < 1:
            raise ValueError(f"filters cannot have the shape {shape}")

    def biases(self, filters: int) -> int:
        """Length of the stored bias, which is the number of filters plus padding with zeros."""
        return filters

    @abstractmethod
    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the first array."""

    @abstractmethod
    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        """Return the filters ``[O, I, kernel…]`` that the stored arrays represent."""

    def convolve(
        self, x: Floats, stored: Sequence[Numbers], shape: Sequence[int], sums: Sums
    ) -> Floats:
        """Evaluate the convolution ``sums(x, filters)``; x is rounded as the kernel rounds it."""
        return sums(round_bf16(x) if self.rounds else x, self.filters(stored, shape))

    @abstractmethod
    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        """Write nodes that restore ``[O, I, kernel…]`` filters in float32; return their name."""


@dataclass(frozen=True)
class PlainFilters(FilterLayout):
    """Filters stored as ``[O, I, kernel…]``."""

    name: ClassVar[str] = "plain"

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape)

    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        return stored[0]

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        return stored[0]


PLAIN = PlainFilters()
