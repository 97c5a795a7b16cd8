"""Products by the stored numbers of a panel: the others are zero, but multiplied."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.conformance import Array, Output, address, close, function, guarded
from tracea_graph.config import TOLERANCE
from tracea_graph.kernels.cpu.bitmap_sparse_format import pack_bitmap
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols

KERNELS = {"gemm_bitmap": np.float32, "gemm_bitmap_bf16": ml_dtypes.bfloat16}


class MaskedTile(ctypes.Structure):
    """``tracea_bitmap_tile``."""

    _fields_ = [
        ("k", c_int64), ("a", c_void_p), ("lda", c_int64), ("a_step", c_int64),
        ("mask", c_void_p), ("b", c_void_p), ("end", c_void_p), ("bias", c_void_p),
        ("c", c_void_p), ("ldc", c_int64), ("rows", c_int32), ("last", c_int32),
    ]  # fmt: skip


def multiply(
    name: str, isa: str, a: Array, panel: Array, last: int = 16, bias: Array | None = None,
    cut: int = 0,
) -> tuple[Array, int | None]:  # fmt: skip
    """``[rows, K]`` times ``panel [K, 16]``, of which ``cut`` numbers may not be read; and how
    many numbers the kernel took."""
    run = function(emit_unit(name, isa), symbols(name, isa)[0], c_void_p, c_void_p)
    numbers, words = pack_bitmap(panel[None])
    size = numbers.dtype.itemsize
    # the last number lies before a page that cannot be read
    stored = guarded(numbers.view(f"u{size}"))
    mask, left, out = guarded(words[0, 1:]), guarded(a), Output(len(a), last)
    tile = MaskedTile(
        k=a.shape[1], a=left.ctypes.data, lda=a.shape[1], a_step=1, mask=mask.ctypes.data,
        b=stored.ctypes.data, end=stored.ctypes.data + size * (len(numbers) - cut),
        bias=address(bias), c=out.address, ldc=out.stride, rows=len(a), last=last,
    )  # fmt: skip
    end = run(ctypes.addressof(tile))
    out.check_canaries()
    return out.view.copy(), None if end is None else (end - stored.ctypes.data) // size


def bitmap(k: int, density: float, kind: type = np.float32) -> Array:
    chance = np.random.default_rng([k, int(100 * density)])
    panel = chance.standard_normal((k, 16)) * (chance.random((k, 16)) < density)
    return panel.astype(kind)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("density", [0.0, 0.05, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("last", [1, 7, 8, 16])
def test_equals_reference(isa: str, name: str, density: float, last: int) -> None:
    for k in (1, 2, 3, 8, 31, 64, 257):
        panel = bitmap(k, density, KERNELS[name])
        for rows in (1, 2, 3, 4, 7):
            a = np.random.default_rng(rows).standard_normal((rows, k), np.float32)
            product = a.astype(np.float64) @ panel[:, :last].astype(np.float64)
            bias = guarded(np.random.default_rng(k).standard_normal(last, np.float32))
            for start in (None, bias):
                got, taken = multiply(name, isa, a, panel, last, start)
                want = product + (0 if start is None else start)
                size = np.abs(a) @ np.abs(panel[:, :last].astype(np.float32)) + 1
                assert (np.abs(got - want) <= TOLERANCE.kernel_f32 * size).all()
                assert taken == np.count_nonzero(panel)


@pytest.mark.parametrize("name", KERNELS)
def test_a_row_does_not_depend_on_those_beside_it(isa: str, name: str) -> None:
    a = np.random.default_rng(0).standard_normal((7, 130), np.float32)
    panel = bitmap(130, 0.4, KERNELS[name])
    whole, _ = multiply(name, isa, a, panel)
    for rows in range(1, 7):
        np.testing.assert_array_equal(multiply(name, isa, a[:rows], panel)[0], whole[:rows])


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_zeros_meet_what_is_not_finite(isa: str, odd: float) -> None:
    a = np.random.default_rng(1).standard_normal((2, 40), np.float32)
    a[1, 17] = odd
    panel = bitmap(40, 0.3)
    with np.errstate(invalid="ignore"):
        product = a.astype(np.float64) @ panel
    got, _ = multiply("gemm_bitmap", isa, a, panel)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(product))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(product))
    close(got[:1], product[:1])


@pytest.mark.parametrize("name", KERNELS)
def test_numbers_behind_the_end_are_not_read(isa: str, name: str) -> None:
    a = np.ones((1, 64), np.float32)
    for cut in (1, 20, 300):
        _, taken = multiply(name, isa, a, bitmap(64, 0.5, KERNELS[name]), cut=cut)
        assert taken is None
