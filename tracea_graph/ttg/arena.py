"""Memory of a program: how long each value lives, and where it lies in one arena.

Values whose lives do not meet share their place: each takes the lowest offset that no value alive
at the same time covers.  The order in which they are placed decides how well they fit; the
largest first comes within a few percent of what is alive at the busiest step, which no layout
undercuts.  Lives and order are planned here, once; sizes may depend on symbols, so the library
evaluates them and lays out again, in that order, for every set of sizes (``runtime/run.h``).
Source: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", MLSys 2020
workshop (greedy by size).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Arena", "Lifetime", "lay_out", "live_range", "placement"]

Loops = Iterable[tuple[int, int]]
"""The first and last step of what is repeated, inclusive."""


@dataclass(frozen=True)
class Lifetime:
    """A value of so many bytes, alive from step ``first`` to step ``last`` (inclusive)."""

    value: str
    bytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """True if there is a step at which both are alive."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """Offsets of values in bytes, in their order, and the size of the whole."""

    lives: tuple[Lifetime, ...]
    offsets: tuple[int, ...]

    @property
    def bytes(self) -> int:
        ends = (at + life.bytes for at, life in zip(self.offsets, self.lives, strict=True))
        return max(ends, default=0)

    @property
    def least(self) -> int:
        """Bytes alive at the busiest step: no layout does with less."""
        steps = {life.first for life in self.lives}
        alive = (sum(v.bytes for v in self.lives if v.first <= s <= v.last) for s in steps)
        return max(alive, default=0)


def live_range(steps: Sequence[int], loops: Loops = (), carried: bool = False) -> tuple[int, int]:
    """The first and last step at which a value touched by some steps, in order, is live.

    Steps of a loop run again and again: a value that crosses the loop's border, or is ``carried``
    from one iteration to the next, lives as long as the loop runs.
    """
    first, last = steps[0], steps[-1]
    for start, end in loops:
        inside = sum(start <= step <= end for step in steps)
        if inside and (inside < len(steps) or carried):
            first, last = min(first, start), max(last, end)
    return first, last


def placement(lives: Sequence[Lifetime]) -> list[int]:
    """The order in which values are placed: the largest first, else as they are born."""
    return sorted(range(len(lives)), key=lambda i: (-lives[i].bytes, lives[i].first, i))


def lay_out(lives: Sequence[Lifetime]) -> Arena:
    """Offsets of values placed one after another, as the library does it."""
    placed: list[tuple[int, Lifetime]] = []
    for life in lives:
        at = 0
        for start, other in sorted((p for p in placed if p[1].meets(life)), key=lambda p: p[0]):
            if start < at + life.bytes and at < start + other.bytes:
                at = start + other.bytes
        placed.append((at, life))
    return Arena(tuple(lives), tuple(at for at, _ in placed))
