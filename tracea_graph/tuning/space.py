"""What of a case's space is worth measuring, in which order.

Spaces and the cost models that rank them are the backend's, in the policy's terms; what is kept
is decided by measuring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracea_graph.kernels.program import Driver
from tracea_graph.policy import Architecture, Config
from tracea_graph.tuning.problem import Case, default_of
from tracea_graph.tuning.schedules import Schedules

__all__ = ["candidates", "legal"]


def legal(case: Case, schedules: Schedules, level: str) -> Iterator[Driver]:
    """Every driver worth telling apart, the default first."""
    return (schedules.driver(case, c) for c in schedules.space(case, level, None).legal())


def candidates(
    case: Case,
    schedules: Schedules,
    level: str,
    threads: Sequence[int],
    limit: int | None = None,
    on: Architecture | None = None,
) -> list[Driver]:
    """The challengers to measure, at most ``limit``: seeds, then by modelled time.

    Ties are broken by the order of :func:`legal`; the default is not among them.
    """
    space, default = schedules.space(case, level, on), default_of(case)
    before = [schedules.modelled_us(case, default, level, t) for t in threads]

    def total(config: Config) -> float:
        """Modelled times relative to the default's, over all thread counts."""
        driver = schedules.driver(case, config)
        after = (schedules.modelled_us(case, driver, level, t) for t in threads)
        return sum(a / b for a, b in zip(after, before, strict=True))

    drivers = [schedules.driver(case, config) for config in space.ranked(total)]
    same = next(space.legal())  # the default's values are first on every axis
    return [d for d in drivers if d != schedules.driver(case, same)][:limit]
