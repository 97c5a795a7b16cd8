"""Verify that a candidate computes what the original computes.

The reference is the original in plain ONNX Runtime, once with its optimizations off and once with
all of them.  The distance between these two, or the error of a sigmoid if larger, is the floor f
(:func:`.output_errors.noise_floors`): smaller differences are noise.  Every output of a candidate,
with optimizations off and on, must be within ``max(tolerance, 2 f)`` of ``max|y|`` from either
reference, or within the tolerance alone if the caller gave one.  NaN and infinities must be at
equal positions, dims and types must be equal, and so must integers, booleans and strings, except
an index whose scores were within tolerance.  Random values are drawn once, by the original, and
replace the operators that draw them in both models; the operands of a distribution are compared
like outputs.  A model is ``inconclusive``, never verified, if the reference does not run it, if
its answers still differ from run to run, or if rounding alone changes its outputs
(:mod:`.ill_conditioned_outputs`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from tracea_graph.check.input_feeds import Feeds
from tracea_graph.check.input_sensitivity import FACTOR, UNCHECKED, OutputSensitivity
from tracea_graph.check.output_errors import (
    NO_INDEX_OUTPUTS,
    ErrorLimits,
    IndexOutput,
    describe_difference,
    is_float,
    is_tie_within_tolerance,
    measure_errors,
    noise_floors,
)
from tracea_graph.check.reference_outputs import (
    SPARE,
    Outputs,
    Reference,
    random_value_specs,
    run_reference,
)
from tracea_graph.check.worker_pool import AcquireWorker, new_worker
from tracea_graph.check.worker_process import Array, SessionInfo, SessionPort, Worker
from tracea_graph.errors import WorkerError
from tracea_graph.json_documents import Figure
from tracea_graph.reason_codes import run_failure_reason

__all__ = ["OutputError", "Verification", "compare_with_reference", "suspect_workers", "verify"]

_INNER = 64  # inner values that are compared, at most
_FAILING_FEEDS = 4  # feeds that show an error, at most
_RESOLUTION = 2**-22  # of float32 results, as a share of max|y|
_NO_ENV: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class OutputError:
    """The error of one output under one feed: its distance to the nearer reference, at the worst.

    ``max_abs`` has the output's unit; ``relative`` and ``floor`` are shares of ``max|y|``;
    ``cosine`` is 1 for equal directions.  For discrete outputs, ``relative`` is 0 if they are
    equal, else infinite.  ``note`` says what is wrong, or why a difference is allowed.
    """

    output: str
    feed: str
    max_abs: Figure
    relative: Figure
    cosine: Figure
    floor: Figure
    passed: bool
    note: str = ""


@dataclass(frozen=True)
class Verification:
    """The verdict: ``status`` (``passed``, ``failed``, ``inconclusive``) and why (``sentence``).

    ``outputs`` has one entry per output and feed.  ``rejected`` has ONNX Runtime's message
    for each feed with which it rejected the original.  ``loads`` is False if the library could not
    be loaded, in which case no rewrite is the culprit.  ``insensitive`` outputs hardly change with
    the inputs tried; ``inner`` is the number of inner values compared because of these outputs.
    ``by_metric`` is the error by the user's own metric, as a share of the error allowed.
    """

    status: str
    sentence: str
    outputs: tuple[OutputError, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)
    limits: ErrorLimits = field(default_factory=ErrorLimits)
    loads: bool = True
    insensitive: tuple[str, ...] = ()
    inner: int = 0
    by_metric: float | None = None

    @property
    def blind(self) -> bool:
        """Whether nothing that was compared depends on the inputs, so that errors may not show."""
        return bool(self.insensitive) and not self.inner

    @property
    def spent(self) -> float:
        """The largest error that passed, or that by the metric, as a share of that allowed."""
        if self.by_metric is not None:
            return self.by_metric
        passed = (o for o in self.outputs if o.passed and np.isfinite(o.relative))
        return max(map(self._share, passed), default=0.0)

    @property
    def exceeded(self) -> float:
        """The largest error that failed, as a share of the error allowed for that output.

        Infinite if no output failed, or if an output failed although its error is allowed.
        """
        wrong = (o for o in self.outputs if not o.passed)
        shares = [*map(self._share, wrong)]
        return max(shares, default=math.inf) if min(shares, default=0.0) > 1.0 else math.inf

    def _share(self, output: OutputError) -> float:
        allowed = self.limits.allowed(output.output, output.floor)
        if not allowed:  # --max-error 0
            return math.inf if output.relative else 0.0
        return output.relative / allowed

    def failing_feeds(self, size: Callable[[str], int]) -> frozenset[str]:
        """Return a few of the feeds with the largest errors, preferring small feeds.

        ``size`` returns the bytes of a feed.
        """
        wrong = sorted((o for o in self.outputs if not o.passed), key=lambda o: -o.relative)
        telling, least = list[str](), math.inf
        for feed in dict.fromkeys(o.feed for o in wrong):
            if size(feed) <= least:
                telling.append(feed)
                least = size(feed)
        return frozenset(telling[:_FAILING_FEEDS])

    @property
    def worst(self) -> float:
        """The largest ``relative`` of all outputs; 0 if there are none."""
        return max((o.relative for o in self.outputs), default=0.0)


def verify(
    original: Path,
    candidate: Path,
    library: Path | None,
    feeds: Feeds,
    *,
    limits: ErrorLimits | None = None,
    index_outputs: Mapping[str, IndexOutput] = NO_INDEX_OUTPUTS,
    threads: int = 1,
    env: Mapping[str, str] = _NO_ENV,
    acquire: AcquireWorker = new_worker,
    sensitivity: OutputSensitivity = UNCHECKED,
) -> Verification:
    """Run the original and a candidate on ``feeds``, and compare their outputs.

    ``index_outputs`` are the outputs that hold indices chosen by score
    (:func:`~tracea_graph.check.output_errors.index_outputs`), and ``sensitivity`` says which
    outputs must change with the inputs.  ``env`` is set in the candidate's worker, and ``acquire``
    supplies workers.  A worker that dies or rejects a request fails the candidate; nothing is
    raised.
    """
    known = run_reference(
        original, feeds, index_outputs=index_outputs, threads=threads, acquire=acquire,
        sensitivity=sensitivity,
    )  # fmt: skip
    return compare_with_reference(
        known, candidate, library, feeds,
        limits=limits, index_outputs=index_outputs, threads=threads, env=env, acquire=acquire,
    )  # fmt: skip


def compare_with_reference(
    known: Reference,
    candidate: Path,
    library: Path | None,
    feeds: Feeds,
    *,
    limits: ErrorLimits | None = None,
    index_outputs: Mapping[str, IndexOutput] = NO_INDEX_OUTPUTS,
    threads: int = 1,
    env: Mapping[str, str] = _NO_ENV,
    acquire: AcquireWorker = new_worker,
    check: bool = True,
    labels: Collection[str] | None = None,
    spare: Collection[str] = (),
    levels: Collection[str] = ("off", "all"),
    bodies: bool = False,
    brief: bool = False,
) -> Verification:
    """Run a candidate and compare its outputs with those of a reference.

    The candidate runs with ONNX Runtime's optimizations off, on one thread, and then with them on.
    ``check`` runs onnx's checker before that, if the original passes it.  ``labels`` are the feeds
    to run, by default all; those in ``spare`` run last, and are left out if the others take long.
    ``levels`` are the optimization levels to run at, a subset of the reference's.  If ``bodies``,
    the candidate also runs once without its library, fully optimized: ONNX Runtime fuses what the
    function bodies hold.  If ``brief``, the comparison ends with the first wrong output.
    """
    limits = limits or ErrorLimits()
    if known.trouble:
        return Verification("inconclusive", known.trouble, (), known.rejected, limits)
    feeds = {**feeds, **known.extra}
    cut = random_value_specs(known.drawn)
    wanted = [k for k in known.off if labels is None or k in labels]
    wanted.sort(key=lambda k: k in spare)
    inner: list[OutputError] = []
    runs = _CandidateRuns(known, feeds, limits, index_outputs, spare, brief)
    try:
        with acquire(library, env) as worker:
            if wrong := _refusal(worker, library):
                return Verification("failed", wrong, (), known.rejected, limits, loads=False)
            if check and known.valid:
                worker.check(candidate)
            if lacking := cut.keys() - {*(worker.random(candidate) if cut else ())}:
                sentence = f"no random operator of the candidate writes {min(lacking)!r}"
                return Verification("inconclusive", sentence, (), known.rejected, limits)
            for level in (one for one in known.levels if one in levels):
                count = threads if level == "all" else 1
                info = worker.open(
                    "candidate", candidate, library, threads=count, level=level, cut=cut
                )
                if wrong := _signature(known, info):
                    return Verification("failed", wrong, (), known.rejected, limits)
                runs.compare(worker, wanted)
                if brief and runs.wrong:
                    return _verdict(known, _worst_of(runs.found), limits)
            if bodies and library is not None and not runs.wrong:
                runs.where = ", without the library"
                worker.open("candidate", candidate, threads=threads, level="all", cut=cut)
                runs.compare(worker, wanted[:1])
                runs.where *= runs.wrong
            if _insensitive(known, limits, runs.found):
                inner = _compare_inner(worker, known, candidate, library, feeds, limits)
    except WorkerError as error:
        sentence = run_failure_reason(f"the candidate does not run{runs.where}", error)
        return Verification("failed", sentence, tuple(runs.found), known.rejected, limits)
    return _verdict(known, _worst_of(runs.found), limits, _worst_of(inner), runs.where)


@dataclass
class _CandidateRuns:
    """Runs an open candidate and collects the errors found; the first parameters are a caller's.

    ``where`` says how it runs, for sentences.
    """

    known: Reference
    feeds: Feeds
    limits: ErrorLimits
    index_outputs: Mapping[str, IndexOutput]
    spare: Collection[str]
    brief: bool
    found: list[OutputError] = field(default_factory=list)
    where: str = ""

    @property
    def wrong(self) -> bool:
        return not all(output.passed for output in self.found)

    def compare(self, worker: Worker, labels: Sequence[str]) -> None:
        end = time.monotonic() + SPARE
        for label in labels:
            if label in self.spare and time.monotonic() > end:
                continue
            feed = {**self.feeds[label], **self.known.drawn.get(label, {})}
            answers = worker.run("candidate", feed, limit=self.known.patience)
            self.found += _compare_outputs(
                self.known, label, answers, self.limits, self.index_outputs
            )
            if self.brief and self.wrong:
                return


def _refusal(worker: Worker, library: Path | None) -> str:
    """Return why a library cannot be loaded; empty if it can, or if there is none."""
    try:
        if library is not None:
            worker.load(library)
    except WorkerError as error:
        return run_failure_reason("the library cannot be loaded", error)
    return ""


def _signature(known: Reference, info: SessionInfo) -> str:
    """Return what differs in names, types or fixed dims; empty if nothing does."""
    for what, want, have in (
        ("inputs", known.inputs, info.inputs),
        ("outputs", known.outputs, info.outputs),
    ):
        if [(p.name, p.type) for p in want] != [(p.name, p.type) for p in have]:
            return f"the candidate's {what} are {_ports(have)}; the original's are {_ports(want)}"
        for a, b in zip(want, have, strict=True):
            if _clash(a.shape, b.shape) and not _answered(known, b):
                return f"{a.name!r} has dims {b.shape} in the candidate, {a.shape} in the original"
    return ""


def _clash(a: Sequence[int | str | None], b: Sequence[int | str | None]) -> bool:
    pairs = zip(a, b, strict=False)
    fixed = any(x != y for x, y in pairs if isinstance(x, int) and isinstance(y, int))
    return len(a) != len(b) or fixed


def _answered(known: Reference, port: SessionPort) -> bool:
    """Whether the original, whatever it declares, answers with the dims of ``port``."""
    shapes = [answers[port.name].shape for answers in known.off.values() if port.name in answers]
    return bool(shapes) and not any(_clash(shape, port.shape) for shape in shapes)


def _ports(ports: Sequence[SessionPort]) -> str:
    return ", ".join(f"{p.name} {p.type}" for p in ports) or "none"


def _compare_outputs(
    known: Reference,
    label: str,
    answers: Outputs,
    limits: ErrorLimits,
    index_outputs: Mapping[str, IndexOutput],
) -> Iterator[OutputError]:
    """Yield one entry per output of one run."""
    off, scores = known.off[label], known.scores[label]
    others = [run[label] for run in (known.on, known.float32) if label in run]
    for name, wanted in off.items():
        found, floor = answers.get(name), known.floors[label][name]
        references = (wanted, *(other[name] for other in others))
        if found is None:
            yield OutputError(name, label, np.inf, np.inf, 0.0, floor, False, "it is missing")
        elif found.dtype != wanted.dtype or found.shape not in (y.shape for y in references):
            note = f"it is {found.dtype}{found.shape}, not {wanted.dtype}{wanted.shape}"
            yield OutputError(name, label, np.inf, np.inf, 0.0, floor, False, note)
        elif is_float(wanted) or name in known.quantized:
            nearer = measure_errors(found, wanted)
            if nearer.relative and (floor or label in known.float32):
                distances = (measure_errors(found, y) for y in references[1:])
                nearer = min((nearer, *distances), key=lambda e: e.relative)
            passed = nearer.relative <= limits.allowed(name, floor)
            if limits.elementwise is not None:
                passed = any(limits.elementwise.accepts(found, y) for y in references)
            note = "" if np.isfinite(nearer.relative) else describe_difference(found, wanted)
            yield OutputError(
                name, label, nearer.max_abs, nearer.relative, nearer.cosine, floor, passed, note
            )
        else:
            yield _discrete(
                name,
                label,
                found,
                references,
                scores,
                limits.of(name),
                floor,
                index_outputs,
            )


def _discrete(
    name: str,
    label: str,
    found: Array,
    wanted: Sequence[Array],
    scores: Outputs,
    tolerance: float,
    floor: float,
    index_outputs: Mapping[str, IndexOutput],
) -> OutputError:
    """Check a discrete output: equal to a reference, or chosen by scores within tolerance."""
    if any(np.array_equal(found, y) for y in wanted):
        return OutputError(name, label, 0.0, 0.0, 1.0, floor, True)
    said, choice = describe_difference(found, wanted[0]), index_outputs.get(name)
    by = None if choice is None else scores.get(choice.scores)
    if (
        choice
        and by is not None
        and is_tie_within_tolerance(found, wanted[0], by, choice.axis, tolerance)
    ):
        note = f"{said}, but their scores are within tolerance"
        return OutputError(name, label, 0.0, 0.0, 1.0, floor, True, note)
    return OutputError(name, label, np.inf, np.inf, 0.0, floor, False, said)


def _worst_of(found: Sequence[OutputError]) -> tuple[OutputError, ...]:
    """Return the worst entry per output and feed, over the levels tried."""
    worst: dict[tuple[str, str], OutputError] = {}
    for entry in sorted(found, key=lambda e: (not e.passed, e.relative)):
        worst[entry.output, entry.feed] = entry
    return tuple(worst.values())


def _verdict(
    known: Reference,
    outputs: tuple[OutputError, ...],
    limits: ErrorLimits,
    inner: tuple[OutputError, ...] = (),
    where: str = "",
) -> Verification:
    failed = [o for o in (*outputs, *inner) if not o.passed]
    if not failed:
        largest = max((o.relative for o in outputs), default=0.0)
        random = len(random_value_specs(known.drawn))
        alike = f"; both models were fed the same {random} random values" if random else ""
        within = _limit_clause(limits, outputs)
        still = _insensitive(known, limits, outputs)
        sentence = f"the largest error is {largest:.1e} of max|y|, {within}{alike}"
        sentence += _insensitive_clause(still, len(inner))
        return Verification(
            "passed", sentence, outputs, known.rejected, limits,
            insensitive=tuple(still), inner=len(inner),
        )  # fmt: skip
    worst = max(failed, key=lambda o: o.relative)
    allowed = limits.allowed(worst.output, worst.floor)
    off = _format_beside(allowed, worst.relative)
    limit = limits.elementwise or f"{allowed:.1e} is allowed"
    what = worst.note or f"it is off by {off} of max|y|; {limit}"
    kind = "inner value" if worst in inner else "output"
    sentence = f"{kind} {worst.output!r} with {worst.feed}{where}: {what}"
    return Verification("failed", sentence, (*outputs, *inner), known.rejected, limits)


def _insensitive(
    known: Reference, limits: ErrorLimits, outputs: Sequence[OutputError]
) -> dict[str, float]:
    """Return the outputs that change with the inputs by too little to show an error.

    They change by less than ``FACTOR`` times both the error allowed and the error that was found.
    An output whose error is only a small share of its change with the inputs is shown to be right.
    """
    found: dict[str, float] = {}
    for o in outputs:
        found[o.output] = max(found.get(o.output, _RESOLUTION), o.relative)
    return {
        name: by
        for name, by in known.changes.items()
        if by < FACTOR * min(limits.of(name), found.get(name, _RESOLUTION))
    }


def _insensitive_clause(outputs: Mapping[str, float], inner: int) -> str:
    if not outputs:
        return ""
    name, by = min(outputs.items(), key=lambda pair: pair[1])
    more = f" and {len(outputs) - 1} more" * (len(outputs) > 1)
    said = f"; output {name!r}{more} changes with the inputs by only {by:.1e} of max|y|"
    if inner:
        return f"{said}, so {inner} inner values were compared too"
    return f"{said}, so an error may not show; give real inputs with --data"


def _compare_inner(
    worker: Worker,
    known: Reference,
    candidate: Path,
    library: Path | None,
    feeds: Feeds,
    limits: ErrorLimits,
) -> list[OutputError]:
    """Compare values that both models compute between nodes, under one feed.

    At most ``_INNER`` of them, evenly spread; limits are those of outputs, with ONNX Runtime's own
    distance at each value.
    """
    ours = {*worker.values(candidate)} - {port.name for port in known.outputs}
    names = [name for name in worker.values(known.model) if name in ours]
    names = names[:: max(1, -(-len(names) // _INNER))]
    label = min(known.off, key=lambda k: sum(a.nbytes for a in feeds[k].values()))
    if not names or known.drawn:
        return []
    answers = []
    for model, own, level in (
        (known.model, None, known.levels[0]),
        (known.model, None, "all"),
        (candidate, library, "all"),
    ):
        worker.open("inner", model, own, level=level, extra=names)
        run = worker.run("inner", feeds[label], limit=known.patience)
        answers.append({name: run[name] for name in names if name in run})
    off, on, found = ({label: run} for run in answers)
    shared = {name: a for name, a in off[label].items() if is_float(a) and name in found[label]}
    optimized = {label: {name: on[label][name] for name in shared}}
    there = replace(
        known, off={label: shared}, on=on, scores={label: {}}, float32={},
        floors=noise_floors({label: shared}, optimized, sigmoids=known.sigmoids),
    )  # fmt: skip
    return list(_compare_outputs(there, label, found[label], limits, NO_INDEX_OUTPUTS))


def _limit_clause(limits: ErrorLimits, outputs: Sequence[OutputError]) -> str:
    """Return the allowed error as a clause."""
    if limits.elementwise is not None:
        return str(limits.elementwise)
    if any(limits.of(o.output) != limits.tolerance for o in outputs):
        return "within each output's own tolerance"
    excused = not all(o.relative <= limits.of(o.output) for o in outputs if o.floor)
    more = ", or twice the error of ONNX Runtime's own optimizations" if excused else ""
    return f"{limits.tolerance:.1e} is allowed{more}"


def _format_beside(limit: float, value: float) -> str:
    """Format a value with enough digits to distinguish it from the limit."""
    texts = (f"{value:.{digits}e}" for digits in range(1, 6))
    known = (f"{limit:.{digits}e}" for digits in range(1, 6))
    return next((t for t, k in zip(texts, known, strict=True) if t != k), f"{value!r}")


def suspect_workers(found: Sequence[Verification]) -> str:
    """Return which workers may be corrupted by an earlier model: ``all``, ``dead``, or ``""``."""
    if any(one.status == "failed" for one in found):
        return "all"
    return "" if all(one.status == "passed" for one in found) else "dead"
