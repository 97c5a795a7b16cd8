"""Choose which candidates of a case's search space to measure, and in which order.

The backend defines spaces and the cost models that rank them; measurements decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracea_graph.kernels.program import Schedule
from tracea_graph.policy import Config, PolicyEngine, ProcessorFamily, SearchSpace
from tracea_graph.tuning.schedule_space import ScheduleSpace
from tracea_graph.tuning.tuning_problem import Case, default_schedule

__all__ = ["candidates_to_measure", "legal_schedules"]


def legal_schedules(case: Case, schedule_space: ScheduleSpace, level: str) -> Iterator[Schedule]:
    """Yield all distinct schedules, the default first."""
    return (
        schedule_space.schedule(case, c) for c in schedule_space.space(case, level, None).legal()
    )


def candidates_to_measure(
    case: Case,
    schedule_space: ScheduleSpace,
    level: str,
    threads: Sequence[int],
    limit: int | None = None,
    on: ProcessorFamily | None = None,
    within: SearchSpace | None = None,
) -> list[Schedule]:
    """Return at most ``limit`` schedules to compare with the default, which is not among them.

    Seeds come first; the others follow by predicted time, and by the order of
    :func:`legal_schedules` where that is equal.  The policy removes schedules that are not worth
    measuring, unless ``within`` is given: its axes replace those of the backend's space.  Raises
    UsageError if ``within`` has an axis that the backend's space lacks.
    """
    space, default = schedule_space.space(case, level, on), default_schedule(case)
    same = next(space.legal())  # the default's values are first on every axis
    space = space.within(within) if within else space
    before = [schedule_space.modelled_us(case, default, level, t) for t in threads]

    known: dict[Schedule, float] = {}

    def total(config: Config) -> float:
        """Return predicted time / predicted time of the default, added up over thread counts."""
        schedule = schedule_space.schedule(case, config)
        if schedule not in known:
            after = (schedule_space.modelled_us(case, schedule, level, t) for t in threads)
            known[schedule] = sum(a / b for a, b in zip(after, before, strict=True))
        return known[schedule]

    if within is None:
        policy = PolicyEngine(schedule_space.catalog, schedule_space.levels(level))
        space = policy.decide(schedule_space.topology(case)).prune(space, total, same)
    schedules = [schedule_space.schedule(case, config) for config in space.ranked(total)]
    return [d for d in schedules if d != schedule_space.schedule(case, same)][:limit]
