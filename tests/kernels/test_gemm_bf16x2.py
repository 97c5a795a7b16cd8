"""Products of sums of two numbers in bf16: nearly as exact as float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.conformance import Array, by_tiles, close, guarded, kernel, levels
from tests.kernels.test_gemm_bf16 import RoundTile
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.kernels.cpu.panels import SPLIT_STEPS, pack_bf16x2, unpack_bf16x2
from tracea_graph.kernels.cpu.variants import gemm_bf16_tile
from tracea_graph.ops.bf16 import round_bf16, split_bf16

LEVELS = levels("bf16x2")


def halves(level: str, x: Array) -> Array:
    """What the kernel makes of rows, ``[M, K filled up, 2]`` by turns, as ``uint16``."""
    run = kernel(emit_unit("gemm_bf16x2", level), symbols("gemm_bf16x2", level)[2])
    rows, cols = x.shape
    wide = 2 * (cols + -cols % SPLIT_STEPS)
    y, source = np.full((rows, wide + 6), 0x1234, np.uint16), guarded(x)
    run(RoundTile(rows, cols, source.ctypes.data, cols, y.ctypes.data, wide + 6))
    assert (y[:, wide:] == 0x1234).all()
    return y[:, :wide].copy()


def multiply(level: str, a: Array, b: Array, bias: Array | None, mr: int) -> Array:
    """The whole product by tiles of at most ``mr`` rows."""
    source, names = emit_unit("gemm_bf16x2", level), symbols("gemm_bf16x2", level)
    run, end = kernel(source, names[0]), kernel(source, names[1])
    weights = guarded(pack_bf16x2(b).view(np.uint32))
    rows = guarded(halves(level, a).view(np.uint32))
    shape, tile = (len(a), b.shape[1], rows.shape[1]), (mr, gemm_bf16_tile(level)[1])
    return by_tiles(run, rows, weights, shape, tile, bias, end=end)


def exact(a: Array, b: Array) -> Array:
    """Three of the four products of halves, in double precision."""
    (au, al), (bu, bl) = split_bf16(a.astype(np.float64)), split_bf16(b.astype(np.float64))
    return (au + al) @ (bu + bl) - al @ bl


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [1, 16, 17, 49, 97])
def test_equals_reference(level: str, n: int) -> None:
    mr = gemm_bf16_tile(level)[0]
    rng = np.random.default_rng(n)
    for m in (1, mr - 1, mr, mr + 5, 2 * mr + 9):
        for k in (1, 7, 32, 67, 200):
            a = rng.standard_normal((m, k), np.float32)
            b = rng.standard_normal((k, n), np.float32)
            bias = guarded(rng.standard_normal(n, np.float32))
            close(multiply(level, a, b, bias, mr), exact(a, b) + bias)
            close(multiply(level, a, b, None, mr), exact(a, b))


@pytest.mark.parametrize("level", LEVELS)
def test_the_result_does_not_depend_on_the_tile(level: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((9, 70), np.float32), rng.standard_normal((70, 40), np.float32)
    whole = multiply(level, a, b, None, gemm_bf16_tile(level)[0])
    np.testing.assert_array_equal(multiply(level, a, b, None, 1), whole)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cols", [1, 15, 32, 33, 80])
def test_rows_are_split_as_the_reference_does(level: str, cols: int) -> None:
    rng = np.random.default_rng(cols)
    x = rng.standard_normal((5, cols)).astype(np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, 3.4e38, 1 + 2**-8, 1 + 3 * 2**-8, 1 / 3, np.nan]
    x.reshape(-1)[: min(x.size, len(special))] = special[: x.size]
    turns = (
        halves(level, x).view(ml_dtypes.bfloat16).astype(np.float32).reshape(5, -1, 2, SPLIT_STEPS)
    )
    for part, want in enumerate(split_bf16(x)):
        got = turns[:, :, part].reshape(5, -1)
        np.testing.assert_array_equal(got[:, :cols], want)
        assert (got[:, cols:] == 0).all()


def test_halves_are_within_a_sixteenth_bit() -> None:
    x = np.random.default_rng(2).standard_normal(10_000).astype(np.float32)
    upper, lower = split_bf16(x)
    for half in (upper, lower):
        np.testing.assert_array_equal(round_bf16(half), half)
    off = np.abs(upper.astype(np.float64) + lower - x) / np.abs(x)
    assert off.max() <= 2.0**-17


def test_panels_hold_both_halves() -> None:
    b = np.random.default_rng(3).standard_normal((37, 20)).astype(np.float32)
    panels = pack_bf16x2(b)
    assert panels.shape == (2, 64, 16, 2)
    for got, want in zip(unpack_bf16x2(panels, 37, 20), split_bf16(b), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(panels[0, :16, 3].reshape(-1), split_bf16(b)[0][:32, 3])
