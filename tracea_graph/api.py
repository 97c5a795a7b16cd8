"""The pipeline: ``_steps`` is its table of contents; ``load``, ``session`` stand beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracea_graph.check.crew import Crew
from tracea_graph.doctor import Doctor
from tracea_graph.errors import OutdatedError
from tracea_graph.hardware import Decision
from tracea_graph.onnx_io import Model, files_of, library_of
from tracea_graph.onnx_io import load as load_model
from tracea_graph.options import Options
from tracea_graph.passes import JOINING
from tracea_graph.pipeline.assembly import Assembly
from tracea_graph.pipeline.candidates import Workshop
from tracea_graph.pipeline.clock import Clock, Deadline
from tracea_graph.pipeline.compressing import Setting, compress
from tracea_graph.pipeline.foundry import Foundry
from tracea_graph.pipeline.guarding import guarded_if_it_pays, overridden
from tracea_graph.pipeline.inputs import gather_inputs
from tracea_graph.pipeline.judging import Judge
from tracea_graph.pipeline.lock import Lock, read_lock
from tracea_graph.pipeline.memory import Memory
from tracea_graph.pipeline.output import Paths, check_earlier, paths_of_all, staging
from tracea_graph.pipeline.planning import Planner
from tracea_graph.pipeline.reporting import Reporter
from tracea_graph.pipeline.stages import Stages
from tracea_graph.pipeline.unread import keep_unread
from tracea_graph.scratch import Scratch, sweep
from tracea_graph.target import settle_precision, target_of
from tracea_graph.ttg import TileGraph
from tracea_graph.views import Report

if TYPE_CHECKING:
    import onnxruntime

__all__ = [
    "Outcome", "load", "optimize", "optimize_many", "plan_kernel", "session", "stages",
]  # fmt: skip

Progress = Callable[[str], None]
Steps = Generator[Assembly, None, Report]
DEFAULTS = Options()


@dataclass(frozen=True)
class Outcome:
    """What became of one model: a report, or the error that stopped it."""

    source: Path
    report: Report | None = None
    error: Exception | None = None


def optimize(
    path: str | Path,
    options: Options = DEFAULTS,
    progress: Progress = lambda step: None,
    folder: bool = False,
) -> Report:
    """Write a faster model that computes the same function, and say what was done.

    ``progress`` hears the name of each step; ``folder`` says that ``options.output`` can only be
    a folder.

    A model that this tool cannot read, but ONNX Runtime can, is kept as it is.

    Raises ModelError for an invalid model, UsageError for impossible options, BuildError without
    a working compiler, VerifyError if a result is wrong and no rewrite can be blamed.  Whatever
    happens, the input is untouched and no half-written file is left.
    """
    (outcome,) = optimize_many([path], options, progress, folder)
    if outcome.report is None:
        raise outcome.error or AssertionError("an outcome without a report has an error")
    return outcome.report


def optimize_many(
    paths: Iterable[str | Path],
    options: Options = DEFAULTS,
    progress: Progress = lambda step: None,
    folder: bool = False,
) -> Iterator[Outcome]:
    """Optimize models, each as :func:`optimize` does; an error stops only the model it is about.

    Where nothing is timed (``keep="legal"``) all are planned first, and share a library that is
    compiled in little time and processes that verify: a small model takes some hundredths of a
    second.  If ``options.data`` is a folder, a model's inputs are the ``.npz`` of its name there.

    Raises UsageError, before anything is done, if one result would overwrite another or an input.
    """
    sources = [Path(path) for path in paths]
    places = paths_of_all(sources, options.output, folder)
    work = list(zip(sources, places, strict=True))
    batches = [work] if options.keep == "legal" else [[one] for one in work]
    return (outcome for batch in batches for outcome in _together(batch, options, progress))


def _together(
    work: Sequence[tuple[Path, Paths]], options: Options, progress: Progress
) -> Iterator[Outcome]:
    """Optimize models that share what they can: every one is planned, then each is finished."""
    lock = read_lock(options.lock) if options.lock else None
    options = lock.settle(options) if lock else options
    precision, notes = settle_precision(options.target, options.precision)
    options = replace(options, precision=precision)
    foundry = Foundry(target_of(options.target, precision), options.environment)
    budget = math.inf if lock else options.budget  # a lock leaves nothing to decide
    sweep()
    with Scratch() as name, ExitStack() as stack:
        crew = stack.enter_context(Crew()) if options.keep == "legal" else None
        clocks = [Clock(progress) for _ in work]
        jobs = [
            _Job(
                paths, options, notes, foundry, crew, Path(name, str(i)), clock,
                Deadline(budget, clock.spent),
            )
            for i, ((_, paths), clock) in enumerate(zip(work, clocks, strict=True))
        ]  # fmt: skip
        starts = [
            partial(_steps, source, job, lock) for (source, _), job in zip(work, jobs, strict=True)
        ]
        runs = [start() for start in starts]
        planned = [_advance(run) for run in runs]
        if len(runs) > 1:
            progress(f"building one library for {len(runs)} models")
            foundry.stock((p for p in planned if isinstance(p, Assembly)), Path(name, "all.so"))
        ended = [None if isinstance(p, Assembly) else p for p in planned]
        del planned
        for (source, _), start, run, end in zip(work, starts, runs, ended, strict=True):
            found = end or _advance(run)
            if isinstance(found, OutdatedError):
                anew = start(fresh=True)
                found = first if isinstance(first := _advance(anew), Exception) else _advance(anew)
            if isinstance(found, Report):
                yield Outcome(source, found)
            else:
                assert isinstance(found, Exception)
                yield Outcome(source, error=found)


def _advance(run: Steps) -> Assembly | Report | Exception:
    """Where a run waits, what it returns, or what stops it."""
    try:
        return next(run)
    except StopIteration as end:
        assert isinstance(end.value, Report)
        return end.value
    except Exception as error:  # the caller is told; the other models go on
        return error


@dataclass(frozen=True)
class _Job:
    """How one model is optimized, where its files go, and when it must be done: the time of other
    models does not count."""

    paths: Paths
    options: Options
    notes: Sequence[str]
    foundry: Foundry
    crew: Crew | None
    scratch: Path
    clock: Clock
    deadline: Deadline


def _steps(source: Path, job: _Job, lock: Lock | None, fresh: bool = False) -> Steps:
    """The way of one model.  It waits once, when it is planned, so that others can be too; one
    that only ONNX Runtime can read is kept as it is.

    Raises OutdatedError where an equal earlier run's decision does not hold; not if ``fresh``.
    """
    options = job.options
    job.clock.step(f"reading {source.name}")
    try:
        model = load_model(source, freeze=options.freeze_initializers)
    except Exception as error:  # raised again unless ONNX Runtime takes the model
        return keep_unread(source, error, job.paths, options, job.crew)
    files = files_of(source)
    check_earlier(job.paths, files)
    memory = Memory.of(files, options, job.foundry.target.levels)
    if lock is None and not (fresh or options.fresh):
        lock = memory.recall()
    with memory.holding(lock):
        return (yield from _decided(job, model, files, lock, memory))


def _decided(
    job: _Job, model: Model, files: Sequence[Path], lock: Lock | None, memory: Memory
) -> Steps:
    """From a model that is read to its result; a ``lock`` leaves nothing to decide."""
    paths, options, foundry = job.paths, job.options, job.foundry
    target = foundry.target
    clock, deadline = job.clock, job.deadline
    clock.step("preparing inputs")
    inputs = gather_inputs(model, options)

    clock.step("planning")
    symbols = inputs.timed[0].symbols
    if lock is None:
        model, planner = guarded_if_it_pays(model, options, symbols, target, deadline)
    else:
        model = load_model(model.path, guard=True) if lock.guarded else model
        planner = Planner(model.graph, options, symbols, target, lock.cost)
    locked = lock.recipe(model.graph, target.levels) if lock else None
    with deadline.suspended():  # how far matrices shrink is what the user asked for
        smaller = compress(Setting(model, options, inputs, planner, foundry, job.scratch, clock))
    inputs, planner = overridden(model, smaller.inputs), smaller.planner
    workshop = Workshop(model, options, planner, foundry, job.scratch, locked)
    report = Reporter(
        paths, model, inputs, target.levels, options, job.notes, clock, smaller, deadline, lock,
        memory,
    )  # fmt: skip
    judge = Judge(model, workshop, inputs, options, target.levels, job.crew, lock, deadline)
    if lock and lock.improved:
        judge.prepare()
    assembly, trace = workshop.begin(deadline)
    if lock:
        lock.check(assembly)
        workshop.use(lock.drivers(assembly.workloads(())))
    report.planned(assembly, trace, None if lock and lock.recalled else planner.scan)

    clock.pause()
    yield assembly
    with staging(paths, files) as stage:
        clock.step("tuning")
        if options.keep == "faster" and (lock is None or lock.recalled):
            sizes = [b.symbols for b in inputs.timed]
            workshop.tune(sizes, measure=lock is None, seconds=deadline.left)

        clock.step("building")
        out = stage.model if options.keep == "legal" or lock else None
        wanted = report.worth_building() and (lock is None or lock.improved)
        earlier = lock.stored(paths) if lock else None
        out = stage.beside if earlier else out
        with deadline.suspended():  # compilers take their time once: what they made is kept
            full = workshop.build(out=out, earlier=earlier) if wanted else None

        clock.step("verifying")
        right = judge.verify(full)

        clock.step("timing")
        kept = judge.time(right)
        report.confirm(kept)

        clock.step("writing")
        return report.publish(kept, judge, workshop, stage)


def load(path: str | Path, fused: bool = False) -> TileGraph:
    """A model's region graph; ``fused`` runs the passes on it first.

    Regions that would be steps of one program stay apart then: there is more to see in them.
    """
    if not fused:
        return stages(path, "import").graph
    return stages(path, "passes", Options(skip=JOINING)).graph


def stages(path: str | Path, until: str, options: Options = DEFAULTS) -> Stages:
    """What each stage makes of a model, up to ``until`` (see ``--until``); writes nothing."""
    return Stages.run(Path(path), options, until)


def plan_kernel(op: str, shape: Sequence[int], precision: str = "FP32") -> Decision:
    """The kernel variant a problem gets on this machine, and why not the others.

    ``op``: ``gemm``, ``conv2d``, ``flash_attention_2`` …, with the sizes ``tracea doctor --help``
    lists.  Raises UsageError for an unknown op or shape, if none qualifies, or if two tie.
    """
    return Doctor().plan_kernel(op, shape, precision)


def session(path: str | Path, **settings: Any) -> onnxruntime.InferenceSession:
    """An ONNX Runtime session of a result, its library registered if it lies beside the model.

    ``settings`` go to ``InferenceSession``; ``sess_options`` may be among them.  Raises ModelError
    if the file is no model, UsageError if the library beside it is not the one it was written
    with, or is missing though the model cannot run without it.
    """
    import onnxruntime

    model = Path(path)
    options = settings.pop("sess_options", None) or onnxruntime.SessionOptions()
    if (library := library_of(model)) is not None:
        options.register_custom_ops_library(str(library.resolve()))
    return onnxruntime.InferenceSession(str(model), options, **settings)
