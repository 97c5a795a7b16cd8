"""What every way of running GPU kernels has to compute: calls at awkward shapes, with references.

A case makes its memory anew each time, from a seed.  Tolerances are shares of the largest number
of the reference, which is taken in float64 from the operands as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.attention import LISTED_SIDE
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.attention import UNLIMITED
from tracea_graph.ops.chain import FLOAT8, Chain, Step

__all__ = ["CASES", "Case", "Expected", "check"]

FLOATS = (DType.F32, DType.F16, DType.BF16)
TOLERANCE = {DType.F32: 2e-6, DType.F16: 1e-3, DType.BF16: 8e-3}
"""Half a unit of the last place of the largest number, and a little."""
HALF_STEP = 2.0**-4 * 1.02
"""What rounding to 8-bit floats loses of a number, and what computing it loses besides."""
_TF32 = 1e-3
"""The same of sums of products of tf32 numbers."""
EPSILON = 1e-5


@dataclass(frozen=True)
class Expected:
    """A view a kernel wrote, and what should be there: within a share of its largest number, or
    equal where ``share`` is 0."""

    view: View
    value: Array
    share: float


Made = tuple[Call, Callable[[], list[Expected]]]
"""A call, and how to work out what should come of it."""


@dataclass(frozen=True)
class Case:
    """``make`` fills a memory and says the call and how to work out what should come of it."""

    name: str
    make: Callable[[Memory, np.random.Generator], Made]
    tiles: tuple[str, ...]
    needs: tuple[str, ...] = ()

    @property
    def rare(self) -> bool:
        """Whether its kernel is much like another's: run here only among the slow tests."""
        return self.name in RARE


def check(memory: Memory, expected: Sequence[Expected]) -> None:
    """Assert that everything is there, that nothing else was written, and that nothing is NaN
    that should be none."""
    for one in expected:
        got = memory.of(one.view)
        assert memory.untouched(one.view), "wrote beside its result"
        if one.share == 0:
            assert np.array_equal(got, one.value.astype(got.dtype))
            continue
        found, wanted = got.astype(np.float64), np.asarray(one.value, np.float64)
        odd = ~np.isfinite(wanted)
        assert np.array_equal(found[odd], wanted[odd], equal_nan=True)
        if (plain := ~odd).any():
            largest = np.abs(wanted[plain]).max() or 1.0
            error = np.abs(found[plain] - wanted[plain]).max() / largest
            assert error <= one.share, f"{error:.2e} of the largest number"


def wide(array: Array) -> Array:
    """As references take numbers."""
    return array if array.dtype == np.bool_ else array.astype(np.float64)


# ---- elementwise ----------------------------------------------------------------------------


