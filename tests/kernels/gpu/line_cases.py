"""Cases of cumulative sums of lines, updates of their elements, and samples of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tests.kernels.gpu.cases import TOLERANCE, Case, Expected, Made, Maker, some, wide
from tests.kernels.gpu.machine import NUMPY, Memory
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.ops.cumulative_sum import CumulativeSumParams
from tracea_graph.ops.grid_sample import BEYOND, SAMPLINGS, GridSampleParams
from tracea_graph.ops.indexed_slices import SCATTERS
from tracea_graph.ops.integer_step import INTEGER_STEPS, IntegerStepParams
from tracea_graph.ops.scatter_elements import ScatterElementsParams

__all__ = ["CASES"]

_TYPES = {np.dtype(NUMPY[t]): t for t in (DType.I32, DType.I64, DType.BOOL)}
_NUMBERS = (DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64)


def running_sum(
    dtype: DType, shape: Sequence[int], exclusive: bool, reverse: bool, late: int = 1,
    columns: bool = False,
) -> Maker:  # fmt: skip
    """Sums of lines: with a gap behind each and ``late``, or side by side as ``columns``."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, order = some(rng, shape, dtype), (0, 2, 1) if columns else ()
        y = memory.empty(tuple(shape), NUMPY[dtype], late, 0, order)
        call = CALLS.make("cumulative_sum", dtype.short, y=y, exclusive=exclusive,
                          x=memory.put(x, late, 3 * late, order), reverse=reverse)  # fmt: skip

        def expected() -> list[Expected]:
            own = wide(x) if dtype in TOLERANCE else x
            (value,) = CumulativeSumParams(2, exclusive, reverse).reference([own])
            return [Expected(y, value, TOLERANCE.get(dtype, 0))]

        return call, expected

    return make


def elements(
    dtype: DType, reduction: str, index: DType, shape: Sequence[int], count: int,
    order: Sequence[int] = (),
) -> Maker:  # fmt: skip
    """Updates of which several name one element, some from the end; axes stored in an order."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        *lines, size = shape
        x, updates = (some(rng, (*lines, n), dtype) for n in (size, count))
        ids = rng.integers(-size, size, (*lines, count)).astype(NUMPY[index])
        y = memory.empty(tuple(shape), NUMPY[dtype], 1, 0, order)
        call = CALLS.make(
            "scatter_elements", dtype.short, x=memory.put(x, 1, 3, order), y=y,
            ids=memory.put(ids, 0, 2, order), updates=memory.put(updates, 1, 1, order),
            reduction=reduction, index_type=index.short,
        )  # fmt: skip

        def expected() -> list[Expected]:
            own = [wide(v) if dtype in TOLERANCE else v for v in (x, updates)]
            with np.errstate(over="ignore"):
                (value,) = ScatterElementsParams(3, reduction).reference([own[0], ids, own[1]])
            return [Expected(y, value, TOLERANCE.get(dtype, 0))]

        return call, expected

    return make


def samples(
    dtype: DType, params: GridSampleParams, channels: int = 5, late: int = 0, apart: int = 0,
    odd: bool = False,
) -> Maker:  # fmt: skip
    """Positions inside of images and beyond them, none of which rounds either way.

    An ``odd`` image has infinities and a NaN.
    """

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, (2, 6, 9, channels), dtype)
        if odd:
            x[0, 1, 2, 3], x[0, 4, 4, 6], x[1, 3, 3, 0] = np.inf, -np.inf, np.nan
        grid = (rng.integers(-40, 40, (2, 3, 11, 2)) / 16 + 0.013).astype(np.float32)
        y = memory.empty((2, 3, 11, channels), NUMPY[dtype], late, apart)
        call = CALLS.make(
            "grid_sample", dtype.short, x=memory.put(x, late), grid=memory.put(grid), y=y,
            sampling=params.sampling, beyond=params.beyond, aligned=params.aligned,
        )  # fmt: skip

        def expected() -> list[Expected]:
            (value,) = params.reference([wide(x).transpose(0, 3, 1, 2), wide(grid)])
            share = max(TOLERANCE[dtype], 2e-5)  # of positions, which are float32
            return [Expected(y, value.transpose(0, 2, 3, 1), share)]

        return call, expected

    return make


def integers(dtype: DType, step: str) -> Maker:
    """Numbers of any magnitude, beside a row of small ones; zeros among the divisors."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        kind = NUMPY[dtype]
        most = np.iinfo(kind).max
        a = rng.integers(-most, most, (3, 5, 7)).astype(kind)
        b = rng.integers(-3, 4, (1, 7)).astype(kind)
        chosen = {"Cast": (a,), "Where": (a % 2 == 0, a, b)}.get(step, (a, b))
        params = IntegerStepParams(step, dtype if step == "Cast" else None)
        (spec,) = params.infer([TensorSpec(_TYPES[v.dtype], v.shape) for v in chosen])
        assert spec.dtype is not None
        y = memory.empty((3, 5, 7), NUMPY[spec.dtype], 1)
        views = [memory.put(v).stretched((3, 5, 7)) for v in chosen]
        call = CALLS.make("integer_step", dtype.short, x=views, y=y, step=step,
                          count=len(views), y_type=spec.dtype.short)  # fmt: skip

        def expected() -> list[Expected]:
            with np.errstate(over="ignore"):
                return [Expected(y, params.reference(chosen)[0], 0)]

        return call, expected

    return make


