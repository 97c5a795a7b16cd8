"""Matmuls of 8-bit floats, and numbers that are stored as such."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.kernels.gpu.cases import (
    HALF_STEP,
    TOLERANCE,
    Case,
    Expected,
    Made,
    Maker,
    attention,
    norm,
)
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.program import View
from tracea_graph.ops.chain import FLOAT8, FLOATS8, WIDE_FLOAT8, Chain, Step

__all__ = ["CASES"]

_SCALED = Chain(
    ("full", "row", "row", "full"),
    (Step("mul", (0, 1)), Step("add", (4, 2)), Step("gelu", (5,)), Step("add", (6, 3))), (7,),
    (DType.F32, DType.F32, DType.F32, DType.F16), (DType.F16,),
)  # fmt: skip
"""What a layer does with its sums: scales of columns, a bias, an activation and a residual."""
_SMALL = Chain(
    ("full", "row", "row"),
    (Step("mul", (0, 1)), Step("add", (3, 2)), Step("gelu", (4,)), Step("mul", (5, 2.0**-4))),
    (6,),
    (), (FLOAT8,),
)  # fmt: skip
"""The same without a residual; what reads it multiplies 8-bit floats."""
_STEPS = {
    DType.U8: {"step": 0.02, "zero": 131.0, "low": 0.0, "high": 255.0},
    DType.I8: {"step": 0.03, "zero": 0.0, "low": -127.0, "high": 127.0},
}
"""How norms round to 8-bit integers."""
_PLAIN = Chain(("full",), (), (0,))
_STORED = Chain(("full",), (Step("mul", (0, 16.0)),), (1,), (DType.F16,), (FLOAT8,))
_KEPT = 2.0**-13
"""What tensor cores may lose of a sum, as a share of the sum of magnitudes."""
_TILES = ("128x128x64x4", "64x64x128x3", "32x64x128x4")


def _codes(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType = FLOAT8) -> Array:
    """Numbers of every magnitude down to the smallest, and the largest."""
    made = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 6, shape)
    made.reshape(-1)[:1], made.reshape(-1)[1:2] = 448, -448
    return made.astype(NUMPY[dtype])


def gemm(
    m: int, n: int, k: int, chain: Chain = _SCALED, late: int = 0, promoted: bool = False,
    types: tuple[DType, DType] = (FLOAT8, FLOAT8),
) -> Maker:  # fmt: skip
    """Rows of both operands 16 bytes apart, or not if they are ``late``."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, w = (_codes(rng, (r, k), t) for r, t in zip((m, n), types, strict=True))
        rows = [
            rng.uniform(1e-3, 2e-3, n).astype(np.float32),
            np.linspace(-3, 3, n, dtype=np.float32),
        ]
        held = rng.standard_normal((m, n)).astype(np.float16)
        wide = [memory.put(r) for r in rows]
        views = [View(v.buffer, (m, n), (0, 1), v.offset) for v in wide] + [memory.put(held)]
        plain, small = chain is _PLAIN, chain is _SMALL
        views = views[: len(chain.operands) - 1]
        y = memory.empty((m, n), NUMPY[chain.result_types[0]])
        pad = late or -k % 16
        call = CALLS.make(
            "float8_gemm", types[0].short, x=memory.put(x, late, pad), w=memory.put(w, late, pad),
            w_type=types[1].short,
            inputs=views, y=[y], chain=chain, promoted=promoted,
        )  # fmt: skip

        def expected() -> list[Expected]:
            left, right = x.astype(np.float64), w.astype(np.float64)
            more = [*rows, held.astype(np.float64)][: len(views)]
            exact = replace(chain, stores=()) if small else chain
            (value,) = exact.reference([left @ right.T, *more])
            lost = np.abs(left) @ np.abs(right).T * _KEPT
            if not plain:
                lost = lost * rows[0]
            largest = float(np.abs(value).max())
            share = float(lost.max()) / largest + 2.0**-10
            return [Expected(y, np.clip(value, -448, 448) if small else value,
                             share + HALF_STEP * small)]  # fmt: skip

        return call, expected

    return make


