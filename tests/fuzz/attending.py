"""Steps of a draft: embeddings and attention, as exporters spell them and as operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.draft import Dims, Draft, Value, fixed
from tests.fuzz.masking import masked

__all__ = ["ATTENDING"]


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
    """Softmax(q·kᵀ·s + mask)·v over heads, as exporters write it."""
    x = d.floats(rank=3)
    width, heads, size = fixed(x.dims[2]), d.choose([1, 2, 4]), d.choose([4, 8, 16])
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
    scores = masked(d, scores)
    weights = d.add("Softmax", [scores], scores.dims, axis=-1 if d.opset >= 13 else 3)
    weights = _after(d, weights)
    y = d.add("MatMul", [weights, v], (batch, heads, length, size))
    y = d.add("Transpose", [y], (batch, length, heads, size), perm=[0, 2, 1, 3])
    y = d.add("Reshape", [y, d.ints(0, 0, inner)], (batch, length, inner))
    if d.often(60):
        y = d.add("MatMul", [y, d.weight(inner, width, scale=inner**-0.5)], x.dims)
        if d.often(60):
            d.add("Add", [y, x], x.dims)


def _after(d: Draft, weights: Value) -> Value:
    """Some exporters write zeros for the NaN of rows without keys."""
    if d.opset >= 13 and d.often(15):
        lost = d.add("IsNaN", [weights], weights.dims, "b", True)
        return d.add("Where", [lost, d.const(np.float32(0.0)), weights], weights.dims)
    return weights


def attention_operator(d: Draft) -> None:
    """Attention as one operator: opset 23's, or ONNX Runtime's own."""
    q = d.floats(rank=3)
    width = fixed(q.dims[2])
    heads = d.choose([h for h in (1, 2, 4) if width % h == 0])
    if d.opset >= 23 and d.often(70):
        attributes: dict[str, Any] = {"is_causal": 1} if d.often(40) else {}
        mask = None
        if d.often(50):
            kind, prefix = d.choose([("b", "keep_mask"), ("f", "mask")])
            batch, length = q.dims[:2]
            dims = d.choose([(length, length), (batch, 1, length, length)])
            mask = d.input(len(dims), kind, dims, prefix)
        operands = [q, q, q, mask]
        d.add("Attention", operands, q.dims, q_num_heads=heads, kv_num_heads=heads, **attributes)
    else:
        d.add("MultiHeadAttention", [q, q, q], q.dims, num_heads=heads, domain="com.microsoft")


ATTENDING = (attention, embedding, attention, attention_operator)
