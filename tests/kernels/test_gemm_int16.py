"""Products in 16-bit integers: exact sums, and scales of rows and columns."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p

import numpy as np
import pytest

from tests.kernels.conformance import Array, Output, by_tiles, close, guarded, kernel
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.panels import pack_int16, pack_scales, unpack_vnni2
from tracea_graph.kernels.cpu.variants import gemm_tile
from tracea_graph.ops.int16 import LIMIT, RUN, round_columns, round_rows

LEVELS = host_levels("int16")


class RoundTile(ctypes.Structure):
    """``tracea_round_int16_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64), ("x", c_void_p), ("x_stride", c_int64),
        ("y", c_void_p), ("y_stride", c_int64), ("scale", c_void_p),
    ]  # fmt: skip


def rounded(level: str, x: Array) -> tuple[Array, Array]:
    """What the kernel makes of rows: integers, and their scales."""
    run = kernel(emit_unit("gemm_int16", level), symbols("gemm_int16", level)[1])
    rows, cols = x.shape
    even = cols + cols % 2
    y, scale, source = np.full((rows, even + 3), 0x1234, np.int16), Output(1, rows), guarded(x)
    run(RoundTile(
        rows, cols, source.ctypes.data, cols, y.ctypes.data, even + 3, scale.address
    ))  # fmt: skip
    scale.check_canaries()
    assert (y[:, cols:even] == 0).all() and (y[:, even:] == 0x1234).all()
    return y[:, :even].copy(), scale.view[0].copy()


def multiply(level: str, a: Array, b: Array, bias: Array | None, mr: int) -> Array:
    """The whole product by tiles of at most ``mr`` rows."""
    run = kernel(emit_unit("gemm_int16", level), symbols("gemm_int16", level)[0])
    weights, columns = (guarded(part) for part in pack_int16(b))
    whole, scale = (guarded(part) for part in rounded(level, a))
    twos = whole.view(np.uint32)
    shape, tile = (len(a), b.shape[1], twos.shape[1]), (mr, gemm_tile(level)[1])
    return by_tiles(run, twos, weights, shape, tile, bias, scales=(scale, columns))


def exact(a: Array, b: Array) -> Array:
    """The product of what is left of both after rounding, in double precision."""
    (q, rows), (p, columns) = round_rows(a), round_columns(b)
    sums = q.astype(np.float64) @ p.astype(np.float64)
    return sums * rows[:, None].astype(np.float64) * columns.astype(np.float64)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [1, 16, 17, 49, 97])
def test_equals_reference(level: str, n: int) -> None:
    mr = gemm_tile(level)[0]
    rng = np.random.default_rng(n)
    for m in (1, mr - 1, mr, 2 * mr + 1):
        for k in (1, 2, 7, 67, RUN, RUN + 1, 2 * RUN + 6):
            a = rng.standard_normal((m, k), np.float32)
            b = rng.standard_normal((k, n), np.float32)
            bias = guarded(rng.standard_normal(n, np.float32))
            close(multiply(level, a, b, bias, mr), exact(a, b) + bias)
            close(multiply(level, a, b, None, mr), exact(a, b))


@pytest.mark.parametrize("level", LEVELS)
def test_the_result_depends_on_neither_tile_nor_level(level: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((9, 600), np.float32), rng.standard_normal((600, 40), np.float32)
    whole = multiply(level, a, b, None, gemm_tile(level)[0])
    np.testing.assert_array_equal(multiply(level, a, b, None, 1), whole)
    close(whole, multiply("scalar", a, b, None, 4), 1e-7)


@pytest.mark.parametrize("level", LEVELS)
def test_the_largest_sums_fit(level: str) -> None:
    """All of one sign and size: no sum could be larger."""
    a, b = np.full((3, 3 * RUN), 2.5, np.float32), np.full((3 * RUN, 17), -1.5, np.float32)
    assert abs(round_columns(b)[0][:RUN].astype(np.int64).sum(0)).max() * LIMIT > 2**31 * 0.8
    close(multiply(level, a, b, None, 3), a.astype(np.float64) @ b.astype(np.float64), 1e-3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cols", [1, 2, 15, 16, 33])
def test_rows_are_rounded_as_the_reference_does(level: str, cols: int) -> None:
    rng = np.random.default_rng(cols)
    x = rng.standard_normal((9, cols)).astype(np.float32)
    x[1], x[2], x[3] = 0, 1e-38, 3e38
    x[4, -1], x[5, 0], x[6, -1] = np.inf, np.nan, -np.inf
    x[7] = np.arange(cols) + 0.5
    whole, scale = rounded(level, x)
    want, rows = round_rows(x)
    np.testing.assert_array_equal(whole[:, :cols], want)
    np.testing.assert_array_equal(scale, rows)
    assert np.isnan(rows[4:7]).all() and (abs(want) <= LIMIT).all()


def test_sums_of_any_matrix_fit() -> None:
    rng = np.random.default_rng(2)
    for draw in (rng.standard_normal, rng.standard_cauchy, lambda s: np.full(s, 7.0)):
        b = np.asarray(draw((3 * RUN + 5, 20)), np.float32)
        b[:, 3], b[5, 4], b[5, 6] = 0, np.inf, np.nan
        whole, scale = round_columns(b)
        for start in range(0, len(b), RUN):
            sums = np.abs(whole[start : start + RUN].astype(np.int64)).sum(0)
            assert sums.max() * LIMIT < 2**31
        assert np.isnan(scale[[4, 6]]).all() and scale[3] == 0
        fine = np.isfinite(scale)
        step = np.abs(whole[:, fine] * scale[fine] - b[:, fine])
        assert (step <= 0.5001 * scale[fine]).all()


def test_panels_hold_the_integers() -> None:
    b = np.random.default_rng(3).standard_normal((7, 20)).astype(np.float32)
    pairs, scale = pack_int16(b)
    whole, columns = round_columns(b)
    np.testing.assert_array_equal(unpack_vnni2(pairs, 7, 20), whole)
    np.testing.assert_array_equal(scale[:20], columns)
    np.testing.assert_array_equal(pack_scales(b), scale)
    assert pairs.shape == (2, 4, 16, 2) and (scale[20:] == 0).all()
