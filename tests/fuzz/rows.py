"""Steps of a draft: reductions, softmax and norms."""

from __future__ import annotations

import math

import numpy as np

from tests.fuzz.draft import Draft, Unfit, Value, broadcast, ends, reduced, symbolic

__all__ = ["ROWS"]


def reduce(d: Draft, x: Value, op: str, axes: list[int], keep: bool) -> Value:
    """A reduction as the opset spells its axes."""
    since = 13 if op == "ReduceSum" else 18
    spelled = [ends(d, a, x.rank) if d.opset >= 11 else a for a in axes]
    dims = reduced(x.dims, axes, keep)
    if not axes or (len(axes) == x.rank and d.often(50)):
        return d.add(op, [x], reduced(x.dims, [*range(x.rank)], keep), keepdims=int(keep))
    if d.opset >= since:
        return d.add(op, [x, d.ints(*spelled)], dims, keepdims=int(keep))
    return d.add(op, [x], dims, axes=spelled, keepdims=int(keep))


def reduction(d: Draft) -> None:
    x = d.floats(least=1)
    op = d.choose(
        ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare",
         "ReduceL1", "ReduceLogSumExp"]
    )  # fmt: skip
    axes = [a for a in range(x.rank) if d.often(40)] or [x.rank - 1]
    reduce(d, x, op, axes, d.often(60))


def softmax(d: Draft) -> None:
    x = d.floats(least=1)
    if d.often(75):
        axis = d.number(0, x.rank - 1)
        axis = ends(d, axis, x.rank) if d.opset >= 11 else axis
        d.add(d.choose(["Softmax", "LogSoftmax"]), [x], x.dims, axis=axis)
        return
    top = reduce(d, x, "ReduceMax", [x.rank - 1], True)
    e = d.add("Exp", [d.add("Sub", [x, top], x.dims)], x.dims)
    d.add("Div", [e, reduce(d, e, "ReduceSum", [x.rank - 1], True)], x.dims)


def layer_norm(d: Draft, x: Value | None = None) -> None:
    """LayerNormalization or RMS, as an operator or spelled out."""
    x = x or d.floats(least=2, where=lambda v: isinstance(v.dims[-1], int) and v.dims[-1] > 2)
    count = x.dims[-1]
    assert isinstance(count, int)
    gamma = d.weight(count)
    if d.opset >= 17 and d.often(50):
        beta = d.weight(count) if d.often(70) else None
        d.add("LayerNormalization", [x, gamma, beta], x.dims, axis=-1, epsilon=1e-5)
        return
    last, small = [x.rank - 1], d.const(np.float32(1e-5))
    y = x if d.often(25) else d.add("Sub", [x, reduce(d, x, "ReduceMean", last, True)], x.dims)
    square = (
        d.add("Mul", [y, y], x.dims)
        if d.often(50)
        else d.add("Pow", [y, d.const(np.float32(2.0))], x.dims)
    )
    mean = reduce(d, square, "ReduceMean", last, True)
    root = d.add("Sqrt", [d.add("Add", [mean, small], mean.dims)], mean.dims)
    if d.often(60):
        y = d.add("Div", [y, root], x.dims)
    else:
        y = d.add("Mul", [y, d.add("Reciprocal", [root], root.dims)], x.dims)
    y = d.add("Mul", [y, gamma] if d.often(50) else [gamma, y], x.dims)
    if d.often(70):
        d.add("Add", [y, d.weight(count)], x.dims)


def skip_norm(d: Draft) -> None:
    """A sum that is normalised and used again."""
    a = d.floats(least=2, where=lambda v: isinstance(v.dims[-1], int) and v.dims[-1] > 2)
    b = d.floats(where=lambda v: v.dims == a.dims)
    total = d.add("Add", [a, b], a.dims)
    layer_norm(d, total)
    if d.often(50):
        d.add("Add", [total, d.values[-1]], broadcast(total.dims, d.values[-1].dims))


def channel_norm(d: Draft) -> None:
    """Instance and group norms, spelled or not."""
    x = d.floats(rank=4, where=lambda v: isinstance(v.dims[1], int) and not _tiny(v))
    count = x.dims[1]
    assert isinstance(count, int)
    if d.often(50):
        d.add("InstanceNormalization", [x, d.weight(count), d.weight(count)], x.dims, epsilon=1e-5)
        return
    groups = d.choose([g for g in (1, 2, 4) if count % g == 0])
    if symbolic(x.dims) or d.opset < 8:
        raise Unfit
    flat = d.add(
        "Reshape", [x, d.ints(0, groups, -1)],
        (x.dims[0], groups, math.prod(map(int, x.dims[1:])) // groups),
    )  # fmt: skip
    ones, zeros = (d.const(np.full(groups, n, np.float32)) for n in (1, 0))
    y = d.add("InstanceNormalization", [flat, ones, zeros], flat.dims, epsilon=1e-5)
    y = d.add("Reshape", [y, d.ints(*map(int, x.dims))], x.dims)
    y = d.add("Mul", [y, d.weight(count, 1, 1)], x.dims)
    d.add("Add", [y, d.weight(count, 1, 1)], x.dims)


def _tiny(v: Value) -> bool:
    return any(isinstance(dim, int) and dim < 3 for dim in v.dims[2:])


ROWS = (layer_norm, softmax, reduction, skip_norm, channel_norm)
