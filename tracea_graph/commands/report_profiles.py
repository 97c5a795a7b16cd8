"""Profile the models of a report, for its page."""

from __future__ import annotations

from pathlib import Path

from tracea_graph.commands.bench import BenchOptions, Progress
from tracea_graph.commands.profile import profile
from tracea_graph.errors import BuildError, TraceaError, UsageError
from tracea_graph.kernels.kernel_metadata import KernelMetadata
from tracea_graph.options import Options
from tracea_graph.target import backend_named
from tracea_graph.views import Report, ReportProfiles

__all__ = ["profile_report_models"]

_PAIRS, _SECONDS = 20, 3.0
"""Runs of each model, and the time limit."""


def profile_report_models(
    report: Report, options: Options, progress: Progress = lambda _: None
) -> ReportProfiles:
    """Profile the original and the result of a run, at its first shape and thread count.

    If a model cannot be profiled, the returned ``missing`` says why; no exception is raised.
    Facts about the result's kernels are read from its object files.
    """
    bench = BenchOptions(
        threads=options.thread_counts[:1], shapes=tuple(options.shapes), pairs=_PAIRS,
        seconds=_SECONDS, data=options.data, seed=options.seed,
    )  # fmt: skip
    kernels = _kernels(report, options) if report.improved else {}
    try:
        before = profile(Path(report.input), bench, progress)
        if not report.improved:
            return ReportProfiles(before)
        if report.backend and backend_named(report.backend).tracing is None:
            why = f"kernels of {report.backend} are not traced"
            return ReportProfiles(before, missing=why, kernels=kernels)
        return ReportProfiles(
            before, profile(Path(report.output), bench, progress), kernels=kernels
        )
    except TraceaError as error:
        return ReportProfiles(missing=str(error), kernels=kernels)


def _kernels(report: Report, options: Options) -> dict[str, KernelMetadata]:
    """Return the facts of the variants that run a result's calls; those that cannot be read lack
    resources.
    """
    names = {row.variant_id for row in report.kernel_calls}
    levels = sorted({row.level for row in report.kernel_calls})
    try:
        backend = backend_named(report.backend)
    except UsageError:  # a result of several backends
        return {}
    try:
        found = backend.metadata(levels, tuple(names), options.environment)
    except BuildError:
        found = backend.metadata(levels, tuple(names))
    return {one.name: one for one in found}
