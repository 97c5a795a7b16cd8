"""One study: which of a case's schedules is fastest, measured as little as it takes.

Successive halving: every candidate runs a few pairs against the default, the better half some
more, the best of those more again, and the best of all is judged on pairs taken after it was
chosen, so that being lucky once does not make a winner.  Candidates are ranked by their shortest
runs, which noise only ever lengthens; the verdict rests on the median over blocks of pairs and
its bounds.  Over several thread counts ratios count as their geometric mean.  The default stays
unless it is beaten by :data:`MINIMUM_GAIN` and clearly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tracea_graph.check.timing import PairedTimes, Ratio, pooled, ratio
from tracea_graph.errors import WorkerError
from tracea_graph.kernels.program import Schedule
from tracea_graph.tuning.schedule_space import ScheduleSpace
from tracea_graph.tuning.serialization import schedule_to_json

__all__ = ["EXHAUSTIVE", "MINIMUM_GAIN", "Explore", "Study", "StudyResult", "Trial", "explore"]

MINIMUM_GAIN = 1.01
EXHAUSTIVE = 64
"""Up to so many candidates they are measured in their order; of more, a sampler picks."""
RUNGS = ((3, 1), (6, 2), (12, 6))
"""Pairs a candidate has after each rung, and which part of all candidates reaches it."""
FINAL = 24
"""Pairs per round to judge the best one."""
BLOCK = 3
"""Pairs of which the shortest runs make one sample of the verdict."""
ROUNDS = 3
NOISY = 1.25
"""Bounds further apart than this say nothing: another day may."""
_CLEAR = 1.0
_NO_LOSS = 0.99

Measure = Callable[[Schedule, int, int, str], PairedTimes]
"""``measure(schedule, threads, pairs, stage)``: the default (a) against a schedule (b); the stage
is ``search`` or ``verdict``."""
Explore = Callable[["Study"], bool]
"""Lets candidates have their first pairs; False when time is up."""


@dataclass
class Trial:
    """What was measured of one candidate: timings per thread count; ``fault`` if it cannot run.

    ``verdict`` are the times taken after it was chosen.
    """

    schedule: Schedule
    timings: dict[int, PairedTimes] = field(default_factory=dict)
    verdict: dict[int, PairedTimes] = field(default_factory=dict)
    fault: str = ""

    def score(self, threads: Sequence[int], pairs: int) -> float:
        """Speed-up over the default in the first pairs; 0 if it failed or was not measured."""
        if self.fault or any(t not in self.timings for t in threads):
            return 0.0
        timings = [self.timings[t] for t in threads]
        return _mean([min(r.a_ms[:pairs]) / min(r.b_ms[:pairs]) for r in timings])

    def judged(self, threads: Sequence[int]) -> list[Ratio]:
        """The verdict's ratios, one per thread count."""
        return [ratio(_shortest(self.verdict[t])) for t in threads]

    def to_json(self) -> dict[str, Any]:
        return {
            "schedule": schedule_to_json(self.schedule),
            "timings": {str(t): [times.a_ms, times.b_ms] for t, times in self.timings.items()},
            "verdict": {str(t): [times.a_ms, times.b_ms] for t, times in self.verdict.items()},
            "fault": self.fault,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], schedule_space: ScheduleSpace) -> Trial:
        """The inverse of :meth:`to_json`.  Raises KeyError, TypeError or ValueError."""
        timings, verdict = (
            {int(t): PairedTimes(tuple(a), tuple(b)) for t, (a, b) in data[k].items()}
            for k in ("timings", "verdict")
        )
        return cls(
            schedule_space.schedule_from_json(data["schedule"]), timings, verdict, data["fault"]
        )


@dataclass(frozen=True)
class StudyResult:
    """The schedule to use, its gain over the default (1 for the default), and whether it is final.

    ``trials`` are in the order of measuring.
    """

    schedule: Schedule
    gain: float
    final: bool
    trials: tuple[Trial, ...]