def _cases() -> Iterator[Case]:
    tiles = ("256",)
    f32, f16, i32, i64 = DType.F32, DType.F16, DType.I32, DType.I64
    for dtype in _NUMBERS:
        for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
            said = " exclusive" * exclusive + " back" * reverse
            made = running_sum(dtype, (3, 2, 40), exclusive, reverse)
            yield Case(f"running sum{said} {dtype.short}", made, tiles)
        for reduction in SCATTERS:
            made = elements(dtype, reduction, i32 if dtype is i32 else i64, (2, 3, 4, 11), 7)
            yield Case(f"elements {reduction} {dtype.short}", made, tiles)
    for dtype in (i32, i64):
        for step in INTEGER_STEPS:
            yield Case(f"integers {step} {dtype.short}", integers(dtype, step), tiles)
    for dtype, shape in ((f32, (2, 3, 5000)), (f16, (1, 2, 4104)), (i64, (1, 1, 4100))):
        for reverse in (False, True):
            said = f"{' back' * reverse} {dtype.short}"
            made = running_sum(dtype, shape, False, reverse, 0)
            yield Case(f"running sum of vectors{said}", made, tiles)
            outer, lines, size = shape
            for late, count in ((0, 24 * lines), (1, 7)):
                made = running_sum(dtype, (outer, count, size // 4), reverse, reverse, late, True)
                yield Case(f"running sum of columns{' late' * late}{said}", made, tiles)
    for dtype, shape in (
        (f32, (2, 3, 1031)),
        (f16, (1, 3, 4103)),
        (i64, (1, 2, 77)),
        (f16, (5, 7, 125)),
    ):
        for reverse in (False, True):
            made = running_sum(dtype, shape, not reverse, reverse)
            yield Case(f"running sum of {shape[2]}{' back' * reverse} {dtype.short}", made, tiles)
    yield Case("running sum of short lines", running_sum(f32, (5, 7, 120), False, False, 0), tiles)
    made = running_sum(i64, (3, 150, 60), True, True, 0, True)
    yield Case("running sum of short columns", made, tiles)
    yield Case("running sum of many", running_sum(f32, (2, 1, 1000), True, False), tiles)
    yield Case("running sum of nothing", running_sum(i64, (2, 3, 0), False, False), tiles)
    for reduction in ("none", "add"):
        made = elements(f32, reduction, i64, (1, 2, 9, 600), 900, (0, 1, 3, 2))
        yield Case(f"elements {reduction} of columns", made, tiles)
        made = elements(f16, reduction, i32, (1, 2, 1, 5000), 700)
        yield Case(f"elements {reduction} of long lines", made, tiles)
    yield Case("elements of one line", elements(f32, "none", i64, (1, 1, 1, 700), 300), tiles)
    yield Case("elements without updates", elements(f32, "add", i64, (1, 2, 3, 5), 0), tiles)
    for sampling in SAMPLINGS:
        for beyond in BEYOND:
            for aligned in (False, True):
                made = samples(f32, GridSampleParams(sampling, beyond, aligned))
                said = f"samples {sampling} {beyond}{' aligned' * aligned}"
                yield Case(said, made, tiles)
            if sampling != "nearest":
                made = samples(f16, GridSampleParams(sampling, beyond), 24)
                yield Case(f"samples {sampling} {beyond} f16", made, tiles)
    for dtype in (f16, DType.BF16):
        for channels in (8, 72):
            made = samples(dtype, GridSampleParams("cubic", "zeros"), channels)
            yield Case(f"samples of {channels} cubic {dtype.short}", made, tiles)
        made = samples(dtype, GridSampleParams("cubic", "border"), 64, odd=True)
        yield Case(f"samples cubic of infinities {dtype.short}", made, tiles)
    for channels, late, apart in ((21, 0, 0), (21, 3, 0), (3, 1, 0), (21, 1, 2), (300, 0, 0)):
        for dtype, sampling in ((f16, "linear"), (f16, "cubic"), (f32, "linear")):
            made = samples(dtype, GridSampleParams(sampling, "zeros"), channels, late, apart)
            said = f"late {late} apart {apart} {dtype.short}"
            yield Case(f"samples of {channels} {sampling} {said}", made, tiles)


CASES = tuple(_cases())
