"""Attention, chains and sparse products as tuning problems: read off calls, cut and timed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.cases import all_cases
from tracea_graph.config import Environment
from tracea_graph.kernels.cpu.backend import CPU
from tracea_graph.kernels.cpu.schedule import TaskSchedule
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.cpu.schedules.task_bench import task_program
from tracea_graph.kernels.cpu.schedules.task_problem import TaskProblem
from tracea_graph.kernels.cpu.schedules.task_space import cut_into_tasks
from tracea_graph.kernels.program import Program, View
from tracea_graph.ops.size_expressions import substitute_symbols
from tracea_graph.tuning import Case, problems_of, with_schedules
from tracea_graph.tuning.benchmark_fixture import ModelFixture
from tracea_graph.tuning.candidate_selection import candidates_to_measure, legal_schedules
from tracea_graph.tuning.serialization import case_from_json, case_to_json
from tracea_graph.tuning.tuning_problem import default_schedule

PROGRAMS = {case.name: case.program for case in all_cases()}


def posed(program: Program) -> TaskProblem:
    found = SCHEDULE_SPACE.problem_of(program, program.calls[-1])
    assert isinstance(found, TaskProblem)
    return found


NAMED = {
    "attention": "attention_boolean",
    "band": "attention_band",
    "causal": "attention_ordered_150_of_150",
    "blocks": "blocks_70x150x257_by_16",
    "blocks_bf16": "blocks_bf16_70x150x258_by_16",
    "chain": "blocks_chain",
    "codes": "nbits_40x515x200_4_256_float_int8",
    "parts": "nbits_130x200x160_8_16_integer_int8_parts",
    "elementwise": "elementwise_masked",
    "staged": "staged_channels",
}
FIXED = {"attention": ("s", "t"), "band": ("s", "t"), "causal": ("s1", "s2")}


def of(name: str) -> TaskProblem:
    """The problem of a case's program; keys are as many as queries."""
    program = PROGRAMS[NAMED[name]]
    if name not in FIXED:
        return posed(program)
    queries, keys = FIXED[name]
    return posed(_renamed(program, keys, queries))


def _renamed(program: Program, old: str, new: str) -> Program:
    """The program with one symbol in place of another."""

    def name(symbol: str) -> str:
        return new if symbol == old else symbol

    def put(view: View | None) -> View | None:
        return view and replace(
            view,
            dims=tuple(substitute_symbols(d, name) for d in view.dims),
            strides=tuple(substitute_symbols(s, name) for s in view.strides),
        )

    calls = tuple(replace(call, views=tuple(map(put, call.views))) for call in program.calls)
    return replace(program, calls=calls)


PROBLEMS = {name: of(name) for name in NAMED}
ROWS = {"staged": 540, "elementwise": 3000}
named = pytest.mark.parametrize("name", NAMED)


def case_of(name: str) -> Case:
    return Case(PROBLEMS[name], ROWS.get(name, 100))


def test_what_a_call_computes_is_read_off_it() -> None:
    assert str(PROBLEMS["attention"]) == "attention 4x16 over m keys of 2"
    assert str(PROBLEMS["blocks"]) == "gemm_block_sparse 257x150"
    assert str(PROBLEMS["codes"]) == "gemm_nbits 515x200"
    assert str(PROBLEMS["elementwise"]) == "elementwise 77 wide, 3 steps"
    assert PROBLEMS["attention"].flops(100) == 2 * 4 * 100 * 100 * 40
    assert PROBLEMS["blocks"].weight_bytes == 46 * 16 * 16 * 4


@named
def test_the_bench_program_poses_the_problem_again(name: str) -> None:
    problem = PROBLEMS[name]
    again = posed(task_program(problem, ()))
    assert again == problem and again.key == problem.key
    case = Case(problem, 2)
    travelled = json.loads(json.dumps(case_to_json(case, SCHEDULE_SPACE)))
    assert case_from_json(travelled, SCHEDULE_SPACE) == case


@named
@pytest.mark.parametrize("level", ["scalar", "avx2", "avx512"])
def test_cuts_are_distinct_and_the_default_is_first(name: str, level: str) -> None:
    case = case_of(name)
    schedules = list(legal_schedules(case, SCHEDULE_SPACE, level))
    assert (
        schedules[0]
        == default_schedule(case)
        == TaskSchedule(512 if case.rows <= 512 else 2**31 - 1)
    )
    cuts = [cut_into_tasks(case, s, level) for s in schedules if isinstance(s, TaskSchedule)]
    assert len(set(cuts)) == len(cuts) > 1
    found = candidates_to_measure(case, SCHEDULE_SPACE, level, (1, 2))
    assert {*found} <= {*schedules} and default_schedule(case) not in found
    assert all(SCHEDULE_SPACE.modelled_us(case, s, level, 2) > 0 for s in schedules)


def test_sixteen_rows_of_a_small_sparse_product_beat_more_at_a_time() -> None:
    case = case_of("blocks")
    default = default_schedule(case)
    few, many = (replace(default, rows=rows) for rows in (16, case.rows))
    us = [SCHEDULE_SPACE.modelled_us(case, s, "avx512", 1) for s in (few, many)]
    assert us[0] < us[1]
    assert cut_into_tasks(case, default, "avx512", 1) == cut_into_tasks(case, few, "avx512", 1)


def test_five_heads_on_two_cores_promise_a_gain_by_cutting_queries() -> None:
    """Five tasks leave one of two cores idle a fifth of the time."""
    program = PROGRAMS["attention_ordered_150_of_150"]
    whole = posed(_renamed(program, "s2", "s1"))
    views = [
        v and replace(v, dims=(v.dims[0], 5, *v.dims[2:])) if i in (0, 1, 2, 5) else v
        for i, v in enumerate(whole.views)
    ]
    case = Case(replace(whole, views=tuple(views)), 197)
    first, *_ = candidates_to_measure(case, SCHEDULE_SPACE, "avx512", (2,))
    us = [
        SCHEDULE_SPACE.modelled_us(case, s, "avx512", 2) for s in (default_schedule(case), first)
    ]
    assert us[1] < 0.95 * us[0]


@pytest.mark.parametrize("name", ["attention_placed_chunk", "attention_tiles_130_of_150"])
def test_positions_and_maps_of_tiles_are_no_problem(name: str) -> None:
    program = PROGRAMS[name]
    assert SCHEDULE_SPACE.problem_of(program, program.calls[-1]) is None


def test_queries_are_rows_and_schedules_reach_the_call() -> None:
    made = task_program(PROBLEMS["attention"], ())
    bindings = [{"m": 64}, {"m": 300}]
    (load,) = problems_of([(made, made.inputs)], SCHEDULE_SPACE.problem_of, bindings)
    assert load.rows == (64, 300) and load.problem == PROBLEMS["attention"]
    table = (TaskSchedule(rows=32),)
    tuned = with_schedules(made, SCHEDULE_SPACE.problem_of, {load.problem: table})
    assert tuned.calls[-1].schedules == table


@pytest.mark.compiler
def test_they_run_under_any_cut(tmp_path: Path) -> None:
    problems = list(PROBLEMS.values())
    with ModelFixture(
        problems, CPU, "scalar", tmp_path, environment=Environment(), cache=1
    ) as fixture:
        for name in NAMED:
            case = case_of(name)
            other = candidates_to_measure(case, SCHEDULE_SPACE, "scalar", (1,))[0]
            times = fixture.compare(case, default_schedule(case), other, 1, 2, 300.0)
            assert min(times.a_ms) > 0 and len(times.b_ms) == 2
