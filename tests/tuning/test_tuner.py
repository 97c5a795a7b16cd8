"""The tuner spends its budget where time goes, remembers, resumes, and replicas itself exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.config import Environment
from tracea_graph.errors import UsageError
from tracea_graph.kernels.cpu.backend import CPU
from tracea_graph.kernels.cpu.isa_levels import LEVELS, host_levels
from tracea_graph.kernels.cpu.schedule import GEMM_SCHEDULES as BY_ROWS
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE, gemm_space
from tracea_graph.kernels.cpu.schedules.gemm_problem import TYPICAL_ROWS, GemmProblem
from tracea_graph.policy import SearchSpace
from tracea_graph.toolchain import find_compiler
from tracea_graph.tuning import (
    CaseFinished,
    Event,
    Problem,
    TrialMeasured,
    Tuner,
    TuningCache,
    TuningOptions,
    TuningResult,
    TuningStarted,
    Workload,
    schedule_tables,
    tune,
)
from tracea_graph.tuning.cache_key import (
    case_facts,
    machine_facts,
    nearest_result_difference,
    result_cache_key,
)
from tracea_graph.tuning.machine_tuner import resident_bytes
from tracea_graph.tuning.task_priority import (
    GainEstimates,
    allot_trials,
    sort_by_priority,
    tuning_tasks,
)
from tracea_graph.tuning.tuner import NOT_WORTH_TUNING
from tracea_graph.tuning.tuning_problem import Case


@pytest.fixture(autouse=True)
def one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict gains for a core with one unit of multiply-adds, whatever this machine has."""
    monkeypatch.setattr(gemm_space, "units_of", lambda isa: 1.0)


SMALL, LARGE = GemmProblem(384, 384), GemmProblem(768, 3072)
LOADS = (Workload(SMALL, 6, (128,)), Workload(LARGE, 12, (128,)))


class ModelFixture:
    """A machine on which one setting is 1.2 times as fast; each pair takes a second."""

    def __init__(self, *, interrupt_after: int = -1) -> None:
        self.now, self.cases, self.openings = 0.0, list[Case](), 0
        self.left = interrupt_after

    def clock(self) -> float:
        return self.now

    @contextmanager
    def open(self, problems: Sequence[Problem]) -> Iterator[ModelFixture]:
        self.openings += 1
        yield self

    def compare(
        self,
        case: Case,
        a: GemmSchedule,
        b: GemmSchedule,
        threads: int,
        pairs: int,
        seconds: float,
    ) -> PairedTimes:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        self.now += pairs
        self.cases.append(case)
        return PairedTimes((1.2,) * pairs, (1.0 if b.mc == 64 else 1.21,) * pairs)


def tuner(cache: TuningCache, fixture: ModelFixture, machine: str = "m", **more: object) -> Tuner:
    return Tuner(
        cache,
        fixture.open,
        limit=8,
        schedule_space=SCHEDULE_SPACE,
        level="avx512",
        threads=(1,),
        facts={"machine": machine},
        clock=fixture.clock,
        **more,
    )  # type: ignore[arg-type]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[TuningCache]:
    with TuningCache(tmp_path / "tuning.sqlite") as made:
        yield made


PROSPECTS = GainEstimates(SCHEDULE_SPACE, "avx512", (1,))


def test_what_is_asked_for_comes_first_then_what_is_worth_most() -> None:
    loads = (Workload(SMALL, 6, (128,)), Workload(LARGE, 12, (1, 128)))
    tasks = sort_by_priority(tuning_tasks(loads, SCHEDULE_SPACE, "avx512", (1,)), PROSPECTS)
    assert [j.asked for j in tasks] == sorted((j.asked for j in tasks), reverse=True)
    assert {j.case for j in tasks if j.asked} == {
        Case(LARGE, 1),
        Case(LARGE, 128),
        Case(SMALL, 128),
    }
    order = [j.case for j in tasks if j.asked and j.case.rows == 128]
    assert order == [Case(LARGE, 128), Case(SMALL, 128)]
    assert {j.case.rows for j in tasks} == {*TYPICAL_ROWS}


