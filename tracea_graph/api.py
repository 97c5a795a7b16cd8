"""Python interface: ``optimize``, whose stages are listed here, ``load`` and ``session``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from tracea_graph.check.custom_op_libraries import use_custom_op_libraries
from tracea_graph.check.worker_pool import WorkerPool
from tracea_graph.commands.inspect import StageResults
from tracea_graph.context import Context
from tracea_graph.errors import OutdatedDecisionsError, UsageError, did_you_mean
from tracea_graph.native_library import NativeLibrary, NodeRun
from tracea_graph.onnx_io import check_shapes, library_of, write_masked
from tracea_graph.onnx_io import load as load_model
from tracea_graph.options import Options
from tracea_graph.passes import CLUSTERING
from tracea_graph.pipeline.library_builder import LibraryBuilder
from tracea_graph.pipeline.output_files import ResultPaths, paths_of_all
from tracea_graph.pipeline.plan_lock import read_lock
from tracea_graph.pipeline.stages import (
    PipelineRun,
    Stage,
    build,
    choose,
    gather,
    measure,
    plan,
    publish,
    read,
    screen,
    tune,
    verify,
)
from tracea_graph.pipeline.step_timer import Deadline, StepTimer
from tracea_graph.policy import KernelPlan
from tracea_graph.session_policy import RuntimePolicy, read_policy
from tracea_graph.target import HOST, resolve_precision, target_of
from tracea_graph.temporary_files import ScratchFolder, remove_leftovers
from tracea_graph.toolchain.object_cache import check_object_cache
from tracea_graph.ttg import TileGraph
from tracea_graph.views import Report
from tracea_graph.views.shape_check import ShapeReport, ShapeRow

if TYPE_CHECKING:
    import onnxruntime

__all__ = [
    "OptimizeOutcome", "load", "optimize", "optimize_many", "plan_kernel", "session",
    "stage_results", "validate_shapes",
]  # fmt: skip

Progress = Callable[[str], None]
SHAPE_POLICIES = ("lenient", "strict")
DEFAULTS = Options()
PLANNING: tuple[Stage, ...] = (
    read,  # the model, and cached decisions of an equal run
    gather,  # the inputs to verify and to time with
    choose,  # what to plan for: guarded initializers, compression
    plan,  # rewrites by predicted gain, lowered to programs
)
FINISHING: tuple[Stage, ...] = (
    screen,  # a first result, with all rewrites
    tune,  # schedules of the kernels
    build,  # a library, and a model that uses it
    verify,  # compare with the original, drop wrong rewrites
    measure,  # time against the original, drop rewrites that are not faster
    publish,  # the files, and the report beside them
)
STAGES = PLANNING + FINISHING
"""Stages of :func:`optimize`, in order; of several models, all are planned before one is built."""


@dataclass(frozen=True)
class OptimizeOutcome:
    """Outcome of one model: a report, or the error that stopped it.

    ``interrupt`` is the KeyboardInterrupt that ended the optimization early, if any; the report
    then describes the first verified result.
    """

    source: Path
    report: Report | None = None
    error: Exception | None = None
    interrupt: KeyboardInterrupt | None = None


def optimize(
    model: str | Path | TileGraph,
    options: Options = DEFAULTS,
    progress: Progress = lambda step: None,
    folder: bool = False,
) -> Report:
    """Write a faster model that computes the function of ``model``, and return a report.

    ``model`` may be a graph: the file that it was loaded from is then optimized.  If tiles were
    set in the graph, the model with these tiles masked is written beside the result as
    ``NAME.tiles.onnx``, and the result is compared with that model.  ``progress`` is called with
    the name of each step.  With ``folder``, ``options.output`` is taken as a folder even if it
    does not look like one.  A model that ONNX Runtime can read but this tool cannot is kept
    unchanged.

    Raises ModelError for an invalid model, UsageError for impossible options, BuildError without a
    working compiler, VerifyError if a result is wrong and no rewrite is the culprit.  In all cases
    the input is untouched and no partial file is left.  On a KeyboardInterrupt, the first verified
    result is written if there is one, and the exception is raised again unless
    ``options.keep_on_interrupt``.
    """
    if isinstance(model, TileGraph):
        model, options = _masked(model, options)
    (outcome,) = optimize_many([model], options, progress, folder)
    if outcome.interrupt is not None and not options.keep_on_interrupt:
        raise outcome.interrupt
    if outcome.report is None:
        raise outcome.error or AssertionError("an outcome without a report has an error")
    return outcome.report


def _masked(graph: TileGraph, options: Options) -> tuple[Path, Options]:
    """Return the file of a graph's model, masked if tiles were set, and options for it."""
    if graph.source is None:
        raise UsageError("this graph was not loaded from a file: use tracea_graph.load")
    read = load_model(graph.source, freeze=options.freeze_initializers)
    if not graph.patterns.keys() - read.graph.patterns.keys():
        return graph.source, options
    result = paths_of_all([graph.source], options.output)[0].model
    result.parent.mkdir(exist_ok=True)
    stem = graph.source.stem if options.output is None else result.stem
    masked = result.with_name(f"{stem}.tiles.onnx")
    write_masked(read, graph.patterns, masked)
    return masked, replace(options, output=result)


