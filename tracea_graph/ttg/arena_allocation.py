"""Memory of a program: lifetimes of its values and their offsets in one arena.

Values whose lifetimes do not overlap share memory: each takes the lowest offset that no value
alive at the same time covers.  The quality of the packing depends on the order in which values are
placed; placing the largest first comes within a few percent of the bytes alive at the busiest
step, which is a lower bound.  Lifetimes and order are planned here, once.  Sizes may depend on
symbols, so the library evaluates them and computes the offsets again, in that order, for every set
of sizes (``runtime/run.h``). Source: Pisarchyk and Lee, "Efficient memory management for deep
neural net inference", MLSys 2020 workshop (greedy by size).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Arena", "Lifetime", "live_range", "place_values", "placement_order"]

Loops = Iterable[tuple[int, int]]
"""First and last step of each loop, inclusive."""


@dataclass(frozen=True)
class Lifetime:
    """A value of ``bytes`` bytes, alive from step ``first`` to step ``last``, inclusive."""

    value: str
    bytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether both values are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """Offsets of values in bytes, in the order of the values, and the size of the whole arena."""

    lives: tuple[Lifetime, ...]
    offsets: tuple[int, ...]

    @property
    def bytes(self) -> int:
        ends = (at + life.bytes for at, life in zip(self.offsets, self.lives, strict=True))
        return max(ends, default=0)

    @property
    def least(self) -> int:
        """Bytes alive at the busiest step, a lower bound of every layout."""
        steps = {life.first for life in self.lives}
        alive = (sum(v.bytes for v in self.lives if v.first <= s <= v.last) for s in steps)
        return max(alive, default=0)


def live_range(steps: Sequence[int], loops: Loops = (), carried: bool = False) -> tuple[int, int]:
    """Return the first and last step at which a value is live that ``steps`` access.

    The steps of a loop repeat: a value that crosses the loop's border, or is ``carried`` from one
    iteration to the next, lives through the whole loop.
    """
    first, last = steps[0], steps[-1]
    for start, end in loops:
        inside = sum(start <= step <= end for step in steps)
        if inside and (inside < len(steps) or carried):
            first, last = min(first, start), max(last, end)
    return first, last


def placement_order(lives: Sequence[Lifetime]) -> list[int]:
    """Return the order in which values are placed: by decreasing size, then by first step."""
    return sorted(range(len(lives)), key=lambda i: (-lives[i].bytes, lives[i].first, i))


def place_values(lives: Sequence[Lifetime]) -> Arena:
    """Place values one after another, as the compiled library does; return their offsets."""
    placed: list[tuple[int, Lifetime]] = []
    for life in lives:
        at = 0
        for start, other in sorted((p for p in placed if p[1].meets(life)), key=lambda p: p[0]):
            if start < at + life.bytes and at < start + other.bytes:
                at = start + other.bytes
        placed.append((at, life))
    return Arena(tuple(lives), tuple(at for at, _ in placed))
