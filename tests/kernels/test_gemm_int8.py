"""Products in 8-bit integers equal those in int64, at any zero points."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracea_graph.kernels.cpu
from tests.kernels.conformance import (
    PANEL,
    Array,
    GemmTile,
    Output,
    guarded,
    kernel,
    levels,
)
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.kernels.cpu.isa_levels import isa_of
from tracea_graph.kernels.cpu.panels import pack_int8, unpack_int8
from tracea_graph.kernels.cpu.variants import gemm_int8_tile
from tracea_graph.ops.quantize_rows import ZERO, quantize_rows
from tracea_graph.toolchain.compilers import find_compiler

LEVELS = levels("int8")
CPU = Path(tracea_graph.kernels.cpu.__file__).parent


def marked(found: Sequence[str]) -> list[Any]:
    """AVX-512 without VNNI is AVX2's text with longer vectors, and compiles for 12 seconds."""
    return [pytest.param(level, marks=[pytest.mark.slow] * (level == "avx512")) for level in found]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="matrix tiles of x86")
def test_matrix_tiles_compile_on_any_machine(tmp_path: Path) -> None:
    unit = emit_unit("gemm_int8", "amxint8")
    (tmp_path / "unit.cpp").write_text(unit.text)
    find_compiler().run(
        (*unit.flags, "-O0", "-fsyntax-only", "-I", str(CPU), "unit.cpp"), tmp_path
    )


