"""Python interface of the commands that write no model: they return what the commands print.

tg.verify("model.onnx", "model.tracea.onnx").verification.status
tg.bench("model.onnx", "model.tracea.onnx").rows[-1].ratio
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tracea_graph.check.custom_op_libraries import use_custom_op_libraries
from tracea_graph.commands import bench as benchmarks
from tracea_graph.commands import inspect
from tracea_graph.commands import profile as profiles
from tracea_graph.commands import tune as tuning
from tracea_graph.commands.bench import BenchOptions
from tracea_graph.commands.tune import TunedModel
from tracea_graph.commands.verify import verify_models
from tracea_graph.hardware.health_report import Health
from tracea_graph.health_check import Doctor
from tracea_graph.options import Options
from tracea_graph.views.bench import BenchReport
from tracea_graph.views.explain import Explanation
from tracea_graph.views.profile_record import Profile
from tracea_graph.views.verify import VerifyReport

__all__ = ["bench", "doctor", "explain", "profile", "tune", "verify"]

DEFAULTS, BENCH_DEFAULTS = Options(), BenchOptions()


def bench(*models: str | Path, options: BenchOptions = BENCH_DEFAULTS) -> BenchReport:
    """Time several models and compare each with the first one, as ``tracea bench`` does.

    For a single model ``NAME.onnx``, the second model is ``NAME.tracea.onnx`` in the same folder,
    if it exists.  Raises UsageError for invalid options, ModelError for a file that is no model.
    """
    with use_custom_op_libraries(options.custom_ops_libraries):
        return benchmarks.bench([Path(model) for model in models], options)


def profile(model: str | Path, options: BenchOptions = BENCH_DEFAULTS) -> Profile:
    """Profile one model node by node, as ``tracea bench --profile`` does.

    Raises UsageError for invalid options, RejectedByRuntime if the model does not run.
    """
    with use_custom_op_libraries(options.custom_ops_libraries):
        return profiles.profile(Path(model), options)


def verify(
    original: str | Path,
    candidate: str | Path,
    options: Options = DEFAULTS,
    library: str | Path | None = None,
    tolerances: Mapping[str, float] | None = None,
) -> VerifyReport:
    """Compare the outputs of two models on equal inputs, as ``tracea verify`` does.

    ``library`` is the custom-op library of ``candidate``, by default the one in the same folder.
    ``tolerances`` maps names of outputs to the errors accepted for them, relative to the
    ``max|y|`` of the output.  Raises ModelError for a file that is no model, UsageError for an
    unknown output.
    """
    path = Path(library) if library is not None else None
    with use_custom_op_libraries(options.custom_ops_libraries):
        return verify_models(Path(original), Path(candidate), options, path, tolerances)


def explain(
    model: str | Path,
    node: str = "",
    options: Options = DEFAULTS,
    result: str | Path | None = None,
) -> Explanation:
    """Explain what became of every operator of a model, as ``tracea explain`` does.

    ``result`` is the report of an earlier run, by default the one beside the model.  Raises
    UsageError if ``node`` is no operator or value of the model, ModelError for a file that is no
    model.
    """
    report = Path(result) if result is not None else None
    return inspect.explain(Path(model), options, node, report)


def tune(model: str | Path, options: Options = DEFAULTS) -> TunedModel:
    """Tune the kernels of a model within ``options.budget`` seconds, as ``tracea tune`` does.

    Results go to the cache, where :func:`optimize` finds them.  Raises ModelError, UsageError and
    BuildError as optimizing does.
    """
    return tuning.tune_model(Path(model), options)


def doctor(refresh: bool = False) -> Health:
    """Return what this machine supports and lacks, as ``tracea doctor`` prints it.

    Measurements of an earlier call are reused unless ``refresh``.
    """
    return Doctor(refresh=refresh).health()