@dataclass
class Study:
    """Measures candidates against a default until one is chosen or time is up.

    ``known`` are trials of an earlier, interrupted study; ``save`` hears of progress after every
    measurement.  ``has_time`` says whether to go on.  ``trials`` bounds the measured candidates;
    ``seed`` is the sampler's, where there is one; ``search`` does the first rung, as long as
    ``may_search``: then the best so far is judged, but the outcome is not final.
    """

    default: Schedule
    candidates: Sequence[Schedule]
    threads: Sequence[int]
    measure: Measure
    has_time: Callable[[], bool]
    save: Callable[[Sequence[Trial]], None]
    known: Sequence[Trial] = ()
    seed: int = 0
    trials: int = EXHAUSTIVE
    search: Explore = field(default=lambda study: explore(study))
    may_search: Callable[[], bool] = lambda: True

    def run(self) -> StudyResult:
        """Choose a schedule.  What was measured when time is up stays in the outcome's trials."""
        self._trials = {t.schedule: t for t in self.known if t.schedule in set(self.candidates)}
        best = self._searched()
        return self._outcome(None, final=False) if best is None else self._judged(best)

    def _searched(self) -> list[Trial] | None:
        """The candidates worth judging, best first; None when time is up."""
        self._complete = self.search(self)
        if not self._complete and (not self.has_time() or self.may_search()):
            return None
        left, count = list(self._trials.values()), len(self._trials)
        for (before, _), (pairs, part) in pairwise(RUNGS):
            left = self._ranked(left, before)[: max(1, math.ceil(count / part))]
            if not all(self._measured(trial.schedule, pairs) for trial in left):
                return None
        return self._ranked(left, RUNGS[-1][0])[:2]

    def _judged(self, best: Sequence[Trial]) -> StudyResult:
        """Judge the best on fresh pairs; the next best if it turns out no gain."""
        final = self._complete
        for trial in best:
            if trial.score(self.threads, RUNGS[-1][0]) < MINIMUM_GAIN:
                break
            verdict = self._verdict(trial)
            if verdict == "gain":
                return self._outcome(trial, final=self._complete)
            final = final and verdict == "none"
            if verdict == "":
                break
        return self._outcome(None, final=final)

    def _verdict(self, trial: Trial) -> str:
        """``gain``, ``none``, ``noise`` where nothing can be told, empty when time is up."""
        for pairs in range(FINAL, ROUNDS * FINAL + 1, FINAL):
            if not self._run(trial, trial.verdict, pairs):
                return ""
            if trial.fault:
                return "none"
            ratios = trial.judged(self.threads)
            noisy = any(r.high > NOISY * r.low for r in ratios)
            if is_gain(ratios):
                return "gain"
            if _mean([r.median for r in ratios]) < MINIMUM_GAIN and not noisy:
                return "none"
        return "noise" if noisy else "none"

    def first_score(self, schedule: Schedule) -> float | None:
        """A candidate's score after its first pairs, now or earlier; None when time is up."""
        if not self.may_search() or not self._measured(schedule, RUNGS[0][0]):
            return None
        return self._trials[schedule].score(self.threads, RUNGS[0][0])

    def trial(self, schedule: Schedule) -> Trial:
        """What was measured of a candidate."""
        return self._trials[schedule]

    def adopt(self, trial: Trial) -> None:
        """Take over what was measured elsewhere, unless more is known here."""
        have = self._trials.get(trial.schedule)
        if have is None or sum(map(_pairs, have.timings.values())) < sum(
            map(_pairs, trial.timings.values())
        ):
            self._trials[trial.schedule] = trial

    def _measured(self, schedule: Schedule, pairs: int) -> bool:
        """Let a candidate have so many pairs; False when time is up."""
        trial = self._trials.setdefault(schedule, Trial(schedule))
        return self._run(trial, trial.timings, pairs)

    def _run(self, trial: Trial, into: dict[int, PairedTimes], pairs: int) -> bool:
        """Measure until there are so many pairs at every thread count; False when time is up."""
        for count in self.threads:
            while not trial.fault and (missing := pairs - _pairs(into.get(count))) > 0:
                if not self.has_time():
                    return False
                try:
                    stage = "verdict" if into is trial.verdict else "search"
                    times = self.measure(trial.schedule, count, missing, stage)
                except WorkerError as error:
                    trial.fault = str(error)
                else:
                    into[count] = pooled([into[count], times]) if count in into else times
                self.save(tuple(self._trials.values()))
        return True

    def _ranked(self, trials: Sequence[Trial], pairs: int) -> list[Trial]:
        """Trials by their score over the first pairs; equal ones in the candidates' order."""
        order = {schedule: i for i, schedule in enumerate(self.candidates)}
        return sorted(trials, key=lambda t: (-t.score(self.threads, pairs), order[t.schedule]))

    def _outcome(self, best: Trial | None, *, final: bool) -> StudyResult:
        trials = tuple(self._trials.values())
        if best is None:
            broken = bool(trials) and all(t.fault for t in trials)
            return StudyResult(self.default, 1.0, final and not broken, trials)
        gain = _mean([r.median for r in best.judged(self.threads)])
        return StudyResult(best.schedule, gain, final, trials)


def explore(study: Study) -> bool:
    """Few candidates are all measured, in their order; of many a sampler picks."""
    if len(study.candidates) > EXHAUSTIVE:
        from tracea_graph.tuning.sampling import sample

        return sample(study.candidates, study.first_score, study.trials, study.seed)
    return all(study.first_score(c) is not None for c in study.candidates[: study.trials])


def is_gain(ratios: Sequence[Ratio]) -> bool:
    """Whether ratios, one per thread count, are a gain: enough of it, clear, no loss anywhere."""
    gain, low = _mean([r.median for r in ratios]), _mean([r.low for r in ratios])
    return gain >= MINIMUM_GAIN and low > _CLEAR and min(r.median for r in ratios) >= _NO_LOSS


def _pairs(times: PairedTimes | None) -> int:
    return len(times.a_ms) if times else 0


def _shortest(times: PairedTimes) -> PairedTimes:
    """The shortest runs of each block of pairs: other processes rarely hit all of a block."""
    starts = range(0, len(times.a_ms) - BLOCK + 1, BLOCK)
    a, b = (tuple(min(x[i : i + BLOCK]) for i in starts) for x in (times.a_ms, times.b_ms))
    return PairedTimes(a, b)


def _mean(numbers: Sequence[float]) -> float:
    """The geometric mean; 0 if a number is 0."""
    if not all(numbers):
        return 0.0
    return math.exp(sum(map(math.log, numbers)) / len(numbers))
