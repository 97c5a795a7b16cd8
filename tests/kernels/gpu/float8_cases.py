"""Matmuls of 8-bit floats, and numbers that are stored as such."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.gpu.cases import Case, Expected, Made, Maker
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.program import View
from tracea_graph.ops.chain import FLOAT8, Chain, Step

__all__ = ["CASES"]

_SCALED = Chain(
    ("full", "row", "row", "full"),
    (Step("mul", (0, 1)), Step("add", (4, 2)), Step("gelu", (5,)), Step("add", (6, 3))), (7,),
    (DType.F32, DType.F32, DType.F32, DType.F16), (DType.F16,),
)  # fmt: skip
"""What a layer does with its sums: scales of columns, a bias, an activation and a residual."""
_PLAIN = Chain(("full",), (), (0,))
_STORED = Chain(("full",), (Step("mul", (0, 16.0)),), (1,), (DType.F16,), (FLOAT8,))
_KEPT = 2.0**-13
"""What tensor cores may lose of a sum, as a share of the sum of magnitudes."""
_TILES = ("128x128x64x4", "64x64x128x3", "32x64x128x4")


def _codes(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers of every magnitude down to the smallest, and the largest."""
    made = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 6, shape)
    made.reshape(-1)[:1], made.reshape(-1)[1:2] = 448, -448
    return made.astype(NUMPY[FLOAT8])


def gemm(m: int, n: int, k: int, chain: Chain = _SCALED, late: int = 0) -> Maker:
    """Rows of both operands 16 bytes apart, or not if they are ``late``."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, w = _codes(rng, (m, k)), _codes(rng, (n, k))
        rows = [
            rng.uniform(1e-3, 2e-3, n).astype(np.float32),
            np.linspace(-3, 3, n, dtype=np.float32),
        ]
        held = rng.standard_normal((m, n)).astype(np.float16)
        wide = [memory.put(r) for r in rows]
        views = [View(v.buffer, (m, n), (0, 1), v.offset) for v in wide] + [memory.put(held)]
        plain = chain is _PLAIN
        y = memory.empty((m, n), np.float32 if plain else np.float16)
        pad = late or -k % 16
        call = CALLS.make(
            "float8_gemm", FLOAT8.short, x=memory.put(x, late, pad), w=memory.put(w, late, pad),
            inputs=[] if plain else views, y=[y], chain=chain,
        )  # fmt: skip

        def expected() -> list[Expected]:
            left, right = x.astype(np.float64), w.astype(np.float64)
            more = [] if plain else [*rows, held.astype(np.float64)]
            (value,) = chain.reference([left @ right.T, *more])
            lost = np.abs(left) @ np.abs(right).T * _KEPT
            if not plain:
                lost = lost * rows[0]
            largest = float(np.abs(value).max())
            return [Expected(y, value, float(lost.max()) / largest + 2.0**-10)]

        return call, expected

    return make


def stored(count: int) -> Maker:
    """Numbers on both sides of every rounding, beyond the range, and NaN."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = (rng.standard_normal(count) * 2.0 ** rng.integers(-16, 8, count)).astype(np.float16)
        steps = np.arange(127, dtype=np.uint8).view(NUMPY[FLOAT8]).astype(np.float32) / 16
        between = (steps[1:] + steps[:-1]) / 2
        x[: between.size] = between
        x[-3:] = np.nan, np.inf, -65504
        y = memory.empty((count,), NUMPY[FLOAT8])
        call = CALLS.listed("elementwise", [memory.put(x), y], chain=_STORED)
        value = np.clip(x.astype(np.float32) * 16, -448, 448).astype(NUMPY[FLOAT8])
        return call, lambda: [Expected(y, value.astype(np.float64), 1e-9)]

    return make


def _cases() -> Iterator[Case]:
    yield Case("float8 70 136 200", gemm(70, 136, 200), _TILES, ("float8",))
    yield Case("float8 plain 13 40 33", gemm(13, 40, 33, _PLAIN, 3), _TILES[2:], ("float8",))
    yield Case("float8 1 1 1", gemm(1, 1, 1, _PLAIN, 1), _TILES[2:], ("float8",))
    yield Case("float8 wgmma 300 264 400", gemm(300, 264, 400),
               ("128x128x128x6x1", "128x256x128x4x1w"), ("wgmma",))  # fmt: skip
    yield Case("float8 wgmma plain 140 72 144", gemm(140, 72, 144, _PLAIN),
               ("128x256x128x4x1", "128x64x128x8x1"), ("wgmma",))  # fmt: skip
    yield Case("float8 stored 1003", stored(1003), ("256x16", "256x8"))


CASES = tuple(_cases())
