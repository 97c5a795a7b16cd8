"""Work of an op as the cost model counts it; each op computes its own in ``cost``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Dims", "FittedCoefficients", "OpCost"]

Dims = Sequence[float]
"""A shape whose symbols are bound to numbers."""


class FittedCoefficients(Protocol):
    """Coefficients fitted to measurements, by name."""

    @property
    def shares(self) -> Mapping[str, float]:
        """Fraction of peak throughput that matrix products reach, by kind of kernel."""
        ...

    @property
    def instructions(self) -> Mapping[str, float]:
        """Vector instructions per element."""
        ...

    @property
    def us(self) -> Mapping[str, float]:
        """Fixed costs in µs."""
        ...


@dataclass(frozen=True)
class OpCost:
    """Cost of one op.

    ``product``: operations of matrix products, divided by the fraction of peak they reach;
    ``vector``: vector instructions; ``us``: fixed costs in µs.  A ``one_pass`` op computes while
    it moves data; others take several passes over a row.
    """

    product: float = 0.0
    vector: float = 0.0
    us: float = 0.0
    one_pass: bool = False

    def __add__(self, other: OpCost) -> OpCost:
        """Cost of two ops that run in sequence."""
        return OpCost(self.product + other.product, self.vector + other.vector, self.us + other.us)
