"""Steps of a draft: matrix products, with weights and without."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.draft import Dims, Draft, Unfit, Value, broadcast, fixed
from tests.fuzz.pointwise import activation

__all__ = ["PRODUCTS"]

WIDTHS = (1, 2, 3, 5, 8, 15, 16, 17, 24, 32, 33)


def matmul(d: Draft) -> None:
    """With a weight, sometimes with a bias and an activation behind it."""
    x = d.floats(least=1)
    k, n = fixed(x.dims[-1]), d.choose(WIDTHS)
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
        k, m = fixed(x.dims[-2]), d.choose(WIDTHS)
        d.add("MatMul", [d.weight(m, k, scale=k**-0.5), x], (*x.dims[:-2], m, x.dims[-1]))
    elif kind == 1:
        k = fixed(x.dims[-1])
        d.add("MatMul", [x, d.weight(k, scale=k**-0.5)], x.dims[:-1])
    else:
        k, n = fixed(x.dims[-1]), d.choose(WIDTHS)
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
    k, n = fixed(k), d.choose(WIDTHS)
    w = d.weight(*((n, k) if flip_b else (k, n)), scale=k**-0.5)
    shapes: list[Dims | None] = [(n,), (1, n), (1,), ()]
    if isinstance(m, int):
        shapes += [(m, n), (m, 1)]
    if d.opset >= 11:
        shapes.append(None)
    form = d.choose(shapes)
    c = None if form is None else d.weight(*map(fixed, form))
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
    k, n = fixed(x.dims[-1]), d.choose(WIDTHS)
    made = []
    for _ in range(d.number(2, 3)):
        y = d.add("MatMul", [x, d.weight(k, n, scale=k**-0.5)], (*x.dims[:-1], n))
        made.append(d.add("Add", [y, d.weight(n)], y.dims) if d.often(50) else y)
    if d.often(60):
        gate = d.add("Sigmoid", [made[0]], made[0].dims)
        d.add("Mul", [gate, made[1]], gate.dims)


_CASTS = (("i", 7), ("h", 10), ("d", 11), ("n", 6), ("b", 9))
"""Types of a draft that a product is cast to, and ONNX's numbers of them."""


def shown(d: Draft) -> None:
    """A product that is an output itself, and read by a cast or more that are outputs too."""
    x = d.floats(least=2)
    k, n = fixed(x.dims[-1]), d.choose(WIDTHS)
    w = d.weight(k, n, scale=k**-0.5)
    if x.rank == 2 and d.often(30):
        y = d.add("Gemm", [x, w, d.weight(n)], (x.dims[0], n))
    else:
        y = d.add("MatMul", [x, w], (*x.dims[:-1], n))
    made = [_read_once(d, y) for _ in range(d.number(1, 2))]
    d.shown += [y, *made]
    d.traits.append("outputs")


def _read_once(d: Draft, y: Value) -> Value:
    """What is made of a product, or of its sum with a bias."""
    if d.often(30):
        y = d.add("Add", [y, d.weight(fixed(y.dims[-1]))], y.dims)
    if d.often(60):
        letter, number = d.choose(_CASTS)
        return d.add("Cast", [y], y.dims, letter, to=number)
    return activation(d, y)


def coded(d: Draft) -> None:
    """With a weight of 2, 4 or 8 bits by blocks, and all that may come with it."""
    d.traits.append("rounds")
    x = d.floats(least=1)
    k, n, bits = fixed(x.dims[-1]), d.choose(WIDTHS), d.choose((4, 8, 2))
    block = d.choose((32, 16, 64, 128))
    blocks, rng = -(-k // block), np.random.default_rng([k, n, bits])
    w = d.const(rng.integers(0, 256, (n, blocks, block * bits // 8)), np.uint8)
    scales = d.const(rng.uniform(-1, 1, (n, blocks)) / 2**bits / k**0.5, np.float32)
    zeros = None
    if d.often(60) and (bits == 8 or d.often(60)):
        zeros = d.const(rng.integers(0, 256, (n, -(-blocks * bits // 8))), np.uint8)
    elif bits < 8 and d.often(30):
        zeros = d.const(rng.uniform(0, 2**bits, (n, blocks)), np.float32)
    bias = d.weight(n) if d.often(40) else None
    y = d.add(
        "MatMulNBits", [x, w, scales, zeros, None, bias], (*x.dims[:-1], n), K=k, N=n, bits=bits,
        block_size=block, domain="com.microsoft",
    )  # fmt: skip
    if d.often(40):
        activation(d, y)


def dequantized(d: Draft) -> None:
    """With a weight of bytes that is dequantized: by blocks, by columns or as a whole."""
    d.need(21)
    d.traits.append("rounds")
    x = d.floats(least=2)
    k, n, kind = fixed(x.dims[-1]), d.choose(WIDTHS), d.choose((np.int8, np.uint8))
    rng, block = np.random.default_rng([k, n]), d.choose((0, 16, 32))
    shape = (-(-k // block), n) if block else d.choose([(n,), ()])
    low, high = np.iinfo(kind).min, np.iinfo(kind).max + 1
    operands = [
        d.const(rng.integers(low, high, (k, n)), kind),
        d.const(rng.uniform(0.1, 1, shape) / 128 / k**0.5, np.float32),
    ]
    if d.often(50):
        operands.append(d.const(rng.integers(low, high, shape), kind))
    attributes = {"axis": 0, "block_size": block} if block else {"axis": 1}
    w = d.add("DequantizeLinear", operands, (k, n), **attributes)
    d.add("MatMul", [x, w], (*x.dims[:-1], n))


PRODUCTS = (matmul, gemm, vector_matmul, batched_matmul, siblings, shown, coded, dequantized)
