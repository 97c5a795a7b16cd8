"""Whether a candidate computes what the original computes.

The reference is the original in plain ONNX Runtime, once with its optimizations off and once
with all of them.  Their own distance is the floor f: nothing below it can be told apart.  Every
output of the candidate, optimizations off and on, must lie within ``max(tolerance, 2 f)`` of
``max|y|`` from either reference, have NaN and infinities in the same places, the same dims and
type; integers, booleans and strings must be equal, except an index whose scores were nearer to
each other than the tolerance.  Random values are drawn once, by the original, and fed to both
models in the place of the operators that draw them; what a distribution is made of is compared as
an output is.  A model the reference itself refuses to run, or that answers differently each time
all the same, is ``inconclusive``: never called verified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from tracea_graph.check.crew import Hire, fresh
from tracea_graph.check.distance import (
    Choice,
    Elementwise,
    errors,
    is_float,
    relative_distance,
    undecided,
)
from tracea_graph.check.feeds import Feeds
from tracea_graph.check.saturation import overturned
from tracea_graph.check.worker import Array, Cut, OpenInfo, Port, Rejected, Worker
from tracea_graph.config import TOLERANCE
from tracea_graph.errors import WorkerError

__all__ = ["OutputError", "Reference", "Verification", "compare", "reference", "verify"]

_NO_CHOICES: Mapping[str, Choice] = MappingProxyType({})
_NO_ENV: Mapping[str, str] = MappingProxyType({})
_SAME_FOR_ALL: Mapping[str, float] = MappingProxyType({})
Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class OutputError:
    """One output under one feed: its worst distance to the nearer reference.

    ``max_abs`` in the output's unit, ``relative`` and ``floor`` as shares of ``max|y|``,
    ``cosine`` 1 for equal directions; for discrete outputs ``relative`` is 0 (equal) or infinite.
    ``note`` says what is wrong, or why an inequality is allowed.
    """

    output: str
    feed: str
    max_abs: float
    relative: float
    cosine: float
    floor: float
    passed: bool
    note: str = ""


@dataclass(frozen=True)
class Verification:
    """The verdict: ``status`` is ``passed``, ``failed`` or ``inconclusive``, ``sentence`` why.

    ``outputs`` has one entry per output and feed; ``rejected`` names the feeds the original
    refused and what it said.
    """

    status: str
    sentence: str
    outputs: tuple[OutputError, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = TOLERANCE.exact

    @property
    def worst(self) -> float:
        """The largest ``relative`` of all outputs; 0 if there are none."""
        return max((o.relative for o in self.outputs), default=0.0)


@dataclass(frozen=True)
class Reference:
    """What the original answers: outputs per feed with optimizations off and on.

    ``scores`` are the values behind indices chosen by score; ``levels`` the optimization levels
    a candidate must run at (only ``all`` if the original needs them); ``trouble`` says why the
    original cannot serve as a reference, empty if it can; ``valid`` whether onnx's
    checker accepts it; ``drawn`` the random values to feed, per feed; ``floors`` the distances
    between ``off`` and ``on``.
    """

    off: Mapping[str, Outputs]
    on: Mapping[str, Outputs]
    scores: Mapping[str, Outputs]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    rejected: Mapping[str, str]
    levels: tuple[str, ...] = ("off", "all")
    trouble: str = ""
    valid: bool = True
    drawn: Mapping[str, Outputs] = field(default_factory=dict)
    floors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def verify(
    original: Path,
    candidate: Path,
    library: Path | None,
    feeds: Feeds,
    *,
    tolerance: float = TOLERANCE.exact,
    choices: Mapping[str, Choice] = _NO_CHOICES,
    threads: int = 1,
    env: Mapping[str, str] = _NO_ENV,
    hire: Hire = fresh,
) -> Verification:
    """Run both and compare.

    ``choices`` names the outputs that are indices chosen by score (:func:`choices`); ``env`` goes
    to the candidate's worker, and ``hire`` finds the workers.  Worker deaths and refusals fail the
    candidate, they never raise.
    """
    known = reference(original, feeds, choices=choices, hire=hire)
    return compare(
        known, candidate, library, feeds,
        tolerance=tolerance, choices=choices, threads=threads, env=env, hire=hire,
    )  # fmt: skip


def reference(
    original: Path,
    feeds: Feeds,
    *,
    choices: Mapping[str, Choice] = _NO_CHOICES,
    watched: Sequence[str] = (),
    hire: Hire = fresh,
) -> Reference:
    """Run the original, optimizations off and on; reusable for many candidates.

    ``watched`` values (:func:`squashed`) must not be so large that rounding turns outputs over.
    """
    scores = {choice.scores for choice in choices.values()}
    try:
        with hire(None, {}) as worker:
            return _reference(worker, original, feeds, scores, watched)
    except WorkerError as error:
        return Reference({}, {}, {}, (), (), {}, trouble=f"the original does not run: {error}")


def compare(
    known: Reference,
    candidate: Path,
    library: Path | None,
    feeds: Feeds,
    *,
    tolerance: float = TOLERANCE.exact,
    tolerances: Mapping[str, float] = _SAME_FOR_ALL,
    elementwise: Elementwise | None = None,
    choices: Mapping[str, Choice] = _NO_CHOICES,
    threads: int = 1,
    env: Mapping[str, str] = _NO_ENV,
    hire: Hire = fresh,
    check: bool = True,
) -> Verification:
    """Hold a candidate against a reference: with optimizations off on one thread, then on.

    ``tolerances`` beat ``tolerance`` for the outputs they name; ``elementwise`` takes the place of
    both for floating-point outputs.  ``check`` runs onnx's checker first, if the original passes.
    """
    if known.trouble:
        return Verification("inconclusive", known.trouble, (), known.rejected, tolerance)
    found: list[OutputError] = []
    limits = {name: tolerances.get(name, tolerance) for run in known.off.values() for name in run}
    try:
        with hire(library, env) as worker:
            if check and known.valid:
                worker.check(candidate)
            cut = _cut(known.drawn)
            if lacking := cut.keys() - {*(worker.random(candidate) if cut else ())}:
                sentence = f"no random operator of the candidate writes {min(lacking)!r}"
                return Verification("inconclusive", sentence, (), known.rejected, tolerance)
            for level in known.levels:
                count = threads if level == "all" else 1
                info = worker.open(
                    "candidate", candidate, library, threads=count, level=level, cut=cut
                )
                if wrong := _signature(known, info):
                    return Verification("failed", wrong, (), known.rejected, tolerance)
                for label in known.off:
                    feed = {**feeds[label], **known.drawn.get(label, {})}
                    answers = worker.run("candidate", feed)
                    found += _judge(known, label, answers, limits, elementwise, choices)
    except WorkerError as error:
        sentence = f"the candidate does not run: {error}"
        return Verification("failed", sentence, tuple(found), known.rejected, tolerance)
    return _verdict(known, _worst_of(found), limits, tolerance)


# ---- the original ----------------------------------------------------------------------


def _reference(
    worker: Worker, original: Path, feeds: Feeds, scores: Set[str], watched: Sequence[str]
) -> Reference:
    levels: tuple[str, ...] = ("off", "all")
    extra = sorted({*scores, *watched})
    try:
        worker.check(original)
        valid = True
    except Rejected:  # onnx's checker is stricter than ONNX Runtime
        valid = False
    drawn, unfit = _drawn(worker, original, feeds)
    cut = _cut(drawn)
    feeds = {k: {**feed, **drawn.get(k, {})} for k, feed in feeds.items() if k not in unfit}
    try:
        worker.open("off", original, level="off", extra=extra, cut=cut)
    except Rejected:  # some models need ONNX Runtime's optimizations to run at all
        levels = ("all",)
        worker.open("off", original, level="all", extra=extra, cut=cut)
    raw, rejected = _runs(worker, "off", feeds)
    rejected |= unfit
    first = next(iter(raw), None)
    stable = first is None or _same(raw[first], worker.run("off", feeds[first]))
    worker.close("off")
    info = worker.open("on", original, level="all", cut=cut)
    on, _ = _runs(worker, "on", {label: feeds[label] for label in raw})
    inner = set(extra) - {port.name for port in info.outputs}
    off = {k: {n: a for n, a in v.items() if n not in inner} for k, v in raw.items()}
    trouble = _trouble(raw, rejected, stable) or overturned(raw.values(), watched)
    kept = scores | off.get(first or "", {}).keys()
    raw = {k: {n: a for n, a in v.items() if n in kept} for k, v in raw.items()}
    on = {**off, **on}
    floors = {
        k: {n: relative_distance(on[k][n], y) for n, y in run.items()} for k, run in off.items()
    }
    return Reference(
        off, on, raw, info.inputs, info.outputs, rejected, levels, trouble, valid, drawn, floors
    )


def _drawn(
    worker: Worker, original: Path, feeds: Feeds
) -> tuple[dict[str, Outputs], dict[str, str]]:
    """What the original's random operators drew for each feed, and the feeds it refused."""
    names = worker.random(original)
    if not names:
        return {}, {}
    worker.open("drawing", original, extra=names)
    found, rejected = _runs(worker, "drawing", feeds)
    worker.close("drawing")
    return {label: {n: run[n] for n in names} for label, run in found.items()}, rejected


