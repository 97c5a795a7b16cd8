"""Every case of GPU kernels: those of ``cases``, look-ups, and attention with any mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.kernels.gpu import (
    block_cases,
    cache_cases,
    cases,
    concat_cases,
    expansion_cases,
    float8_cases,
    gated_cases,
    grouped_cases,
    indexed_cases,
    integer_cases,
    line_cases,
    low_rank_cases,
    mlp_cases,
    nbits_cases,
    normed_cases,
    projection_cases,
    quantized_cases,
    sparse_cases,
    volume_cases,
    window_cases,
)
from tests.kernels.gpu.cases import (
    FLOATS,
    TOLERANCE,
    Case,
    Expected,
    Made,
    Maker,
    conv,
    gemm,
    layer,
    repeated,
    some,
    wide,
)
from tests.kernels.gpu.machine import NUMPY, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.program import View
from tracea_graph.ops.arg_max import ArgParams
from tracea_graph.ops.attention import LOWEST, AttentionParams
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.ops.recurrent import RecurrentParams
from tracea_graph.ops.resize import NEAREST, WAYS, ResizeParams
from tracea_graph.ops.top_k import TopKParams

__all__ = ["CASES"]


def attention(
    dtype: DType, params: AttentionParams, batch: int, queries: int, keys: int, late: int = 0,
    low: float = -np.inf,
) -> Maker:  # fmt: skip
    """As ``params`` say, by heads; the last query's keys are masked, all of them."""
    heads, shared = params.heads, params.shared_heads

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        q = some(rng, (batch, heads, queries, params.head), dtype)
        k = some(rng, (batch, shared, keys, params.head), dtype)
        v = some(rng, (batch, shared, keys, params.head_v), dtype)
        named: dict[str, Any] = {
            n: memory.put(a, late) for n, a in zip("qkv", (q, k, v), strict=True)
        }
        arrays, whole = [wide(q), wide(k), wide(v)], (batch, heads, queries, keys)
        if params.mask != "none":
            kept = rng.random((batch, 1, queries, keys)) < 0.6
            kept[:, :, -1:] = False
            held = kept if params.mask == "bool" else np.where(kept, 0, low).astype(np.float32)
            named["mask"] = repeated(memory.put(held), whole)
            arrays.append(held)
        if params.causal == "placed":
            places = rng.integers(0, keys - queries + 1, batch)
            named["positions"] = memory.put(places)
            arrays.append(places)
        y = memory.empty((batch, heads, queries, params.head_v), NUMPY[dtype], late)
        before, behind = params.reach
        call = CALLS.make(
            "attention_rows", dtype.short, **named, y=y, mask_kind=params.mask,
            order=params.causal, zero_rows=params.zero_rows,
            window_left=before, window_right=behind,
            global_keys=params.global_keys, y_type=dtype.short, scale=params.scale,
            fill=params.fill, softcap=params.softcap,
        )  # fmt: skip

        def expected() -> list[Expected]:
            with np.errstate(all="ignore"):
                (value,) = params.reference(arrays)
            return [Expected(y, value, max(TOLERANCE[dtype], 1e-5))]

        return call, expected

    return make


def ramp(dtype: DType, shape: Sequence[int], order: Sequence[int] = (), skipped: int = 0) -> Maker:
    def make(memory: Memory, rng: np.random.Generator) -> Made:
        y = memory.empty(shape, NUMPY[dtype], order=order)
        steps = tuple(map(float, rng.integers(-9, 9, len(shape))))
        before = View(y.buffer, (skipped,), (0,)) if skipped else None
        call = CALLS.make(
            "iota", y=y, skipped=before, y_type=dtype.short, start=-2.0, steps=steps
        )  # fmt: skip
        value = skipped - 2 + sum(s * i for s, i in zip(steps, np.indices(shape), strict=True))
        return call, lambda: [Expected(y, value, 0.0)]

    return make


