"""Steps of a draft: products, convolutions, pools, look-ups and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from fuzz.draft import Dims, Draft, Unfit, Value, broadcast
from fuzz.pointwise import activation

__all__ = ["PRODUCTS"]

WIDTHS = (1, 2, 3, 5, 8, 15, 16, 17, 24, 32, 33)
CHANNELS = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24)


def _fixed(dim: int | str) -> int:
    """A dim that a weight can have.  Raises Unfit for a symbol."""
    if isinstance(dim, str):
        raise Unfit
    return dim


def matmul(d: Draft) -> None:
    """With a weight, sometimes with a bias and an activation behind it."""
    x = d.floats(least=1)
    k, n = _fixed(x.dims[-1]), d.choose(WIDTHS)
    w = d.weight(k, n, scale=k**-0.5)
    y = d.add("MatMul", [x, w], (*x.dims[:-1], n))
    if d.often(60):
        bias = d.weight(n) if d.often(80) else d.weight(*(1,) * d.number(0, 2), 1)
        y = d.add("Add", [y, bias] if d.often(60) else [bias, y], broadcast(y.dims, bias.dims))
    if d.often(40):
        activation(d, y)


def vector_matmul(d: Draft) -> None:
    """Weights on the left, of one axis, of three; two activations."""
    x = d.floats(least=2)
    kind = d.number(0, 2)
    if kind == 0:
        k, m = _fixed(x.dims[-2]), d.choose(WIDTHS)
        d.add("MatMul", [d.weight(m, k, scale=k**-0.5), x], (*x.dims[:-2], m, x.dims[-1]))
    elif kind == 1:
        k = _fixed(x.dims[-1])
        d.add("MatMul", [x, d.weight(k, scale=k**-0.5)], x.dims[:-1])
    else:
        k, n = _fixed(x.dims[-1]), d.choose(WIDTHS)
        batch = tuple(a if isinstance(a, int) and d.often(50) else 1 for a in x.dims[:-2])
        w = d.weight(*batch, k, n, scale=k**-0.5)
        d.add("MatMul", [x, w], (*broadcast(x.dims[:-2], batch), x.dims[-2], n))


def batched_matmul(d: Draft) -> None:
    """Two activations, one of them transposed if need be."""
    a = d.floats(least=2)
    b = d.floats(least=2)
    if a.dims[-1] != b.dims[-2] and a.dims[-1] == b.dims[-1]:
        perm = [*range(b.rank - 2), b.rank - 1, b.rank - 2]
        b = d.add("Transpose", [b], (*b.dims[:-2], b.dims[-1], b.dims[-2]), perm=perm)
    if a.dims[-1] != b.dims[-2]:
        raise Unfit
    dims = (*broadcast(a.dims[:-2], b.dims[:-2]), a.dims[-2], b.dims[-1])
    d.add("MatMul", [a, b], dims)


def gemm(d: Draft) -> None:
    x = d.floats(rank=2)
    flip_a, flip_b = d.often(15), d.often(50)
    m, k = x.dims[::-1] if flip_a else x.dims
    k, n = _fixed(k), d.choose(WIDTHS)
    w = d.weight(*((n, k) if flip_b else (k, n)), scale=k**-0.5)
    shapes: list[Dims | None] = [(n,), (1, n), (1,), ()]
    if isinstance(m, int):
        shapes += [(m, n), (m, 1)]
    if d.opset >= 11:
        shapes.append(None)
    form = d.choose(shapes)
    c = None if form is None else d.weight(*map(_fixed, form))
    attributes: dict[str, Any] = {}
    if d.often(25):
        attributes |= {"alpha": d.choose([0.5, 2.0, -1.0]), "beta": d.choose([1.0, 0.5, 0.0])}
    if flip_a:
        attributes["transA"] = 1
    if flip_b:
        attributes["transB"] = 1
    y = d.add("Gemm", [x, w, c], (m, n), **attributes)
    if d.often(40):
        activation(d, y)


def siblings(d: Draft) -> None:
    """Several products of one value: projections, or a gated pair."""
    x = d.floats(least=2)
    k, n = _fixed(x.dims[-1]), d.choose(WIDTHS)
    made = []
    for _ in range(d.number(2, 3)):
        y = d.add("MatMul", [x, d.weight(k, n, scale=k**-0.5)], (*x.dims[:-1], n))
        made.append(d.add("Add", [y, d.weight(n)], y.dims) if d.often(50) else y)
    if d.often(60):
        gate = d.add("Sigmoid", [made[0]], made[0].dims)
        d.add("Mul", [gate, made[1]], gate.dims)


# ---- windows ---------------------------------------------------------------------------


def _window(
    d: Draft, x: Value, dilate: bool = True
) -> tuple[list[int], dict[str, Any], list[int | str]]:
    """Kernel, attributes and the spatial dims of a window over an image."""
    kernel, strides, pads, spread, dims = [], [], [], [], list[int | str]()
    same = d.often(15)
    for dim in x.dims[2:]:
        size = d.choose([1, 3, 2, 5, 4, 7])
        step = d.choose([1, 1, 2, 3])
        gap = d.choose([1, 1, 2]) if dilate and not same else 1
        low, high = (0, 0) if same else (d.number(0, size // 2), d.number(0, size // 2))
        reach = (size - 1) * gap + 1
        if isinstance(dim, str):
            out: int | str = f"({dim}:{reach}:{step}:{low + high}:{same})"
            if same and step == 1:
                out = dim
        elif same:
            out = -(-dim // step)
        else:
            out = (dim + low + high - reach) // step + 1
            if dim + low + high < reach:
                raise Unfit
        kernel.append(size)
        strides.append(step)
        spread.append(gap)
        pads.append((low, high))
        dims.append(out)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    if same:
        attributes["auto_pad"] = d.choose(["SAME_UPPER", "SAME_LOWER"])
    else:
        attributes["pads"] = [*(low for low, _ in pads), *(high for _, high in pads)]
        if any(gap > 1 for gap in spread):
            attributes["dilations"] = spread
    return kernel, attributes, dims


def _image(d: Draft) -> Value:
    return d.floats(rank=d.choose([4, 4, 4, 3]), where=lambda v: isinstance(v.dims[1], int))


def conv(d: Draft) -> None:
    """Plain, grouped or depthwise; then perhaps a norm, an activation and a shortcut."""
    x = _image(d)
    channels = _fixed(x.dims[1])
    divisors = [g for g in range(1, channels + 1) if channels % g == 0]
    groups = d.choose([1, 1, 1, channels, *divisors])
    filters = groups * d.choose([1, 2, 4, 8, 3]) if groups > 1 else d.choose(CHANNELS)
    kernel, attributes, dims = _window(d, x)
    fan = channels // groups * math.prod(kernel)
    w = d.weight(filters, channels // groups, *kernel, scale=fan**-0.5)
    bias = d.weight(filters) if d.often(60) else None
    if groups > 1:
        attributes["group"] = groups
    if d.often(20):
        del attributes["kernel_shape"]
    y = d.add("Conv", [x, w, bias], (x.dims[0], filters, *dims), **attributes)
    if d.often(30):
        y = batch_norm(d, y)
    if y.dims == x.dims and d.often(40):
        y = d.add("Add", [y, x] if d.often(50) else [x, y], x.dims)
    if d.often(50):
        activation(d, y)


def conv_transpose(d: Draft) -> None:
    x = d.floats(rank=4, where=lambda v: all(isinstance(dim, int) for dim in v.dims[1:]))
    channels, filters = _fixed(x.dims[1]), d.choose(CHANNELS)
    size, step = d.choose([2, 3, 4]), d.choose([1, 2])
    pad = d.number(0, (size - 1) // 2)
    extra = d.number(0, step - 1)
    sides = [(_fixed(dim) - 1) * step + size - 2 * pad + extra for dim in x.dims[2:]]
    if min(sides) < 1:
        raise Unfit
    w = d.weight(channels, filters, size, size, scale=(channels * size) ** -0.5)
    bias = d.weight(filters) if d.often(60) else None
    more: dict[str, Any] = {"output_padding": [extra] * 2} if extra else {}
    d.add(
        "ConvTranspose", [x, w, bias], (x.dims[0], filters, *sides),
        kernel_shape=[size] * 2, strides=[step] * 2, pads=[pad] * 4, **more,
    )  # fmt: skip


def batch_norm(d: Draft, x: Value | None = None) -> Value:
    x = x or d.floats(least=2, where=lambda v: isinstance(v.dims[1], int))
    count = _fixed(x.dims[1])
    rng = np.random.default_rng(count)
    spread = d.const((rng.random(count) + 0.5).astype(np.float32))
    operands = [x, d.weight(count), d.weight(count), d.weight(count), spread]
    return d.add("BatchNormalization", operands, x.dims, epsilon=1e-5)


def pool(d: Draft) -> None:
    x = d.floats(rank=d.choose([4, 4, 3]))
    kind = d.choose(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
    if kind.startswith("Global"):
        y = d.add(kind, [x], (*x.dims[:2], *(1,) * (x.rank - 2)), exact=False)
        if d.often(50):
            d.add("Flatten", [y], y.dims[:2])
        return
    _, attributes, dims = _window(d, x, dilate=kind == "MaxPool" and d.opset >= 10)
    if kind == "AveragePool" and d.often(50):
        attributes["count_include_pad"] = 1
    if d.opset >= 10 and "pads" in attributes and d.often(25):
        dims = [_rounded_up(dim, attributes, i) for i, dim in enumerate(x.dims[2:])]
        attributes["ceil_mode"] = 1
    d.add(kind, [x], (*x.dims[:2], *dims), exact=x.exact and kind == "MaxPool", **attributes)


def _rounded_up(dim: int | str, attributes: dict[str, Any], axis: int) -> int:
    """The size under ``ceil_mode``: a last window must begin inside the image or its left pad."""
    size, step = attributes["kernel_shape"][axis], attributes["strides"][axis]
    gap = attributes.get("dilations", [1] * 3)[axis]
    low, high = attributes["pads"][axis], attributes["pads"][axis + len(attributes["strides"])]
    reach = (size - 1) * gap + 1
    found = -(-(_fixed(dim) + low + high - reach) // step) + 1
    return found - 1 if (found - 1) * step >= _fixed(dim) + low else found


# ---- look-ups and attention ------------------------------------------------------------


def embedding(d: Draft) -> None:
    """Rows of a table by ids, with positions and types as encoders add them."""
    rows, width = d.choose([7, 16, 50]), d.choose([16, 17, 32, 64])
    dims: Dims = ("batch", "seq") if d.dynamic else (d.choose([1, 2]), d.choose([5, 8]))
    known = [v for v in d.values if v.type == "i" and v.dims == dims and v.name[0] == "x"]
    ids = known[0] if known else d.input(2, "i", dims)
    y = d.add("Gather", [d.weight(rows, width), ids], (*dims, width), exact=True)
    if d.often(50):
        types = d.add("Gather", [d.weight(rows, width), ids], y.dims, exact=True)
        y = d.add("Add", [y, types] if d.often(50) else [types, y], y.dims)
    if not d.dynamic and d.often(50):
        d.add("Add", [y, d.weight(1, int(dims[1]), width)], y.dims)


def attention(d: Draft) -> None:
    """Softmax(q·kᵀ·s + mask)·v over heads, as exporters spell it."""
    x = d.floats(rank=3)
    width, heads, size = _fixed(x.dims[2]), d.choose([1, 2, 4]), d.choose([4, 8, 16])
    batch, length = x.dims[0], x.dims[1]
    inner = heads * size

    def project() -> Value:
        y = d.add("MatMul", [x, d.weight(width, inner, scale=width**-0.5)], (batch, length, inner))
        return d.add("Add", [y, d.weight(inner, scale=0.1)], y.dims) if d.often(60) else y

    def split(y: Value, keys: bool = False) -> Value:
        y = d.add("Reshape", [y, d.ints(0, 0, heads, size)], (batch, length, heads, size))
        if keys:
            return d.add("Transpose", [y], (batch, heads, size, length), perm=[0, 2, 3, 1])
        return d.add("Transpose", [y], (batch, heads, length, size), perm=[0, 2, 1, 3])

    q, k, v = project(), project(), project()
    q, k, v = split(q), split(k, keys=True), split(v)
    before = d.often(40)
    root = d.const(np.float32(size**0.5))
    if before:
        q = d.add("Div", [q, root], q.dims)
    scores = d.add("MatMul", [q, k], (batch, heads, length, length))
    if not before:
        by = ("Div", root) if d.often(50) else ("Mul", d.const(np.float32(size**-0.5)))
        scores = d.add(by[0], [scores, by[1]], scores.dims)
    scores = _masked(d, scores)
    weights = d.add("Softmax", [scores], scores.dims, axis=-1 if d.opset >= 13 else 3)
    y = d.add("MatMul", [weights, v], (batch, heads, length, size))
    y = d.add("Transpose", [y], (batch, length, heads, size), perm=[0, 2, 1, 3])
    y = d.add("Reshape", [y, d.ints(0, 0, inner)], (batch, length, inner))
    if d.often(60):
        y = d.add("MatMul", [y, d.weight(inner, width, scale=inner**-0.5)], x.dims)
        if d.often(60):
            d.add("Add", [y, x], x.dims)


def _masked(d: Draft, scores: Value) -> Value:
    """A mask that is added, chosen by Where, or none."""
    kind, length = d.number(0, 3), scores.dims[-1]
    if kind == 0:
        return scores
    if kind == 1 and isinstance(length, int):
        hidden = np.triu(np.full((length, length), -1e4, np.float32), 1)
        return d.add("Add", [scores, d.const(hidden)], scores.dims)
    if kind == 2 and isinstance(length, int) and d.opset >= 9:
        seen = d.const(np.tril(np.ones((length, length), np.bool_)))
        return d.add("Where", [seen, scores, d.const(np.float32(-1e9))], scores.dims)
    mask = d.input(4, "f", (scores.dims[0], 1, 1, length))
    penalty = d.add("Mul", [mask, d.const(np.float32(-3.0))], mask.dims)
    return d.add("Add", [scores, penalty], scores.dims)


def attention_operator(d: Draft) -> None:
    """Attention as one operator: opset 23's, or ONNX Runtime's own."""
    q = d.floats(rank=3)
    width = _fixed(q.dims[2])
    heads = d.choose([h for h in (1, 2, 4) if width % h == 0])
    if d.opset >= 23 and d.often(70):
        attributes: dict[str, Any] = {"is_causal": 1} if d.often(40) else {}
        d.add("Attention", [q, q, q], q.dims, q_num_heads=heads, kv_num_heads=heads, **attributes)
    else:
        d.add("MultiHeadAttention", [q, q, q], q.dims, num_heads=heads, domain="com.microsoft")


PRODUCTS = (
    matmul, gemm, conv, conv, conv, vector_matmul, batched_matmul, siblings, conv_transpose,
    batch_norm, pool, pool, embedding, attention, attention_operator,
)  # fmt: skip
