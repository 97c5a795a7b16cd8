"""Norms that 2:4 sparse matmuls compute, and the sums of rows that they write for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.gpu.programs import program_of, run_program
from tests.kernels.gpu.sparse_cases import pruned
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.two_of_four_storage import TWO_OF_FOUR
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.norm import Norm
from tracea_graph.ops.weight_layouts import KN

ROWS, WIDTH, HIDDEN = 400, 128, 256
MANY = 8192
GELU = Chain(("full",), (Step("gelu", (0,)),), (1,))
RESIDUAL = Chain(("full", "full"), (Step("add", (0, 1)),), (2,))
SHAPES = {
    "x": (ROWS, WIDTH), "first": (WIDTH, WIDTH), "bias": (WIDTH,), "gamma": (WIDTH,),
    "beta": (WIDTH,), "up": (WIDTH, HIDDEN), "up_bias": (HIDDEN,), "down": (HIDDEN, WIDTH),
}  # fmt: skip


def layer(dense: str = "", kind: str = "layer") -> tuple[RegionParams, list[str]]:
    """A projection with a norm behind it, and a perceptron with the norm as residual.

    One matrix may be ``dense``.  Returns the operands' names, too.
    """
    norm = Norm(kind, 1e-5, gamma=True, beta=kind == "layer")
    wide = replace(norm, beta=True) if kind == "layer" else norm
    names = ["x", "bias", "gamma", *(["beta"] if wide.beta else []), "up_bias"]
    for matrix in ("first", "up", "down"):
        names += [matrix] if matrix == dense else [matrix, f"{matrix} positions"]
    at = names.index

    def step(p: GemmParams, matrix: str, *more: int, first: int = 0) -> RegionStep:
        p = replace(p, layout=KN if matrix == dense else TWO_OF_FOUR)
        second = [] if matrix == dense else [at(f"{matrix} positions")]
        return RegionStep(p, (first, at(matrix), *more, *second), narrow="f16")

    affine = [at("gamma"), *([at("beta")] if wide.beta else [])]
    count = len(names)
    project = GemmParams(WIDTH, WIDTH, bias=True, norm=wide)
    up = GemmParams(WIDTH, HIDDEN, bias=True, epilogue=GELU)
    down = GemmParams(HIDDEN, WIDTH, epilogue=RESIDUAL)
    steps = (
        step(project, "first", at("bias"), *affine),
        step(up, "up", at("up_bias"), first=count),
        step(down, "down", count, first=count + 1),
    )
    return RegionParams(count, steps, (count + 2,)), names


def given(names: list[str]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    made = dict[str, Any]()
    for name, shape in SHAPES.items():
        if name in ("first", "up", "down"):
            w = pruned(rng, *shape) / shape[0] ** 0.5
            made[name] = w.astype(np.float32)
            if f"{name} positions" in names:
                made[name], made[f"{name} positions"] = TWO_OF_FOUR.packed(made[name])
        else:
            made[name] = (rng.standard_normal(shape) + (name == "gamma")).astype(np.float32)
    return [made[name] for name in names]


def calls(params: RegionParams, names: list[str], rows: int | str = ROWS) -> list[Call]:
    arrays = given(names)
    kinds = [DType.U8 if a.dtype == np.uint8 else DType.F32 for a in arrays]
    specs = [TensorSpec(k, a.shape) for k, a in zip(kinds, arrays, strict=True)]
    specs[0] = TensorSpec(DType.F32, (rows, WIDTH))
    return list(program_of(params, specs, DType.F16, {"n": ROWS}).calls)


def of_rows(made: list[Call]) -> Counter[str]:
    """Count the calls of a run by op: those whose result has all rows."""
    rows = ((ROWS,), (MANY,), ("n",))
    many = [c for c in made if any(v and v.dims[:1] in rows for v in c.views)]
    return Counter(c.op for c in many if c.op not in ("elementwise", "copy"))


@pytest.mark.parametrize("rows", [ROWS, "n"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_no_launch_computes_a_norm(rows: int | str, kind: str) -> None:
    made = calls(*layer(kind=kind), rows)
    assert of_rows(made) == {"gemm_two_of_four": 3}
    named = [CALLS.of(c).named(c) for c in made if c.op == "gemm_two_of_four"]
    summed = [one["y_sums"] for one in named if one["y_sums"] is not None]
    assert summed == [one["x_sums"] for one in named if one["x_sums"] is not None]
    assert sum(c.op == "scaled_two_of_four" for c in made) == 1
    last = named[-1]
    assert "col" in made[-1].chain.operands and "row" in made[-1].chain.operands  # type: ignore[union-attr]
    assert last["y_sums"] is None and last["x_sums"] is None


@pytest.mark.parametrize("dense", ["first", "up", "down"])
def test_dense_and_sparse_matrices_exchange_sums(dense: str) -> None:
    made = calls(*layer(dense), MANY)
    assert of_rows(made) == {"gemm_two_of_four": 2, "gemm": 1}
    named = [CALLS.of(c).named(c) for c in made if c.op in ("gemm", "gemm_two_of_four")]
    (summed,) = [one["y_sums"] for one in named if one["y_sums"] is not None]
    assert [one["x_sums"] for one in named if one["x_sums"] is not None] == [summed]


@pytest.mark.compiler
@pytest.mark.parametrize(("dense", "kind"), [("", "layer"), ("", "rms"), ("up", "layer")])
def test_results(dense: str, kind: str) -> None:
    params, names = layer(dense, kind)
    arrays = given(names)
    exact = [a if a.dtype == np.uint8 else a.astype(np.float64) for a in arrays]
    (want,) = params.reference(exact)
    (got,) = run_program(params, arrays, DType.F16)
    assert np.abs(got - want).max() < 4e-3 * np.abs(want).max()
