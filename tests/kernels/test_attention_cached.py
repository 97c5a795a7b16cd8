"""Attention over keys and values in fp16, bf16 and int8, which are converted as they are read."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.attention_tile import attend, attention_inputs, attention_reference
from tests.kernels.conformance import Array, Output, address, close, guarded, kernel
from tests.kernels.test_gemm_bf16 import RoundTile
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols

TYPES: dict[str, npt.DTypeLike] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8}
"""Types of caches by name."""
every_type = pytest.mark.parametrize("stored", TYPES)


def _kernel(stored: str) -> str:
    return f"attention_f32_by_{stored}"


def _cached(
    stored: str, queries: int, keys: int, head: int, head_v: int
) -> tuple[Array, Array, Array]:
    """Queries, keys and values; integers are of the size of caches with fitting scales."""
    q, k, v = attention_inputs(queries, keys, head, head_v)
    if stored == "i8":
        return q / 32, *(np.clip(np.rint(x * 32), -128, 127).astype(np.int8) for x in (k, v))
    return q, k.astype(TYPES[stored]), v.astype(TYPES[stored])


def _wide(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return q, k.astype(np.float32), v.astype(np.float32)


@every_type
@pytest.mark.parametrize("direct", [0, 1])
@pytest.mark.parametrize("keys", [1, 15, 16, 17, 255, 256, 257, 300])
def test_equals_reference(isa: str, keys: int, direct: int, stored: str) -> None:
    for queries in (1, 2, 3, 4, 7, 16) if direct else (1, 5, 24, 53):
        given = _cached(stored, queries, keys, 32, 64)
        got = attend(isa, *given, of=_kernel(stored), direct=direct)
        close(got, attention_reference(*_wide(*given)))


@every_type
@pytest.mark.parametrize("direct", [0, 1])
@pytest.mark.parametrize("head", [1, 3, 15, 16, 17, 64, 80, 97, 256])
def test_head_sizes(isa: str, head: int, direct: int, stored: str) -> None:
    for head_v in {head, 1, 16, 47, 128, 144}:
        given = _cached(stored, 4, 37, head, head_v)
        got = attend(isa, *given, of=_kernel(stored), direct=direct)
        close(got, attention_reference(*_wide(*given)))


@every_type
@pytest.mark.parametrize("queries,direct", [(30, 0), (4, 1)])
def test_equals_float32_on_converted_caches(
    isa: str, queries: int, direct: int, stored: str
) -> None:
    given = _cached(stored, queries, 300, 40, 48)
    mask = np.random.default_rng(5).random((queries, 300)) < 0.7
    mask[1] = False
    got = attend(isa, *given, mask, of=_kernel(stored), direct=direct, softcap=2.0, fill=-np.inf)
    want = attend(isa, *_wide(*given), mask, direct=direct, softcap=2.0, fill=-np.inf)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("direct", [0, 1])
def test_numbers_at_the_ends_of_fp16(isa: str, direct: int) -> None:
    q, k, v = _cached("f16", 3, 40, 16, 16)
    k[:, 0] = np.float16(6e-8)  # the least one there is
    k[:, 1] = np.float16(5e-5)
    v[:, 0], v[:, 1], v[:, 2] = np.float16(65504), np.float16(-6e-8), np.float16(6e-5)
    q[:, :2] = 1e4
    got, want = (
        attend(isa, q, k, v, of=_kernel("f16"), direct=direct),
        attention_reference(*_wide(q, k, v)),
    )
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * 65504e-9)
    v[7, 5], v[8, 6] = np.inf, np.nan
    got = attend(isa, q, k, v, of=_kernel("f16"), direct=direct)
    assert np.isposinf(got[:, 5]).all() and np.isnan(got[:, 6]).all()
    close(got[:, 7:], want[:, 7:])


def _rounded(isa: str, stored: str, x: Array, cols: int) -> Array:
    """The numbers that fill whole rows of ``cols``, rounded by the kernel for new rows."""
    rows = x.size // cols
    part = guarded(x[: rows * cols].reshape(rows, cols))
    out = Output(rows, cols, dtype=np.int8 if stored == "i8" else np.float16)
    tile = RoundTile(rows, cols, address(part), cols, out.address, out.stride)
    name = _kernel(stored)
    kernel(emit_unit(name, isa), symbols(name, isa)[3])(tile)
    out.check_canaries()
    return np.asarray(out.view).copy().view(TYPES[stored]).ravel()


@pytest.mark.parametrize("stored", ["f16", "bf16"])
@pytest.mark.parametrize("cols", [1, 7, 16, 37])
def test_rounding_equals_numpys(isa: str, stored: str, cols: int) -> None:
    bits = np.arange(0, 1 << 16, dtype=np.uint32)
    halves = bits.astype(np.uint16).view(TYPES[stored]).astype(np.float32)
    with np.errstate(all="ignore"):
        near = [np.nextafter(halves, np.float32(s * np.inf), dtype=np.float32) for s in (-1, 1)]
        middles = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)
        x = np.concatenate([halves, *near, middles, (bits << 16).view(np.float32)])
        want = x.astype(TYPES[stored])
    got = _rounded(isa, stored, x, cols)
    want = want[: got.size]
    same = got.view(np.uint16) == want.view(np.uint16)
    both = np.isnan(want.astype(np.float32)) & np.isnan(got.astype(np.float32))
    assert (same | both).all()


@pytest.mark.parametrize("cols", [1, 7, 16, 37])
def test_integers_are_rounded_half_to_even_and_limited(isa: str, cols: int) -> None:
    near = np.arange(-140, 140, 0.25, dtype=np.float32)
    beside = [np.nextafter(near, np.float32(s * np.inf), dtype=np.float32) for s in (-1, 1)]
    far = np.array([1e9, -1e9, 3e38, -3e38, np.inf, -np.inf, 1e-45, -0.0] * 5, np.float32)
    x = np.concatenate([near, *beside, far])
    got = _rounded(isa, "i8", x, cols)
    np.testing.assert_array_equal(got, np.clip(np.rint(x), -128, 127).astype(np.int8)[: got.size])
