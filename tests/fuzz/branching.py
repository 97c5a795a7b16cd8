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


BRANCHING = (branches, half_weights, loop)