def test_shares_are_of_the_whole_model() -> None:
    alone = {
        j.case: j.share for j in tuning_tasks(LOADS, SCHEDULE_SPACE, "avx512", (1,)) if j.asked
    }
    assert sum(alone.values()) == pytest.approx(1.0)
    beside = {
        j.case: j.share
        for j in tuning_tasks(LOADS, SCHEDULE_SPACE, "avx512", (1,), rest_us=1e6)
        if j.asked
    }
    assert all(beside[case] < 0.1 * share for case, share in alone.items())


def test_trials_follow_expected_gain_and_nothing_else() -> None:
    tasks = tuning_tasks(LOADS, SCHEDULE_SPACE, "avx512", (1,))
    few, many = (
        allot_trials(tasks, GainEstimates(SCHEDULE_SPACE, "avx512", (1,)), s)
        for s in (10.0, 100.0)
    )
    assert many == allot_trials(tasks, GainEstimates(SCHEDULE_SPACE, "avx512", (1,)), 100.0)
    assert many[Case(LARGE, 128)] > many[Case(SMALL, 128)] >= few[Case(SMALL, 128)]


def test_small_runs_leave_time_for_more_trials() -> None:
    tasks = tuning_tasks(LOADS, SCHEDULE_SPACE, "avx512", (1,))
    cold, resident = (
        allot_trials(tasks, GainEstimates(SCHEDULE_SPACE, "avx512", (1,), run_bytes=size), 5.0)
        for size in (None, 1 << 20)
    )
    assert all(resident[case] >= cold[case] for case in cold)
    assert sum(resident.values()) > sum(cold.values())


@pytest.mark.parametrize(
    ("weights", "resident"),
    [(None, None), (0, 1 << 20), (3 << 20, 4 << 20), (16 << 20, 16 << 20), (17 << 20, None)],
)
def test_weights_of_small_models_stay_in_the_cache(
    weights: int | None, resident: int | None
) -> None:
    assert resident_bytes(weights, 32 << 20) == resident


def test_what_promises_less_than_a_hundredth_is_not_begun(cache: TuningCache) -> None:
    fixture = ModelFixture()
    found = tuner(cache, fixture).run(LOADS, 1e6, rest_us=1e6)
    asked = [t for t in found if t.case.rows == 128]
    assert {t.source for t in asked} == {"default"} and "less than 1 %" in asked[0].why
    assert not {t.case for t in asked} & set(fixture.cases)


def test_a_selective_search_takes_requested_cases_that_pay_alone(cache: TuningCache) -> None:
    fixture = ModelFixture()
    loads = (Workload(SMALL, 1, (128,)), Workload(LARGE, 12, (128,)))
    found = {t.case: t for t in tuner(cache, fixture, selective=True).run(loads, 1e6)}
    assert set(fixture.cases) == {Case(LARGE, 128)} and found[Case(LARGE, 128)].gain > 1.1
    assert found[Case(SMALL, 128)].why == NOT_WORTH_TUNING
    assert {t.case.rows for t in found.values() if t.source == "default"} >= {1, 16, 1024}


def test_a_space_of_the_user_is_what_is_searched(cache: TuningCache) -> None:
    fixture, heard = ModelFixture(), list[Event]()
    loads = (Workload(LARGE, 12, (128,)),)
    within = SearchSpace().tile_m([64, 32]).tile_n([0]).axis("columns", [0]).stages([2])
    made = tuner(cache, fixture, within=within, selective=True, listen=heard.append)
    (found,) = (t for t in made.run(loads, 1e6) if t.case == Case(LARGE, 128))
    assert {e.schedule.mc for e in heard if isinstance(e, TrialMeasured)} == {64, 32}
    assert found.schedule.mc == 64 and found.gain > 1.1
    (other,) = (t for t in tuner(cache, fixture).run(loads, 0) if t.case == found.case)
    assert other.source == "default", "a narrowed search says nothing about the whole space"
    with pytest.raises(UsageError, match="no axis 'tile_q'; did you mean tile_n"):
        tuner(cache, fixture, within=SearchSpace().axis("tile_q", [1])).run(loads, 1e6)


