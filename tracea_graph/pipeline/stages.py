"""The stages of one optimization, in order, and the data they pass on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from tracea_graph.check.activation_ranges import largest_magnitudes
from tracea_graph.check.worker_pool import WorkerPool, new_worker
from tracea_graph.errors import OutdatedDecisionsError, RejectedSizesError
from tracea_graph.onnx_io import Model, files_of, load, write_part
from tracea_graph.options import Options
from tracea_graph.passes import UNMEASURED
from tracea_graph.pipeline.candidate_models import (
    BuiltModel,
    CandidateBuilder,
    write_float32_reference,
)
from tracea_graph.pipeline.compression_search import CompressionContext
from tracea_graph.pipeline.compression_search import choose_compression as choose_smaller
from tracea_graph.pipeline.decision_cache import DecisionCache
from tracea_graph.pipeline.evaluator import Evaluator
from tracea_graph.pipeline.int8_calibration import calibrate_rounding
from tracea_graph.pipeline.library_builder import LibraryBuilder
from tracea_graph.pipeline.link_choice import faster_links
from tracea_graph.pipeline.model_inputs import ModelInputs, gather_inputs
from tracea_graph.pipeline.output_files import (
    ResultPaths,
    StagingFolder,
    check_overwrites,
    keep_unreadable_original,
    staging,
)
from tracea_graph.pipeline.plan_lock import PlanLock
from tracea_graph.pipeline.planning import (
    Planner,
    guard_initializers_if_faster,
    read_with_guards,
    with_override_feed,
)
from tracea_graph.pipeline.reporting import Reporter
from tracea_graph.pipeline.result_assembly import Assembly
from tracea_graph.pipeline.step_timer import Deadline, StepTimer
from tracea_graph.toolchain import ignore_progress
from tracea_graph.views import Report

__all__ = [
    "PipelineRun",
    "Stage",
    "build",
    "choose",
    "gather",
    "measure",
    "plan",
    "publish",
    "read",
    "screen",
    "tune",
    "verify",
]  # fmt: skip


@dataclass
class PipelineRun:
    """One model on its way through the stages.

    * ``notes``: notes for the report;
    * ``lock``: decisions of an earlier run, from a lock file or else from the decision cache;
    * ``fresh``: whether the decision cache is ignored; otherwise it is read after the model;
    * ``interrupt``: the exception that ended the run early, in which case the report is that of
      the run's first result.

    Each field below the blank line is set by the stage named in its comment and does not exist
    before.  A run with a ``report`` is finished.
    """

    source: Path
    paths: ResultPaths
    options: Options
    notes: Sequence[str]
    libraries: LibraryBuilder
    worker_pool: WorkerPool | None
    scratch: Path
    lock: PlanLock | None
    timer: StepTimer
    deadline: Deadline
    fresh: bool = False
    decision_cache: DecisionCache = field(default_factory=DecisionCache)
    open: ExitStack = field(default_factory=ExitStack)
    report: Report | None = None
    interrupt: KeyboardInterrupt | None = None

    files: Sequence[Path] = field(init=False)  # read
    model: Model = field(init=False)  # read; with guarded initializers: choose
    inputs: ModelInputs = field(init=False)  # gather; with more feeds: choose
    reporter: Reporter = field(init=False)  # choose
    builder: CandidateBuilder = field(init=False)  # choose
    evaluator: Evaluator = field(init=False)  # choose
    assembly: Assembly = field(init=False)  # plan
    staged: StagingFolder = field(init=False)  # screen
    candidate: BuiltModel | None = field(init=False)  # build; without what is wrong: verify

    def keep_first(self, interrupt: KeyboardInterrupt) -> bool:
        """Publish the first result of an interrupted run; return False if there is none."""
        evaluator: Evaluator | None = getattr(self, "evaluator", None)
        if evaluator is None or self.report or (first := evaluator.back_to_first()) is None:
            return False
        self.timer.step("writing the first result")
        self.report = self.reporter.publish(first, evaluator, self.builder, self.staged)
        self.interrupt = interrupt
        return True

    def anew(self, why: OutdatedDecisionsError) -> PipelineRun:
        """Return the run as it was before its first stage, without what proved to be wrong.

        These are cached decisions, and guessed sizes that the model rejects.
        """
        options, notes = self.options, self.notes
        if isinstance(why, RejectedSizesError):
            options, notes = replace(options, shapes=({**why.sizes},)), (*notes, str(why))
        return replace(
            self,
            options=options,
            notes=notes,
            lock=None,
            fresh=True,
            decision_cache=DecisionCache(),
            open=ExitStack(),
            report=None,
        )


Stage = Callable[[PipelineRun], None]


def read(run: PipelineRun) -> None:
    """Read the model, and the cached decisions of an earlier run with equal inputs.

    A model that only ONNX Runtime can read is kept unchanged.
    """
    options = run.options
    run.timer.step(f"reading {run.source.name}")
    if options.unused_outputs or options.feeds:
        run.source = _part(run)
    try:
        run.model = load(run.source, freeze=options.freeze_initializers, unrolled=True)
    except Exception as error:  # raised again unless ONNX Runtime accepts the model
        run.report = keep_unreadable_original(
            run.source, error, run.paths, options, run.worker_pool
        )
        return
    run.files = files_of(run.source)
    check_overwrites(run.paths, run.files)
    run.model = write_float32_reference(run.model, run.libraries.target.backend, run.scratch)
    run.decision_cache = DecisionCache.of(run.files, options, run.libraries.target)
    if run.lock is None and not run.fresh and options.use_cache:
        run.lock = run.decision_cache.load()


def _part(run: PipelineRun) -> Path:
    """Write the requested part of the model beside the result; return its path."""
    result = run.paths.model
    part = result.with_name(f"{run.source.stem}.part.onnx")
    result.parent.mkdir(exist_ok=True)
    options = run.options
    write_part(load(run.source), options.unused_outputs, options.feeds, part)
    return part


def gather(run: PipelineRun) -> None:
    """Create or load the inputs to verify and to time with."""
    run.libraries.counted = run.timer.count
    run.timer.step("preparing inputs")
    run.inputs = gather_inputs(run.model, run.options)


def choose(run: PipelineRun) -> None:
    """Choose what to plan: guarded initializers, and compression if requested."""
    run.timer.step("planning")
    options, target, lock, deadline = (
        run.options,
        run.libraries.target,
        run.lock,
        run.deadline,
    )
    symbols = run.inputs.timed[0].symbols
    if options.custom_ops and lock is None:  # with a lock, everything may have been built
        run.libraries.require_compilers()
    ranges = _ranges(run, symbols)
    if lock is None:
        model, planner = guard_initializers_if_faster(
            run.model, options, symbols, target, deadline, ranges
        )
    else:
        model = read_with_guards(run.model) if lock.guarded else run.model
        planner = Planner(model.graph, options, symbols, target, lock.cost, ranges=ranges)
    if options.custom_ops and (lock is None or lock.improved):
        run.libraries.start()  # only now: the planner has measured this machine
    run.model = model
    locked = lock.decisions(model.graph, target.every_level) if lock else None
    context = CompressionContext(
        model, options, run.inputs, planner, run.libraries, run.scratch, run.timer
    )
    with deadline.suspended():  # the budget must not decide how much is compressed
        rounding = calibrate_rounding(context)
        if rounding.choices:
            context = replace(context, inputs=replace(context.inputs, calibrated=True))
            planner = Planner(
                model.graph, options, symbols, target, planner.cost, scan=planner.scan,
                deadline=deadline, ranges=ranges, calibrated=rounding.choices,
            )  # fmt: skip
        smaller = choose_smaller(replace(context, planner=planner))
        smaller = replace(smaller, notes=(*rounding.notes, *smaller.notes))
    run.inputs = with_override_feed(model, smaller.inputs)
    run.builder = CandidateBuilder(
        model, options, smaller.planner, run.libraries, run.scratch, locked
    )
    run.reporter = Reporter(
        run.paths, model, run.inputs, target.every_level, options, run.notes, run.timer, smaller,
        deadline, lock, run.decision_cache,
    )  # fmt: skip
    run.evaluator = Evaluator(
        model, run.builder, run.inputs, options, target.every_level, run.worker_pool, lock,
        bool(target.backend.unmeasured(target.levels)), deadline, target.variables,
        by_metric=smaller.by_metric,
    )  # fmt: skip


def _ranges(run: PipelineRun, symbols: Mapping[str, int]) -> Mapping[str, float]:
    """Measure the values of a model that is to compute in a type of small range."""
    options, inputs = run.options, run.inputs
    if options.precision not in ("fp16", "fp8") or inputs.trouble:
        return UNMEASURED
    acquire = run.worker_pool.acquire if run.worker_pool else new_worker
    return largest_magnitudes(
        run.model.path, run.model.graph, inputs.verification, symbols, acquire
    )


def plan(run: PipelineRun) -> None:
    """Schedule rewrites by predicted gain and lower the fused regions to programs."""
    lock, builder = run.lock, run.builder
    if lock and lock.improved:
        run.evaluator.prepare()
    run.assembly, trace = builder.begin(run.deadline)
    if lock:
        lock.check(run.assembly)
        schedule_space = run.assembly.backend.schedule_space
        builder.use(lock.schedules(run.assembly.workloads(()), schedule_space))
    scan = None if lock and lock.cached else builder.planner.scan
    run.reporter.planned(run.assembly, trace, scan)
    run.timer.pause()


def screen(run: PipelineRun) -> None:
    """Verify and time all rewrites together, as a first result to publish on an interrupt."""
    run.staged = run.open.enter_context(staging(run.paths, run.files))
    if run.reporter.worth_building() and run.assembly.placed and run.evaluator.screens():
        run.timer.step("building a first candidate")
        if (first := run.evaluator.screen(run.timer.step)) is not None:
            run.timer.best = first.gain


def tune(run: PipelineRun) -> None:
    """Find schedules for the kernels, or use those of earlier runs."""
    run.timer.step("tuning")
    wanted = run.options.keep == "faster" or run.options.concurrent_runs > 1
    if wanted and (run.lock is None or run.lock.cached):
        sizes = [b.symbols for b in run.inputs.timed]
        run.builder.tune(
            sizes,
            measure=run.lock is None,
            deadline=run.deadline,
            counted=run.timer.count,
        )


def build(run: PipelineRun) -> None:
    """Compile the kernels and write a model with all rewrites, if there are any."""
    run.timer.step("building")
    lock, staged = run.lock, run.staged
    run.candidate = None
    if not run.reporter.worth_building() or (lock is not None and not lock.improved):
        return
    earlier = lock.stored(run.paths) if lock else None
    timed = run.options.keep == "faster" and not (lock or run.evaluator.unmeasured)
    out = None if timed else staged.model
    with run.deadline.suspended():  # compiled objects are cached, so this time is spent once
        run.candidate = run.builder.build(out=staged.beside if earlier else out, earlier=earlier)


def verify(run: PipelineRun) -> None:
    """Compare the candidate with the original and drop the rewrites that are wrong."""
    run.libraries.counted = ignore_progress  # from here on, builds are parts of other steps
    run.timer.step("verifying")
    run.candidate = run.evaluator.verify(run.candidate)


def measure(run: PipelineRun) -> None:
    """Time the candidate against the original and drop the rewrites that are not faster."""
    run.timer.step("timing")
    evaluator = run.evaluator
    evaluator.counted = run.timer.count
    run.candidate = evaluator.time(run.candidate)
    measured = run.options.keep == "faster" and not (evaluator.lock or evaluator.unmeasured)
    if run.candidate is not None and measured and not evaluator.interrupted:
        run.candidate, note = faster_links(
            run.candidate, run.builder, evaluator.dropped, run.inputs.timing,
            max(run.options.thread_counts), min(run.options.budget, run.deadline.left),
        )  # fmt: skip
        evaluator.notes += filter(None, (note,))
    run.reporter.confirm(run.candidate)


def publish(run: PipelineRun) -> None:
    """Move the files into place, with the report beside them."""
    run.timer.step("writing")
    run.report = run.reporter.publish(run.candidate, run.evaluator, run.builder, run.staged)
