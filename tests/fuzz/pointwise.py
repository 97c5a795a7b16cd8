"""Steps of a draft: elementwise operators, the spellings of activations, comparisons, casts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.fuzz.draft import Draft, Unfit, Value, broadcast

__all__ = ["POINTWISE", "activation", "scalar"]

PLAIN = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Sqrt", "Reciprocal", "Log")
EXACT = frozenset(("Neg", "Abs", "Relu"))


def scalar(d: Draft, number: float) -> Value:
    """A number as exporters store it: of no, one or more axes."""
    return d.const(np.full((1,) * d.choose([0, 0, 1]), number, np.float32))


def _guarded(d: Draft, x: Value) -> Value:
    """Positive numbers, far enough from zero."""
    wide = d.add("Abs", [x], x.dims, exact=x.exact)
    return d.add("Add", [wide, d.const(np.float32(0.5))], x.dims)


def activation(d: Draft, x: Value | None = None) -> Value:
    """An operator, or a composition that is one in disguise."""
    x = x or d.floats()
    return d.choose(ACTIVATIONS)(d, x)


def _plain(d: Draft, x: Value) -> Value:
    op = d.choose(PLAIN)
    if op in ("Sqrt", "Reciprocal", "Log"):
        x = _guarded(d, x)
    if op == "Exp":
        x = d.add("Tanh", [x], x.dims)
    return d.add(op, [x], x.dims, exact=x.exact and op in EXACT)


def _newer(d: Draft, x: Value) -> Value:
    """Operators that came later, or have attributes."""
    made: list[Callable[[], Value]] = [
        lambda: d.add("LeakyRelu", [x], x.dims, alpha=0.1),
        lambda: d.add("Elu", [x], x.dims, alpha=0.7),
        lambda: d.add("HardSigmoid", [x], x.dims, alpha=0.25),
        lambda: d.add("Softplus", [x], x.dims),
        lambda: d.add("Softsign", [x], x.dims),
        lambda: d.add("Selu", [x], x.dims),
        lambda: (
            d.add("Clip", [x], x.dims, min=-0.5, max=0.8)
            if d.opset < 11
            else d.add("Clip", [x, scalar0(d, -0.5), scalar0(d, 0.8)], x.dims)
        ),
    ]
    if d.opset >= 9:
        made += [lambda: d.add("Erf", [x], x.dims), lambda: _sign(d)]
    if d.opset >= 12:
        made.append(lambda: d.add("Celu", [x], x.dims, alpha=1.3))
    if d.opset >= 14:
        made.append(lambda: d.add("HardSwish", [x], x.dims))
    if d.opset >= 18:
        made.append(lambda: d.add("Mish", [x], x.dims))
    if d.opset >= 20:
        made.append(lambda: d.add("Gelu", [x], x.dims, approximate=d.choose(["none", "tanh"])))
    return d.choose(made)()


def scalar0(d: Draft, number: float) -> Value:
    return d.const(np.float32(number))


def _sign(d: Draft) -> Value:
    x = d.exact()
    return d.add("Sign", [x], x.dims, exact=True)


def _gelu(d: Draft, x: Value) -> Value:
    d.need(9)
    divide = d.often(50)
    root = scalar(d, math.sqrt(2) if divide else 1 / math.sqrt(2))
    inner = d.add("Div" if divide else "Mul", [x, root], broadcast(x.dims, root.dims))
    phi = d.add("Erf", [inner], inner.dims)
    one = scalar(d, 1.0)
    phi = d.add("Add", [phi, one] if d.often(70) else [one, phi], broadcast(phi.dims, one.dims))
    half = scalar(d, 0.5)
    if d.often(50):
        y = d.add("Mul", [x, phi], broadcast(x.dims, phi.dims))
        return d.add("Mul", [y, half], broadcast(y.dims, half.dims))
    y = d.add("Mul", [x, half], broadcast(x.dims, half.dims))
    return d.add("Mul", [y, phi], broadcast(y.dims, phi.dims))


def _gelu_tanh(d: Draft, x: Value) -> Value:
    cube = (
        d.add("Pow", [x, scalar0(d, 3.0)], x.dims)
        if d.often(50)
        else d.add("Mul", [d.add("Mul", [x, x], x.dims), x], x.dims)
    )
    term = d.add("Mul", [cube, scalar0(d, 0.044715)], x.dims)
    total = d.add("Add", [x, term], x.dims)
    inner = d.add("Mul", [total, scalar0(d, math.sqrt(2 / math.pi))], x.dims)
    phi = d.add("Add", [d.add("Tanh", [inner], x.dims), scalar0(d, 1.0)], x.dims)
    return d.add("Mul", [d.add("Mul", [x, phi], x.dims), scalar0(d, 0.5)], x.dims)


def _silu(d: Draft, x: Value) -> Value:
    y = d.add("Sigmoid", [x], x.dims)
    return d.add("Mul", [x, y] if d.often(50) else [y, x], x.dims)


def _hard_swish(d: Draft, x: Value) -> Value:
    d.need(11)
    y = d.add("Add", [x, scalar0(d, 3.0)], x.dims)
    y = d.add("Clip", [y, scalar0(d, 0.0), scalar0(d, 6.0)], x.dims)
    return d.add("Div", [d.add("Mul", [x, y], x.dims), scalar0(d, 6.0)], x.dims)


def _square(d: Draft, x: Value) -> Value:
    if d.often(50):
        return d.add("Mul", [x, x], x.dims)
    two = scalar(d, 2.0)
    return d.add("Pow", [x, two], broadcast(x.dims, two.dims))


ACTIVATIONS = (_plain, _newer, _gelu, _gelu_tanh, _silu, _hard_swish)


def binary(d: Draft) -> None:
    """Two values, or a value and a constant that broadcasts somehow."""
    a = d.floats()
    b = _partner(d, a) if d.often(50) else d.floats()
    dims = broadcast(a.dims, b.dims)
    op = d.choose(["Add", "Mul", "Sub", "Div", "Max", "Min", "Pow", "PRelu"])
    if op in ("Max", "Min") and d.opset < 8:
        op = "Add"
    if op == "Div":
        b = _guarded(d, b)
    if op == "Pow":
        a, b = _guarded(d, a), scalar(d, d.choose([2.0, 0.5, 3.0, 1.5, -1.0]))
        dims = broadcast(a.dims, b.dims)
    if op == "PRelu":
        if dims != a.dims:
            raise Unfit
    elif op != "Pow" and op != "Div" and d.often(50):
        a, b = b, a
    close = op in ("Max", "Min") and a.exact and b.exact
    d.add(op, [a, b], dims, exact=close)


def _partner(d: Draft, a: Value) -> Value:
    """A constant whose dims broadcast with those of ``a``."""
    dims = [dim if isinstance(dim, int) and d.often(60) else 1 for dim in a.dims]
    while dims and dims[0] == 1 and d.often(60):
        dims.pop(0)
    return d.weight(*dims)


def several(d: Draft) -> None:
    """Sum, Mean, Max and Min of up to four values."""
    d.need(8)
    a = d.floats()
    others = [d.floats(where=lambda v: v.dims == a.dims) for _ in range(d.number(1, 3))]
    d.add(d.choose(["Sum", "Mean", "Max", "Min"]), [a, *others], a.dims)


def compare(d: Draft) -> Value:
    """A truth value per element, of values that cannot be nearly equal by rounding."""
    d.need(9)
    a = d.exact()
    b = scalar(d, 0.25) if d.often(60) else _partner(d, a)
    op = d.choose(["Less", "Greater", "GreaterOrEqual", "LessOrEqual"])
    if op.endswith("Equal"):
        d.need(12)
    y = d.add(op, [a, b], broadcast(a.dims, b.dims), "b", True)
    if d.often(30):
        y = d.add("Not", [y], y.dims, "b", True)
    return y


def where(d: Draft) -> None:
    """One of two values by a condition."""
    c = compare(d)
    a = d.floats()
    b = _partner(d, a) if d.often(50) else d.floats()
    operands = [c, a, b] if d.often(50) else [c, b, a]
    d.add("Where", operands, broadcast(c.dims, a.dims, b.dims))


def cast(d: Draft) -> None:
    """Through truth values, integers, halves; what jumps only of exact values."""
    kind = d.number(0, 3)
    if kind == 0:
        c = compare(d)
        d.add("Cast", [c], c.dims, exact=True, to=1)
    elif kind == 1:
        a = d.exact()
        y = d.add("Cast", [a], a.dims, "i", True, to=7)
        y = d.add("Add", [y, d.const(np.int64(3))], y.dims, "i", True) if d.often(40) else y
        d.add("Cast", [y], y.dims, exact=True, to=1)
    elif kind == 2:
        a = d.exact()
        op = d.choose(["Floor", "Ceil", "Round"])
        if op == "Round":
            d.need(11)
        d.add(op, [a], a.dims, exact=True)
    else:
        d.need(13)
        a = d.exact()
        scale, zero = scalar0(d, 0.05), d.const(np.uint8(120))
        y = d.add("QuantizeLinear", [a, scale, zero], a.dims, "q", True)
        d.add("DequantizeLinear", [y, scale, zero], a.dims, exact=True)


def activate(d: Draft) -> None:
    activation(d)


def square(d: Draft) -> None:
    _square(d, d.floats())


POINTWISE = (binary, activate, several, where, cast, square)
