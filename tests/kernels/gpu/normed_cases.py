"""Cases of matmuls of bytes with a norm behind them: nearest levels of those in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.kernels.gpu.cases import Case, Expected, Made, Maker
from tests.kernels.gpu.integer_cases import some
from tests.kernels.gpu.machine import NUMPY, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS, NORMED_PARTS
from tracea_graph.ops.chain import Chain, Step

__all__ = ["CASES", "EPSILON", "RESIDUAL", "ROW", "normed"]

RESIDUAL = Chain(
    ("full", "row", "full"),
    (Step("mul", (0, 2.0**-10)), Step("add", (3, 1)), Step("round", (4,)),
     Step("saturate", (5, -100.0, 155.0)), Step("mul", (6, 0.0625)), Step("sub", (2, 128.0)),
     Step("mul", (8, 0.125)), Step("add", (7, 9)), Step("div", (10, 0.28125)),
     Step("round", (11,)), Step("saturate", (12, -120.0, 135.0)), Step("mul", (13, 0.28125))),
    (14,), (DType.F32, DType.F32, DType.U8), (DType.F16,),
)  # fmt: skip
"""Requantized with a bias, then the sum with a residual in bytes, rounded too."""
ROW = Chain(("full", "row"), (Step("mul", (0, 2.0**-12)), Step("add", (2, 1))), (3,), (),
            (DType.F16,))  # fmt: skip
"""A factor and a bias, without a rounding."""
EPSILON = 1e-5
_LEVEL, _ZERO = 0.0625, {DType.U8: (131.0, 0.0, 255.0), DType.I8: (-3.0, -128.0, 127.0)}


def normed(
    dtype: DType, m: int, n: int, k: int, zero: int = 0, chain: Chain = RESIDUAL,
    rounded: DType = DType.U8,
) -> Maker:  # fmt: skip
    """A matmul of m rows by n columns, and the norm of its rows as bytes."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, w = some(rng, (m, k), dtype), some(rng, (n, k), DType.I8)
        row, full = rng.integers(-50, 50, n).astype(np.float32), some(rng, (m, n), DType.U8)
        more: list[Any] = [row, full][: len(chain.operands) - 1]
        bias = memory.put(row)
        views = [type(bias)(bias.buffer, (m, n), (0, 1), bias.offset)]
        views += [memory.put(full)] * (len(more) - 1)
        gamma, beta = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
        y, (point, low, high) = memory.empty((m, n), NUMPY[rounded]), _ZERO[rounded]
        call = CALLS.make(
            "normed_integer_gemm", dtype.short, x=memory.put(x, 0, -k % 16),
            w=memory.put(w, 0, -k % 16), x_zero=None, inputs=views, gamma=memory.put(gamma),
            column_sums=memory.put(w.sum(1, dtype=np.float32)) if zero else None,
            beta=memory.put(beta), middle=memory.empty((m, n), np.float16), y=y, chain=chain,
            part=NORMED_PARTS[-1], shifted=zero != 0, zero=zero, epsilon=EPSILON, level=_LEVEL,
            level_zero=point, low=low, high=high, rounded_type=rounded.short,
        )  # fmt: skip

        def expected() -> list[Expected]:
            sums = (x.astype(np.float64) - zero) @ w.T.astype(np.float64)
            whole = replace(chain, stores=())  # rows stay as they are: nothing stores them
            rows = np.asarray(whole.reference([sums, *(v.astype(np.float64) for v in more)])[0])
            away = rows - rows.mean(1, keepdims=True)
            made = away / np.sqrt(np.mean(away**2, 1, keepdims=True) + EPSILON) * gamma + beta
            levels = np.clip(made / _LEVEL + point, low, high)
            return [Expected(y, levels, 0.501 / float(np.abs(levels).max()))]

        return call, expected

    return make


def _cases() -> Iterator[Case]:
    needs = ("wgmma",)
    yield Case("normed u8 384", normed(DType.U8, 150, 384, 208, 7), ("64x192x128x6",), needs)
    made = normed(DType.U8, 70, 768, 400, 9, chain=ROW, rounded=DType.I8)
    yield Case("normed u8 768", made, ("64x384x128x3",), needs)
    made = normed(DType.I8, 64, 512, 144, -5, chain=ROW)
    yield Case("normed i8 512", made, ("64x256x128x4",), needs)
    made = normed(DType.I8, 130, 768, 1040)
    yield Case("normed i8 768", made, ("64x384x128x3",), needs)


CASES = tuple(_cases())
