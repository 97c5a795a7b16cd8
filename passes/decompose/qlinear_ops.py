"""Decompose quantized operators into float operators between dequantizing and quantizing.

Other rules match this form.

QLinearMatMul, QGemm             -> DequantizeLinear, MatMul or Gemm, QuantizeLinear
QLinearConv                      -> DequantizeLinear, Conv, QuantizeLinear
NhwcMaxPool                      -> MaxPool
QLinearGlobalAveragePool         -> DequantizeLinear, GlobalAveragePool, QuantizeLinear
QLinearAveragePool, QLinearConcat, QLinearSoftmax, QLinearWhere
                                 -> DequantizeLinear, the operator on numbers, QuantizeLinear
QLinearAdd, QLinearMul           -> DequantizeLinear, Add or Mul, QuantizeLinear
QLinearSigmoid, QLinearLeakyRelu -> the same around the activation
DynamicQuantizeMatMul            -> DynamicQuantizeLinear, MatMulInteger, Cast, Mul, Add
MatMulIntegerToFloat             -> MatMulInteger, Cast, Mul, Add

Operators whose channels come last, as ONNX Runtime saves them, are put between Transposes.

Source: the ONNX specification; ONNX Runtime's documentation of its contributed operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = [
    "dynamic_quantize_matmul", "matmul_integer_to_float", "nhwc_max_pool", "qgemm",
    "qlinear_activation", "qlinear_average_pool", "qlinear_binary", "qlinear_concat",
    "qlinear_conv", "qlinear_global_average_pool", "qlinear_matmul", "qlinear_softmax",
    "qlinear_where",
]  # fmt: skip

Floats = npt.NDArray[np.float32]
_AXIS_SINCE = 13
"""First opset whose DequantizeLinear takes a scale per index of an axis."""
_INTEGER_POOL_SINCE = 12
"""First opset whose MaxPool takes 8-bit integers."""


def qlinear_matmul(s: OnnxBuilder) -> OnnxBuilder:
    a, b = _number(s, 0), _number(s, 3)
    y = s("MatMul", a, b, spec=_float(_result(s)))
    return _quantized(s, y, *s.operands[6:8])


def qlinear_conv(s: OnnxBuilder) -> OnnxBuilder:
    """Write a Conv of integers, then a multiplication of its sums by the ratio of all scales.

    ONNX Runtime multiplies once, after it has added the bias.  With more roundings, a result near
    the middle of two integers could round to the other one.
    """
    spec, one, ratio = _float(_image_result(s)), s.constant(np.float32(1.0)), _ratio(s, 1, 4, 6)
    ones = s.constant(np.ones(s.spec(s.operands[4]).shape or (), np.float32))
    operands = [
        _number(s, 0, scale=one, value=_channels_first(s)),
        _number(s, 3, 0, every_rank=True, scale=ones),
    ]
    if len(s.operands) > 8 and (bias := s.operands[8]):
        operands.append(_dequantized(s, bias, one))
    kept = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    attrs: dict[str, Any] = {k: v for k, v in s.region.node.attrs.items() if k in kept}
    y = s("Conv", *operands, spec=spec, **attrs)
    if ratio.ndim:
        ratio = ratio.reshape(-1, *[1] * (len(spec.shape or ()) - 2))
    y = s("Mul", y, s.constant(ratio), spec=spec)
    return _quantized_image(s, y, one, s.operands[7])


def _ratio(s: OnnxBuilder, *indices: int) -> Floats:
    """Return the product of the first two constant scales, over the third if there is one."""
    weights = [s.graph.weight(s.operands[i]) for i in indices]
    for i in indices:
        _check_scale(s, s.operands[i])
    scales = [np.asarray(w.array(), np.float32) for w in weights if w is not None]
    if len(scales) < len(indices):
        raise CannotDecompose("its scales are not constant")
    left, right, *over = (x.reshape(()) if x.size == 1 else x for x in scales)
    ratio = left * right / over[0] if over else left * right
    return np.asarray(ratio, np.float32)


def qlinear_global_average_pool(s: OnnxBuilder) -> OnnxBuilder:
    x = _number(s, 0, value=_channels_first(s))
    y = s("GlobalAveragePool", x, spec=_float(_image_result(s)))
    return _quantized_image(s, y, *s.operands[3:5])


def qlinear_average_pool(s: OnnxBuilder) -> OnnxBuilder:
    kept = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    attrs: dict[str, Any] = {k: v for k, v in s.region.node.attrs.items() if k in kept}
    x = _number(s, 0, value=_channels_first(s))
    y = s("AveragePool", x, spec=_float(_image_result(s)), **attrs)
    return _quantized_image(s, y, *s.operands[3:5])


def nhwc_max_pool(s: OnnxBuilder) -> OnnxBuilder:
    if s.graph.opset < _INTEGER_POOL_SINCE:
        raise CannotDecompose(f"MaxPool of integers requires opset {_INTEGER_POOL_SINCE}")
    kept = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
    attrs: dict[str, Any] = {k: v for k, v in s.region.node.attrs.items() if k in kept}
    return _channels_back(s, s("MaxPool", _channels_first(s), spec=_image_result(s), **attrs))


def qlinear_concat(s: OnnxBuilder) -> OnnxBuilder:
    """Write a Concat; the scale and zero point of the result are its first two operands."""
    parts = [_number(s, at) for at in range(2, len(s.region.operands), 3)]
    y = s("Concat", *parts, spec=_float(_result(s)), axis=int(s.attribute("axis", 0)))
    return _quantized(s, y, *s.operands[:2])


def qlinear_softmax(s: OnnxBuilder) -> OnnxBuilder:
    spec = _result(s)
    axis, rank = int(s.attribute("axis", -1)), len(spec.shape or ())
    if axis % max(rank, 1) != rank - 1:
        raise CannotDecompose(
            "its axis is not the last one, and opsets define other axes differently"
        )
    y = s("Softmax", _number(s, 0), spec=_float(spec), axis=rank - 1)
    return _quantized(s, y, *s.operands[3:5])


def qlinear_where(s: OnnxBuilder) -> OnnxBuilder:
    y = s("Where", s.operands[0], _number(s, 1), _number(s, 4), spec=_float(_result(s)))
    return _quantized(s, y, *s.operands[7:9])


def qgemm(s: OnnxBuilder) -> OnnxBuilder:
    """Write a Gemm; the scale of its int32 bias is the product of the operands' scales."""
    if float(s.attribute("alpha", 1.0)) != 1.0:
        raise CannotDecompose("its factor alpha is not 1")
    turned = int(s.attribute("transB", 0))
    operands = [_number(s, 0), _number(s, 3, 0 if turned else 1)]
    if c := s.operands[6]:
        operands.append(_bias(s, c, 1, 4))
    y = s("Gemm", *operands, spec=_float(_result(s)), transA=int(s.attribute("transA", 0)),
          transB=turned)  # fmt: skip
    return _quantized(s, y, *s.operands[7:9]) if s.operands[7] else s


