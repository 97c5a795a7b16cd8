"""Verify and time candidates: drop rewrites that are wrong or not measured faster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tracea_graph.check import output_errors
from tracea_graph.check.bisection import find_faulty_rewrites
from tracea_graph.check.ill_conditioned_outputs import sigmoid_results, values_before_saturation
from tracea_graph.check.memory_limit import unpacks
from tracea_graph.check.paired_benchmark import ModelWithLibrary, PairedBenchmark
from tracea_graph.check.reference_outputs import Reference, run_reference
from tracea_graph.check.rewrite_selection import GroupSelection, select_faster
from tracea_graph.check.verify_outputs import Verification, compare_with_reference, suspect_workers
from tracea_graph.check.worker_pool import WorkerPool, new_worker
from tracea_graph.check.worker_process import Worker, unlimited_seconds
from tracea_graph.config import usable_processors
from tracea_graph.errors import ModelError, OutOfTime, VerifyError, WorkerError
from tracea_graph.onnx_io import Model
from tracea_graph.options import Options
from tracea_graph.pipeline.candidate_models import EVERY_REWRITE, BuiltModel, CandidateBuilder
from tracea_graph.pipeline.input_size_search import check_sizes
from tracea_graph.pipeline.model_inputs import Feed, ModelInputs
from tracea_graph.pipeline.plan_lock import PlanLock
from tracea_graph.pipeline.precision_fallback import fastest_tile_sizes, precision_fallback
from tracea_graph.pipeline.result_assembly import row_tiling_key
from tracea_graph.pipeline.result_on_interrupt import FirstResult, known_ratios, worth_screening
from tracea_graph.pipeline.step_timer import BisectionLimit, Deadline
from tracea_graph.reason_codes import Code, Reason, code_of
from tracea_graph.toolchain import Counted, ignore_progress

__all__ = ["Evaluator"]

_PRECISION_MARGIN = 0.9
"""Share of the tolerance to aim for after a fallback failed at another level or feed."""
_METRIC_TOLERANCE = 1.0  # share of max|y|, if the user's own metric decides
_SCREENING_SHARE = 0.1
"""Share of the budget for timing the first candidate."""


@dataclass
class Evaluator:
    """Verifies and times the candidates of one model, and holds the results.

    If ``unmeasured``, kernels cannot run on this machine: function bodies are verified in ONNX
    Runtime instead, and nothing is timed.
    """

    model: Model
    builder: CandidateBuilder
    inputs: ModelInputs
    options: Options
    levels: tuple[str, ...]
    worker_pool: WorkerPool | None = None
    lock: PlanLock | None = None
    unmeasured: bool = False
    deadline: Deadline = field(default_factory=Deadline)
    variables: Callable[[str], Mapping[str, str]] = lambda level: {"TRACEA_ISA": level}
    by_metric: Callable[[BuiltModel, Verification], Verification] = lambda built, found: found
    """What a verification becomes by the user's own metric."""
    verification: Verification | None = None
    decision: GroupSelection | None = None
    culprits: frozenset[str] = frozenset()
    culprit_errors: dict[str, str] = field(default_factory=dict)
    """Error of each culprit group, or of its faulty part."""
    slower_tiles: frozenset[str] = frozenset()
    """Keys of row tiles that were slower than smaller ones."""
    counted: Counted = ignore_progress
    """Told how many of the groups' comparisons are made."""
    first: FirstResult | None = None
    interrupted: bool = False
    """Whether the result is the first one, because the user did not wait for the final one."""
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _failing: str = ""
    _right: BuiltModel | None = None
    _reference: Reference | None = None
    _pending_reference: Future[Reference] | None = None
    _built: dict[tuple[frozenset[str], tuple[str, ...]], BuiltModel] = field(default_factory=dict)
    _check_seconds: float = 0.0  # a check of a correct candidate at the highest level
    _limit: BisectionLimit | None = None  # of the bisection that is under way

    def prepare(self) -> None:
        """Start running the original in the background, while its result is planned and built."""
        if self.options.verify:
            self._pending_reference = ThreadPoolExecutor(1).submit(self._reference_call())

    def _reference_answers(self) -> Reference:
        ahead, self._pending_reference = self._pending_reference, None
        found = ahead.result() if ahead else self._reference_call()()
        check_sizes(self.model, self.inputs, self.options, found.rejected, self._acquire)
        return found

    def _reference_call(self) -> Callable[[], Reference]:
        """Return a call that runs the original; its arguments are bound now, not read later."""
        return partial(
            run_reference,
            self.model.runnable,
            self.inputs.verification,
            index_outputs=output_errors.index_outputs(self.model.graph),
            watched=values_before_saturation(self.model.graph),
            sigmoids=sigmoid_results(self.model.graph),
            quantized=output_errors.quantized_caches(self.model.graph),
            rounding=output_errors.rounding_of(self.model.widened),
            spare=self.inputs.spare,
            trouble=self.inputs.trouble,
            threads=max(self.options.thread_counts),
            acquire=self._acquire,
            float32_form=self.model.float32_form,
            sensitivity=self.inputs.sensitivity(self.model.graph, self._limits().tolerance),
        )

    @contextmanager
    def _acquire(self, library: Path | None, env: Mapping[str, str]) -> Iterator[Worker]:
        """Acquire a worker whose requests end at the deadline."""
        acquire = self.worker_pool.acquire if self.worker_pool else new_worker
        with acquire(library, env) as worker:
            worker.left = lambda: self.deadline.left
            try:
                yield worker
            finally:
                worker.left = unlimited_seconds

    # ---- the first result --------------------------------------------------------------

    def screens(self) -> bool:
        """Return whether the final result may take so long that a first result is worthwhile."""
        if self.lock or self.unmeasured or self.inputs.trouble:
            return False
        cost, graph = self.builder.planner.cost, self.model.graph
        us = sum(cost(graph, region) for region in graph.regions())
        return worth_screening(self.options, us, self.deadline.left)

    def screen(self, step: Callable[[str], None]) -> FirstResult | None:
        """Verify and time all rewrites together, at the highest level, for a first result.

        Returns None if the candidate is wrong or not measured faster, or if time runs out.
        """
        with self.deadline.suspended():  # compiled objects are cached, so this time is spent once
            built = self.builder.build(levels=self.levels[-1:])
        try:
            step("verifying a first candidate")
            compiling = self.builder.libraries.compiling
            with compiling(built.assembly, self.levels[:-1], self.deadline):
                found = self.check(built)
            if found.status != "passed":
                return None
            step("timing a first candidate")
            budget = min(_SCREENING_SHARE * self.options.budget, self._budget)
            decision = self._all_or_nothing(built, budget)
        except OutOfTime:
            return None
        if decision.candidate is not None:
            self.first = FirstResult(built, found, decision, self.builder.schedules)
        return self.first

    def _all_or_nothing(self, built: BuiltModel, budget: float) -> GroupSelection:
        return select_faster(
            self.model.path,
            self.builder.rewrite_groups(built),
            lambda dropped: ModelWithLibrary(built.model, built.library),
            self._timed(),
            threads=self.options.thread_counts,
            budget=budget,
            worker=Worker,
            separately=False,
            providers=built.assembly.backend.providers,
        )

    def back_to_first(self) -> BuiltModel | None:
        """Restore and return the first result of an interrupted run; forget later findings."""
        if self.first is None:
            return None
        self.interrupted, self._right = True, self.first.built
        self.culprits = self.slower_tiles = frozenset()
        self.culprit_errors.clear()
        self.verification, self.decision = self.first.verification, self.first.decision
        self.builder.use(self.first.schedules)
        self.reason = ""
        self.warnings.append(self.first.warning)
        return self.first.built

    # ---- verification ------------------------------------------------------------------

    def verify(self, full: BuiltModel | None) -> BuiltModel | None:
        """Return ``full`` if it is correct, else the candidate without the culprits, else None.

        Also None if the model is wrong even without any fused region (ONNX Runtime accepts some
        models that the specification forbids, and folded constants make it check them), or if the
        time is up before anything was verified.  Raises ModelError if ONNX Runtime cannot load the
        original.
        """
        try:
            if full is None:
                self._load_original()
                return None
            return self._verified(full)
        except OutOfTime:
            self.reason = self._out_of_time("before a result was verified")
            return None

    def _load_original(self) -> None:
        """Raise ModelError if ONNX Runtime cannot load the original.

        Does nothing if the original must not be run, or if its file name is not valid Unicode.
        """
        name = os.fsencode(self.model.path).decode(errors="replace")
        if not self.options.verify or self.inputs.trouble or name != str(self.model.path):
            return
        with self._acquire(None, {}) as worker:
            try:
                worker.open("original", self.model.runnable)
            except OutOfTime:
                return
            except WorkerError as error:  # refused, or the process died
                raise ModelError(f"the original does not run: {error}") from None

    def _out_of_time(self, when: str) -> Reason:
        return Reason(
            f"the budget of {self.options.budget:g} s ran out {when}", Code.OUT_OF_BUDGET
        )

    def _verified(self, full: BuiltModel) -> BuiltModel | None:
        self._built[frozenset(), ()] = full
        if not (self.options.verify or (self.inputs.trouble and self.options.keep == "faster")):
            return full
        self.verification = self._checked(full)
        if self.verification.status == "inconclusive":
            self.reason = Reason(self.verification.sentence, Code.INCONCLUSIVE)
            return None
        if self.lock and self.verification.status == "failed":
            why = self.verification.sentence
            raise VerifyError(f"the result of {self.lock.where} is wrong: {why}")
        return self._within_tolerance(full)

    def _checked(self, full: BuiltModel) -> Verification:
        """Compare a candidate with the original, leaving out what the first result has shown."""
        first = self.first
        if first is None or self.builder.schedules != first.schedules:
            return self.check(full, self._unproved(full))
        shown = first.built.levels(self.levels[-1:])
        rest = tuple(n for n in full.levels(self.levels[-1:])[::-1] if n not in shown)
        found = self.check(full, rest) if rest else first.verification
        return first.verification if found.status == "passed" else found

    def _within_tolerance(self, full: BuiltModel) -> BuiltModel | None:
        """Drop culprits from a candidate that was just verified until it is within tolerance."""
        assert self.verification is not None
        rest, first = full, self.verification.sentence
        while self.verification.status == "failed":
            if not self.verification.loads:
                why = self.verification.sentence
                self.reason = Reason(why, code_of(why, Code.FAILED_TO_RUN))
                return None
            with self._bisection():
                culprits = self._precision_culprits()
            if not culprits:
                with self._bisection():
                    culprits = self._bisect(rest)
            if not culprits:
                self.reason = Reason(
                    f"no rewrite is the culprit: the model without rewrites is wrong too: {first}",
                    code_of(first, Code.OUT_OF_TOLERANCE),
                )
                return None
            error = self.verification.sentence
            self.culprit_errors |= {key.partition(" at ")[0]: error for key in culprits}
            self.builder.wrong |= self.culprit_errors.keys()
            self.culprits |= culprits
            rest = self.build(self.dropped)
            self.verification = self.check(rest)
        if rest.library is None and self.culprits and self.options.custom_ops:
            code = code_of(first, Code.OUT_OF_TOLERANCE)
            said = "crashed" if code is Code.CRASHED else "was out of tolerance"
            self.reason = Reason(f"every rewrite {said}: {first}", code)
            return None
        self._right = rest
        return rest

    def _unproved(self, full: BuiltModel) -> tuple[str, ...]:
        """Return the ISA levels to verify: one, if an equal run verified an identical library."""
        same = self.lock and full.built and self.lock.library == full.built.sha256
        if not same or len(self.levels) < 2:
            return ()
        self.notes.append(
            f"{', '.join(self.levels[:-1])}: verified earlier with an identical library"
        )
        return self.levels[-1:]

    def confirm(self, final: BuiltModel, kept: BuiltModel) -> bool:
        """Return whether the files to be published, written anew from ``kept``, are verified.

        Kernels that were verified before run at the highest ISA level only.  Files that were
        themselves verified are not checked again.
        """
        if not self.options.verify or final is self._right:
            return True
        known = self._right is not None and kept.assembly.within(self._right.assembly)
        with self.deadline.lifted():  # time for this was reserved
            self.verification = self.check(final, self.levels[-1:] if known else ())
        return self.verification.status == "passed"

    def repair(self, kept: BuiltModel) -> BuiltModel | None:
        """Return the correct and faster part of a result that was not confirmed, or None.

        With fewer rewrites than were verified, an error may show that was too small or hidden
        before.  Raises VerifyError if no part may be published: with a lock, ``--keep all``,
        unmeasured kernels, or no clear error.
        """
        assert self.verification is not None
        fixed = self.lock or self.options.keep == "all" or self.unmeasured
        if fixed or self.verification.status != "failed":
            raise VerifyError(f"the written result is wrong: {self.verification.sentence}")
        try:
            return self._right_part(kept)
        except OutOfTime:
            wrong = self.verification.sentence
            self.reason = self._out_of_time(f"after the result was found to be wrong: {wrong}")
            return None

    def _right_part(self, kept: BuiltModel) -> BuiltModel | None:
        rest = self._within_tolerance(kept)
        return self._faster(rest, separately=False) if rest else None

    def check(
        self,
        candidate: BuiltModel,
        only: tuple[str, ...] = (),
        labels: frozenset[str] | None = None,
    ) -> Verification:
        """Compare a candidate with the original at every ISA level this host can run.

        The highest level runs first; if it passes, the others run in parallel, since nothing is
        timed here.  The highest failing level is remembered: bisection runs at that level alone.
        ``labels`` are the feeds to run; by default, lower levels run only a few.  Kernels may
        be many times slower there, and do not change what ONNX Runtime optimizes; it runs with
        full optimization only, possibly on one feed.  Function bodies run at the highest level.
        """
        levels = only or candidate.levels(self.levels[-1:])[::-1]
        if not candidate.runnable:  # function bodies run, the same at every level
            levels = levels[:1]
        found = self._found(candidate, levels, labels)
        if self.worker_pool is not None and self.worker_pool.discard(suspect_workers(found)):
            self._reference = None
            found = self._found(candidate, levels, labels)
        for level, one in zip(levels, found, strict=False):
            if one.status != "passed":
                self._failing = level
                return one
        self._failing = levels[0]
        return self.by_metric(candidate, found[0])

    def _found(
        self, candidate: BuiltModel, levels: tuple[str, ...], labels: frozenset[str] | None
    ) -> list[Verification]:
        """Verify at the first level, and at all others if the first passes."""
        known = self._reference = self._reference or self._reference_answers()
        if known.unloadable:
            raise ModelError(known.trouble)
        start = self.deadline.spent()
        first = self._compare(known, candidate, levels[0], labels)
        highest = (self.levels[-1], candidate.levels(self.levels)[-1])
        if levels[0] in highest and first.status == "passed":
            self._check_seconds = self.deadline.spent() - start
        if first.status != "passed" or not levels[1:]:
            return [first]
        with ThreadPoolExecutor(usable_processors()) as pool:
            rest = pool.map(
                lambda level: self._compare(known, candidate, level, labels), levels[1:]
            )
            return [first, *rest]

    def _compare(
        self, known: Reference, candidate: BuiltModel, level: str, labels: frozenset[str] | None
    ) -> Verification:
        highest = level in (self.levels[-1], candidate.levels(self.levels)[-1])
        return compare_with_reference(
            known,
            candidate.model,
            candidate.runnable,
            self.inputs.verification,
            limits=self._limits(),
            index_outputs=output_errors.index_outputs(self.model.graph),
            threads=max(self.options.thread_counts),
            env=self.variables(level) if candidate.runnable else {},
            acquire=self._acquire,
            check=highest,
            labels=labels if labels or highest else self.inputs.brief,
            spare=() if highest else self.inputs.verification.keys() - {self.inputs.foremost},
            levels=known.levels if highest else known.levels[-1:],
            bodies=highest and not self.options.require_library and unpacks(self.model.graph),
            brief=self._limit is not None,
        )

    def _limits(self) -> output_errors.ErrorLimits:
        by_metric = output_errors.ErrorLimits(_METRIC_TOLERANCE)
        return by_metric if self.options.metric else self.options.limits

    def _precision_culprits(self) -> frozenset[str]:
        """Return the fewest precision-lowering rewrites to drop for an error within tolerance."""
        keys = self._precision_keys()
        if not keys or self.verification is None:
            return frozenset()
        counts = precision_fallback(
            self.builder.names.precision_fallbacks, keys, self.dropped, self._error,
            self.verification.exceeded, _PRECISION_MARGIN if self.culprits else 1.0,
            self._has_time,
        )  # fmt: skip
        if not counts:
            return frozenset()
        where = ", ".join(
            rule + f" in {n} of {len(keys[rule])} places" * (n < len(keys[rule]))
            for rule, n in counts.items()
        )
        self.warnings.append(f"dropped {where}: otherwise, {self.verification.sentence}")
        return frozenset(keys[rule][n - 1] for rule, n in counts.items()) - self.dropped

    def _precision_keys(self) -> Mapping[str, Sequence[str]]:
        """Return each rounding rule's precision keys; nothing for float32, or if time is up."""
        rules = self.builder.names.rounding if self.options.precision != "fp32" else ()
        try:
            return {rule: self.builder.precision_keys(rule) for rule in rules}
        except OutOfTime:
            return {}

    def _bisect(self, full: BuiltModel) -> frozenset[str]:
        """Return the faulty groups and rounding rules; none if the plain model is wrong too."""
        groups = tuple(full.assembly.groups)
        rounding = (keys[-1] for keys in self._precision_keys().values() if keys)
        suspects = tuple(key for key in (*groups, *rounding) if key not in self.dropped)
        every = frozenset((EVERY_REWRITE,))
        if every <= self.culprits or (not self.culprits and self._fails(every)):
            return frozenset()
        if self.culprits and self._fails(self.dropped.union(suspects)):
            return every  # what has no key is faulty

        def fails(kept: frozenset[str]) -> bool:
            return self._fails(self.dropped.union(suspects) - kept)

        culprits = find_faulty_rewrites(suspects, fails, self._has_time)
        # without row tiles, a group may be right
        culprits -= {group for group in culprits if row_tiling_key(group) in culprits}
        for group in sorted(culprits.intersection(groups)):
            culprits = (culprits - {group}) | self._bisect_program(group, culprits - {group})
        return culprits or every

    def _bisect_program(self, group: str, others: frozenset[str]) -> frozenset[str]:
        """Return the faulty steps of a culprit program; all steps if none is faulty alone."""
        try:
            parts = self.builder.parts(group)
        except OutOfTime:
            return frozenset((group,))

        def fails(kept: frozenset[str]) -> bool:
            return self._fails(self.dropped | others | (frozenset(parts) - kept))

        found = find_faulty_rewrites(parts, fails, self._has_time)
        return found if 0 < len(found) < len(parts) else frozenset((group,))

    @contextmanager
    def _bisection(self) -> Iterator[None]:
        """Limit a bisection to its share of the time; checks end at the first wrong output."""
        limit = self._limit = BisectionLimit(self.deadline)
        with self.deadline.within(limit.most):
            try:
                yield
            finally:
                self._limit = None
            if limit.over:
                stopped = f"bisection stopped after {limit.seconds:.3g} s"
                self.deadline.note(f"{stopped}: some correct rewrites may have been dropped too")

    def _has_time(self) -> bool:
        """Return False once the bisection's time is up."""
        return not (self._limit.over if self._limit else self.deadline.over)

    def _fails(self, dropped: frozenset[str]) -> bool:
        return self._error(dropped) > 1.0

    def _error(self, dropped: frozenset[str]) -> float:
        """Return the error of the result without ``dropped``, as a share of the tolerance.

        Only the feeds that failed before are run, on a library of the level that failed if that is
        the highest.  It is 0, without a meaning, once time is up.
        """
        one = (self._failing,)
        if self._limit:
            self._limit.checks -= 1
        try:
            built = self.build(dropped, one if one == self.levels[-1:] else ())
            telling = self.verification and self.verification.failing_feeds(self.inputs.bytes_of)
            found = self.check(built, one, telling or None)
        except OutOfTime:
            return 0.0
        passed = 0.0 if self._limits().elementwise else found.spent
        return found.exceeded if found.status == "failed" else passed

    # ---- timing ------------------------------------------------------------------------

    def time(self, candidate: BuiltModel | None) -> BuiltModel | None:
        """Return the part of the candidate that was measured faster, or None.

        Without precision-lowering rewrites that gained nothing, the error may differ from the
        verified one: the rest is then verified again and timed as a whole.
        """
        if candidate is None or self.options.keep == "all" or self.lock or self.unmeasured:
            return candidate
        try:
            return self._timed_and_right(candidate)
        except OutOfTime:
            self.reason = self._out_of_time("before the faster part was measured and verified")
            return None

    def _timed_and_right(self, candidate: BuiltModel) -> BuiltModel | None:
        kept = self._faster(candidate, self.options.effort != "quick")
        if kept is None or kept is self._right or not self._rounds:
            return kept
        self.verification = self.check(kept, self.levels[-1:])
        if self.verification.status == "passed":
            return kept
        return self._right_part(kept)

    @property
    def _budget(self) -> float:
        """Seconds for measuring: the budget left, less the time to verify the final result."""
        return max(min(self.options.budget, self.deadline.left) - self._check_seconds, 0.0)

    @property
    def _rounds(self) -> bool:
        return self.options.verify and self.options.precision != "fp32"

    def _faster(self, candidate: BuiltModel, separately: bool) -> BuiltModel | None:
        """Return the part of a candidate that is measured faster; slower groups stay dropped."""
        before = self.decision.verdicts if self.decision else ()
        if separately and (choices := self._tile_sizes(candidate)):
            threads, budget = self.options.thread_counts, self._budget
            with PairedBenchmark(Worker, self._timed(), threads, budget) as bench:
                self.slower_tiles = fastest_tile_sizes(choices, self._candidate, bench)
            self.notes += (f"{key}: smaller row tiles were faster" for key in self.slower_tiles)
        found = select_faster(
            self.model.runnable,
            self.builder.rewrite_groups(candidate),
            self._candidate,
            self._timed(),
            threads=self.options.thread_counts,
            budget=self._budget,
            worker=Worker,
            separately=separately,
            counted=self.counted,
            known=known_ratios(self.first, self.dropped, self.builder.schedules),
            providers=candidate.assembly.backend.providers,
        )
        self.warnings += found.notes
        lost = tuple(v for v in before if not v.kept)
        self.decision = replace(found, verdicts=(*lost, *found.verdicts))
        if found.candidate is None:
            self.reason = found.why_nothing
            return None
        return self.build(self.dropped)

    @property
    def dropped(self) -> frozenset[str]:
        """Groups that were wrong or not faster, and row tiles that were too large."""
        verdicts = self.decision.verdicts if self.decision else ()
        return self.culprits | self.slower_tiles | {v.group.key for v in verdicts if not v.kept}

    def _tile_sizes(self, candidate: BuiltModel) -> list[tuple[str, ...]]:
        """Return the keys of row tiles that could be smaller, per program that has any."""
        if not self._timed():
            return []
        return [k for k in map(self.builder.tile_sizes, candidate.assembly.groups) if k]

    def _timed(self) -> dict[str, Feed]:
        """Feeds to time that the original accepts; if it rejects all, the largest other feed."""
        refused = self.verification.rejected if self.verification else {}
        timed = {k: f for k, f in self.inputs.timing.items() if k not in refused}
        others = {k: f for k, f in self.inputs.verification.items() if k not in refused}
        if timed or not others:
            return timed
        largest = max(others, key=self.inputs.bytes_of)
        self.warnings.append(f"timed with {largest} instead; --shape or --data gives other inputs")
        return {largest: others[largest]}

    def _candidate(self, dropped: frozenset[str]) -> ModelWithLibrary:
        built = self.build(self.dropped | dropped)
        return ModelWithLibrary(built.model, built.library)

    def build(self, dropped: frozenset[str], levels: tuple[str, ...] = ()) -> BuiltModel:
        """Build the candidate without ``dropped``, once, for ``levels`` or, if empty, for all."""
        if (dropped, levels) not in self._built:
            self._built[dropped, levels] = self.builder.build(dropped, levels=levels or None)
        return self._built[dropped, levels]
