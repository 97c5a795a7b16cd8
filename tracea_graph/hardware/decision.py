"""The choice of a kernel variant for a problem, with reasons, as a backend's doctor reports it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOISE", "Candidate", "Decision", "time_of"]

NOISE = 1.02
"""Ratio of times that counts as equal; the library then takes the higher ISA level."""


@dataclass(frozen=True)
class Candidate:
    """A variant with its modelled µs on one core, or the reason why it does not qualify."""

    id: str
    level: str
    us: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Decision:
    """The winner of one problem; ``precision_note`` says why another precision is used."""

    op: str
    shape: tuple[int, ...]
    backend: str
    winner: Candidate
    wanted: str
    precision: str
    precision_note: str
    others: tuple[Candidate, ...]
    """Slower candidates by increasing time, then those that do not qualify."""
    score: float = 0.0
    """Modelled GFLOP/s of the winner."""

    @property
    def variant(self) -> str:
        """The winner's id."""
        return self.winner.id

    @property
    def rejected(self) -> tuple[tuple[str, str], ...]:
        """Every other candidate with the reason why it is not the winner."""
        return tuple(
            (c.id, c.why or f"{self._beaten(c)}: {c.us:.3g} µs against {self.winner.us:.3g} µs")
            for c in self.others
        )

    def _beaten(self, other: Candidate) -> str:
        near = time_of(other) <= NOISE * time_of(self.winner)
        return "as fast, but of a lower level" if near else "slower"


def time_of(candidate: Candidate) -> float:
    """Return the modelled µs; 0 for a candidate that does not qualify."""
    return candidate.us or 0.0
