"""The closed set of elementwise steps: the meaning of each in NumPy and in ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.function_body import HALF_EVEN

__all__ = ["ELEMENTARY", "OPERATORS", "UNARY", "ElementwiseOpDef", "Row"]

Floats = npt.NDArray[np.floating[Any]]
Row = tuple[str, tuple[str | float, ...]]


@dataclass(frozen=True)
class ElementwiseOpDef:
    """One elementwise operation: its types, NumPy meaning, ONNX form and cost.

    * ``takes``, ``gives``: types of arguments and result: ``f`` a number, ``b`` a truth value;
    * ``literals``: number of trailing arguments that must be literals;
    * ``onnx``: rows ``(op, inputs)``.  An input is ``"a"``, ``"b"``, ``"c"`` (arguments), ``"0"``,
      ``"1"`` … (an earlier row), a float literal, or an attribute: ``"alpha=b"``, ``"beta=0.5"``,
      ``"to=9"``;
    * ``older``: the rows for opsets below ``since``;
    * ``flops``: cost in vector instructions per vector of elements;
    * ``operator``: the single ONNX operator equal to this operation, "" if there is none;
    * ``defaults``: those attributes of that operator that are the last arguments, with their
      defaults.
    """

    takes: str
    numpy: Callable[..., Any]
    onnx: tuple[Row, ...]
    flops: int
    gives: str = "f"
    literals: int = 0
    since: int = 1
    older: tuple[Row, ...] = ()
    operator: str = ""
    defaults: tuple[tuple[str, float], ...] = ()

    @property
    def arity(self) -> int:
        return len(self.takes)


# ---- NumPy meanings --------------------------------------------------------------------


def _erf(x: Floats) -> Floats:
    wide: Floats = np.vectorize(math.erf, otypes=[np.float64])(x)
    return wide.astype(x.dtype)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)), dtype=x.dtype)


def _softplus(x: Floats) -> Floats:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), dtype=x.dtype)


def _elu(x: Floats, alpha: float) -> Floats:
    return np.where(x < 0, alpha * (np.exp(x) - 1), x)


def _celu(x: Floats, alpha: float) -> Floats:
    below: Floats = np.minimum(alpha * (np.exp(x / alpha) - 1), 0)
    return np.maximum(x, 0) + below


def _clip(x: Floats, low: float, high: float) -> Floats:
    clipped: Floats = np.minimum(np.maximum(x, low), high)
    return clipped


_GELU_TANH = math.sqrt(2 / math.pi)


# ---- constructors ----------------------------------------------------------------------


def _unary(op: str, numpy: Callable[..., Any], flops: int, since: int = 1) -> ElementwiseOpDef:
    return ElementwiseOpDef("f", numpy, ((op, ("a",)),), flops, since=since, operator=op)


def _binary(op: str, numpy: Callable[..., Any], flops: int, read: bool = True) -> ElementwiseOpDef:
    """Define a step of two numbers; with ``read``, its ONNX operator equals the step."""
    return ElementwiseOpDef("ff", numpy, ((op, ("a", "b")),), flops, operator=op if read else "")


def _whole(limit: float) -> Callable[[Any], Any]:
    """Return a cast to an integer below ``limit`` as x86 and ONNX Runtime do it.

    Numbers out of range, infinities and NaN become the lowest integer.
    """
    return lambda x: np.where(np.abs(x) < limit, np.trunc(x) + 0.0, np.float32(-limit))


def _test(op: str, takes: str, numpy: Callable[..., Any], since: int = 1) -> ElementwiseOpDef:
    row = (op, tuple("abc"[: len(takes)]))
    return ElementwiseOpDef(takes, numpy, (row,), 1, "b", since=since, operator=op)


_ARITHMETIC = {
    "add": _binary("Add", np.add, 1),
    "sub": _binary("Sub", np.subtract, 1),
    "mul": _binary("Mul", np.multiply, 1),
    "div": _binary("Div", np.divide, 8),
    "max": _binary("Max", np.maximum, 1, read=False),
    "min": _binary("Min", np.minimum, 1, read=False),
    "pow": _binary("Pow", np.power, 60, read=False),
    "neg": _unary("Neg", np.negative, 1),
    "abs": _unary("Abs", np.abs, 1),
    "sign": _unary("Sign", np.sign, 3, since=9),
    "floor": _unary("Floor", np.floor, 1),
    "ceil": _unary("Ceil", np.ceil, 1),
    "round": ElementwiseOpDef(
        "f",
        np.rint,
        (("Round", ("a",)),),
        1,
        since=11,
        operator="Round",
        older=(
            ("Cast", ("a", "to=11")),
            ("Cast", (HALF_EVEN, "to=11")),
            ("Add", ("0", "1")),
            ("Sub", ("2", "1")),
            ("Cast", ("3", "to=1")),
        ),
    ),
    "int32": ElementwiseOpDef(
        "f", _whole(2.0**31), (("Cast", ("a", "to=6")), ("Cast", ("0", "to=1"))), 4
    ),
    "int64": ElementwiseOpDef(
        "f", _whole(2.0**63), (("Cast", ("a", "to=7")), ("Cast", ("0", "to=1"))), 4
    ),
    "sqrt": _unary("Sqrt", np.sqrt, 8),
    "reciprocal": _unary("Reciprocal", lambda x: 1 / x, 8),
    "exp": _unary("Exp", np.exp, 10),
    "log": _unary("Log", np.log, 14),
    "erf": _unary("Erf", _erf, 20, since=9),
    "sin": _unary("Sin", np.sin, 20),
    "cos": _unary("Cos", np.cos, 20),
}

_ACTIVATIONS = {
    "tanh": _unary("Tanh", np.tanh, 20),
    "sigmoid": _unary("Sigmoid", _sigmoid, 18),
    "relu": _unary("Relu", lambda x: np.maximum(x, 0), 1),
    "softplus": _unary("Softplus", _softplus, 28),
    "softsign": _unary("Softsign", lambda x: x / (1 + np.abs(x)), 10),
    "clip": ElementwiseOpDef(
        "fff", _clip, (("Clip", ("a", "b", "c")),), 2, since=11,
        older=(("Clip", ("a", "min=b", "max=c")),),
    ),
    "saturate": ElementwiseOpDef(
        "fff", lambda x, low, high: np.where(np.isnan(x), np.float32(low), _clip(x, low, high)),
        (("Clip", ("a", "b", "c")), ("IsNaN", ("a",)), ("Where", ("1", "b", "0"))), 2, literals=2,
        since=11, older=(("Clip", ("a", "min=b", "max=c")), ("IsNaN", ("a",)),
                         ("Where", ("1", "b", "0"))),
    ),
    "prelu": ElementwiseOpDef(
        "ff", lambda x, slope: np.where(x < 0, slope * x, x), (("PRelu", ("a", "b")),), 3,
        operator="PRelu",
    ),
    "leaky_relu": ElementwiseOpDef(
        "ff", lambda x, alpha: np.where(x < 0, alpha * x, x),
        (("LeakyRelu", ("a", "alpha=b")),), 3, literals=1, operator="LeakyRelu",
        defaults=(("alpha", 0.01),),
    ),
    "elu": ElementwiseOpDef(
        "ff", _elu, (("Elu", ("a", "alpha=b")),), 14, literals=1, operator="Elu",
        defaults=(("alpha", 1.0),),
    ),
    "selu": ElementwiseOpDef(
        "fff", lambda x, alpha, gamma: gamma * _elu(x, alpha),
        (("Selu", ("a", "alpha=b", "gamma=c")),), 15, literals=2, operator="Selu",
        defaults=(("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
    ),
    "celu": ElementwiseOpDef(
        "ff", _celu,
        (("Div", ("a", "b")), ("Elu", ("0",)), ("Mul", ("1", "b"))), 16, literals=1,
        operator="Celu", defaults=(("alpha", 1.0),),
    ),
    "hard_sigmoid": ElementwiseOpDef(
        "fff", lambda x, alpha, beta: _clip(alpha * x + beta, 0, 1),
        (("HardSigmoid", ("a", "alpha=b", "beta=c")),), 4, literals=2, operator="HardSigmoid",
        defaults=(("alpha", 0.2), ("beta", 0.5)),
    ),
    "hard_swish": ElementwiseOpDef(
        "f", lambda x: x * _clip(x / 6 + 0.5, 0, 1),
        (("HardSigmoid", ("a", f"alpha={1 / 6}", "beta=0.5")), ("Mul", ("a", "0"))), 5,
        operator="HardSwish",
    ),
    "mish": ElementwiseOpDef(
        "f", lambda x: x * np.tanh(_softplus(x)),
        (("Softplus", ("a",)), ("Tanh", ("0",)), ("Mul", ("a", "1"))), 22, operator="Mish",
    ),
    "thresholded_relu": ElementwiseOpDef(
        "ff", lambda x, alpha: np.where(x > alpha, x, 0.0),
        (("ThresholdedRelu", ("a", "alpha=b")),), 2, literals=1, since=10,
        operator="ThresholdedRelu", defaults=(("alpha", 1.0),),
    ),
    "gelu": ElementwiseOpDef(
        "f", lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
        (
            ("Div", ("a", math.sqrt(2))),
            ("Erf", ("0",)),
            ("Add", ("1", 1.0)),
            ("Mul", ("a", "2")),
            ("Mul", ("3", 0.5)),
        ), 22,
    ),
    "gelu_tanh": ElementwiseOpDef(
        "f", lambda x: x * 0.5 * (1 + np.tanh(_GELU_TANH * (x + 0.044715 * x**3))),
        (
            ("Mul", ("a", "a")),
            ("Mul", ("a", "0")),
            ("Mul", ("1", 0.044715)),
            ("Add", ("a", "2")),
            ("Mul", ("3", _GELU_TANH)),
            ("Tanh", ("4",)),
            ("Add", ("5", 1.0)),
            ("Mul", ("a", "6")),
            ("Mul", ("7", 0.5)),
        ), 26,
    ),
    "silu": ElementwiseOpDef(
        "f", lambda x: x * _sigmoid(x), (("Sigmoid", ("a",)), ("Mul", ("a", "0"))), 19
    ),
}  # fmt: skip

_LOGIC = {
    "less": _test("Less", "ff", np.less, since=9),
    "less_equal": ElementwiseOpDef(
        "ff", np.less_equal, (("LessOrEqual", ("a", "b")),), 1, "b", since=12,
        older=(("Less", ("a", "b")), ("Equal", ("a", "b")), ("Or", ("0", "1"))),
        operator="LessOrEqual",
    ),
    "equal": _test("Equal", "ff", np.equal, since=11),
    "is_nan": _test("IsNaN", "f", np.isnan, since=9),
    "is_inf": ElementwiseOpDef("f", np.isinf, (("IsInf", ("a",)),), 1, "b", since=10),
    "and": _test("And", "bb", np.logical_and, since=7),
    "or": _test("Or", "bb", np.logical_or, since=7),
    "xor": _test("Xor", "bb", np.logical_xor, since=7),
    "not": _test("Not", "b", np.logical_not),
    "where": ElementwiseOpDef(
        "bff", np.where, (("Where", ("a", "b", "c")),), 1, since=9, operator="Where"
    ),
    "number": ElementwiseOpDef(
        "b", lambda m: np.asarray(m, np.float32), (("Cast", ("a", "to=1")),), 1, since=6
    ),
    "nonzero": ElementwiseOpDef(
        "f", lambda x: np.not_equal(x, 0), (("Cast", ("a", "to=9")),), 1, "b", since=6
    ),
}  # fmt: skip

ELEMENTARY: Mapping[str, ElementwiseOpDef] = MappingProxyType(_ARITHMETIC | _ACTIVATIONS | _LOGIC)
"""All steps.  A new step needs a record here and its source in ``kernels/chain_source.py``."""

OPERATORS: Mapping[str, str] = MappingProxyType(
    {e.operator: step for step, e in ELEMENTARY.items() if e.operator}
)
"""ONNX operators that equal a single step."""
UNARY = frozenset(
    operator
    for operator, step in OPERATORS.items()
    if ELEMENTARY[step].takes[: -len(ELEMENTARY[step].defaults) or None] == "f"
    and ELEMENTARY[step].gives == "f"
)
"""Steps from one number to one number."""
