"""A study finds the fastest schedule, cheaply, and never invents a gain."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.errors import WorkerError
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.tuning.candidate_selection import candidates_to_measure
from tracea_graph.tuning.schedule_search import EXHAUSTIVE, FINAL, RUNGS, Study, StudyResult, Trial
from tracea_graph.tuning.tuning_problem import Case, default_schedule

CASE = Case(GemmProblem(768, 768), 128)
DEFAULT = default_schedule(CASE)
CHALLENGERS = candidates_to_measure(CASE, SCHEDULE_SPACE, "avx512", (1,), 12)
Cost = Callable[[GemmSchedule], float]


class Machine:
    """Answers comparisons from a cost function, with seeded noise; counts the pairs it ran."""

    def __init__(self, cost: Cost, noise: float = 0.0, patience: float = float("inf")) -> None:
        self.cost, self.noise, self.patience = cost, noise, patience
        self.random = random.Random(7)
        self.pairs: dict[GemmSchedule, int] = {}

    def measure(self, schedule: GemmSchedule, threads: int, pairs: int, stage: str) -> PairedTimes:
        self.pairs[schedule] = self.pairs.get(schedule, 0) + pairs
        return PairedTimes(self.times(DEFAULT, pairs), self.times(schedule, pairs))

    def times(self, schedule: GemmSchedule, pairs: int) -> tuple[float, ...]:
        base = self.cost(schedule)
        return tuple(base * (1 + self.random.random() * self.noise) for _ in range(pairs))

    def has_time(self) -> bool:
        return sum(self.pairs.values()) < self.patience


def run(
    machine: Machine,
    challengers: Sequence[GemmSchedule] = CHALLENGERS,
    threads: Sequence[int] = (1,),
    known: Sequence[Trial] = (),
) -> StudyResult:
    study = Study(
        DEFAULT, challengers, threads, machine.measure, machine.has_time, lambda t: None, known
    )
    return study.run()


def favours(best: GemmSchedule, gain: float) -> Cost:
    return lambda schedule: (
        1.0 if schedule == best else gain if schedule == DEFAULT else gain * 1.02
    )


@pytest.mark.parametrize("index", [0, 5, 11])
def test_the_known_optimum_is_found_through_noise(index: int) -> None:
    found = run(Machine(favours(CHALLENGERS[index], 1.2), noise=0.1))
    assert found.schedule == CHALLENGERS[index] and found.final
    assert found.gain == pytest.approx(1.2, rel=0.05)


def test_losers_get_few_pairs() -> None:
    machine = Machine(favours(CHALLENGERS[3], 1.3), noise=0.05)
    run(machine)
    assert sorted(machine.pairs.values())[: len(CHALLENGERS) // 2] == [RUNGS[0][0]] * 6
    assert machine.pairs[CHALLENGERS[3]] > FINAL


def test_a_gain_below_one_percent_keeps_the_default() -> None:
    found = run(Machine(favours(CHALLENGERS[2], 1.008)))
    assert found.schedule == DEFAULT and found.gain == 1.0 and found.final


def test_noise_alone_is_no_gain() -> None:
    assert run(Machine(lambda schedule: 1.0, noise=0.3)).schedule == DEFAULT


def test_what_drowns_in_noise_is_left_open() -> None:
    calm = Machine(favours(CHALLENGERS[0], 1.1))

    class Shaken(Machine):
        def measure(
            self, schedule: GemmSchedule, threads: int, pairs: int, stage: str
        ) -> PairedTimes:
            if pairs < FINAL:
                return calm.measure(schedule, threads, pairs, stage)
            waves = [1.0 if i // 3 % 2 else 3.0 for i in range(pairs)]
            return PairedTimes((1.1,) * pairs, tuple(waves))

    found = run(Shaken(favours(CHALLENGERS[0], 1.1)))
    assert found.schedule == DEFAULT and not found.final


def test_equal_candidates_are_told_apart_by_their_order() -> None:
    found = run(Machine(lambda schedule: 1.2 if schedule == DEFAULT else 1.0))
    assert found.schedule == CHALLENGERS[0]


def test_a_gain_on_one_thread_count_must_not_cost_another() -> None:
    best = CHALLENGERS[1]

    class Uneven(Machine):
        def measure(
            self, schedule: GemmSchedule, threads: int, pairs: int, stage: str
        ) -> PairedTimes:
            slow = 0.7 if threads == 1 else 1.03
            return PairedTimes((1.0,) * pairs, ((slow if schedule == best else 1.0),) * pairs)

    assert run(Uneven(lambda d: 1.0), threads=(1, 2)).schedule == DEFAULT
    assert run(Uneven(lambda d: 1.0), threads=(1,)).schedule == best


def test_a_crash_marks_its_candidate_only() -> None:
    bad, best = CHALLENGERS[0], CHALLENGERS[4]

    class Crashing(Machine):
        def measure(
            self, schedule: GemmSchedule, threads: int, pairs: int, stage: str
        ) -> PairedTimes:
            if schedule == bad:
                raise WorkerError("the worker died (SIGSEGV)")
            return super().measure(schedule, threads, pairs, stage)

    found = run(Crashing(favours(best, 1.2)))
    assert found.schedule == best
    assert [t.fault for t in found.trials if t.schedule == bad] == ["the worker died (SIGSEGV)"]


def test_where_nothing_runs_nothing_is_final() -> None:
    class Broken(Machine):
        def measure(
            self, schedule: GemmSchedule, threads: int, pairs: int, stage: str
        ) -> PairedTimes:
            raise WorkerError("out of memory")

    found = run(Broken(lambda d: 1.0))
    assert found.schedule == DEFAULT and not found.final


def test_an_interrupted_study_resumes_without_measuring_twice() -> None:
    cost = favours(CHALLENGERS[6], 1.2)
    first = Machine(cost, patience=5 * RUNGS[0][0])
    begun = run(first)
    assert not begun.final and begun.schedule == DEFAULT
    known = [Trial.from_json(t.to_json(), SCHEDULE_SPACE) for t in begun.trials]
    second = Machine(cost)
    found = run(second, known=known)
    assert found.schedule == CHALLENGERS[6] and found.final
    whole = Machine(cost)
    run(whole)
    assert sum(first.pairs.values()) + sum(second.pairs.values()) == sum(whole.pairs.values())


def test_of_a_large_space_a_sample_is_measured() -> None:
    case = Case(GemmProblem(768, 3072), 128)
    everything = candidates_to_measure(case, SCHEDULE_SPACE, "avx512", (1,), 10**6)
    assert len(everything) > EXHAUSTIVE

    def cost(schedule: GemmSchedule) -> float:
        width = 3 - schedule.nr_panels if schedule.nr_panels else 0
        return 1.0 + 0.2 * width + 0.1 * (1 - schedule.prefetch) + abs(schedule.mc - 64) / 2000

    first, second = (Machine(cost, noise=0.01) for _ in range(2))
    found = run(first, everything)
    assert cost(found.schedule) < cost(DEFAULT)
    assert len(found.trials) <= EXHAUSTIVE
    assert run(second, everything).schedule == found.schedule