def _bias(s: OnnxBuilder, bias: str, *indices: int) -> str:
    """Dequantize an int32 bias by the product of the two constant scales at ``indices``."""
    return _dequantized(s, bias, s.constant(_ratio(s, *indices)))


def _dequantized(s: OnnxBuilder, bias: str, scale: str) -> str:
    """Dequantize an int32 vector by one scale, or by one scale for each element."""
    rank = len(s.spec(scale).shape or ())
    axis: dict[str, Any] = {"axis": 0} if rank and s.graph.opset >= _AXIS_SINCE else {}
    return s("DequantizeLinear", bias, scale, spec=_float(s.spec(bias)), **axis)


def qlinear_binary(s: OnnxBuilder) -> OnnxBuilder:
    op = s.region.op.removeprefix("com.microsoft::QLinear")
    y = s(op, _number(s, 0), _number(s, 3), spec=_float(_result(s)))
    return _quantized(s, y, *s.operands[6:8])


def qlinear_activation(s: OnnxBuilder) -> OnnxBuilder:
    op = s.region.op.removeprefix("com.microsoft::QLinear")
    attrs: dict[str, Any] = dict(s.region.node.attrs)
    y = s(op, _number(s, 0), spec=_float(_result(s)), **attrs)
    return _quantized(s, y, *s.operands[3:5])


def dynamic_quantize_matmul(s: OnnxBuilder) -> OnnxBuilder:
    x, w, scales, zeros, bias = s.operands[:5]
    shape = s.image(x)
    stem = s.region.results[0]
    names = tuple(f"{stem}_{part}" for part in ("quantized", "scale", "zero"))
    s.nodes.append(Node("DynamicQuantizeLinear", (x,), names, {}, "", s.region.node.name))
    q, scale, zero = names
    s.specs |= {q: TensorSpec(DType.U8, shape), scale: TensorSpec(DType.F32, ()),
                zero: TensorSpec(DType.U8, ())}  # fmt: skip
    return _sums(s, q, w, zero, zeros, (scale, scales), bias)


