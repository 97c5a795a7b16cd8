"""One study: which of a case's drivers is fastest, measured as little as it takes.

Successive halving: every candidate runs a few pairs against the default, the better third some
more, and the best of those is judged on pairs taken after it was chosen, so that being lucky
once does not make a winner.  Candidates are ranked by their shortest runs, which noise only
ever lengthens; the verdict rests on the median over blocks of pairs and its bounds.  Over
several thread counts ratios count as their geometric mean.  The default stays unless it is
beaten by :data:`MINIMUM_GAIN` and clearly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from tracea_graph.check.timing import Race, Ratio, pooled, ratio
from tracea_graph.errors import WorkerError
from tracea_graph.ops.program import GemmDriver

__all__ = ["EXHAUSTIVE", "MINIMUM_GAIN", "Outcome", "Study", "Trial"]

MINIMUM_GAIN = 1.01
EXHAUSTIVE = 64
"""Up to so many candidates each is measured; of more, a sampler picks as many."""
FIRST, SECOND, FINAL = 5, 7, 24
"""Pairs per rung: for all, for the best third, and per round to judge the best one."""
BLOCK = 3
"""Pairs of which the shortest runs make one sample of the verdict."""
ROUNDS = 3
NOISY = 1.25
"""Bounds further apart than this say nothing: another day may."""
_CLEAR = 1.0
_NO_LOSS = 0.99

Measure = Callable[[GemmDriver, int, int], Race]
"""``measure(driver, threads, pairs)``: the default (a) against a driver (b)."""


@dataclass
class Trial:
    """What was measured of one candidate: races per thread count; ``fault`` if it cannot run.

    ``verdict`` are the races taken after it was chosen.
    """

    driver: GemmDriver
    races: dict[int, Race] = field(default_factory=dict)
    verdict: dict[int, Race] = field(default_factory=dict)
    fault: str = ""

    def score(self, threads: Sequence[int], pairs: int) -> float:
        """Speed-up over the default in the first pairs; 0 if it failed or was not measured."""
        if self.fault or any(t not in self.races for t in threads):
            return 0.0
        races = [self.races[t] for t in threads]
        return _mean([min(r.a_ms[:pairs]) / min(r.b_ms[:pairs]) for r in races])

    def judged(self, threads: Sequence[int]) -> list[Ratio]:
        """The verdict's ratios, one per thread count."""
        return [ratio(_shortest(self.verdict[t])) for t in threads]

    def to_json(self) -> dict[str, Any]:
        return {
            "driver": astuple(self.driver),
            "races": {str(t): [race.a_ms, race.b_ms] for t, race in self.races.items()},
            "verdict": {str(t): [race.a_ms, race.b_ms] for t, race in self.verdict.items()},
            "fault": self.fault,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        races, verdict = (
            {int(t): Race(tuple(a), tuple(b)) for t, (a, b) in data[k].items()}
            for k in ("races", "verdict")
        )
        return cls(GemmDriver(*data["driver"]), races, verdict, data["fault"])


@dataclass(frozen=True)
class Outcome:
    """The driver to use, its gain over the default (1 for the default) and whether that is final.

    ``trials`` are in the order of measuring.
    """

    driver: GemmDriver
    gain: float
    final: bool
    trials: tuple[Trial, ...]


@dataclass
class Study:
    """Measures candidates against a default until one is chosen or time is up.

    ``known`` are trials of an earlier, interrupted study; ``save`` hears of progress after every
    rung.  ``has_time`` says whether to go on.  ``seed`` is the sampler's, where there is one.
    """

    default: GemmDriver
    candidates: Sequence[GemmDriver]
    threads: Sequence[int]
    measure: Measure
    has_time: Callable[[], bool]
    save: Callable[[Sequence[Trial]], None]
    known: Sequence[Trial] = ()
    seed: int = 0

    def run(self) -> Outcome:
        """Choose a driver.  What was measured when time is up stays in the outcome's trials."""
        self._trials = {t.driver: t for t in self.known if t.driver in set(self.candidates)}
        if len(self.candidates) > EXHAUSTIVE:
            from tracea_graph.tuning.sampling import sample

            complete = sample(self.candidates, self._first_score, EXHAUSTIVE, self.seed)
        else:
            complete = all(self._raced(driver, FIRST) for driver in self.candidates)
        if not complete:
            return self._outcome(None, final=False)
        third = self._ranked(list(self._trials.values()), FIRST)
        third = third[: max(1, math.ceil(len(self._trials) / 3))]
        if not all(self._raced(trial.driver, FIRST + SECOND) for trial in third):
            return self._outcome(None, final=False)
        return self._judged(self._ranked(third, FIRST + SECOND)[:2])

    def _judged(self, best: Sequence[Trial]) -> Outcome:
        """Judge the best on fresh pairs; the next best if it turns out no gain."""
        final = True
        for trial in best:
            if trial.score(self.threads, FIRST + SECOND) < MINIMUM_GAIN:
                break
            verdict = self._verdict(trial)
            if verdict == "gain":
                return self._outcome(trial, final=True)
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

    def _first_score(self, driver: GemmDriver) -> float | None:
        """A candidate's score after the first rung; None when time is up."""
        if not self._raced(driver, FIRST):
            return None
        return self._trials[driver].score(self.threads, FIRST)

    def _raced(self, driver: GemmDriver, pairs: int) -> bool:
        """Let a candidate have so many pairs; False when time is up."""
        trial = self._trials.setdefault(driver, Trial(driver))
        return self._run(trial, trial.races, pairs)

    def _run(self, trial: Trial, into: dict[int, Race], pairs: int) -> bool:
        """Race until there are so many pairs at every thread count; False when time is up."""
        for count in self.threads:
            while not trial.fault and (missing := pairs - _pairs(into.get(count))) > 0:
                if not self.has_time():
                    return False
                try:
                    race = self.measure(trial.driver, count, missing)
                except WorkerError as error:
                    trial.fault = str(error)
                else:
                    into[count] = pooled([into[count], race]) if count in into else race
                self.save(tuple(self._trials.values()))
        return True

    def _ranked(self, trials: Sequence[Trial], pairs: int) -> list[Trial]:
        """Trials by their score over the first pairs; equal ones in the candidates' order."""
        order = {driver: i for i, driver in enumerate(self.candidates)}
        return sorted(trials, key=lambda t: (-t.score(self.threads, pairs), order[t.driver]))

    def _outcome(self, best: Trial | None, *, final: bool) -> Outcome:

        trials = tuple(self._trials.values())
        if best is None:
            broken = bool(trials) and all(t.fault for t in trials)
            return Outcome(self.default, 1.0, final and not broken, trials)
        gain = _mean([r.median for r in best.judged(self.threads)])
        return Outcome(best.driver, gain, final, trials)


def is_gain(ratios: Sequence[Ratio]) -> bool:
    """Whether ratios, one per thread count, are a gain: enough of it, clear, no loss anywhere."""
    gain, low = _mean([r.median for r in ratios]), _mean([r.low for r in ratios])
    return gain >= MINIMUM_GAIN and low > _CLEAR and min(r.median for r in ratios) >= _NO_LOSS


def _pairs(race: Race | None) -> int:
    return len(race.a_ms) if race else 0


def _shortest(race: Race) -> Race:
    """The shortest runs of each block of pairs: other processes rarely hit all of a block."""
    starts = range(0, len(race.a_ms) - BLOCK + 1, BLOCK)
    a, b = (tuple(min(x[i : i + BLOCK]) for i in starts) for x in (race.a_ms, race.b_ms))
    return Race(a, b)


def _mean(numbers: Sequence[float]) -> float:
    """The geometric mean; 0 if a number is 0."""
    if not all(numbers):
        return 0.0
    return math.exp(sum(map(math.log, numbers)) / len(numbers))
