"""Products in fp16 at every level of Arm, against fp64; ``tests/deploy`` runs them under qemu.

Sums in fp16 are allowed the error of a product whose operands are rounded to bf16.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.conformance import Array, by_tiles, close, guarded, kernel
from tests.kernels.test_gemm_bf16 import RoundTile
from tracea_graph.hardware import profile_cpu
from tracea_graph.kernels.cpu.emitter import emit_unit, symbols
from tracea_graph.kernels.cpu.fp16_layouts import pack_fp16, round_fp16
from tracea_graph.kernels.cpu.isa_levels import ARM, family_of, levels_of
from tracea_graph.kernels.cpu.phases.lower_precision import ROUNDING
from tracea_graph.kernels.cpu.variants import gemm_tile

HERE = profile_cpu()
LIMIT = 2 * ROUNDING
pytestmark = pytest.mark.skipif(family_of(HERE) is not ARM, reason="only Arm has these kernels")
LEVELS = levels_of(HERE, "fp16") if family_of(HERE) is ARM else ("neonfp16",)


def rounded(level: str, x: Array) -> Array:
    """What the kernel makes of rows."""
    run = kernel(emit_unit("gemm_f16", level), symbols("gemm_f16", level)[1])
    rows, cols = x.shape
    even = cols + cols % 2
    y, source = np.full((rows, even + 3), 0x1234, np.uint16), guarded(x)
    run(RoundTile(rows, cols, source.ctypes.data, cols, y.ctypes.data, even + 3))
    assert (y[:, cols:even] == 0).all() and (y[:, even:] == 0x1234).all()
    return y[:, :even].copy()


def multiply(level: str, a: Array, b: Array, bias: Array | None, mr: int) -> Array:
    """The whole product by tiles of at most ``mr`` rows."""
    run = kernel(emit_unit("gemm_f16", level), symbols("gemm_f16", level)[0])
    twos, weights = guarded(rounded(level, a)).view(np.uint32), guarded(pack_fp16(b))
    shape = (len(a), b.shape[1], twos.shape[1])
    return by_tiles(run, twos, weights, shape, (mr, gemm_tile(level)[1]), bias)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [1, 16, 17, 49])
def test_equals_reference(level: str, n: int) -> None:
    mr, tolerance = gemm_tile(level)[0], LIMIT if level == "neonfp16" else 1e-5
    rng = np.random.default_rng(n)
    for m in (1, mr - 1, mr, 2 * mr + 1):
        for k in (1, 2, 7, 8, 63, 64, 65, 130, 777):
            a = rng.standard_normal((m, k), np.float32)
            b = rng.standard_normal((k, n), np.float32)
            bias = guarded(rng.standard_normal(n, np.float32))
            want = round_fp16(a.astype(np.float64)) @ round_fp16(b.astype(np.float64))
            close(multiply(level, a, b, bias, mr), want + bias, tolerance)
            close(multiply(level, a, b, None, mr), want, tolerance)


@pytest.mark.parametrize("level", LEVELS)
def test_the_result_does_not_depend_on_the_tile(level: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((9, 601), np.float32), rng.standard_normal((601, 40), np.float32)
    whole = multiply(level, a, b, None, gemm_tile(level)[0])
    np.testing.assert_array_equal(multiply(level, a, b, None, 1), whole)


@pytest.mark.parametrize("level", LEVELS)
def test_long_sums_of_one_sign_are_as_exact_as_rounded_operands(level: str) -> None:
    """In fp16 alone such a sum of 6400 terms would stop growing."""
    rng = np.random.default_rng(2)
    a, b = rng.random((5, 6400), np.float32), rng.random((6400, 17), np.float32) / 64
    mr = gemm_tile(level)[0]
    close(multiply(level, a, b, None, mr), a.astype(np.float64) @ b, LIMIT)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cols", [1, 2, 15, 16, 33])
def test_rows_are_rounded_to_nearest(level: str, cols: int) -> None:
    x = np.random.default_rng(cols).standard_normal((6, cols)).astype(np.float32)
    x[1], x[2], x[3], x[4, -1] = 1e5, 1e-7, 65519.0, np.nan
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    np.testing.assert_array_equal(rounded(level, x)[:, :cols].view(np.float16), want)
