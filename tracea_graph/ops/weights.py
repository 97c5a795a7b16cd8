"""How the constant matrix of a product is stored: what a layout is, and the plain ones.

A product is mathematics over a matrix ``[K, N]``.  Its kernels may want that otherwise: cut into
strips, in another type, without its zeros.  A :class:`WeightLayout` says how, and gives the
inverse back in ONNX, so that a product needs to know no layout but as an object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.body import BodyBuilder

__all__ = [
    "ALIGNED", "BLOCKS", "KN", "NK", "Floats", "Numbers", "Plain", "WeightLayout", "aligned",
]  # fmt: skip

Floats = npt.NDArray[np.floating[Any]]
Numbers = npt.NDArray[Any]
ALIGNED = 16
"""Rows and columns that a rewrite makes or leaves out come in multiples of this: whole vectors of
a processor, whole tiles of a matrix unit."""
BLOCKS = (1, 4, 16, 32, 64)
"""Steps of k in a block of so many columns that may be zero as a whole."""


def aligned(extent: int) -> int:
    """The extent filled up to a multiple of :data:`ALIGNED`."""
    return extent + -extent % ALIGNED


@dataclass(frozen=True)
class WeightLayout(ABC):
    """One way to store a matrix ``[K, N]``: as one array, or as two.

    ``name`` is unique among the layouts of a backend.  ``operands`` counts the arrays; the second
    one, a map or scales, is the last operand of its product.  ``rounds`` is true where the left
    operand is read in bf16.  ``scattered`` is true where zeros are left out wherever they are.
    ``share`` names the coefficient of its products' speed.
    """

    name: ClassVar[str]
    operands: ClassVar[int] = 1
    rounds: ClassVar[bool] = False
    scattered: ClassVar[bool] = False
    share: ClassVar[str] = "FusedGemm"

    @property
    def block_steps(self) -> int:
        """Steps of k in a block of the matrix; 0 where blocks of zeros are stored like others."""
        return 0

    @property
    def skips(self) -> str:
        """The zeros that are left out, in words; nothing where all are stored."""
        if self.scattered:
            return "scattered zeros"
        return f"zero blocks, {self.block_steps} × {ALIGNED}" if self.block_steps else ""

    def check(self, k: int, n: int) -> None:
        """Raises ValueError for a matrix that cannot be stored so."""
        if min(k, n) < 1:
            raise ValueError(f"no product with K={k}, N={n}")

    def shape(self, k: int, n: int) -> tuple[int, ...] | None:
        """That of the first array; None where it depends on the numbers."""
        return None

    @abstractmethod
    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        """``[K, N]`` as the product multiplies by it."""

    def product(self, x: Floats, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        """``x · W`` as the kernel computes it, x ``[..., K]`` rounded as it rounds it."""
        made: Floats = x @ self.matrix(stored, k, n)
        return made

    @abstractmethod
    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        """The name of ``[K, N]`` in float32, in ONNX's operators."""

    def product_to_onnx(
        self, b: BodyBuilder, x: str, stored: Sequence[str], k: int, n: int
    ) -> str:
        """The name of the product in ONNX's operators."""
        return b("MatMul", x, self.to_onnx(b, stored, k, n))


@dataclass(frozen=True)
class Plain(WeightLayout):
    """The matrix itself, ``[K, N]``, or its transpose."""

    transposed: bool = False

    @property
    def name(self) -> str:  # type: ignore[override]
        return "nk" if self.transposed else "kn"

    def shape(self, k: int, n: int) -> tuple[int, ...]:
        return (n, k) if self.transposed else (k, n)

    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        return stored[0].T if self.transposed else stored[0]

    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        return b("Transpose", stored[0], perm=(1, 0)) if self.transposed else stored[0]


KN, NK = Plain(), Plain(transposed=True)