def _cut(drawn: Mapping[str, Outputs]) -> Cut:
    """The values drawn: their element types, and the dims that are equal under all feeds."""
    found: dict[str, tuple[str, tuple[int | None, ...]]] = {}
    for run in drawn.values():
        for name, array in run.items():
            before = found.get(name, ("", array.shape))[1]
            dims = (a if a == b else None for a, b in zip(before, array.shape, strict=True))
            found[name] = (array.dtype.name, tuple(dims))
    return found


def _runs(worker: Worker, name: str, feeds: Feeds) -> tuple[dict[str, Outputs], dict[str, str]]:
    """Answers per feed, and what was said of the feeds that were refused."""
    answers: dict[str, Outputs] = {}
    rejected: dict[str, str] = {}
    for label, feed in feeds.items():
        try:
            answers[label] = worker.run(name, feed)
        except Rejected as error:
            rejected[label] = str(error)
    return answers, rejected


def _trouble(runs: Mapping[str, Outputs], rejected: Mapping[str, str], stable: bool) -> str:
    if not runs:
        first = next(iter(rejected.values()), "there were none")
        return f"the original rejects every input tried ({first}); give real ones with --data"
    return "" if stable else "the original answers differently each time it runs"


def _same(a: Outputs, b: Outputs) -> bool:
    return all(_identical(a[name], b[name]) for name in a)


