"""The matrix product's register tile."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.kernels.conformance import (
    Array,
    GemmDotTile,
    GemmPackTile,
    GemmTile,
    Output,
    address,
    close,
    guarded,
    kernel,
    unaligned,
)
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.kernels.cpu.variants import gemm_tile

PANEL = 16


def _pack(b: Array) -> Array:
    """``[K,N]`` to ``[ceil(N/16)][K][16]``."""
    k, n = b.shape
    padded = np.zeros((k, -(-n // PANEL) * PANEL), np.float32)
    padded[:, :n] = b
    return padded.reshape(k, -(-n // PANEL), PANEL).transpose(1, 0, 2).copy()


def _multiply(
    isa: str, a: Array, b: Array, bias: Array | None, plain: bool, mr: int, nv: int
) -> Array:
    """The whole product by tiles of at most ``mr`` rows and ``nv`` panels."""
    run = kernel(emit_unit("gemm", isa), symbols("gemm", isa)[0])
    (m, k), n = a.shape, b.shape[1]
    weights = guarded(b if plain else _pack(b))
    a, out = guarded(a), Output(m, n)
    panel, stride = (PANEL, n) if plain else (k * PANEL, PANEL)
    warm = np.zeros(4096, np.float32)
    for row in range(0, m, mr):
        for col in range(0, n, nv * PANEL):
            count = min(nv, -(-(n - col) // PANEL))
            run(GemmTile(
                k=k, a=address(a[row:]), lda=k, a_step=1,
                b=weights.ctypes.data + 4 * (col // PANEL) * panel, b_panel=panel, b_row=stride,
                init=None if bias is None else bias.ctypes.data + 4 * col,
                c=out.address + 4 * (row * out.stride + col), ldc=out.stride,
                mr=min(mr, m - row), nv=count, last=min(n - col, nv * PANEL) - PANEL * (count - 1),
                b_exact=plain, prefetch=warm.ctypes.data, prefetch_lines=(k * nv) % 99,
                look_up=warm.ctypes.data, look_up_pages=k % 4,
            ))  # fmt: skip
    out.check_canaries()
    return out.view.copy()


@pytest.mark.parametrize("plain", [False, True], ids=["packed", "plain"])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 47, 48, 49, 97])
def test_equals_reference(isa: str, n: int, plain: bool) -> None:
    mr, nv = gemm_tile(isa)
    rng = np.random.default_rng(n)
    for m in (1, mr - 1, mr, mr + 1, 13):
        for k in (0, 1, 4, 7, 67):
            a = rng.standard_normal((m, k), np.float32)
            b = rng.standard_normal((k, n), np.float32)
            bias = guarded(rng.standard_normal(n, np.float32))
            close(
                _multiply(isa, a, b, bias, plain, mr, nv),
                a.astype(np.float64) @ b.astype(np.float64) + bias,
            )
            close(_multiply(isa, a, b, None, plain, mr, nv), a.astype(np.float64) @ b)


@pytest.mark.parametrize("plain", [False, True], ids=["packed", "plain"])
def test_result_does_not_depend_on_the_tile(isa: str, plain: bool) -> None:
    mr, nv = gemm_tile(isa)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((17, 131), np.float32)
    b = rng.standard_normal((131, 97), np.float32)
    whole = _multiply(isa, a, b, None, plain, mr, nv)
    for rows in range(1, mr + 1):
        for panels in range(1, nv + 1):
            again = _multiply(isa, a, b, None, plain, rows, panels)
            np.testing.assert_array_equal(again, whole)


def test_results_past_the_caches_are_the_same(isa: str) -> None:
    mr, nv = gemm_tile(isa)
    rng = np.random.default_rng(4)
    a, panels = (
        guarded(rng.standard_normal((mr, 19), np.float32)),
        guarded(_pack(rng.standard_normal((19, 16 * nv - 3), np.float32))),
    )
    run = kernel(emit_unit("gemm", isa), symbols("gemm", isa)[0])
    room = np.full(mr * 96 + 16, np.nan, np.float32)
    first = -room.ctypes.data // 4 % 16
    found = []
    for streams in (0, 1):
        out = room[first:][: mr * 96].reshape(mr, 96)
        out[:] = np.nan
        run(GemmTile(
            k=19, a=address(a), lda=19, a_step=1, b=address(panels), b_panel=19 * 16, b_row=16,
            c=out.ctypes.data, ldc=96, mr=mr, nv=nv, last=13, streams=streams,
        ))  # fmt: skip
        found.append(out.copy())
    np.testing.assert_array_equal(*found)
    assert np.isnan(found[1][:, 16 * nv - 3 :]).all() and not np.isnan(found[1][:, :13]).any()


def test_sums_go_on_where_they_were_left(isa: str) -> None:
    """Blocks of k, and a left operand that lies transposed."""
    mr, nv = gemm_tile(isa)
    rng = np.random.default_rng(3)
    a, b = (
        rng.standard_normal((mr, 37), np.float32),
        rng.standard_normal((37, 16 * nv), np.float32),
    )
    whole = _multiply(isa, a, b, None, False, mr, nv)
    run = kernel(emit_unit("gemm", isa), symbols("gemm", isa)[0])
    turned, panels, out = guarded(a.T.copy()), _pack(b), Output(mr, 16 * nv)
    for first, last in ((0, 20), (20, 37)):
        run(GemmTile(
            k=last - first, a=turned.ctypes.data + 4 * first * mr, lda=1, a_step=mr,
            b=panels.ctypes.data + 4 * 16 * first, b_panel=37 * 16, b_row=16,
            init=out.address if first else None, init_stride=out.stride,
            c=out.address, ldc=out.stride, mr=mr, nv=nv, last=16,
        ))  # fmt: skip
    out.check_canaries()
    np.testing.assert_array_equal(out.view, whole)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 7, 8])
def test_few_rows_by_a_matrix_stored_by_columns(isa: str, m: int) -> None:
    run = kernel(emit_unit("gemm", isa), symbols("gemm", isa)[1])
    rng = np.random.default_rng(m)
    for n in (1, 3, 4, 5, 19, 64):
        for k in (0, 1, 15, 16, 33, 130):
            a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32)
            bias = guarded(rng.standard_normal(n, np.float32))
            x, w, out = guarded(a), guarded(b), Output(m, n)
            for start in (bias, None):
                run(GemmDotTile(
                    m=m, n=n, k=k, a=address(x), lda=k, b=address(w), ldb=k, bias=address(start),
                    c=out.address, ldc=out.stride,
                ))  # fmt: skip
                out.check_canaries()
                want = a.astype(np.float64) @ b.T.astype(np.float64)
                close(out.view, want if start is None else want + bias)


def test_a_dot_product_does_not_depend_on_its_neighbours(isa: str) -> None:
    run = kernel(emit_unit("gemm", isa), symbols("gemm", isa)[1])
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((7, 77), np.float32), rng.standard_normal((23, 77), np.float32)

    def multiply(rows: Array, columns: Array) -> Array:
        out = Output(len(rows), len(columns))
        run(GemmDotTile(
            m=len(rows), n=len(columns), k=77, a=address(rows), lda=77, b=address(columns),
            ldb=77, c=out.address, ldc=out.stride,
        ))  # fmt: skip
        return out.view.copy()

    whole = multiply(a, b)
    for i in range(7):
        np.testing.assert_array_equal(multiply(a[i : i + 1], b[3:9])[0], whole[i, 3:9])


@pytest.mark.parametrize("order", ["rows", "columns", "neither"])
@pytest.mark.parametrize("n", [1, 15, 16, 40])
def test_packing(isa: str, n: int, order: str) -> None:
    run = kernel(emit_unit("gemm", isa), symbols("gemm", isa)[2])
    for k in (1, 7, 16, 35):
        b = np.random.default_rng(k).standard_normal((k, n), np.float32)
        wide = np.repeat(b, 2, axis=1)
        source = guarded({"rows": b, "columns": b.T.copy(), "neither": wide}[order])
        row, column = {"rows": (n, 1), "columns": (1, k), "neither": (2 * n, 2)}[order]
        out = Output(-(-n // PANEL), k * PANEL)
        run(GemmPackTile(
            k=k, columns=n, source=address(source), row=row, column=column,
            to=out.address, panel=out.stride,
        ))  # fmt: skip
        out.check_canaries()
        np.testing.assert_array_equal(out.view.reshape(-1, k, PANEL), _pack(b))


def test_nan_and_infinity_meet_zero_weights(isa: str) -> None:
    a = np.array([[np.nan, 1, 2], [np.inf, 1, 2], [3, 1, 2]], np.float32)
    b = np.zeros((3, 5), np.float32)
    got = _multiply(isa, unaligned(a), b, None, False, *gemm_tile(isa))
    assert np.isnan(got[:2]).all() and (got[2] == 0).all()


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("gemm_avx512.cpp", emit_unit("gemm", "avx512").text)