def stored(count: int, dtype: DType = FLOAT8) -> Maker:
    """Numbers on both sides of every rounding, beyond the range, and NaN."""
    chain, codes, most = (
        (_STORED, 127, 448) if dtype is FLOAT8 else (replace(_STORED, stores=(dtype,)), 124, 57344)
    )

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = (rng.standard_normal(count) * 2.0 ** rng.integers(-16, 8, count)).astype(np.float16)
        steps = np.arange(codes, dtype=np.uint8).view(NUMPY[dtype]).astype(np.float32) / 16
        between = (steps[1:] + steps[:-1]) / 2
        x[: between.size] = between
        x[-3:] = np.nan, np.inf, -65504
        y = memory.empty((count,), NUMPY[dtype])
        call = CALLS.listed("elementwise", [memory.put(x), y], chain=chain)
        value = np.clip(x.astype(np.float32) * 16, -most, most).astype(NUMPY[dtype])
        return call, lambda: [Expected(y, value.astype(np.float64), 1e-9)]

    return make


def loaded(dtype: DType) -> Maker:
    """Every code, read as a number."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = np.arange(256, dtype=np.uint8).view(NUMPY[dtype])
        y = memory.empty((256,), np.float32)
        chain = Chain(("full",), (Step("mul", (0, 3.0)),), (1,), (dtype,))
        call = CALLS.listed("elementwise", [memory.put(x), y], chain=chain)
        return call, lambda: [Expected(y, x.astype(np.float64) * 3, 1e-9)]

    return make


def normed(rows: int, columns: int, kept: bool, rounded: DType = FLOAT8) -> Maker:
    """Rows of a layer norm in 8 bits, and in fp16 too if they are ``kept``."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = (rng.standard_normal((rows, columns)) * 3 + 1).astype(np.float16)
        gamma, beta = (rng.standard_normal(columns).astype(np.float32) for _ in "gb")
        y = memory.empty((rows, columns), np.float16) if kept else None
        small = memory.empty((rows, columns), NUMPY[rounded])
        numbers = {"factor": 32.0} if rounded is FLOAT8 else _STEPS[rounded]
        call = CALLS.make(
            "norm", "f16", x=[memory.put(x)], gamma=memory.put(gamma), beta=memory.put(beta), y=y,
            rounded=small, rounded_type=rounded.short, kind="layer", epsilon=1e-5, **numbers,
        )  # fmt: skip

        def expected() -> list[Expected]:
            value = norm(x.astype(np.float64), "layer", 1e-5) * gamma + beta
            made = [Expected(small, np.clip(value * 32, -448, 448), HALF_STEP)]
            if rounded is not FLOAT8:
                step, zero, low, high = numbers.values()
                steps = np.clip(value / step + zero, low, high)
                made = [Expected(small, steps, 0.501 / float(np.abs(steps).max()))]
            return made + ([Expected(y, value, 4 * TOLERANCE[DType.F16])] if y else [])

        return call, expected

    return make


