"""One budget over layers: the most time saved for the error accepted.

Errors of layers add in quadrature, so Σ e² ≤ ε² is a knapsack; its relaxation by one price λ of
squared error gives every layer the option with the largest ``saved − λ·e²``, and the smallest λ
that fits is found by bisection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

__all__ = ["Choice", "allocate", "total_error"]

_ROUNDS = 60


@dataclass(frozen=True)
class Choice:
    """What could become of a layer: the ``technique``, its ``size`` (rank, or share of zeros), the
    µs predicted to be saved, the error of the layer's own output, and of the model's."""

    layer: str
    technique: str
    size: float
    saved: float
    layer_error: float
    error: float


def total_error(choices: Sequence[Choice]) -> float:
    """The root of the summed squares."""
    return sqrt(sum(c.error**2 for c in choices))


def allocate(menu: Mapping[str, Sequence[Choice]], budget: float) -> dict[str, Choice]:
    """At most one choice per layer, together within ``budget``; layers without one stay."""

    def at(price: float) -> dict[str, Choice]:
        found = {}
        for layer, choices in menu.items():
            best = max(choices, key=lambda c: c.saved - price * c.error**2, default=None)
            if best is not None and best.saved > price * best.error**2:
                found[layer] = best
        return found

    low, high = 0.0, 1.0
    if total_error([*at(low).values()]) <= budget:
        return at(low)
    while total_error([*at(high).values()]) > budget:
        low, high = high, high * 16
        if high > 1e60:
            return {}
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if total_error([*at(middle).values()]) <= budget:
            high = middle
        else:
            low = middle
    return at(high)