def top_k(dtype: DType, rows: int, cols: int, k: int, largest: bool = True) -> Maker:
    """Rows of few different numbers; two have a NaN."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = rng.integers(-5, 5, (rows, cols)).astype(NUMPY[dtype])
        if rows and dtype in TOLERANCE:
            x[0, 0] = x[rows // 2, cols // 2] = np.nan
        elif rows:  # numbers that float32 takes for equal, and the least number
            x += np.iinfo(x.dtype).max - 5
            x[0, 0] = x[rows // 2, cols // 2] = np.iinfo(x.dtype).min
        y, index = memory.empty((rows, k), NUMPY[dtype]), memory.empty((rows, k), np.int64)
        call = CALLS.make(
            "top_k", dtype.short, x=memory.put(x, 1, 3), y=y, index=index, smallest=not largest
        )

        def expected() -> list[Expected]:
            exact = wide(x) if dtype in TOLERANCE else x
            value, places = TopKParams(k, largest).reference([exact])
            return [Expected(y, value, TOLERANCE.get(dtype, 0)), Expected(index, places, 0)]

        return call, expected

    return make


def resize(dtype: DType, image: tuple[int, int, int, int], params: ResizeParams) -> Maker:
    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, image, dtype)
        (value,) = params.reference([wide(x).astype(np.float32)])
        scales = params.scales or (0.0, 0.0)
        n, c, p, q = value.shape
        y = memory.empty((n, p, q, c), NUMPY[dtype])
        call = CALLS.make(
            "resize", dtype.short, x=memory.put(x.transpose(0, 2, 3, 1)), y=y, how=params.how,
            cubic=bool(params.cubic), slope=params.cubic,
            scale_h=scales[0], scale_w=scales[1],
        )  # fmt: skip
        transposed = value.transpose(0, 2, 3, 1)
        return call, lambda: [Expected(y, transposed, max(TOLERANCE[dtype], 4e-6))]

    return make


def kv_append(dtype: DType, past: bool, slots: int) -> Maker:
    batch, heads, rows, size, held = 3, 2, 4, 20, 5

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        new = some(rng, (batch, rows, heads * size), dtype)
        old = [some(rng, (batch, heads, held, size), dtype)] if past else []
        positions = rng.integers(0, held + 1 if past else 1, batch)
        y = memory.empty((batch, heads, slots, size), NUMPY[dtype])
        view = memory.put(new.reshape(batch, rows, heads, size).swapaxes(1, 2), order=(0, 2, 1, 3))
        call = CALLS.make(
            "kv_append", dtype.short, new=view, past=memory.put(old[0]) if past else None,
            positions=memory.put(positions), y=y,
        )  # fmt: skip

        def expected() -> list[Expected]:
            params = KvCacheAppendParams(heads, size, 0, heads * size, past)
            (value,) = params.reference([new, *old, positions, np.zeros(slots)])
            return [Expected(y, value, TOLERANCE[dtype])]

        return call, expected

    return make


def recurrent(dtype: DType, params: RecurrentParams, steps: int, batch: int) -> Maker:
    """The products with x in float32, as the kernel is given them."""
    count, units = params.directions, params.hidden

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = rng.standard_normal((steps, batch, params.inputs))
        w = rng.standard_normal((count, params.gates * units, params.inputs)) / params.inputs
        r = (rng.standard_normal((count, params.gates * units, units)) / units).astype(
            NUMPY[dtype]
        )
        bias = rng.standard_normal((count, params.gates * units))
        late = [rng.standard_normal((count, units)).astype(np.float32)] * params.late
        given = [
            rng.standard_normal((count, batch, units)).astype(np.float32)
            for _ in range(params.states * params.initial)
        ]
        ahead = np.stack([x @ w[d].T + bias[d] for d in range(count)]).astype(np.float32)
        shapes = {"y": (steps, count, batch, units)}
        made = {
            name: memory.empty(shapes.get(name, (count, batch, units)), np.float32)
            for name in params.results
        }
        call = CALLS.make(
            "recurrent", dtype.short, p=memory.put(ahead), r=memory.put(r),
            rest=memory.put(late[0]) if late else None,
            kind="gru_before" if params.before else params.kind, hidden=units,
            reverse=sum(transposed << d for d, transposed in enumerate(params.reverse)), **made,
            **{name: memory.put(a) for name, a in zip(("h0", "c0"), given, strict=False)},
        )  # fmt: skip

        def expected() -> list[Expected]:
            values = params.reference([x, w, wide(r), bias, *map(wide, late), *map(wide, given)])
            return [Expected(v, a, 1e-5) for v, a in zip(made.values(), values, strict=True)]

        return call, expected

    return make


def _attention() -> Iterator[Case]:
    plain = AttentionParams(2, 40, 24, 0.2, kv_heads=1, layouts=("heads",) * 4)
    for dtype in FLOATS:
        yield Case(f"rows {dtype.short}", attention(dtype, plain, 2, 5, 70), ("128",))
    for zero in ("none", "guarded", "masked", "lowest", "infinite"):
        one = replace(plain, mask="add", zero_rows=zero)
        low = -np.inf if zero in ("none", "guarded", "infinite") else LOWEST
        made = attention(DType.F32, one, 2, 6, 33, low=low)
        yield Case(f"rows add {zero}", made, ("128",))
    for order in ("top", "bottom", "placed"):
        one = replace(plain, causal=order, softcap=1.5)
        yield Case(f"rows {order}", attention(DType.F32, one, 3, 9, 41, late=1), ("128",))
    near = replace(plain, mask="bool", window=(4, 4), global_keys=2, fill=-1e4)
    yield Case("rows window", attention(DType.F32, near, 1, 37, 37), ("128",))
    yield Case("rows nothing", attention(DType.F32, plain, 1, 4, 0), ("128",))


def embedding(dtype: DType, table: DType, shape: tuple[int, int], index: DType, count: int,
              late: int = 0, repeats: int = 1) -> Maker:  # fmt: skip
    """Some indices count from the end; those of the first table so many times."""
    rows, columns = shape

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        tables = [some(rng, (11 + i, columns), table) for i in range(count)]
        ids = [rng.integers(-len(t), len(t), (repeats if i else 1, rows)).astype(NUMPY[index])
               for i, t in enumerate(tables)]  # fmt: skip
        y = memory.empty((repeats * rows, columns), NUMPY[dtype], late)
        call = CALLS.make(
            "embedding", dtype.short, tables=[memory.put(t, late) for t in tables],
            ids=[repeated(memory.put(i), (repeats, rows)) for i in ids], y=y, count=count,
            table_type=table.short, index_type=index.short,
        )  # fmt: skip

        def expected() -> list[Expected]:
            every = [np.broadcast_to(i, (repeats, rows)).reshape(-1) for i in ids]
            value = sum(wide(t)[i] for t, i in zip(tables, every, strict=True))
            return [Expected(y, np.asarray(value), TOLERANCE[dtype])]

        return call, expected

    return make


def take(dtype: DType, index: DType, lead: tuple[int, int, int], places: int, count: int) -> Maker:
    """Indices that are alike in all but the last of the leading axes; some count from the end."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, (*lead, places), dtype)
        ids = rng.integers(-places, places, (1, 1, lead[2], count)).astype(NUMPY[index])
        y, given = memory.empty((*lead, count), NUMPY[dtype], 1), memory.put(ids)
        given = repeated(given, (*lead, count))
        call = CALLS.make("take", dtype.short, x=memory.put(x, 1, 3), ids=given, y=y,
                          index_type=index.short)  # fmt: skip
        inside = np.broadcast_to(ids, (*lead, count)) % max(places, 1)

        def expected() -> list[Expected]:
            return [Expected(y, np.take_along_axis(wide(x), inside, -1), TOLERANCE.get(dtype, 0))]

        return call, expected

    return make