def normed_by_rows(rows: int, columns: int, kept: bool, least: float = 0.0) -> Maker:
    """Rows of a layer norm divided by their largest magnitudes, in fp16 too if ``kept``."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = (rng.standard_normal((rows, columns)) * 3 + 1).astype(np.float16)
        gamma, beta = (rng.standard_normal(columns).astype(np.float32) for _ in "gb")
        y = memory.empty((rows, columns), np.float16) if kept else None
        small = memory.empty((rows, columns), NUMPY[FLOAT8])
        scales = memory.empty((rows,), np.float32)
        call = CALLS.make(
            "norm", "f16", x=[memory.put(x)], gamma=memory.put(gamma), beta=memory.put(beta), y=y,
            rounded=small, scales=scales, kind="layer", epsilon=1e-5, step=448.0, low=least,
        )  # fmt: skip

        def expected() -> list[Expected]:
            value = norm(x.astype(np.float64), "layer", 1e-5) * gamma + beta
            own = np.maximum(np.abs(value).max(1) / 448, least)
            made = [Expected(small, value / own[:, None], HALF_STEP), Expected(scales, own, 1e-5)]
            return made + ([Expected(y, value, 4 * TOLERANCE[DType.F16])] if y else [])

        return call, expected

    return make


def _attention() -> Iterator[Case]:
    """By each kernel: whole and ragged heads, rows that do not start at multiples of 8 bytes."""
    flash, few = ("128x128x2", "192x128x2"), ("64x128x1",)
    made = attention(DType.F16, (2, 3, 70), 100, 64, 64, factor=256.0)
    yield Case("float8 attention 64", made, ("64x64",))
    yield Case("float8 attention by warpgroups", made, (*flash, *few), ("wgmma",))
    made = attention(DType.F16, (2, 2, 140), 100, 40, 24, factor=4096.0, late=5)
    yield Case("float8 attention late", made, ("64x64",))
    made = attention(DType.F16, (1, 2, 70), 90, 40, 24, factor=256.0, y_late=3)
    yield Case("float8 attention 40 24", made, (*flash[:1], *few), ("wgmma",))
    made = attention(DType.BF16, (1, 2, 70), 120, 64, 64, mask="bool", zero_rows="guarded",
                     factor=256.0)  # fmt: skip
    yield Case("float8 attention masked", made, (*flash[:1], *few), ("wgmma",))


def _cases() -> Iterator[Case]:
    yield Case("float8 70 136 200", gemm(70, 136, 200), _TILES, ("float8",))
    yield Case("float8 plain 13 40 33", gemm(13, 40, 33, _PLAIN, 3), _TILES[2:], ("float8",))
    yield Case("float8 1 1 1", gemm(1, 1, 1, _PLAIN, 1), _TILES[2:], ("float8",))
    yield Case("float8 wgmma 300 264 400", gemm(300, 264, 400),
               ("128x128x128x6x1", "128x256x128x4x1w"), ("wgmma",))  # fmt: skip
    yield Case("float8 wgmma plain 140 72 144", gemm(140, 72, 144, _PLAIN),
               ("128x256x128x4x1", "128x64x128x8x1"), ("wgmma",))  # fmt: skip
    yield Case("float8 small 70 136 64", gemm(70, 136, 64, _SMALL), _TILES[:1], ("float8",))
    yield Case("float8 wgmma small 300 264 144", gemm(300, 264, 144, _SMALL),
               ("128x128x128x6x1", "128x256x128x4x1w"), ("wgmma",))  # fmt: skip
    for k, chain in ((400, _SCALED), (144, _SMALL), (128, _PLAIN)):
        wide = ("128x192x128x5x1", "128x192x128x5x1w") if chain is not _SCALED else ()
        yield Case(f"float8 promoted 300 264 {k}", gemm(300, 264, k, chain, promoted=True),
                   ("128x128x128x6x1", "128x128x128x6x1w", *wide), ("wgmma",))  # fmt: skip
    for columns, kept in ((64, True), (64, False), (37, True)):
        yield Case(f"float8 norm {columns} {kept}", normed(9, columns, kept), ("16x8", "4x32"))
        for kind in _STEPS:
            yield Case(f"{kind.short} norm {columns} {kept}", normed(9, columns, kept, kind),
                       ("16x8",))  # fmt: skip
    yield from _attention()
    for columns, kept, least in ((64, True, 0.0), (768, False, 0.0), (37, True, 0.006)):
        yield Case(f"float8 norm by rows {columns}", normed_by_rows(9, columns, kept, least),
                   ("16x8", "4x32"))  # fmt: skip
    yield Case("float8 stored 1003", stored(1003), ("256x16", "256x8"))
    yield Case("float8 stored in e5m2", stored(1003, WIDE_FLOAT8), ("256x16",))
    for dtype in FLOATS8:
        yield Case(f"float8 {dtype.short} loaded", loaded(dtype), ("256x16",))
    for types in ((WIDE_FLOAT8, FLOAT8), (FLOAT8, WIDE_FLOAT8), (WIDE_FLOAT8, WIDE_FLOAT8)):
        which = " by ".join(t.short[2:] for t in types)
        yield Case(
            f"float8 {which}", gemm(33, 40, 96, _PLAIN, types=types), _TILES[2:], ("float8",)
        )
        yield Case(f"float8 wgmma {which}", gemm(140, 72, 144, types=types, promoted=True),
                   ("128x64x128x8x1",), ("wgmma",))  # fmt: skip


CASES = tuple(_cases())
