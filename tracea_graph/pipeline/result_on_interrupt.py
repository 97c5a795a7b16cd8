"""The first result of a run, which is published if the user interrupts the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracea_graph.check.paired_benchmark import Key
from tracea_graph.check.rewrite_selection import GroupSelection
from tracea_graph.check.timing_statistics import Ratio
from tracea_graph.check.verify_outputs import Verification
from tracea_graph.options import Options
from tracea_graph.pipeline.candidate_models import BuiltModel
from tracea_graph.tuning import ScheduleTables
from tracea_graph.views.report_record import speedup_in_words

__all__ = ["FirstResult", "known_ratios", "worth_screening"]

_SCREENED_US = 2e3
"""Minimum predicted run time in µs for screening; faster models soon have their final result."""
_SCREENED_BUDGET = 30.0
"""Seconds left of the budget below which nothing is screened."""


def worth_screening(options: Options, us: float, left: float) -> bool:
    """Return whether a first result is worth timing for a model of ``us`` predicted microseconds.

    ``left`` are the seconds left of the budget.
    """
    decides = options.keep == "faster" and options.verify and options.effort != "quick"
    return decides and left >= _SCREENED_BUDGET and us >= _SCREENED_US


@dataclass(frozen=True)
class FirstResult:
    """A candidate with all rewrites that was verified and measured faster, before tuning.

    It has kernels for the highest level only.
    """

    built: BuiltModel
    verification: Verification
    decision: GroupSelection
    schedules: ScheduleTables

    @property
    def gain(self) -> str:
        """The speedup in words."""
        found = self.decision.total.values()
        return speedup_in_words([r.low for r in found], [r.median for r in found])

    @property
    def warning(self) -> str:
        """The warning in the report of an interrupted run."""
        found = self.built.built
        levels = f" and kernels for {', '.join(found.levels)} only" if found else ""
        return (
            f"interrupted: this is the first result, with all rewrites{levels}; a whole run may "
            "find a faster one"
        )


def known_ratios(
    first: FirstResult | None, dropped: frozenset[str], schedules: ScheduleTables
) -> Mapping[Key, Ratio]:
    """Return the first result's ratios if they hold for a candidate, else an empty mapping.

    They hold if the candidate has equal rewrites and schedules.  It may have kernels of lower
    levels, which do not run in a measurement.
    """
    same = first is not None and not dropped and schedules == first.schedules
    return first.decision.total if first is not None and same else {}
