"""Norms, matmuls and attention that store 8 bits for the matmul that reads them."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu import float8_rounding
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.float8_rounding import loss_of_sums
from tracea_graph.kernels.program import Call
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.chain import FLOAT8, Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.int8_matmul import IntegerOperand
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.reduction import ReduceParams
from tracea_graph.ops.weight_layouts import KN

ROWS, WIDTH, HIDDEN = 33, 64, 96
GELU = Chain(("full",), (Step("gelu", (0,)),), (1,))
RESIDUAL = Chain(("full", "full"), (Step("add", (0, 1)),), (2,))
RNG = np.random.default_rng(7)


def layer(residual: bool, factors: tuple[float, float] = (32.0, 64.0)) -> RegionParams:
    """A norm of x (0), and two matmuls of it; its operands are those of ``given``."""
    norm = NormParams(Norm("layer", 1e-5, gamma=True, beta=True))
    first = GemmParams(WIDTH, HIDDEN, KN, bias=True, epilogue=GELU)
    second = GemmParams(HIDDEN, WIDTH, KN, epilogue=RESIDUAL if residual else None)
    return RegionParams(6, (
        RegionStep(norm, (0, 1, 2), narrow="f16"),
        RegionStep(first, (6, 3, 4), narrow="f16", factor=factors[0]),
        RegionStep(second, (7, 5, *([6] if residual else [])), narrow="f16", factor=factors[1]),
    ), (8,))  # fmt: skip


def given() -> list[np.ndarray]:
    shapes = (ROWS, WIDTH), (WIDTH,), (WIDTH,), (WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, WIDTH)
    return [(RNG.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32) for shape in shapes]


def calls(params: RegionParams) -> list[Call]:
    specs = [TensorSpec(DType.F32, a.shape) for a in given()]
    return [c for c in program_of(params, specs, DType.F16).calls if c.op != "reduce"]


def rounds(call: Call) -> bool:
    """Whether a call of the run, not one of constants, computes nothing but 8-bit floats."""
    small = call.chain is not None and call.chain.result_types == (FLOAT8,)
    return call.op == "elementwise" and small and call.chain.operands == ("full",)  # type: ignore[union-attr]


@pytest.mark.parametrize("residual", [True, False])
def test_makers_round(residual: bool) -> None:
    made = calls(layer(residual))
    assert not any(map(rounds, made))
    (norm,) = (CALLS.of(c).named(c) for c in made if c.op == "norm")
    assert norm["rounded"] is not None
    assert (norm["y"] is not None) is residual
    first = next(c for c in made if c.op == "float8_gemm")
    assert first.chain is not None and first.chain.result_types == (FLOAT8,)


def attended(others: bool) -> RegionParams:
    """Attention to q, k and v (0 to 2), and a matmul of it; ``others`` may read it too."""
    attention = AttentionParams(2, 32, 32, 0.25, widths=(WIDTH, WIDTH, WIDTH))
    project = GemmParams(WIDTH, HIDDEN, KN)
    return RegionParams(4, (
        RegionStep(attention, (0, 1, 2), narrow="f16"),
        RegionStep(project, (4, 3), narrow="f16", factor=64.0),
    ), (5, *([4] if others else [])))  # fmt: skip


@pytest.mark.parametrize("batch", [3, "b"])
def test_attention_rounds(batch: int | str) -> None:
    """Attention stores 8-bit floats if the matmul alone reads it."""
    shapes = [(batch, 150, WIDTH)] * 3 + [(WIDTH, HIDDEN)]
    specs = [TensorSpec(DType.F32, shape) for shape in shapes]
    for others in (False, True):
        made = program_of(attended(others), specs, DType.F16, {"b": 3}).calls
        (attention,) = (c for c in made if c.op == "attention")
        assert attention.attributes["factor"] == (0 if others else 64)
        assert any(map(rounds, made)) is others


@pytest.mark.compiler
def test_results_of_attention() -> None:
    params = attended(False)
    shapes = [(2, 17, WIDTH)] * 3 + [(WIDTH, HIDDEN)]
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    (want,) = params.reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(params, arrays, DType.F16)
    assert np.abs(got - want).max() < 0.06 * np.abs(want).max()


STEPS = (Step("div", (0, 0.05)), Step("round", (1,)), Step("add", (2, 128.0)),
         Step("saturate", (3, 0.0, 255.0)))  # fmt: skip
TO_BYTES = Chain(("full",), STEPS, (4,), stores=(DType.U8,))


def quantized(kept: bool) -> RegionParams:
    """A norm of x (0) rounded to bytes, and the norm itself if it is ``kept``."""
    norm = NormParams(Norm("layer", 1e-5, gamma=True, beta=True))
    steps = (RegionStep(norm, (0, 1, 2), narrow="f16"),
             RegionStep(ElementwiseParams(TO_BYTES), (3,), narrow="f16"))  # fmt: skip
    return RegionParams(3, steps, (4, *((3,) if kept else ())))


@pytest.mark.compiler
@pytest.mark.parametrize("kept", [True, False])
def test_norms_store_integers(kept: bool) -> None:
    """Only a rounding of a norm that nothing else reads is stored alone."""
    arrays, params = given()[:3], quantized(kept)
    arrays[0] = arrays[0] * 30
    specs = [TensorSpec(DType.F32, a.shape) for a in arrays]
    made = program_of(params, specs, DType.F16).calls
    (norm,) = (CALLS.of(c).named(c) for c in made if c.op == "norm")
    assert not any(c.chain and "round" in [s.op for s in c.chain.steps] for c in made)
    assert norm["rounded"] is not None
    want, *_ = params.reference([a.astype(np.float64) for a in arrays])
    got, *_ = run_program(params, arrays, DType.F16)
    assert got.dtype == np.uint8 and len(np.unique(got)) > 30
    error = np.abs(got.astype(np.float64) - want)
    assert error.max() <= 1 and (error > 0).mean() < 0.01


def test_another_scale_is_another_rounding() -> None:
    """Two matmuls of one value with different scales: its maker rounds for the first of them."""
    norm, first, _ = layer(False).steps
    both = RegionParams(6, tuple(
        RegionStep(s.params, o, 1, "f16", f)
        for s, o, f in ((norm, (0, 1, 2), 0.0), (first, (6, 3, 4), 32.0), (first, (6, 3, 4), 8.0))
    ), (7, 8))  # fmt: skip
    assert sum(map(rounds, calls(both))) == 1


def test_sums_of_one_sign_are_promoted() -> None:
    """What was measured on an H100: 5.2 % of sums of 3072 magnitudes, 0.94 % of 768."""
    for depth, share in ((3072, 5.2e-2), (768, 9.4e-3)):
        mixed = RNG.standard_normal((depth, 64))
        assert loss_of_sums(mixed, True) < float8_rounding._LOSS / 3
        assert loss_of_sums(np.abs(mixed).T, False) == pytest.approx(share, rel=0.3)
    params = layer(False)
    first = replace(params.steps[1], promoted=True)
    params = replace(params, steps=(params.steps[0], first, params.steps[2]))
    promoted = [c.attributes["promoted"] for c in calls(params) if c.op == "float8_gemm"]
    assert promoted == [True, False]


@pytest.mark.compiler
@pytest.mark.parametrize("residual", [True, False])
def test_results(residual: bool) -> None:
    arrays = given()
    (want,) = layer(residual).reference([a.astype(np.float64) for a in arrays])
    (got,) = run_program(layer(residual), arrays, DType.F16)
    error = np.abs(got - want)
    assert error.max() < 0.08 * np.abs(want).max()
    assert np.sqrt((error**2).mean()) < 0.06 * np.sqrt((want**2).mean())


def by_rows(kept: bool, step: str = "div") -> RegionParams:
    """A norm of x (0) divided by the largest magnitudes of its rows, and a matmul of that.

    Twice the norm is a result too if it is ``kept``.
    """
    norm = NormParams(Norm("layer", 1e-5, gamma=True, beta=True))
    abs_max = ReduceParams("max", (-1,), True, Chain(("full",), (Step("abs", (0,)),), (1,)))
    scale = Chain(("full",), (Step(step, (0, 448.0)), Step("max", (1, 1e-6))), (2,))
    rounding = Chain(("full", "col"), (Step("div", (0, 1)),), (2,), (), (FLOAT8,))
    scaled = Chain(("full", "col"), (Step("mul", (0, 1)),), (2,))
    twice = Chain(("full",), (Step("mul", (0, 2.0)),), (1,))
    product = GemmParams(WIDTH, HIDDEN, KN, epilogue=scaled, integers=IntegerOperand(FLOAT8))
    return RegionParams(4, (
        RegionStep(norm, (0, 1, 2), narrow="f16"), RegionStep(abs_max, (4,), narrow="f16"),
        RegionStep(ElementwiseParams(scale), (5,), narrow="f16"),
        RegionStep(ElementwiseParams(rounding), (4, 6), narrow="f16"),
        RegionStep(product, (7, 3, 6), narrow="f16"),
        *([RegionStep(ElementwiseParams(twice), (4,))] if kept else []),
    ), (8, *([9] if kept else [])))  # fmt: skip


@pytest.mark.compiler
@pytest.mark.parametrize("kept", [True, False])
def test_norms_find_scales_of_rows(kept: bool) -> None:
    rng = np.random.default_rng(9)
    arrays = [
        rng.standard_normal(s).astype(np.float32) for s in ((ROWS, WIDTH), (WIDTH,), (WIDTH,))
    ]
    arrays.append((rng.standard_normal((WIDTH, HIDDEN)) * 16).astype(ml_dtypes.float8_e4m3fn))
    specs = [TensorSpec(DType.F32, a.shape) for a in arrays[:3]]
    specs.append(TensorSpec(FLOAT8, arrays[3].shape))
    made = [c.op for c in program_of(by_rows(kept), specs, DType.F16).calls if c.op != "copy"]
    last = ["elementwise"] * kept
    assert sorted(made) == sorted(["norm", "float8_gemm", *last])
    other = program_of(by_rows(kept, "add"), specs, DType.F16).calls
    assert sum(c.op == "reduce" for c in other) == 1
    exact = [a.astype(np.float64) for a in arrays]
    for got, want in zip(run_program(by_rows(kept), arrays, DType.F16),
                         by_rows(kept).reference(exact), strict=True):  # fmt: skip
        assert np.abs(got - want).max() < 0.02 * np.abs(want).max()
