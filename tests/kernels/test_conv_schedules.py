"""Convolutions as tuning problems: read off programs, tiled, and timed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.convolutions import SILU_ADD, window
from tests.convolutions import conv as whole_conv
from tests.runtime.blocked import SCALED, SILU
from tests.runtime.conv_calls import conv, depthwise
from tests.runtime.conv_int16_cases import run_of_case
from tracea_graph.config import Environment
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.backend import CPU
from tracea_graph.kernels.cpu.processor_families import ARCHITECTURES
from tracea_graph.kernels.cpu.schedule import ConvSchedule
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.cpu.schedules.bench_program import bench_program
from tracea_graph.kernels.cpu.schedules.conv_problem import ConvProblem
from tracea_graph.kernels.cpu.schedules.conv_space import TaskGrid, divide_into_tasks
from tracea_graph.kernels.cpu.variants import conv_tile
from tracea_graph.kernels.program import Buffer, Program, Schedule
from tracea_graph.ops.chain import Chain
from tracea_graph.tuning import (
    Case,
    TuningResult,
    Workload,
    problems_of,
    schedule_tables,
    with_schedules,
)
from tracea_graph.tuning.benchmark_fixture import ModelFixture
from tracea_graph.tuning.candidate_selection import candidates_to_measure, legal_schedules
from tracea_graph.tuning.schedule_hints import hint_of_result, hinted_schedule, parse_hints
from tracea_graph.tuning.serialization import case_from_json, case_to_json
from tracea_graph.tuning.tuning_problem import default_schedule

PAD = (1, 1, 1, 1)
BF16_SILU = replace(SILU, stores=(DType.BF16,))


def program(**more: object) -> Program:
    pad, chain = more.pop("pad", PAD), more.pop("chain", None)
    size, kernel = more.pop("size", (9, 13)), more.pop("kernel", (3, 3))
    return conv(24, 40, size, kernel, pad=pad, chain=chain, **more).program


def posed(of: Program, multiplies: str = "") -> ConvProblem:
    """The problem of a program's last convolution, or of that in an element type."""
    found = [SCHEDULE_SPACE.problem_of(of, call) for call in of.calls]
    (*_, last) = (p for p in found if isinstance(p, ConvProblem) and multiplies in p.multiplies)
    return last


PLAIN = posed(program())
POINTWISE = posed(program(size=(14, 14), kernel=(1, 1), pad=(0, 0, 0, 0), add=True))
SCALING = posed(program(chain=SCALED, halo=(0, 1, 2, 1), add=True))
WINOGRAD = posed(program(size=(28, 28), m=4))
ROUGH_SILU = replace(BF16_SILU, fast_math=True)
HALF = posed(program(chain=ROUGH_SILU, half=True, add=True, stores=DType.BF16))


def in_layout(layout: str, added: bool = False) -> ConvProblem:
    """The problem of a convolution as the passes write it, its filters in a layout."""
    full = ("n", 40, 9, 13)
    extra, chain = ([full], SILU_ADD) if added else ([], None)
    case = whole_conv(40, 40, window(3, pads=1), layout, 1, *extra, epilogue=chain, x=full)
    return posed(run_of_case(layout, case, {"n": 2}).program, case.params.layout.product_type)


INT16, SPLIT = in_layout("int16", added=True), in_layout("bf16x2")
WINOGRAD_INT16 = in_layout("winograd2_int16")
DEPTHWISE = posed(depthwise(40, (19, 23), (3, 3), pad=PAD, chain=SILU).program)
DEPTHWISE_BF16 = posed(depthwise(40, (19, 23), (3, 3), pad=PAD, half=True).program)
PROBLEMS = (
    PLAIN, POINTWISE, SCALING, WINOGRAD, HALF, INT16, SPLIT, WINOGRAD_INT16, DEPTHWISE,
    DEPTHWISE_BF16,
)  # fmt: skip
named = pytest.mark.parametrize("problem", PROBLEMS, ids=str)


def test_what_a_convolution_computes_is_read_off_its_call() -> None:
    assert str(PLAIN) == "conv 24x3x3 to 40x9x13"
    assert str(POINTWISE) == "conv 24x1x1 to 40x14x14 + add"
    assert str(WINOGRAD) == "winograd F(4) 24x3x3 to 40x28x28"
    assert str(HALF) == "conv_bf16 24x3x3 to 40x9x13 + add + epilogue"
    assert PLAIN.flops(2) == WINOGRAD.flops(2) * 9 * 13 / 28**2 == 4.0 * 9 * 13 * 40 * 24 * 9
    assert HALF.weight_bytes * 2 == PLAIN.weight_bytes == 3 * 2 * 9 * 16 * 16 * 4


@named
def test_the_bench_program_poses_the_problem_again(problem: ConvProblem) -> None:
    made = bench_program(problem, ())
    again = posed(made)
    assert again == problem and again.key == problem.key
    assert json.loads(json.dumps(problem.key))["kernel"] == problem.kernel


def test_symbolic_sizes_and_computed_filters_are_no_problem() -> None:
    made = program()
    call = made.calls[-1]
    x, weight, *rest = call.views
    assert x is not None and weight is not None
    wide = replace(x, dims=(*x.dims[:3], "w", x.dims[4]))
    assert SCHEDULE_SPACE.problem_of(made, replace(call, views=(wide, weight, *rest))) is None
    computed = replace(weight, buffer=Buffer("temp", 0))
    assert SCHEDULE_SPACE.problem_of(made, replace(call, views=(x, computed, *rest))) is None


