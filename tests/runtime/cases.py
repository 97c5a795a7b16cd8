"""The programs the runtime is tested with, and what NumPy makes of them in fp64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.runtime.attention_tile_cases import attention_tile_cases
from tests.runtime.bf16x2_cases import bf16x2_cases
from tests.runtime.bitmap_cases import bitmap_cases
from tests.runtime.caches import cache_cases
from tests.runtime.guard_cases import guard_cases
from tests.runtime.int8_cases import INT8_CHAINS, int8_cases
from tests.runtime.int16_cases import int16_cases
from tests.runtime.nbits_cases import NBITS_CHAINS, nbits_cases
from tests.runtime.recurrences import recurrent_cases
from tests.runtime.reductions import REDUCED_CHAINS, reduction_cases
from tests.runtime.sparse_cases import SPARSE_CHAIN, sparse_cases
from tests.runtime.support import Case, dense, operator_case, single, spec, strided
from tests.runtime.task_cases import task_cases
from tracea_graph.ir import DType, Expr, Extent
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.schedule import GemmSchedule
from tracea_graph.kernels.program import Buffer, Loop, Program, Temp, View
from tracea_graph.ops.attention import UNLIMITED, AttentionParams
from tracea_graph.ops.chain import Chain, Step

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

GELU_RESIDUAL = Chain(
    ("full", "full", "row", "col", "scalar"),
    (
        Step("gelu", (0,)),
        Step("add", (5, 1)),
        Step("mul", (6, 2)),
        Step("add", (7, 3)),
        Step("mul", (8, 4)),
    ),
    (9,),
)
TWO_RESULTS = Chain(("full",), (Step("relu", (0,)), Step("neg", (0,))), (1, 2))
MUL_ADD = Chain(("full", "row", "row"), (Step("mul", (0, 1)), Step("add", (3, 2))), (4,))
BY_COLUMN = Chain(("full", "col"), (Step("mul", (0, 1)),), (2,))
IDENTITY = Chain(("full",), (), (0,))
ADD = Chain(("full", "full"), (Step("add", (0, 1)),), (2,))
ROUND = Chain(
    ("full",), (Step("mul", (0, 32.0)), Step("round", (1,)), Step("saturate", (2, 0.0, 255.0))),
    (3,), (), (DType.U8,),
)  # fmt: skip
ADD_ROW = Chain(("full", "row"), (Step("add", (0, 1)),), (2,))
MASKED = Chain(
    ("full", "full", "full"),
    (Step("less", (1, 2)), Step("or", (0, 3)), Step("where", (4, 1, -1.0))),
    (4, 5),
    (DType.BOOL, DType.F32, DType.I64),
)
KEPT = Chain(("full", "row"), (Step("where", (1, 0, 0.5)),), (2,), (DType.F32, DType.BOOL))
CHAINS = (
    GELU_RESIDUAL, TWO_RESULTS, MUL_ADD, BY_COLUMN, ADD, ADD_ROW, ROUND, MASKED, KEPT,
    SPARSE_CHAIN, replace(SPARSE_CHAIN, fast_math=True), *REDUCED_CHAINS, *INT8_CHAINS,
    *NBITS_CHAINS,
)  # fmt: skip


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def pack(w: Array) -> Array:
    """[K,N] as panels [ceil(N/16),K,16]."""
    k, n = w.shape
    padded = np.zeros((k, -(-n // 16) * 16), np.float32)
    padded[:, :n] = w
    return np.ascontiguousarray(padded.reshape(k, -1, 16).transpose(1, 0, 2))


def wide(*arrays: Array) -> list[F64]:
    return [np.asarray(a, np.float64) for a in arrays]


LAYOUTS = ("panels", "kn", "nk")


def gemm(
    m: int, n: int, k: int, layout: int, bias: bool = True, schedules: Sequence[GemmSchedule] = ()
) -> Case:
    """x[M,K] times a weight in one of the three layouts."""
    x, w, b = random(m, k), random(k, n, seed=1), random(n, seed=2)
    stored = (pack(w), w, np.ascontiguousarray(w.T))[layout]
    inputs = [spec("m", k), spec(*stored.shape)] + ([spec(n)] if bias else [])
    views = (
        dense("input", 0, "m", k),
        dense("input", 1, *stored.shape),
        dense("input", 2, n) if bias else None,
        dense("output", 0, "m", n),
    )
    call = CALLS.listed("gemm", views, layout=LAYOUTS[layout], schedules=tuple(schedules))
    program = single(call, inputs, [spec("m", n)], m=(0, 0))
    x64, w64, b64 = wide(x, w, b)
    y = x64 @ w64 + (b64 if bias else 0)
    feeds = (x, stored, b) if bias else (x, stored)
    name = f"gemm_{m}x{n}x{k}_layout{layout}_{'bias' if bias else 'plain'}_{len(schedules)}"
    return Case(name, program, feeds, (y,))


def gemm_chain(m: int = 37, n: int = 72, k: int = 33, layout: int = 0) -> Case:
    """A gemm whose epilogue has an operand of every kind; all but the weight lie strided."""
    x, w, b, r = random(m, k), random(k, n, seed=1), random(n, seed=2), random(m, n, seed=3)
    row, col, one = random(n, seed=4), random(m, seed=5), random(1, seed=6)
    stored = np.ascontiguousarray(w.T) if layout == 2 else pack(w)
    views = (
        dense("input", 0, "m", k),
        dense("input", 1, *stored.shape),
        dense("input", 2, n),
        dense("input", 3, "m", n),
        strided("input", 4, ("m", n), (0, 1)),
        strided("input", 5, ("m", n), (1, 0)),
        strided("input", 6, ("m", n), (0, 0)),
        dense("output", 0, "m", n),
    )
    shapes = [
        spec("m", k),
        spec(*stored.shape),
        spec(n),
        spec("m", n),
        spec(n),
        spec("m"),
        spec(1),
    ]
    call = CALLS.listed("gemm", views, layout=LAYOUTS[layout], chain=GELU_RESIDUAL)
    program = single(call, shapes, [spec("m", n)], m=(0, 0))
    x64, w64, *rest = wide(x, w, b, r, row, col[:, None], one)
    (y,) = GELU_RESIDUAL.reference([x64 @ w64 + rest[0], *rest[1:]])
    return Case(
        f"gemm_chain_{m}x{n}_layout{layout}", program, (x, stored, b, r, row, col, one), (y,)
    )


def gemm_batched(
    name: str, x_shape: Sequence[int], w_shape: Sequence[int], turned: str = ""
) -> Case:
    """Products of activations ``[…, M, K]`` by ``[…, K, N]`` that broadcast; a mask is added.

    ``turned``: ``x`` or ``w`` or both lie transposed.
    """
    x, w = random(*x_shape), random(*w_shape, seed=1)
    x64, w64 = wide(x, w)
    y = x64 @ w64
    outer, (m, n), k = y.shape[:-2], y.shape[-2:], x_shape[-1]
    mask = random(outer[0], n, seed=2)

    def view(i: int, shape: Sequence[int], turn: bool, rows: int, columns: int) -> View:
        stored = [*shape[:-2], *(reversed(shape[-2:]) if turn else shape[-2:])]
        own = list(dense("input", i, *stored).strides)
        outer_strides = [0] * (len(outer) - len(shape) + 2) + [
            0 if size == 1 else stride for size, stride in zip(shape[:-2], own, strict=False)
        ]
        inner = own[-1:-3:-1] if turn else own[-2:]
        return strided("input", i, (*outer, rows, columns), (*outer_strides, *inner))

    views = (
        view(0, x_shape, "x" in turned, m, k),
        view(1, w_shape, "w" in turned, k, n),
        None,
        strided("input", 2, (*outer, m, n), (n, *[0] * len(outer), 1)),
        dense("output", 0, *outer, m, n),
    )
    feeds = tuple(
        np.ascontiguousarray(a.swapaxes(-1, -2)) if letter in turned else a
        for letter, a in (("x", x), ("w", w), ("m", mask))
    )
    call = CALLS.listed("gemm", views, layout="kn", chain=ADD_ROW)
    program = single(call, [spec(*f.shape) for f in feeds], [spec(*y.shape)])
    extra = mask.astype(np.float64).reshape(outer[0], *[1] * len(outer), n)
    return Case(f"gemm_batched_{name}", program, feeds, (y + extra,))


def gemm_two_results(m: int = 9, n: int = 20, k: int = 8) -> Case:
    x, w = random(m, k), random(k, n, seed=1)
    outs = (dense("output", 0, m, n), dense("output", 1, m, n))
    views = (dense("input", 0, m, k), dense("input", 1, k, n), None, *outs)
    call = CALLS.listed("gemm", views, layout="kn", chain=TWO_RESULTS)
    program = single(call, [spec(m, k), spec(k, n)], [spec(m, n), spec(m, n)])
    y = x.astype(np.float64) @ w.astype(np.float64)
    return Case("gemm_two_results", program, (x, w), (np.maximum(y, 0), -y))


def gemm_parts(m: int, k: int, layout: int, *widths: int) -> Case:
    """Several products of one x, whose columns need not fall on panel borders."""
    n = sum(widths)
    x, w, b = random(m, k), random(k, n, seed=1), random(n, seed=2)
    stored = np.ascontiguousarray(w.T) if layout == 2 else pack(w)
    views = (
        dense("input", 0, "m", k),
        dense("input", 1, *stored.shape),
        dense("input", 2, n),
        *(dense("output", i, "m", width) for i, width in enumerate(widths)),
    )
    call = CALLS.listed("gemm", views, layout=LAYOUTS[layout], parts=len(widths))
    inputs = [spec("m", k), spec(*stored.shape), spec(n)]
    program = single(call, inputs, [spec("m", width) for width in widths], m=(0, 0))
    x64, w64, b64 = wide(x, w, b)
    y = np.split(x64 @ w64 + b64, np.cumsum(widths)[:-1], axis=1)
    return Case(f"gemm_parts_{m}x{k}_layout{layout}", program, (x, stored, b), tuple(y))


def gemm_then_norm(m: int = 21, n: int = 48, k: int = 16) -> Case:
    """Two calls with the product in a temp."""
    x, w, g, b = random(m, k), random(k, n, seed=1), random(n, seed=2), random(n, seed=3)
    product = dense("temp", 0, "m", n)
    calls = (
        CALLS.make(
            "gemm", x=dense("input", 0, "m", k), w=dense("input", 1, *pack(w).shape), y=product,
            layout="panels",
        ),
        CALLS.make(
            "norm", x=product, gamma=dense("input", 2, n), beta=dense("input", 3, n),
            y=dense("output", 0, "m", n), kind="layer", epsilon=1e-5,
        ),
    )  # fmt: skip
    program = Program(
        (spec("m", k), spec(*pack(w).shape), spec(n), spec(n)),
        (spec("m", n),),
        {"m": (0, 0)},
        (Temp(DType.F32, Expr("mul", ("m", n)), 0, 1),),
        calls,
    )
    x64, w64, g64, b64 = wide(x, w, g, b)
    return Case("gemm_then_norm", program, (x, pack(w), g, b), (layer_norm(x64 @ w64, g64, b64),))


def looped(case: Case, step: int, parallel: bool = False) -> Case:
    """``gemm_then_norm``, some rows at a time: the product's temp holds one tile, private to a
    thread where iterations are parallel."""
    rows = Expr("sub", ("end", "start"))

    def turn(view: View | None) -> View | None:
        if view is None or view.dims[0] != "m":
            return view
        first: Extent = Expr("mul", ("start", view.strides[0]))
        offset = 0 if view.buffer.kind == "temp" else first
        return replace(view, dims=(rows, *view.dims[1:]), offset=offset)

    calls = tuple(replace(c, views=tuple(map(turn, c.views))) for c in case.program.calls)
    (temp,) = case.program.temps
    assert isinstance(temp.count, Expr)
    width = temp.count.args[1]
    program = replace(
        case.program,
        calls=calls,
        temps=(replace(temp, count=Expr("mul", (step, width))),),
        loops=(Loop(0, 1, "m", step, "start", "end", parallel),),
    )
    return replace(case, name=f"{case.name}_by_{step}{'_parallel' * parallel}", program=program)


def layer_norm(x: F64, gamma: F64, beta: F64) -> F64:
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return np.asarray(centred / scale * gamma + beta)


def norm(kind: int, m: int, n: int) -> Case:
    """A norm over rows that lie apart (a slice of wider rows)."""
    x, g, b = random(m, n + 3), random(n, seed=1), random(n, seed=2)
    beta = dense("input", 2, n) if kind == 0 else None
    call = CALLS.make(
        "norm", x=strided("input", 0, (m, n), (n + 3, 1)), gamma=dense("input", 1, n), beta=beta,
        y=dense("output", 0, m, n), kind=("layer", "rms")[kind], epsilon=1e-5,
    )  # fmt: skip
    program = single(call, [spec(m, n + 3), spec(n), spec(n)], [spec(m, n)])
    x64, g64, b64 = wide(x[:, :n], g, b)
    rms = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-5) * g64
    y = rms if kind else layer_norm(x64, g64, b64)
    return Case(f"norm_{'rms' if kind else 'layer'}_{m}x{n}", program, (x, g, b), (y,))


def elementwise(
    name: str, chain: Chain, dims: Sequence[int], shapes: Sequence[Sequence[int]]
) -> Case:
    """A chain over operands that broadcast to ``dims``; stride 0 where they do."""
    feeds = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
    letters = "abcdef"[: len(dims)]
    views = []
    for i, shape in enumerate(shapes):
        own = dense("input", i, *shape).strides
        strides = [0 if size == 1 else stride for size, stride in zip(shape, own, strict=True)]
        views.append(strided("input", i, letters, strides))
    out = dense("output", 0, *letters)
    symbols = {letter: (0, axis) for axis, letter in enumerate(letters)}
    inputs = [spec(*letters)] + [spec(*shape) for shape in shapes[1:]]
    program = single(
        CALLS.listed("elementwise", (*views, out), chain=chain),
        inputs,
        [spec(*letters)],
        **symbols,
    )
    (y,) = chain.reference(wide(*feeds))
    return Case(f"elementwise_{name}", program, tuple(feeds), (y,))


def staged(name: str, chain: Chain, dims: Sequence[int], *axes: Sequence[int]) -> Case:
    """A chain over operands, then a result, that lie as if ``dims`` were permuted.

    An axis of −1 − i is axis i counted in twos.
    """
    feeds, views, seen = [], [], []
    for i, order in enumerate(axes):
        plain = [a if a >= 0 else -1 - a for a in order]
        shape = [dims[p] * (1 if a >= 0 else 2) for a, p in zip(order, plain, strict=True)]
        own = dense("input", i, *shape).strides
        steps = {
            p: (1 if a >= 0 else 2) * int(s) for a, p, s in zip(order, plain, own, strict=True)
        }  # type: ignore[arg-type]
        kind, index = ("input", i) if i + 1 < len(axes) else ("output", 0)
        views.append(strided(kind, index, dims, [steps[a] for a in range(len(dims))]))
        stored = random(*shape, seed=i)
        cut = stored[tuple(slice(None, None, 1 if a >= 0 else 2) for a in order)]
        feeds.append(stored)
        seen.append(cut.transpose([plain.index(a) for a in range(len(dims))]))
    *inputs, output = [spec(*f.shape) for f in feeds]
    if chain.stores:
        output = replace(output, dtype=chain.stores[0])
    kernel = (
        CALLS.listed("elementwise", tuple(views), chain=chain)
        if chain.steps
        else CALLS.listed("copy", tuple(views))
    )
    (y,) = chain.reference(wide(*seen[:-1]))
    order = [a if a >= 0 else -1 - a for a in axes[-1]]
    return Case(name, single(kernel, inputs, [output]), tuple(feeds[:-1]), (y.transpose(order),))


def copied_bytes(dtype: DType, kind: Any) -> Case:
    """Elements of another size, transposed; symbols for the dims."""
    x = random(70, 45, seed=3) * 50
    x = (x > 0) if kind is np.bool_ else x.astype(kind)
    views = (strided("input", 0, ("b", "a"), (1, "b")), dense("output", 0, "b", "a"))
    program = single(
        CALLS.listed("copy", views), [spec("a", "b", dtype=dtype)], [spec("b", "a", dtype=dtype)],
        a=(0, 0), b=(0, 1),
    )  # fmt: skip
    return Case(f"copy_{dtype.short}", program, (x,), (x.T,))


def masked(rows: int = 300, columns: int = 77) -> Case:
    """Bytes, floats and integers, of which the mask repeats over the rows; two results."""
    keep = random(columns) > 0
    x, limit = random(rows, columns, seed=1), np.arange(columns, dtype=np.int64) % 3 - 1
    views = [
        strided("input", 0, ("a", columns), (0, 1)),
        dense("input", 1, "a", columns),
        strided("input", 2, ("a", columns), (0, 1)),
        dense("output", 0, "a", columns),
        dense("output", 1, "a", columns),
    ]
    inputs = [
        spec(columns, dtype=DType.BOOL), spec("a", columns), spec(columns, dtype=DType.I64)
    ]  # fmt: skip
    outputs = [spec("a", columns, dtype=DType.BOOL), spec("a", columns)]
    program = single(
        CALLS.listed("elementwise", tuple(views), chain=MASKED), inputs, outputs, a=(1, 0)
    )
    return Case(
        "elementwise_masked", program, (keep, x, limit), tuple(MASKED.reference([keep, x, limit]))
    )


def gemm_bitmap(m: int = 21, n: int = 40, k: int = 16) -> Case:
    """A product whose columns are kept or replaced."""
    x, w, keep = random(m, k), random(k, n, seed=1), random(n, seed=2) > 0
    stored = pack(w)
    views = (
        dense("input", 0, "m", k),
        dense("input", 1, *stored.shape),
        None,
        strided("input", 2, ("m", n), (0, 1)),
        dense("output", 0, "m", n),
    )
    inputs = [spec("m", k), spec(*stored.shape), spec(n, dtype=DType.BOOL)]
    call = CALLS.listed("gemm", views, layout="panels", chain=KEPT)
    program = single(call, inputs, [spec("m", n)], m=(0, 0))
    x64, w64 = wide(x, w)
    return Case("gemm_bitmap", program, (x, stored, keep), (np.where(keep, x64 @ w64, 0.5),))


def embedding(ids: Array, seed: int = 0, error: str = "") -> Case:
    """Words, positions (broadcast over the batch) and a token type."""
    batch, length = ids.shape
    words, places = random(50, 24, seed=seed), random(40, 24, seed=1)
    dtype = DType.I64 if ids.dtype == np.int64 else DType.I32
    where = np.arange(length, dtype=ids.dtype)
    views = (
        dense("input", 0, 50, 24),
        dense("input", 1, 40, 24),
        dense("input", 2, "b", "s"),
        strided("input", 3, ("b", "s"), (0, 1)),
        dense("output", 0, "b", "s", 24),
    )
    call = CALLS.listed("embedding", views, count=2, index_type=dtype.short)
    program = single(
        call,
        [spec(50, 24), spec(40, 24), spec("b", "s", dtype=dtype), spec("s", dtype=dtype)],
        [spec("b", "s", 24)],
        b=(2, 0),
        s=(2, 1),
    )
    y = () if error else (wide(words)[0][ids] + wide(places)[0][where],)
    name = f"embedding_{ids.dtype}_{batch}x{length}{'_error' if error else ''}"
    return Case(name, program, (words, places, ids, where), y, error)


def attention(
    name: str,
    mask: str = "none",
    heads: int = 4,
    shared: int = 2,
    queries: int = 13,
    keys: int = 19,
) -> Case:
    """Grouped heads over [B,S,H*D] activations; ``mask`` is none, add (row per batch), bool or
    band (boolean, near keys only)."""
    batch, d, dv = 2, 16, 24
    q, k, v = (
        random(batch, queries, heads * d),
        random(batch, keys, shared * d, seed=1),
        random(batch, keys, shared * dv, seed=2),
    )
    inputs = [spec("b", "s", heads * d), spec("b", "t", shared * d), spec("b", "t", shared * dv)]
    feeds = [q, k, v]

    def heads_view(i: int, kind: str, count: int, rows: str, width: int) -> View:
        per = Expr("mul", (rows, count * width))
        return View(Buffer(kind, i), ("b", count, rows, width), (per, width, count * width, 1))

    mask_view, bias, code = None, 0.0, 0
    if mask == "add":
        m = np.where(random(batch, keys, seed=3) > 0.7, np.float32(-1e9), np.float32(0))
        mask_view = strided("input", 3, ("b", heads, "s", "t"), ("t", 0, 0, 1))
        bias, code = m[:, None, None, :].astype(np.float64), 1
        inputs.append(spec("b", "t"))
        feeds.append(m)
    elif mask in ("bool", "band"):
        m = random(queries, keys, seed=3) > -0.5
        m[:, 0] = True
        if mask == "band":
            m = abs(np.subtract.outer(np.arange(queries), np.arange(keys))) < 40
        mask_view = strided("input", 3, ("b", heads, "s", "t"), (0, 0, "t", 1))
        bias, code = np.where(m, 0.0, -np.inf), 2
        inputs.append(spec("s", "t", dtype=DType.BOOL))
        feeds.append(m)
    views = (
        heads_view(0, "input", heads, "s", d),
        heads_view(1, "input", shared, "t", d),
        heads_view(2, "input", shared, "t", dv),
        mask_view,
        None,
        heads_view(0, "output", heads, "s", dv),
    )
    call = CALLS.listed(
        "attention", views, mask_kind=("none", "add", "bool")[code], zero_rows="none",
        order="none", window_left=-1, window_right=0, global_keys=0,
        scale=0.25, fill=-np.inf, softcap=0.0, tile_kind="none",
        tile_grid=(0, 0, 0, 0), beyond=0.0,
    )  # fmt: skip
    program = single(call, inputs, [spec("b", "s", heads * dv)], b=(0, 0), s=(0, 1), t=(1, 1))
    q64, k64, v64 = (
        a.reshape(batch, a.shape[1], -1, w).transpose(0, 2, 1, 3)
        for a, w in zip(wide(q, k, v), (d, d, dv), strict=True)
    )
    k64, v64 = (np.repeat(a, heads // shared, axis=1) for a in (k64, v64))
    scores = 0.25 * q64 @ k64.transpose(0, 1, 3, 2) + bias
    p = np.exp(scores - scores.max(-1, keepdims=True))
    y = (p / p.sum(-1, keepdims=True)) @ v64
    return Case(
        name, program, tuple(feeds), (y.transpose(0, 2, 1, 3).reshape(batch, queries, heads * dv),)
    )


def attention_op(
    name: str,
    params: AttentionParams,
    shapes: Sequence[tuple[int | str, ...]],
    symbols: Mapping[str, int],
) -> Case:
    """The program the passes write for one attention; a fourth operand is an additive mask."""
    feeds = [
        random(*(symbols.get(d, d) for d in shape), seed=i)  # type: ignore[call-overload]
        for i, shape in enumerate(shapes)
    ]
    if len(feeds) == 4:
        feeds[3] = np.where(feeds[3] > 0.8, np.float32(-1e9), feeds[3])
    specs = [spec(*shape) for shape in shapes]
    return operator_case(name, "FusedAttention", params, specs, feeds)


def attention_ops() -> tuple[Case, ...]:
    heads: dict[str, Any] = {"heads": 4, "head": 16, "head_v": 32, "scale": 0.25, "kv_heads": 2}
    rows = (("b", "s", 64), ("b", "t", 32), ("b", "t", 64))
    whole = AttentionParams(widths=(64, 32, 64), **heads)
    ordered = replace(whole, causal="bottom", mask="add", fill=-1e9)
    turned = replace(whole, layouts=("heads", "transposed", "split", "heads"), softcap=3.0)
    by_heads = (("b", 4, "s", 16), ("b", 2, 16, "t"), ("b", "t", 2, 32))
    near = replace(whole, window=(20, 20))
    return (
        *(
            attention_op(
                f"attention_near_{name}_{s}_of_{t}", params, shapes, {"b": 1, "s": s, "t": t}
            )
            for name, params, shapes in (
                ("all", near, rows),
                ("sides", replace(near, window=(50, 3)), rows),
                ("after", replace(near, window=(UNLIMITED, 5)), rows),
                ("before", replace(near, window=(5, UNLIMITED)), rows),
                ("first", replace(near, global_keys=3), rows),
                ("masked", replace(near, mask="add"), (*rows, ("b", 1, 1, "t"))),
                ("ordered", replace(near, causal="bottom", window=(39, 0), global_keys=20), rows),
                ("top", replace(near, causal="top", window=(39, 0), fill=-1e9), rows),
                ("capped", replace(near, softcap=2.0), rows),
            )
            for s, t in ((700, 700), (30, 400), (1, 300), (3, 90))
        ),
        *(
            attention_op(f"attention_{s}_of_{t}", whole, rows, {"b": 2, "s": s, "t": t})
            for s, t in ((1, 1), (1, 300), (3, 40), (4, 530), (5, 40))
        ),
        *(
            attention_op(
                f"attention_ordered_{s}_of_{t}",
                ordered,
                (*rows, ("b", 1, 1, "t")),
                {"b": 1, "s": s, "t": t},
            )
            for s, t in ((150, 150), (60, 400), (1, 300), (4, 60))
        ),
        attention_op("attention_turned", turned, by_heads, {"b": 2, "s": 30, "t": 50}),
        attention_op("attention_turned_1", turned, by_heads, {"b": 2, "s": 1, "t": 50}),
    )


def empty(case: Case, axis: int = 0) -> Case:
    """The case with no rows."""
    feeds = (case.feeds[0][:0], *case.feeds[1:])
    expected = tuple(y[:0] for y in case.expected)
    return replace(case, name=f"{case.name}_empty", feeds=feeds, expected=expected)


@cache
def all_cases() -> tuple[Case, ...]:
    cases = _uncut_cases()
    return (*cases, *task_cases(cases))


def _uncut_cases() -> tuple[Case, ...]:
    small = GemmSchedule(8, nr_panels=1, mc=4, nc=2, prefetch=0)
    large = GemmSchedule(1000, nr_panels=2, mc=50)
    ids = np.array([[0, 49, -1, 7, -50], [3, 3, 3, 20, 21]])
    outside = np.array([[0, 50, 1]])
    return (
        *(
            gemm(m, n, k, layout)
            for layout in range(3)
            for m, n, k in ((1, 1, 1), (7, 47, 31), (130, 100, 64))
        ),
        gemm(130, 200, 65, 0, schedules=(small, large)),
        gemm(5, 200, 65, 0, bias=False, schedules=(small, large)),
        gemm(64, 257, 96, 1, bias=False),
        gemm(200, 33, 20, 2),  # more rows than columns: the weight is packed
        *(gemm(m, 130, 70, layout) for m in (5, 8, 9, 40) for layout in (1, 2)),
        *(gemm(70, 100, 9000, layout) for layout in range(3)),
        gemm(3, 40, 5000, 1),
        *(gemm(70, n, 12, 0) for n in (29968, 29970)),  # too large for L2; rows of whole lines
        gemm_chain(70, 100, 9000),
        gemm_chain(70, 100, 9000, layout=2),
        gemm_chain(6, 100, 90, layout=2),
        *(
            gemm_batched(f"{name}_{turned or 'plain'}", x, w, turned)
            for turned in ("", "x", "w", "xw")
            for name, x, w in (
                ("equal", (2, 3, 20, 33), (2, 3, 33, 50)),
                ("shared", (4, 3, 7, 9), (1, 3, 9, 21)),
                ("matrix", (5, 6, 17), (17, 40)),
                ("few", (40, 2, 3), (40, 3, 2)),
                ("tall", (2, 300, 24), (2, 24, 70)),
            )
        ),
        gemm_chain(m=67, layout=2),
        gemm_chain(),
        gemm_chain(m=1, n=1, k=3),
        gemm_two_results(),
        gemm_parts(37, 24, 0, 48, 16, 96),
        gemm_parts(3, 24, 2, 5, 70, 1, 33),
        gemm_parts(70, 9000, 0, 5, 70, 1, 33),
        gemm_bitmap(),
        gemm_then_norm(),
        *(
            looped(gemm_then_norm(), n, parallel)
            for n in (1, 8, 21, 100)
            for parallel in (False, True)
        ),
        looped(empty(gemm_then_norm()), 8),
        looped(empty(gemm_then_norm()), 8, parallel=True),
        empty(gemm_then_norm()),
        empty(gemm(4, 20, 8, 0)),
        norm(0, 70, 31),
        norm(1, 5, 300),
        norm(0, 1, 1),
        elementwise("bias", MUL_ADD, (3, 5, 40), [(3, 5, 40), (1, 1, 40), (1, 1, 40)]),
        elementwise("narrow", MUL_ADD, (3, 50, 1), [(3, 50, 1), (1, 1, 1), (1, 1, 1)]),
        elementwise("channel", BY_COLUMN, (2, 6, 9, 11), [(2, 6, 9, 11), (1, 6, 1, 1)]),
        elementwise("mismatch", BY_COLUMN, (4, 6, 9), [(4, 6, 9), (4, 6, 9)]),
        elementwise("crossed", MUL_ADD, (4, 6, 9), [(4, 6, 9), (4, 1, 1), (1, 6, 1)]),
        elementwise("large", ADD, (3, 70001), [(3, 70001), (3, 70001)]),
        elementwise("batched", ADD, (300, 7, 90), [(300, 7, 90), (1, 7, 90)]),
        staged("copy_turned", IDENTITY, (300, 70), (1, 0), (0, 1)),
        staged("copy_heads", IDENTITY, (2, 5, 33, 24), (0, 2, 1, 3), (0, 1, 2, 3)),
        staged("copy_channels", IDENTITY, (2, 7, 9, 130), (0, 2, 3, 1), (0, 1, 2, 3)),
        staged("copy_halves", IDENTITY, (5, 33, 40), (0, 1, -3), (0, 1, 2)),
        staged("copy_large", IDENTITY, (3, 40000), (0, 1), (0, 1)),
        staged("copy_large_turned", IDENTITY, (3000, 50), (1, 0), (0, 1)),
        copied_bytes(DType.BOOL, np.bool_),
        copied_bytes(DType.I64, np.int64),
        copied_bytes(DType.I32, np.int32),
        staged("staged_turned", ADD, (300, 70), (1, 0), (0, 1), (0, 1)),
        staged("staged_channels", ADD, (2, 30, 9, 13), (0, 2, 3, 1), (0, 1, 2, 3), (0, 1, 2, 3)),
        staged("staged_all", ADD, (3, 50, 70), (2, 0, 1), (1, 2, 0), (0, 1, 2)),
        staged("staged_colors", ADD, (2, 9, 50, 3), (0, 3, 1, 2), (0, 3, 1, 2), (0, 1, 2, 3)),
        staged("staged_color_bytes", ROUND, (2, 70, 100, 3), (0, 3, 1, 2), (0, 1, 2, 3)),
        staged("staged_color_rows", ADD, (90, 4), (1, 0), (1, 0), (0, 1)),
        staged("staged_halves", ADD, (7, 50), (0, -2), (0, 1), (0, 1)),
        staged("staged_wide", ADD, (2, 5000), (1, 0), (0, 1), (0, 1)),
        masked(),
        empty(elementwise("none", ADD, (4, 6), [(4, 6), (1, 6)])),
        embedding(ids),
        embedding(ids.astype(np.int32)),
        embedding(outside, error="id is 50, but its table has 50 rows"),
        attention("attention_plain"),
        attention("attention_added", mask="add", shared=4),
        attention("attention_boolean", mask="bool", queries=130, keys=70),
        attention("attention_band", mask="band", queries=520, keys=530),
        *attention_ops(),
        *attention_tile_cases(),
        *reduction_cases(),
        *recurrent_cases(),
        *cache_cases(),
        *sparse_cases(),
        *bitmap_cases(),
        *int8_cases(),
        *nbits_cases(),
        *int16_cases(),
        *bf16x2_cases(),
        *guard_cases(),
    )
