"""Tile orders: functions from tile coordinates to sort keys.

Space-filling curves visit neighboring tiles close in time, while rows of A and columns of B are
still cached.  Sources: Morton 1966 (Z-order); Hilbert 1891, computed as in Warren, "Hacker's
Delight", chapter 16; Lamport 1974 (wavefront).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from tracea_graph.errors import GraphError
from tracea_graph.ttg.iteration_space import Ints

__all__ = [
    "CRITICAL_PATH",
    "ORDERS",
    "column_major",
    "hilbert",
    "order_keys",
    "row_major",
    "wavefront",
    "z_order",
]


def row_major(m: Ints, n: Ints) -> Ints:
    """Key of row-major order."""
    return m * (_top(n) + 1) + n


def column_major(m: Ints, n: Ints) -> Ints:
    """Key of column-major order."""
    return row_major(n, m)


def z_order(m: Ints, n: Ints) -> Ints:
    """Key of Morton's curve: the bits of m and n interleaved, m the more significant."""
    return _spread(m) << 1 | _spread(n)


def hilbert(m: Ints, n: Ints) -> Ints:
    """Key of Hilbert's curve over the smallest power-of-two square that contains the grid."""
    x, y, key = n.astype(np.int64), m.astype(np.int64), np.zeros(len(m), np.int64)
    side = 1 << max(_top(m), _top(n)).bit_length()
    while side := side >> 1:
        right, below = (x & side) > 0, (y & side) > 0
        key = (key << 2) | ((3 * right) ^ below)
        flip = right & ~below
        x, y = np.where(flip, ~x, x), np.where(flip, ~y, y)
        x, y = np.where(below, x, y), np.where(below, y, x)
    return key


def wavefront(m: Ints, n: Ints) -> Ints:
    """Key of anti-diagonals: every tile follows its upper and left neighbors."""
    return row_major(m + n, m)


ORDERS: Mapping[str, Callable[[Ints, Ints], Ints]] = MappingProxyType(
    {
        "row-major": row_major,
        "column-major": column_major,
        "z-order": z_order,
        "hilbert": hilbert,
        "wavefront": wavefront,
    }
)


CRITICAL_PATH = "critical-path"
"""Order that needs edges: tiles with the most work waiting for them come first."""


def order_keys(name: str, m: Ints, n: Ints) -> Ints:
    """Return sort keys of the tiles at ``(m, n)``; raises GraphError for an unknown order."""
    if name not in ORDERS:
        known = ", ".join((*ORDERS, CRITICAL_PATH))
        raise GraphError(f"unknown tile order {name!r}: choose one of {known}")
    return ORDERS[name](m.astype(np.int64), n.astype(np.int64))


def _top(values: Ints) -> int:
    return int(values.max(initial=0))


def _spread(values: Ints) -> Ints:
    """Put a zero between the bits of 31-bit numbers."""
    v = values.astype(np.int64)
    for shift, mask in (
        (16, 0x0000FFFF0000FFFF),
        (8, 0x00FF00FF00FF00FF),
        (4, 0x0F0F0F0F0F0F0F0F),
        (2, 0x3333333333333333),
        (1, 0x5555555555555555),
    ):
        v = (v | v << shift) & mask
    return v
