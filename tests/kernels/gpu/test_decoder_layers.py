"""Norms inside matmuls with block-quantized matrices, and merged projections, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.machine import Array
from tests.kernels.gpu.programs import program_of, run_program
from tests.kernels.gpu.test_block_quantized import stored
from tests.kernels.gpu.test_cached_attention import (
    DOUBLED,
    HEADS,
    KEPT,
    RNG,
    SIZE,
    arrays,
    steps,
)
from tracea_graph.ir import DType, TensorSpec, evaluate
from tracea_graph.kernels.gpu.families import block_quantized_matmul
from tracea_graph.kernels.gpu.kernel_selection import launches_for
from tracea_graph.kernels.gpu.lowering import block_quantized
from tracea_graph.kernels.program import Program
from tracea_graph.ops.block_quantized import BlockQuantized
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.norm import Norm, NormParams

WIDTH = 96
LAYOUT = BlockQuantized(4, 32)
RMS = Norm("rms", 1e-5, gamma=True, beta=False)
TYPES = {"float32": DType.F32, "int64": DType.I64, "bool": DType.BOOL, "uint8": DType.U8}


def specs(given: list[Array]) -> list[TensorSpec]:
    return [TensorSpec(TYPES[str(a.dtype)], a.shape) for a in given]


def compare(params: RegionParams, given: list[Array]) -> None:
    want = params.reference([a.astype(np.float64) if a.dtype == np.float32 else a for a in given])
    for got, expected in zip(run_program(params, given), want, strict=True):
        most = 2 * TOLERANCE[DType.F16] * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=most)


def launched(program: Program, sizes: dict[str, int]) -> list[str]:
    """The ops of a program that have blocks at these sizes."""
    found = []
    for call in program.calls:
        launch = next(one for one, _ in launches_for(call) if evaluate(one.when, sizes) > 0)
        found += [call.op] if all(launch.blocks(sizes)) else []
    return found


def after_norm(*more: RegionStep) -> RegionParams:
    """A norm of a matmul of x (0), and a matmul of it; operands are those of ``rows_of``."""
    made = (
        RegionStep(GemmParams(WIDTH, WIDTH, LAYOUT, norm=RMS), (0, 2, 3, 1), narrow="f16"),
        RegionStep(GemmParams(WIDTH, 32, LAYOUT), (6, 4, 5), narrow="f16"),
    )
    return RegionParams(6, (*made, *more), tuple(range(7, 8 + len(more))))


def rows_of(count: int) -> list[Array]:
    """X, gamma, and codes and scales of two matrices."""
    x, gamma = RNG.standard_normal((1, count, WIDTH)), RNG.uniform(0.5, 1.5, WIDTH)
    matrices = [one for n in (WIDTH, 32) for one in stored(LAYOUT, WIDTH, n)]
    return [x.astype(np.float32), gamma.astype(np.float32), *matrices]


@pytest.mark.compiler
@pytest.mark.parametrize("rows", [1, 3])
def test_norms_before_codes(rows: int) -> None:
    compare(after_norm(), rows_of(rows))


def test_a_norm_is_launched_for_several_rows_alone() -> None:
    given = specs(rows_of(1))
    given[0] = TensorSpec(DType.F32, (1, "rows", WIDTH))
    program = program_of(after_norm(), given, DType.F32, {"rows": 1})
    assert "norm" not in launched(program, {"rows": 1})
    assert launched(program, {"rows": 2}).count("norm") == 1


def test_a_norm_with_another_reader_is_always_launched() -> None:
    given = specs(rows_of(1))
    program = program_of(after_norm(RegionStep(DOUBLED, (6,))), given, DType.F32)
    assert launched(program, {}).count("norm") == 1


def gated(rows: int) -> tuple[RegionParams, list[Array]]:
    """A norm times two matrices, y = silu(a) · b + r, and its operands."""
    product = Chain(("full", "full", "full"), (Step("mul", (1, 0)), Step("add", (3, 2))), (4,))
    silu = Chain(("full",), (Step("silu", (0,)),), (1,))
    made = (
        RegionStep(GemmParams(WIDTH, WIDTH, LAYOUT, norm=RMS), (0, 2, 3, 1), narrow="f16"),
        RegionStep(GemmParams(WIDTH, 40, LAYOUT, epilogue=silu), (9, 4, 5), narrow="f16"),
        RegionStep(
            GemmParams(WIDTH, 40, LAYOUT, epilogue=product), (9, 6, 7, 10, 8), narrow="f16"
        ),
    )
    given = rows_of(rows)[:4] + [one for _ in "ab" for one in stored(LAYOUT, WIDTH, 40)]
    return RegionParams(9, made, (11,)), [
        *given,
        RNG.standard_normal((1, rows, 40)).astype(np.float32),
    ]


@pytest.mark.compiler
@pytest.mark.parametrize("rows", [1, 3])
def test_gates(rows: int) -> None:
    params, given = gated(rows)
    compare(params, given)


@pytest.mark.compiler
def test_gates_by_blocks_of_16_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_quantized_matmul, "one_row_width", lambda columns, depth: 1)
    params, given = gated(1)
    compare(params, given)


@pytest.mark.compiler
@pytest.mark.parametrize("of", [after_norm, gated])
def test_matrices_are_dequantized_for_many_rows(
    of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_quantized, "_of_many", lambda w, x, matrix: x.shape[0])
    params, given = gated(5) if of is gated else (after_norm(), rows_of(5))
    assert "dequantize" in {call.op for call in program_of(params, specs(given), DType.F32).calls}
    compare(params, given)


def of_varying_rows() -> tuple[Program, list[TensorSpec]]:
    """Return the program of a gate for any number of rows, planned for one, and its operands."""
    params, arrays_of_one = gated(1)
    given = specs(arrays_of_one)
    given[0] = TensorSpec(DType.F32, (1, "rows", WIDTH))
    given[8] = TensorSpec(DType.F32, (1, "rows", 40))
    return program_of(params, given, DType.F32, {"rows": 1}), given


def test_the_number_of_rows_decides_whether_matrices_are_dequantized() -> None:
    program, given = of_varying_rows()
    few, many = launched(program, {"rows": 255}), launched(program, {"rows": 256})
    assert few.count("gemm_nbits") == 3 and "dequantize" not in few and "gemm" not in few
    assert "gemm_nbits" not in many and many.count("dequantize") == 2, "gate and up at once"
    assert sum(op in ("gemm", "gated_gemm") for op in many) == 3
    assert "norm" not in launched(program_of(after_norm(), given[:1] + specs(rows_of(1))[1:],
                                             DType.F32, {"rows": 1}), {"rows": 1})  # fmt: skip


def test_a_gate_is_one_launch_for_one_row() -> None:
    program, _ = of_varying_rows()
    assert launched(program, {"rows": 1}).count("gemm_nbits") == 2
    assert launched(program, {"rows": 2}).count("gemm_nbits") == 3


def projected(rows: int, past: int) -> tuple[RegionParams, list[Array]]:
    """Heads of q, k and v from one input by matrices of codes, norms of q and k, and attention.

    The first operands are those of ``steps``, with x in place of q, and no k and v.
    """
    x, caches = RNG.standard_normal((2, rows, WIDTH)).astype(np.float32), arrays(rows, past)[3:]
    given, made = [x, *caches], list[RegionStep]()
    sizes = [n * SIZE for n in (HEADS, KEPT, KEPT)]
    for n in sizes:
        given += stored(LAYOUT, WIDTH, n)
    given += [RNG.uniform(0.5, 1.5, SIZE).astype(np.float32) for _ in "qk"]
    first = len(given)
    for i, n in enumerate(sizes):
        reads = (0, 7 + 2 * i, 8 + 2 * i)
        made.append(RegionStep(GemmParams(WIDTH, n, LAYOUT), reads, narrow="f16"))
    for i, heads in enumerate((HEADS, KEPT)):
        split = IndexMap((ViewMove("reshape", (0, 0, heads, SIZE)),))
        view = ElementwiseParams(Chain(("full",), (), (0,)), (split,))
        made.append(RegionStep(view, (first + i,)))
        reads = first + 3 + 2 * i, 13 + i
        made.append(RegionStep(NormParams(RMS), reads, narrow="f16"))
    # numbers of the values that ``steps`` calls 0 to 13
    values = [first + 4, first + 6, first + 2, *range(1, 7), *range(first + 7, first + 12)]
    made += (
        replace(step, operands=tuple(values[i] for i in step.operands)) for step in steps("f16")
    )
    return RegionParams(first, tuple(made), tuple(range(first + 9, first + 12))), given


@pytest.mark.compiler
@pytest.mark.parametrize("rows", [1, 3])
def test_projections_are_one_matmul(rows: int) -> None:
    params, given = projected(rows, 21)
    found = [call.op for call in program_of(params, specs(given), DType.F32).calls]
    assert found.count("gemm_nbits") == 1 and "norm" not in found
    compare(params, given)


def test_projections_with_another_reader_stay_apart() -> None:
    params, given = projected(1, 21)
    more = RegionStep(DOUBLED, (len(given) + 2,))  # v
    results = (*params.results, len(given) + 12)
    params = RegionParams(params.inputs, (*params.steps, more), results)
    found = [call.op for call in program_of(params, specs(given), DType.F32).calls]
    assert found.count("gemm_nbits") == 3 and "attention_cached" in found