def optimize_many(
    paths: Iterable[str | Path],
    options: Options = DEFAULTS,
    progress: Progress = lambda step: None,
    folder: bool = False,
) -> Iterator[OptimizeOutcome]:
    """Optimize several models like :func:`optimize`; an error stops only its own model.

    If nothing is timed (``keep="all"``), all models are planned first.  They then share one
    library, which compiles faster than several, and the processes that verify results.  An
    interrupted model whose first result was written is the last one that is yielded.  If
    ``options.data`` is a folder, the inputs of ``NAME.onnx`` are read from ``NAME.npz`` in that
    folder.

    Raises UsageError, before anything is done, if one result would overwrite another or an input,
    or if the cache cannot hold what must be compiled.
    """
    sources = [Path(path) for path in paths]
    places = paths_of_all(sources, options.output, folder)
    if options.custom_ops:
        check_object_cache(options.environment)
    work = list(zip(sources, places, strict=True))
    batches = [work] if options.keep == "all" else [[one] for one in work]
    return _until_interrupted(
        outcome for batch in batches for outcome in _together(batch, options, progress)
    )


def _until_interrupted(outcomes: Iterable[OptimizeOutcome]) -> Iterator[OptimizeOutcome]:
    for outcome in outcomes:
        yield outcome
        if outcome.interrupt is not None:
            return


def _together(
    work: Sequence[tuple[Path, ResultPaths]], options: Options, progress: Progress
) -> Iterator[OptimizeOutcome]:
    """Plan all models, then finish each one, with a shared library and shared workers."""
    lock = read_lock(options.lock) if options.lock else None
    options = lock.apply_settings(options) if lock else options
    precision, notes = resolve_precision(options.target, options.precision)
    options = replace(options, precision=precision)
    budget = math.inf if lock else options.budget  # a lock leaves nothing to decide
    remove_leftovers()
    own = use_custom_op_libraries(options.custom_ops_libraries)
    with own, ScratchFolder() as name, ExitStack() as stack:
        target = target_of(options.target, precision)
        libraries = stack.enter_context(LibraryBuilder(target, options.environment))
        worker_pool = stack.enter_context(WorkerPool()) if options.keep == "all" else None
        runs = []
        for i, (source, paths) in enumerate(work):
            timer, folder = StepTimer(progress), Path(name, str(i))
            deadline = Deadline(budget, timer.spent)
            runs.append(
                PipelineRun(
                    source,
                    paths,
                    options,
                    notes,
                    libraries,
                    worker_pool,
                    folder,
                    lock,
                    timer,
                    deadline,
                )
            )
        errors = [_failure(run, PLANNING) for run in runs]
        if len(runs) > 1:
            progress(f"building one library for {len(runs)} models")
            planned = (r for r, e in zip(runs, errors, strict=True) if not (e or r.report))
            libraries.build_shared((run.assembly for run in planned), Path(name, "all.so"))
        for error in errors:
            run = runs.pop(0)  # free the memory of finished runs
            error = error or _failure(run, FINISHING)
            if isinstance(error, OutdatedDecisionsError):
                run = run.anew(error)
                error = _failure(run, STAGES)
            yield OptimizeOutcome(run.source, run.report, error, run.interrupt)


def _failure(run: PipelineRun, stages: Sequence[Stage]) -> Exception | None:
    """Run stages and return the error that stops the run; None if it succeeds or was finished."""
    try:
        with run.open:
            try:
                for stage in stages:
                    if run.report is None:
                        with run.decision_cache.invalidating(run.lock):
                            stage(run)
            except KeyboardInterrupt as interrupt:
                if not run.keep_first(interrupt):
                    raise
    except Exception as error:  # reported to the caller; the other models continue
        return error
    return None