def some(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> Array:
    """Random numbers of a type; truth values as they fall."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype not in FLOATS:
        low = 0 if dtype is DType.U8 else -100
        return rng.integers(low, 100, shape).astype(NUMPY[dtype])
    return rng.standard_normal(shape).astype(NUMPY[dtype])


def lying(kind: str, shape: Sequence[int]) -> list[int]:
    """The shape of an operand of that kind, with 1 where it is repeated."""
    rows = [n if kind in ("full", "col") else 1 for n in shape[:-1]]
    return [*rows, shape[-1] if kind in ("full", "row") else 1]


def repeated(view: View, shape: Sequence[int]) -> View:
    """A view in the shape of a result, stride 0 where it is repeated."""
    steps = tuple(
        s if d == n else 0 for s, d, n in zip(view.strides, view.dims, shape, strict=True)
    )
    return replace(view, dims=tuple(shape), strides=steps)


Maker = Callable[[Memory, np.random.Generator], Made]


def elementwise(
    chain: Chain, shape: Sequence[int], lead: int = 0, pad: int = 0, order: Sequence[int] = ()
) -> Maker:
    def make(memory: Memory, rng: np.random.Generator) -> Made:
        xs, views = [], []
        for kind, dtype in zip(chain.operands, chain.operand_types, strict=True):
            x = some(rng, lying(kind, shape), dtype)
            xs.append(x)
            views.append(repeated(memory.put(x, lead, pad, order), shape))
        ys = [memory.empty(shape, NUMPY[d], lead, pad) for d in chain.result_types]
        call = CALLS.listed("elementwise", [*views, *ys], chain=chain)

        def expected() -> list[Expected]:
            with np.errstate(all="ignore"):
                values = chain.reference([wide(x) for x in xs])
            shares = [TOLERANCE.get(d, 0.0) for d in chain.result_types]
            return [Expected(*one) for one in zip(ys, values, shares, strict=True)]

        return call, expected

    return make


def gated(dtype: DType) -> Chain:
    """Two operands, a bias and a factor of each row: ``gelu(x · f + b) · y``."""
    steps = (Step("mul", (0, 3)), Step("add", (4, 2)), Step("gelu", (5,)), Step("mul", (6, 1)))
    types = (dtype, dtype, DType.F32, DType.F32)
    stores = () if dtype is DType.F32 else (dtype,)
    return Chain(("full", "full", "row", "col"), steps, (7,), types, stores)


CHOSEN = Chain(
    ("full", "full", "scalar"),
    (Step("less", (0, 2)), Step("and", (3, 1)), Step("where", (4, 0, -1.0)), Step("not", (4,))),
    (5, 6), (DType.I64, DType.BOOL, DType.I32), (DType.I32, DType.BOOL),
)  # fmt: skip
"""Integers and truth values in and out."""
CAST = Chain(("full",), (Step("mul", (0, 40.0)), Step("saturate", (1, 0.0, 255.0)),
             Step("round", (2,))), (3,), (DType.F16,), (DType.U8,))  # fmt: skip
SHAPES: tuple[tuple[int, ...], ...] = ((0,), (1,), (5, 0), (1, 1), (7, 13), (3, 64), (2, 1031))
DEEP: tuple[tuple[int, ...], ...] = ((3, 5, 7, 11), (2, 1, 4, 1, 3, 8))


SHORT, LONG = ("256x8",), ("256x16",)


def _elementwise() -> Iterator[Case]:
    for dtype in FLOATS:
        for shape in SHAPES:
            yield Case(f"gated {dtype.short} {shape}", elementwise(gated(dtype), shape), LONG)
        yield Case(f"gated {dtype.short} late", elementwise(gated(dtype), (5, 48), 1, 3), LONG)
    for shape in DEEP:
        order = tuple(reversed(range(len(shape))))
        yield Case(f"deep {shape}", elementwise(gated(DType.F32), shape), LONG)
        yield Case(f"transposed {shape}", elementwise(gated(DType.F16), shape, order=order), LONG)
    for shape in ((9,), (4, 33)):
        yield Case(f"chosen {shape}", elementwise(CHOSEN, shape), LONG)
        yield Case(f"cast {shape}", elementwise(CAST, shape, lead=1), SHORT)


# ---- rows -----------------------------------------------------------------------------------


def norm(x: Array, kind: str, epsilon: float) -> Array:
    x = x - x.mean(-1, keepdims=True) if kind == "layer" else x
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def softmax(x: Array, log: bool) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    total = e.sum(-1, keepdims=True)
    return x - x.max(-1, keepdims=True) - np.log(total) if log else e / total


REDUCED: dict[str, Callable[[Array], Array]] = {
    "sum": lambda x: x.sum(-1),
    "absolutes": lambda x: np.abs(x).sum(-1),
    "squares": lambda x: (x * x).sum(-1),
    "max": lambda x: x.max(-1),
    "min": lambda x: x.min(-1),
    "product": lambda x: x.prod(-1),
}


def rows(op: str, dtype: DType, shape: tuple[int, int], late: int = 0, spoilt: bool = False,
         **attributes: Any) -> Maker:  # fmt: skip
    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, shape, dtype)
        if spoilt:  # a row that is all -inf, one with a NaN, one with an infinity
            x[0], x[1, -1], x[2, 0] = -np.inf, np.nan, np.inf
        more = dict[str, Any]()
        if op == "norm":
            gamma, beta = (rng.standard_normal(shape[1:]).astype(np.float32) for _ in "gb")
            more = {"gamma": memory.put(gamma), "beta": memory.put(beta)}
        view = memory.put(x, late, 3 * late)
        y = memory.empty(shape[:1] if op == "reduce" else shape, NUMPY[dtype], late)
        call = CALLS.make(op, dtype.short, x=view, y=y, **more, **attributes)

        def expected() -> list[Expected]:
            z = wide(x)
            with np.errstate(all="ignore"):
                if op == "norm":
                    value = norm(z, attributes["kind"], attributes["epsilon"]) * gamma + beta
                elif op == "softmax":
                    value = softmax(z, attributes["log"])
                    if step := attributes.get("step"):
                        bounds = attributes["low"], attributes["high"]
                        value = np.clip(np.rint(value / step), *bounds) * step
                else:
                    value = REDUCED[attributes["kind"]](z)
                    value = value / shape[1] if attributes["mean"] else value
            return [Expected(y, value, 4 * TOLERANCE[dtype])]

        return call, expected

    return make


RESIDUAL = Chain(
    ("full", "full", "row"), (Step("add", (0, 1)), Step("add", (3, 2))), (4, 4),
    (DType.F16, DType.F16, DType.F32), (DType.F32, DType.F16),
)  # fmt: skip


def residual(shape: tuple[int, int]) -> Maker:
    """The norm of a sum, which is stored too."""

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        pairs = zip(RESIDUAL.operands, RESIDUAL.operand_types, strict=True)
        xs = [some(rng, lying(kind, shape), dtype) for kind, dtype in pairs]
        views = [repeated(memory.put(x), shape) for x in xs]
        y, also = memory.empty(shape, np.float16), memory.empty(shape, np.float16, 1)
        call = CALLS.make("norm", "f16", x=views, y=y, also=also, kind="rms", epsilon=1e-5,
                          chain=RESIDUAL)  # fmt: skip

        def expected() -> list[Expected]:
            total = np.asarray(sum(wide(x) for x in xs))
            value, share = norm(total, "rms", 1e-5), TOLERANCE[DType.F16]
            return [Expected(y, value, share), Expected(also, total, share)]

        return call, expected

    return make


TEAMS, PART_OF_WARP = ("4x32", "1x256", "1x512"), ("16x8", "8x16")


def _rows() -> Iterator[Case]:
    layer = {"kind": "layer", "epsilon": 1e-5}
    for shape in ((1, 1), (5, 768), (3, 1031)):
        yield Case(f"layer {shape}", rows("norm", DType.F32, shape, **layer), TEAMS)
        for dtype in FLOATS[1:]:
            made = rows("norm", dtype, shape, **layer)
            yield Case(f"layer {dtype.short} {shape}", made, TEAMS[:1])
    for shape in ((0, 8), (7, 13), (2, 70001), (2, 20480)):
        made = rows("norm", DType.F32, shape, kind="rms", epsilon=1e-6)
        yield Case(f"rms {shape}", made, TEAMS[1:2])
    yield Case("layer late", rows("norm", DType.F16, (5, 40), 1, **layer), TEAMS[:1])
    for shape in ((37, 96), (3, 31), (5, 520)):  # whole runs, none, and more than threads hold
        yield Case(f"short {shape}", rows("norm", DType.F16, shape, **layer), PART_OF_WARP)
    made = rows("softmax", DType.F16, (19, 200), log=False)
    yield Case("short softmax", made, PART_OF_WARP)
    bytes_of = {"stepped": True, "step": 1 / 255, "low": 1.0, "high": 90.0}
    made = rows("softmax", DType.F32, (4, 8), log=False, **bytes_of)
    yield Case("softmax in steps", made, (*PART_OF_WARP, *TEAMS[:1]))
    made = rows("reduce", DType.F16, (21, 72), kind="max", mean=False)
    yield Case("short reduce", made, PART_OF_WARP)
    yield Case("residual", residual((6, 104)), (*PART_OF_WARP, *TEAMS[:1]))
    for log in (False, True):
        for shape in ((4, 7), (3, 2048)):
            made = rows("softmax", DType.F32, shape, log=log)
            yield Case(f"softmax {log} {shape}", made, TEAMS[:2])
        spoilt = rows("softmax", DType.F16, (5, 304), spoilt=True, log=log)
        yield Case(f"softmax {log} spoilt", spoilt, TEAMS[:1])
    for kind in REDUCED:
        made = rows("reduce", DType.F32, (5, 36), kind=kind, mean=False)
        yield Case(f"reduce {kind}", made, TEAMS[:1])
    spoilt = rows("reduce", DType.BF16, (4, 500), spoilt=True, kind="max", mean=False)
    yield Case("reduce max spoilt", spoilt, TEAMS[:1])
    made = rows("reduce", DType.F16, (3, 9000), kind="sum", mean=True)
    yield Case("reduce mean", made, TEAMS[2:])


# ---- products -------------------------------------------------------------------------------

GELU = (Step("gelu", (0,)), Step("mul", (3, 2)), Step("add", (4, 1)))
"""The epilogue of a layer: activation, a factor of each row, the residual."""


def layer(dtype: DType) -> Chain:
    stores = () if dtype is DType.F32 else (dtype,)
    return Chain(("full", "full", "col"), GELU, (5,), (DType.F32, dtype, DType.F32), stores)


def cut(memory: Memory, tiles: int, parts: int, size: int) -> dict[str, View]:
    """Room for the sums of so many parts of each tile, and the counts of those that came."""
    partial = memory.empty((tiles, parts, size), np.float32)
    return {"partial": partial, "arrivals": memory.put(np.zeros(tiles, np.int32))}


def gemm(
    dtype: str, m: int, n: int, k: int, layout: str, *, outer: Sequence[int] = (),
    shared: bool = False, late: int = 0, bias: bool = True, chain: Chain | None = None,
    transposed: bool = False, parts: int = 0, pad: int = 8, norm: str = "none",
    summed: tuple[int, int] = (0, 0), deep: int = 0,
) -> Maker:  # fmt: skip
    """``outer`` products, which perhaps share w; x perhaps by columns; the depth perhaps cut
    into parts, in tiles of 32 × 64; rows of x, which are off zero, perhaps normalised.  ``summed``
    are the parts of rows of x whose sums are there, and of the result whose sums are asked for.
    Rows of w perhaps have zeros behind, up to ``deep`` numbers."""
    own = {"f16": DType.F16, "bf16": DType.BF16}.get(dtype, DType.F32)

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, (*outer, m, k), own)
        if norm != "none":
            x = (wide(x) * 3 + rng.standard_normal((m, 1))).astype(x.dtype)
        w = some(rng, (*(() if shared else outer), *((n, k) if layout == "nk" else (k, n))), own)
        w = np.pad(w, ((0, 0), (0, deep - k))) if deep else w
        order = (*range(len(outer)), len(outer) + 1, len(outer)) if transposed else ()
        named: dict[str, Any] = {
            "x": memory.put(x, late, 0 if transposed else pad + late, order),
            "w": memory.put(w, late, pad + late),
        }
        b, more, kinds = None, list[Array](), (own,)
        if bias:
            b = rng.standard_normal(n).astype(np.float32)
            named["bias"] = memory.put(b)
        whole = (*outer, m, n)
        if chain is not None:
            shapes = [lying(kind, whole) for kind in chain.operands[1:]]
            pairs = zip(shapes, chain.operand_types[1:], strict=True)
            more = [some(rng, shape, dtype) for shape, dtype in pairs]
            named["inputs"] = [repeated(memory.put(one), whole) for one in more]
            kinds = chain.result_types
        ys = [memory.empty(whole, NUMPY[kind], late, late) for kind in kinds]
        if norm != "none":
            named |= {"norm": norm, "epsilon": EPSILON}
            named |= {one: memory.empty((m,), np.float32) for one in ("mean", "inverse")}
        if norm == "layer":
            sums = wide(w).sum(-1 if layout == "nk" else -2).astype(np.float32)
            named["column_sums"] = memory.put(sums)
        if parts:
            named |= cut(memory, int(np.prod(outer)) * -(-m // 32) * -(-n // 64), parts, 32 * 64)
        given, asked = summed
        if given:
            named["x_sums"] = memory.put(part_sums(wide(x), given).astype(np.float32))
        if asked:
            named["y_sums"] = memory.empty((m, asked, 2), np.float32)
        call = CALLS.make("gemm", dtype, **named, y=ys, layout=layout, chain=chain)

        def expected() -> list[Expected]:
            rows, moments = (wide(x), []) if norm == "none" else normalised(wide(x), norm)
            told = moments and [
                Expected(named[one], value, 1e-5)
                for one, value in zip(("mean", "inverse"), moments, strict=True)
                if norm == "layer" or one == "inverse"
            ]
            rows = np.pad(rows, ((0, 0), (0, deep - k))) if deep else rows
            sums = rows @ (wide(w).swapaxes(-1, -2) if layout == "nk" else wide(w))
            sums = sums if b is None else sums + b
            value = [sums] if chain is None else chain.reference([sums, *map(wide, more)])
            rounding = _TF32 if dtype == "tf32" else 3e-6
            shares = [max(TOLERANCE[kind], rounding) for kind in kinds]
            if asked:
                told = [*told, Expected(named["y_sums"], part_sums(value[0], asked), shares[0])]
            return [*told, *(Expected(*one) for one in zip(ys, value, shares, strict=True))]

        return call, expected

    return make


def part_sums(x: Array, parts: int) -> Array:
    """The sums, and sums of squares, of equal parts of rows."""
    cut = x.reshape(len(x), parts, -1)
    return np.stack([cut.sum(-1), (cut * cut).sum(-1)], -1)


def normalised(x: Array, norm: str) -> tuple[Array, list[Array]]:
    """Rows as a norm leaves them, and their means and inverse deviations."""
    mean = x.mean(-1) if norm == "layer" else np.zeros(len(x))
    inverse = 1 / np.sqrt(((x - mean[:, None]) ** 2).mean(-1) + EPSILON)
    return (x - mean[:, None]) * inverse[:, None], [mean, inverse]


def _products() -> Iterator[Case]:
    tiles = {"f16": ("64x64x64x3", "128x128x32x4", "32x64x64x4"), "bf16": ("64x64x64x3",),
             "tf32x3": ("64x64x32x3", "128x64x16x4", "32x64x32x4"),
             "f32": ("64x64x8", "128x128x8")}  # fmt: skip
    for dtype, ones in tiles.items():
        needs = ("bf16",) if dtype == "bf16" else ()
        own = {"f16": DType.F16, "bf16": DType.BF16}.get(dtype, DType.F32)
        for layout in ("nk", "kn"):
            for m, n, k in ((1, 1, 1), (70, 136, 200), (13, 40, 33)):
                made = gemm(dtype, m, n, k, layout)
                yield Case(f"{dtype} {layout} {m} {n} {k}", made, ones[: 1 + 2 * (m == 70)], needs)
        made = gemm(dtype, 67, 72, 96, "nk", chain=layer(own))
        yield Case(f"{dtype} layer", made, ones, needs)
    for layout in ("nk", "kn"):
        made = gemm("tf32", 70, 136, 200, layout)
        yield Case(
            f"tf32 {layout}", made, tiles["tf32x3"][:: 1 if layout == "nk" else 3], ("bf16",)
        )
    for parts in (1, 3, 5):
        made = gemm("f16", 70, 136, 200, "kn", parts=parts)
        yield Case(f"f16 cut in {parts}", made, tiles["f16"][2:])
    made = gemm("f16", 33, 24, 260, "nk", outer=(2,), chain=layer(DType.F16), parts=3)
    yield Case("f16 batch cut", made, tiles["f16"][2:])
    for shared in (False, True):
        made = gemm("f16", 33, 24, 16, "kn", outer=(2, 3), shared=shared, bias=False)
        yield Case(f"f16 batch {shared}", made, tiles["f16"][:1])
    yield Case("f16 late", gemm("f16", 20, 70, 50, "nk", late=1), tiles["f16"][:1])
    yield Case("f16 transposed", gemm("f16", 40, 33, 72, "kn", transposed=True), tiles["f16"][:1])
    for m, n, k in ((0, 5, 4), (5, 0, 4), (5, 4, 0)):
        yield Case(f"f16 nothing {m} {n} {k}", gemm("f16", m, n, k, "nk"), tiles["f16"][:1])


def _warpgroups() -> Iterator[Case]:
    """By warpgroups: ragged tiles, several tiles a block, batches, and epilogues with vectors."""
    needs, halves = ("wgmma",), "128x128x64x6x1"
    both = (halves, "128x128x64x6x2")
    for layout in ("nk", "kn"):
        for m, n, k in ((70, 136, 200), (257, 40, 72), (1, 8, 8)):
            made = gemm("f16", m, n, k, layout)
            yield Case(f"wgmma {layout} {m} {n} {k}", made, both if m == 257 else both[:1], needs)
    yield Case("wgmma bf16", gemm("bf16", 70, 136, 200, "kn"), both[:1], needs)
    for dtype, tiles in (("tf32", ("128x256x32x4x1", "128x96x32x7x1")),
                         ("tf32x3", ("128x128x32x4x1", "128x64x32x6x1"))):  # fmt: skip
        for m, n, k in ((257, 264, 328), (70, 136, 200)):
            made = gemm(dtype, m, n, k, "nk")
            yield Case(f"wgmma {dtype} {m} {n} {k}", made, tiles[: 1 + (m == 257)], needs)
        made = gemm(dtype, 140, 200, 96, "nk", chain=layer(DType.F32))
        yield Case(f"wgmma {dtype} layer", made, tiles, needs)
        made = gemm(dtype, 140, 72, 100, "nk", outer=(2,), bias=False)
        yield Case(f"wgmma {dtype} batch", made, tiles[1:], needs)
    made = gemm("f16", 130, 264, 136, "nk", chain=layer(DType.F16))
    yield Case("wgmma layer", made, ("128x256x64x4x1", "128x192x64x5x1", "128x96x64x7x1"), needs)
    row = Chain(("full", "row", "full"), (Step("mul", (0, 1)), Step("add", (3, 2))), (4, 3),
                (DType.F32, DType.F16, DType.F32), (DType.F32, DType.F16))  # fmt: skip
    for late in (0, 8):
        made = gemm("f16", 67, 72, 136, "kn", outer=(2, 3), chain=row, late=late)
        yield Case(f"wgmma batch {late}", made, both[1:], needs)
    made = gemm("f16", 33, 24, 16, "kn", outer=(2, 3), shared=True, bias=False)
    yield Case("wgmma shared", made, both[:1], needs)


# ---- attention ------------------------------------------------------------------------------


def attention(
    dtype: DType, shape: tuple[int, int, int], keys: int, head: int, head_v: int, *,
    shared: int = 1, mask: str = "none", order: str = "none", fill: float = -np.inf,
    low: float = -np.inf, softcap: float = 0.0, zero_rows: str = "none", late: int = 0,
    flat: bool = False, near: tuple[int, int] | None = None, band: tuple[int, int] | None = None,
    lists: bool = True, factor: float = 0.0, y_late: int = 0, globals_: int = 0,
    rounded: bool = False,
) -> Maker:  # fmt: skip
    """``shape``: batch, heads, queries; ``shared`` heads of queries to one of keys.  What is
    masked has ``low`` added, the keys of the first query all; or all queries have one mask.
    Queries see the keys that are ``near``, so many before and after their own, and the first
    ``globals_``, whose queries see all keys; or the mask keeps such a ``band``, whose tiles are
    listed if it ``lists`` them.  With a ``factor``, 8-bit floats are stored.  The result starts
    ``y_late``.  Factors in float32 may be ``rounded`` to tf32."""
    batch, heads, queries = shape

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        lying = [(heads, queries, head), (heads // shared, keys, head),
                 (heads // shared, keys, head_v)]  # fmt: skip
        q, k, v = (some(rng, (batch, *dims), dtype) for dims in lying)
        views = [memory.put(x, late, late, (0, 2, 1, 3)) for x in (q, k, v)]
        named: dict[str, Any] = dict(zip("qkv", views, strict=True))
        whole = (batch, heads, queries, keys)
        kept, added = np.ones((1, 1, 1, 1), np.bool_), np.zeros((1, 1, 1, 1), np.float32)
        if mask != "none":
            if band:
                kept = close_to(np.arange(queries), keys, band)[None, None]
            else:
                kept = rng.random((batch, 1, 1 if flat else queries, keys)) < 0.7
                kept[:, :, :1] = kept[:, :, :1] & flat
            added = np.where(kept, 0, low).astype(np.float32)
            named["mask"] = repeated(memory.put(kept if mask == "bool" else added), whole)
            if band and lists:
                tiles = listed_tiles(kept[0, 0] if mask == "bool" else added[0, 0])
                named["listed"] = memory.put(tiles)
        first = rng.integers(0, keys - queries + 1, batch) if order == "placed" else np.zeros(1)
        if order == "placed":
            named["positions"] = memory.put(first)
        kind = FLOAT8 if factor else dtype
        y = memory.empty(
            (batch, heads, queries, head_v), NUMPY[kind], late + y_late, 0, (0, 2, 1, 3)
        )
        left, right = near or (-1, 0)
        multiplies = "tf32" if rounded else "tf32x3" if dtype is DType.F32 else dtype.short
        call = CALLS.make("attention", multiplies, **named, y=y, mask_kind=mask, order=order,
                          zero_rows=zero_rows, window_left=left, window_right=right,
                          global_keys=globals_,
                          scale=1 / np.sqrt(head), fill=fill, softcap=softcap,
                          factor=factor)  # fmt: skip

        def expected() -> list[Expected]:
            s = wide(q) @ wide(np.repeat(k, shared, 1)).swapaxes(-1, -2) / np.sqrt(head)
            s = softcap * np.tanh(s / softcap) if softcap else s
            ends = order == "bottom" or (near and order == "none")
            shift = first[:, None, None] + (keys - queries if ends else 0)
            places = (np.arange(queries) + shift)[..., None]  # [items, 1, queries, 1]
            if order != "none":
                s = np.where(np.arange(keys) > places, fill, s)
            if mask == "add":  # as float32 has it: -1e9 leaves nothing of a score
                with np.errstate(over="ignore"):
                    s = s.astype(np.float32) + added
            s = np.where(kept, s, fill) if mask == "bool" else s
            if near:
                seen = close_to(places[..., 0], keys, near) | (np.arange(keys) < globals_)
                s = np.where(seen | (places < globals_), s, -np.inf)
            with np.errstate(all="ignore"):
                p = softmax(wide(s), False) if keys else s
                p = np.nan_to_num(p, nan=0.0) if zero_rows != "none" else p
                value = p @ wide(np.repeat(v, shared, 1))
            if factor:
                return [Expected(y, np.clip(value * factor, -448, 448), HALF_STEP)]
            share = 3 * _TF32 if rounded else max(2 * TOLERANCE[dtype], 1e-5)
            return [Expected(y, value, share)]

        return call, expected

    return make


def close_to(positions: Array, keys: int, reach: tuple[int, int]) -> Array:
    """Which keys lie so many before and after positions ``[...]``: ``[..., keys]``."""
    behind = np.arange(keys) - positions[..., None]
    return np.asarray((behind >= -reach[0]) & (behind <= reach[1]))


def listed_tiles(mask: Array) -> Array:
    """The list by rows of the tiles of a mask ``[queries, keys]``, from its definition."""
    rows, columns = (-(-n // LISTED_SIDE) for n in mask.shape)
    starts, found = [rows + 1], list[int]()
    neutral = True if mask.dtype == np.bool_ else 0
    for row in range(rows):
        for column in range(columns):
            tile = mask[row * LISTED_SIDE :, column * LISTED_SIDE :][:LISTED_SIDE, :LISTED_SIDE]
            if np.any(tile if mask.dtype == np.bool_ else tile > -1e4):
                whole = np.all(tile == neutral) and tile.shape[1] == LISTED_SIDE
                found.append(2 * column + (not whole))
        starts.append(rows + 1 + len(found))
    return np.array([*starts, *found], np.int32)


def _attention() -> Iterator[Case]:
    tile = ("64x64",)
    for head, head_v in ((64, 64), (40, 24), (128, 128)):
        made = attention(DType.F16, (2, 3, 70), 130, head, head_v)
        tiles = ("64x32",) if head == 128 else ("64x64", "128x64")
        yield Case(f"attention {head} {head_v}", made, tiles)
    yield Case("attention bf16", attention(DType.BF16, (1, 2, 17), 65, 64, 64), tile, ("bf16",))
    small = (1, 4, 33)
    yield Case("attention shared", attention(DType.F16, small, 40, 16, 16, shared=2), tile)
    for order in ("top", "bottom"):
        for keys in (20, 100):
            made = attention(DType.F16, (1, 1, 70), keys, 32, 32, order=order)
            yield Case(f"attention {order} {keys}", made, tile)
    made = attention(DType.F16, small, 70, 32, 32, order="top", fill=-1e4)
    yield Case("attention in order, low", made, tile)
    for low in (-1e4, -1e9, float(np.finfo(np.float32).min), -np.inf):
        made = attention(DType.F16, small, 70, 32, 32, mask="add", low=low)
        yield Case(f"attention added {low}", made, tile)
    for fill, zero_rows in ((-np.inf, "none"), (-1e9, "none"), (-np.inf, "guarded")):
        made = attention(DType.F16, small, 70, 32, 32, mask="bool", fill=fill, zero_rows=zero_rows)
        yield Case(f"attention masked {fill} {zero_rows}", made, tile)
    made = attention(DType.F16, small, 20, 32, 32, softcap=1.5)
    yield Case("attention capped", made, tile)
    yield from _near("attention", tile, (), 70)
    yield Case("attention late", attention(DType.F16, small, 20, 20, 12, late=1), tile)
    for head, head_v, mask in ((160, 136, "bool"), (256, 256, "none"), (200, 256, "add")):
        made = attention(DType.F16, (1, 2, 70), 90, head, head_v, mask=mask, order="bottom")
        yield Case(f"attention wide {head} {head_v}", made, ("64x32", "32x16"))
    for queries, keys in ((0, 5), (5, 0), (1, 1)):
        made = attention(DType.F16, (1, 1, queries), keys, 16, 16)
        yield Case(f"attention nothing {queries} {keys}", made, tile)


def _attention_of_floats() -> Iterator[Case]:
    """In float32, by sums of two tf32 numbers: every order and mask, and heads of every size."""
    f32, small, short = DType.F32, ("64x16", "32x16"), ("64x32", "64x16")
    yield Case("float attention", attention(f32, (2, 3, 70), 130, 64, 64), (*short, "32x16"))
    yield Case("float attention 128", attention(f32, (1, 2, 70), 90, 128, 128), small)
    yield Case("float attention 40 24", attention(f32, (1, 2, 33), 50, 40, 24, late=1), short)
    yield Case("float attention 16", attention(f32, (1, 4, 9), 40, 16, 16, shared=2), short)
    made = attention(f32, (1, 2, 70), 130, 64, 64, rounded=True)
    yield Case("float attention tf32", made, ("64x32",))
    for order, keys in (("top", 100), ("bottom", 130), ("placed", 200)):
        made = attention(f32, (2, 2, 70), keys, 32, 32, order=order, zero_rows="lowest")
        yield Case(f"float attention {order}", made, short[:1])
    for mask, low in (("add", -1e9), ("add", -np.inf), ("bool", -np.inf)):
        made = attention(f32, (2, 2, 33), 70, 32, 64, mask=mask, low=low, zero_rows="guarded")
        yield Case(f"float attention {mask} {low}", made, short[1:])
    made = attention(f32, (1, 2, 200), 390, 64, 64, mask="add", low=-np.inf, band=(70, 20))
    yield Case("float attention listed", made, short)
    made = attention(f32, (1, 2, 150), 170, 64, 64, near=(20, 30), globals_=40, mask="bool",
                     softcap=2.0, zero_rows="masked")  # fmt: skip
    yield Case("float attention near globally", made, short)
    for queries, keys in ((0, 5), (5, 0), (1, 1)):
        made = attention(f32, (1, 1, queries), keys, 16, 16)
        yield Case(f"float attention nothing {queries} {keys}", made, short[:1])


def _flash() -> Iterator[Case]:
    """By warpgroups: several tiles of keys and of queries, ragged ones, and every mask."""
    three, two, needs = ("192x128x2",), ("128x128x2",), ("wgmma",)
    made = attention(DType.F16, (2, 3, 70), 130, 64, 64)
    yield Case("flash 64", made, (*three, *two), needs)
    yield Case("flash 40 24", attention(DType.F16, (1, 2, 70), 150, 40, 24), two, needs)
    yield Case("flash 128", attention(DType.BF16, (1, 2, 140), 400, 128, 128), two, needs)
    yield Case(
        "flash shared", attention(DType.F16, (2, 4, 33), 40, 32, 32, shared=2), three, needs
    )
    for order, keys in (("top", 300), ("bottom", 270), ("bottom", 40)):
        made = attention(DType.F16, (1, 2, 300), keys, 64, 64, order=order)
        yield Case(f"flash {order} {keys}", made, three, needs)
    for mask, fill, zero_rows in (("add", -np.inf, "none"), ("bool", -1e9, "none"),
                                  ("bool", -np.inf, "guarded")):  # fmt: skip
        low = -1e9 if mask == "add" else -np.inf
        made = attention(DType.F16, (1, 2, 70), 150, 64, 64, mask=mask, fill=fill, low=low,
                         zero_rows=zero_rows)  # fmt: skip
        yield Case(f"flash {mask} {fill} {zero_rows}", made, two, needs)
    made = attention(DType.F16, (1, 2, 70), 150, 64, 64, order="top", fill=-1e4, softcap=1.5)
    yield Case("flash capped, low", made, two, needs)
    made = attention(DType.F16, (1, 2, 70), 152, 128, 128, mask="add", low=-1e9)
    yield Case("flash masked 128", made, two, needs)
    made = attention(DType.F16, (2, 2, 140), 304, 64, 64, mask="bool")
    yield Case("flash masked bits in runs", made, two, needs)
    made = attention(DType.F16, (1, 2, 70), 300, 64, 64, mask="add", low=-1e4, flat=True)
    yield Case("flash masked alike", made, two, needs)
    yield from _near("flash", two, needs, 300)
    yield from _wide(needs)


def _wide(needs: tuple[str, ...]) -> Iterator[Case]:
    """Heads of more than 128 columns, whose tiles have fewer keys."""
    by96, by64, by32 = ("128x96x2",), ("128x64x2",), ("128x32x2",)
    for head, head_v, order, tile in (
        (192, 192, "none", by96), (160, 136, "bottom", by96), (256, 256, "top", by64),
        (208, 64, "none", by64), (64, 256, "none", by64),
    ):  # fmt: skip
        made = attention(DType.F16, (2, 2, 140), 300, head, head_v, order=order)
        yield Case(f"flash wide {head} {head_v}", made, tile, needs)
    for head, mask, low, tile in (
        (256, "add", -1e9, by32), (256, "bool", -np.inf, by32), (192, "add", -np.inf, by64),
        (160, "bool", -np.inf, by64),
    ):  # fmt: skip
        made = attention(DType.F16, (1, 2, 140), 304, head, head, mask=mask, low=low)
        yield Case(f"flash wide {head} {mask}", made, tile, needs)
        made = attention(DType.F16, (1, 2, 200), 390, head, head, mask=mask, low=low,
                         band=(70, 20))  # fmt: skip
        yield Case(f"flash wide {head} listed {mask}", made, tile, needs)
    made = attention(DType.F16, (1, 2, 70), 300, 256, 256, mask="add", low=-1e4, flat=True)
    yield Case("flash wide masked alike", made, by64, needs)
    made = attention(DType.BF16, (1, 4, 150), 330, 256, 256, order="bottom", near=(140, 0),
                     zero_rows="masked", softcap=2.0, shared=2)  # fmt: skip
    yield Case("flash wide near", made, by64, needs)


def _near(name: str, tile: tuple[str, ...], needs: tuple[str, ...], rows: int) -> Iterator[Case]:
    """Queries that see the keys of a window, and masks whose tiles are listed."""
    for order, keys, near in (("none", rows, (40, 40)), ("top", rows, (33, 0)),
                              ("bottom", rows + 90, (140, 0)), ("none", rows + 20, (3, 5)),
                              ("bottom", 40, (9, 0))):  # fmt: skip
        made = attention(DType.F16, (1, 2, rows), keys, 64, 64, order=order, near=near,
                         zero_rows="masked")  # fmt: skip
        wide = ("192x128x2",) if tile == ("128x128x2",) else ()
        yield Case(f"{name} near {order} {keys} {near[0]}", made, (*tile, *wide), needs)
    for side, near in (("before", (UNLIMITED, 5)), ("behind", (5, UNLIMITED))):
        made = attention(DType.F16, (1, 2, rows), rows + 20, 64, 64, near=near)
        yield Case(f"{name} near {side}", made, tile, needs)
    made = attention(DType.F16, (3, 2, rows), 2 * rows, 64, 64, order="placed", near=(50, 0),
                     zero_rows="lowest", softcap=2.0)  # fmt: skip
    yield Case(f"{name} near placed capped", made, tile, needs)
    for order, keys, near, first, mask in (
        ("none", rows + 90, (20, 10), 70, "none"), ("top", rows + 20, (25, 0), 5, "bool"),
        ("none", rows + 7, (30, 40), 0, "bool"), ("bottom", rows + 60, (50, 0), 0, "add"),
        ("bottom", 2 * rows, (11, 0), 3, "none"), ("none", rows + 80, (9, 9), 66, "add"),
    ):  # fmt: skip
        made = attention(DType.F16, (2, 2, rows), keys, 64, 64, order=order, near=near, mask=mask,
                         globals_=first, zero_rows="masked", low=-np.inf)  # fmt: skip
        yield Case(f"{name} near {order} {mask} {first} globally", made, tile, needs)
    made = attention(DType.F16, (3, 2, rows), 2 * rows, 64, 64, order="placed")
    yield Case(f"{name} placed", made, tile, needs)
    for mask, low, keys in (("add", -np.inf, 400), ("bool", -np.inf, 390), ("add", -1e9, 300)):
        made = attention(DType.F16, (2, 2, max(rows, 200)), keys, 64, 64, mask=mask, low=low,
                         band=(70, 20))  # fmt: skip
        yield Case(f"{name} listed {mask} {low}", made, tile, needs)


# ---- moves ----------------------------------------------------------------------------------


def copy(dtype: DType, shape: Sequence[int], order: Sequence[int] = (), late: int = 0,
         repeat: bool = False, more: int = 0) -> Maker:  # fmt: skip
    """A copy of what is stored in an order of its axes, or repeated along its last.

    Rows of x start ``late`` elements later than aligned ones, those of y ``late + more``.
    """

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, [*shape[:-1], 1] if repeat else shape, dtype)
        view = repeated(memory.put(x, late, late, order), shape)
        y = memory.empty(shape, NUMPY[dtype], late + more, late + more)
        call = CALLS.make("copy", f"b{int(dtype.size)}", x=view, y=y)
        return call, lambda: [Expected(y, np.broadcast_to(x, shape), 0.0)]

    return make


def _moves() -> Iterator[Case]:
    run, turn = ("256x16",), ("256x16", "32x32")
    for dtype in (DType.U8, DType.F16, DType.F32, DType.I64):
        yield Case(f"copy {dtype.short}", copy(dtype, (5, 67)), run)
        yield Case(f"turn {dtype.short}", copy(dtype, (45, 67), (1, 0)), turn)
    for dtype, late, more in ((DType.U8, 3, 7), (DType.F16, 0, 3), (DType.F32, 3, 2),
                              (DType.I64, 1, 1), (DType.U8, 9, 0), (DType.F16, 4, 8)):  # fmt: skip
        size = int(dtype.size)
        for cols in (32 // size, 64 // size, 331 // size):
            made = copy(dtype, (2, 5, 3, cols), late=late, more=more)
            yield Case(f"copy of {cols} from {late} to {late + more} {dtype.short}", made, run)
    yield Case("copy late", copy(DType.F16, (3, 2, 40), late=1), run)
    yield Case("copy of pairs", copy(DType.F16, (3, 5, 2, 90), late=2), run)
    yield Case("copy of long rows", copy(DType.U8, (2, 700), late=3), run)
    yield Case("copy repeated", copy(DType.F32, (3, 9), repeat=True), run)
    axes = copy(DType.F16, (2, 2, 3, 2, 2, 2, 16), (0, 3, 1, 4, 2, 5, 6))
    yield Case("copy of seven axes", axes, run)
    yield Case("turn heads", copy(DType.F16, (2, 3, 33, 5), (0, 2, 1, 3)), run)
    yield Case("turn keys", copy(DType.F16, (2, 3, 40, 33), (0, 3, 1, 2)), turn)
    yield Case("turn first", copy(DType.F32, (34, 3, 40), (2, 1, 0)), turn)
    for shape in ((0, 4), (4, 0), (7,)):
        yield Case(f"copy {shape}", copy(DType.F32, shape), run)


# ---- convolutions ---------------------------------------------------------------------------


def convolved(x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int],
              pads: Sequence[int], out: Sequence[int]) -> Array:  # fmt: skip
    """A convolution with channels last, tap by tap, of images or of volumes.

    There are zeros around the image as far as it takes.
    """
    (filters, *taps, _), (n, *sides, c) = w.shape, x.shape
    far = [(o - 1) * s + (k - 1) * d + 1
           for o, s, k, d in zip(out, strides, taps, dilations, strict=True)]  # fmt: skip
    sizes = [max(f, side + pad) for f, side, pad in zip(far, sides, pads, strict=True)]
    around = np.zeros((n, *sizes, c))
    inner = [slice(pad, pad + side) for side, pad in zip(sides, pads, strict=True)]
    around[(slice(None), *inner)] = x
    y = np.zeros((n, *out, filters))
    for tap in np.ndindex(*taps):
        read = [slice(k * d, k * d + (o - 1) * t + 1, t)
                for k, d, o, t in zip(tap, dilations, out, strides, strict=True)]  # fmt: skip
        y += around[(slice(None), *read)] @ w[(slice(None), *tap)].T
    return y


def conv(
    dtype: DType, image: tuple[int, ...], filters: tuple[int, ...], *,
    strides: tuple[int, ...] = (), dilations: tuple[int, ...] = (),
    pads: tuple[int, ...] = (), chain: Chain | None = None, late: int = 0, parts: int = 0,
    multiply: str = "", groups: int = 1,
) -> Maker:  # fmt: skip
    """``image``: N, H, W, C, or a volume: N, D, H, W, C; ``filters``: how many, and their taps; as
    much below as above; the depth of tiles of 64 × 64 perhaps cut into parts; ``multiply`` names
    how, if not the type; ``groups`` of channels."""
    n, *sides, c = image
    count, *taps = filters
    ones = (1,) * len(taps)
    strides, dilations, pads = strides or ones, dilations or ones, pads or (0,) * len(taps)
    out = tuple((side + 2 * pad - d * (k - 1) - 1) // s + 1 for side, pad, d, k, s in
                zip(sides, pads, dilations, taps, strides, strict=True))  # fmt: skip

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, w = some(rng, image, dtype), some(rng, (count, *taps, c // groups), dtype)
        bias = rng.standard_normal(count).astype(np.float32)
        shape = (n, *out, count)
        more = [some(rng, shape, dtype)] if chain else []
        y = memory.empty(shape, NUMPY[dtype], late)
        call = CALLS.make(
            "conv", multiply or dtype.short,
            x=memory.put(x, late), w=memory.put(w), bias=memory.put(bias),
            inputs=[memory.put(one) for one in more], y=[y], chain=chain, strides=strides,
            dilations=dilations, pads=pads, groups=groups,
            **(cut(memory, -(-n * math.prod(out) // 64) * -(-count // 64), parts, 64 * 64)
               if parts else {}),
        )  # fmt: skip

        def expected() -> list[Expected]:
            parts_of = zip(np.split(wide(x), groups, -1), np.split(wide(w), groups), strict=True)
            sums = [convolved(*one, strides, dilations, pads, out) for one in parts_of]
            sums = np.concatenate(sums, -1) + bias
            value = chain.reference([sums, *map(wide, more)])[0] if chain else sums
            return [
                Expected(y, value, max(_TF32 if multiply == "tf32" else TOLERANCE[dtype], 3e-6))
            ]

        return call, expected

    return make


def depthwise(
    dtype: DType, image: tuple[int, ...], taps: tuple[int, ...], strides: tuple[int, ...],
    chain: Chain | None = None, late: int = 0, endless: bool = False,
    dilations: tuple[int, ...] = (),
) -> Maker:  # fmt: skip
    """As many pixels around the image or volume as keep its size; one pixel perhaps infinite."""
    (n, *sides, c), apart = image, dilations or (1,) * len(taps)
    pads = tuple(k // 2 * d for k, d in zip(taps, apart, strict=True))
    reach = [(k - 1) * d - 2 * p for k, d, p in zip(taps, apart, pads, strict=True)]
    out = [(side - 1 - r) // s + 1 for side, r, s in zip(sides, reach, strides, strict=True)]

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, filters = some(rng, image, dtype), some(rng, (*taps, c), dtype)
        if endless:
            x[(0, *(side // 2 for side in sides), 3)] = np.inf
        bias, shape = rng.standard_normal(c).astype(np.float32), (n, *out, c)
        more = [some(rng, shape, dtype)] if chain else []
        y = memory.empty(shape, NUMPY[chain.result_types[0] if chain else dtype], late)
        call = CALLS.make(
            "depthwise", dtype.short, x=memory.put(x, late), w=memory.put(filters, late),
            bias=memory.put(bias), inputs=[memory.put(one) for one in more], y=[y], chain=chain,
            strides=strides, dilations=apart, pads=pads,
        )  # fmt: skip

        def expected() -> list[Expected]:
            each = [convolved(wide(x)[..., i : i + 1], wide(filters)[None, ..., i : i + 1],
                              strides, apart, pads, out) for i in range(c)]  # fmt: skip
            sums = np.concatenate(each, -1) + bias
            value = chain.reference([sums, *map(wide, more)])[0] if chain else sums
            return [Expected(y, value, TOLERANCE[dtype])]

        return call, expected

    return make


def pool(dtype: DType, image: tuple[int, ...], kind: str, step: int = 2) -> Maker:
    """Windows of 3 pixels an axis every second one, from one outside on; one number is NaN."""
    n, *sides, c = image
    out = tuple((side - 1) // step + 1 for side in sides)

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, of_each = some(rng, image, dtype), dict[str, tuple[int, ...]]()
        x.reshape(-1)[0] = np.nan
        y = memory.empty((n, *out, c), NUMPY[dtype])
        for name, number in (("kernel", 3), ("strides", step), ("dilations", 1), ("pads", 1)):
            of_each[name] = (number,) * len(sides)
        call = CALLS.make("pool", dtype.short, x=memory.put(x), y=y, kind=kind, **of_each)

        def expected() -> list[Expected]:
            value = np.zeros((n, *out, c))
            for place in np.ndindex(*out):
                read = tuple(slice(max(0, step * k - 1), step * k + 2) for k in place)
                part = wide(x)[(slice(None), *read)].reshape(n, -1, c)
                count = 3 ** len(sides) if kind == "average" else part.shape[1]
                made = part.max(1) if kind == "max" else part.sum(1) / count
                value[(slice(None), *place)] = made
            return [Expected(y, value, TOLERANCE[dtype])]

        return call, expected

    return make


def whole_pool(dtype: DType, image: tuple[int, int, int, int], kind: str) -> Maker:
    """All pixels of an image at once."""
    n, h, w, c = image

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x, y = some(rng, image, dtype), memory.empty((n, 1, 1, c), NUMPY[dtype])
        call = CALLS.make("pool", dtype.short, x=memory.put(x), y=y, kind=kind, kernel=(h, w),
                          strides=(1, 1), dilations=(1, 1), pads=(0, 0))  # fmt: skip

        def expected() -> list[Expected]:
            part = wide(x).reshape(n, 1, 1, -1, c)
            value = part.max(3) if kind == "max" else part.mean(3)
            return [Expected(y, value, TOLERANCE[dtype])]

        return call, expected

    return make


def pack(
    source: DType, dtype: DType, image: tuple[int, int, int, int], out: tuple[int, int],
    lines: int = 1, held: int = 4, top: int = 0, left: int = 0, chain: Chain | None = None,
) -> Maker:  # fmt: skip
    """An image with ``out`` pixels, which may end before or behind those of x."""
    n, channels, high, wide_ = image

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = some(rng, image, source)
        y = memory.empty((n, *out, lines * held), NUMPY[dtype])
        call = CALLS.make("pack", dtype.short, x=memory.put(x, 1, 3), y=y, x_type=source.short,
                          lines=lines, held=held, top=top, left=left, chain=chain)  # fmt: skip

        def expected() -> list[Expected]:
            made = chain.reference([wide(x)])[0] if chain else wide(x)
            value = np.zeros((n, out[0], out[1], lines, held))
            for h, v, i in np.ndindex(*out, lines):
                at = lines * h + i - top, v - left
                if 0 <= at[0] < high and 0 <= at[1] < wide_:
                    value[:, h, v, i, :channels] = made[:, :, at[0], at[1]]
            return [Expected(y, value.reshape(n, *out, -1), TOLERANCE[dtype])]

        return call, expected

    return make


BYTES = Chain(
    ("full",), (Step("mul", (0, 64.0)), Step("round", (1,)), Step("saturate", (2, -100.0, 155.0))),
    (3,), (DType.F32,), (DType.F16,),
)  # fmt: skip
"""Rounded to bytes, from which a zero point is subtracted."""
ROUNDED = Chain(
    ("full", "full"),
    (Step("add", (0, 1)), Step("mul", (2, 20.0)), Step("round", (3,)), Step("add", (4, 100.0)),
     Step("saturate", (5, 0.0, 255.0))),
    (6,), (DType.F32, DType.F16), (DType.U8,),
)  # fmt: skip
"""A sum with an image, rounded to bytes."""
GATE = Chain(("full",), (Step("sigmoid", (0,)),), (1,), (DType.F32,), (DType.F32,))


def squeeze_excite(
    dtype: DType, image: tuple[int, int, int, int], hidden: int, squeezed: str
) -> Maker:
    """Gates of channels from the means of an image's pixels, and their products with it."""
    channels = image[-1]
    own = Chain(("full",), (Step(squeezed, (0,)),), (1,))

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        x = (some(rng, image, dtype) + rng.standard_normal(channels)).astype(NUMPY[dtype])
        first, second = (some(rng, s, dtype) for s in ((hidden, channels), (channels, hidden)))
        biases = [some(rng, (n,), DType.F32) for n in (hidden, channels)]
        y = memory.empty(image, NUMPY[dtype])
        call = CALLS.make(
            "squeeze_excite", dtype.short, x=memory.put(x), w1=memory.put(first),
            bias1=memory.put(biases[0]), w2=memory.put(second), bias2=memory.put(biases[1]), y=y,
            squeezed=squeezed, chain=GATE,
        )  # fmt: skip

        def expected() -> list[Expected]:
            means = wide(x).mean((1, 2)) @ wide(first).T + biases[0]
            between = own.reference([means])[0]
            gates = GATE.reference([between @ wide(second).T + biases[1]])[0]
            return [Expected(y, wide(x) * gates[:, None, None], TOLERANCE[dtype])]

        return call, expected

    return make


RESNET = Chain(("full", "full"), (Step("add", (0, 1)), Step("relu", (2,))), (3,),
               (DType.F32, DType.F16), (DType.F16,))  # fmt: skip


def _convolutions() -> Iterator[Case]:
    small = ("64x64x64x3",)
    made = pack(DType.F32, DType.F16, (2, 3, 9, 11), (6, 14), lines=2, top=1, left=2)
    yield Case("pack two lines", made, ("256",))
    made = pack(DType.F32, DType.F16, (2, 3, 9, 11), (6, 14), lines=2, top=1, left=2, chain=BYTES)
    yield Case("pack bytes", made, ("256",))
    made = pack(DType.BF16, DType.BF16, (1, 5, 7, 20), (7, 18), held=8, left=1)
    yield Case("pack bf16", made, ("256",))
    made = conv(DType.F16, (2, 9, 7, 16), (24, 3, 3), pads=(1, 1), chain=RESNET)
    yield Case("conv 3x3", made, (*small, "128x128x32x4"))
    made = conv(DType.F16, (2, 9, 7, 40), (70, 3, 3), pads=(1, 1), chain=RESNET, parts=4)
    yield Case("conv cut", made, small)
    made = conv(DType.F16, (1, 11, 8, 3), (10, 7, 7), pads=(3, 3), strides=(2, 2))
    yield Case("conv stem", made, small)
    made = conv(DType.F16, (1, 9, 9, 8), (8, 3, 2), dilations=(2, 3), strides=(1, 2))
    yield Case("conv apart", made, small)
    yield Case("conv late", conv(DType.F16, (1, 5, 5, 24), (9, 1, 1), late=1), small)
    plain = replace(RESNET, dtypes=(), stores=())
    made = conv(DType.F16, (2, 9, 7, 96), (72, 3, 3), pads=(1, 1), chain=RESNET, groups=3)
    yield Case("conv of channel groups", made, (*small, "128x128x32x4"))
    yield Case("conv of channel groups by warpgroups", made, ("128x32x64x9x1", "128x64x64x8x1"),
               ("wgmma",))  # fmt: skip
    made = conv(DType.BF16, (3, 10, 9, 176), (80, 1, 1), strides=(2, 2), groups=2)
    yield Case("conv of uneven channel groups", made, ("128x32x64x9x1",), ("wgmma",))
    made = conv(DType.F16, (1, 6, 5, 15), (18, 3, 3), pads=(1, 1), groups=3, late=1)
    yield Case("conv of few channel groups", made, small)
    made = conv(DType.F32, (1, 6, 5, 16), (140, 3, 3), pads=(1, 1), chain=plain, groups=2,
                multiply="tf32x3")  # fmt: skip
    yield Case("conv tf32x3 of channel groups", made, ("64x64x32x3",))
    made = conv(DType.F32, (1, 6, 5, 16), (20, 3, 3), pads=(1, 1), chain=plain, groups=2)
    yield Case("conv f32 of channel groups", made, ("64x64x8",))
    made = conv(DType.F32, (1, 9, 7, 12), (70, 3, 3), pads=(1, 1), chain=plain, multiply="tf32x3")
    yield Case("conv tf32x3", made, ("64x64x32x3", "128x64x16x4"))
    for multiply, tile in (("tf32", "128x64x32x8x1"), ("tf32x3", "128x64x32x6x1")):
        made = conv(DType.F32, (3, 9, 7, 64), (72, 3, 3), pads=(1, 1), chain=plain, groups=2,
                    multiply=multiply)  # fmt: skip
        yield Case(f"conv {multiply} by warpgroups", made, (tile,), ("wgmma",))
    made = conv(DType.F32, (1, 9, 7, 12), (70, 3, 3), pads=(1, 1), chain=plain, multiply="tf32")
    yield Case("conv tf32", made, ("64x64x32x3", "128x64x16x4"), ("bf16",))
    made = conv(DType.F32, (1, 6, 5, 40), (24, 3, 3), pads=(1, 1), parts=3, multiply="tf32x3")
    yield Case("conv tf32x3 cut", made, ("64x64x32x3",))
    yield Case("conv bf16", conv(DType.BF16, (1, 6, 6, 32), (70, 3, 3), pads=(1, 1)), small,
               ("bf16",))  # fmt: skip
    groups = ("128x64x64x8x1",)
    made = conv(DType.F16, (3, 9, 7, 128), (70, 3, 3), pads=(1, 1), chain=RESNET)
    yield Case("conv groups 3x3", made, (*groups, "128x128x64x6x2"), ("wgmma",))
    made = conv(DType.F16, (2, 11, 9, 64), (24, 3, 2), dilations=(2, 3), strides=(1, 2),
                pads=(2, 1))  # fmt: skip
    yield Case("conv groups apart", made, groups, ("wgmma",))
    made = conv(DType.BF16, (3, 10, 9, 192), (40, 1, 1), strides=(2, 2))
    yield Case("conv groups 1x1", made, groups, ("wgmma",))
    few = conv(DType.F16, (3, 9, 7, 40), (24, 3, 3), pads=(1, 1), chain=RESNET)
    yield Case("conv groups few", few, ("128x32x64x9x1",), ("wgmma",))
    yield from _few_pixels()
    yield from _gated()
    wide_image = (2, 7, 6, 40)
    made = depthwise(DType.F16, wide_image, (3, 3), (2, 1), RESNET)
    yield Case("depthwise 3x3", made, ("256", "1x4", "1x1", "2x2"))
    made = depthwise(DType.F16, wide_image, (3, 3), (1, 1), ROUNDED)
    yield Case("depthwise bytes", made, ("1x4", "2x2"))
    yield Case("depthwise late", depthwise(DType.F32, (1, 5, 6, 7), (5, 5), (1, 1), late=1),
               ("256",))  # fmt: skip
    yield Case("depthwise 5x5", depthwise(DType.F32, (2, 5, 6, 12), (5, 5), (1, 2)),
               ("1x4", "1x1", "7x7"))  # fmt: skip
    made = depthwise(DType.F16, (2, 9, 15, 24), (7, 7), (1, 1), RESNET)
    yield Case("depthwise 7x7", made, ("1x4", "7x7", "7x7x32", "14x14x32"))
    made = depthwise(DType.F16, (2, 17, 19, 40), (5, 5), (1, 1), RESNET)
    yield Case("depthwise 5x5 of lanes", made, ("7x7x32", "14x14x32"))
    made = depthwise(DType.F16, (1, 30, 27, 72), (5, 5), (2, 2))
    yield Case("depthwise 5x5 by two", made, ("1x4", "8x14x32"))
    made = depthwise(DType.F16, (1, 12, 17, 8), (5, 7), (1, 1), endless=True)
    yield Case("depthwise lanes infinite", made, ("14x14x32",))
    made = depthwise(DType.BF16, (1, 18, 17, 40), (5, 5), (1, 1))
    yield Case("depthwise lanes bf16", made, ("7x7x32",), ("bf16",))
    for kind in ("max", "average", "average_inside"):
        yield Case(f"pool {kind}", pool(DType.F16, (2, 7, 8, 24), kind), ("256", "1x4", "1x1"))
    for kind in ("max", "average"):
        made = whole_pool(DType.F16, (3, 7, 21, 136), kind)
        yield Case(f"pool whole {kind}", made, ("512", "512x4", "128x32"))
    yield Case("conv nothing", conv(DType.F16, (0, 5, 5, 8), (9, 3, 3)), small)


def _gated() -> Iterator[Case]:
    for name, dtype, image, hidden, squeezed in (
        ("by channels", DType.F16, (2, 5, 7, 152), 10, "silu"),
        ("by pixels", DType.BF16, (3, 13, 9, 32), 8, "relu"),
        ("of one run", DType.F16, (1, 3, 3, 8), 3, "relu"),
    ):
        made = squeeze_excite(dtype, image, hidden, squeezed)
        yield Case(f"excited {name}", made, ("512x1",))
        yield Case(f"excited {name} in clusters", made, ("512x8",), ("wgmma",))


def _few_pixels() -> Iterator[Case]:
    needs = ("wgmma",)
    made = conv(DType.F16, (3, 9, 7, 128), (70, 3, 3), pads=(1, 1), chain=RESNET)
    yield Case("conv few 3x3", made, ("64x32x1", "64x64x4", "64x32x8", "64x16x4"), needs)
    made = conv(DType.F16, (2, 11, 9, 64), (24, 3, 2), dilations=(2, 3), strides=(1, 2),
                pads=(2, 1))  # fmt: skip
    yield Case("conv few apart", made, ("64x24x3",), needs)
    made = conv(DType.BF16, (3, 10, 9, 192), (40, 1, 1), strides=(2, 2))
    yield Case("conv few 1x1", made, ("64x32x2",), needs)
    made = conv(DType.F16, (1, 9, 7, 24), (130, 1, 1), chain=RESNET)
    yield Case("conv few channels", made, ("64x128x1",), needs)
    yield Case("conv few late", conv(DType.F16, (1, 9, 9, 64), (9, 3, 3), late=8), ("64x16x1",),
               needs)  # fmt: skip


RARE = (
    "nbits bf16 8 16 integer 13", "nbits bf16 8 16 integer 7", "nbits bf16 8 16 integer 67",
    "nbits tf32x3 8 16 integer 7", "nbits tf32x3 8 16 integer 13", "nbits tf32x3 8 16 integer 67",
    "nbits f16 8 64 middle 7", "nbits f16 8 64 middle 13", "nbits f16 8 64 middle 67",
    "nbits f16 2 32 integer 13", "nbits f16 4 128 integer 13", "nbits bf16 4 32 middle 13",
    "reduce absolutes", "reduce squares", "reduce min", "reduce product", "reduce mean",
    "deep (2, 1, 4, 1, 3, 8)", "transposed (2, 1, 4, 1, 3, 8)", "softmax True (3, 2048)",
    "softmax True (4, 7)", "bf16 kn 70 136 200", "bf16 kn 1 1 1", "bf16 kn 13 40 33",
    "tf32x3 layer", "attention shared", "attention top 20", "attention top 100",
    "attention masked -inf none", "attention capped", "attention nothing 1 1",
    "attention nothing 0 5", "attention nothing 5 0", "attention bf16", "conv apart",
    "pool average", "turn keys", "turn i64", "copy i64", "f32 layer", "attention 128 128",
    "attention near none 70 40", "attention near none 90 3", "attention near bottom 40 9",
    "attention near placed capped", "attention listed add -1000000000.0",
    "attention near top 70 33", "flash near none 300 40", "flash near none 320 3",
    "flash near top 300 33", "flash near bottom 40 9", "flash placed", "flash listed bool -inf",
    "flash 40 24", "flash 128", "flash bottom 270", "flash bool -1000000000.0 none",
    "conv groups 1x1", "conv few 1x1", "wgmma layer", "wgmma shared", "wgmma bf16",
    "gated bf16 (0,)", "gated bf16 (1,)", "gated bf16 (5, 0)", "gated bf16 (1, 1)",
    "gated bf16 (2, 1031)", "layer bf16 (1, 1)", "layer bf16 (5, 768)", "bf16 nk 1 1 1",
    "bf16 nk 13 40 33", "bf16 layer", "conv bf16", "rows bf16",
    "running sum f16", "running sum exclusive f16", "running sum back f16", "running sum bf16",
    "running sum exclusive bf16", "running sum back bf16", "running sum exclusive back bf16",
    "running sum i32", "running sum exclusive i32", "running sum back i32",
    "running sum exclusive back i32", "running sum i64", "running sum exclusive i64",
    "running sum exclusive back i64", "elements add f32", "elements mul f32", "elements min f32",
    "elements max f32", "elements none f16", "elements mul f16", "elements min f16",
    "elements max f16", "elements none bf16", "elements add bf16", "elements mul bf16",
    "elements min bf16", "elements none i32", "elements add i32", "elements mul i32",
    "elements min i32", "elements max i32", "elements none i64", "elements add i64",
    "elements min i64", "elements max i64", "integers Sub i32", "integers Mul i32",
    "integers Div i32", "integers Max i32", "integers Min i32", "integers Less i32",
    "integers LessOrEqual i32", "integers Greater i32", "integers GreaterOrEqual i32",
    "integers Equal i32", "integers Where i32", "integers Add i64", "integers Sub i64",
    "integers Mul i64", "integers Mod i64", "integers Max i64", "integers Min i64",
    "integers Less i64", "integers Greater i64", "integers GreaterOrEqual i64",
    "integers Equal i64", "integers Cast i64", "samples linear zeros", "samples linear zeros f16",
    "samples linear border", "samples linear border aligned", "samples linear reflection",
    "samples linear reflection aligned", "samples linear reflection f16", "samples nearest zeros",
    "samples nearest zeros aligned", "samples nearest border aligned",
    "samples nearest reflection", "samples nearest reflection aligned", "samples cubic zeros",
    "samples cubic zeros aligned", "samples cubic zeros f16", "samples cubic border",
    "samples cubic border aligned", "samples cubic border f16",
    "samples cubic reflection aligned", "samples cubic reflection f16", "resize cubic asymmetric",
    "resize cubic align_corners", "resize cubic pytorch_half_pixel", "depths bf16", "depths rms",
    "depths conv", "expanded depthwise 5x5 bf16", "expanded depthwise wide",
    "looked up all", "looked up nothing none", "looked up nothing guarded", "looked up late",
    "kept keys added",
    "i8 wgmma 300 264 400", "i8 wgmma rounded", "i8 wgmma requantized", "i8 wgmma levels",
    "i8 wgmma few", "i8 wgconv 3x3", "i8 wgconv rounded", "i8 norm 64 True", "i8 norm 64 False",
    "i8 norm 37 True", "float8 wgmma small 300 264 144", "float8 promoted 300 264 400",
    "float8 wgmma e5m2 by e5m2", "wgmma tf32 257 264 328", "wgmma tf32x3 257 264 328",
    "wgmma batch 8", "wgmma gelu_tanh", "wgmma uneven f16 301", "wgmma uneven 262",
    "flash top 300", "flash near bottom 390 140", "flash listed add -1000000000.0",
    "few 1 9 64", "few keys add False", "tf32x3 nk 1 1 1", "mlp streamed bf16",
    "attention projection bf16", "nbits tf32x3 4 32 middle 13", "nbits f16 8 16 integer 13",
    "nbits one f16 2 64",
)  # fmt: skip
RARE_TILES = (
    "u8 wgmma 300 264 400 128x128x128x6x1", "u8 wgmma rounded 128x192x128x5x1w",
    "float8 wgmma 300 264 400 128x128x128x6x1",
    "float8 promoted 300 264 144 128x192x128x5x1", "depths layer 128x128x64x4x1d4",
    "wgmma pairs 64x192x64x6x2x", "flash 64 128x128x2", "wg two of four bf16 192x128x64x5x1",
    "few 70 136 192 64x24x1", "few layer 64x48x2", "few layer 64x64x4",
    "conv of channel groups by warpgroups 128x64x64x8x1", "conv few 3x3 64x64x4",
    "conv few 3x3 64x16x4", "gate silu 128x128x64x6x2", "gate bf16 128x256x64x4x1",
    "mlp residual 128x1", "short (37, 96) 8x16", "short softmax 8x16", "short reduce 8x16",
    "softmax in steps 8x16", "softmax in steps 4x32", "nbits one bf16 4 32 1x16x16",
    "nbits one tf32x3 4 32 1x16x16", "tf32 nk 128x64x16x4", "tf32 nk 32x64x32x4",
)  # fmt: skip
"""Tiles of other cases that are much like another tile."""
CASES = (
    *_elementwise(), *_rows(), *_products(), *_warpgroups(), *_attention(), *_flash(),
    *_attention_of_floats(),
    *_moves(),
    *_convolutions(),
)  # fmt: skip
