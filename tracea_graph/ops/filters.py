"""How the filters of a convolution are stored: what a layout is, and ONNX's own.

A convolution is mathematics over filters ``[O, I, kernel…]``.  Its kernels may want those
otherwise: several channels side by side, in another type, transformed.  A :class:`FilterLayout`
says how, and gives the inverse back in ONNX, so that a convolution needs to know no layout but as
an object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tracea_graph.ops.bf16 import round_bf16
from tracea_graph.ops.body import BodyBuilder
from tracea_graph.ops.weights import Floats, Numbers
from tracea_graph.ops.windows import ConvWindow

__all__ = ["PLAIN", "FilterLayout", "PlainFilters", "Sums"]

Sums = Callable[[Floats, Floats], Floats]
"""A convolution of x and filters ``[O, I, kernel…]``."""


@dataclass(frozen=True)
class FilterLayout(ABC):
    """One way to store filters ``[O, I, kernel…]``, I of one group: as one array, or as several.

    ``name`` is unique among the layouts of a backend but for what they round.  ``rounds`` is true
    where x, and what the sum is added to first, are read in bf16.  ``reads_reordered`` and
    ``writes_reordered`` are true where the axes of x or of the result lie as the kernel likes it.
    """

    name: ClassVar[str]
    reads_reordered: ClassVar[bool] = False
    writes_reordered: ClassVar[bool] = False

    @property
    def operands(self) -> int:
        """Arrays; those after the first are the last operands of their convolution."""
        return 1

    @property
    def spare(self) -> int:
        """Those of them, the last ones, that are read in place of the others."""
        return 0

    @property
    def rounds(self) -> bool:
        return False

    @property
    def side(self) -> int:
        """Results along an axis that are computed together, and cost as much if they are fewer."""
        return 1

    def check(self, shape: Sequence[int], groups: int, window: ConvWindow) -> None:
        """Raises ValueError for filters that cannot be stored so."""
        if min(shape) < 1:
            raise ValueError(f"no filters of shape {shape}")

    def biases(self, filters: int) -> int:
        """Numbers of the stored bias, zeros after those of the filters."""
        return filters

    @abstractmethod
    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """That of the first array."""

    @abstractmethod
    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        """``[O, I, kernel…]`` as the convolution multiplies by them."""

    def convolve(
        self, x: Floats, stored: Sequence[Numbers], shape: Sequence[int], sums: Sums
    ) -> Floats:
        """``sums`` as the kernel computes them, x rounded as it rounds it."""
        return sums(round_bf16(x) if self.rounds else x, self.filters(stored, shape))

    @abstractmethod
    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        """The name of ``[O, I, kernel…]`` in float32, in ONNX's operators."""


@dataclass(frozen=True)
class PlainFilters(FilterLayout):
    """The filters themselves."""

    name: ClassVar[str] = "plain"

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape)

    def filters(self, stored: Sequence[Numbers], shape: Sequence[int]) -> Floats:
        return stored[0]

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], shape: Sequence[int]) -> str:
        return stored[0]


PLAIN = PlainFilters()
