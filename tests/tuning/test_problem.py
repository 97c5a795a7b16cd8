"""Problems are read off programs, and tuned schedules put into them."""

from __future__ import annotations

from dataclasses import replace

from tracea_graph.ir import DType, TensorSpec, combine
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.cpu.schedules.bench_program import bench_program
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.kernels.program import Buffer
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.tuning.candidate_selection import candidates_to_measure
from tracea_graph.tuning.tuning_problem import (
    Case,
    Problem,
    Workload,
    problems_of,
    row_class,
    with_schedules,
)

GELU = Chain(("full",), (Step("gelu", (0,)),), (1,))
WIDE, NARROW = GemmProblem(32, 128, epilogue=GELU), GemmProblem(128, 32, "kn", bias=False)
TUNED = (GemmSchedule(7, prefetch=0), GemmSchedule(2**31 - 1))


def specs(problem: Problem) -> list[TensorSpec]:
    """The operands as a graph knows them: rows are batch times sequence."""
    program = bench_program(problem, ())
    rows = combine("mul", "batch", "seq")
    return [
        TensorSpec(DType.F32, tuple(rows if d == "m" else d for d in s.shape or ()))
        for s in program.inputs
    ]


def placed(*problems: Problem) -> list[tuple[object, object]]:
    return [(bench_program(p, ()), specs(p)) for p in problems]


def test_a_program_poses_the_problem_it_was_made_of() -> None:
    bytes_ = GemmProblem(64, 48, "int8", False, x_type="U8", given_zero=True, own_zeros=True)
    others = (GemmProblem(64, 48, "bf16x2"), GemmProblem(64, 48, "int16"), bytes_)
    for problem in (WIDE, NARROW, *others):
        program = bench_program(problem, ())
        assert SCHEDULE_SPACE.problem_of(program, program.calls[-1]) == problem
        for level in ("avx512", "avx512vnni", "avx512bf16", "amxbf16"):
            assert len(candidates_to_measure(Case(problem, 128), SCHEDULE_SPACE, level, (1,))) > 1


def test_other_kernels_row_layouts_and_computed_weights_are_no_problem() -> None:
    program = bench_program(WIDE, ())
    (call,) = program.calls
    assert SCHEDULE_SPACE.problem_of(program, replace(call, op="norm")) is None
    assert SCHEDULE_SPACE.problem_of(program, call.having(layout="nk")) is None
    x, weight, *rest = call.views
    assert weight is not None
    computed = replace(weight, buffer=Buffer("temp", 0))
    assert SCHEDULE_SPACE.problem_of(program, replace(call, views=(x, computed, *rest))) is None


def test_workloads_count_nodes_and_evaluate_rows() -> None:
    bindings = [{"batch": 1, "seq": 128}, {"batch": 2, "seq": 64}, {"batch": 1, "seq": 16}]
    found = problems_of(placed(WIDE, NARROW, WIDE), SCHEDULE_SPACE.problem_of, bindings)
    assert found == (Workload(WIDE, 2, (16, 128)), Workload(NARROW, 1, (16, 128)))


def test_an_unbound_symbol_leaves_rows_unknown() -> None:
    assert problems_of(placed(WIDE), SCHEDULE_SPACE.problem_of, [{"batch": 1}]) == (
        Workload(WIDE, 1, ()),
    )


def test_schedules_go_into_calls_of_their_problem_only() -> None:
    wide, narrow = (
        with_schedules(bench_program(p, ()), SCHEDULE_SPACE.problem_of, {WIDE: TUNED})
        for p in (WIDE, NARROW)
    )
    assert wide.calls[0].schedules == TUNED and narrow.calls[0].schedules == ()


def test_row_classes_cover_every_row_count() -> None:
    assert [row_class(WIDE, r) for r in (1, 4, 5, 32, 33, 512, 513, 10**9)] == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]