def test_hits_and_misses_are_told(cache: TuningCache) -> None:
    heard: list[Event] = []
    tuner(cache, ModelFixture(), listen=heard.append).run(LOADS, 1e6)
    (first,) = (e for e in heard if isinstance(e, TuningStarted))
    assert {t.why for t in first.known} == {"never measured"}
    settled = [e.tuned.source for e in heard if isinstance(e, CaseFinished)]
    assert settled == ["measured"] * len(settled) and settled
    heard.clear()
    tuner(cache, ModelFixture(), "other", listen=heard.append).run(LOADS, 0)
    (missed,) = heard
    assert isinstance(missed, TuningStarted)
    assert "measured on another machine" in {t.why for t in missed.known}
    heard.clear()
    tuner(cache, ModelFixture(), listen=heard.append).run(LOADS, 0)
    (hit,) = heard
    assert isinstance(hit, TuningStarted) and {t.source for t in hit.known} >= {"cache"}


def test_every_case_is_measured_and_the_better_schedule_found(cache: TuningCache) -> None:
    found = tuner(cache, ModelFixture()).run(LOADS, 1e6)
    assert {t.source for t in found} == {"measured", "default"}
    assert {t.why for t in found if t.source == "default"} == {NOT_WORTH_TUNING}
    best = {t.case: t for t in found}[Case(LARGE, 128)]
    assert best.schedule.mc == 64 and best.gain == pytest.approx(1.2)


def test_the_budget_is_kept_and_the_next_run_goes_on(cache: TuningCache) -> None:
    first, second, third = ModelFixture(), ModelFixture(), ModelFixture()
    begun = tuner(cache, first).run(LOADS, 100)
    assert first.now <= 100 + 12, "one comparison may overrun, no more"
    assert {t.source for t in begun} >= {"measured", "default"}
    done = tuner(cache, second).run(LOADS, 1e6)
    assert {t.source for t in done} >= {"cache", "measured"}
    tuner(cache, third).run(LOADS, 1e6)
    assert third.openings == 0, "all is remembered"
    whole = ModelFixture()
    with TuningCache(cache.path.with_name("other.sqlite")) as other:
        assert schedules(tuner(other, whole).run(LOADS, 1e6)) == schedules(done)
    assert first.now + second.now == whole.now, "nothing was measured twice"


def test_no_budget_measures_nothing(cache: TuningCache) -> None:
    fixture = ModelFixture()
    found = tuner(cache, fixture).run(LOADS, 0)
    assert fixture.openings == 0 and {t.source for t in found} == {"default"}
    assert schedule_tables(found) == {}


def test_an_interrupt_keeps_what_was_measured(cache: TuningCache) -> None:
    first = ModelFixture(interrupt_after=20)
    with pytest.raises(KeyboardInterrupt):
        tuner(cache, first).run(LOADS, 1e6)
    kept = sum(len(e.evidence) for _, e in cache)
    assert kept > 8
    second = ModelFixture()
    tuner(cache, second).run(LOADS, 1e6)
    assert len(first.cases) == 20 and first.cases[0] not in second.cases


@pytest.mark.parametrize("change", ["machine", "threads", "problem", "isa"])
def test_a_change_in_the_key_is_a_miss(cache: TuningCache, change: str) -> None:
    tuner(cache, ModelFixture()).run(LOADS, 1e6)
    fixture, machine, loads = ModelFixture(), "m", LOADS
    made = tuner(cache, fixture, "other" if change == "machine" else machine)
    if change == "threads":
        made = Tuner(
            cache,
            fixture.open,
            limit=8,
            schedule_space=SCHEDULE_SPACE,
            level="avx512",
            threads=(1, 2),
            facts={"machine": "m"},
            clock=fixture.clock,
        )
    if change == "isa":
        made = Tuner(
            cache,
            fixture.open,
            limit=8,
            schedule_space=SCHEDULE_SPACE,
            level="avx2",
            threads=(1,),
            facts={"machine": "m"},
            clock=fixture.clock,
        )
    if change == "problem":
        loads = tuple(replace(w, problem=replace(w.problem, bias=False)) for w in LOADS)
    made.run(loads, 1e6)
    assert fixture.openings == 1


def test_equal_runs_give_equal_plans(tmp_path: Path) -> None:
    plans = []
    for i in range(2):
        with TuningCache(tmp_path / f"{i}.sqlite") as cache:
            plans.append(schedules(tuner(cache, ModelFixture()).run(LOADS, 150)))
    assert plans[0] == plans[1]


