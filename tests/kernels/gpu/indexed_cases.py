"""Cases of slices that index tuples name: reads, the order of updates, and updates in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tests.kernels.gpu.cases import TOLERANCE, Case, Expected, Made, Maker, some, wide
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.ops.indexed_slices import SCATTERS

__all__ = ["CASES"]

_NUMBERS = (DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64)


def _tuples(rng: np.random.Generator, count: int, sizes: Sequence[int], beyond: int) -> Array:
    """Tuples of indices, also from the end, and up to ``beyond`` elements outside."""
    columns = [rng.integers(-n - beyond, n + beyond, count) for n in sizes]
    return np.stack(columns, -1).reshape(count, len(sizes))


def _inside(tuples: Array, sizes: Sequence[int]) -> Array:
    return np.asarray(((tuples >= -np.array(sizes)) & (tuples < np.array(sizes))).all(-1))


def gather(
    dtype: DType, index: DType, items: int, rows: int, sizes: Sequence[int], cols: int,
    beyond: int = 0, gap: int = 1,
) -> Maker:  # fmt: skip
    """Slices of items whose elements are stored with a ``gap``; missing ones are NaN, or 0."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, (items, *sizes, cols), dtype)
        ids = _tuples(rng, items * rows, sizes, beyond).astype(NUMPY[index])
        y = memory.empty((items, rows, cols), NUMPY[dtype], gap)
        call = CALLS.make(
            "gather_nd", dtype.short, x=memory.put(x, gap, 3 * gap), y=y, index_type=index.short,
            ids=memory.put(ids.reshape(items, rows, len(sizes))),
        )  # fmt: skip

        def expected() -> list[Expected]:
            lost = np.nan if dtype in TOLERANCE else 0
            value = np.full((items * rows, cols), lost, wide(x).dtype)
            for n, at in enumerate(ids):
                if _inside(at, sizes):
                    value[n] = wide(x)[(n // rows, *at)]
            return [Expected(y, value.reshape(items, rows, cols), TOLERANCE.get(dtype, 0))]

        return call, expected

    return make


def order(index: DType, count: int, sizes: Sequence[int]) -> Maker:
    """Tuples of which some lie outside, and some are alike."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        ids = _tuples(rng, count, sizes, 1).astype(NUMPY[index])
        ends = memory.put(np.zeros((*sizes, 2), np.int32))
        slices = memory.empty((count,), np.int32)
        call = CALLS.make("update_order", "i32", ids=memory.put(ids, 1, 1), ends=ends,
                          slices=slices, index_type=index.short)  # fmt: skip

        def expected() -> list[Expected]:
            named, most = np.full(count, -1), np.zeros((*sizes, 2), np.int64)
            for n, at in enumerate(ids):
                if _inside(at, sizes):
                    own = tuple(int(i) % size for i, size in zip(at, sizes, strict=True))
                    named[n] = np.ravel_multi_index(own, tuple(sizes))
                    most[own] = np.maximum(most[own], (n + 1, count - n))
            return [Expected(ends, most, 0), Expected(slices, named, 0)]

        return call, expected

    return make


def scatter(
    dtype: DType, reduction: str, rows: int, slices: int, cols: int, in_place: bool = False
) -> Maker:
    """Updates of which several belong to one slice, and some to none."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, updates = (some(rng, (n, cols), dtype) for n in (slices, rows))
        named = rng.integers(-1, slices, rows).astype(np.int32)
        ends = np.zeros((slices, 2), np.int32)
        for n in np.flatnonzero(named >= 0):
            ends[named[n]] = np.maximum(ends[named[n]], (n + 1, rows - n))
        held = memory.put(x, 1, 3)
        y = held if in_place else memory.empty((slices, cols), NUMPY[dtype], 1)
        call = CALLS.make(
            "scatter_nd", dtype.short, x=held, updates=memory.put(updates, 0, 2),
            ends=memory.put(ends), slices=memory.put(named), y=y, reduction=reduction,
        )  # fmt: skip

        def expected() -> list[Expected]:
            own = wide(x) if dtype in TOLERANCE else x.copy()
            combine = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
            with np.errstate(over="ignore"):
                for n in np.flatnonzero(named >= 0):
                    new, at = updates[n].astype(own.dtype), named[n]
                    own[at] = combine[reduction](own[at], new) if reduction in combine else new
            return [Expected(y, own, TOLERANCE.get(dtype, 0))]

        return call, expected

    return make


def _cases() -> Iterator[Case]:
    tiles = ("256",)
    f32, i32, i64 = DType.F32, DType.I32, DType.I64
    for dtype in _NUMBERS:
        made = gather(dtype, i32 if dtype is i32 else i64, 3, 5, (4, 7), 20)
        yield Case(f"slices {dtype.short}", made, tiles)
        made = gather(dtype, i64, 1, 40, (6,), 3, beyond=2)
        yield Case(f"slices beyond {dtype.short}", made, tiles)
        for reduction in SCATTERS:
            made = scatter(dtype, reduction, 30, 11, 13)
            yield Case(f"updates {reduction} {dtype.short}", made, tiles)
    yield Case("slices of numbers", gather(f32, i64, 2, 300, (5, 3, 4), 1, beyond=1), tiles)
    yield Case("slices of runs", gather(DType.F16, i32, 2, 9, (7,), 20, 1, gap=0), tiles)
    yield Case("slices nothing", gather(f32, i64, 2, 0, (5,), 4), tiles)
    yield Case("slices of nothing", gather(f32, i64, 1, 3, (0,), 4, beyond=1), tiles)
    yield Case("order", order(i64, 300, (4, 5)), tiles)
    yield Case("order i32", order(i32, 7, (9,)), tiles)
    yield Case("order nothing", order(i64, 0, (2, 3, 4)), tiles)
    yield Case("updates once", scatter(f32, "none", 1, 300, 5), tiles)
    yield Case("updates in place", scatter(DType.F16, "none", 4, 30, 5, in_place=True), tiles)
    yield Case("updates nothing", scatter(f32, "add", 0, 4, 5), tiles)
    yield Case("updates of nothing", scatter(f32, "add", 3, 0, 5), tiles)


CASES = tuple(_cases())
