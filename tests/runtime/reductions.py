"""Programs of reductions, indices of extremes and softmax, for the runtime's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.runtime.support import Case, dense, single, spec, strided
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.arg_max import ArgParams
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.gather_elements import GatherElementsParams
from tracea_graph.ops.iota import DTYPES
from tracea_graph.ops.top_k import TopKParams

__all__ = ["REDUCED_CHAINS", "reduction_cases"]

SQUARE_SHIFTED = Chain(("full", "col"), (Step("sub", (0, 1)), Step("mul", (2, 2))), (3,))
SCALED_SUM = Chain(("full", "full"), (Step("mul", (0, 0.5)), Step("add", (2, 1))), (3,))
REDUCED_CHAINS = (SQUARE_SHIFTED, SCALED_SUM)

Shape = Sequence[int]
KINDS: tuple[Any, ...] = (
    np.sum, lambda x, *a, **k: np.abs(x).sum(*a, **k), lambda x, *a, **k: (x * x).sum(*a, **k),
    lambda x, *a, **k: x.max(*a, initial=-np.inf, **k),
    lambda x, *a, **k: x.min(*a, initial=np.inf, **k), np.prod,
)  # fmt: skip


def _random(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    draw = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return (draw + 0.25).astype(np.float32)


def _inputs(shapes: Sequence[Shape]) -> tuple[list[Any], list[View], Any]:
    """Feeds, their views over the common shape, and that shape."""
    full = np.broadcast_shapes(*map(tuple, shapes))
    feeds = [_random(*shape, seed=i) for i, shape in enumerate(shapes)]
    views = []
    for i, shape in enumerate(shapes):
        own = dense("input", i, *shape).strides
        steps = [0 if a == 1 and b > 1 else s for a, b, s in zip(shape, full, own, strict=True)]
        views.append(strided("input", i, full, steps))
    return feeds, views, full


def _case(
    name: str, call: Call, feeds: Sequence[Any], shapes: Sequence[Shape], y: Any, dims: Shape
) -> Case:
    program = single(call, [spec(*s) for s in shapes], [spec(*dims)])
    return Case(name, program, tuple(feeds), (y,))


def reduction(
    kind: int, axes: Sequence[int], *shapes: Shape, mean: bool = False, chain: Chain | None = None
) -> Case:
    feeds, views, full = _inputs(shapes)
    dims = [1 if a in axes else d for a, d in enumerate(full)]
    own = dense("output", 0, *dims).strides
    views.append(strided("output", 0, dims, [0 if a in axes else s for a, s in enumerate(own)]))
    words = ("sum", "absolutes", "squares", "max", "min", "product")
    call = CALLS.listed(
        "reduce", views, kind=words[kind], mean=mean, axes=tuple(sorted(axes)), chain=chain
    )
    wide = [f.astype(np.float64) for f in feeds]
    x = chain.reference(wide)[0] if chain else wide[0]
    with np.errstate(all="ignore"):
        y = KINDS[kind](x, tuple(axes), keepdims=True)
        y = y / np.prod([full[a] for a in axes]) if mean else y
    sizes = "_".join("x".join(map(str, s)) for s in shapes)
    name = f"reduce_{kind}{'_mean' if mean else ''}_{sizes}_{''.join(map(str, axes))}"
    return _case(name, call, feeds, shapes, y, dims)


def arg(
    axis: int,
    *shapes: Shape,
    least: bool = False,
    latest: bool = False,
    chain: Chain | None = None,
) -> Case:
    """Of few different numbers, so that the first and the last of equal ones differ."""
    feeds, views, full = _inputs(shapes)
    feeds[0] = np.round(feeds[0])
    dims = [1 if a == axis else d for a, d in enumerate(full)]
    own = dense("output", 0, *dims).strides
    views.append(strided("output", 0, dims, [0 if a == axis else s for a, s in enumerate(own)]))
    call = CALLS.listed("arg_reduce", views, axis=axis, smallest=least, last=latest, chain=chain)
    x = chain.reference(feeds)[0] if chain else feeds[0]
    params = ArgParams("min" if least else "max", axis - len(full), True, latest)
    sizes = "_".join("x".join(map(str, s)) for s in shapes)
    name = f"arg_{sizes}_{axis}{'_least' if least else ''}{'_latest' if latest else ''}"
    program = single(call, [spec(*s) for s in shapes], [spec(*dims, dtype=DType.I64)])
    if not full[axis]:
        return Case(name, program, tuple(feeds), error="chooses from 1 .. 2^31 - 1 elements")
    return Case(name, program, tuple(feeds), tuple(params.reference([x])))


def top_k(k: int, rows: int, cols: int, least: bool = False) -> Case:
    """Of few different numbers."""
    x = np.round(_random(rows, cols) * 4)
    views = (
        dense("input", 0, rows, cols), dense("output", 0, rows, k), dense("output", 1, rows, k)
    )  # fmt: skip
    call = CALLS.listed("top_k", views, smallest=least)
    results = [spec(rows, k), spec(rows, k, dtype=DType.I64)]
    program = single(call, [spec(rows, cols)], results)
    name = f"top_{k}_of_{rows}x{cols}{'_least' if least else ''}"
    if rows and not 0 < k <= cols:
        return Case(name, program, (x,), error=f"chooses {k} of {cols} elements")
    return Case(name, program, (x,), tuple(TopKParams(k, not least).reference([x])))


def take(
    *shape: int, elements: int, same: Sequence[int] = (), wide: bool = True, bad: int = 0
) -> Case:
    """The result has this shape; indices are the same along some axes; one may be outside."""
    x = _random(*shape[:-1], elements)
    draw = np.random.default_rng([9, *shape])
    dims = [1 if axis in same else dim for axis, dim in enumerate(shape)]
    index = draw.integers(-elements, elements, dims).astype(np.int64 if wide else np.int32)
    if bad and index.size:
        index.flat[-1] = bad
    dtype = DType.I64 if wide else DType.I32
    steps = [0 if axis in same else s for axis, s in enumerate(dense("input", 1, *dims).strides)]
    views = (
        dense("input", 0, *shape[:-1], elements),
        strided("input", 1, shape, steps),
        dense("output", 0, *shape),
    )
    call = CALLS.listed("gather_elements", views, index_type=dtype.short)
    program = single(call, [spec(*x.shape), spec(*dims, dtype=dtype)], [spec(*shape)])
    name = f"take_{'x'.join(map(str, shape))}_of_{elements}_{''.join(map(str, same))}"
    name += f"{'' if wide else '_narrow'}{'_outside' if bad else ''}"
    if bad:
        return Case(name, program, (x, index), error=f"outside the {elements} elements")
    return Case(
        name, program, (x, index), tuple(GatherElementsParams(len(shape)).reference([x, index]))
    )


def grid(
    *dims: int, start: float, steps: Sequence[float], order: Sequence[int] = (), dtype: str = "f32"
) -> Case:
    """The result lies with its axes in an ``order``; its sizes are those of an input."""
    full = [dims[a] for a in order] if order else list(dims)
    steps_of = dense("output", 0, *full).strides
    strides = [steps_of[list(order).index(a)] if order else steps_of[a] for a in range(len(dims))]
    call = CALLS.make(
        "iota", y=strided("output", 0, dims, strides), y_type=dtype, start=start,
        steps=tuple(steps),
    )  # fmt: skip
    want = start + sum(s * i for s, i in zip(steps, np.indices(dims), strict=True))
    kind = next(t for t in DType if t.short == dtype)
    program = single(call, [spec(*dims)], [TensorSpec(kind, full)])
    turned = want.transpose(order) if order else want
    name = f"grid_{dtype}_{'x'.join(map(str, dims))}_{''.join(map(str, order))}"
    return Case(name, program, (_random(*dims),), (turned.astype(DTYPES[kind]),))


def softmax(axis: int, *shapes: Shape, log: bool = False, chain: Chain | None = None) -> Case:
    feeds, views, full = _inputs(shapes)
    views.append(dense("output", 0, *full))
    call = CALLS.listed("softmax", views, axis=axis, log=log, chain=chain)
    wide = [f.astype(np.float64) for f in feeds]
    x = chain.reference(wide)[0] if chain else wide[0]
    d = x - x.max(axis, keepdims=True, initial=-np.inf)
    total = np.exp(d).sum(axis, keepdims=True)
    sizes = "_".join("x".join(map(str, s)) for s in shapes)
    name = f"softmax_{sizes}_{axis}{'_log' if log else ''}"
    return _case(name, call, feeds, shapes, d - np.log(total) if log else np.exp(d) / total, full)


def channel_norm(kind: int, groups: int, *dims: int, affine: bool = True) -> Case:
    x, gamma, beta = _random(*dims), _random(dims[1], seed=1), _random(dims[1], seed=2)
    vectors = [dense("input", i, dims[1]) if affine else None for i in (1, 2)]
    views = (dense("input", 0, *dims), *vectors, dense("output", 0, *dims))
    words = ("layer", "rms")
    call = CALLS.listed("channel_norm", views, kind=words[kind], groups=groups, epsilon=1e-5)
    wide = x.astype(np.float64)
    lines = wide.reshape(dims[0], groups, -1) if groups else np.moveaxis(wide, 1, -1)
    d = lines if kind else lines - lines.mean(-1, keepdims=True)
    y = d / np.sqrt((d**2).mean(-1, keepdims=True) + 1e-5)
    y = y.reshape(dims) if groups else np.moveaxis(y, -1, 1)
    y = y * gamma[:, None] + beta[:, None] if affine else y
    name = f"channel_norm_{kind}_{groups}_{'x'.join(map(str, dims))}_{affine}"
    return _case(name, call, (x, gamma, beta), (dims, dims[1:2], dims[1:2]), y, dims)


def reduction_cases() -> tuple[Case, ...]:
    shapes = ((3, 5, 7, 11), (2, 1, 40, 33), (70, 9, 1, 5))
    axes = ((3,), (2,), (0,), (0, 2), (1, 3), (1, 2), (0, 1, 2, 3), (2, 3))
    image, pixel = (2, 6, 40, 50), (2, 6, 1, 1)
    return (
        *(reduction(0, a, s) for s in shapes for a in axes),
        *(reduction(kind, a, (4, 300, 9)) for kind in range(1, 5) for a in ((1,), (0, 2))),
        reduction(5, (1,), (4, 12, 9)),
        reduction(0, (1,), (3, 0, 4)),
        reduction(3, (1,), (3, 0, 4)),
        reduction(0, (1,), (0, 5, 4)),
        *(reduction(0, a, (700, 901), mean=True) for a in ((0,), (1,), (0, 1))),
        reduction(4, (0, 1), (700, 901)),
        reduction(0, (0,), (9000, 70)),
        reduction(0, (0, 2), (3, 600, 3000)),
        # with a chain: along it, across it, against how it was compiled
        reduction(0, (2, 3), image, pixel, chain=SQUARE_SHIFTED),
        reduction(0, (0, 1), image, pixel, chain=SQUARE_SHIFTED),
        reduction(0, (0, 2, 3), image, (1, 6, 1, 1), mean=True, chain=SQUARE_SHIFTED),
        reduction(3, (1,), (5, 90, 300), (5, 1, 300), chain=SCALED_SUM),
        reduction(0, (1, 2), (5, 90, 300), (1, 90, 1), chain=SCALED_SUM),
        reduction(0, (0,), (800, 700), (800, 700), chain=SCALED_SUM),
        *(arg(a, s) for s in (*shapes, (2, 1, 3000)) for a in range(len(s))),
        *(arg(a, (4, 600, 90), least=a > 1, latest=True) for a in range(3)),
        arg(1, (2, 21, 90, 70), least=True),
        arg(1, (0, 5, 4)),
        arg(1, (3, 0, 4)),
        arg(0, (7, 1)),
        arg(1, (3, 50257)),
        arg(1, (700, 900, 5)),
        # with a chain: along it, across it, against how it was compiled
        arg(1, (5, 9000), (5, 9000), chain=SCALED_SUM),
        arg(2, (5, 90, 300), (5, 1, 300), chain=SCALED_SUM),
        arg(1, (5, 90, 300), (5, 1, 300), latest=True, chain=SCALED_SUM),
        arg(1, (5, 90, 300), (1, 90, 1), chain=SCALED_SUM),
        arg(0, (800, 700), (800, 700), chain=SCALED_SUM),
        *(top_k(k, 300, 70, least) for k in (1, 5, 70) for least in (False, True)),
        top_k(50, 1, 50257),
        top_k(5, 0, 7),
        top_k(8, 3, 7),
        grid(7, start=0.5, steps=(1.0,)),
        grid(28, 37, start=-4.0, steps=(0.0, 0.25)),
        grid(5, 3, 4, start=16.0, steps=(8.0, -1.0, 2.0), order=(2, 0, 1)),
        grid(300, 4000, start=1.0, steps=(2.0, 0.5)),
        grid(11, start=2.0, steps=(3.0,), dtype="i64"),
        grid(3, 40, start=-2.0, steps=(-1.0, 5.0), order=(1, 0), dtype="i32"),
        grid(0, 3, start=1.0, steps=(1.0, 1.0)),
        grid(3, 0, start=1.0, steps=(1.0, 1.0)),
        take(2, 3, 5, 7, elements=9),
        take(2, 3, 40, 37, elements=64, same=(0, 1)),
        take(3, 70, 1500, elements=5, same=(0,), wide=False),
        take(3, 70, 9, elements=5, same=(1,)),
        take(700, 90, elements=300, same=(0,)),
        take(4000, elements=1),
        take(2, 0, 5, elements=4),
        take(2, 5, 0, elements=4),
        take(2, 3, 40, 37, elements=64, same=(0, 1), bad=64),
        take(3, 2, elements=6, wide=False, bad=-7),
        *(softmax(a, s) for s in ((3, 5, 7, 33), (1, 40, 1, 9)) for a in range(4)),
        softmax(1, (3, 300, 700), log=True),
        softmax(2, (30, 30, 300), log=True),
        softmax(1, (2, 0, 5)),
        softmax(3, (2, 4, 30, 50), (2, 1, 30, 50), chain=SCALED_SUM),
        softmax(1, (2, 40, 30, 5), (2, 40, 30, 5), chain=SCALED_SUM),
        softmax(3, (2, 4, 30, 50), (2, 1, 1, 1), chain=SCALED_SUM),
        *(channel_norm(k, g, 2, 12, 37) for k in (0, 1) for g in (0, 1, 3, 12)),
        channel_norm(0, 4, 3, 8, 9000, affine=False),
        channel_norm(0, 0, 2, 96, 3100),
        channel_norm(1, 0, 2, 5000, 33),
        channel_norm(0, 6, 1, 6, 1),
        softmax(2, (2, 40, 30), (1, 40, 1), log=True, chain=SQUARE_SHIFTED),
    )
