"""Decompose compound operators into plain ones, which other rules match.

MeanVarianceNormalization, LpNormalization                -> reductions and arithmetic
LayerNormalization, RMSNormalization over several axes    -> one axis, between Reshapes
SkipLayerNormalization, SkipSimplifiedLayerNormalization  -> Add, then the norm
Gelu, BiasGelu, FastGelu, QuickGelu of com.microsoft      -> arithmetic
EmbedLayerNormalization of com.microsoft                  -> see ``embed_layer_norm``
Attention, MultiHeadAttention of com.microsoft            -> see ``contrib_attention``
DequantizeLinear with a scale per channel                 -> Cast, Sub, Mul
Einsum of one or two operands                             -> see ``einsum``
Pad of other axes than rows and columns of images         -> see ``pad_any_axes``, ``other_pads``
Conv that cuts volumes into patches                       -> see ``patch_conv3d``
MaxPool, AveragePool of volumes, LpPool, LRN              -> see ``pools``
ConvTranspose, dilated, in small groups or of volumes     -> see ``transposed_convs``
MatMulInteger, ConvInteger with an int32 result           -> see ``integer_sums``
Resize of volumes, of known sizes without a kernel        -> ``resize_volumes``, ``…_matrices``
Hardmax, OneHot, Trilu; TopK, GatherElements on any axis  -> see ``choices``
TensorScatter                                             -> see ``tensor_scatter``
Tan, Atan, Sinh, Asinh and their like, Shrink             -> see ``functions``
FusedConv, FusedGemm, FusedMatMul of com.microsoft        -> see ``ort_fusions``
QLinearMatMul, QGemm, DynamicQuantizeMatMul …             -> see ``quantized``

Sources: the ONNX specification; ONNX Runtime's list of contributed operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.elementwise import broadcast
from tracea_graph.passes.decompose.choices import (
    decompose_gather_elements,
    decompose_hardmax,
    decompose_one_hot,
    decompose_top_k,
    decompose_trilu,
)
from tracea_graph.passes.decompose.contrib_attention import (
    decompose_attention,
    decompose_multi_head,
)
from tracea_graph.passes.decompose.einsum import decompose_einsum
from tracea_graph.passes.decompose.embed_layer_norm import decompose_embed_layer_norm
from tracea_graph.passes.decompose.functions import FUNCTIONS
from tracea_graph.passes.decompose.integer_sums import decompose_integer_sums
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder
from tracea_graph.passes.decompose.ort_fusions import fused_conv, fused_gemm, fused_matmul
from tracea_graph.passes.decompose.other_pads import decompose_other_pads
from tracea_graph.passes.decompose.pad_any_axes import decompose_pad
from tracea_graph.passes.decompose.patch_conv3d import decompose_patch_conv3d
from tracea_graph.passes.decompose.pools import (
    decompose_global_lp_pool,
    decompose_lp_pool,
    decompose_lrn,
    decompose_pool,
)
from tracea_graph.passes.decompose.qlinear_ops import (
    dynamic_quantize_matmul,
    matmul_integer_to_float,
    nhwc_max_pool,
    qgemm,
    qlinear_activation,
    qlinear_average_pool,
    qlinear_binary,
    qlinear_concat,
    qlinear_conv,
    qlinear_global_average_pool,
    qlinear_matmul,
    qlinear_softmax,
    qlinear_where,
)
from tracea_graph.passes.decompose.quantized_attention import decompose_qattention
from tracea_graph.passes.decompose.resize_matrices import decompose_resize
from tracea_graph.passes.decompose.resize_volumes import decompose_volume_resize
from tracea_graph.passes.decompose.tensor_scatter import decompose_tensor_scatter
from tracea_graph.passes.decompose.transposed_convs import decompose_conv_transpose
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Decompose"]

_TINY = 1e-9
"""Epsilon that MeanVarianceNormalization adds to the standard deviation."""


@dataclass(frozen=True)
class Decompose:
    """Replace an operator by the nodes that define it.

    With ``whole_models``, also operators that ONNX Runtime may compute as fast as these nodes, but
    that split a program that could hold the whole model.  Pools, and convolutions that cut volumes
    into lines, are left to a target that ``takes_volumes``.
    """

    whole_models: bool = False
    takes_volumes: bool = False
    name: str = "decompose"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        tables = (_DECOMPOSITIONS, *((_OF_VOLUMES,) if self.takes_volumes else ()))
        tables += (_SPLITTING,) if self.whole_models else ()
        left = region.fused or (self.takes_volumes and _takes_volume(graph, region))
        ways = [] if left else [t[region.op] for t in tables if region.op in t]
        reasons = list[str]()
        for decompose in ways if region.results else ():
            try:
                builder = decompose(OnnxBuilder(graph, region))
            except CannotDecompose as why:
                reasons.append(str(why))
                continue
            yield Proposal(
                self.name, (region,), builder.regions(), builder.specs, builder.weights, step=True
            )
            return
        if reasons:
            whole = unsuited_reason(f"other rules match this {region.op} as it is")
            yield Miss(self.name, region.id, reasons[-1] or whole)


def _takes_volume(graph: TileGraph, region: Region) -> bool:
    """Whether a target that convolves volumes computes a region as it is."""
    if region.op != "Conv":
        return region.op in _POOLS
    weight = graph.weight(region.operands[1])
    return weight is not None and len(weight.shape) == 5 and weight.shape[2:4] == (1, 1)


# ---- normalisations --------------------------------------------------------------------


def _mean_variance(s: OnnxBuilder) -> OnnxBuilder:
    """Write (x − mean) / (deviation + 1e-9)."""
    x = s.operands[0]
    rank = len(s.image(x))
    axes = tuple(int(a) for a in s.attribute("axes", (0, 2, 3)))
    if not axes or any(not -rank <= a < rank for a in axes):
        raise CannotDecompose("it has no axes, or axes that its input does not have")
    centred = s("Sub", x, s.reduce("ReduceMean", x, axes))
    variance = s.reduce("ReduceMean", s("Mul", centred, centred), axes)
    s("Div", centred, s("Add", s("Sqrt", variance), _TINY))
    return s


def _lp(s: OnnxBuilder) -> OnnxBuilder:
    """Divide x by its 1- or 2-norm; zeros stay zeros."""
    x, p = s.operands[0], s.attribute("p", 2)
    rank, axis = len(s.image(x)), int(s.attribute("axis", -1))
    if p not in (1, 2) or not -rank <= axis < rank:
        raise CannotDecompose("it is neither the 1-norm nor the 2-norm over an axis")
    norm = s.reduce("ReduceL1" if p == 1 else "ReduceL2", x, (axis,))
    zero = s("Equal", norm, 0.0, spec=TensorSpec(DType.BOOL, s.spec(norm).shape))
    s("Div", x, s("Where", zero, 1.0, norm))
    return s


def _layer(s: OnnxBuilder) -> OnnxBuilder:
    """Write a norm over several axes as a norm over one axis that merges them."""
    x, gamma, beta = s.operands[:3]
    shape = s.image(x)
    axis = int(s.attribute("axis", -1)) % max(len(shape), 1)
    if axis >= len(shape) - 1:
        raise CannotDecompose("")
    s.unread(1, 2)
    inner = shape[axis:]
    if not all(isinstance(d, int) and d > 0 for d in inner):
        raise CannotDecompose("the normalised extent is not known")
    affine = [v for v in (gamma, beta) if v]
    s.image(*affine)
    if any(s.spec(v).shape != inner for v in affine):
        raise CannotDecompose("gamma or beta does not have the normalised shape")
    count = math.prod(inner)
    lead = TensorSpec(DType.F32, (*(shape[:axis] or (1,)), count))
    flat = s("Reshape", x, s.constant([*([0] * axis or [1]), count], np.int64), spec=lead)
    affine = [s.vector(v, count) for v in affine]
    y = s(s.region.op, flat, *affine, spec=lead, axis=-1,
          epsilon=float(s.attribute("epsilon", 1e-5)))  # fmt: skip
    back = s.constant([*[0] * axis, *inner] if axis else inner, np.int64)
    s("Reshape", y, back, spec=TensorSpec(DType.F32, shape))
    return s


def _skip_norm(s: OnnxBuilder) -> OnnxBuilder:
    """Write norm(x + skip + bias); the sum is the fourth result."""
    simplified = "Simplified" in s.region.op
    x, skip, gamma = s.operands[:3]
    beta, bias = ("", s.operands[3]) if simplified else s.operands[3:5]
    shape = s.image(x, skip, gamma, *filter(None, (beta, bias)))
    s.unread(1, 2)
    total = (*s.region.results, "", "", "")[3]
    if broadcast([shape, s.spec(skip).shape or ()]) != shape:
        raise CannotDecompose("skip does not broadcast to x")
    y = s("Add", x, skip, result="" if bias else total)
    y = s("Add", y, bias, result=total) if bias else y
    epsilon = float(s.attribute("epsilon", 1e-12))
    if not simplified and s.graph.opset >= 17:
        s("LayerNormalization", y, gamma, *filter(None, (beta,)), spec=s.spec(y), axis=-1,
          epsilon=epsilon)  # fmt: skip
        return s
    d = y if simplified else s("Sub", y, s.reduce("ReduceMean", y, (-1,)))
    variance = s.reduce("ReduceMean", s("Mul", d, d), (-1,))
    y = s("Mul", s("Div", d, s("Sqrt", s("Add", variance, epsilon))), gamma)
    if beta:
        s("Add", y, beta)
    return s


# ---- activations -----------------------------------------------------------------------


def _biased(s: OnnxBuilder) -> str:
    x, bias = s.operands[:2]
    s.image(x, *filter(None, (bias,)))
    return s("Add", x, bias) if bias else x


def _gelu(s: OnnxBuilder) -> OnnxBuilder:
    x = _biased(s)
    phi = s("Add", s("Erf", s("Div", x, math.sqrt(2.0))), 1.0)
    s("Mul", s("Mul", x, phi), 0.5)
    return s


def _fast_gelu(s: OnnxBuilder) -> OnnxBuilder:
    x = _biased(s)
    cubic = s("Mul", s("Mul", s("Mul", x, x), x), 0.044715)
    tanh = s("Tanh", s("Mul", s("Add", x, cubic), math.sqrt(2 / math.pi)))
    s("Mul", s("Mul", x, 0.5), s("Add", tanh, 1.0))
    return s


def _quick_gelu(s: OnnxBuilder) -> OnnxBuilder:
    x = s.operands[0]
    s.image(x)
    s("Mul", x, s("Sigmoid", s("Mul", x, float(s.attribute("alpha", 1.702)))))
    return s


# ---- others ----------------------------------------------------------------------------


def _dequantise(s: OnnxBuilder) -> OnnxBuilder:
    """Write (x − zero) · scale with one scale and zero point per index of an axis."""
    x, scale, zero = s.operands[:3]
    shape, weight = s.spec(x).shape, s.graph.weight(scale)
    if weight is None or weight.count == 1 or s.graph.weight(x) is not None:
        raise CannotDecompose("")
    if s.attribute("block_size", 0) or len(weight.shape) != 1 or weight.dtype is not DType.F32:
        raise CannotDecompose("its scale is not a float32 vector along an axis")
    offsets = s.graph.weight(zero) if zero else None
    if shape is None or (zero and offsets is None):
        raise CannotDecompose("its rank or its zero point is not known")
    axis = int(s.attribute("axis", 1)) % max(len(shape), 1)
    column = (weight.count, *[1] * (len(shape) - 1 - axis))
    y = s("Cast", x, spec=TensorSpec(DType.F32, shape), to=DType.F32.onnx)
    if offsets is not None and np.any(offsets.array()):
        y = s("Sub", y, s.derived(offsets, column))
    s("Mul", y, s.derived(weight, column))
    return s


_DECOMPOSITIONS: Mapping[str, Callable[[OnnxBuilder], OnnxBuilder]] = MappingProxyType(
    {
        "MeanVarianceNormalization": _mean_variance,
        "LpNormalization": _lp,
        "LayerNormalization": _layer,
        "RMSNormalization": _layer,
        "com.microsoft::SkipLayerNormalization": _skip_norm,
        "com.microsoft::SkipSimplifiedLayerNormalization": _skip_norm,
        "com.microsoft::FusedConv": fused_conv,
        "com.microsoft::FusedGemm": fused_gemm,
        "com.microsoft::FusedMatMul": fused_matmul,
        "com.microsoft::Gelu": _gelu,
        "com.microsoft::BiasGelu": _gelu,
        "com.microsoft::FastGelu": _fast_gelu,
        "com.microsoft::QuickGelu": _quick_gelu,
        "com.microsoft::Attention": decompose_attention,
        "com.microsoft::MultiHeadAttention": decompose_multi_head,
        "com.microsoft::DynamicQuantizeMatMul": dynamic_quantize_matmul,
        "com.microsoft::MatMulIntegerToFloat": matmul_integer_to_float,
        "com.microsoft::NhwcMaxPool": nhwc_max_pool,
        "com.microsoft::QAttention": decompose_qattention,
        "com.microsoft::QGemm": qgemm,
        "com.microsoft::QLinearAdd": qlinear_binary,
        "com.microsoft::QLinearAveragePool": qlinear_average_pool,
        "com.microsoft::QLinearConcat": qlinear_concat,
        "com.microsoft::QLinearConv": qlinear_conv,
        "com.microsoft::QLinearGlobalAveragePool": qlinear_global_average_pool,
        "com.microsoft::QLinearMul": qlinear_binary,
        "com.microsoft::QLinearLeakyRelu": qlinear_activation,
        "com.microsoft::QLinearSigmoid": qlinear_activation,
        "com.microsoft::QLinearSoftmax": qlinear_softmax,
        "com.microsoft::QLinearWhere": qlinear_where,
        **FUNCTIONS,
        "AveragePool": decompose_pool,
        "Conv": decompose_patch_conv3d,
        "DequantizeLinear": _dequantise,
        "Einsum": decompose_einsum,
        "GatherElements": decompose_gather_elements,
        "GlobalLpPool": decompose_global_lp_pool,
        "Hardmax": decompose_hardmax,
        "LRN": decompose_lrn,
        "LpPool": decompose_lp_pool,
        "MaxPool": decompose_pool,
        "OneHot": decompose_one_hot,
        "Pad": decompose_pad,
        "QLinearConv": qlinear_conv,
        "QLinearMatMul": qlinear_matmul,
        "TopK": decompose_top_k,
        "Trilu": decompose_trilu,
    }
)
_POOLS = ("AveragePool", "MaxPool")
_OF_VOLUMES: Mapping[str, Callable[[OnnxBuilder], OnnxBuilder]] = MappingProxyType(
    {"Resize": decompose_volume_resize}
)
"""Decompositions into operators for which a target that takes volumes has kernels."""
_SPLITTING: Mapping[str, Callable[[OnnxBuilder], OnnxBuilder]] = MappingProxyType(
    {
        "com.microsoft::EmbedLayerNormalization": decompose_embed_layer_norm,
        "ConvInteger": decompose_integer_sums,
        "ConvTranspose": decompose_conv_transpose,
        "MatMulInteger": decompose_integer_sums,
        "Pad": decompose_other_pads,
        "Resize": decompose_resize,
        "TensorScatter": decompose_tensor_scatter,
    }
)
"""Decompositions of operators that ONNX Runtime may compute as fast as what they become."""
