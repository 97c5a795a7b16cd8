"""The pipeline: ``optimize`` is its table of contents; ``load``, ``session`` stand beside it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracea_graph.config import Options
from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import files_of, library_need
from tracea_graph.onnx_io import load as load_model
from tracea_graph.pipeline.candidates import Workshop
from tracea_graph.pipeline.inputs import gather_inputs
from tracea_graph.pipeline.judging import Judge
from tracea_graph.pipeline.output import paths_for, staging
from tracea_graph.pipeline.planning import Planner
from tracea_graph.pipeline.reporting import Clock, Reporter
from tracea_graph.pipeline.stages import STAGES, Stages
from tracea_graph.pipeline.targets import levels_of
from tracea_graph.ttg import TileGraph
from tracea_graph.views import Report

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["STAGES", "load", "optimize", "session", "stages"]

Progress = Callable[[str], None]
DEFAULTS = Options()


def optimize(
    path: str | Path,
    options: Options = DEFAULTS,
    progress: Progress = lambda step: None,
    folder: bool = False,
) -> Report:
    """Write a faster model that computes the same function, and say what was done.

    ``progress`` hears the name of each step; ``folder`` says that ``options.output`` can only be
    a folder.

    Raises ModelError for an invalid model, UsageError for impossible options, BuildError without
    a working compiler, VerifyError if a result is wrong and no rewrite can be blamed.  Whatever
    happens, the input is untouched and no half-written file is left.
    """
    source, clock = Path(path), Clock(progress)
    paths = paths_for(source, options.output, folder)

    clock.step(f"reading {source.name}")
    model = load_model(source)

    clock.step("preparing inputs")
    inputs = gather_inputs(model, options)
    isas = levels_of(options.target, options.precision)

    files = files_of(model)
    with tempfile.TemporaryDirectory(prefix="tracea-") as scratch, staging(paths, files) as stage:
        clock.step("planning")
        planner = Planner(model.graph, options, inputs.timed[0].symbols, isas)
        workshop = Workshop(model, options, planner, isas, Path(scratch))
        report = Reporter(paths, model, inputs, isas, options, clock)
        report.planned(*workshop.plan())

        clock.step("tuning")
        if options.keep == "faster":
            workshop.tune([binding.symbols for binding in inputs.timed])

        clock.step("building")
        full = workshop.build() if report.worth_building() else None

        judge = Judge(model, workshop, inputs, options, isas)
        clock.step("verifying")
        right = judge.verify(full)

        clock.step("timing")
        kept = judge.time(right)

        clock.step("writing")
        return report.publish(kept, judge, workshop, stage)


def load(path: str | Path, fused: bool = False) -> TileGraph:
    """A model's region graph; ``fused`` runs the passes on it first."""
    return stages(path, "passes" if fused else "import").graph


def stages(path: str | Path, until: str, options: Options = DEFAULTS) -> Stages:
    """What each stage makes of a model, up to ``until`` (see :data:`STAGES`); writes nothing."""
    return Stages.run(Path(path), options, until)


def session(path: str | Path, **settings: Any) -> onnxruntime.InferenceSession:
    """An ONNX Runtime session of a result, its library registered if it lies beside the model.

    ``settings`` go to ``InferenceSession``; ``sess_options`` may be among them.  Raises ModelError
    if the file is no model, UsageError if the library beside it is not the one it was written
    with, or is missing though the model cannot run without it.
    """
    import onnxruntime

    model = Path(path)
    options = settings.pop("sess_options", None) or onnxruntime.SessionOptions()
    library, need = model.with_suffix(".so"), library_need(model)
    if library.is_file() and need.sha256:
        if hashlib.sha256(library.read_bytes()).hexdigest() != need.sha256:
            raise UsageError(f"{library} is not the library {model.name} was written with")
        options.register_custom_ops_library(str(library.resolve()))
    elif need.required:
        raise UsageError(f"{model} cannot run without its library: put {library.name} beside it")
    return onnxruntime.InferenceSession(str(model), options, **settings)
