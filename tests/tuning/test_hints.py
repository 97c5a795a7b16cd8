"""Hints settle schedules, entry points propose them; both are checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tracea_graph.errors import UsageError
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.tuning import Case, Tuner, TuningCache, TuningResult, Workload, schedule_hints
from tracea_graph.tuning.candidate_selection import candidates_to_measure
from tracea_graph.tuning.schedule_hints import (
    hint_of_result,
    hinted_schedule,
    parse_hints,
    plugin_candidates,
)
from tracea_graph.tuning.tuning_problem import default_schedule

FUSED = GemmProblem(768, 768, epilogue=Chain(("full",), (Step("gelu", (0,)),), (1,)))
CASE, OTHER = Case(FUSED, 128), Case(GemmProblem(768, 768), 128)


def test_the_first_hint_that_fits_counts() -> None:
    found = parse_hints(
        [
            {"match": "gemm 768x768*", "rows": 64, "stages": 1},
            {"match": "gemm 768x768*", "epilogue": "fused", "tile": {"rows": 64, "panels": 2}},
            {"match": "gemm 768x768*", "stages": 1},
        ],
        SCHEDULE_SPACE.tile,
    )
    fused, plain = hinted_schedule(found, CASE), hinted_schedule(found, OTHER)
    assert fused == GemmSchedule(512, nr_panels=2, mc=64)
    assert plain is not None and (plain.prefetch, plain.mc) == (0, 256)
    assert hinted_schedule(found, Case(GemmProblem(8, 8), 128)) is None


def test_a_result_as_a_hint_gives_its_schedule_to_its_case_alone() -> None:
    schedule = GemmSchedule(512, 2, 96, 4, 0)
    found = parse_hints(
        [hint_of_result(TuningResult(CASE, schedule, 1.2, "measured"))], SCHEDULE_SPACE.tile
    )
    assert hinted_schedule(found, CASE) == schedule
    assert hinted_schedule(found, OTHER) is None


def test_hinted_cases_are_not_measured(tmp_path: Path) -> None:
    @contextmanager
    def fixture(problems: Any) -> Iterator[Any]:
        raise AssertionError("nothing is to be measured")
        yield

    found = parse_hints([{"match": "*", "tile": {"columns": 2}}], SCHEDULE_SPACE.tile)
    with TuningCache(tmp_path / "c.sqlite") as cache:
        tuner = Tuner(
            cache, fixture, schedule_space=SCHEDULE_SPACE, level="avx512", threads=(1,), facts={},
            pin=lambda case: hinted_schedule(found, case),
        )  # fmt: skip
        tuned = tuner.run([Workload(FUSED, 1, (128,))], 100.0)
    assert {t.source for t in tuned} == {"hint"}
    assert {t.schedule.nc for t in tuned} == {2}


class Point:
    """An installed entry point."""

    name = "mine"

    def __init__(self, propose: Any) -> None:
        self._propose = propose

    def load(self) -> Any:
        if isinstance(self._propose, Exception):
            raise self._propose
        return self._propose


def installed(monkeypatch: pytest.MonkeyPatch, propose: Any) -> None:
    monkeypatch.setattr(schedule_hints, "entry_points", lambda group: [Point(propose)])


def test_an_entry_point_proposes_before_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def mine(case: dict[str, Any]) -> list[dict[str, int]]:
        seen.append(case)
        return [{"rows": 48, "stages": 1}]

    installed(monkeypatch, mine)
    ranked = candidates_to_measure(CASE, SCHEDULE_SPACE, "avx512", (1,), 4)
    first, *rest = plugin_candidates()(CASE, ranked)
    assert (first.mc, first.prefetch) == (48, 0) and rest == ranked
    assert first.max_rows == default_schedule(CASE).max_rows
    assert seen == [{"op": str(FUSED), "rows": 128, "k": 768, "n": 768, "dtype": "f32"}]


@pytest.mark.parametrize(
    ("propose", "said"),
    [
        (ImportError("no module"), "'mine' cannot be loaded: no module"),
        (lambda case: 1 / 0, "'mine' failed on gemm 768x768"),
        (lambda case: [{"rows": -1}], "rows of the entry point 'mine' must be at least 1, not -1"),
        (lambda case: [{"colour": 1}], "not {'colour': 1}"),
    ],
)
def test_entry_points_that_misbehave_are_named(
    monkeypatch: pytest.MonkeyPatch, propose: Any, said: str
) -> None:
    installed(monkeypatch, propose)
    with pytest.raises(UsageError, match=said):
        list(plugin_candidates()(CASE, []))
