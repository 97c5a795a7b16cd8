"""Smaller matrices under one error budget: what is chosen before planning, and told about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from tracea_graph.errors import UsageError, VerifyError
from tracea_graph.options import Options
from tracea_graph.passes.sparse.dead_channels import DEAD_CHANNELS
from tracea_graph.pipeline.candidates import Built
from tracea_graph.pipeline.choosing import Chooser, Setting, Settled
from tracea_graph.pipeline.inputs import Inputs
from tracea_graph.pipeline.planning import Planner
from tracea_graph.views import CompressionRow

__all__ = ["Compression", "Setting", "compress"]


@dataclass(frozen=True)
class Compression:
    """What was chosen, and what is told about it.

    ``inputs`` are those to verify and time with, ``planner`` plans with what was chosen;
    ``measure`` is the error of a result on inputs that steered nothing, by the user's
    ``own_metric`` or as a share of max|y|.
    """

    inputs: Inputs
    planner: Planner
    rows: tuple[CompressionRow, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measure: Callable[[Built], float] | None = None
    steered: Callable[[Built], float] | None = None
    budget: float = 0.0
    own_metric: bool = False

    def confirm(self, kept: Built | None) -> tuple[float | None, tuple[str, ...]]:
        """The error of what is to be published on inputs that steered nothing, and a warning if
        it is above the budget there; None where nothing was chosen.

        Raises VerifyError if what was kept no longer holds the budget by the user's own metric on
        the inputs that steered the search.
        """
        if kept is None or self.measure is None or self.steered is None:
            return None, ()
        if self.own_metric and (error := self.steered(kept)) > self.budget:
            raise VerifyError(
                f"what was kept has an error of {error:.3g} by --metric, "
                f"above the {self.budget:.3g} allowed"
            )
        found = self.measure(kept)
        if found <= self.budget:
            return found, ()
        return found, (
            f"on inputs that steered nothing the error is {found:.3g}, above the "
            f"{self.budget:.3g} allowed: more --data would show it earlier",
        )


def compress(setting: Setting) -> Compression:
    """Choose smaller matrices for a model.  Without ``--low-rank`` and ``--prune``: nothing.

    Raises UsageError for options that contradict each other, data that does not fit, a metric that
    fails and a budget that is none.
    """
    options = setting.options
    if not options.compresses:
        if options.metric:
            raise UsageError("--metric measures --low-rank and --prune: give one of them with it")
        return Compression(setting.inputs, setting.planner)
    check_options(options)
    setting.clock.step("compressing")
    # layers are known by their own channels; what is dropped between them would hide them
    skip = (*options.skip, DEAD_CHANNELS)
    chooser = Chooser(
        dataclasses.replace(setting, options=dataclasses.replace(options, skip=skip))
    )
    # threads of BLAS spin for each other: no more of them than were asked for
    with threadpool_limits(chooser.threads, user_api="blas"):
        settled = chooser.settle()
    warnings = tuple(chooser.warnings)
    if settled is None and not options.metric:
        return Compression(chooser.inputs, setting.planner, warnings=warnings)
    return _told(chooser, settled, warnings)


def _told(chooser: Chooser, settled: Settled | None, warnings: tuple[str, ...]) -> Compression:
    """What was chosen; where nothing was, the metric still judges what precision costs."""
    return Compression(
        chooser.inputs,
        chooser.planner_of(settled.compressed) if settled else chooser.setting.planner,
        settled.rows if settled else (),
        warnings,
        (settled.note,) if settled else (),
        lambda built: chooser.gauge.error(built, chooser.parts.report),
        lambda built: chooser.gauge.error(built, chooser.parts.steer),
        chooser.budget,
        bool(chooser.options.metric),
    )


def check_options(options: Options) -> None:
    """Raise UsageError for options that leave nothing to choose, or nothing to measure."""
    what = "--low-rank" if options.low_rank is not None else "--prune"
    if options.low_rank is not None and not 0 < options.low_rank <= 1:
        raise UsageError(f"--low-rank takes an error above 0, up to 1, not {options.low_rank:g}")
    if options.max_error is not None and not options.max_error > 0:
        raise UsageError(f"{what} needs a --max-error above 0, not {options.max_error:g}")
    for name, on in (
        ("--no-custom-ops", not options.custom_ops),
        ("--plain-weights", options.plain_weights),
        ("--no-verify", not options.verify),
        ("--lock", options.lock is not None),
        ("--save-lock", options.save_lock is not None),
    ):
        if on:
            raise UsageError(f"{what} and {name} contradict each other")
