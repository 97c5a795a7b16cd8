"""Allocate one error budget over layers to save the most time.

Errors of layers add in quadrature, so Σ e² ≤ ε² is a knapsack.  Its relaxation by a price λ of
squared error picks for every layer the option with the largest ``saved − λ·e²``; bisection finds
the smallest λ that fits.  Equal layers enter together, so some budget is left: it goes to further
options that fit, the most saved per squared error first, and finally to options that save only
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

__all__ = ["LayerOption", "allocate_budget", "search_within_budget", "total_error"]

_ROUNDS, _DEAREST = 60, 1e60
"""Iterations of the bisection, and the price at which it gives up."""
_TRIALS = 6
"""Maximum number of results built and measured to find one within the budget."""
_MARGIN, _NEAR = 0.97, 0.75
"""Share of the budget to aim at, because instruction sets round differently, and share at which
the search stops."""
Chosen = dict[str, "LayerOption"]


@dataclass(frozen=True)
class LayerOption:
    """One way to compress a layer.

    * ``size``: the rank, or the share of zeros, that the ``technique`` uses.
    * ``saved``: predicted saving in µs.
    * ``layer_error``, ``error``: errors of the layer's output and of the model's outputs.
    * ``left``: share of the matrix elements that are kept.
    * ``bytes``: size of the elements that are removed.
    """

    layer: str
    technique: str
    size: float
    saved: float
    layer_error: float
    error: float
    left: float = 1.0
    bytes: float = 0.0


def total_error(options: Sequence[LayerOption]) -> float:
    """Return the root of the sum of squared errors."""
    return sqrt(sum(c.error**2 for c in options))


def allocate_budget(options: Mapping[str, Sequence[LayerOption]], budget: float) -> Chosen:
    """Choose at most one option per layer with a total error within ``budget``."""

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
    """Add options for layers that have none, as long as they fit the budget."""
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


def search_within_budget(
    options: Mapping[str, Sequence[LayerOption]],
    budget: float,
    measure: Callable[[Chosen, int], float],
    power: int = 1,
) -> tuple[Chosen, float]:
    """Search for the largest choice whose measured error is within the budget.

    Returns the choice and its error; the choice is empty if none fits.  The sum of predicted
    errors that may be chosen is lowered while ``measure(choice, trial)`` exceeds the budget, and
    raised while the measured error is clearly below it.  Predicted errors are proportional to the
    size of a change; measured errors and the budget are proportional to its ``power``.
    """
    low, high = 0.0, float("inf")
    allowance, best, best_error = budget ** (1 / power), Chosen(), 0.0
    tried: list[Chosen] = []
    while len(tried) < _TRIALS:
        chosen = allocate_budget(options, allowance)
        if chosen in tried or (not chosen and low >= high / 2):
            break
        if not chosen:  # no option fits this allowance
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
