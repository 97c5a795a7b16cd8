"""Memory of a program: how long each value lives, and where it lies in one arena.

Values whose lives do not meet share their place.  Offsets are first fit in the order in which
values are born, as the library's runtime lays out the temporaries of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Arena", "Life", "lay_out"]


@dataclass(frozen=True)
class Life:
    """A value of so many bytes, alive from step ``first`` to step ``last`` (inclusive)."""

    value: str
    bytes: int
    first: int
    last: int

    def meets(self, other: Life) -> bool:
        """True if there is a step at which both are alive."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """Offsets of values in bytes, in their order, and the size of the whole."""

    lives: tuple[Life, ...]
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


def lay_out(lives: Sequence[Life]) -> Arena:
    """First fit: each value at the lowest offset no value alive at the same time covers."""
    placed: list[tuple[int, Life]] = []
    for life in lives:
        at = 0
        for start, other in sorted((p for p in placed if p[1].meets(life)), key=lambda p: p[0]):
            if start < at + life.bytes and at < start + other.bytes:
                at = start + other.bytes
        placed.append((at, life))
    return Arena(tuple(lives), tuple(at for at, _ in placed))
