"""Steps whose work is in If, in Loop, or in half precision."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, TensorProto, helper

from tests.fuzz.draft import Draft, Value, fixed

__all__ = ["BRANCHING"]

_SINCE = 13


def _branch(name: str, x: Value, w: Value, activation: str) -> GraphProto:
    """A product of outer values, and what follows it."""
    made, result = f"{name}_product", f"{name}_result"
    nodes = [
        helper.make_node("MatMul", [x.name, w.name], [made]),
        helper.make_node(activation, [made], [result]),
    ]
    output = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
    return helper.make_graph(nodes, name, [], [output])


def branches(d: Draft) -> None:
    """A product in either branch; an input says in which."""
    d.need(_SINCE)
    x = d.floats(least=2)
    k, n = fixed(x.dims[-1]), d.choose((1, 4, 16, 17, 33))
    flag = d.input(1, "b", (1,), "flag")
    names = [f"{flag.name}_{kind}" for kind in ("then", "else")]
    kinds = (("then_branch", "Relu"), ("else_branch", "Tanh"))
    graphs = {
        key: _branch(name, x, d.weight(k, n, scale=k**-0.5), activation)
        for name, (key, activation) in zip(names, kinds, strict=True)
    }
    d.add("If", [flag], (*x.dims[:-1], n), **graphs)


def loop(d: Draft) -> None:
    """A state that a product with a constant makes anew a few times."""
    d.need(_SINCE)
    x = d.floats(least=2)
    k = fixed(x.dims[-1])
    w, trips, yes = d.weight(k, k, scale=k**-0.5), d.ints(d.number(1, 4)), d.const(np.array(True))
    stem = f"loop_{trips.name}"
    state, made, result, on = (f"{stem}_{part}" for part in ("state", "product", "result", "on"))
    inputs = [
        helper.make_tensor_value_info(f"{stem}_i", TensorProto.INT64, []),
        helper.make_tensor_value_info(f"{stem}_go", TensorProto.BOOL, []),
        helper.make_tensor_value_info(state, TensorProto.FLOAT, None),
    ]
    nodes = [
        helper.make_node("Identity", [f"{stem}_go"], [on]),
        helper.make_node("MatMul", [state, w.name], [made]),
        helper.make_node("Tanh", [made], [result]),
    ]
    outputs = [
        helper.make_tensor_value_info(on, TensorProto.BOOL, []),
        helper.make_tensor_value_info(result, TensorProto.FLOAT, None),
    ]
    body = helper.make_graph(nodes, stem, inputs, outputs)
    d.add("Loop", [trips, yes, x], x.dims, body=body)


def half_weights(d: Draft) -> None:
    """A product with a matrix that is stored in half precision."""
    d.need(_SINCE)
    x = d.floats(least=2)
    k, n = fixed(x.dims[-1]), d.choose((1, 4, 16, 17, 33))
    rng = np.random.default_rng([13, k, n])
    stored = d.const((rng.standard_normal((k, n)) * k**-0.5).astype(np.float16))
    w = d.add("Cast", [stored], (k, n), to=1)
    d.add("MatMul", [x, w], (*x.dims[:-1], n))


def half_cache(d: Draft) -> None:
    """Attention to rows that are stored in half precision, earlier ones before new ones."""
    d.need(_SINCE)
    x = d.floats(rank=3)
    batch, length, width = x.dims
    heads, size = d.choose([1, 2, 4]), d.choose([4, 8, 17])
    inner = heads * size

    def projected() -> Value:
        w = d.weight(fixed(width), inner, scale=fixed(width) ** -0.5)
        y = d.add("MatMul", [x, w], (batch, length, inner))
        y = d.add("Reshape", [y, d.ints(0, 0, heads, size)], (batch, length, heads, size))
        return d.add("Transpose", [y], (batch, heads, length, size), perm=[0, 2, 1, 3])

    whole = 2 * length if isinstance(length, int) else f"{length} twice"
    wide: list[Value] = []
    for _ in range(2):
        past, new = (d.add("Cast", [y], y.dims, "h", to=10) for y in (projected(), projected()))
        both = d.add("Concat", [past, new], (batch, heads, whole, size), "h", axis=2)
        if d.often(50):
            d.shown.append(both)
        wide.append(d.add("Cast", [both], both.dims, to=1))
    keys = d.add("Transpose", [wide[0]], (batch, heads, size, whole), perm=[0, 1, 3, 2])
    q = d.add("Mul", [projected(), d.const(np.float32(size**-0.5))], (batch, heads, length, size))
    scores = d.add("MatMul", [q, keys], (batch, heads, length, whole))
    weights = d.add("Softmax", [scores], scores.dims, axis=-1)
    d.add("MatMul", [weights, wide[1]], (batch, heads, length, size))


BRANCHING = (branches, half_weights, loop, half_cache)
