"""Storage layouts of the constant matrix of a product: the interface, and the plain layouts.

Mathematically, the matrix is ``[K, N]``.  Kernels may store it otherwise: in strips, in another
type, without its zeros.  A :class:`WeightLayout` describes the storage and writes its inverse in
ONNX, so that products do not depend on particular layouts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.function_body import BodyBuilder

__all__ = [
    "ALIGNED", "BLOCKS", "KN", "NK", "Floats", "Numbers", "PlainMatrix", "WeightLayout",
    "round_up_aligned",
]  # fmt: skip

Floats = npt.NDArray[np.floating[Any]]
Numbers = npt.NDArray[Any]
ALIGNED = 16
"""Granularity of rows and columns that a rewrite adds or removes: whole vectors of a processor,
whole tiles of a matrix unit.
"""
BLOCKS = (1, 4, 16, 32, 64)
"""Heights, in steps of k, of blocks that may be entirely zero."""


def round_up_aligned(extent: int) -> int:
    """Round an extent up to a multiple of :data:`ALIGNED`."""
    return extent + -extent % ALIGNED


@dataclass(frozen=True)
class WeightLayout(ABC):
    """One way to store a matrix ``[K, N]`` in one or two arrays.

    * ``name``: unique among the layouts of a backend;
    * ``operands``: number of arrays; the second array holds a map or scales;
    * ``adjacent``: whether the second array is the operand after the first array, instead of the
      last operand of the product;
    * ``rounds``: whether the left operand is read in bf16;
    * ``scattered``: whether single zeros are left out wherever they are;
    * ``share``: name of the fitted coefficient for the speed of products in this layout;
    * ``own_zeros``: whether the zero points of columns are stored with the matrix.
    """

    name: ClassVar[str]
    operands: ClassVar[int] = 1
    rounds: ClassVar[bool] = False
    scattered: ClassVar[bool] = False
    share: ClassVar[str] = "FusedGemm"
    own_zeros: ClassVar[bool] = False
    adjacent: ClassVar[bool] = False

    @property
    def block_steps(self) -> int:
        """Steps of k in a block that may be left out if it is zero; 0 if all blocks are stored."""
        return 0

    @property
    def skips(self) -> str:
        """Description of the zeros that are not stored; empty if all zeros are stored."""
        if self.scattered:
            return "scattered zeros"
        return f"zero blocks, {self.block_steps} × {ALIGNED}" if self.block_steps else ""

    def check(self, k: int, n: int) -> None:
        """Raise ValueError for a matrix this layout cannot store."""
        if min(k, n) < 1:
            raise ValueError(f"invalid matrix: K={k}, N={n}")

    def shape(self, k: int, n: int) -> tuple[int, ...] | None:
        """Return the shape of the first array; None if it depends on the values."""
        return None

    @abstractmethod
    def matrix(self, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        """Return the matrix ``[K, N]`` that the stored arrays represent."""

    def product(self, x: Floats, stored: Sequence[Numbers], k: int, n: int) -> Floats:
        """Return ``x · W``; x ``[..., K]`` is rounded as the kernel rounds it."""
        made: Floats = x @ self.matrix(stored, k, n)
        return made

    def integers(
        self, stored: Sequence[Numbers], k: int, n: int
    ) -> tuple[Numbers, Numbers | None]:
        """Return the 8-bit integer matrix, and its columns' zero points if stored with it."""
        return self.matrix(stored, k, n), None

    def integers_to_onnx(
        self, b: BodyBuilder, stored: Sequence[str], k: int, n: int
    ) -> tuple[str, str]:
        """Write :meth:`integers` in ONNX; the second name may be empty."""
        return self.to_onnx(b, stored, k, n), ""

    @abstractmethod
    def to_onnx(self, b: BodyBuilder, stored: Sequence[str], k: int, n: int) -> str:
        """Write nodes that restore the matrix ``[K, N]`` in float32; return its name."""

    def product_to_onnx(
        self, b: BodyBuilder, x: str, stored: Sequence[str], k: int, n: int
    ) -> str:
        """Write the product in ONNX; return its name."""
        return b("MatMul", x, self.to_onnx(b, stored, k, n))


@dataclass(frozen=True)
class PlainMatrix(WeightLayout):
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


KN, NK = PlainMatrix(), PlainMatrix(transposed=True)
