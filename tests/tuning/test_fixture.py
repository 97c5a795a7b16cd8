"""Bench models are valid, and what they repeat exceeds the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tracea_graph.check.worker_process import Worker
from tracea_graph.config import Environment
from tracea_graph.errors import WorkerError
from tracea_graph.ir import DType
from tracea_graph.kernels.cpu.backend import CPU, useful_levels
from tracea_graph.kernels.cpu.panels import unpack_panels
from tracea_graph.kernels.cpu.plan_encoding import encode
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.cpu.schedules import SCHEDULE_SPACE
from tracea_graph.kernels.cpu.schedules.bench_program import bench_program
from tracea_graph.kernels.cpu.schedules.gemm_problem import GemmProblem
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.tuning.benchmark_fixture import (
    MOST_BYTES,
    MOST_NODES,
    ModelFixture,
    replica_count,
)
from tracea_graph.tuning.tuning_problem import Case, Problem

pytestmark = pytest.mark.compiler
CHAIN = Chain(
    ("full", "full", "row", "col", "scalar"),
    tuple(Step("add", (i + 4 if i else 0, i + 1)) for i in range(4)),
    (8,),
)
PROBLEM = GemmProblem(48, 40, epilogue=CHAIN)
MASKED = GemmProblem(
    48,
    40,
    bias=False,
    epilogue=Chain(
        ("full", "row", "full"),
        (Step("where", (1, 0, 2)), Step("less", (0, 2))),
        (4, 3),
        (DType.F32, DType.BOOL, DType.I64),
    ),
)
IN_BYTES = GemmProblem(48, 40, "int8", False, x_type="I8", given_zero=True, own_zeros=True)
IN_BF16 = Chain(
    ("full", "full"),
    (Step("add", (0, 1)),),
    (2,),
    stores=(DType.BF16,),
)
SCHEDULE = GemmSchedule(2**31 - 1)
CACHE = 1 << 18


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFixture]:
    folder = tmp_path_factory.mktemp("fixture")
    with ModelFixture(
        [PROBLEM, MASKED, IN_BYTES], CPU, "scalar", folder, environment=Environment(), cache=CACHE
    ) as made:
        yield made


def test_the_product_is_right_on_weights_of_the_shared_file(fixture: ModelFixture) -> None:
    case = Case(PROBLEM, 5)
    fixture.compare(case, SCHEDULE, SCHEDULE, 1, 1, 300.0)
    model, folder = fixture.model(case), fixture.library.path.parent
    path = folder / "whole.onnx"
    path.write_bytes(model.serialize(encode(bench_program(PROBLEM, (SCHEDULE,)))))
    onnx.checker.check_model(str(path))
    feeds = {
        name: np.random.default_rng(i).standard_normal(spec.shape, dtype=np.float32)
        for i, (name, spec) in enumerate(model.inputs.items())
    }
    with Worker() as worker:
        worker.open("m", path, fixture.library.path)
        (y,) = worker.run("m", feeds).values()
    last = np.fromfile(folder / model.data, np.float32, offset=(model.count - 1) * model.stride)
    weight = unpack_panels(
        last[: np.prod(model.weight.shape)].reshape(model.weight.shape), PROBLEM.n
    )
    operands = [feeds["x"] @ weight + feeds["e0"], *(feeds[f"e{i}"] for i in range(1, 5))]
    operands[3] = operands[3][:, None]
    np.testing.assert_allclose(y, CHAIN.reference(operands)[0], atol=1e-4)


def test_bytes_are_fed_as_such(fixture: ModelFixture) -> None:
    case = Case(IN_BYTES, 5)
    feeds = fixture.feeds(case)
    assert [feeds[name].dtype for name in ("x", "e0", "e1")] == [np.int8, np.int8, np.int32]
    assert min(fixture.compare(case, SCHEDULE, SCHEDULE, 1, 2, 300.0).a_ms) > 0


def test_weights_exceed_the_cache_within_bounds(fixture: ModelFixture) -> None:
    model = fixture.model(Case(PROBLEM, 1))
    assert model.count * PROBLEM.weight_bytes > CACHE
    assert fixture.model(Case(GemmProblem(16, 16), 1)).count == MOST_NODES
    huge = GemmProblem(8192, 8192)
    assert fixture.model(Case(huge, 1)).count * huge.weight_bytes <= 2 * MOST_BYTES


def test_operands_and_results_of_other_types(fixture: ModelFixture) -> None:
    case = Case(MASKED, 5)
    assert len(fixture.compare(case, SCHEDULE, SCHEDULE, 1, 2, 300.0).a_ms) == 2
    path = fixture.library.path.parent / "masked.onnx"
    path.write_bytes(fixture.model(case).serialize(encode(bench_program(MASKED, (SCHEDULE,)))))
    model = onnx.load(path, load_external_data=False)
    assert [i.type.tensor_type.elem_type for i in model.graph.input] == [1, 9, 7, 9]
    assert model.graph.output[0].type.tensor_type.elem_type == 9


def test_a_schedule_that_cannot_run_is_an_error_and_the_next_one_runs(
    fixture: ModelFixture,
) -> None:
    case = Case(PROBLEM, 3)
    with pytest.raises(WorkerError):
        fixture.compare(case, SCHEDULE, GemmSchedule(2**31 - 1, mc=0), 1, 1, 300.0)
    assert len(fixture.compare(case, SCHEDULE, SCHEDULE, 1, 2, 300.0).a_ms) == 2


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(48, 40, "vnni2"),
        GemmProblem(48, 40, "weight_only_bf16", bias=False, epilogue=CHAIN),
        GemmProblem(48, 40, "vnni2", epilogue=IN_BF16),
        GemmProblem(48, 40, "int16", epilogue=CHAIN),
        GemmProblem(48, 40, "int16", bias=False, parts=(16, 24)),
        GemmProblem(48, 40, parts=(16, 8, 16)),
    ],
    ids=str,
)
def test_narrow_products_and_several_side_by_side_run(problem: Problem, tmp_path: Path) -> None:
    case = Case(problem, 5)
    with ModelFixture(
        [problem], CPU, "scalar", tmp_path, environment=Environment(), cache=CACHE
    ) as fixture:
        times = fixture.compare(case, SCHEDULE, GemmSchedule(2**31 - 1, nc=1), 1, 2, 300.0)
    assert len(times.a_ms) == 2 and min(times.b_ms) > 0


def test_weights_are_cold_where_reading_them_takes_time_and_runs_are_short_where_not() -> None:
    few, many = (Case(GemmProblem(768, 768), rows) for rows in (1, 128))
    assert (
        replica_count(few, SCHEDULE_SPACE, "avx512", 48 << 20)
        == replica_count(many, SCHEDULE_SPACE, "avx512", 48 << 20)
        == 22
    )
    small = Case(GemmProblem(64, 64), 1 << 16)
    assert 2 <= replica_count(small, SCHEDULE_SPACE, "avx512", 48 << 20) < 64


def test_a_level_without_kernels_of_its_own_is_built_as_its_base() -> None:
    """A benchmark is built for the highest level alone."""
    assert useful_levels(("avx512vnni",), {"gemm"}) == ["avx512"]
    assert useful_levels(("avx512", "avx512vnni"), {"gemm"}) == ["avx512"]
    assert useful_levels(("avx2", "avx512vnni"), {"gemm", "gemm_int8"}) == ["avx2", "avx512vnni"]
