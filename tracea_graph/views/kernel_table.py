"""Kernel calls of a result, with what the policy decided about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracea_graph.policy import CallDecision

__all__ = ["KernelRow", "kernel_rows"]


@dataclass(frozen=True)
class KernelRow:
    """Equal kernel calls: their problem, the kernel variant that runs them, and why it was chosen.

    The variant is that of the highest level that this machine may use.  ``tiling`` says how the
    results are divided into tiles.
    """

    call: str
    problem: str
    tiling: str
    variant_id: str
    level: str
    count: int
    reasons: tuple[str, ...] = ()


def kernel_rows(decisions: Iterable[CallDecision]) -> tuple[KernelRow, ...]:
    """Return a row per distinct decision, in order of appearance."""
    counts: dict[CallDecision, int] = {}
    for one in decisions:
        counts[one] = counts.get(one, 0) + 1
    return tuple(
        KernelRow(
            one.call, str(one.decision.topology), one.decision.tiling, one.decision.variant_id,
            one.decision.winner.level, count,
            (*one.decision.reasons, *filter(None, (one.link,))),
        )
        for one, count in counts.items()
    )  # fmt: skip