def test_a_spoilt_entry_is_measured_again(cache: TuningCache) -> None:
    tuner(cache, ModelFixture()).run(LOADS, 1e6)
    for key, entry in list(cache):
        cache.put(key, replace(entry, value={"schedule": "x"}))
    fixture = ModelFixture()
    tuner(cache, fixture).run(LOADS, 1e6)
    assert fixture.openings == 1


def schedules(tuned: Sequence[TuningResult]) -> dict[Case, GemmSchedule]:
    return {t.case: t.schedule for t in tuned}


def test_tables_cover_every_row_count_and_split_where_two_points_meet() -> None:
    fast, tall = GemmSchedule(512, prefetch=0), GemmSchedule(512, mc=64)
    tuned = [
        TuningResult(Case(SMALL, r), d, 1.1, "measured") for r, d in ((64, fast), (256, tall))
    ]
    assert schedule_tables(tuned) == {
        SMALL: (BY_ROWS[0], BY_ROWS[1], replace(fast, max_rows=128), tall, BY_ROWS[3])
    }


@pytest.mark.compiler
def test_a_tiny_problem_is_tuned_for_real(tmp_path: Path) -> None:
    """Twice: the second time everything comes from the cache, without building anything.

    Two candidates are measured, however long that takes.
    """
    (tmp_path / "objects").symlink_to(Environment().cache / "objects")  # kernels others compile
    environment, heard, levels = Environment(cache=tmp_path), list[Event](), host_levels()[-1:]
    loads = (Workload(GemmProblem(96, 64), 3, (64,)),)
    options = TuningOptions(levels, budget=1e5)
    first = tune(
        loads, options, CPU, environment, listen=heard.append,
        propose=lambda case, ranked: ranked[:2],
    )  # fmt: skip
    assert {type(event) for event in heard} == {TuningStarted, TrialMeasured, CaseFinished}
    with TuningCache(tmp_path / "tuning.sqlite") as cache:
        entries = [entry for _, entry in cache]
    assert any(e.evidence for e in entries), "something was measured"
    assert all(not trial["fault"] for e in entries for trial in e.evidence)
    again = tune(loads, TuningOptions(levels, budget=0.0), CPU, environment)
    assert schedule_tables(again) == schedule_tables(first)


def test_the_key_follows_compiler_and_processor(tmp_path: Path) -> None:
    here, environment = CPU.fingerprint(), Environment(cache=tmp_path)
    facts = machine_facts(here, environment)
    assert facts == machine_facts(here, environment)
    changed = machine_facts({**here, "l3": here["l3"] + 1}, environment)
    assert result_cache_key(changed) != result_cache_key(facts)
    assert {name for name in facts if facts[name] != changed[name]} == {"machine"}


@pytest.mark.compiler
def test_the_key_follows_the_flags_of_the_compiler(tmp_path: Path) -> None:
    here, plain = CPU.fingerprint(), Environment(cache=tmp_path)
    command = " ".join(find_compiler(plain).command)
    same, slow = (
        machine_facts(here, replace(plain, compiler=f"{command}{flags}"))
        for flags in ("", " -O0 -DA='b c'")
    )
    changed = {name for name in same if same[name] != slow[name]}
    assert changed == {"compiler"} and slow["compiler"].endswith("] -O0 '-DA=b c'")
    if find_compiler(plain).family != "zig":  # which is a module, behind an interpreter
        assert same == machine_facts(here, plain)


@pytest.mark.parametrize("level", [level.name for level in LEVELS])
def test_every_level_has_a_key_of_its_own(level: str) -> None:
    case = Case(replace(LARGE, layout="vnni2"), 128)
    keys = {
        result_cache_key(case_facts(case, {}, SCHEDULE_SPACE, isa, (1,)))
        for isa in (level, "scalar", "avx2")
    }
    assert len(keys) == len({level, "scalar", "avx2"})


def test_the_nearest_result_says_what_is_different() -> None:
    about = {"op": "o", "epilogue": "", "rows": "1", "dtype": "f32", "machine": "m", "tracea": "1"}
    others = [{**about, "machine": "n", "tracea": "0"}, {**about, "tracea": "0"}]
    assert nearest_result_difference(about, others) == "measured by another version of tracea"
    assert nearest_result_difference({**about, "rows": "2"}, others) == "never measured"