def arg(dtype: DType, rows: int, cols: int, kind: str, last: bool = False, late: int = 1) -> Maker:
    """Rows of few different numbers, so that many are alike; two have a NaN, one in front."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = rng.integers(-5, 5, (rows, cols)).astype(NUMPY[dtype])
        if dtype in TOLERANCE:
            x[0, 0] = x[rows // 2, cols // 2] = np.nan
        else:  # numbers that float32 takes for equal
            x += np.iinfo(x.dtype).max - 5
        y = memory.empty((rows,), np.int64)
        view = memory.put(x, late, 3 * late)
        call = CALLS.make("arg", dtype.short, x=view, y=y, kind=kind, last=last)

        def expected() -> list[Expected]:
            params = ArgParams(kind, -1, False, last)
            exact = wide(x) if dtype in TOLERANCE else x
            return [Expected(y, params.reference([exact])[0], 0)]

        return call, expected

    return make


def same(size: int, differs: Sequence[int]) -> Maker:
    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = rng.integers(0, 256, size).astype(np.uint8)
        other = x.copy()
        other[list(differs)] ^= 1
        y = memory.put(np.ones(1, np.bool_))
        call = CALLS.make("same", "b1", x=memory.put(x), reference=memory.put(other, 1), y=y)

        def expected() -> list[Expected]:
            return [Expected(y, np.array([not differs]), 0)]

        return call, expected

    return make


def _lookups() -> Iterator[Case]:
    f32, f16 = DType.F32, DType.F16
    yield Case("embedding", embedding(f32, f32, (5, 30), DType.I64, 3), ("256",))
    again = embedding(f16, f32, (7, 24), DType.I64, 2, repeats=3)
    yield Case("embedding again", again, ("256",))
    yield Case("embedding f16", embedding(f16, f32, (7, 64), DType.I32, 1, late=1), ("256",))
    yield Case("embedding nothing", embedding(f32, f32, (0, 8), DType.I64, 1), ("256",))
    yield Case("take", take(f32, DType.I64, (2, 3, 5), 9, 20), ("256",))
    for index in (DType.I32, DType.I64):
        made = take(index, index, (2, 3, 5), 9, 20)
        yield Case(f"take {index.short}", made, ("256",))
    yield Case("take f16", take(f16, DType.I32, (1, 1, 70), 12, 7), ("256",))
    for cols, k in ((1, 1), (300, 7), (9, 9)):
        yield Case(f"top {k} of {cols}", top_k(f32, 3, cols, k), ("256",))
    yield Case("top smallest", top_k(f16, 4, 500, 20, False), ("256",))
    yield Case("top nothing", top_k(f32, 0, 5, 2), ("256",))
    for index in (DType.I32, DType.I64):
        yield Case(f"top {index.short}", top_k(index, 4, 600, 9), ("256",))
        yield Case(f"top smallest {index.short}", top_k(index, 3, 7, 7, False), ("256",))
    for how in WAYS:
        made = resize(f32, (2, 5, 7, 9), ResizeParams(how, sizes=(15, 4)))
        yield Case(f"resize {how}", made, ("256",))
        if how != NEAREST:
            made = resize(f32, (2, 5, 7, 9), ResizeParams(how, sizes=(15, 4), cubic=-0.75))
            yield Case(f"resize cubic {how}", made, ("256",))
    cubic = ResizeParams("half_pixel", scales=(0.6, 2.0), cubic=-0.5)
    yield Case("resize cubic by scales", resize(f16, (1, 24, 6, 10), cubic), ("256",))
    by_scales = ResizeParams("half_pixel", scales=(2.0, 0.6))
    for dtype, channels in ((f32, 16), (f16, 16), (f16, 11)):
        for slope in (0.0, -0.75):
            for sizes in ((37, 23), (4, 7)):
                params = ResizeParams("half_pixel", sizes=sizes, cubic=slope)
                said = f"{'cubic' if slope else 'linear'} to {sizes[0]} {channels} {dtype.short}"
                yield Case(f"resize {said}", resize(dtype, (2, channels, 9, 20), params), ("256",))
    yield Case("resize by scales", resize(f16, (1, 24, 6, 10), by_scales), ("256",))
    yield Case("cache", kv_append(f16, True, 12), ("256",))
    yield Case("cache first", kv_append(f32, False, 4), ("256",))
    lstm = RecurrentParams("lstm", 6, 40, (False, True), True, ("y", "h", "c"))
    yield Case("lstm", recurrent(f32, lstm, 5, 3), ("512",))
    gru = RecurrentParams("gru", 6, 33, (True,))
    yield Case("gru", recurrent(f16, gru, 4, 2), ("512",))
    before = RecurrentParams("gru", 6, 16, initial=True, results=("h",), before=True)
    yield Case("gru before", recurrent(f32, before, 3, 1), ("512",))
    yield Case("ramp", ramp(f32, (3, 1, 7), (2, 0, 1)), ("256",))
    yield Case("ramp i64", ramp(DType.I64, (300,)), ("256",))
    yield Case("ramp after others", ramp(DType.I64, (3, 40), skipped=7), ("256",))
    yield Case("ramp nothing", ramp(f32, (0, 5)), ("256",))
    for cols in (1, 300, 1000):
        yield Case(f"arg {cols}", arg(f32, 7, cols, "max"), ("256",))
        yield Case(f"arg last {cols}", arg(f16, 7, cols, "min", True), ("256",))
        yield Case(f"arg i64 {cols}", arg(DType.I64, 7, cols, "max"), ("256",))
        yield Case(f"arg i32 {cols}", arg(DType.I32, 7, cols, "min", True), ("256",))
    for dtype, kind, cols in ((f32, "max", 2304), (f16, "min", 1000), (DType.I64, "max", 2050)):
        made = arg(dtype, 17, cols, kind, kind == "min", 0)
        yield Case(f"arg of vectors {dtype.short}", made, ("256",))
    for size, differs in ((1000, ()), (1000, (999,)), (4097, (0, 4096)), (0, ())):
        yield Case(f"same {size} {len(differs)}", same(size, differs), ("256",))


RESIDUAL = replace(cases.RESNET, dtypes=(), stores=())
"""In the image's type."""


