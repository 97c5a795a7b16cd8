"""Judging: a result is verified, blamed, timed, and thinned out until only what pays is left."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tracea_graph.check.bench import Bench
from tracea_graph.check.bisection import bisect
from tracea_graph.check.decide import Candidate, Decision, Group, clear_gain, decide
from tracea_graph.check.distance import Choice, Limits, choices
from tracea_graph.check.reference import Reference, reference
from tracea_graph.check.saturation import squashed
from tracea_graph.check.verify import Verification, compare
from tracea_graph.check.worker import Worker, unlimited
from tracea_graph.check.worker_pool import WorkerPool, new_worker
from tracea_graph.config import usable_processors
from tracea_graph.errors import BuildError, ModelError, OutOfTime, VerifyError, WorkerError
from tracea_graph.onnx_io import Model
from tracea_graph.options import Options
from tracea_graph.pipeline.assembly import row_tiling_key
from tracea_graph.pipeline.candidates import Built, Workshop
from tracea_graph.pipeline.clock import Deadline
from tracea_graph.pipeline.inputs import Feed, Inputs
from tracea_graph.pipeline.lock import Lock

__all__ = ["Judge", "fastest_tile_sizes", "relief"]

_PATIENCE, _SEARCH_SHARE = 60.0, 0.3
"""Seconds of one search for the rewrites to blame, and its share of the time that is left; after
that all that could be to blame are dropped."""
_SPENT = 0.9  # of what is allowed, where all of it was too much for another level or feed
_TELLING = 4  # feeds a search for what is to blame looks at
_METRIC_TOLERANCE = 1.0  # of max|y|: where the user's own metric judges


@dataclass
class Judge:
    """Holds what was found out about one model's candidates.

    Kernels that are ``unmeasured`` cannot run here: what ONNX Runtime makes of the bodies is
    verified, and nothing is timed.
    """

    model: Model
    workshop: Workshop
    inputs: Inputs
    options: Options
    levels: tuple[str, ...]
    worker_pool: WorkerPool | None = None
    lock: Lock | None = None
    unmeasured: bool = False
    deadline: Deadline = field(default_factory=Deadline)
    verification: Verification | None = None
    decision: Decision | None = None
    guilty: frozenset[str] = frozenset()
    charges: dict[str, str] = field(default_factory=dict)
    """What was wrong with each group to blame, or with the part of it that is."""
    slower_tiles: frozenset[str] = frozenset()
    """Keys of row tiles that were slower than smaller ones."""
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _failing: str = ""
    _right: Built | None = None
    _reference: Reference | None = None
    _ahead: Future[Reference] | None = None
    _built: dict[frozenset[str], Built] = field(default_factory=dict)
    _check_seconds: float = 0.0  # a look at something right at the highest level
    _seeking: bool = False

    def prepare(self) -> None:
        """Begin to run the original while its result is still planned and built."""
        if self.options.verify:
            self._ahead = ThreadPoolExecutor(1).submit(self._originally())

    def _original(self) -> Reference:
        ahead, self._ahead = self._ahead, None
        return ahead.result() if ahead else self._originally()()

    def _originally(self) -> Callable[[], Reference]:
        """How the original is run; the graph is not looked at any more then."""
        return partial(
            reference,
            self.model.path,
            self.inputs.verification,
            choices=self._choices(),
            watched=squashed(self.model.graph),
            spare=self.inputs.spare,
            trouble=self.inputs.trouble,
            threads=max(self.options.thread_counts),
            acquire=self._acquire,
        )

    @contextmanager
    def _acquire(self, library: Path | None, env: Mapping[str, str]) -> Iterator[Worker]:
        """A worker that no request keeps beyond the deadline."""
        with (self.worker_pool.acquire if self.worker_pool else new_worker)(
            library, env
        ) as worker:
            worker.left = lambda: self.deadline.left
            try:
                yield worker
            finally:
                worker.left = unlimited

    # ---- verification ------------------------------------------------------------------

    def verify(self, full: Built | None) -> Built | None:
        """``full`` if it is right; else what is left without the rewrites to blame; else None.

        None too if even the model without any fused region is wrong: ONNX Runtime takes models
        that the specification forbids as long as it does not look closely, and constants that
        were folded make it; and if there is no time to say that anything is right.  Raises
        ModelError for an original that ONNX Runtime cannot load.
        """
        try:
            if full is None:
                self._load_original()
                return None
            return self._verified(full)
        except OutOfTime:
            self.reason = f"{self._out_of_time} before a result was verified"
            return None

    def _load_original(self) -> None:
        """Raise ModelError if ONNX Runtime cannot; not where nobody wants it run, or for a file
        whose name it cannot be told."""
        name = os.fsencode(self.model.path).decode(errors="replace")
        if not self.options.verify or self.inputs.trouble or name != str(self.model.path):
            return
        with self._acquire(None, {}) as worker:
            try:
                worker.open("original", self.model.path)
            except OutOfTime:
                return
            except WorkerError as error:  # refused, or the process did not survive it
                raise ModelError(f"the original does not run: {error}") from None

    @property
    def _out_of_time(self) -> str:
        return f"the budget of {self.options.budget:g} s ran out"

    def _verified(self, full: Built) -> Built | None:
        self._built[frozenset()] = full
        if not (self.options.verify or (self.inputs.trouble and self.options.keep == "faster")):
            return full
        self.verification = self.check(full, self._unproved(full))
        if self.verification.status == "inconclusive":
            self.reason = self.verification.sentence
            return None
        if self.lock and self.verification.status == "failed":
            why = self.verification.sentence
            raise VerifyError(f"the result of {self.lock.where} is wrong: {why}")
        return self._within_tolerance(full)

    def _within_tolerance(self, full: Built) -> Built | None:
        """A candidate that was just verified, without the rewrites to blame for what was wrong."""
        assert self.verification is not None
        rest, first = full, self.verification.sentence
        while self.verification.status == "failed":
            if not self.verification.loads:
                self.reason = self.verification.sentence
                return None
            with self._searching():
                guilty = self._too_coarse()
            if not guilty:
                with self._searching():
                    guilty = self._blame(rest)
            if not guilty:
                self.reason = f"no rewrite is to blame, but its plain form is wrong: {first}"
                return None
            charge = self.verification.sentence
            self.charges |= {key.partition(" at ")[0]: charge for key in guilty}
            self.guilty |= guilty
            rest = self.build(self.dropped)
            self.verification = self.check(rest)
        if rest.library is None and self.guilty:
            self.reason = f"every rewrite was out of tolerance: {first}"
            return None
        self._right = rest
        return rest

    def _unproved(self, full: Built) -> tuple[str, ...]:
        """The ISA levels to verify; the highest alone where an equal run has verified the very
        same library under them all."""
        same = self.lock and full.built and self.lock.library == full.built.sha256
        if not same or len(self.levels) < 2:
            return ()
        self.notes.append(f"{', '.join(self.levels[:-1])}: verified then, with the same library")
        return self.levels[-1:]

    def confirm(self, final: Built, kept: Built) -> None:
        """Verify the files that are to be published, written anew from ``kept``.

        Of kernels that were found right before, the highest ISA level is enough; files that were
        verified as they are need no more.  Raises VerifyError.
        """
        if not self.options.verify or final is self._right:
            return
        known = self._right is not None and kept.assembly.within(self._right.assembly)
        with self.deadline.lifted():  # it was worth keeping, and time for this was set aside
            self.verification = self.check(final, self.levels[-1:] if known else ())
        if self.verification.status != "passed":
            raise VerifyError(f"the written result is wrong: {self.verification.sentence}")

    def check(
        self, candidate: Built, only: tuple[str, ...] = (), labels: frozenset[str] | None = None
    ) -> Verification:
        """Compare a candidate with the original under every ISA level this host can run.

        The highest level comes first, and alone where it fails; the others run side by side:
        nothing is timed here.  The highest level to fail is remembered: who is to blame is asked
        at that one alone.  ``labels`` are the feeds to look at; by default those below the highest
        level see a few of the caller's own.  What ONNX Runtime does around kernels depends on no
        level: below the highest, where kernels may take many times as long, it runs with all its
        optimizations only, and feeds but the one that matters most are spare.
        """
        levels = only or (self.levels[::-1] if candidate.library else self.levels[-1:])
        found = self._found(candidate, levels, labels)
        if self.worker_pool is not None and self.worker_pool.discard(_suspect_workers(found)):
            self._reference = None
            found = self._found(candidate, levels, labels)
        for level, one in zip(levels, found, strict=False):
            if one.status != "passed":
                self._failing = level
                return one
        return found[0]

    def _found(
        self, candidate: Built, levels: tuple[str, ...], labels: frozenset[str] | None
    ) -> list[Verification]:
        """What the first level gives, and each other one if the first is right."""
        known = self._reference = self._reference or self._original()
        if known.unloadable:
            raise ModelError(known.trouble)
        start = self.deadline.spent()
        first = self._compare(known, candidate, levels[0], labels)
        if levels[0] == self.levels[-1] and first.status == "passed":
            self._check_seconds = self.deadline.spent() - start
        if first.status != "passed" or not levels[1:]:
            return [first]
        with ThreadPoolExecutor(usable_processors()) as pool:
            rest = pool.map(
                lambda level: self._compare(known, candidate, level, labels), levels[1:]
            )
            return [first, *rest]

    def _compare(
        self, known: Reference, candidate: Built, level: str, labels: frozenset[str] | None
    ) -> Verification:
        highest = level == self.levels[-1]
        return compare(
            known,
            candidate.model,
            candidate.library,
            self.inputs.verification,
            limits=self._limits(),
            choices=self._choices(),
            threads=max(self.options.thread_counts),
            env={"TRACEA_ISA": level} if candidate.library else {},
            acquire=self._acquire,
            check=highest,
            labels=labels if labels or highest else self.inputs.brief,
            spare=() if highest else self.inputs.verification.keys() - {self.inputs.foremost},
            levels=known.levels if highest else known.levels[-1:],
            brief=self._seeking,
        )

    def _choices(self) -> dict[str, Choice]:
        return dict(choices(self.model.graph))

    def _limits(self) -> Limits:
        return Limits(_METRIC_TOLERANCE) if self.options.metric else self.options.limits

    def _too_coarse(self) -> frozenset[str]:
        """The rules that only lower precision without which all is within tolerance, if there are
        such, and as much of each as there has to be."""
        if self.options.precision == "fp32" or self.verification is None:
            return frozenset()
        spent = _SPENT if self.guilty else 1.0
        try:
            names = self.workshop.names
            keys = {rule: self.workshop.lowered(rule) for rule in names.rounding}
        except OutOfTime:
            return frozenset()
        coarse = partial(self._wrong, spent=spent)
        counts = relief(names.reliefs, keys, self.dropped, self._wrong, coarse, self._patient)
        if not counts:
            return frozenset()
        where = ", ".join(
            rule + f" in {n} of {len(keys[rule])} places" * (n < len(keys[rule]))
            for rule, n in counts.items()
        )
        self.warnings.append(f"without {where}: with all of it, {self.verification.sentence}")
        return frozenset(keys[rule][n - 1] for rule, n in counts.items()) - self.dropped

    def _blame(self, full: Built) -> frozenset[str]:
        groups = tuple(full.assembly.groups)
        if not self.guilty and self._wrong(frozenset(groups)):
            return frozenset()

        def fails(kept: frozenset[str]) -> bool:
            return self._wrong(self.dropped | (frozenset(groups) - kept))

        guilty = bisect(groups, fails, self._patient)
        guilty -= {
            group for group in guilty if row_tiling_key(group) in guilty
        }  # enough without row tiles
        for group in sorted(guilty):
            guilty = (guilty - {group}) | self._blame_within(group, guilty - {group})
        return guilty

    def _blame_within(self, group: str, others: frozenset[str]) -> frozenset[str]:
        """The steps of a guilty program that are to blame; the whole of it if no part is."""
        try:
            parts = self.workshop.parts(group)
        except OutOfTime:
            return frozenset((group,))

        def fails(kept: frozenset[str]) -> bool:
            return self._wrong(self.dropped | others | (frozenset(parts) - kept))

        found = bisect(parts, fails, self._patient)
        return found if 0 < len(found) < len(parts) else frozenset((group,))

    @contextmanager
    def _searching(self) -> Iterator[None]:
        """A search for what is to blame takes its share of the time that is left, and asks only
        whether something is wrong, not what."""
        seconds = min(_PATIENCE, _SEARCH_SHARE * self.deadline.left)
        with self.deadline.within(seconds):
            self._seeking = True
            try:
                yield
            finally:
                self._seeking = False
            if self.deadline.over:
                sought = f"what is to blame was sought for {seconds:.3g} s"
                self.deadline.tell(f"{sought}: others may have gone with it")

    def _patient(self) -> bool:
        """False once looking for what is to blame took too long."""
        return not self.deadline.over

    def _wrong(self, dropped: frozenset[str], spent: float = 1.0) -> bool:
        """True if the result without some rewrites takes more than ``spent`` of the tolerance, as
        far as the feeds tell that did; the others are looked at when nothing is to blame.  False
        means nothing once patience is over."""
        try:
            found = self.check(self.build(dropped), (self._failing,), self._telling())
        except OutOfTime:
            return False
        return found.status == "failed" or (found.spent > spent and not self._limits().elementwise)

    def _telling(self) -> frozenset[str] | None:
        """The feeds that were furthest out of tolerance, and of them those that no smaller one
        outdid; None for all, where nothing ran."""
        outputs = self.verification.outputs if self.verification else ()
        wrong = sorted((o for o in outputs if not o.passed), key=lambda o: -o.relative)
        telling, least = list[str](), float("inf")
        for feed in dict.fromkeys(o.feed for o in wrong):
            if (size := self.inputs.bytes_of(feed)) <= least:
                telling.append(feed)
                least = size
        return frozenset(telling[:_TELLING]) or None

    # ---- timing ------------------------------------------------------------------------

    def time(self, candidate: Built | None) -> Built | None:
        """What of the candidate was measured faster, or None.

        Where roundings were given up because they gained nothing, the others no longer have to
        add up to what was verified: what they come to is looked at again, and what is left is
        raced as one.
        """
        if candidate is None or self.options.keep == "all" or self.lock or self.unmeasured:
            return candidate
        try:
            return self._timed_and_right(candidate)
        except OutOfTime:
            self.reason = f"{self._out_of_time} before what is faster was measured and verified"
            return None

    def _timed_and_right(self, candidate: Built) -> Built | None:
        kept = self._faster(candidate, self.options.effort != "quick")
        if kept is None or kept is self._right or not self._rounds:
            return kept
        self.verification = self.check(kept, self.levels[-1:])
        if self.verification.status == "passed":
            return kept
        rest = self._within_tolerance(kept)
        return self._faster(rest, apart=False) if rest else None

    @property
    def _budget(self) -> float:
        """Seconds to measure in: what is left of the budget, but for verifying what is kept."""
        return max(min(self.options.budget, self.deadline.left) - self._check_seconds, 0.0)

    @property
    def _rounds(self) -> bool:
        return self.options.verify and self.options.precision != "fp32"

    def _faster(self, candidate: Built, apart: bool) -> Built | None:
        """What of it is measured faster; groups that were slower before stay away."""
        before = self.decision.verdicts if self.decision else ()
        if apart and (choices := self._lengths(candidate)):
            with Bench(Worker, self._timed(), self.options.thread_counts, self._budget) as bench:
                self.slower_tiles = fastest_tile_sizes(choices, self._candidate, bench)
            self.notes += (f"{key}: smaller row tiles were faster" for key in self.slower_tiles)
        found = decide(
            self.model.path,
            self._groups(candidate),
            self._candidate,
            self._timed(),
            threads=self.options.thread_counts,
            budget=self._budget,
            worker=Worker,
            apart=apart,
        )
        self.warnings += found.notes
        lost = tuple(v for v in before if not v.kept)
        self.decision = replace(found, verdicts=(*lost, *found.verdicts))
        if found.candidate is None:
            self.reason = self._why_nothing(found)
            return None
        return self.build(self.dropped)

    @property
    def dropped(self) -> frozenset[str]:
        """Groups that were wrong or not faster, and row tiles that were too large."""
        verdicts = self.decision.verdicts if self.decision else ()
        return self.guilty | self.slower_tiles | {v.group.key for v in verdicts if not v.kept}

    def _lengths(self, candidate: Built) -> list[tuple[str, ...]]:
        """Keys of the row tiles that could be smaller, for each program that has any."""
        if not self._timed():
            return []
        found = map(self.workshop.tile_sizes, candidate.assembly.groups)
        return [keys for keys in found if keys]

    def _timed(self) -> dict[str, Feed]:
        """Feeds to time that the original takes; if it refuses all, the largest of the others."""
        refused = self.verification.rejected if self.verification else {}
        timed = {k: f for k, f in self.inputs.timing.items() if k not in refused}
        others = {k: f for k, f in self.inputs.verification.items() if k not in refused}
        if timed or not others:
            return timed
        largest = max(others, key=self.inputs.bytes_of)
        self.warnings.append(f"timed with {largest} instead; --shape or --data gives other inputs")
        return {largest: others[largest]}

    @staticmethod
    def _why_nothing(decision: Decision) -> str:
        """Why the original is kept: what spoke against all rewrites, or that each one lost."""
        reasons = {v.reason.partition(", judged together")[0] for v in decision.verdicts}
        if len(reasons) == 1:  # without its figures: the report has them
            return re.split(r",? \(?\d+\.\d+×", reasons.pop().removeprefix("dropped: "))[0]
        return "no rewrite was measured faster on the whole model"

    def _groups(self, candidate: Built) -> list[Group]:
        planner, graph = self.workshop.planner, candidate.assembly.graph
        if not candidate.assembly.groups:
            return [Group("plain ONNX", (), 0.0)]
        return [
            Group(
                key,
                tuple(item.region.id for item in items),
                sum(planner.gain(graph, item.region, key != item.group) for item in items),
            )
            for key, items in candidate.assembly.groups.items()
        ]

    def _candidate(self, dropped: frozenset[str]) -> Candidate:
        built = self.build(self.dropped | dropped)
        return Candidate(built.model, built.library)

    def build(self, dropped: frozenset[str]) -> Built:
        """The candidate without these groups, built once."""
        if dropped not in self._built:
            self._built[dropped] = self.workshop.build(dropped)
        return self._built[dropped]


def _suspect_workers(found: Sequence[Verification]) -> str:
    """Which workers may have been spoilt by an earlier model: ``all``, those ``dead``, or none."""
    if any(one.status == "failed" for one in found):
        return "all"
    return "" if all(one.status == "passed" for one in found) else "dead"


_FRONT = 32  # shares of a net in which the end of what stays exact is searched for

Keys = Mapping[str, Sequence[str]]
"""For each rule: what drops its first place, its first two … all of them."""


def relief(
    reliefs: Sequence[Sequence[str]],
    keys: Keys,
    dropped: frozenset[str],
    wrong: Callable[[frozenset[str]], bool],
    coarse: Callable[[frozenset[str]], bool],
    patient: Callable[[], bool],
) -> Mapping[str, int]:
    """How many places of which rules stay exact beside what is ``dropped``; none if that is of no
    use.  ``coarse`` asks for more than not to be ``wrong``.

    The first of ``reliefs`` (sets of rules) that is enough is searched: of its last rule, which
    costs most to do without, as much as possible stays, then of the others.
    """
    present = (tuple(rule for rule in rules if keys[rule]) for rules in reliefs)
    for rules in dict.fromkeys(filter(None, present)):
        counts = {rule: len(keys[rule]) for rule in rules}
        if keys[rules[-1]][-1] in dropped or wrong(dropped | _ends(keys, counts)):
            continue
        for rule in reversed(rules):
            low, high = 0, len(keys[rule])  # too coarse without so many, right without so many
            while high - low > max(1, len(keys[rule]) // _FRONT) and patient():
                middle = (low + high) // 2
                less = _ends(keys, {**counts, rule: middle})
                low, high = (middle, high) if coarse(dropped | less) else (low, middle)
            counts[rule] = high
        return counts
    return {}


def _ends(keys: Keys, counts: Mapping[str, int]) -> frozenset[str]:
    """What drops the first places of each rule."""
    return frozenset(keys[rule][count - 1] for rule, count in counts.items() if count)


LENGTHS_SHARE = 0.1
"""Of the budget, for these races."""


def fastest_tile_sizes(
    choices: Sequence[Sequence[str]], build: Callable[[frozenset[str]], Candidate], bench: Bench
) -> frozenset[str]:
    """The keys to drop; ``choices`` are those of each program's largest row tiles.

    ``build`` makes the model without some keys.  What cannot be built or run stays out.
    """
    chosen = frozenset[str]()
    end = bench.now() + LENGTHS_SHARE * bench.budget
    contests = [(keys, key) for keys in choices for key in keys]
    for i, (keys, key) in enumerate(contests):
        seconds = (end - bench.now()) / (len(contests) - i)
        if seconds <= 0:
            break
        other = chosen - {*keys} | {key}
        try:
            ratios = bench.against(build(chosen), build(other), seconds)
        except (BuildError, OutOfTime, WorkerError):
            continue
        if clear_gain(ratios, bench.keys):
            chosen = other
    return chosen
