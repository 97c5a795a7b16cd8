"""Layer and RMS normalisation."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.conformance import Array, NormTile, Output, address, close, guarded, kernel
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.kernels.cpu.isa_levels import host_levels

EPS = 1e-5


def _normalise(isa: str, x: Array, gamma: Array | None, beta: Array | None, rms: bool) -> Array:
    run = kernel(emit_unit("norm", isa), symbols("norm", isa)[rms])
    x, out = guarded(x), Output(*x.shape)
    gamma = None if gamma is None else guarded(gamma)
    beta = None if beta is None else guarded(beta)
    run(NormTile(
        rows=x.shape[0], cols=x.shape[1], x=address(x), x_stride=x.shape[1], gamma=address(gamma),
        beta=address(beta), eps=EPS, y=out.address, y_stride=out.stride,
    ))  # fmt: skip
    out.check_canaries()
    return out.view


def _reference(x: Array, gamma: Array | None, beta: Array | None, rms: bool) -> Array:
    wide = x.astype(np.float64)
    wide = wide if rms else wide - wide.mean(1, keepdims=True)
    y = wide / np.sqrt((wide**2).mean(1, keepdims=True) + EPS)
    y = y if gamma is None else y * gamma
    return np.asarray(y if beta is None else y + beta)


@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("cols", [1, 7, 8, 15, 16, 17, 31, 33, 97, 384])
def test_equals_reference(isa: str, cols: int, rms: bool) -> None:
    rng = np.random.default_rng(cols)
    gamma, beta = rng.standard_normal((2, cols), np.float32)
    for rows in (0, 1, 3, 4, 5, 11):
        x = rng.standard_normal((rows, cols), np.float32) * 3 + 1
        for g, b in ((gamma, beta), (gamma, None), (None, None)):
            close(_normalise(isa, x, g, b, rms), _reference(x, g, b, rms))


@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
def test_a_row_does_not_depend_on_its_neighbours(isa: str, rms: bool) -> None:
    x = np.random.default_rng(1).standard_normal((7, 83), np.float32)
    whole = _normalise(isa, x, None, None, rms).copy()
    for row in range(7):
        alone = _normalise(isa, x[row : row + 1], None, None, rms)
        np.testing.assert_array_equal(alone[0], whole[row])


def test_in_place(isa: str) -> None:
    run = kernel(emit_unit("norm", isa), symbols("norm", isa)[0])
    x = np.random.default_rng(2).standard_normal((6, 50), np.float32)
    want = _reference(x, None, None, False)
    run(NormTile(rows=6, cols=50, x=address(x), x_stride=50, eps=EPS, y=address(x), y_stride=50))
    close(x, want)


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("norm_avx2.cpp", emit_unit("norm", "avx2").text)


@pytest.mark.parametrize("level", host_levels("bf16"))
@pytest.mark.parametrize("alone", [False, True], ids=["beside float32", "alone"])
@pytest.mark.parametrize("cols", [1, 17, 96])
def test_the_result_in_bf16(level: str, cols: int, alone: bool) -> None:
    run = kernel(emit_unit("norm", level), symbols("norm", level)[0])
    x = guarded(np.random.default_rng(cols).standard_normal((5, cols), np.float32))
    out, half = Output(5, cols), np.full((5, cols + 3), 0x1234, np.uint16)
    run(NormTile(
        rows=5, cols=cols, x=address(x), x_stride=cols, eps=EPS,
        y=None if alone else out.address, y_stride=out.stride,
        rounded=half.ctypes.data, rounded_stride=cols + 3,
    ))  # fmt: skip
    exact = _normalise(level, x, None, None, False)
    np.testing.assert_array_equal(half[:, :cols], exact.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert (half[:, cols:] == 0x1234).all()
    if not alone:
        np.testing.assert_array_equal(out.view, exact)
