"""Decompose operators that ONNX Runtime fused when it saved an optimized model.

FusedConv         -> Conv, Add of another tensor, activation
FusedGemm         -> Gemm, activation
FusedMatMul       -> Transpose, MatMul, Mul

Source: ONNX Runtime's documentation of its contributed operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import TensorSpec
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["fused_conv", "fused_gemm", "fused_matmul"]

_OWN = ("activation", "activation_params", "activation_alpha", "activation_beta",
        "activation_gamma")  # fmt: skip
_PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "": (), "Relu": (), "Sigmoid": (), "Tanh": (), "LeakyRelu": ("alpha",),
        "HardSigmoid": ("alpha", "beta"),
    }
)  # fmt: skip
"""Supported activations and the names of their parameters."""


def fused_conv(s: OnnxBuilder) -> OnnxBuilder:
    x, w, bias, other = s.operands[:4]
    s.image(x, w, *filter(None, (bias, other)))
    spec = _result(s)
    y = s("Conv", x, w, *filter(None, (bias,)), spec=spec, **_attributes(s))
    y = s("Add", y, other, spec=spec) if other else y
    return _activated(s, y, [float(p) for p in s.attribute("activation_params", ())])


def fused_gemm(s: OnnxBuilder) -> OnnxBuilder:
    operands = [v for v in s.region.operands if v]
    s.image(*operands)
    y = s("Gemm", *operands, spec=_result(s), **_attributes(s))
    given = [s.attribute(f"activation_{name}", None) for name in ("alpha", "beta", "gamma")]
    return _activated(s, y, [float(p) for p in given if p is not None])


def fused_matmul(s: OnnxBuilder) -> OnnxBuilder:
    if s.attribute("transBatchA", 0) or s.attribute("transBatchB", 0):
        raise CannotDecompose("it transposes batch axes (transBatchA or transBatchB)")
    sides = []
    for value, turn in zip(s.operands[:2], ("transA", "transB"), strict=True):
        shape = s.image(value)
        if s.attribute(turn, 0) and len(shape) > 1:
            perm = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
            spec = TensorSpec(s.spec(value).dtype, tuple(shape[i] for i in perm))
            value = s("Transpose", value, spec=spec, perm=perm)
        sides.append(value)
    spec, alpha = _result(s), float(s.attribute("alpha", 1.0))
    y = s("MatMul", *sides, spec=spec)
    if alpha != 1.0:
        s("Mul", y, alpha, spec=spec)
    return s


def _result(s: OnnxBuilder) -> TensorSpec:
    spec = s.spec(s.region.results[0])
    if spec.shape is None:
        raise CannotDecompose("the rank of its result is not known")
    return spec


def _attributes(s: OnnxBuilder) -> dict[str, Any]:
    return {name: value for name, value in s.region.node.attrs.items() if name not in _OWN}


def _activated(s: OnnxBuilder, y: str, parameters: Sequence[float]) -> OnnxBuilder:
    op, spec = str(s.attribute("activation", "")), s.spec(y)
    if op == "Clip" and len(parameters) == 2 and s.graph.opset >= 11:
        s("Clip", y, *parameters, spec=spec)
        return s
    names = _PARAMETERS.get(op)
    if names is None or len(parameters) < len(names):
        raise CannotDecompose(f"its activation {op} is not supported")
    if op:
        settings: dict[str, Any] = dict(zip(names, parameters, strict=False))
        s(op, y, spec=spec, **settings)
    return s
