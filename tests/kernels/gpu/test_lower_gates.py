"""What a gate and the matmul that it multiplies become on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, normal, optimized
from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.programs import launched_matmuls, run_program
from tracea_graph import passes
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import GATE_PARTS
from tracea_graph.kernels.gpu.lowering.lower import lower
from tracea_graph.kernels.gpu.phases import phases
from tracea_graph.kernels.gpu.plan_encoding import encode
from tracea_graph.kernels.program import Program
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import KN
from tracea_graph.passes import PlanRequest

_DEPTH, _COLUMNS, _OF_TWO = 72, 104, 2


def program(rows: int | str, fused: bool, more: str = "") -> Program:
    """Lower a decoder's MLP; ``more`` reads its gate, or both matmuls' results if ``fused``."""
    net = Net()
    x = net.input("x", rows, 256)
    normed = net("Relu", x)
    if fused:
        both = net("MatMul", normed, net.const(normal(256, 1024)))
        gate, other = net.many("Split", 2, both, net.ints(512, 512), axis=-1)
    else:
        gate, other = (net("MatMul", normed, net.const(normal(256, 512))) for _ in "gu")
    active = net("Mul", gate, net("Sigmoid", gate))
    y = net("MatMul", net("Mul", active, other), net.const(normal(512, 256)))
    results = [net("Add", y, x)]
    if more:
        results.append(net("MatMul", net(more, both if fused else active),
                           net.const(normal(1024 if fused else 512, 64))))  # fmt: skip
    graph = net.graph(*results)
    request = PlanRequest(precision="fp16")
    optimized(graph, (*passes.phases(request), *phases(request, {})))
    (region,) = graph.regions()
    return lower(graph, region)


def launched(made: Program, sizes: dict[str, int], name: str = "sm_90a") -> list[str]:
    """The ops of matmuls that have blocks at these sizes, and of chains behind them."""
    own = launched_matmuls(made, sizes, "_wgmma_gated_", ARCHITECTURES[name])
    return ["gated" if composed else "gemm" for composed in own]


@pytest.mark.parametrize("fused", [False, True])
def test_a_gate_and_the_matmul_that_it_multiplies_are_one_launch(fused: bool) -> None:
    made = program(1024, fused)
    parts = [c.attributes["part"] for c in made.calls if c.op == "gated_gemm"]
    assert parts == list(GATE_PARTS) and encode(made)
    assert launched(made, {}) == ["gated", "gemm"]
    assert launched(made, {}, "sm_80") == ["gemm"] * 3
    assert not [c for c in made.calls if c.op == "elementwise" and len(c.views) > _OF_TWO]


@pytest.mark.parametrize("fused", [False, True])
def test_few_rows_take_two_launches(fused: bool) -> None:
    made = program("rows", fused)
    assert launched(made, {"s0": 2048}) == ["gated", "gemm"]
    assert launched(made, {"s0": 64}) == ["gemm"] * 3
    assert not [c for c in program(64, fused).calls if c.op == "gated_gemm"]


@pytest.mark.parametrize("fused", [False, True])
def test_a_gate_with_another_reader_is_left_alone(fused: bool) -> None:
    assert not [c for c in program(1024, fused, "Exp").calls if c.op == "gated_gemm"]


def gated(fused: bool, activation: str) -> RegionParams:
    """A copy of x, and silu(x · w) times x · v; ``fused``: w and v are halves of one matrix."""
    copy = RegionStep(ElementwiseParams(Chain(("full",), (Step("relu", (0,)),), (1,))), (0,),
                      narrow="f16")  # fmt: skip
    act = Chain(("full",), (Step(activation, (0,)),), (1,))
    mul = Chain(("full", "full"), (Step("mul", (1, 0)),), (2,))
    both = Chain(("full", "full"), (Step(activation, (0,)), Step("mul", (2, 1))), (3,))
    if fused:
        whole = GemmParams(_DEPTH, 2 * _COLUMNS, KN, splits=(_COLUMNS, _COLUMNS))
        steps = [copy, RegionStep(whole, (2, 1), narrow="f16", results=2),
                 RegionStep(ElementwiseParams(both), (3, 4), narrow="f16")]  # fmt: skip
        return RegionParams(2, tuple(steps), (5,))
    first = RegionStep(GemmParams(_DEPTH, _COLUMNS, KN, epilogue=act), (3, 1), narrow="f16")
    last = RegionStep(GemmParams(_DEPTH, _COLUMNS, KN, epilogue=mul), (3, 2, 4), narrow="f16")
    return RegionParams(3, (copy, first, last), (5,))


@pytest.mark.compiler
@pytest.mark.parametrize(("fused", "activation"), [(False, "silu"), (True, "gelu")])
def test_gates_equal_their_reference(fused: bool, activation: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, _DEPTH)).astype(np.float32)
    w = (rng.standard_normal((_DEPTH, 2 * _COLUMNS)) / _DEPTH**0.5).astype(np.float32)
    given: list[Any] = [x, w] if fused else [x, *np.split(w, 2, axis=1)]
    params = gated(fused, activation)
    (want,) = params.reference([a.astype(np.float64) for a in given])
    (got,) = run_program(params, [np.ascontiguousarray(a) for a in given])
    np.testing.assert_allclose(
        got, want, rtol=0, atol=3 * TOLERANCE[DType.F16] * np.abs(want).max()
    )
