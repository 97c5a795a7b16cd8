"""Attention of 8-bit integers: rounded weights, and heads that are stored where they are read."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.softmax import SoftmaxParams

BATCH, HEADS, WORDS, WIDTH = 2, 3, 40, 16
STEP, UNIT, ZERO = 0.125, 1 / 255, 3.0


def rounded(step: float, low: float, high: float) -> tuple[Step, ...]:
    return (Step("div", (0, step)), Step("round", (1,)), Step("saturate", (2, low, high)),
            Step("mul", (3, step)))  # fmt: skip


TO_BYTES = Chain(
    ("full",),
    (Step("div", (0, STEP)), Step("round", (1,)), Step("add", (2, ZERO)),
     Step("saturate", (3, 0.0, 255.0))),
    (4,), stores=(DType.U8,),
)  # fmt: skip


def attention(turned: bool = True, twice: bool = False) -> RegionParams:
    """Attention of operands 0, 1 and 2 that rounds scores, weights and results."""
    scores = MatMulParams((), (0, 1, 3, 2), Chain(("full",), rounded(STEP, -128.0, 127.0), (4,)))
    weights = ElementwiseParams(Chain(("full",), rounded(UNIT, 0.0, 255.0), (4,)))
    steps = [
        RegionStep(scores, (0, 1), narrow="f16"),
        RegionStep(SoftmaxParams(-1), (3,), narrow="f16"),
        RegionStep(weights, (4,), narrow="f16"),
        RegionStep(MatMulParams(epilogue=TO_BYTES), (5, 2), narrow="f16"),
    ]
    if turned:
        steps += [RegionStep(LayoutParams("transpose", (0, 2, 1, 3)), (6,))]
    last = 2 + len(steps)
    return RegionParams(3, tuple(steps), (last, *((4,) if twice else ())))


def given() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    shape = BATCH, HEADS, WORDS, WIDTH
    # multiples of a half, of which fp16 products are exact
    return [rng.integers(-6, 7, shape).astype(np.float32) / 2 for _ in "qkv"]


def calls(params: RegionParams) -> list[Call]:
    specs = [TensorSpec(DType.F32, a.shape) for a in given()]
    made = program_of(params, specs, DType.F16).calls
    return [c for c in made if c.op != "elementwise" or c.chain is None or c.chain.steps]


def test_attention_takes_three_calls() -> None:
    made = calls(attention())
    assert [c.op for c in made] == ["gemm", "softmax", "gemm"]
    assert made[1].attributes["stepped"] and made[1].attributes["step"] == np.float32(UNIT)


def test_weights_that_are_read_twice_are_rounded_apart() -> None:
    made = calls(attention(twice=True))
    assert [c.op for c in made] == ["gemm", "softmax", "elementwise", "gemm"]


@pytest.mark.compiler
@pytest.mark.parametrize("turned", [True, False])
def test_results(turned: bool) -> None:
    """Weights at a tie may round otherwise in float16 than in float64, which is one step."""
    arrays, params = given(), attention(turned)
    (want,) = params.reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(params, arrays, DType.F16)
    assert got.shape == want.shape and got.dtype == np.uint8
    error = np.abs(got.astype(np.float64) - want)
    assert error.max() <= 1 and (error > 0).mean() < 0.01
    assert len(np.unique(got)) > 8