class SumRowsTile(ctypes.Structure):
    """``tracea_sum_rows_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64), ("x", c_void_p), ("x_stride", c_int64),
        ("flip", c_int32), ("y", c_void_p),
    ]  # fmt: skip


class RoundTile(ctypes.Structure):
    """``tracea_round_int8_tile``."""

    _fields_ = [
        ("rows", c_int64), ("cols", c_int64), ("x", c_void_p), ("x_stride", c_int64),
        ("factors", c_void_p), ("y", c_void_p), ("y_stride", c_int64), ("scale", c_void_p),
    ]  # fmt: skip


def sums_of_rows(level: str, x: Array, flip: int) -> Array:
    """The sums of rows as the kernel computes them."""
    run = kernel(emit_unit("gemm_int8", level), symbols("gemm_int8", level)[1])
    made, rows = Output(1, len(x), dtype=np.int32), guarded(x)
    run(SumRowsTile(*x.shape, rows.ctypes.data, x.shape[1], flip, made.address))
    made.check_canaries()
    return made.view[0].copy()


def multiply(level: str, x: Array, zero: int, w: Array, own: Array | None, mr: int) -> Array:
    """``(x - zero) (w - own)`` by tiles of at most ``mr`` rows."""
    run = kernel(emit_unit("gemm_int8", level), symbols("gemm_int8", level)[0])
    (m, k), n, nv = x.shape, w.shape[1], gemm_int8_tile(level)[1]
    weights, signed = guarded(pack_int8(w, own)), x.dtype == np.int8
    flip = np.int32(np.uint32(0x80808080).view(np.int32)) if signed else np.int32(0)
    rows = guarded(np.pad(x, ((0, 0), (0, -k % 4)), constant_values=0).view(np.int32))
    sums = guarded(sums_of_rows(level, x, int(flip))) if own is not None else None
    out, deep, state = Output(m, n), rows.shape[1], c_int32(0)
    for row in range(0, m, mr):
        for col in range(0, n, nv * PANEL):
            count = min(nv, -(-(n - col) // PANEL))
            run(GemmTile(
                k=deep, a=rows[row:].ctypes.data, lda=deep, a_step=1,
                b=weights[col // PANEL :].ctypes.data, b_panel=weights.shape[1] * PANEL,
                b_row=PANEL, c=out.address + 4 * (row * out.stride + col), ldc=out.stride,
                mr=min(mr, m - row), nv=count, last=min(n - col, nv * PANEL) - PANEL * (count - 1),
                zero=zero + 128 * signed, flip=flip,
                row_sums=None if sums is None else sums[row:].ctypes.data,
                state=ctypes.addressof(state),
            ))  # fmt: skip
    if state.value:
        run(GemmTile())
    out.check_canaries()
    return out.view.copy()


def exact(x: Array, zero: int, w: Array, own: Array | None) -> Array:
    """The product in int64, rounded to float32 once."""
    columns = np.zeros(w.shape[1], np.int64) if own is None else own.astype(np.int64)
    return ((x.astype(np.int64) - zero) @ (w.astype(np.int64) - columns)).astype(np.float32)


def drawn(rng: np.random.Generator, dtype: type, *shape: int) -> Array:
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("level", marked(LEVELS))
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("n", [1, 16, 17, 49, 97])
def test_equals_int64(level: str, dtype: type, n: int) -> None:
    mr, rng = gemm_int8_tile(level)[0], np.random.default_rng(n)
    for m in (1, mr // 2 + 1, mr - 1, mr, 2 * mr + 1):
        for k in (1, 4, 7, 63, 64, 150, 260):
            x, w = drawn(rng, dtype, m, k), drawn(rng, np.int8, k, n)
            own = drawn(rng, np.int8, n)
            for zero in (int(drawn(rng, dtype)[()]), 0):
                for columns in (None, own):
                    got = multiply(level, x, zero, w, columns, mr)
                    np.testing.assert_array_equal(got, exact(x, zero, w, columns))


@pytest.mark.parametrize("level", marked(LEVELS))
def test_the_largest_terms_do_not_saturate(level: str) -> None:
    """Pairs of these exceed 16 bits, in which vpmaddubsw would add them."""
    for dtype, a, b in ((np.uint8, 255, -128), (np.uint8, 255, 127), (np.int8, -128, -128)):
        x, w = np.full((3, 4096), a, dtype), np.full((4096, 17), b, np.int8)
        for zero in (np.iinfo(dtype).min, np.iinfo(dtype).max):
            got = multiply(level, x, zero, w, None, 3)
            np.testing.assert_array_equal(got, exact(x, zero, w, None))


@pytest.mark.parametrize("level", marked(LEVELS))
@pytest.mark.parametrize("cols", [1, 15, 16, 33])
def test_rows_are_rounded_to_bytes(level: str, cols: int) -> None:
    run = kernel(emit_unit("gemm_int8", level), symbols("gemm_int8", level)[3])
    rng = np.random.default_rng(cols)
    x, factors = rng.standard_normal((7, cols), np.float32), rng.random(cols, np.float32) + 0.5
    x[1], x[2], x[3] = 0, 1e-38, 3e37
    x[4, -1], x[5, 0], x[6, -1] = np.inf, np.nan, -np.inf
    for scaled in (False, True):
        y, scale = np.full((7, cols + 3), 77, np.uint8), Output(1, 7)
        source, beside = guarded(x), guarded(factors)
        run(RoundTile(
            7, cols, source.ctypes.data, cols, beside.ctypes.data if scaled else None,
            y.ctypes.data, cols + 3, scale.address,
        ))  # fmt: skip
        scale.check_canaries()
        whole, want = quantize_rows(x * factors if scaled else x)
        np.testing.assert_array_equal(scale.view[0], want[:, 0])
        # products and sums may be contracted, which moves what lies between two integers
        assert abs(y[:4, :cols].astype(int) - ZERO - whole[:4]).max() <= scaled
        assert (y[:, cols:] == 77).all() and np.isnan(want[4:]).all()


def test_panels_hold_the_matrix() -> None:
    w, own = (drawn(np.random.default_rng(3), np.int8, *shape) for shape in ((7, 20), (20,)))
    assert pack_int8(w).shape == (2, 3, 16, 4) and pack_int8(w, own).shape == (2, 4, 16, 4)
    for columns in (None, own):
        matrix, zeros = unpack_int8(pack_int8(w, columns), 7, 20)
        np.testing.assert_array_equal(matrix, w)
        assert (zeros is None) if columns is None else (zeros == own).all()


WIDE_LEVELS = [level for level in LEVELS if isa_of(level).width == 16]
VECTOR_LEVELS = [level for level in WIDE_LEVELS if "amx" not in level]


@pytest.mark.parametrize("level", marked(WIDE_LEVELS))
@pytest.mark.parametrize("n", [1, 16, 33, 48, 61])
@pytest.mark.parametrize("zero", [0, 131])
@pytest.mark.parametrize("fit", [False, True])
def test_sums_are_rounded_to_bytes(level: str, n: int, zero: int, fit: bool) -> None:
    """Half to even, within 0 and 255; scales are powers of two, so that all is exact."""
    (mr, _), rng = gemm_int8_tile(level), np.random.default_rng(n)
    x, w = drawn(rng, np.uint8, mr, 24), drawn(rng, np.int8, 24, n)
    powers = (-11, -6) if fit else (-11, 30)  # sums times 2^29 exceed what integers can hold
    factor = np.exp2(rng.integers(*powers, n)).astype(np.float32)
    summand = (rng.integers(-40, 40, n) / 2).astype(np.float32)
    got = rounded_bytes(level, x, w, factor, summand, bytes_zero=zero, bytes_fit=fit)
    wanted = np.rint(exact(x, 9, w, None).astype(np.float64) * factor + summand) + zero
    np.testing.assert_array_equal(got, np.clip(wanted, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("level", marked(VECTOR_LEVELS))
@pytest.mark.parametrize("n", [1, 16, 20, 33, 48, 61])
@pytest.mark.parametrize("fit", [False, True])
def test_bytes_are_looked_up(level: str, n: int, fit: bool) -> None:
    (mr, _), rng = gemm_int8_tile(level), np.random.default_rng(n)
    x, w = drawn(rng, np.uint8, mr, 24), drawn(rng, np.int8, 24, n)
    factor = np.exp2(rng.integers(-11, -6, n)).astype(np.float32)
    summand = (rng.integers(-40, 40, n) / 2).astype(np.float32)
    table = guarded(rng.permutation(256).astype(np.uint8))
    got = rounded_bytes(
        level, x, w, factor, summand, bytes_zero=131, bytes_fit=fit, table=table.ctypes.data
    )
    wanted = np.rint(exact(x, 9, w, None).astype(np.float64) * factor + summand) + 131
    np.testing.assert_array_equal(got, table[np.clip(wanted, 0, 255).astype(np.uint8)])


@pytest.mark.parametrize("level", marked(VECTOR_LEVELS))
@pytest.mark.parametrize("n", [1, 16, 33, 48, 61])
def test_other_bytes_are_added_to_sums(level: str, n: int) -> None:
    """Of the sum, rounded and limited, and the bytes, times powers of two."""
    (mr, _), rng = gemm_int8_tile(level), np.random.default_rng(n)
    x, w = drawn(rng, np.uint8, mr, 24), drawn(rng, np.int8, 24, n)
    factor = np.exp2(rng.integers(-11, -6, n)).astype(np.float32)
    summand = (rng.integers(-40, 40, n) / 2).astype(np.float32)
    added = guarded(drawn(rng, np.uint8, mr, n))
    how = np.float32([-120, 100, 0.5, 0.25, 0.75])
    got = rounded_bytes(
        level, x, w, factor, summand, added=added.ctypes.data, added_row=n, sum=how.ctypes.data
    )
    sums = np.rint(exact(x, 9, w, None).astype(np.float64) * factor + summand)
    wanted = np.rint(np.clip(sums, -120, 100) * 0.5 + added * 0.25 + 0.75)
    np.testing.assert_array_equal(got, np.clip(wanted, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("level", marked(VECTOR_LEVELS))
@pytest.mark.parametrize("n", [1, 16, 20, 33, 48, 61])
@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize("fit", [False, True])
def test_sums_are_rounded_twice(level: str, n: int, looked_up: bool, fit: bool) -> None:
    """Scales are powers of two, so that all is exact."""
    (mr, _), rng = gemm_int8_tile(level), np.random.default_rng(n)
    x, w = drawn(rng, np.uint8, mr, 24), drawn(rng, np.int8, 24, n)
    factor = np.exp2(rng.integers(-11, -6, n)).astype(np.float32)
    summand = (rng.integers(-400, 400, n) / 8).astype(np.float32)
    table, how = guarded(rng.permutation(256).astype(np.uint8)), np.float32([-90, 80, 0.25, 4, 0])
    more = {"table": table.ctypes.data} if looked_up else {}
    more |= {"sum": how.ctypes.data, "bytes_fit": fit}
    got = rounded_bytes(level, x, w, factor, summand, bytes_zero=131, **more)
    first = np.rint(exact(x, 9, w, None).astype(np.float64) * factor).clip(-90, 80)
    wanted = (np.rint((first / 4 + summand) * 4) + 131).clip(0, 255).astype(np.uint8)
    np.testing.assert_array_equal(got, table[wanted] if looked_up else wanted)


def rounded_bytes(
    level: str, x: np.ndarray, w: np.ndarray, factor: np.ndarray, summand: np.ndarray, **more: int
) -> np.ndarray:
    """What the kernel makes of x, whose zero point is 9, by w."""
    (mr, nv), n, k = gemm_int8_tile(level), w.shape[1], x.shape[1] // 4
    run = kernel(emit_unit("gemm_int8", level), symbols("gemm_int8", level)[0])
    rows, weights = guarded(x.view(np.int32)), guarded(pack_int8(w, None))
    scales, summands = guarded(factor), guarded(summand)
    made, unused = Output(mr, n, dtype=np.uint8), np.zeros((mr, nv * PANEL), np.float32)
    state, start = c_int32(0), more.get("added", 0)
    for col in range(0, n, nv * PANEL):
        count = min(nv, -(-(n - col) // PANEL))
        run(GemmTile(
            **{**more, "added": start + col if start else 0},
            k=k, a=rows.ctypes.data, lda=k, a_step=1, b=weights[col // PANEL :].ctypes.data,
            b_panel=weights.shape[1] * PANEL, b_row=PANEL, c=unused.ctypes.data, ldc=nv * PANEL,
            mr=mr, nv=count, last=min(n - col, nv * PANEL) - PANEL * (count - 1), zero=9,
            factor=scales[col:].ctypes.data, summand=summands[col:].ctypes.data,
            bytes=made.address + col, bytes_row=made.stride, state=ctypes.addressof(state),
        ))  # fmt: skip
    if state.value:
        run(GemmTile())
    made.check_canaries()
    return np.array(made.view)
