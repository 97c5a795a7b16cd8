"""Models that ONNX Runtime takes and this tool cannot read: the original is the result."""

from __future__ import annotations

import traceback
from pathlib import Path

from tracea_graph.check.crew import Crew, fresh
from tracea_graph.errors import ModelError, WorkerError
from tracea_graph.hardware import fingerprint, profile_cpu
from tracea_graph.onnx_io import files_of, node_count, write_original
from tracea_graph.options import Options
from tracea_graph.pipeline.output import Paths, staging
from tracea_graph.pipeline.packages import versions
from tracea_graph.views import Report

__all__ = ["keep_unread"]


def keep_unread(
    source: Path, error: Exception, paths: Paths, options: Options, crew: Crew | None
) -> Report:
    """Write the original as the result of a model whose import ended with ``error``.

    Raises ``error`` if ONNX Runtime refuses the model too, if it is a bug of this tool and the
    environment is strict, or if memory or the file system is to blame; UsageError if the result
    cannot be written.
    """
    bug = not isinstance(error, ModelError)
    if isinstance(error, MemoryError | OSError) or (bug and options.environment.strict):
        raise error
    try:
        files, count = files_of(source), node_count(source)
    except ModelError:
        raise error from None
    if not _runs(source, crew):
        raise error
    why = f"{type(error).__name__}: {error} (a bug; -v shows where)" if bug else str(error)
    with staging(paths, files) as stage:
        data = write_original(source, stage.model).data
        report = Report(
            input=str(source),
            output=str(paths.model),
            outcome="kept original",
            reason=f"ONNX Runtime can read it, this tool cannot: {why}",
            data=str(paths.model.with_name(data.name)) if data else None,
            nodes_before=count,
            nodes_after=count,
            status_reason="nothing was rewritten",
            faults=("".join(traceback.format_exception(error)),) if bug else (),
            versions=versions(),
            machine=fingerprint(profile_cpu()),
        )
        stage.report.write_text(report.to_json(), encoding="utf-8")
        stage.publish(data, None, stage.model)
    return report


def _runs(model: Path, crew: Crew | None) -> bool:
    """True if ONNX Runtime opens the model, in a process of its own, and there is something to
    run."""
    with (crew.hire if crew else fresh)(None, {}) as worker:
        try:
            return bool(worker.open("original", model).outputs)
        except WorkerError:  # refused, or the process did not survive it
            return False