def load(path: str | Path, fused: bool = False) -> TileGraph:
    """Return a model's region graph; if ``fused``, run the passes on it first.

    The last passes, which cluster regions into programs, are not run, so that every fused region
    remains visible.
    """
    if not fused:
        return stage_results(path, "import").graph
    return stage_results(path, "passes", Options(skip=CLUSTERING)).graph


def stage_results(path: str | Path, until: str, options: Options = DEFAULTS) -> StageResults:
    """Run the pipeline up to the stage ``until`` and return the results of all stages.

    No file is written.  The stages are those of the option ``--until``.
    """
    return StageResults.run(Path(path), options, until)


def plan_kernel(
    op: str,
    shape: Sequence[int] | None = None,
    precision: str = "FP32",
    target: str = HOST,
) -> KernelPlan:
    """Return the kernel that a target (default: this machine) runs for a problem, and why.

    See :meth:`tracea_graph.Context.plan_kernel`.
    """
    return Context(target).plan_kernel(op, shape, precision)


def validate_shapes(graph: str | Path | TileGraph, policy: str = "lenient") -> ShapeReport:
    """Return every shape contradiction in a model file, or in the file a graph was loaded from.

    The ``lenient`` policy reports contradictions that exist at all sizes: operands that do not fit
    together, and declared shapes and types that differ from the computed ones.  The ``strict``
    policy also reports declarations that hold only for some sizes, and tensors of unknown rank.
    Raises ModelError for a file that is no model, UsageError for an unknown policy and for a graph
    that was not loaded from a file.
    """
    if policy not in SHAPE_POLICIES:
        which = did_you_mean(policy, SHAPE_POLICIES) or f"; use {' or '.join(SHAPE_POLICIES)}"
        raise UsageError(f"there is no policy {policy!r}{which}")
    if isinstance(graph, TileGraph):
        if graph.source is None:
            raise UsageError("this graph was not loaded from a file: use tracea_graph.load")
        graph = graph.source
    count, found = check_shapes(Path(graph), policy == "strict")
    rows = tuple(ShapeRow(c.kind, c.node, c.value, c.reason) for c in found)
    return ShapeReport(str(graph), policy, count, rows)


def session(
    path: str | Path,
    custom_ops_libraries: Sequence[str | Path] = (),
    *,
    policy: str | Path | None = None,
    on_run: Callable[[NodeRun], None] | None = None,
    **settings: Any,
) -> onnxruntime.InferenceSession:
    """Open an ONNX Runtime session of a result, with the library beside the model registered.

    ``custom_ops_libraries`` are those that the original needs.  ``policy`` is a YAML file whose
    ``runtime`` mapping says how to run (:class:`RuntimePolicy`).  ``on_run`` is called after every
    run of a node, with its times, on the thread that ran it, until the session is closed.  A
    library has one profile, one time limit and one ``on_run`` per process: profile and limit are
    those of the first session, ``on_run`` is that of the last.  ``settings`` are passed to
    ``InferenceSession``; ``sess_options`` may be among them.  Raises
    ModelError if the file is no model, UsageError if the library is not the one the model was
    written with, or is missing and required, or if the policy makes no sense.
    """
    import onnxruntime

    model = Path(path)
    options = settings.pop("sess_options", None) or onnxruntime.SessionOptions()
    chosen = read_policy(Path(policy)) if policy is not None else RuntimePolicy()
    if chosen.threads is not None:
        options.intra_op_num_threads = chosen.threads
    if chosen.allocator is not None:
        options.enable_cpu_mem_arena = chosen.allocator == "arena"
    with chosen.applied():
        return _opened(model, options, custom_ops_libraries, on_run, settings)


def _opened(
    model: Path,
    options: onnxruntime.SessionOptions,
    custom_ops_libraries: Sequence[str | Path],
    on_run: Callable[[NodeRun], None] | None,
    settings: dict[str, Any],
) -> onnxruntime.InferenceSession:
    import onnxruntime

    if (library := library_of(model)) is not None:
        options.register_custom_ops_library(str(library.resolve()))
    for own in custom_ops_libraries:
        options.register_custom_ops_library(str(Path(own).resolve()))
    opened = onnxruntime.InferenceSession(str(model), options, **settings)
    if on_run is not None and library is not None:
        kernels = NativeLibrary(library.resolve())
        kernels.observe(on_run)
        finalize(opened, kernels.stop_observing, on_run)
    return opened
