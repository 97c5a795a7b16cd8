"""One study: find the fastest schedule of a case with few measurements.

Successive halving: every candidate runs a few pairs against the default, the better half runs more
pairs, and the best of these still more.  The best candidate is judged on new pairs, so that a
lucky measurement does not win.  Candidates are ranked by their shortest runs, since noise only
lengthens runs; the verdict uses the median over blocks of pairs and its bounds.  Over several
thread counts, ratios are combined by the geometric mean.  The default stays unless it is clearly
beaten by :data:`MINIMUM_GAIN`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tracea_graph.check.timing_statistics import PairedTimes, Ratio, pool_timings, speed_ratio
from tracea_graph.errors import WorkerError
from tracea_graph.kernels.program import Schedule
from tracea_graph.tuning.schedule_space import ScheduleSpace
from tracea_graph.tuning.serialization import schedule_to_json

__all__ = [
    "EXHAUSTIVE",
    "MINIMUM_GAIN",
    "Explore",
    "Study",
    "StudyResult",
    "Trial",
    "explore_candidates",
]

MINIMUM_GAIN = 1.01
EXHAUSTIVE = 64
"""Up to this number, candidates are measured in order; larger spaces are sampled."""
RUNGS = ((3, 1), (6, 2), (12, 6))
"""Pairs a candidate has after each rung, and the divisor of the candidates that reach it."""
FINAL = 24
"""Pairs per round of the verdict."""
BLOCK = 3
"""Pairs per block, whose shortest runs form one sample of the verdict."""
ROUNDS = 3
NOISY = 1.25
"""Ratio of upper to lower bound above which a result is inconclusive."""
_CLEAR = 1.0
_NO_LOSS = 0.99

Measure = Callable[[Schedule, int, int, str], PairedTimes]
"""``measure(schedule, threads, pairs, stage)`` times the default (a) against a schedule (b);
``stage`` is ``search`` or ``verdict``.
"""
Explore = Callable[["Study"], bool]
"""Measures first pairs of candidates; returns False when time is up."""


@dataclass
class Trial:
    """Measurements of one candidate schedule against the default, by thread count.

    ``timings`` are taken during the search, ``verdict`` afterwards if the candidate was the best.
    ``fault`` says why the candidate cannot run.
    """

    schedule: Schedule
    timings: dict[int, PairedTimes] = field(default_factory=dict)
    verdict: dict[int, PairedTimes] = field(default_factory=dict)
    fault: str = ""

    def score(self, threads: Sequence[int], pairs: int) -> float:
        """Return the speedup over the default in the first ``pairs`` runs; 0 if untimed."""
        if self.fault or any(t not in self.timings for t in threads):
            return 0.0
        timings = [self.timings[t] for t in threads]
        return _mean([min(r.a_ms[:pairs]) / min(r.b_ms[:pairs]) for r in timings])

    def judged(self, threads: Sequence[int]) -> list[Ratio]:
        """Return the time ratios of the ``verdict``, one per thread count."""
        return [speed_ratio(_shortest(self.verdict[t])) for t in threads]

    def to_json(self) -> dict[str, Any]:
        return {
            "schedule": schedule_to_json(self.schedule),
            "timings": {str(t): [times.a_ms, times.b_ms] for t, times in self.timings.items()},
            "verdict": {str(t): [times.a_ms, times.b_ms] for t, times in self.verdict.items()},
            "fault": self.fault,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], schedule_space: ScheduleSpace) -> Trial:
        """Parse what :meth:`to_json` returned.  Raises KeyError, TypeError or ValueError."""
        timings, verdict = (
            {int(t): PairedTimes(tuple(a), tuple(b)) for t, (a, b) in data[k].items()}
            for k in ("timings", "verdict")
        )
        return cls(
            schedule_space.schedule_from_json(data["schedule"]), timings, verdict, data["fault"]
        )


@dataclass(frozen=True)
class StudyResult:
    """The outcome of a study.

    ``schedule`` is the one to use, ``gain`` its speed-up over the default (1 for the default).
    ``final`` is False if time ran out.  ``trials`` are in the order in which they were measured.
    """

    schedule: Schedule
    gain: float
    final: bool
    trials: tuple[Trial, ...]


@dataclass
class Study:
    """Compares candidate schedules with the default until one is chosen or time is up.

    * ``has_time``: returns whether to continue measuring.
    * ``save``: called with all trials after every measurement.
    * ``known``: trials of an earlier, interrupted study.
    * ``trials``: maximum number of candidates to measure.
    * ``seed``: seed of the sampler.
    * ``search``: makes the first measurement of each candidate, while ``may_search()`` is true.
      If the search ends early, the best candidate is still compared with the default, but the
      outcome is not final.
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
    search: Explore = field(default=lambda study: explore_candidates(study))
    may_search: Callable[[], bool] = lambda: True

    def run(self) -> StudyResult:
        """Choose a schedule; if time runs out, the outcome has the trials measured so far."""
        self._trials = {t.schedule: t for t in self.known if t.schedule in set(self.candidates)}
        best = self._searched()
        return self._outcome(None, final=False) if best is None else self._judged(best)

    def _searched(self) -> list[Trial] | None:
        """Return the candidates to judge, best first; None when time is up."""
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
        """Judge the best candidate on new pairs; if it shows no gain, judge the next."""
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
        """Return ``gain``, ``none``, ``noise`` if inconclusive, or empty when time is up."""
        for pairs in range(FINAL, ROUNDS * FINAL + 1, FINAL):
            if not self._run(trial, trial.verdict, pairs):
                return ""
            if trial.fault:
                return "none"
            ratios = trial.judged(self.threads)
            noisy = any(r.high > NOISY * r.low for r in ratios)
            if is_clear_gain(ratios):
                return "gain"
            if _mean([r.median for r in ratios]) < MINIMUM_GAIN and not noisy:
                return "none"
        return "noise" if noisy else "none"

    def first_score(self, schedule: Schedule) -> float | None:
        """Return the score of a candidate's first pairs; None if time is up.

        The pairs are measured now, unless an earlier study has measured them.
        """
        if not self.may_search() or not self._measured(schedule, RUNGS[0][0]):
            return None
        return self._trials[schedule].score(self.threads, RUNGS[0][0])

    def trial(self, schedule: Schedule) -> Trial:
        """Return the measurements of a candidate."""
        return self._trials[schedule]

    def adopt(self, trial: Trial) -> None:
        """Replace a trial by one that was measured elsewhere, if that has more pairs."""
        have = self._trials.get(trial.schedule)
        if have is None or sum(map(_pairs, have.timings.values())) < sum(
            map(_pairs, trial.timings.values())
        ):
            self._trials[trial.schedule] = trial

    def _measured(self, schedule: Schedule, pairs: int) -> bool:
        """Extend a candidate's measurements to ``pairs``; return False when time is up."""
        trial = self._trials.setdefault(schedule, Trial(schedule))
        return self._run(trial, trial.timings, pairs)

    def _run(self, trial: Trial, into: dict[int, PairedTimes], pairs: int) -> bool:
        """Measure up to ``pairs`` at every thread count; return False when time is up."""
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
                    into[count] = pool_timings([into[count], times]) if count in into else times
                self.save(tuple(self._trials.values()))
        return True

    def _ranked(self, trials: Sequence[Trial], pairs: int) -> list[Trial]:
        """Sort trials by their score over the first pairs; ties keep the candidates' order."""
        order = {schedule: i for i, schedule in enumerate(self.candidates)}
        return sorted(trials, key=lambda t: (-t.score(self.threads, pairs), order[t.schedule]))

    def _outcome(self, best: Trial | None, *, final: bool) -> StudyResult:
        trials = tuple(self._trials.values())
        if best is None:
            broken = bool(trials) and all(t.fault for t in trials)
            return StudyResult(self.default, 1.0, final and not broken, trials)
        gain = _mean([r.median for r in best.judged(self.threads)])
        return StudyResult(best.schedule, gain, final, trials)


