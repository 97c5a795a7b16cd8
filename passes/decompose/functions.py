"""Decompose functions of numbers into those that kernels compute.

Tan, Sinh, Cosh, Asinh, Acosh, Atanh, Shrink  ->  sines, exponentials and logarithms
Atan, Asin, Acos                              ->  a polynomial of a reduced argument

Source of the polynomial and of its argument: Moshier, "Methods and Programs for Mathematical
Functions" (1989), ``atanf``; its error is below 2e-7 of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.passes.decompose.onnx_builder import OnnxBuilder

__all__ = ["FUNCTIONS"]

_TERMS = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
"""Coefficients of atan(x) = x + x³ · P(x²), highest power first, for |x| ≤ tan(π/8)."""
_LARGE = 1e9
"""Above it, √(x² + 1) is x."""


def _where(s: OnnxBuilder, test: str, a: str, b: str | float, yes: str | float,
           no: str | float) -> str:  # fmt: skip
    shape = s.spec(a).shape
    truth = s(test, a, b, spec=TensorSpec(DType.BOOL, shape))
    return s("Where", truth, yes, no, spec=TensorSpec(DType.F32, shape))


def _atan(s: OnnxBuilder, x: str) -> str:
    """Write atan(|x|) for an argument that is reduced to at most tan(π/8), with the sign of x."""
    a = s("Abs", x)
    start = _where(s, "Less", a, math.tan(math.pi / 8), 0.0, math.pi / 4)
    start = _where(s, "Greater", a, math.tan(3 * math.pi / 8), math.pi / 2, start)
    near = s("Div", s("Sub", a, 1.0), s("Add", a, 1.0))
    far = s("Neg", s("Reciprocal", a))
    t = _where(s, "Less", a, math.tan(math.pi / 8), a, near)
    t = _where(s, "Greater", a, math.tan(3 * math.pi / 8), far, t)
    z = s("Mul", t, t)
    total = s("Add", s("Mul", z, _TERMS[0]), _TERMS[1])
    for term in _TERMS[2:]:
        total = s("Add", s("Mul", total, z), term)
    y = s("Add", start, s("Add", s("Mul", s("Mul", total, z), t), t))
    return _where(s, "Less", x, 0.0, s("Neg", y), y)


def _asin(s: OnnxBuilder, x: str) -> str:
    """Write asin(x) as the angle whose tangent is x / √((1 − x)(1 + x))."""
    side = s("Sqrt", s("Mul", s("Sub", 1.0, x), s("Add", x, 1.0)))
    return _atan(s, s("Div", x, side))


def _acos(s: OnnxBuilder, x: str) -> str:
    return s("Sub", math.pi / 2, _asin(s, x))


def _half_exp(s: OnnxBuilder, x: str) -> tuple[str, str]:
    """Write half of e^x and half of e^−x, without an overflow of either before its half's."""
    up = s("Exp", s("Sub", x, math.log(2.0)))
    return up, s("Exp", s("Sub", s("Neg", x), math.log(2.0)))


def _tan(s: OnnxBuilder, x: str) -> str:
    return s("Div", s("Sin", x), s("Cos", x))


def _sinh(s: OnnxBuilder, x: str) -> str:
    return s("Sub", *_half_exp(s, x))


def _cosh(s: OnnxBuilder, x: str) -> str:
    return s("Add", *_half_exp(s, x))


def _asinh(s: OnnxBuilder, x: str) -> str:
    a = s("Abs", x)
    small = s("Log", s("Add", a, s("Sqrt", s("Add", s("Mul", a, a), 1.0))))
    y = _where(s, "Greater", a, _LARGE, s("Add", s("Log", a), math.log(2.0)), small)
    return _where(s, "Less", x, 0.0, s("Neg", y), y)


def _acosh(s: OnnxBuilder, x: str) -> str:
    root = s("Sqrt", s("Mul", s("Sub", x, 1.0), s("Add", x, 1.0)))
    small = s("Log", s("Add", x, root))
    return _where(s, "Greater", x, _LARGE, s("Add", s("Log", x), math.log(2.0)), small)


def _atanh(s: OnnxBuilder, x: str) -> str:
    return s("Mul", s("Log", s("Div", s("Add", x, 1.0), s("Sub", 1.0, x))), 0.5)


def _shrink(s: OnnxBuilder, x: str) -> str:
    bias, limit = (float(s.attribute(n, d)) for n, d in (("bias", 0.0), ("lambd", 0.5)))
    above = _where(s, "Greater", x, limit, s("Sub", x, bias), 0.0)
    return _where(s, "Less", x, -limit, s("Add", x, bias), above)


def _written(write: Callable[[OnnxBuilder, str], str]) -> Callable[[OnnxBuilder], OnnxBuilder]:
    def decompose(s: OnnxBuilder) -> OnnxBuilder:
        s.image(s.operands[0])
        write(s, s.operands[0])
        return s

    return decompose


FUNCTIONS: Mapping[str, Callable[[OnnxBuilder], OnnxBuilder]] = MappingProxyType(
    {
        op: _written(write)
        for op, write in {
            "Tan": _tan, "Sinh": _sinh, "Cosh": _cosh, "Asinh": _asinh, "Acosh": _acosh,
            "Atanh": _atanh, "Atan": _atan, "Asin": _asin, "Acos": _acos, "Shrink": _shrink,
        }.items()
    }
)  # fmt: skip