def _identical(a: Array, b: Array) -> bool:
    return a.shape == b.shape and (
        errors(a, b).max_abs == 0.0 if is_float(a) else np.array_equal(a, b)
    )


# ---- the candidate ---------------------------------------------------------------------


def _signature(known: Reference, info: OpenInfo) -> str:
    """What differs in names, types or fixed dims; empty if nothing does."""
    for what, want, have in (
        ("inputs", known.inputs, info.inputs),
        ("outputs", known.outputs, info.outputs),
    ):
        if [(p.name, p.type) for p in want] != [(p.name, p.type) for p in have]:
            return f"the candidate's {what} are {_ports(have)}, the original's {_ports(want)}"
        for a, b in zip(want, have, strict=True):
            clash = len(a.shape) != len(b.shape) or any(
                x != y
                for x, y in zip(a.shape, b.shape, strict=True)
                if isinstance(x, int) and isinstance(y, int)
            )
            if clash:
                return f"{a.name!r} has dims {b.shape} in the candidate, {a.shape} in the original"
    return ""


def _ports(ports: Sequence[Port]) -> str:
    return ", ".join(f"{p.name} {p.type}" for p in ports) or "none"


def _judge(
    known: Reference,
    label: str,
    answers: Outputs,
    limits: Mapping[str, float],
    elementwise: Elementwise | None,
    choices: Mapping[str, Choice],
) -> Iterator[OutputError]:
    """One entry per output of one run."""
    off, on, scores = known.off[label], known.on[label], known.scores[label]
    for name, wanted in off.items():
        found, floor = answers.get(name), known.floors[label][name]
        if found is None:
            yield OutputError(name, label, np.inf, np.inf, 0.0, floor, False, "it is missing")
        elif found.dtype != wanted.dtype or found.shape not in (wanted.shape, on[name].shape):
            note = f"it is {found.dtype}{found.shape}, not {wanted.dtype}{wanted.shape}"
            yield OutputError(name, label, np.inf, np.inf, 0.0, floor, False, note)
        elif is_float(wanted):
            nearer = errors(found, wanted)
            if floor and nearer.relative:
                nearer = min(nearer, errors(found, on[name]), key=lambda e: e.relative)
            passed = nearer.relative <= _allowed(limits[name], floor)
            if elementwise is not None:
                passed = any(elementwise.accepts(found, y) for y in (wanted, on[name]))
            note = "" if np.isfinite(nearer.relative) else "NaN or infinities lie elsewhere"
            yield OutputError(
                name, label, nearer.max_abs, nearer.relative, nearer.cosine, floor, passed, note
            )
        else:
            yield _discrete(
                name, label, found, (wanted, on[name]), scores, limits[name], floor, choices
            )


