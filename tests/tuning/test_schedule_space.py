"""The tuner works for any backend: here for one whose only problem is a sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.ir import Array
from tracea_graph.kernels.program import Attributes, Call, Program, Schedule
from tracea_graph.ops.chain import Chain
from tracea_graph.policy import (
    Config,
    KernelCatalog,
    OperatorTopology,
    ProcessorFamily,
    Rowwise,
    SearchSpace,
)
from tracea_graph.tuning import (
    Case,
    HostTimed,
    Problem,
    ScheduleSpace,
    Tuner,
    TuningCache,
    TuningResult,
    Workload,
    problems_of,
    schedule_tables,
    with_schedules,
)
from tracea_graph.tuning.schedule_hints import hint_of_result, hinted_schedule, parse_hints
from tracea_graph.tuning.serialization import case_from_json, case_to_json
from tracea_graph.tuning.telemetry import Telemetry, read_telemetry_rows


@dataclass(frozen=True)
class Width(Schedule):
    """How many numbers are added at once."""

    most: int = 1 << 30
    width: int = 4


@dataclass(frozen=True)
class Sum:
    """The sums of rows of ``n`` numbers."""

    n: int
    dtype: ClassVar[str] = "f32"
    epilogue: ClassVar[Chain | None] = None
    defaults: ClassVar[tuple[Schedule, ...]] = (Width(),)
    typical_rows: ClassVar[tuple[int, ...]] = ()
    unit: ClassVar[str] = "line"
    reuses_weights: ClassVar[bool] = False
    tile: ClassVar[Mapping[str, str]] = {"lanes": "width"}
    stages: ClassVar[str] = ""

    @property
    def weight_bytes(self) -> int:
        return 4 * self.n

    @property
    def sizes(self) -> dict[str, int]:
        return {"n": self.n}

    @property
    def key(self) -> dict[str, Any]:
        return asdict(self)

    def rows_of(self, dims: Sequence[int]) -> int:
        return dims[0]

    def flops(self, rows: int) -> float:
        return float(rows * self.n)

    def moved(self, rows: int) -> float:
        return 4.0 * rows * self.n

    def __str__(self) -> str:
        return f"sum of {self.n}"


class Sums(HostTimed):
    """ScheduleSpace of sums: wider is faster, says the model."""

    cache_bytes = 1 << 20
    tile = ("lanes",)
    architecture = None
    catalog = KernelCatalog("toy")

    def topology(self, case: Case) -> OperatorTopology:
        return OperatorTopology("sum", case.rows, 64, 1, Rowwise())

    def levels(self, level: str) -> tuple[str, ...]:
        return (level,)

    def problem_of(self, program: Program, call: Call) -> Problem | None:
        return Sum(call.attributes["n"]) if call.op == "sum" else None

    def problem_to_json(self, problem: Problem) -> dict[str, Any]:
        return problem.key

    def problem_from_json(self, data: Mapping[str, Any]) -> Problem:
        return Sum(int(data["n"]))

    def schedule_from_json(self, data: Mapping[str, Any]) -> Schedule:
        return Width(int(data["most"]), int(data["width"]))

    def space(self, case: Case, level: str, on: ProcessorFamily | None) -> SearchSpace:
        return SearchSpace().axis("width", (4, 1, 2, 8, 16))

    def schedule(self, case: Case, config: Config) -> Schedule:
        return Width(width=config["width"])

    def modelled_us(self, case: Case, schedule: Schedule, level: str, threads: int) -> float:
        return case.flops / (100 + asdict(schedule)["width"])

    def read_us(self, size: float) -> float:
        return size * 1e-3

    def text_of(self, problem: Problem, level: str) -> str:
        return "v1"

    def contents(self, problem: Problem) -> Mapping[int, Array]:
        return {}

    def bench(self, problem: Problem, schedules: tuple[Schedule, ...] = ()) -> Program:
        raise AssertionError("nothing is built here")


SCHEDULE_SPACE: ScheduleSpace = Sums()
CASE = Case(Sum(64), 100)
LOADS = (Workload(CASE.problem, 2, (100,)),)


class ModelFixture:
    """A machine where eight at once are fastest, whatever the model says."""

    def compare(
        self, case: Case, a: Schedule, b: Schedule, threads: int, pairs: int, seconds: float
    ) -> PairedTimes:
        return PairedTimes((1.3,) * pairs, (1.0 if b == Width(width=8) else 1.31,) * pairs)


@contextmanager
def fixture(problems: Sequence[Problem]) -> Iterator[ModelFixture]:
    yield ModelFixture()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[TuningCache]:
    with TuningCache(tmp_path / "tuning.sqlite") as made:
        yield made


def run(cache: TuningCache, budget: float, **more: Any) -> list[TuningResult]:
    made = Tuner(
        cache, fixture, schedule_space=SCHEDULE_SPACE, level="l", threads=(1,), facts={}, **more
    )
    return made.run(LOADS, budget)


def test_the_fastest_schedule_is_found_and_remembered(cache: TuningCache, tmp_path: Path) -> None:
    with Telemetry(tmp_path, "toy") as telemetry:
        (found,) = run(cache, 1e6, listen=telemetry)
    assert (found.schedule, found.source) == (Width(width=8), "measured")
    rows = read_telemetry_rows(telemetry.path)
    assert {row["region"] for row in rows} == {"sum of 64, 100 lines"}
    assert {row["config"]["width"] for row in rows if row["what"] == "trial"} == {1, 2, 8, 16}
    (again,) = run(cache, 0.0)
    assert (again.schedule, again.source) == (found.schedule, "cache")
    assert schedule_tables([again]) == {CASE.problem: (Width(width=8),)}


def test_its_words_are_those_of_hints(cache: TuningCache) -> None:
    tuned = TuningResult(CASE, Width(width=2), 1.2, "measured")
    hint = hint_of_result(tuned)
    assert hint == {
        "match": "sum of 64", "rows": 100, "tile": {"lanes": 2}, "epilogue": "plain"
    }  # fmt: skip
    found = parse_hints([hint], SCHEDULE_SPACE.tile)
    assert (
        hinted_schedule(found, CASE) == tuned.schedule
        and hinted_schedule(found, Case(CASE.problem, 1)) is None
    )
    (pinned,) = run(cache, 1e6, pin=lambda case: hinted_schedule(found, case))
    assert (pinned.schedule, pinned.source) == (tuned.schedule, "hint")


def test_cases_travel_and_schedules_reach_their_calls() -> None:
    assert case_from_json(case_to_json(CASE, SCHEDULE_SPACE), SCHEDULE_SPACE) == CASE
    calls = tuple(Call(op, "f32", (), Attributes([("n", 64)])) for op in ("sum", "other"))
    program = Program((), (), {}, (), calls)
    (load,) = problems_of([(program, ())], SCHEDULE_SPACE.problem_of)
    assert load == Workload(CASE.problem)
    tuned = with_schedules(program, SCHEDULE_SPACE.problem_of, {CASE.problem: (Width(width=8),)})
    assert [call.schedules for call in tuned.calls] == [(Width(width=8),), ()]
