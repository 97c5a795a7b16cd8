"""The space holds legal schedules only, each division of the work once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracea_graph.kernels.cpu import emitter
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE, source_digest
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.kernels.cpu.schedules.gemm_space import divide_into_tasks
from tracea_graph.kernels.cpu.variants import gemm_bf16_tile, gemm_tile
from tracea_graph.tuning.candidate_selection import candidates_to_measure, legal_schedules
from tracea_graph.tuning.tuning_problem import Case, default_schedule

CASES = [
    Case(GemmProblem(k, n, layout), rows)
    for k, n in ((384, 1536), (768, 768), (64, 17), (3072, 16))
    for layout in ("panels", "kn")
    for rows in (1, 16, 128, 1000)
]


def test_the_text_that_keys_follow_is_there() -> None:
    folder = Path(emitter.__file__).parent
    globs = (*source_digest._RUNTIME, *source_digest._PRODUCTS, *source_digest._CONVOLUTIONS)
    assert [glob for glob in globs if not any(folder.glob(glob))] == []


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("level", ["scalar", "avx2", "avx512"])
def test_schedules_are_legal_and_distinct(case: Case, level: str) -> None:
    mr, widest = gemm_tile(level)
    schedules, default = list(legal_schedules(case, SCHEDULE_SPACE, level)), default_schedule(case)
    for schedule in schedules:
        assert schedule.max_rows == default.max_rows >= case.rows
        assert 0 <= schedule.nr_panels <= widest
        assert schedule.mc == default.mc or schedule.mc % mr == 0
        assert schedule.mc >= 1 and schedule.nc >= 0 and schedule.prefetch in (0, 1)
    divisions = [divide_into_tasks(case, schedule, level) for schedule in schedules]
    assert len(set(divisions)) == len(divisions)
    assert schedules[0] == default


def test_many_processors_get_tasks_enough() -> None:
    for rows, n in ((128, 768), (1, 3072), (4096, 64), (128, 64)):
        case = Case(GemmProblem(768, n), rows)
        one, many = (divide_into_tasks(case, default_schedule(case), "avx512", p) for p in (1, 16))
        assert many.tasks >= min(16, rows // 64 * -(-n // 16))
        assert many.tasks >= one.tasks


@pytest.mark.parametrize("layout", ["vnni2", "weight_only_bf16", "int16"])
@pytest.mark.parametrize("level", ["avx512bf16", "amxbf16"])
def test_narrow_numbers_have_a_space_of_their_own(layout: str, level: str) -> None:
    case, plain = (Case(GemmProblem(768, 768, which), 128) for which in (layout, "panels"))
    mr, _ = gemm_bf16_tile(level) if layout == "vnni2" else gemm_tile(level)
    schedules = [
        d for d in legal_schedules(case, SCHEDULE_SPACE, level) if isinstance(d, GemmSchedule)
    ]
    assert all(d == default_schedule(case) or d.mc == 256 or d.mc % mr == 0 for d in schedules)
    assert {d.prefetch for d in schedules} == {0, 1}, "packed weights may be prefetched"
    assert len({divide_into_tasks(case, d, level) for d in schedules}) == len(schedules)
    times = [SCHEDULE_SPACE.modelled_us(c, default_schedule(c), level, 1) for c in (case, plain)]
    assert times[0] < 0.7 * times[1], "two steps of k at once"


def test_integers_are_summed_in_one_go_however_deep() -> None:
    """Columns are taken together only where sums are cut up along k."""
    deep = {
        w: Case(GemmProblem(16384, 3072, w), 512) for w in ("panels", "vnni2", "int16", "int8")
    }
    taken = {
        w: divide_into_tasks(c, default_schedule(c), "avx512bf16", 1).per_group
        for w, c in deep.items()
    }
    assert taken == {"panels": 8, "vnni2": 8, "int16": 1, "int8": 1}


def test_what_is_too_small_to_share_keeps_wide_tiles() -> None:
    small, large = (Case(GemmProblem(k, 48), 1) for k in (1152, 11520))
    columns = [
        divide_into_tasks(c, default_schedule(c), "avx512", 2).columns for c in (small, large)
    ]
    assert columns == [1, 2]


def test_plain_weights_are_never_prefetched() -> None:
    case = Case(GemmProblem(384, 1536, "kn"), 128)
    assert not any(
        divide_into_tasks(case, d, "avx512").prefetch
        for d in legal_schedules(case, SCHEDULE_SPACE, "avx512")
    )


def test_one_row_leaves_nothing_to_chunk() -> None:
    case = Case(GemmProblem(768, 768), 1)
    assert {d.mc for d in legal_schedules(case, SCHEDULE_SPACE, "avx512")} == {
        default_schedule(case).mc
    }


def test_challengers_are_few_seeds_first_and_without_the_default() -> None:
    case = Case(GemmProblem(768, 768), 1)
    found = candidates_to_measure(case, SCHEDULE_SPACE, "avx512", (1, 2), 6)
    assert len(found) == 6 and found[0] == GemmSchedule(4, nc=8, prefetch=0)
    assert divide_into_tasks(case, default_schedule(case), "avx512") not in [
        divide_into_tasks(case, d, "avx512") for d in found
    ]
    assert found == candidates_to_measure(case, SCHEDULE_SPACE, "avx512", (1, 2), 6)
    everything = candidates_to_measure(case, SCHEDULE_SPACE, "avx512", (1, 2), 10**6)
    assert found == everything[:6]
    every = [*legal_schedules(case, SCHEDULE_SPACE, "avx512")]
    assert set(everything) < set(every) and len(everything) > len(every) / 2  # the policy's


def test_the_model_knows_what_narrow_tiles_and_idle_threads_cost() -> None:
    case = Case(GemmProblem(768, 768), 128)
    default = default_schedule(case)
    by_width = {
        d.nr_panels: SCHEDULE_SPACE.modelled_us(case, d, "avx512", 1)
        for d in legal_schedules(case, SCHEDULE_SPACE, "avx512")
        if (d.mc, d.nc, d.prefetch) == (default.mc, 0, 1)
    }
    assert by_width[1] > by_width[2] >= by_width[0]
    one_task = GemmSchedule(512, nc=16)
    assert divide_into_tasks(case, one_task, "avx512").tasks == 1
    assert SCHEDULE_SPACE.modelled_us(
        case, one_task, "avx512", 2
    ) > 1.5 * SCHEDULE_SPACE.modelled_us(case, default_schedule(case), "avx512", 2)