def explore_candidates(study: Study) -> bool:
    """Measure all candidates in order if they are few; otherwise measure a sample of them.

    Returns False if time ran out.
    """
    if len(study.candidates) > EXHAUSTIVE:
        from tracea_graph.tuning.candidate_sampling import sample_candidates

        return sample_candidates(study.candidates, study.first_score, study.trials, study.seed)
    return all(study.first_score(c) is not None for c in study.candidates[: study.trials])


def is_clear_gain(ratios: Sequence[Ratio]) -> bool:
    """Return True if the ratios, one per thread count, show a clear gain and no loss."""
    gain, low = _mean([r.median for r in ratios]), _mean([r.low for r in ratios])
    return gain >= MINIMUM_GAIN and low > _CLEAR and min(r.median for r in ratios) >= _NO_LOSS


def _pairs(times: PairedTimes | None) -> int:
    return len(times.a_ms) if times else 0


def _shortest(times: PairedTimes) -> PairedTimes:
    """Return the shortest runs of each block of pairs, which other processes rarely disturb."""
    starts = range(0, len(times.a_ms) - BLOCK + 1, BLOCK)
    a, b = (tuple(min(x[i : i + BLOCK]) for i in starts) for x in (times.a_ms, times.b_ms))
    return PairedTimes(a, b)


def _mean(numbers: Sequence[float]) -> float:
    """Return the geometric mean; 0 if a number is 0."""
    if not all(numbers):
        return 0.0
    return math.exp(sum(map(math.log, numbers)) / len(numbers))
