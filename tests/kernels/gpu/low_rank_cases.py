"""Cases of two matmuls by the factors of a matrix of low rank, in one launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.kernels.gpu.cases import (
    EPSILON,
    TOLERANCE,
    Case,
    Expected,
    Made,
    Maker,
    lying,
    normalised,
    part_sums,
    repeated,
    some,
    wide,
)
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS, LOW_RANK_PARTS
from tracea_graph.kernels.gpu.families.attention_projection import residual_norm
from tracea_graph.ops.chain import Chain, Step

__all__ = ["CASES", "pair"]

_F16 = (DType.F16,)
GELU = Chain(("full",), (Step("gelu", (0,)),), (1,), (), _F16)
RESIDUAL = Chain(("full", "full"), (Step("add", (0, 1)),), (2,), (DType.F32, DType.F16), _F16)
ROWS_AND_COLUMNS = Chain(("full", "row", "col"), (Step("mul", (0, 1)), Step("add", (3, 2))), (4,),
                         (DType.F32,) * 3, _F16)  # fmt: skip
NORMED = residual_norm("f16")


def pair(
    dtype: DType, m: int, n: int, k: int, rank: int, layouts: str = "kn kn",
    chain: Chain | None = None, bias: bool = True, pad: int = 8, norm: str = "none",
    read: int = 0, summed: int = 0, odd: bool = False,
) -> Maker:  # fmt: skip
    """Factors in two layouts; perhaps a norm of x, from so many sums of a row, and sums of rows.

    ``odd``: a row of x has an infinity.
    """

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        own, kind = dtype.short, NUMPY[dtype]
        x = some(rng, (m, k), dtype)
        if norm != "none":
            x = (wide(x) * 3 + rng.standard_normal((m, 1))).astype(kind)
        if odd:
            x[m // 2, k // 2] = np.inf
        sides = zip(layouts.split(), ((k, rank), (rank, n)), strict=True)
        factors = [(rng.standard_normal(shape) / shape[0] ** 0.5).astype(kind)
                   for _, shape in sides]  # fmt: skip
        named: dict[str, Any] = {"x": memory.put(x, 0, pad), "norm": norm, "epsilon": EPSILON}
        for i, (layout, factor) in enumerate(zip(layouts.split(), factors, strict=True), 1):
            stored = factor if layout == "kn" else np.ascontiguousarray(factor.T)
            named |= {f"w{i}": memory.put(stored, 0, pad), f"layout{i}": layout}
        biases = [rng.standard_normal(side).astype(np.float32) for side in (rank, n)]
        if bias:
            named["bias"] = memory.put(biases[1])
        if norm != "none":
            named |= {"bias1": memory.put(biases[0])}
            named |= {one: memory.empty((m,), np.float32) for one in ("mean", "inverse")}
            named["x_sums"] = memory.put(part_sums(wide(x), read).astype(np.float32))
        if norm == "layer":
            named["column_sums"] = memory.put(wide(factors[0]).sum(0).astype(np.float32))
        if summed:
            named["y_sums"] = memory.empty((m, summed, 2), np.float32)
        more = list[Array]()
        if chain is not None:
            pairs = zip(chain.operands[1:], chain.operand_types[1:], strict=True)
            more = [some(rng, lying(one, (m, n)), own_type) for one, own_type in pairs]
            named["inputs"] = [repeated(memory.put(one, 0, pad), (m, n)) for one in more]
        y = memory.empty((m, n), kind, 0, pad)
        named["middle"] = memory.empty((m, rank), kind)
        call = CALLS.make("low_rank_gemm", own, **named, y=[y], part=LOW_RANK_PARTS[-1],
                          chain=chain)  # fmt: skip

        def expected() -> list[Expected]:
            with np.errstate(invalid="ignore"):
                return result()

        def result() -> list[Expected]:
            rows, moments = (wide(x), []) if norm == "none" else normalised(wide(x), norm)
            told = [Expected(named[one], value, 1e-5)
                    for one, value in zip(("mean", "inverse"), moments, strict=False)
                    if norm == "layer" or one == "inverse"]  # fmt: skip
            between = rows @ wide(factors[0])
            between = between if norm == "none" else between + biases[0]
            sums = wide(between.astype(kind)) @ wide(factors[1])
            sums = sums + biases[1] if bias else sums
            value = sums if chain is None else chain.reference([sums, *map(wide, more)])[0]
            share = 2 * TOLERANCE[dtype]  # what is between is rounded as well, elsewhere
            if summed:
                told.append(Expected(named["y_sums"], part_sums(value, summed), share))
            return [*told, Expected(y, value, share)]

        return call, expected

    return make


def _cases() -> Iterator[Case]:
    needs, f16, bf16 = ("wgmma",), DType.F16, DType.BF16
    small, large = ("64x192x64x6", "64x128x64x10"), ("64x192x128x6", "64x128x128x6")
    yield Case("low rank 128", pair(f16, 150, 712, 200, 128), small, needs)
    yield Case("low rank 16", pair(f16, 70, 200, 136, 16, bias=False), small[:1], needs)
    yield Case("low rank 64 gelu", pair(f16, 65, 328, 64, 64, chain=GELU), small[1:], needs)
    yield Case("low rank 80 nk", pair(bf16, 129, 264, 72, 80, "nk nk"), small,
               needs)  # fmt: skip
    yield Case("low rank 256", pair(f16, 130, 520, 264, 256, chain=RESIDUAL),
               large, needs)  # fmt: skip
    yield Case("low rank 200 bf16", pair(bf16, 63, 136, 392, 200, "nk kn"), large[:1], needs)
    yield Case("low rank 144 rows", pair(f16, 90, 400, 128, 144, "kn nk",
                                         ROWS_AND_COLUMNS), large[1:], needs)  # fmt: skip
    yield Case("low rank norm", pair(f16, 100, 384, 384, 128, "nk kn", RESIDUAL, norm="layer",
                                     read=2, summed=2), small[:1], needs)  # fmt: skip
    yield Case("low rank rms", pair(f16, 70, 256, 192, 136, "nk kn", norm="rms", read=3,
                                    summed=2), large[1:], needs)  # fmt: skip
    many = pair(f16, 80, 384, 136, 112, "kn nk", NORMED, summed=2)
    yield Case("low rank vectors", many, small[:1], needs)
    deep = "64x192x128x7x2", "64x128x128x7x2", "64x192x64x8x2", "64x128x64x12x2"
    yield Case("low rank deep", pair(f16, 150, 712, 1000, 128, chain=RESIDUAL), deep[:2], needs)
    yield Case("low rank deep 64 gelu", pair(f16, 65, 1032, 2000, 64, "nk nk", GELU), deep, needs)
    yield Case("low rank deep 80 nk", pair(bf16, 129, 264, 72, 80, "nk nk"), deep[:2], needs)
    yield Case("low rank deep 40", pair(f16, 70, 640, 48, 40, "nk kn", bias=False), deep[2:],
               needs)  # fmt: skip
    yield Case("low rank deep norm", pair(f16, 100, 384, 384, 128, "nk kn", RESIDUAL, norm="layer",
                                          read=2, summed=2), deep[:1], needs)  # fmt: skip
    yield Case("low rank deep rms", pair(f16, 70, 256, 192, 104, "kn nk", norm="rms", read=3,
                                         summed=2), deep[1:2], needs)  # fmt: skip
    yield Case("low rank deep vectors", pair(f16, 80, 384, 136, 112, "kn nk", NORMED, summed=2),
               deep[:1], needs)  # fmt: skip
    yield Case("low rank deep infinity", pair(f16, 66, 136, 72, 24, "nk nk", odd=True), deep[2:3],
               needs)  # fmt: skip
    yield Case("low rank infinity", pair(f16, 66, 136, 72, 24, odd=True), small[:1], needs)


CASES = tuple(_cases())