def test_images_are_rows_and_schedules_reach_the_call() -> None:
    made = program(batch=2)
    specs = list(made.inputs)
    (load,) = problems_of([(made, specs)], SCHEDULE_SPACE.problem_of, [{"n": 2}, {"n": 8}])
    assert load == Workload(PLAIN, 1, (2, 8))
    few, many = ConvSchedule(h_tasks=2), ConvSchedule(oc_chunk=1)
    found = [TuningResult(Case(PLAIN, rows), d, 1.1, "cache") for rows, d in ((2, few), (8, many))]
    table = schedule_tables(found)[PLAIN]
    assert table == (replace(few, max_images=4), many)
    assert (
        with_schedules(made, SCHEDULE_SPACE.problem_of, {PLAIN: table}).calls[-1].schedules
        == table
    )
    assert schedule_tables([TuningResult(Case(PLAIN, 2), ConvSchedule(), 1.0, "cache")]) == {}


@named
@pytest.mark.parametrize("level", ["scalar", "avx2", "avx512"])
def test_cuts_are_distinct_and_the_default_is_first(problem: ConvProblem, level: str) -> None:
    case = Case(problem, 2)
    schedules = list(legal_schedules(case, SCHEDULE_SPACE, level))
    assert schedules[0] == default_schedule(case) == ConvSchedule()
    cuts = [divide_into_tasks(case, d, level) for d in schedules]  # type: ignore[arg-type]
    assert len(set(cuts)) == len(cuts) > 1
    assert all(1 <= cut.h_tasks <= cut.tiles for cut in cuts)
    tiled = not (problem.winograd or problem.depthwise)
    assert not tiled or all(cut.pixels <= conv_tile(level)[0] for cut in cuts)
    found = candidates_to_measure(case, SCHEDULE_SPACE, level, (1, 2))
    assert {*found} < {*schedules} and default_schedule(case) not in found
    assert all(SCHEDULE_SPACE.modelled_us(case, d, level, 2) > 0 for d in found)


def test_more_processors_get_more_tasks() -> None:
    case = Case(posed(conv(256, 256, (14, 14), (3, 3), pad=PAD).program), 1)
    one, many = (
        divide_into_tasks(case, ConvSchedule(), "avx512", processors) for processors in (1, 16)
    )
    assert many.h_tasks * many.chunks > one.h_tasks * one.chunks


@pytest.mark.parametrize(
    ("channels", "filters", "side"),
    [(144, 32, 28), (256, 64, 56), (256, 128, 56), (80, 480, 14), (96, 576, 14), (512, 128, 28)],
)
def test_two_processors_get_as_many_tasks_each(channels: int, filters: int, side: int) -> None:
    case = Case(posed(conv(channels, filters, (side, side), (1, 1)).program), 1)
    cut = divide_into_tasks(case, ConvSchedule(), "avx512", 2)
    assert cut.h_tasks * cut.chunks % 2 == 0


@named
def test_they_travel_as_json(problem: ConvProblem) -> None:
    case = Case(problem, 2)
    assert (
        case_from_json(json.loads(json.dumps(case_to_json(case, SCHEDULE_SPACE))), SCHEDULE_SPACE)
        == case
    )


def test_a_result_as_a_hint_and_hints_of_products_beside_it() -> None:
    case, schedule = Case(WINOGRAD, 1), ConvSchedule(h_tasks=3)
    own = hint_of_result(TuningResult(case, schedule, 1.2, "measured"))
    found = parse_hints([{"match": "*", "tile": {"panels": 2}}, own], SCHEDULE_SPACE.tile)
    assert hinted_schedule(found, case) == schedule, (
        "a product's hint says nothing about a convolution"
    )
    assert hinted_schedule(found, Case(PLAIN, 1)) is None


@pytest.mark.compiler
def test_they_run_under_any_cut(tmp_path: Path) -> None:
    with ModelFixture(
        PROBLEMS, CPU, "scalar", tmp_path, environment=Environment(), cache=1
    ) as fixture:
        for problem in PROBLEMS:
            times = fixture.compare(
                Case(problem, 2), ConvSchedule(), ConvSchedule(h_tasks=2), 1, 2, 300.0
            )
            assert min(times.a_ms) > 0 and len(times.b_ms) == 2


def test_an_epilogue_of_another_result_is_another_problem() -> None:
    assert HALF.epilogue is not None and isinstance(HALF.epilogue, Chain)
    assert HALF.y.dtype == "BF16" and posed(program(chain=SILU, half=True, add=True)) != HALF


@named
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_every_family_has_seeds_that_are_measured_first(problem: ConvProblem, family: str) -> None:
    case, on = Case(problem, 1), ARCHITECTURES[family]
    plain = list(SCHEDULE_SPACE.space(case, "avx512", None).legal_seeds())
    seeds = list(SCHEDULE_SPACE.space(case, "avx512", on).legal_seeds())
    assert len(seeds) >= len(plain) > 0
    found = candidates_to_measure(case, SCHEDULE_SPACE, "avx512", (1,), on=on)

    def cut(schedule: Schedule) -> TaskGrid:
        assert isinstance(schedule, ConvSchedule)
        return divide_into_tasks(case, schedule, "avx512")

    first = [cut(SCHEDULE_SPACE.schedule(case, config)) for config in seeds]
    wanted = [grid for grid in first if grid != cut(default_schedule(case))]
    assert list(map(cut, found))[: len(wanted)] == wanted
