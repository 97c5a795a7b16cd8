"""Products by stored blocks: a dense inner loop over what is not zero."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.conformance import (
    Array,
    Output,
    address,
    close,
    function,
    guarded,
    kernel,
)
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.panels import pack_block_sparse_vnni2
from tracea_graph.ops.bf16 import round_bf16

ROWS = 16


class BlocksTile(ctypes.Structure):
    """``tracea_block_sparse_tile``."""

    _fields_ = [
        ("a", c_void_p), ("a_step", c_int64), ("block", c_int64), ("b", c_void_p),
        ("place", c_void_p), ("first", c_int64), ("count", c_int64),
        ("init", c_void_p), ("init_stride", c_int64), ("c", c_void_p), ("ldc", c_int64),
        ("rows", c_int32), ("last", c_int32),
    ]  # fmt: skip


def multiply(
    isa: str, a: Array, blocks: Array, places: list[int], last: int, init: Array | None, first: int
) -> Array:
    """``[rows, K]`` times one panel, of which only some blocks are given."""
    run = kernel(emit_unit("gemm_block_sparse", isa), symbols("gemm_block_sparse", isa)[0])
    packed = np.zeros((a.shape[1], ROWS), np.float32)
    packed[:, : len(a)] = a.T
    packed, out = guarded(packed), Output(len(a), last)
    stored, at = guarded(blocks), guarded(np.array(places, np.int32) + first)
    run(BlocksTile(
        a=packed.ctypes.data, a_step=ROWS, block=blocks.shape[1], b=stored.ctypes.data,
        place=at.ctypes.data, first=first, count=len(places), init=address(init),
        init_stride=last if init is not None and init.ndim == 2 else 0,
        c=out.address, ldc=out.stride, rows=len(a), last=last,
    ))  # fmt: skip
    out.check_canaries()
    return out.view.copy()


@pytest.mark.parametrize("block", [1, 4, 16, 32, 64])
@pytest.mark.parametrize("last", [1, 7, 8, 16])
def test_equals_reference(isa: str, block: int, last: int) -> None:
    rng = np.random.default_rng([block, last])
    for rows in (1, 2, 3, 5, 8, 11, 15, 16):
        for places in ([], [0], [3], [1, 2, 6], list(range(7))):
            a = rng.standard_normal((rows, 7 * block), np.float32)
            blocks = rng.standard_normal((len(places), block, 16), np.float32)
            whole = np.zeros((7, block, 16))
            whole[places] = blocks
            product = a.astype(np.float64) @ whole.reshape(-1, 16)[:, :last]
            bias = guarded(rng.standard_normal(last, np.float32))
            sums = guarded(rng.standard_normal((rows, last), np.float32))
            for init in (None, bias, sums):
                got = multiply(isa, a, blocks, places, last, init, 70)
                close(got, product + (0 if init is None else init))


def test_result_does_not_depend_on_the_rows_beside_it(isa: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((16, 5 * 16), np.float32)
    blocks = rng.standard_normal((3, 16, 16), np.float32)
    whole = multiply(isa, a, blocks, [0, 2, 4], 16, None, 0)
    for rows in range(1, 16):
        part = multiply(isa, a[:rows], blocks, [0, 2, 4], 16, None, 0)
        np.testing.assert_array_equal(part, whole[:rows])


def test_one_row_is_read_where_it_lies(isa: str) -> None:
    rng = np.random.default_rng(1)
    run = kernel(emit_unit("gemm_block_sparse", isa), symbols("gemm_block_sparse", isa)[0])
    a, blocks = guarded(rng.standard_normal(64, np.float32)), rng.standard_normal((1, 16, 16))
    stored, at, out = guarded(blocks.astype(np.float32)), np.array([2], np.int32), Output(1, 16)
    run(BlocksTile(
        a=a.ctypes.data, a_step=1, block=16, b=stored.ctypes.data, place=at.ctypes.data,
        count=1, c=out.address, ldc=out.stride, rows=1, last=16,
    ))  # fmt: skip
    close(out.view, a[None, 32:48].astype(np.float64) @ stored[0])


@pytest.mark.parametrize("level", host_levels("bf16"))
@pytest.mark.parametrize("block", [4, 16, 64])
def test_pairs_of_bf16(level: str, block: int) -> None:
    rng = np.random.default_rng(block)
    run = kernel(
        emit_unit("gemm_block_sparse_bf16", level), symbols("gemm_block_sparse_bf16", level)[0]
    )
    for rows in (1, 3, 16):
        a = rng.standard_normal((rows, 7 * block), np.float32)
        blocks, places = rng.standard_normal((3, block, 16), np.float32), [1, 2, 6]
        packed = np.zeros((7 * block // 2, ROWS, 2), ml_dtypes.bfloat16)
        packed[:, :rows] = a.reshape(rows, -1, 2).transpose(1, 0, 2)
        packed, out = guarded(packed.view(np.uint32)), Output(rows, 16)
        stored = guarded(pack_block_sparse_vnni2(blocks).view(np.uint32))
        at = guarded(np.array(places, np.int32))
        run(BlocksTile(
            a=packed.ctypes.data, a_step=ROWS, block=block // 2, b=stored.ctypes.data,
            place=at.ctypes.data, count=3, c=out.address, ldc=out.stride, rows=rows, last=16,
        ))  # fmt: skip
        out.check_canaries()
        whole = np.zeros((7, block, 16))
        whole[places] = round_bf16(blocks)
        close(out.view, round_bf16(a).astype(np.float64) @ whole.reshape(-1, 16))


@pytest.mark.parametrize("level", host_levels("bf16"))
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_finite_pairs_are_told_from_others(level: str, odd: float) -> None:
    symbol = symbols("gemm_block_sparse_bf16", level)[1]
    found = function(
        emit_unit("gemm_block_sparse_bf16", level), symbol, c_int32, c_void_p, c_int64
    )
    x = guarded(np.full(130, 3e38, ml_dtypes.bfloat16).view(np.uint32))
    assert found(x.ctypes.data, 65) == 1
    for at in (0, 1, 63, 64, 65 * 2 - 1):
        x.view(ml_dtypes.bfloat16)[at] = odd
        assert found(x.ctypes.data, 65) == 0
        x.view(ml_dtypes.bfloat16)[at] = 0.0


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_finite_numbers_are_told_from_others(isa: str, odd: float) -> None:
    symbol = symbols("gemm_block_sparse", isa)[1]
    found = function(emit_unit("gemm_block_sparse", isa), symbol, c_int32, c_void_p, c_int64)
    for count in (0, 1, 15, 64, 65, 200):
        x = guarded(np.full(count, np.finfo(np.float32).max, np.float32))
        assert found(x.ctypes.data, count) == 1
        for at in range(0, count, 13):
            x[at] = odd
            assert found(x.ctypes.data, count) == 0
            x[at] = 0.0
