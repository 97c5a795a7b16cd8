"""Products in bf16: pairs of both operands, and float32 rows times bf16 panels."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.conformance import Array, by_tiles, close, guarded, kernel, levels
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.kernels.cpu.panels import pack_vnni2
from tracea_graph.kernels.cpu.variants import gemm_bf16_tile, gemm_tile

LEVELS = levels("bf16")


class RoundTile(ctypes.Structure):
    """``tracea_round_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64), ("x", c_void_p), ("x_stride", c_int64),
        ("y", c_void_p), ("y_stride", c_int64),
    ]  # fmt: skip


def rounded(x: Array) -> Array:
    """What bf16 makes of float32 numbers, in double precision."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def in_pairs(x: Array) -> Array:
    """``[M,K]`` in bf16, an even number of columns, as ``uint32``."""
    padded = np.pad(x, ((0, 0), (0, x.shape[1] % 2)))
    return padded.astype(ml_dtypes.bfloat16).view(np.uint32)


def tile_of(isa: str, mixed: bool) -> tuple[int, int]:
    """Rows and panels of the largest register tile."""
    return gemm_tile(isa) if mixed else gemm_bf16_tile(isa)


def multiply(isa: str, a: Array, b: Array, bias: Array | None, mixed: bool, mr: int) -> Array:
    """The whole product by tiles of at most ``mr`` rows."""
    source, names = emit_unit("gemm_bf16", isa), symbols("gemm_bf16", isa)
    run, end = kernel(source, names[2 if mixed else 0]), kernel(source, names[1])
    (m, k), n = a.shape, b.shape[1]
    weights = guarded(pack_vnni2(b).view(np.uint32))
    rows = guarded(a if mixed else in_pairs(a))
    tile = mr, tile_of(isa, mixed)[1]
    return by_tiles(run, rows, weights, (m, n, -(-k // 2)), tile, bias, end=None if mixed else end)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mixed", [False, True], ids=["pairs", "mixed"])
@pytest.mark.parametrize("n", [1, 16, 17, 49, 97])
def test_equals_reference(level: str, n: int, mixed: bool) -> None:
    mr = tile_of(level, mixed)[0]
    rng = np.random.default_rng(n)
    for m in (1, mr - 1, mr, mr + 5, 2 * mr + 9):
        for k in (2, 8, 66) if mixed else (1, 2, 7, 67):
            a = rng.standard_normal((m, k), np.float32)
            b = rng.standard_normal((k, n), np.float32)
            bias = guarded(rng.standard_normal(n, np.float32))
            exact = (a.astype(np.float64) if mixed else rounded(a)) @ rounded(b)
            close(multiply(level, a, b, bias, mixed, mr), exact + bias)
            close(multiply(level, a, b, None, mixed, mr), exact)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mixed", [False, True], ids=["pairs", "mixed"])
def test_the_result_does_not_depend_on_the_tile(level: str, mixed: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((9, 64), np.float32), rng.standard_normal((64, 40), np.float32)
    whole = multiply(level, a, b, None, mixed, tile_of(level, mixed)[0])
    np.testing.assert_array_equal(multiply(level, a, b, None, mixed, 1), whole)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cols", [1, 2, 15, 16, 33])
def test_rounding_is_to_nearest_even(level: str, cols: int) -> None:
    run = kernel(emit_unit("gemm_bf16", level), symbols("gemm_bf16", level)[3])
    rng = np.random.default_rng(cols)
    x = rng.standard_normal((5, cols)).astype(np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, 3.39e38, 1e-40, 1 + 2**-8, 1 + 3 * 2**-8, np.nan]
    x.reshape(-1)[: min(x.size, len(special))] = special[: x.size]
    even = cols + cols % 2
    y = np.full((5, even + 3), 0x1234, np.uint16)
    source = guarded(x)
    run(RoundTile(5, cols, source.ctypes.data, cols, y.ctypes.data, even + 3))
    want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    if level in ("avx512bf16", "amxbf16"):  # whose products take a subnormal for 0 in any case
        want[np.abs(want) < np.finfo(np.float32).tiny] = 0.0
    got = y[:, :cols].view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    assert (y[:, cols:even] == 0).all() and (y[:, even:] == 0x1234).all()
