"""What an op computes, as the cost model counts it; each op's ``cost`` stands beside the op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Dims", "Fitted", "OpCost"]

Dims = Sequence[float]
"""A shape whose symbols are bound to numbers."""


class Fitted(Protocol):
    """Numbers that were fitted to measurements, by name."""

    @property
    def shares(self) -> Mapping[str, float]:
        """Shares of the peak that products reach."""
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
    """``product``: operations of matrix products over the share of the peak they run at;
    ``vector``: instructions; ``us``: what neither explains.

    An op of ``one_pass`` computes while it moves data; others take several passes over a row.
    """

    product: float = 0.0
    vector: float = 0.0
    us: float = 0.0
    one_pass: bool = False

    def __add__(self, other: OpCost) -> OpCost:
        """The cost of one after the other."""
        return OpCost(self.product + other.product, self.vector + other.vector, self.us + other.us)
