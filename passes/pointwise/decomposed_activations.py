"""Match decomposed activations and norms, and convert them to one op.

x·½·(1 + Erf(x/√2)), in every association             -> gelu
x·½·(1 + Tanh(√(2/π)·(x + 0.044715·x³)))             -> gelu_tanh
x·Sigmoid(x)                                         -> silu
x·Clip(x + 3, 0, 6)/6, x·HardSigmoid(x; 1/6, 1/2)    -> hard_swish
x·Tanh(Softplus(x))                                  -> mish
(x − mean)/√(var + ε)·γ + β, LayerNormalization      -> FusedNorm(layer)
x/√(mean(x²) + ε)·γ, RMSNormalization                -> FusedNorm(rms)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.passes.pointwise.read_elementwise import read_chain
from tracea_graph.passes.region_helpers import attribute, fused_region, is_f32
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Match, Rule, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["LAYER_NORMS", "RMS_NORMS", "RULES"]

_ROOT_HALF = 1 / math.sqrt(2)
_TANH_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_SIXTH = 0.1666666716337204
"""The float32 nearest to 1/6."""


# ---- activations -----------------------------------------------------------------------


def _phi(op: Any, x: Any) -> Any:
    """Match 1 + Erf(x/√2)."""
    return op.Add(op.Erf(op.scaled(x, _ROOT_HALF)), 1.0)


def _gelu_x_first(op: Any, x: Any) -> Any:
    return op.scaled(op.Mul(x, _phi(op, x)), 0.5)


def _gelu_half_first(op: Any, x: Any) -> Any:
    return op.Mul(op.scaled(x, 0.5), _phi(op, x))


def _gelu_half_phi(op: Any, x: Any) -> Any:
    return op.Mul(x, op.scaled(_phi(op, x), 0.5))


def _cubic_term(op: Any, x: Any) -> Any:
    """Match 0.044715 x³."""
    cube = op.either(op.Mul(op.square(x), x), op.Pow(x, 3.0))
    scaled_x = op.scaled(x, _CUBIC)
    return op.either(
        op.scaled(cube, _CUBIC), op.Mul(scaled_x, op.square(x)), op.Mul(op.Mul(scaled_x, x), x)
    )


def _quadratic_factor(op: Any, x: Any) -> Any:
    """Match 1 + 0.044715 x²."""
    square = op.either(op.scaled(op.square(x), _CUBIC), op.Mul(op.scaled(x, _CUBIC), x))
    return op.Add(square, 1.0)


def _tanh_phi(op: Any, x: Any) -> Any:
    """Match 1 + Tanh(√(2/π)(x + 0.044715 x³)), or with x factored out: x·(1 + 0.044715 x²)."""
    factor = _quadratic_factor(op, x)
    inner = op.either(op.Add(x, _cubic_term(op, x)), op.Mul(x, factor))
    prescaled = op.Mul(op.scaled(x, _TANH_SCALE), factor)
    return op.Add(op.Tanh(op.either(op.scaled(inner, _TANH_SCALE), prescaled)), 1.0)


def _gelu_tanh_x_first(op: Any, x: Any) -> Any:
    return op.scaled(op.Mul(x, _tanh_phi(op, x)), 0.5)


def _gelu_tanh_half_first(op: Any, x: Any) -> Any:
    return op.Mul(op.scaled(x, 0.5), _tanh_phi(op, x))


def _gelu_tanh_half_phi(op: Any, x: Any) -> Any:
    return op.Mul(x, op.scaled(_tanh_phi(op, x), 0.5))


def _silu(op: Any, x: Any) -> Any:
    return op.Mul(x, op.Sigmoid(x))


def _relu6_gate(op: Any, x: Any) -> Any:
    """Match Clip(x + 3, 0, 6)."""
    return op.Clip(op.Add(x, 3.0), label="gate")


def _hard_swish_last(op: Any, x: Any) -> Any:
    return op.scaled(op.Mul(x, _relu6_gate(op, x)), 1 / 6)


def _hard_swish_gate(op: Any, x: Any) -> Any:
    return op.Mul(x, op.scaled(_relu6_gate(op, x), 1 / 6))


def _hard_swish_first(op: Any, x: Any) -> Any:
    return op.Mul(op.scaled(x, 1 / 6), _relu6_gate(op, x))


def _hard_swish_sigmoid(op: Any, x: Any) -> Any:
    return op.Mul(x, op.HardSigmoid(x, label="gate"))


def _hard_swish_check(m: Match) -> str | None:
    bound_chain = read_chain(m.graph, m.labels["gate"])
    step = bound_chain[0].steps[-1] if bound_chain else None
    if step is None or step.args[1:] not in ((0.0, 6.0), (_SIXTH, 0.5)):
        return "its HardSigmoid does not have the constants of HardSwish"
    return _activation_check(m)


def _mish(op: Any, x: Any) -> Any:
    return op.Mul(x, op.Tanh(op.Softplus(x)))


def _activation_check(m: Match) -> str | None:
    if not is_f32(m.graph, m.values["x"]):
        return Reason("x is not float32", Code.UNSUPPORTED_DTYPE)
    if m.graph.spec(m.values["x"]).rank != m.graph.spec(m.root.results[0]).rank:
        return "its constants have more axes than x"
    return None


def _activation(rule: str, step: str) -> Callable[[Match], Region]:
    return lambda m: _one_step(rule, step, m)


def _one_step(rule: str, step: str, m: Match) -> Region:
    chain = Chain((FULL,), (Step(step, (0,)),), (1,))
    return fused_region(
        rule, ElementwiseParams(chain), (m.values["x"],), m.root.results, m.covered
    )


def _gelu_op(op: Any, x: Any) -> Any:
    return op.Gelu(x)


def _gelu_op_region(rule: str) -> Callable[[Match], Region]:
    def rewrite(m: Match) -> Region:
        exact = attribute(m.root, "approximate", "none") == "none"
        return _one_step(rule, "gelu" if exact else "gelu_tanh", m)

    return rewrite


# ---- normalisations --------------------------------------------------------------------


def _layer_norm_op(op: Any, x: Any, gamma: Any, beta: Any) -> Any:
    return op.LayerNormalization(x, gamma, beta, label="norm")


def _layer_norm_op_no_beta(op: Any, x: Any, gamma: Any) -> Any:
    return op.LayerNormalization(x, gamma, label="norm")


def _centred(op: Any, x: Any) -> Any:
    return op.Sub(x, op.ReduceMean(x))


def _deviation_form(op: Any, x: Any, epsilon: Any) -> Any:
    d = _centred(op, x)
    return op.over_sqrt(d, op.Add(op.ReduceMean(op.square(d)), epsilon))


def _layer_norm_decomposed(op: Any, x: Any, gamma: Any, beta: Any, epsilon: Any) -> Any:
    return op.Add(op.Mul(_deviation_form(op, x, epsilon), gamma), beta)


def _layer_norm_scaled(op: Any, x: Any, gamma: Any, epsilon: Any) -> Any:
    return op.Mul(_deviation_form(op, x, epsilon), gamma)


def _rms_form(op: Any, x: Any, epsilon: Any) -> Any:
    return op.over_sqrt(x, op.Add(op.ReduceMean(op.square(x)), epsilon))


def _layer_norm_bare(op: Any, x: Any, epsilon: Any) -> Any:
    return _deviation_form(op, x, epsilon)


def _rms_norm_bare(op: Any, x: Any, epsilon: Any) -> Any:
    return _rms_form(op, x, epsilon)


def _rms_norm_decomposed(op: Any, x: Any, gamma: Any, epsilon: Any) -> Any:
    return op.Mul(_rms_form(op, x, epsilon), gamma)


def _rms_norm_op(op: Any, x: Any, gamma: Any) -> Any:
    return op.either(
        op.RMSNormalization(x, gamma, label="norm"),
        op.SimplifiedLayerNormalization(x, gamma, label="norm"),
    )


def _affine_check(m: Match) -> str | None:
    shape = m.spec("x").shape
    if shape is None or not isinstance(shape[-1], int):
        return "the normalised extent is not known"
    for name in ("gamma", "beta"):
        if name in m.values and m.spec(name).shape != (shape[-1],):
            return f"{name} is not a vector over the last axis"
    names = [m.values[n] for n in ("x", "gamma", "beta") if n in m.values]
    return (
        None
        if is_f32(m.graph, *names)
        else Reason("not all operands are float32", Code.UNSUPPORTED_DTYPE)
    )


def _norm_op_check(m: Match) -> str | None:
    region = m.labels["norm"]
    rank = m.spec("x").rank
    if attribute(region, "axis", -1) not in (-1, (rank or 0) - 1):
        return "it normalises more than the last axis"
    if any(v for v in region.results[1:] if m.graph.uses(v) or m.graph.is_output(v)):
        return "its mean or deviation output is used"
    if (reason := _affine_check(m)) is not None:
        return reason
    forgotten = "beta" not in m.values and any(region.operands[2:])
    return "beta is not a vector over the last axis" if forgotten else None


def _decomposed_check(m: Match) -> str | None:
    means = [r for r in m.covered if r.op == "ReduceMean"]
    if not all(_over_last_axis(m.graph, mean) for mean in means):
        return "a mean is not over the last axis alone"
    if constant_number(m.graph, m.values["epsilon"]) is None:
        return "epsilon is not a constant"
    return _affine_check(m)


def _over_last_axis(graph: TileGraph, region: Region) -> bool:
    axes = attribute(region, "axes", None)
    if axes is None and len(region.operands) > 1 and (w := graph.weight(region.operands[1])):
        axes = tuple(int(a) for a in w.array().reshape(-1))
    rank = graph.spec(region.operands[0]).rank
    return attribute(region, "keepdims", 1) == 1 and axes in ((-1,), ((rank or 0) - 1,))


def _norm(rule: str, kind: str) -> Callable[[Match], Region]:
    def rewrite(m: Match) -> Region:
        if "norm" in m.labels:
            epsilon = float(attribute(m.labels["norm"], "epsilon", 1e-5))  # type: ignore[arg-type]
        else:
            epsilon = constant_number(m.graph, m.values["epsilon"]) or 0.0
        affine = [m.values[n] for n in ("gamma", "beta") if n in m.values]
        params = NormParams(Norm(kind, epsilon, "gamma" in m.values, "beta" in m.values))
        results = m.root.results[:1]
        return fused_region(rule, params, (m.values["x"], *affine), results, m.covered)

    return rewrite


LAYER_NORMS = (_layer_norm_decomposed, _layer_norm_scaled, _layer_norm_bare)
RMS_NORMS = (_rms_norm_decomposed, _rms_norm_bare)
"""Patterns of decomposed normalisations over any axis."""


def _rule(name: str, patterns: tuple[Any, ...], rewrite: Any, check: Any) -> Rule:
    return Rule(name, patterns, rewrite(name), check)


GELU = _rule(
    "gelu",
    (_gelu_x_first, _gelu_half_first, _gelu_half_phi),
    lambda n: _activation(n, "gelu"),
    _activation_check,
)
GELU_OP = _rule("gelu-op", (_gelu_op,), _gelu_op_region, _activation_check)
GELU_TANH = _rule(
    "gelu-tanh",
    (_gelu_tanh_x_first, _gelu_tanh_half_first, _gelu_tanh_half_phi),
    lambda n: _activation(n, "gelu_tanh"),
    _activation_check,
)
SILU = _rule("silu", (_silu,), lambda n: _activation(n, "silu"), _activation_check)
HARD_SWISH = _rule(
    "hard-swish",
    (_hard_swish_last, _hard_swish_gate, _hard_swish_first, _hard_swish_sigmoid),
    lambda n: _activation(n, "hard_swish"),
    _hard_swish_check,
)
MISH = _rule("mish", (_mish,), lambda n: _activation(n, "mish"), _activation_check)
LAYER_NORM_OP = _rule(
    "layer-norm-op",
    (_layer_norm_op, _layer_norm_op_no_beta),
    lambda n: _norm(n, "layer"),
    _norm_op_check,
)
LAYER_NORM = _rule(
    "layer-norm",
    LAYER_NORMS,
    lambda n: _norm(n, "layer"),
    _decomposed_check,
)
RMS_NORM = _rule(
    "rms-norm",
    RMS_NORMS,
    lambda n: _norm(n, "rms"),
    _decomposed_check,
)
RMS_NORM_OP = _rule("rms-norm-op", (_rms_norm_op,), lambda n: _norm(n, "rms"), _norm_op_check)

RULES = (
    GELU, GELU_OP, GELU_TANH, SILU, HARD_SWISH, MISH, LAYER_NORM_OP, LAYER_NORM, RMS_NORM,
    RMS_NORM_OP,
)  # fmt: skip
"""Rules that match one idiom each."""
