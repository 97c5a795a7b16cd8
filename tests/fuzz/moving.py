"""Steps of a draft: data movement, and what nothing rewrites."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz.draft import Dims, Draft, Unfit, Value, broadcast, ends, reduced, symbolic
from tests.fuzz.pointwise import compare

__all__ = ["MOVES"]


def transpose(d: Draft) -> None:
    x = d.floats(least=2)
    perm = list(range(x.rank))
    for i in range(x.rank - 1, 0, -1):
        j = d.number(0, i)
        perm[i], perm[j] = perm[j], perm[i]
    d.add("Transpose", [x], tuple(x.dims[p] for p in perm), exact=x.exact, perm=perm)


def reshape(d: Draft) -> None:
    """Merging or splitting neighbouring axes, or everything anew."""
    x = d.floats(least=1)
    kind = d.number(0, 2)
    if kind == 0 and x.rank > 1:
        at = d.number(0, x.rank - 2)
        a, b = x.dims[at : at + 2]
        merged: int | str = a * b if isinstance(a, int) and isinstance(b, int) else f"{a}*{b}"
        dims: Dims = (*x.dims[:at], merged, *x.dims[at + 2 :])
        if sum(isinstance(n, str) for n in dims[at + 1 :]):
            raise Unfit
        wanted = [*([0] * at), merged if isinstance(merged, int) else -1, *dims[at + 1 :]]
    elif kind == 1:
        at = d.number(0, x.rank - 1)
        size = x.dims[at]
        if not isinstance(size, int) or symbolic(x.dims[at:]):
            raise Unfit
        part = d.choose([p for p in range(1, size + 1) if size % p == 0])
        dims = (*x.dims[:at], part, size // part, *x.dims[at + 1 :])
        wanted = [*([0] * at), *dims[at:]]
    elif symbolic(x.dims[1:]):
        raise Unfit
    elif isinstance(x.dims[0], str):
        dims = (x.dims[0], math.prod(map(int, x.dims[1:])))
        wanted = [0, -1] if d.often(50) else [-1, dims[1]]
    else:
        size = math.prod(map(int, x.dims))
        dims, wanted = (size,), [-1]
    d.add("Reshape", [x, d.ints(*map(int, wanted))], dims, exact=x.exact)


def computed_reshape(d: Draft) -> None:
    """The shape taken apart and put together again, as tracers write it."""
    x = d.floats(rank=3)
    if not isinstance(x.dims[2], int):
        raise Unfit
    shape = d.add("Shape", [x], (3,), "i", True)
    parts = []
    for axis in (0, 1):
        size = d.add("Gather", [shape, d.const(np.int64(axis))], (), "i", True, axis=0)
        if d.opset >= 13:
            parts.append(d.add("Unsqueeze", [size, d.ints(0)], (1,), "i", True))
        else:
            parts.append(d.add("Unsqueeze", [size], (1,), "i", True, axes=[0]))
    size = x.dims[2]
    heads = d.choose([h for h in (1, 2, 4) if size % h == 0])
    parts += [d.ints(heads), d.ints(size // heads)]
    wanted = d.add("Concat", parts, (4,), "i", True, axis=0)
    y = d.add("Reshape", [x, wanted], (*x.dims[:2], heads, size // heads), exact=x.exact)
    if d.often(60):
        dims = tuple(y.dims[i] for i in (0, 2, 1, 3))
        d.add("Transpose", [y], dims, exact=x.exact, perm=[0, 2, 1, 3])


def squeeze(d: Draft) -> None:
    """Axes of one element come or go."""
    x = d.floats()
    ones = [i for i, dim in enumerate(x.dims) if dim == 1]
    if ones and d.often(50):
        axes = [d.choose(ones)]
        op, dims = "Squeeze", reduced(x.dims, axes, False)
    else:
        at = d.number(0, x.rank)
        op, axes, dims = "Unsqueeze", [at], (*x.dims[:at], 1, *x.dims[at:])
    if d.opset >= 13:
        d.add(op, [x, d.ints(*axes)], dims, exact=x.exact)
    else:
        d.add(op, [x], dims, exact=x.exact, axes=axes)


def flatten(d: Draft) -> None:
    x = d.floats(least=2)
    at = d.number(1, x.rank - 1)
    if symbolic(x.dims[1:]) or at > 1:
        raise Unfit
    d.add("Flatten", [x], (x.dims[0], math.prod(map(int, x.dims[1:]))), exact=x.exact, axis=at)


def slices(d: Draft) -> None:
    """A part of one axis, also backwards or with steps."""
    x = d.floats(least=1)
    at = d.number(0, x.rank - 1)
    size = x.dims[at]
    if not isinstance(size, int):
        raise Unfit
    start = d.number(0, size - 1)
    end = d.number(start + 1, size)
    step = d.choose([1, 1, 2, -1]) if d.opset >= 10 else 1
    if step < 0:
        dims = (*x.dims[:at], size - start, *x.dims[at + 1 :])
        operands = [d.ints(-1), d.ints(start - size - 1), d.ints(at), d.ints(-1)]
        d.add("Slice", [x, *operands], dims, exact=x.exact)
        return
    dims = (*x.dims[:at], -(-(end - start) // step), *x.dims[at + 1 :])
    stop = 1 << 40 if end == size and d.often(50) else end
    if d.opset < 10:
        d.add("Slice", [x], dims, exact=x.exact, starts=[start], ends=[stop], axes=[at])
    else:
        operands = [d.ints(start), d.ints(stop), d.ints(ends(d, at, x.rank)), d.ints(step)]
        d.add("Slice", [x, *operands], dims, exact=x.exact)


def trim(d: Draft) -> None:
    """All but the ends of an axis of any size, which may be nothing; or its end alone."""
    d.need(10)
    x = d.floats(least=2, where=lambda v: symbolic(v.dims))
    at = d.choose([i for i, dim in enumerate(x.dims) if isinstance(dim, str)])
    start, stop = d.choose([(1, 1 << 40), (0, -1), (-1, 1 << 40), (0, 1), (1, -1)])
    dims = (*x.dims[:at], f"{x.dims[at]}[{start}:{stop}]", *x.dims[at + 1 :])
    operands = [d.ints(start), d.ints(stop), d.ints(ends(d, at, x.rank))]
    d.add("Slice", [x, *operands], dims, exact=x.exact)


def split(d: Draft) -> None:
    x = d.floats(least=1)
    at = d.number(0, x.rank - 1)
    size = x.dims[at]
    if not isinstance(size, int) or size < 2:
        raise Unfit
    first = d.number(1, size - 1)
    sizes = [first, size - first]
    shapes: list[Dims] = [(*x.dims[:at], n, *x.dims[at + 1 :]) for n in sizes]
    if d.opset >= 13:
        a, b = d.many("Split", [x, d.ints(*sizes)], shapes, exact=x.exact, axis=at)
    else:
        a, b = d.many("Split", [x], shapes, exact=x.exact, axis=at, split=sizes)
    if a.dims == b.dims and d.often(60):  # a gated unit, or a shuffle
        d.add("Mul", [a, d.add("Sigmoid", [b], b.dims)], a.dims)


def concat(d: Draft) -> None:
    """Values that differ in one axis at most; one may come twice."""
    a = d.floats(least=1)
    at = d.number(0, a.rank - 1)
    rest = [dim for i, dim in enumerate(a.dims) if i != at]

    def fits(v: Value) -> bool:
        same = v.rank == a.rank and [m for i, m in enumerate(v.dims) if i != at] == rest
        return same and isinstance(v.dims[at], int)

    if not fits(a):
        raise Unfit
    parts = [a] + [d.floats(rank=a.rank, where=fits) for _ in range(d.number(1, 3))]
    if d.often(20) and not symbolic(tuple(rest)):
        parts.append(d.weight(*map(int, (*a.dims[:at], 2, *a.dims[at + 1 :]))))
    dims = (*a.dims[:at], sum(int(p.dims[at]) for p in parts), *a.dims[at + 1 :])
    exact = all(p.exact for p in parts)
    axis = ends(d, at, a.rank) if d.opset >= 11 else at
    d.add("Concat", parts, dims, exact=exact, axis=axis)


def gather(d: Draft) -> None:
    """Constant indices: one, several, out of order, some from the end."""
    x = d.floats(least=1)
    at = d.number(0, x.rank - 1)
    size = x.dims[at]
    if not isinstance(size, int):
        raise Unfit
    least = -size if d.opset >= 11 else 0
    if d.often(40):
        index, dims = d.const(np.int64(d.number(least, size - 1))), ()
    else:
        found = [d.number(least, size - 1) for _ in range(d.number(1, 4))]
        index, dims = d.ints(*found), (len(found),)
    d.add("Gather", [x, index], (*x.dims[:at], *dims, *x.dims[at + 1 :]), exact=x.exact, axis=at)


def expand(d: Draft) -> None:
    d.need(8)
    x = d.floats(least=1)
    wanted = [d.choose([2, 3, 5]) if dim == 1 and d.often(60) else 1 for dim in x.dims]
    if d.often(30):
        wanted.insert(0, d.choose([1, 2]))
    d.add("Expand", [x, d.ints(*wanted)], broadcast(x.dims, tuple(wanted)), exact=x.exact)


def tile(d: Draft) -> None:
    x = d.floats(least=1)
    times = [d.choose([1, 2, 3]) if isinstance(dim, int) else 1 for dim in x.dims]
    dims = tuple(m * t if isinstance(m, int) else m for m, t in zip(x.dims, times, strict=True))
    d.add("Tile", [x, d.ints(*times)], dims, exact=x.exact)


def pad(d: Draft) -> None:
    x = d.floats(least=1)
    mode = d.choose(["constant", "constant", "edge", "reflect"])
    pads: list[tuple[int, int]] = []
    for dim in x.dims:
        most = 2 if mode != "reflect" else min(2, dim - 1 if isinstance(dim, int) else 0)
        pads.append((d.number(0, most), d.number(0, most)) if isinstance(dim, int) else (0, 0))
    if d.opset >= 11 and mode == "constant" and d.often(10):
        pads[-1] = (-1, pads[-1][1])
    flat = [*(low for low, _ in pads), *(high for _, high in pads)]
    dims = tuple(
        m + low + high if isinstance(m, int) else m
        for m, (low, high) in zip(x.dims, pads, strict=True)
    )
    if d.opset >= 11:
        value = d.const(np.float32(d.choose([0.0, 1.5]))) if mode == "constant" else None
        d.add("Pad", [x, d.ints(*flat), value], dims, exact=x.exact, mode=mode)
    else:
        d.add("Pad", [x], dims, exact=x.exact, mode=mode, pads=flat)


def blocks(d: Draft) -> None:
    """Depth to space and back, channel shuffles, nearest upsampling."""
    x = d.floats(rank=4, where=lambda v: not symbolic(v.dims[1:]))
    channels, height, width = map(int, x.dims[1:])
    kind = d.number(0, 3)
    if kind == 0 and channels % 4 == 0:
        dims = (x.dims[0], channels // 4, height * 2, width * 2)
        more: dict[str, Any] = {"mode": d.choose(["DCR", "CRD"])} if d.opset >= 11 else {}
        d.add("DepthToSpace", [x], dims, exact=x.exact, blocksize=2, **more)
    elif kind == 1 and height % 2 == 0 and width % 2 == 0:
        dims = (x.dims[0], channels * 4, height // 2, width // 2)
        d.add("SpaceToDepth", [x], dims, exact=x.exact, blocksize=2)
    elif kind == 2 and channels % 2 == 0:
        half = channels // 2
        y = d.add("Reshape", [x, d.ints(0, 2, half, height, width)],
                  (x.dims[0], 2, half, height, width), exact=x.exact)  # fmt: skip
        y = d.add("Transpose", [y], (x.dims[0], half, 2, height, width), exact=x.exact,
                  perm=[0, 2, 1, 3, 4])  # fmt: skip
        d.add("Reshape", [y, d.ints(0, channels, height, width)], x.dims, exact=x.exact)
    else:
        d.need(11)
        scales = d.const(np.array([1, 1, 2, 2], np.float32))
        mode = d.choose(["nearest", "linear"])
        d.add("Resize", [x, d.const(np.zeros(0, np.float32)), scales],
              (*x.dims[:2], height * 2, width * 2), exact=x.exact and mode == "nearest",
              mode=mode, coordinate_transformation_mode="asymmetric")  # fmt: skip


def running(d: Draft) -> None:
    """What nothing rewrites lies between what is: running sums, ranks, triangles."""
    x = d.floats(least=2)
    kind = d.number(0, 3)
    if kind == 0:
        d.need(11)
        d.add("CumSum", [x, d.const(np.int64(x.rank - 1))], x.dims)
    elif kind == 1:
        d.need(14)
        d.add("Trilu", [x], x.dims, exact=x.exact, upper=d.number(0, 1))
    elif kind == 2:
        d.need(11)
        e = d.exact()
        if e.rank < 1:
            raise Unfit
        d.add("ArgMax", [e], e.dims[:-1], "i", True, axis=e.rank - 1, keepdims=0)
    else:
        d.add("Identity", [x], x.dims, exact=x.exact)


def dropout(d: Draft) -> None:
    x = d.floats()
    d.add("Dropout", [x], x.dims, exact=x.exact)


def branches(d: Draft) -> None:
    """If, whose bodies read values of the graph around them and shadow none."""
    d.need(13)
    x = d.floats(least=1)
    c = compare(d)
    flag = d.add("Cast", [c], c.dims, exact=True, to=1)
    total = d.add("ReduceMax", [flag], (), exact=True, keepdims=0)
    yes = d.add("Greater", [total, d.const(np.float32(0.5))], (), "b", True)
    out = helper.make_empty_tensor_value_info("inner")
    bodies = [
        helper.make_graph([helper.make_node(op, [x.name], ["inner"])], op, [], [out])
        for op in ("Relu", "Neg")
    ]
    d.add("If", [yes], x.dims, then_branch=bodies[0], else_branch=bodies[1])


MOVES = (
    transpose, reshape, concat, slices, trim, split, gather, computed_reshape, squeeze, flatten,
    expand, tile, pad, blocks, running, dropout, branches,
)  # fmt: skip
