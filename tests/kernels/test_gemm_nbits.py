"""Products with codes equal those in float64; panels hold what was packed."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p

import numpy as np
import pytest

from tests.kernels.conformance import PANEL, Array, Output, close, function, guarded, kernel
from tests.runtime.nbits_cases import drawn_matrix
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.nbits_panels import NBitsPanels, pack_codes, pack_nbits_scales
from tracea_graph.kernels.cpu.variants import gemm_nbits_tile
from tracea_graph.ops.block_quantized import ZEROS, round_blocks

LEVELS = host_levels("int8")


class NBitsTile(ctypes.Structure):
    """``tracea_nbits_tile``."""

    _fields_ = [
        ("blocks", c_int64), ("block", c_int64), ("bits", c_int32), ("terms", c_int32),
        ("a", c_void_p), ("lda", c_int64), ("a_scale", c_void_p), ("a_sum", c_void_p),
        ("b", c_void_p), ("b_panel", c_int64), ("b_scale", c_void_p), ("b_scale_panel", c_int64),
        ("scale_rows", c_int32), ("b_zero", c_void_p), ("zero", c_int32), ("init", c_void_p),
        ("c", c_void_p), ("ldc", c_int64), ("init_panel", c_int64), ("c_panel", c_int64),
        ("mr", c_int32), ("nv", c_int32), ("last", c_int32),
    ]  # fmt: skip


class UnpackTile(ctypes.Structure):
    """``tracea_nbits_unpack_tile``."""

    _fields_ = [
        ("k0", c_int64), ("k", c_int64), ("blocks", c_int64), ("block", c_int64),
        ("panels", c_int64), ("bits", c_int32), ("scale_rows", c_int32), ("zero", c_int32),
        ("b", c_void_p), ("b_panel", c_int64), ("b_scale", c_void_p), ("b_zero", c_void_p),
        ("to", c_void_p), ("to_panel", c_int64),
    ]  # fmt: skip


class RoundTile(ctypes.Structure):
    """``tracea_nbits_round_tile``."""

    _fields_ = [
        ("k", c_int64), ("block", c_int64), ("x", c_void_p), ("terms", c_int32),
        ("y", c_void_p), ("y_term", c_int64), ("scale", c_void_p), ("sum", c_void_p),
    ]  # fmt: skip


def rounded(level: str, x: Array, block: int, terms: int) -> tuple[Array, Array, Array, bool]:
    """One row as the kernel rounds it: bytes, scales and sums by term; whether it is finite."""
    name = symbols("gemm_nbits", level)[2]
    run = function(emit_unit("gemm_nbits", level), name, c_int32, c_void_p)
    blocks, row = -(-len(x) // block), guarded(x)
    y, scale = np.full((terms, blocks * block), 99, np.int8), np.zeros((terms, blocks), np.float32)
    total = np.zeros((terms, blocks), np.int32)
    tile = RoundTile(
        len(x), block, row.ctypes.data, terms, y.ctypes.data, y.shape[1], scale.ctypes.data,
        total.ctypes.data,
    )  # fmt: skip
    return y, scale, total, bool(run(ctypes.byref(tile)))


def multiply(level: str, x: Array, stored: tuple[Array, Array], layout: NBitsPanels,
             k: int, n: int, terms: int) -> Array:  # fmt: skip
    """``x · W`` by the largest tiles."""
    run = kernel(emit_unit("gemm_nbits", level), symbols("gemm_nbits", level)[0])
    mr, nv = gemm_nbits_tile(level)
    mr, nv = max(1, mr // terms), 2 * nv if len(x) == 1 else nv
    parts = [rounded(level, row, layout.block, terms)[:3] for row in x]
    a, scale, total = (guarded(np.stack(p)) for p in zip(*parts, strict=True))
    codes, scales = map(guarded, stored)
    first, blocks, out = layout.zero_bytes(k), layout.blocks(k), Output(len(x), n)
    for row in range(0, len(x), mr):
        for p in range(0, len(codes), nv):
            count = min(nv, len(codes) - p)
            run(NBitsTile(
                blocks=blocks, block=layout.block, bits=layout.bits, terms=terms,
                a=a[row:].ctypes.data, lda=a.shape[2], a_scale=scale[row:].ctypes.data,
                a_sum=total[row:].ctypes.data, b=codes[p:].ctypes.data + first,
                b_panel=codes.shape[1], b_scale=scales[p:].ctypes.data,
                b_scale_panel=scales[0].size, scale_rows=layout.rows, c_panel=PANEL,
                b_zero=codes[p:].ctypes.data if first else None,
                zero=layout.middle if layout.zeros == "middle" else 0,
                c=out.address + 4 * (row * out.stride + p * PANEL), ldc=out.stride,
                mr=min(mr, len(x) - row), nv=count,
                last=min(n - p * PANEL, count * PANEL) - PANEL * (count - 1),
            ))  # fmt: skip
    out.check_canaries()
    return out.view.copy()


def wide(stored: tuple[Array, Array]) -> tuple[Array, Array]:
    return stored[0], stored[1].astype(np.float64)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_equals_float64(level: str, bits: int) -> None:
    for block, zeros in ((16, "middle"), (32, "integer"), (96, "float")):
        for n in (1, 33, 97):
            k = 5 * block - 9
            for int8 in (False, True):
                layout = NBitsPanels(bits, block, zeros, int8)
                stored = drawn_matrix(layout, k, n)
                for m in (1, 2, 7):
                    x = np.random.default_rng(m).standard_normal((m, k)).astype(np.float32)
                    got = multiply(level, x, stored, layout, k, n, 1 if int8 else 3)
                    want = layout.product(x.astype(np.float64), wide(stored), k, n)
                    terms = abs(x) @ abs(layout.matrix(wide(stored), k, n))
                    assert (abs(got - want) <= 1e-6 * terms).all()


@pytest.mark.parametrize("level", LEVELS)
def test_the_largest_terms_do_not_saturate(level: str) -> None:
    for bits in (2, 4, 8):
        layout = NBitsPanels(bits, 4096, "middle", True)
        codes = np.full((4096, 17), 2**bits - 1, np.uint8)
        scales = np.ones((1, 17), np.float32)
        stored = pack_codes(layout, codes, None, 4096), pack_nbits_scales(layout, scales, scales)
        for sign in (-1, 1):
            x = np.full((3, 4096), sign * 127, np.float32)
            got = multiply(level, x, stored, layout, 4096, 17, 1)
            close(got, layout.product(x.astype(np.float64), wide(stored), 4096, 17), 1e-7)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ZEROS)
def test_unpacks_exactly(level: str, bits: int, zeros: str) -> None:
    run = kernel(emit_unit("gemm_nbits", level), symbols("gemm_nbits", level)[1])
    layout, k, n = NBitsPanels(bits, 32, zeros), 150, 40
    stored = drawn_matrix(layout, k, n)
    codes, scales = map(guarded, stored)
    for k0, steps in ((0, 150), (48, 64), (112, 38)):
        out, first = Output(3 * steps, PANEL, gap=0), layout.zero_bytes(k)
        run(UnpackTile(
            k0, steps, layout.blocks(k), 32, 3, bits, layout.rows,
            layout.middle if zeros == "middle" else 0, codes.ctypes.data + first, codes.shape[1],
            scales.ctypes.data, codes.ctypes.data if first else None, out.address, steps * PANEL,
        ))  # fmt: skip
        out.check_canaries()
        made = out.view.reshape(3, steps, PANEL).transpose(1, 0, 2).reshape(steps, -1)[:, :n]
        np.testing.assert_array_equal(made, layout.matrix(stored, k, n)[k0 : k0 + steps])


@pytest.mark.parametrize("level", LEVELS)
def test_rows_are_rounded_by_blocks(level: str) -> None:
    x = np.random.default_rng(1).standard_normal(150).astype(np.float32)
    x[32:64], x[64:96] = 0, np.float32(1e-38)
    numbers, scale = round_blocks(x, 32)
    y, factors, total, finite = rounded(level, x, 32, 1)
    assert finite
    np.testing.assert_array_equal(y[0], numbers.ravel().astype(np.int8))
    np.testing.assert_array_equal(factors[0], scale[:, 0])
    np.testing.assert_array_equal(total[0], numbers.sum(1))
    y, factors, total, finite = rounded(level, x, 32, 3)
    assert finite
    np.testing.assert_array_equal(total, y.reshape(3, 5, 32).sum(2, dtype=np.int32))
    again = (y.reshape(3, 5, 32).astype(np.float64) * factors[..., None]).sum(0).ravel()[:150]
    assert np.abs(again - x).max() <= np.abs(x).max() * 2.0**-22


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_told(level: str, value: float) -> None:
    x = np.ones(40, np.float32)
    x[33] = value
    for terms in (1, 3):
        assert not rounded(level, x, 32, terms)[3]
    assert np.isnan(rounded(level, x, 32, 1)[1][0, 1])


@pytest.mark.parametrize("zeros", ZEROS)
def test_panels_hold_the_matrix(zeros: str) -> None:
    rng = np.random.default_rng(4)
    for bits in (2, 4, 8):
        layout = NBitsPanels(bits, 48, zeros)
        codes = rng.integers(0, 2**bits, (144, 37), np.uint8)
        own = rng.integers(0, 2**bits, (3, 37), np.uint8)
        scales = rng.random((3, 37), np.float32)
        stored = (
            pack_codes(layout, codes, own if zeros == "integer" else None, 130),
            pack_nbits_scales(layout, scales, own.astype(np.float32)),
        )
        assert stored[0].shape == layout.shape(130, 37)
        assert stored[1].shape == layout.scales_shape(130, 37)
        got = layout.parts(stored, 130, 37)
        np.testing.assert_array_equal(got[0], codes)
        np.testing.assert_array_equal(got[1], scales)
        np.testing.assert_array_equal(got[2], layout.middle if zeros == "middle" else own)
