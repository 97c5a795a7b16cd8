"""Attention over keys and values in fp16, which are converted as they are read."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.attention_tile import attend, attention_inputs, attention_reference
from tests.kernels.conformance import Array, Output, address, close, guarded, kernel
from tests.kernels.test_gemm_bf16 import RoundTile
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols

_KERNEL = "attention_f32_by_f16"


def _cached(queries: int, keys: int, head: int, head_v: int) -> tuple[Array, Array, Array]:
    q, k, v = attention_inputs(queries, keys, head, head_v)
    return q, k.astype(np.float16), v.astype(np.float16)


def _wide(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return q, k.astype(np.float32), v.astype(np.float32)


@pytest.mark.parametrize("direct", [0, 1])
@pytest.mark.parametrize("keys", [1, 15, 16, 17, 255, 256, 257, 300])
def test_equals_reference(isa: str, keys: int, direct: int) -> None:
    for queries in (1, 2, 3, 4, 7, 16) if direct else (1, 5, 24, 53):
        given = _cached(queries, keys, 32, 64)
        close(attend(isa, *given, of=_KERNEL, direct=direct), attention_reference(*_wide(*given)))


@pytest.mark.parametrize("direct", [0, 1])
@pytest.mark.parametrize("head", [1, 3, 15, 16, 17, 64, 80, 97, 256])
def test_head_sizes(isa: str, head: int, direct: int) -> None:
    for head_v in {head, 1, 16, 47, 128, 144}:
        given = _cached(4, 37, head, head_v)
        close(attend(isa, *given, of=_KERNEL, direct=direct), attention_reference(*_wide(*given)))


@pytest.mark.parametrize("queries,direct", [(30, 0), (4, 1)])
def test_equals_float32_on_converted_caches(isa: str, queries: int, direct: int) -> None:
    given = _cached(queries, 300, 40, 48)
    mask = np.random.default_rng(5).random((queries, 300)) < 0.7
    mask[1] = False
    got = attend(isa, *given, mask, of=_KERNEL, direct=direct, softcap=2.0, fill=-np.inf)
    want = attend(isa, *_wide(*given), mask, direct=direct, softcap=2.0, fill=-np.inf)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("direct", [0, 1])
def test_numbers_at_the_ends_of_fp16(isa: str, direct: int) -> None:
    q, k, v = _cached(3, 40, 16, 16)
    k[:, 0] = np.float16(6e-8)  # the least one there is
    k[:, 1] = np.float16(5e-5)
    v[:, 0], v[:, 1], v[:, 2] = np.float16(65504), np.float16(-6e-8), np.float16(6e-5)
    q[:, :2] = 1e4
    got, want = (
        attend(isa, q, k, v, of=_KERNEL, direct=direct),
        attention_reference(*_wide(q, k, v)),
    )
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * 65504e-9)
    v[7, 5], v[8, 6] = np.inf, np.nan
    got = attend(isa, q, k, v, of=_KERNEL, direct=direct)
    assert np.isposinf(got[:, 5]).all() and np.isnan(got[:, 6]).all()
    close(got[:, 7:], want[:, 7:])


def test_rounding_equals_numpys(isa: str) -> None:
    bits = np.arange(0, 1 << 16, dtype=np.uint32)
    halves = bits.astype(np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        near = [np.nextafter(halves, np.float32(s * np.inf), dtype=np.float32) for s in (-1, 1)]
        middles = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)
        x = np.concatenate([halves, *near, middles, (bits << 16).view(np.float32)])
        expected = x.astype(np.float16)
    for cols in (1, 7, 16, 37):
        rows = x.size // cols
        part = guarded(x[: rows * cols].reshape(rows, cols))
        out = Output(rows, cols, dtype=np.float16)
        tile = RoundTile(rows, cols, address(part), cols, out.address, out.stride)
        kernel(emit_unit(_KERNEL, isa), symbols(_KERNEL, isa)[3])(tile)
        out.check_canaries()
        want = expected[: rows * cols].reshape(rows, cols)
        same = out.view.view(np.uint16) == want.view(np.uint16)
        assert (same | (np.isnan(want) & np.isnan(out.view))).all()
