"""Select the groups of rewrites that are measured faster.

The unit of decision is a group of rewrites that belong together.  First, the model with all groups
is timed against the original.  Then, in descending order of predicted gain, it is timed against
the model without one group, for every thread count and binding:

    win        the 99 % lower bound of the ratio is above 1.005
    loss       the 99 % upper bound is below 1
    undecided  neither: the nodes that differ between both models are timed alone (interleaved
               per-node profiles), which reveals gains hidden by whole-run noise; a clear win there
               counts, because the whole model already shows no loss; otherwise up to 12 rounds of
               15 pairs follow, as long as they can still decide

A group stays if it wins at one thread count and binding and is likely to gain at all others (a
median above 1.005, no loss): requiring proof at each of them would lose real gains of a few
percent. Groups that alone are neither a clear gain nor slower are then timed together: the
selection with them against the selection without them, since many small gains add up to a
measurable one.  The final selection is timed against the original again by the rule above.  If
it is no clear gain, nothing stays, except if all groups together were a clear gain and no group
was a loss: then all stay.  Groups too small for their share of the budget are timed together as
one; if that leaves a single unit, the whole budget goes to timing it against the original.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tracea_graph.check.input_feeds import Feeds
from tracea_graph.check.paired_benchmark import (
    MINIMUM_GAIN,
    BenchmarkWorker,
    Key,
    ModelWithLibrary,
    PairedBenchmark,
    PairedComparison,
)
from tracea_graph.check.timing_statistics import Ratio, other_processes_busy
from tracea_graph.check.worker_process import Worker
from tracea_graph.errors import BuildError, OutOfTime, WorkerError
from tracea_graph.reason_codes import Code, Reason, code_of, run_failure_reason

__all__ = [
    "GroupSelection",
    "GroupVerdict",
    "ModelWithLibrary",
    "RewriteGroup",
    "is_clear_gain",
    "select_faster",
]

WHOLE_SHARE, GROUPS_SHARE = 0.2, 0.4
"""Shares of the budget: for the first comparison of the whole, and for those of single groups."""
COMBINED_SHARE = 0.5
"""Share of the time left then for the combined comparison of all undecided groups."""


_UNKNOWN: Mapping[Key, Ratio] = {}
_UNTIMED = "the kept rewrites could not be timed"
_BUSY = "other processes keep a core busy: the ratios are less certain"


@dataclass(frozen=True)
class RewriteGroup:
    """Rewrites that are kept or dropped together; ``predicted_us`` is their predicted gain."""

    key: str
    rewrites: tuple[str, ...]
    predicted_us: float


@dataclass(frozen=True)
class GroupVerdict:
    """The decision on a group; ``ratios`` are its speed-ups by (threads, binding label).

    If ``alone`` is false, several groups were timed together, and ``ratios`` are their joint
    speed-ups.
    """

    group: RewriteGroup
    kept: bool
    reason: str
    ratios: Mapping[Key, Ratio] = field(default_factory=dict)
    alone: bool = True

    @property
    def code(self) -> Code:
        """The code of the reason."""
        return code_of(self.reason, Code.FASTER if self.kept else Code.NOT_FASTER)

    @property
    def slower(self) -> bool:
        """Whether the model was measured slower with the group at any key."""
        return any(ratio.high < 1.0 for ratio in self.ratios.values())


@dataclass(frozen=True)
class GroupSelection:
    """The groups that are kept, and the model with these groups.

    ``total`` compares that model with the original; if no group is kept, it compares the model
    with all groups.  ``candidate`` is None if the original is kept; ``notes`` are warnings.
    ``busy`` says that other processes kept a core busy, so that a quiet machine may decide
    otherwise.
    """

    kept: frozenset[str]
    verdicts: tuple[GroupVerdict, ...]
    total: Mapping[Key, Ratio]
    candidate: ModelWithLibrary | None
    notes: tuple[str, ...] = ()

    @property
    def busy(self) -> bool:
        return _BUSY in self.notes

    @property
    def why_nothing(self) -> Reason:
        """Why the original is kept: a reason shared by all groups, or that none was faster."""
        reasons = {v.reason.partition(", timed together")[0] for v in self.verdicts}
        codes = {v.code for v in self.verdicts}
        code = codes.pop() if len(codes) == 1 else Code.NOT_FASTER
        advice = "; 'tracea explain' on the result tells what was tried"
        if len(reasons) == 1:  # the first of the figures, which the report has all of
            return Reason(reasons.pop().removeprefix("dropped: ").split("; ")[0] + advice, code)
        return Reason(f"no rewrite was measured faster on the whole model{advice}", code)


Build = Callable[[frozenset[str]], ModelWithLibrary]
"""Function that builds the model and library without the groups of these keys."""


def select_faster(
    original: Path,
    groups: Sequence[RewriteGroup],
    build: Build,
    feeds: Feeds,
    *,
    threads: Sequence[int] = (1,),
    budget: float = 60.0,
    worker: Callable[[], BenchmarkWorker] = Worker,
    separately: bool = True,
    clock: Callable[[], float] = time.monotonic,
    counted: Callable[[int, int], None] = lambda done, total: None,
    known: Mapping[Key, Ratio] = _UNKNOWN,
    providers: tuple[str, ...] = (),
) -> GroupSelection:
    """Measure groups and keep those that pay, within ``budget`` seconds of measuring.

    * ``feeds``: one input set per binding to time;
    * ``worker``: starts the process that runs all models; if it dies it is replaced, and its
      candidate loses;
    * ``separately``: if false, all groups are timed in one comparison, and all or none are kept;
    * ``clock``: returns the seconds of the budget's clock;
    * ``counted``: called with the numbers of finished and of all comparisons of groups;
    * ``known``: ratios of the full model over the original that need not be measured again;
    * ``providers``: execution providers that the original runs in where they are installed.

    Raises BuildError if the full model cannot be built.
    """
    notes = (_BUSY,) * (other_processes_busy() and other_processes_busy(0.4))
    if not groups or not feeds:
        return GroupSelection(frozenset(), (), {}, None, notes)
    full = build(frozenset())
    with PairedBenchmark(worker, feeds, tuple(dict.fromkeys(threads)), budget, clock) as bench:
        first = ModelWithLibrary(original, None, providers)
        selector = _Selector(first, full, build, bench, notes, separately, counted, known)
        found = selector.select_faster(groups)
        where = (f"the original was timed in ONNX Runtime's {bench.provider}",)
        return replace(found, notes=found.notes + where * bool(bench.provider))


@dataclass
class _Unit:
    """Groups timed together, the model without them, and the results so far."""

    groups: list[RewriteGroup]
    comparisons: dict[Key, PairedComparison] = field(default_factory=dict)
    without: ModelWithLibrary | None = None
    trouble: str = ""

    @property
    def lost(self) -> bool:
        return any(not comparison.likely for comparison in self.comparisons.values())

    @property
    def proven(self) -> bool:
        return any(comparison.win for comparison in self.comparisons.values())

    def gains(self, keys: Sequence[Key]) -> bool:
        return _gains(self.comparisons, keys)

    def verdicts(self, keys: Sequence[Key]) -> list[GroupVerdict]:
        """Return one verdict for each group."""
        kept = bool(self.trouble) or self.gains(keys)
        reason = self.trouble or _reason(kept, self.comparisons, self.groups)
        ratios = {key: comparison.ratio for key, comparison in self.comparisons.items()}
        alone = len(self.groups) == 1
        return [GroupVerdict(group, kept, reason, ratios, alone) for group in self.groups]


@dataclass
class _Selector:
    """The steps of one decision over a benchmark."""

    original: ModelWithLibrary
    full: ModelWithLibrary
    build: Build
    bench: PairedBenchmark
    notes: tuple[str, ...]
    separately: bool = True
    counted: Callable[[int, int], None] = lambda done, total: None
    known: Mapping[Key, Ratio] = field(default_factory=dict)

    def select_faster(self, groups: Sequence[RewriteGroup]) -> GroupSelection:
        try:
            total = self._compare_whole()
        except WorkerError as error:
            lost = [GroupVerdict(group, True, "") for group in groups]
            why = run_failure_reason("the model with all rewrites does not run", error)
            return self._nothing(lost, {}, why)
        units = self._units(sorted(groups, key=lambda g: -g.predicted_us), total)
        if len(units) == 1:
            return self._whole(units[0], total)
        self._compare_groups(units)
        verdicts = [v for unit in units for v in unit.verdicts(self.bench.keys)]
        return self._final(verdicts, total, any(unit.trouble for unit in units))

    def _compare_whole(self) -> dict[Key, Ratio]:
        """Compare the model with all groups with the original at every key not yet known.

        Takes a second share of the budget if opening the models used up the first, or if noise
        leaves a gain undecided: planning the model without some groups may take all the time left,
        and then only this comparison can decide.
        """
        total = {key: self.known[key] for key in self.bench.keys if key in self.known}
        rest = [key for key in self.bench.keys if key not in total]
        self.bench.reserve(total)
        seconds = WHOLE_SHARE * self.bench.budget
        while rest and self.bench.left and not _loses(total):
            total |= self.bench.compare_all(self.original, self.full, seconds, rest)
            rest = [key for key in rest if key not in total]
        if (undecided := _undecided(total)) and not _loses(total):
            total |= self.bench.compare_all(self.original, self.full, seconds, undecided)
        return total

    def _units(self, groups: Sequence[RewriteGroup], total: Mapping[Key, Ratio]) -> list[_Unit]:
        """Return the groups to time alone, and one unit of those too small for the budget."""
        if not self.separately:
            return [_Unit(list(groups))]
        cost = self.bench.comparison_seconds(total)
        room = int(GROUPS_SHARE * self.bench.budget / cost) if cost else len(groups)
        alone = len(groups) if room >= len(groups) else max(room - 1, 0)
        rest = [_Unit(list(groups[alone:]))] if alone < len(groups) else []
        return [_Unit([group]) for group in groups[:alone]] + rest

    def _compare_groups(self, units: Sequence[_Unit]) -> None:
        """Compare the model with all groups with that without each unit, key by key."""
        end = self.bench.deadline(GROUPS_SHARE)
        comparisons = [(key, unit) for key in self.bench.keys for unit in units]
        for i, (key, unit) in enumerate(comparisons):
            left = end - self.bench.now()
            self.counted(i, len(comparisons))
            if left <= 0:
                return
            if unit.lost or unit.trouble:
                continue
            try:
                unit.without = unit.without or self.build(frozenset(g.key for g in unit.groups))
                seconds = left / (len(comparisons) - i)
                unit.comparisons[key] = self.bench.compare_at(
                    unit.without, self.full, key, seconds, screen=True, proven=unit.proven
                )
            except (WorkerError, BuildError, OutOfTime) as error:
                unit.trouble = Reason(
                    f"kept: no candidate without it could be timed ({error})",
                    Code.NOT_SEPARABLE,
                )

    def _whole(self, unit: _Unit, total: Mapping[Key, Ratio]) -> GroupSelection:
        """Decide a single unit, which has all groups: the model without it is the original.

        If the first, short comparison leaves a gain undecided, all remaining time goes to another.
        """
        unit.comparisons = _compared(total)
        if not unit.gains(self.bench.keys) and not _loses(total):
            try:
                longer = self.bench.compare_all(self.original, self.full, self.bench.left)
            except WorkerError as error:
                why = run_failure_reason("it could not be timed", error)
                return self._nothing(unit.verdicts(()), {}, why)
            total = {**total, **longer}
            unit.comparisons = _compared(total)
        verdicts = tuple(unit.verdicts(self.bench.keys))
        kept = frozenset(v.group.key for v in verdicts if v.kept)
        return GroupSelection(kept, verdicts, total, self.full if kept else None, self.notes)

    def _final(
        self, verdicts: Sequence[GroupVerdict], first: Mapping[Key, Ratio], shaken: bool
    ) -> GroupSelection:
        """Compare the selection with the original; ``first`` is the comparison of the whole."""
        total = first
        try:
            verdicts = self._combined(verdicts)
        except OutOfTime as error:
            why = Reason(f"{_UNTIMED}: {error}", Code.OUT_OF_BUDGET)
            return self._at_least_whole(verdicts, first, {}, why)
        except (WorkerError, BuildError) as error:
            return self._nothing(verdicts, {}, run_failure_reason(_UNTIMED, error))
        kept = frozenset(v.group.key for v in verdicts if v.kept)
        dropped = frozenset(v.group.key for v in verdicts if not v.kept)
        if not kept:
            return self._at_least_whole(verdicts, first, total, "")
        candidate = self.full
        try:
            if dropped or shaken:
                candidate = self.build(dropped) if dropped else self.full
                total = self.bench.compare_all(self.original, candidate, self.bench.left)
        except OutOfTime as error:
            why = Reason(f"{_UNTIMED}: {error}", Code.OUT_OF_BUDGET)
            return self._at_least_whole(verdicts, first, {}, why)
        except (WorkerError, BuildError) as error:
            return self._nothing(verdicts, {}, run_failure_reason(_UNTIMED, error))
        if is_clear_gain(total, self.bench.keys):
            return GroupSelection(kept, tuple(verdicts), total, candidate, self.notes)
        numbers = _numbers(total) or "the budget ran out"
        why = Reason(
            f"the kept rewrites together are no clear gain ({numbers})", Code.ORIGINAL_KEPT
        )
        return self._at_least_whole(verdicts, first, total, why)

    def _at_least_whole(
        self,
        verdicts: Sequence[GroupVerdict],
        first: Mapping[Key, Ratio],
        total: Mapping[Key, Ratio],
        why: str,
    ) -> GroupSelection:
        """Keep the whole if it was a clear gain and no group a loss; else keep nothing.

        Used if no selection of groups is a clear gain, or if there is no time to measure one.
        """
        if any(v.slower for v in verdicts) or not is_clear_gain(first, self.bench.keys):
            return self._nothing(verdicts, total, why)
        reason = Reason(
            f"kept: no clear gain alone, but all together: {_numbers(first)}", Code.FASTER_TOGETHER
        )
        kept = tuple(
            v if v.kept else replace(v, kept=True, reason=reason, ratios=first, alone=False)
            for v in verdicts
        )
        keys = frozenset(v.group.key for v in verdicts)
        return GroupSelection(keys, kept, first, self.full, self.notes)

    def _combined(self, verdicts: Sequence[GroupVerdict]) -> list[GroupVerdict]:
        """Keep groups without a clear gain of their own if all of them together are one."""
        dropped = frozenset(v.group.key for v in verdicts if not v.kept)
        open_ = frozenset(v.group.key for v in verdicts if not v.kept and not v.slower)
        if len(open_) < 2:
            return list(verdicts)
        without = self.build(dropped) if len(dropped) < len(verdicts) else self.original
        rest = dropped - open_
        ratios = self.bench.compare_all(
            without, self.build(rest) if rest else self.full, COMBINED_SHARE * self.bench.left
        )
        if not is_clear_gain(ratios, self.bench.keys):
            return list(verdicts)
        why = Reason(
            f"kept: no clear gain alone, but with {len(open_) - 1} others {_numbers(ratios)}",
            Code.FASTER_TOGETHER,
        )
        return [
            replace(v, kept=True, reason=why, ratios=ratios, alone=False)
            if v.group.key in open_
            else v
            for v in verdicts
        ]

    def _nothing(
        self, verdicts: Sequence[GroupVerdict], total: Mapping[Key, Ratio], why: str
    ) -> GroupSelection:
        """Keep the original, whatever was measured of single groups."""
        reason = Reason(f"dropped: {why}", code_of(why, Code.ORIGINAL_KEPT))
        given_up = tuple(replace(v, kept=False, reason=reason) if v.kept else v for v in verdicts)
        return GroupSelection(frozenset(), given_up, total, None, self.notes)


def is_clear_gain(ratios: Mapping[Key, Ratio], keys: Sequence[Key]) -> bool:
    """Return True if there is a win at one of the keys and a likely gain at all others."""
    return _gains(_compared(ratios), keys)


def _gains(comparisons: Mapping[Key, PairedComparison], keys: Sequence[Key]) -> bool:
    """Return True for a win somewhere and a likely gain everywhere."""
    found = comparisons.values()
    return len(found) == len(keys) and any(r.win for r in found) and all(r.likely for r in found)


def _loses(ratios: Mapping[Key, Ratio]) -> bool:
    return any(ratio.high < 1.0 for ratio in ratios.values())


def _undecided(ratios: Mapping[Key, Ratio]) -> list[Key]:
    """Return keys at which a gain proven elsewhere is not likely, or the ratio is inconclusive."""
    found = _compared(ratios)
    proven = any(comparison.win for comparison in found.values())
    return [
        key for key, comparison in found.items()
        if not (comparison.likely if proven else comparison.win or not comparison.inconclusive)
    ]  # fmt: skip


def _compared(ratios: Mapping[Key, Ratio]) -> dict[Key, PairedComparison]:
    return {
        key: PairedComparison(found, found.low > MINIMUM_GAIN) for key, found in ratios.items()
    }


def _reason(
    kept: bool, comparisons: Mapping[Key, PairedComparison], unit: Sequence[RewriteGroup]
) -> Reason:
    """Return one sentence: the outcome, its numbers, and the groups timed together."""
    along = f", timed together: {', '.join(g.key for g in unit)}" if len(unit) > 1 else ""
    proven = any(r.win for r in comparisons.values())
    weak = {key: r for key, r in comparisons.items() if not (r.likely if proven else r.win)}
    if kept:
        numbers = _numbers({k: r.ratio for k, r in comparisons.items()})
        clear = any(r.ratio.low > MINIMUM_GAIN for r in comparisons.values())
        code = Code.FASTER if clear else Code.FASTER_NODES
        code = Code.FASTER_TOGETHER if along else code
        return Reason(f"kept: {numbers}{_own_nodes(comparisons)}{along}", code)
    if not weak:
        return Reason(
            f"dropped: the budget ran out before all its timings were done{along}",
            Code.OUT_OF_BUDGET,
        )
    slower = any(r.ratio.high < 1.0 for r in weak.values())
    code, word = (Code.SLOWER, "slower") if slower else (Code.NOT_FASTER, "no clear gain")
    numbers = _numbers({k: r.ratio for k, r in weak.items()})
    return Reason(f"dropped: {word}, {numbers}{_own_nodes(weak)}{along}", code)


def _numbers(ratios: Mapping[Key, Ratio]) -> str:
    """Format ratios as ``1.043× (1.031–1.055) at 1 thread, batch=1`` for each key."""
    return "; ".join(
        f"{ratio} at {count} thread{'s' * (count != 1)}, {label}"
        for (count, label), ratio in ratios.items()
    )


def _own_nodes(comparisons: Mapping[Key, PairedComparison]) -> str:
    found = [f"{r.alone}" for r in comparisons.values() if r.alone is not None]
    return f"; its own nodes alone {', '.join(found)}" if found else ""
