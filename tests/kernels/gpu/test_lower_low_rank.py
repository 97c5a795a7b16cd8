"""What two matmuls by the factors of a matrix of low rank become on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, normal, optimized
from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.low_rank_cases import pair
from tests.kernels.gpu.machine import Memory
from tests.kernels.gpu.programs import launched_matmuls, run_program
from tests.kernels.gpu.test_emitter import NAMED, made
from tests.kernels.gpu.test_warpgroups import HGMMA, HMMA
from tracea_graph import passes
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import LOW_RANK_PARTS
from tracea_graph.kernels.gpu.cubin import opcodes
from tracea_graph.kernels.gpu.emitter import emit_kernel
from tracea_graph.kernels.gpu.families import low_rank_matmul
from tracea_graph.kernels.gpu.low_rank_choice import low_rank_choices
from tracea_graph.kernels.gpu.lowering.lower import lower
from tracea_graph.kernels.gpu.nvrtc import compile_sources
from tracea_graph.kernels.gpu.phases import phases
from tracea_graph.kernels.gpu.plan_encoding import encode
from tracea_graph.kernels.gpu.variants import VARIANTS
from tracea_graph.kernels.program import Program
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import KN
from tracea_graph.passes import PlanRequest

_DEPTH, _COLUMNS, _RANK = 384, 520, 72


def program(rows: int | str, other: bool = False, rank: int = 96, columns: int = 768) -> Program:
    """Lower two products by matrices of low rank; perhaps ``other`` reads a middle result."""
    net = Net()
    x = net("Relu", net.input("x", rows, 768))
    first = net("MatMul", x, net.const(normal(768, rank)))
    y = net("MatMul", first, net.const(normal(rank, columns)))
    results = [net("Add", net("Relu", y), net.const(normal(columns)))]
    if other:
        results.append(net("MatMul", first, net.const(normal(rank, 128))))
    graph = net.graph(*results)
    request = PlanRequest(precision="fp16")
    optimized(graph, (*passes.phases(request), *phases(request, {})))
    (region,) = graph.regions()
    return lower(graph, region)


def launched(made: Program, sizes: dict[str, int], name: str = "sm_90a") -> list[str]:
    """The matmuls that have blocks at these sizes."""
    own = launched_matmuls(made, sizes, "_low_rank_", ARCHITECTURES[name])
    return ["pair" if composed else "gemm" for composed in own]


def test_factors_are_one_launch() -> None:
    made = program(4096)
    parts = [c.attributes["part"] for c in made.calls if c.op == "low_rank_gemm"]
    assert parts == list(LOW_RANK_PARTS) and encode(made)
    assert launched(made, {}) == ["pair"]
    assert launched(made, {}, "sm_80") == ["gemm"] * 2


def test_a_varying_number_of_rows_takes_either() -> None:
    made = program("rows")
    assert launched(made, {"s0": 4096}) == ["pair"]
    assert launched(made, {"s0": 64}) == launched(made, {"s0": 100_000}) == ["gemm"] * 2


@pytest.mark.parametrize(
    ("rows", "rank", "columns"), [(64, 96, 768), (4096, 264, 768), (2048, 96, 3072)]
)
def test_other_sizes_take_two_launches(rows: int, rank: int, columns: int) -> None:
    assert launched(program(rows, rank=rank, columns=columns), {}) == ["gemm"] * 2


def test_a_middle_with_another_reader_is_left_alone() -> None:
    assert not [c for c in program(4096, other=True).calls if c.op == "low_rank_gemm"]


@pytest.mark.compiler
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_pairs_equal_their_reference(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle is rounded as between two launches."""
    rows = 70
    monkeypatch.setattr("tracea_graph.kernels.gpu.low_rank_choice._LEAST_ROWS", 1)
    monkeypatch.setattr("tracea_graph.kernels.gpu.low_rank_choice._GAIN", 0.0)
    rng = np.random.default_rng(0)
    given: list[Any] = [rng.standard_normal((rows, _DEPTH))]
    given += [rng.standard_normal(s) / s[0] ** 0.5 for s in ((_DEPTH, _RANK), (_RANK, _COLUMNS))]
    copy = RegionStep(ElementwiseParams(Chain(("full",), (Step("relu", (0,)),), (1,))), (0,),
                      narrow="f16")  # fmt: skip
    act = Chain(("full",), (Step(activation, (0,)),), (1,))
    first = RegionStep(GemmParams(_DEPTH, _RANK, KN), (3, 1), narrow="f16")
    last = RegionStep(GemmParams(_RANK, _COLUMNS, KN, epilogue=act), (4, 2), narrow="f16")
    params = RegionParams(3, (copy, first, last), (5,))
    (want,) = params.reference(given)
    (got,) = run_program(params, [np.ascontiguousarray(a, np.float32) for a in given])
    np.testing.assert_allclose(
        got, want, rtol=0, atol=3 * TOLERANCE[DType.F16] * np.abs(want).max()
    )


@pytest.mark.parametrize(
    ("sizes", "why"),
    [((4096, 768, 768, 264), "the rank is above"), ((4096, 772, 768, 64), "16 bytes")],
)
def test_why_a_kernel_computes_no_pair(sizes: tuple[int, int, int, int], why: str) -> None:
    call, _ = pair(DType.F16, *sizes, pad=0)(Memory(), np.random.default_rng(0))
    own = [v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)]
    assert own and all(why in low_rank_matmul.refusal(call, v) for v in own)
    assert low_rank_choices(call) == []


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [((768, 3072, 128), "64x192x128x7x2"), ((768, 768, 96), "64x192x128x7x2"),
     ((768, 3072, 48), "64x192x64x8x2"), ((1024, 4096, 128), "64x128x128x7x2"),
     ((384, 384, 128), "64x128x64x10"), ((768, 3072, 256), "")],
)  # fmt: skip
def test_tiles_follow_the_depth_and_the_rank(sizes: tuple[int, int, int], tile: str) -> None:
    """At these sizes the fastest kernels of one H200; "" is that of two launches."""
    call, _ = pair(DType.F16, 4096, *sizes, "nk nk", pad=0)(Memory(), np.random.default_rng(0))
    assert [one.tile for one, _ in low_rank_choices(call)] == [tile] * bool(tile)


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["low rank norm", "low rank 256", "low rank deep norm"])
def test_products_of_warpgroups_spill_nothing(name: str) -> None:
    call, variant, target = made(NAMED[name], "sm_90a")
    (built,) = compile_sources([emit_kernel(call, variant, target)], ["sm_90a"])
    assert built.facts is not None and built.facts.stack == 0 and built.refused is None
    found = opcodes(built.data, built.source.symbol)
    assert HGMMA in found and HMMA not in found
