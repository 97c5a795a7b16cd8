"""Elementwise chains as C++: one statement per step over the vector type ``vf``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tracea_graph.ops.chain import Chain, Ref, Step

__all__ = ["functions", "results", "statements"]

_SPELLING: Mapping[str, str] = MappingProxyType(
    {
        "add": "{0} + {1}",
        "sub": "{0} - {1}",
        "mul": "{0} * {1}",
        "div": "{0} / {1}",
        "neg": "-{0}",
        "abs": "abs({0})",
        "sqrt": "sqrt({0})",
        "reciprocal": "set1(1.0f) / {0}",
        "relu": "max(set1(0.0f), {0})",
        "max": "v_max({0}, {1})",
        "min": "v_min({0}, {1})",
        **{
            name: f"v_{name}({{0}})"
            for name in ("exp", "log", "erf", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh")
        },
    }
)

_NEEDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "max": frozenset({"nan_max"}),
        "min": frozenset({"nan_max"}),
        "exp": frozenset({"exp"}),
        "log": frozenset({"log"}),
        "erf": frozenset({"erf"}),
        "tanh": frozenset({"tanh"}),
        "sigmoid": frozenset({"sigmoid"}),
        "silu": frozenset({"exp", "silu"}),
        "gelu": frozenset({"gelu"}),
        "gelu_tanh": frozenset({"exp", "gelu_tanh"}),
    }
)


def functions(chain: Chain) -> frozenset[str]:
    """The sections of ``vec_math.h`` the chain's text uses."""
    nothing: frozenset[str] = frozenset()
    return nothing.union(*(_NEEDS.get(step.op, nothing) for step in chain.steps))


def statements(chain: Chain) -> list[str]:
    """One ``const vf`` statement per step; operand ``i`` is ``x[i]``, step ``i`` is ``v<i>``."""
    return [f"const vf v{i} = {_expression(chain, s)};" for i, s in enumerate(chain.steps)]


def results(chain: Chain) -> list[str]:
    """The expressions of the chain's results."""
    return [_value(chain, ref) for ref in chain.results]


def _expression(chain: Chain, step: Step) -> str:
    if step.op in ("max", "min") and (args := _literal_first(step)):
        # The vector instruction returns its second operand when either is NaN.
        return f"{step.op}({_value(chain, args[0])}, {_value(chain, args[1])})"
    return _SPELLING[step.op].format(*(_value(chain, a) for a in step.args))


def _literal_first(step: Step) -> tuple[Ref, ...] | None:
    """The two arguments with a literal (no NaN) in front, or None when there is none."""
    numbers = [isinstance(a, float) and not math.isnan(a) for a in step.args]
    return (step.args if numbers[0] else step.args[::-1]) if any(numbers) else None


def _value(chain: Chain, ref: Ref) -> str:
    if isinstance(ref, float):
        return f"set1({_literal(ref)})"
    count = len(chain.operands)
    return f"x[{ref}]" if ref < count else f"v{ref - count}"


def _literal(value: float) -> str:
    """The float32 nearest to ``value``, exactly."""
    with np.errstate(over="ignore"):
        single = float(np.float32(value))
    if math.isnan(single):
        return '__builtin_nanf("")'
    if math.isinf(single):
        return "__builtin_inff()" if single > 0 else "-__builtin_inff()"
    return single.hex() + "f"