def matmul_integer_to_float(s: OnnxBuilder) -> OnnxBuilder:
    x, w, scale, scales, zero, zeros, bias = s.operands[:7]
    return _sums(s, x, w, zero, zeros, (scale, scales), bias)


def _sums(
    s: OnnxBuilder, x: str, w: str, zero: str, zeros: str, scales: tuple[str, str], bias: str
) -> OnnxBuilder:
    """Write the sums of products, rescaled and with a bias."""
    spec = _result(s)
    operands = [x, w, *([zero] if zero or zeros else []), *([zeros] if zeros else [])]
    if zeros and not zero:
        raise CannotDecompose("its matrix has zero points, but its left operand has none")
    sums = s("MatMulInteger", *operands, spec=TensorSpec(DType.I32, spec.shape))
    y = s("Cast", sums, spec=spec, to=DType.F32.onnx)
    y = s("Mul", y, s("Mul", *scales), spec=spec)
    if bias:
        s("Add", y, bias, spec=spec)
    return s


def _result(s: OnnxBuilder) -> TensorSpec:
    spec = s.spec(s.region.results[0])
    if spec.shape is None or spec.dtype is None:
        raise CannotDecompose("the type or rank of its result is not known")
    return spec


def _float(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(DType.F32, spec.shape)


def _has_channels_last(s: OnnxBuilder) -> bool:
    return s.region.op.endswith("NhwcMaxPool") or bool(int(s.attribute("channels_last", 0)))


def _channels_first(s: OnnxBuilder) -> str:
    """Return the first operand with its channels in second place."""
    x = s.operands[0]
    spec = s.spec(x)
    if not _has_channels_last(s):
        return x
    if spec.shape is None:
        raise CannotDecompose("the rank of an operand is not known")
    rank = len(spec.shape)
    return s("Transpose", x, spec=_permuted(spec), perm=(0, rank - 1, *range(1, rank - 1)))


def _permuted(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a value whose channels move from the last place to the second."""
    shape = spec.shape or ()
    return TensorSpec(spec.dtype, (shape[0], shape[-1], *shape[1:-1]))


def _image_result(s: OnnxBuilder) -> TensorSpec:
    """Return the spec of the result with its channels in second place."""
    spec = _result(s)
    return _permuted(spec) if _has_channels_last(s) else spec


def _quantized_image(s: OnnxBuilder, y: str, scale: str, zero: str) -> OnnxBuilder:
    """Round a result to integers and put its channels where the operator has them."""
    _check_scale(s, scale)
    y = s("QuantizeLinear", y, scale, *([zero] if zero else []), spec=_image_result(s))
    return _channels_back(s, y)


def _channels_back(s: OnnxBuilder, y: str) -> OnnxBuilder:
    if _has_channels_last(s):
        rank = len(_result(s).shape or ())
        s("Transpose", y, spec=_result(s), perm=(0, *range(2, rank), 1))
    return s


def _number(
    s: OnnxBuilder, at: int, axis: int = 1, every_rank: bool = False, scale: str = "",
    value: str = "",
) -> str:  # fmt: skip
    """Dequantize operand ``at``; its scale and zero point are the next two operands.

    ``value`` and ``scale`` replace the operand and its scale if they are not empty.  Several
    scales along ``axis`` are allowed for a matrix, and for any rank if ``every_rank``.
    """
    given, own, zero = s.operands[at : at + 3]
    value = value or given
    scale = scale or own
    _check_scale(s, scale)
    spec, counts = s.spec(value), s.spec(scale).shape
    if spec.shape is None or counts is None:
        raise CannotDecompose("the rank of an operand is not known")
    attrs: dict[str, Any] = {}
    if counts not in ((), (1,)):
        other = len(spec.shape) != 2 and not every_rank
        if s.graph.opset < _AXIS_SINCE or len(counts) != 1 or other:
            raise CannotDecompose(
                "an operand has several scales but is no matrix, or the opset is too old"
            )
        attrs = {"axis": axis}
    operands = (value, scale, *([zero] if zero else []))
    return s("DequantizeLinear", *operands, spec=_float(spec), **attrs)


def _check_scale(s: OnnxBuilder, scale: str) -> None:
    if s.spec(scale).dtype is not DType.F32:
        raise CannotDecompose("its scales are not float32")


def _quantized(s: OnnxBuilder, y: str, scale: str, zero: str) -> OnnxBuilder:
    _check_scale(s, scale)
    s("QuantizeLinear", y, scale, *([zero] if zero else []), spec=_result(s))
    return s