def _discrete(
    name: str,
    label: str,
    found: Array,
    wanted: tuple[Array, Array],
    scores: Outputs,
    tolerance: float,
    floor: float,
    choices: Mapping[str, Choice],
) -> OutputError:
    """An integer, boolean or string output: equal to either reference, or too close to tell."""
    if any(np.array_equal(found, y) for y in wanted):
        return OutputError(name, label, 0.0, 0.0, 1.0, floor, True)
    count = int(np.sum(found != wanted[0])) if found.shape == wanted[0].shape else found.size
    choice = choices.get(name)
    if choice is not None and undecided(
        found, wanted[0], scores[choice.scores], choice.axis, tolerance
    ):
        note = f"{count} of {found.size} indices differ where the scores are within tolerance"
        return OutputError(name, label, 0.0, 0.0, 1.0, floor, True, note)
    note = f"{count} of {found.size} elements differ"
    return OutputError(name, label, np.inf, np.inf, 0.0, floor, False, note)


def _allowed(tolerance: float, floor: float) -> float:
    return max(tolerance, TOLERANCE.floor_factor * floor) if np.isfinite(floor) else tolerance


def _worst_of(found: Sequence[OutputError]) -> tuple[OutputError, ...]:
    """The worst entry per output and feed, over the levels tried."""
    worst: dict[tuple[str, str], OutputError] = {}
    for entry in sorted(found, key=lambda e: (not e.passed, e.relative)):
        worst[entry.output, entry.feed] = entry
    return tuple(worst.values())


def _verdict(
    known: Reference,
    outputs: tuple[OutputError, ...],
    limits: Mapping[str, float],
    tolerance: float,
) -> Verification:
    failed = [o for o in outputs if not o.passed]
    if not failed:
        largest = max((o.relative for o in outputs), default=0.0)
        common = set(limits.values()) <= {tolerance}
        limit = f"{tolerance:.1e} is allowed" if common else "within each output's own tolerance"
        random = len(_cut(known.drawn))
        alike = f"; {random} random values were fed alike" if random else ""
        sentence = f"the largest error is {largest:.1e} of max|y|, {limit}{alike}"
        return Verification("passed", sentence, outputs, known.rejected, tolerance)
    worst = max(failed, key=lambda o: o.relative)
    allowed = _allowed(limits[worst.output], worst.floor)
    what = worst.note or f"it is off by {worst.relative:.1e} of max|y|, {allowed:.1e} is allowed"
    sentence = f"output {worst.output!r} with {worst.feed}: {what}"
    return Verification("failed", sentence, outputs, known.rejected, tolerance)
