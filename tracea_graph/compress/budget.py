"""One budget over layers: the most time saved for the error accepted.

Errors of layers add in quadrature, so Σ e² ≤ ε² is a knapsack; its relaxation by one price λ of
squared error gives every layer the option with the largest ``saved − λ·e²``, and the smallest λ
that fits is found by bisection.  What is left of the budget then, for equal layers enter together,
goes to what fits, the most saved per squared error first; and at last to what saves bytes only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

__all__ = ["LayerOption", "allocate", "search", "total_error"]

_ROUNDS, _DEAREST = 60, 1e60
"""Of the bisection, and the price it gives up at."""
_TRIALS = 6
"""Results built and measured, at most, to find what holds the budget."""
_MARGIN, _NEAR = 0.97, 0.75
"""Shares of the budget aimed at, for levels of instruction sets differ in their rounding, and
above which there is nothing left to look for."""
Chosen = dict[str, "LayerOption"]


@dataclass(frozen=True)
class LayerOption:
    """One way to compress a layer: the ``technique``, its ``size`` (rank, or share of zeros), the
    µs predicted to be saved, the error of the layer's own output, and of the model's; the share
    of its numbers that are ``left``, and the ``bytes`` of those that are not."""

    layer: str
    technique: str
    size: float
    saved: float
    layer_error: float
    error: float
    left: float = 1.0
    bytes: float = 0.0


def total_error(options: Sequence[LayerOption]) -> float:
    """The root of the summed squares."""
    return sqrt(sum(c.error**2 for c in options))


def allocate(options: Mapping[str, Sequence[LayerOption]], budget: float) -> Chosen:
    """At most one option per layer, together within ``budget``; layers without one stay."""

    def at(price: float) -> Chosen:
        found = {}
        for layer, offers in options.items():
            best = max(offers, key=lambda c: c.saved - price * c.error**2, default=None)
            if best is not None and best.saved > price * best.error**2:
                found[layer] = best
        return found

    def fits(price: float) -> bool:
        return total_error([*at(price).values()]) <= budget

    if fits(0.0):
        return _filled(options, at(0.0), budget)
    low, high = 0.0, 1.0
    while not fits(high) and high < _DEAREST:
        low, high = high, high * 16
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return _filled(options, at(high) if fits(high) else {}, budget)


def _filled(options: Mapping[str, Sequence[LayerOption]], chosen: Chosen, budget: float) -> Chosen:
    """The chosen options, and more for layers that have none, as long as they fit."""
    found = dict(chosen)
    left = [c for layer, cs in options.items() if layer not in found for c in cs]

    def worth(option: LayerOption) -> tuple[bool, float]:
        faster = option.saved > 0
        return faster, (option.saved if faster else option.bytes) / max(option.error**2, 1e-300)

    for option in sorted(left, key=worth, reverse=True):
        if option.saved <= 0 and not option.bytes:
            break
        if option.layer not in found and total_error([*found.values(), option]) <= budget:
            found[option.layer] = option
    return found


def search(
    options: Mapping[str, Sequence[LayerOption]],
    budget: float,
    measure: Callable[[Chosen, int], float],
    power: int = 1,
) -> tuple[Chosen, float]:
    """The most that was found to hold the budget end to end, and its measured error.

    What is allocated backs off while ``measure`` (a choice, and the number of the trial) gives
    more than the budget, and grows while there is room.  Nothing if nothing holds.  The errors of
    options are of changes, whose ``power`` the budget and what is measured are of.
    """
    low, high = 0.0, float("inf")
    allowance, best, best_error = budget ** (1 / power), Chosen(), 0.0
    tried: list[Chosen] = []
    while len(tried) < _TRIALS:
        chosen = allocate(options, allowance)
        if chosen in tried or (not chosen and low >= high / 2):
            break
        if not chosen:  # nothing is as mild as this
            low = allowance
            mildest = min((c.error for cs in options.values() for c in cs), default=0.0)
            if mildest >= high or mildest <= allowance:
                break
            allowance = mildest * 1.001
            continue
        error = measure(chosen, len(tried))
        tried.append(chosen)
        if error <= budget * _MARGIN:
            low, best, best_error = allowance, chosen, error
            if error > _NEAR * budget:
                break
        else:
            high = allowance
        room = (0.9 * budget / max(error, 1e-12)) ** (1 / power)
        step = allowance * min(max(room, 0.05), 4.0)
        allowance = step if low < step < high else (low + min(high, 4 * allowance)) / 2
    return best, best_error