def _convolutions() -> Iterator[Case]:
    tiles = ("64x64x8", "128x128x8")
    stem = conv(DType.F32, (1, 11, 8, 3), (10, 7, 7), pads=(3, 3), strides=(2, 2))
    yield Case("conv f32 stem", stem, tiles[:1])
    wide_image = conv(DType.F32, (2, 7, 6, 16), (70, 3, 3), pads=(1, 1), chain=RESIDUAL)
    yield Case("conv f32", wide_image, tiles)
    apart = conv(DType.F32, (1, 9, 9, 5), (8, 3, 2), dilations=(2, 3), strides=(1, 2), late=1)
    yield Case("conv f32 apart", apart, tiles[:1])


def _few() -> Iterator[Case]:
    """Few rows: slices as a whole and in a ring, clusters, ragged edges, norms in front."""
    needs, alone = ("wgmma",), ("64x16x1", "64x24x1")
    for m, n, k in ((70, 136, 192), (1, 9, 64)):
        yield Case(f"few {m} {n} {k}", gemm("f16", m, n, k, "nk"), alone, needs)
    one, new = ("1x16x8x128x3", "1x16x8x128x2"), ("clusters",)
    for norm in ("none", "layer", "rms"):
        yield Case(f"one row {norm}", gemm("f16", 1, 90, 1096, "nk", norm=norm), one, new)
    yield Case(
        "one row late", gemm("f16", 1, 40, 136, "nk", chain=layer(DType.F16), late=8), one, new
    )
    yield Case("one row bf16", gemm("bf16", 1, 40, 264, "nk"), one, new)
    yield Case("one row tiles", gemm("f16", 1, 16 * 601 + 3, 256, "nk"), one, new)
    yield Case("few bf16", gemm("bf16", 70, 130, 256, "nk"), ("64x48x2", "64x32x4"), needs)
    for norm in ("layer", "rms"):
        made = gemm("f16", 67, 72, 512, "nk", chain=layer(DType.F16), norm=norm)
        tiles = ("64x32x1", "64x48x2", "64x64x4", "32x64x64x4", "64x64x64x3")
        yield Case(f"few {norm}", made, tiles, needs)
    made = gemm("f16", 40, 40, 2688, "nk", chain=layer(DType.F16), norm="layer")
    yield Case("few ring", made, ("64x48x1", "64x96x2"), needs)
    made = gemm("f16", 33, 40, 256, "kn", norm="layer", parts=3)
    yield Case("normed cut", made, ("32x64x64x4",))
    made = gemm("bf16", 37, 40, 75, "nk", norm="layer")
    yield Case("normed odd", made, ("32x64x64x4",), ("bf16",))
    row = Chain(("full", "row", "full"), (Step("mul", (0, 1)), Step("add", (3, 2))), (4, 3),
                (DType.F32, DType.F16, DType.F32), (DType.F32, DType.F16))  # fmt: skip
    for late in (0, 8):
        made = gemm("f16", 67, 71, 128, "nk", chain=row, late=late)
        yield Case(f"few sides {late}", made, ("64x64x2",), needs)
    short, medium = ("64x128x1", "16x128"), ("64x256x1", "16x256")
    made = cases.attention(DType.F16, (2, 3, 70), 130, 64, 64)
    yield Case("few keys 130", made, medium, needs)
    made = cases.attention(DType.F16, (1, 2, 70), 197, 64, 64)
    yield Case("few keys 197", made, ("64x208x1",), needs)
    made = cases.attention(DType.F16, (1, 4, 33), 40, 40, 24, shared=2, order="bottom")
    yield Case("few keys shared", made, short, needs)
    least = float(np.finfo(np.float32).min)
    made = cases.attention(DType.F16, (1, 2, 70), 128, 64, 64, order="bottom", fill=least,
                           mask="add", low=least, flat=True)  # fmt: skip
    yield Case("few keys hidden", made, short, needs)
    for mask, flat in (("add", True), ("add", False), ("bool", True)):
        low = -1e9 if mask == "add" else -np.inf
        made = cases.attention(DType.F16, (2, 2, 70), 100, 32, 32, mask=mask, fill=-np.inf,
                               low=low, zero_rows="guarded", flat=flat)  # fmt: skip
        yield Case(f"few keys {mask} {flat}", made, short[: 1 + flat], needs)
    made = cases.attention(DType.BF16, (1, 2, 70), 99, 64, 64, order="top", fill=-1e4,
                           softcap=1.5)  # fmt: skip
    yield Case("few keys capped", made, short, needs)


