"""Tables of few rows in which any two values of two factors meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["pairwise"]

Row = dict[str, Any]


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int = 0) -> list[Row]:
    """Rows with a value of each factor: greedy, the same for the same factors and seed.

    Each row begins with two values that have not met; every further factor takes the value that
    meets most of the row's others for the first time.
    """
    chance = random.Random(seed)
    open_ = {
        frozenset(((a, x), (b, y))): None
        for a, b in itertools.combinations(factors, 2)
        for x, y in itertools.product(factors[a], factors[b])
    }
    rows = []
    while open_:
        row: Row = dict(next(iter(open_)))
        for name in chance.sample(sorted(factors.keys() - row), len(factors) - len(row)):
            values = chance.sample(list(factors[name]), len(factors[name]))
            row[name] = max(values, key=lambda v: len(_pairs(row, name, v) & open_.keys()))
        for a, b in itertools.combinations(row.items(), 2):
            open_.pop(frozenset((a, b)), None)
        rows.append({name: row[name] for name in factors})
    return rows


def _pairs(row: Row, name: str, value: Any) -> set[frozenset[tuple[str, Any]]]:
    return {frozenset((item, (name, value))) for item in row.items()}
