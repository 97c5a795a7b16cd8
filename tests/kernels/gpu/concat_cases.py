"""Cases of concatenations and paddings that one launch writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tests.kernels.gpu.cases import Case, Expected, Made, Maker, some
from tests.kernels.gpu.machine import NUMPY, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.program import View

__all__ = ["CASES", "concat", "pad"]


def concat(dtype: DType, rows: int, widths: Sequence[int], late: int = 0, apart: int = 0) -> Maker:
    """Parts of rows, from ``late`` elements on, those of x ``apart`` elements from each other."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        parts = [some(rng, (rows, width), dtype) for width in widths]
        y = memory.empty((rows, sum(widths)), NUMPY[dtype], late)
        views = [memory.put(x, late + i, apart) for i, x in enumerate(parts)]
        place = View(y.buffer, views[0].dims, y.strides, y.offset)
        call = CALLS.make("concat", f"b{int(dtype.size)}", x=views, place=place, y=y,
                          count=len(parts))  # fmt: skip
        return call, lambda: [Expected(y, np.concatenate(parts, 1), 0)]

    return make


def pad(
    dtype: DType, shape: Sequence[int], before: Sequence[int], after: Sequence[int], late: int = 0
) -> Maker:
    """An image within zeros: axes behind the first are padded."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, sides = some(rng, shape, dtype), list(zip(before, after, strict=True))
        value = np.pad(x, [(0, 0), *sides])
        y = memory.empty(value.shape, NUMPY[dtype], late)
        shift = sum(n * int(s) for n, s in zip(before, y.strides[1:], strict=True))  # type: ignore[call-overload]
        place = View(y.buffer, tuple(shape), y.strides, int(y.offset) + shift)  # type: ignore[call-overload]
        call = CALLS.make("concat", f"b{int(dtype.size)}", x=[memory.put(x, 2 * late, late)],
                          place=place, y=y, count=1, filled=True)  # fmt: skip
        return call, lambda: [Expected(y, value, 0)]

    return make


def _cases() -> Iterator[Case]:
    tiles = ("256x16",)
    for dtype in (DType.U8, DType.F16, DType.F32, DType.I64):
        said = dtype.short
        yield Case(f"concat of 21 and 43 {said}", concat(dtype, 50, (21, 43)), tiles)
        yield Case(f"concat of few {said}", concat(dtype, 31, (1, 3, 2, 1), 3, 5), tiles)
        for late in (0, 1, 7):
            made = pad(dtype, (3, 4, 13), (1, 1), (1, 1), late)
            yield Case(f"pad late {late} {said}", made, tiles)
    f16 = DType.F16
    for late, apart in ((0, 0), (3, 0), (5, 6)):
        made = concat(f16, 23, (58, 58), late, apart)
        yield Case(f"concat of 58 late {late} apart {apart}", made, tiles)
    yield Case("concat of one row", concat(f16, 1, (300, 1, 77), 1), tiles)
    yield Case("concat of eight", concat(f16, 9, (8, 16, 3, 24, 8, 9, 40, 16)), tiles)
    yield Case("concat with an empty part", concat(f16, 9, (5, 0, 6)), tiles)
    yield Case("concat of nothing", concat(f16, 0, (5, 3)), tiles)
    yield Case("pad rows alone", pad(f16, (5, 40), (3,), (0,)), tiles)
    yield Case("pad behind", pad(f16, (2, 3, 8), (0, 0), (2, 5)), tiles)
    yield Case("pad far ahead", pad(f16, (2, 1, 2), (9, 30), (0, 0), 1), tiles)
    yield Case("pad volume", pad(f16, (2, 3, 4, 5), (1, 0, 2), (1, 2, 1)), tiles)
    yield Case("pad of nothing", pad(f16, (2, 0, 5), (1, 1), (1, 1)), tiles)


CASES = tuple(_cases())