def _depths() -> Iterator[Case]:
    """Blocks of a cluster that share the depth of a tile; some have none of it."""
    needs, residual = ("wgmma",), Chain(
        ("full", "full"), (Step("add", (0, 1)),), (2,), (DType.F32, DType.F16), (DType.F16,)
    )  # fmt: skip
    pair, four, eight = "128x128x64x5x1d2", "128x128x64x4x1d4", "128x128x64x4x1d8"
    made = gemm("f16", 150, 200, 520, "nk", chain=layer(DType.F16))
    yield Case("depths layer", made, (pair, four), needs)
    made = gemm("bf16", 129, 400, 712, "kn", chain=layer(DType.BF16), late=8)
    yield Case("depths bf16", made, (pair, four), needs)
    made = gemm("f16", 70, 136, 96, "nk")
    yield Case("depths few steps", made, (eight,), needs)
    made = gemm("f16", 200, 264, 1096, "nk", chain=residual, norm="rms", summed=(8, 0))
    yield Case("depths rms", made, (four,), needs)
    made = cases.conv(DType.F16, (3, 9, 9, 72), (136, 3, 3), pads=(1, 1))
    yield Case("depths conv", made, (pair, eight), needs)


def _sums() -> Iterator[Case]:
    """Many rows: norms repeated from sums of parts of rows, and such sums written."""
    needs = ("wgmma",)
    for norm, parts in (("layer", 3), ("rms", 8)):
        made = gemm("f16", 150, 128, 192, "nk", chain=layer(DType.F16), norm=norm,
                    summed=(parts, 0))  # fmt: skip
        yield Case(f"sums {norm}", made, ("128x128x64x6x2", "128x128x64x6x1"), needs)
    made = gemm("f16", 150, 192, 72, "nk", chain=layer(DType.F16), summed=(0, 2))
    yield Case("sums made", made, ("128x96x64x7x1",), needs)
    scaled = Chain(("full", "row"), (Step("mul", (0, 1)), Step("gelu", (2,))), (3,),
                   (DType.F32, DType.F16), (DType.F16,))  # fmt: skip
    made = gemm("f16", 150, 200, 72, "nk", chain=scaled)
    yield Case("wgmma crowded", made, ("128x192x64x5x2",), needs)
    made = gemm("f16", 200, 400, 328, "nk", chain=layer(DType.F16))
    yield Case("wgmma pairs", made, ("64x192x64x6x2x", "64x192x64x6x2"), needs)
    made = gemm("bf16", 70, 584, 72, "kn")
    yield Case("wgmma pairs by columns", made, ("64x192x64x6x2x",), needs)
    for op in ("gelu", "gelu_tanh"):
        last = Chain(("full", "row"), (Step("add", (0, 1)), Step(op, (2,))), (3,),
                     (DType.F32, DType.F32), (DType.F16,))  # fmt: skip
        made = gemm("f16", 150, 200, 72, "nk", chain=last)
        yield Case(f"wgmma {op}", made, ("128x192x64x5x1", "128x192x64x5x2"), needs)
    made = gemm("f16", 150, 104, 24, "nk", pad=0, deep=64)
    yield Case("wgmma deep", made, ("128x96x64x7x1", "128x32x64x9x1"), needs)
    yield Case("mma deep", made, ("64x64x64x3",))
    for columns in (301, 262):  # rows that begin at any float, and at every second one
        made = gemm("f16", 150, columns, 72, "nk", chain=Chain(("full",), (), (0,), (DType.F32,)))
        tiles = ("128x256x64x4x1", "128x192x64x5x1", "128x128x64x6x2", "128x96x64x7x1")
        yield Case(f"wgmma uneven {columns}", made, tiles[: 4 if columns % 2 else 1], needs)
    for columns in (301, 262):
        made = gemm("f16", 150, columns, 72, "nk")
        tiles = ("128x128x64x6x2", "128x192x64x5x1", "128x96x64x7x1")
        yield Case(f"wgmma uneven f16 {columns}", made, tiles[: 3 if columns % 2 else 1], needs)
    made = gemm("bf16", 70, 256, 64, "nk", norm="layer", summed=(2, 2))
    yield Case("sums both", made, ("128x128x64x6x2",), needs)


CASES = (
    *cases.CASES, *_attention(), *_lookups(), *_convolutions(), *_few(), *_depths(), *_sums(),
    *integer_cases.CASES, *block_cases.CASES, *nbits_cases.CASES, *cache_cases.CASES,
    *sparse_cases.CASES, *mlp_cases.CASES, *projection_cases.CASES, *indexed_cases.CASES,
    *gated_cases.CASES, *low_rank_cases.CASES, *quantized_cases.CASES, *line_cases.CASES,
    *float8_cases.CASES, *window_cases.CASES, *concat_cases.CASES,
    *expansion_cases.CASES, *grouped_cases.CASES, *normed_cases.CASES,
    *volume_cases.CASES,
)  # fmt: skip
