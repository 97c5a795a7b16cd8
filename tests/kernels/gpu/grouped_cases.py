"""Cases of matmuls of bytes of the same rows, in one launch: exact, with numbers of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.kernels.gpu.cases import Case, Expected, Made, Maker
from tests.kernels.gpu.integer_cases import REQUANTIZED, some
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS, GROUP_PARTS
from tracea_graph.kernels.gpu.families.grouped_integers import numbers_of
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import Chain, Step

__all__ = ["CASES", "epilogue", "matmul"]


def epilogue(number: int) -> Chain:
    """An epilogue whose factor and bounds are those of a matmul's number."""
    steps = (Step("mul", (0, 2.0 ** -(9 + number))), Step("add", (2, 1)), Step("round", (3,)),
             Step("saturate", (4, 5.0 * number, 200.0 + number)))  # fmt: skip
    return replace(REQUANTIZED, steps=steps, stores=(DType.F16,))


def matmul(
    memory: Memory, rng: np.random.Generator, rows: Array, n: int, number: int, **named: Any
) -> tuple[Call, Array]:
    """A matmul of ``rows`` by n columns, and what it computes; ``named`` has their view."""
    w, row = some(rng, (n, rows.shape[1]), DType.I8), rng.integers(-50, 200, n).astype(np.float32)
    chain, m = epilogue(number), len(rows)
    bias = memory.put(row)
    repeated = replace(bias, dims=(m, n), strides=(0, 1))
    sums = memory.put(w.sum(1, dtype=np.float32)) if named["shifted"] else None
    call = CALLS.make(
        "integer_gemm", "u8" if rows.dtype == np.uint8 else "i8",
        w=memory.put(w, 0, -w.shape[1] % 16),
        column_sums=sums, inputs=[repeated], y=[memory.empty((m, n), NUMPY[DType.F16])],
        chain=chain, **named,
    )  # fmt: skip
    products = (rows.astype(np.float64) - named["zero"]) @ w.T.astype(np.float64)
    return call, np.asarray(chain.reference([products, row.astype(np.float64)])[0])


def grouped(dtype: DType, m: int, n: int, k: int, count: int, zero: int = 0) -> Maker:
    """As many matmuls of m rows as ``count`` says, by n columns each."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, (m, k), dtype)
        named = {"x": memory.put(x, 0, -k % 16), "shifted": zero != 0, "zero": zero}
        made = [matmul(memory, rng, x, n, number, **named) for number in range(count)]
        each: list[dict[str, Any]] = [dict(CALLS.of(call).named(call)) for call, _ in made]
        sums = [one["column_sums"] for one in each if zero]
        call = CALLS.make(
            "grouped_integer_gemm", dtype.short, w=[one["w"] for one in each], column_sums=sums,
            inputs=[view for one in each for view in one["inputs"]],
            y=[one["y"][0] for one in each], chain=made[-1][0].chain, part=GROUP_PARTS[count - 1],
            matrices=count, summed=len(sums), vectors=count,
            numbers=tuple(number for one, _ in made for number in numbers_of(one)[1]), **named,
        )  # fmt: skip

        def expected() -> list[Expected]:
            pairs = zip(each, made, strict=True)
            return [Expected(one["y"][0], value, 0) for one, (_, value) in pairs]

        return call, expected

    return make


def _cases() -> Iterator[Case]:
    needs = ("wgmma",)
    made = grouped(DType.U8, 150, 192, 208, 3, 7)
    yield Case("grouped u8", made, ("128x96x128x7x1", "64x192x128x6x2"), needs)
    made = grouped(DType.I8, 300, 256, 400, 2)
    yield Case("grouped i8", made, ("128x256x128x4x1w", "128x128x128x6x1"), needs)


CASES = tuple(_cases())
