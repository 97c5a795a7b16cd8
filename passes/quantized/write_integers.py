"""Write products in standard integer operators, which ONNX Runtime runs without custom ops.

x · W    ->    DequantizeLinear(QuantizeLinear(x)) · DequantizeLinear(W)    x has a fixed scale
x · W    ->    MatMulInteger(DynamicQuantizeLinear(x), W), rescaled         it has none
x · W    ->    MatMulNBits(x, codes, scales, zero points)                   weights in 4 bits

For MatMul and Gemm with a constant matrix, in models that get no custom ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tracea_graph.ir import Array, DType, Node, TensorSpec, Weight
from tracea_graph.ops.block_quantized import BlockQuantized, quantize_blocks
from tracea_graph.ops.int8_matmul import MAX_DEPTH, round_columns
from tracea_graph.passes.decompose.onnx_builder import OnnxBuilder
from tracea_graph.passes.quantized.calibrated_rounding import UNCALIBRATED, CalibratedRounding
from tracea_graph.passes.region_helpers import attribute, is_f32
from tracea_graph.reason_codes import not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["INTEGER_PRECISIONS", "WriteIntegers"]

INTEGER_PRECISIONS = ("int8", "int4-weights")
"""Precisions that standard operators can express."""
_BLOCK, _BITS = 32, 4
_ERROR = 1e-3
"""Predicted error of the outputs for each product."""
_LEAST = 1 << 12
"""Number of elements below which a matrix stays in float32."""
_AXIS_SINCE = 13
"""First opset whose DequantizeLinear can have a scale for each column."""
_INT8_LEVEL = 4
"""Accuracy level at which ONNX Runtime rounds rows to 8 bits."""


@dataclass(frozen=True)
class WriteIntegers:
    """Replace products with constant matrices by products of integers.

    ``calibrated`` has the roundings, by the name of the matrix.
    """

    precision: str
    calibrated: Mapping[str, CalibratedRounding] = field(default_factory=lambda: UNCALIBRATED)
    name: str = "write-integers"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in ("MatMul", "Gemm") or region.fused:
            return
        if (why := _unfit(graph, region)) is not None:
            yield Miss(self.name, region.id, why)
            return
        name = region.operands[1]
        chosen, s = self.calibrated.get(name, CalibratedRounding(0.0)), OnnxBuilder(graph, region)
        spec = graph.spec(region.results[0])
        x = _scaled(s, region.operands[0], chosen)
        if self.precision == "int4-weights":
            y = _codes(s, region.operands[0], chosen, spec)
        elif chosen.scale:
            y = _fixed(s, x, chosen, spec)
        else:
            y = _dynamic(s, x, chosen, spec)
        if chosen.correction is not None:
            y = s("Add", y, _entered(s, DType.F32, _array(chosen.correction)), spec=spec)
        if len(region.operands) > 2 and region.operands[2]:
            y = s("Add", y, region.operands[2], spec=spec)
        *before, last = (replace(r, rule=self.name) for r in s.regions())
        new = (last, *before)
        yield Proposal(self.name, (region,), new, s.specs, s.weights, _ERROR, step=True)


def _unfit(graph: TileGraph, region: Region) -> str | None:
    """Return why a product stays in float32, or None."""
    x, w = region.operands[:2]
    weight, spec = graph.weight(w), graph.spec(x)
    if weight is None:
        return not_constant_reason(w)
    if not is_f32(graph, x, w) or len(weight.shape) != 2 or not spec.shape:
        return unsuited_reason("its operands are not a float32 value and a float32 matrix")
    usual = {"transA": 0, "alpha": 1.0, "beta": 1.0}
    if any(attribute(region, name, value) != value for name, value in usual.items()):
        return "its left operand is transposed, or it has factors other than 1"
    if weight.count < _LEAST:
        return "its matrix is too small to gain from integers"
    if _sizes(region, weight)[0] > MAX_DEPTH:
        return "its sums may not fit 32 bits"
    return (
        "its opset does not allow a scale for each column" if graph.opset < _AXIS_SINCE else None
    )


def _sizes(region: Region, weight: Weight) -> tuple[int, int]:
    k, n = weight.shape
    return (n, k) if attribute(region, "transB", 0) else (k, n)


def _matrix(s: OnnxBuilder, chosen: CalibratedRounding) -> Array:
    """Return the product's matrix ``[K, N]``, divided by the factors that multiply x."""
    found = np.asarray(s.graph.weights[s.region.operands[1]].load(), np.float32)
    found = found.T if s.attribute("transB", 0) else found
    made: Array = found if chosen.factors is None else found / chosen.factors[:, None]
    return made


def _array(values: Any) -> Callable[[], Array]:
    return lambda: np.asarray(values, np.float32)


def _entered(s: OnnxBuilder, dtype: DType, load: Callable[[], Array], *shape: int) -> str:
    """Add a constant and return its name; by default it has the shape of its values."""
    name = f"{s.region.operands[1]}_of_{s.region.results[0]}_{len(s.weights)}"
    s.weights[name] = Weight(name, dtype, shape or load().shape, load)
    return name


def _scaled(s: OnnxBuilder, x: str, chosen: CalibratedRounding) -> str:
    if chosen.factors is None:
        return x
    return s("Mul", x, _entered(s, DType.F32, _array(chosen.factors)), spec=s.graph.spec(x))


def _int8(s: OnnxBuilder, chosen: CalibratedRounding) -> tuple[str, str]:
    """Add the matrix in int8 and the scales of its columns as constants; return their names."""
    k, n = _sizes(s.region, s.graph.weights[s.region.operands[1]])
    return (
        _entered(s, DType.I8, lambda: round_columns(_matrix(s, chosen))[0], k, n),
        _entered(s, DType.F32, lambda: round_columns(_matrix(s, chosen))[1], n),
    )


def _fixed(s: OnnxBuilder, x: str, chosen: CalibratedRounding, spec: TensorSpec) -> str:
    shape = s.graph.spec(s.region.operands[0]).shape
    scale = s.constant(chosen.scale)
    zero = _entered(s, DType.U8, lambda: np.asarray(chosen.zero, np.uint8), *())
    numbers = s("QuantizeLinear", x, scale, zero, spec=TensorSpec(DType.U8, shape))
    again = s("DequantizeLinear", numbers, scale, zero, spec=TensorSpec(DType.F32, shape))
    matrix, scales = _int8(s, chosen)
    right = s.spec(matrix).shape
    w = s("DequantizeLinear", matrix, scales, spec=TensorSpec(DType.F32, right), axis=1)
    return s("MatMul", again, w, spec=spec)


def _dynamic(s: OnnxBuilder, x: str, chosen: CalibratedRounding, spec: TensorSpec) -> str:
    shape, stem = s.graph.spec(s.region.operands[0]).shape, s.region.results[0]
    names = tuple(f"{stem}_{part}" for part in ("quantized", "scale", "zero"))
    s.nodes.append(Node("DynamicQuantizeLinear", (x,), names, {}, "", s.region.node.label))
    types = (TensorSpec(DType.U8, shape), TensorSpec(DType.F32, ()), TensorSpec(DType.U8, ()))
    s.specs |= dict(zip(names, types, strict=True))
    matrix, scales = _int8(s, chosen)
    sums = s("MatMulInteger", names[0], matrix, names[2], spec=TensorSpec(DType.I32, spec.shape))
    y = s("Cast", sums, spec=spec, to=DType.F32.onnx)
    return s("Mul", y, s("Mul", names[1], scales, spec=s.spec(scales)), spec=spec)


def _codes(s: OnnxBuilder, x: str, chosen: CalibratedRounding, spec: TensorSpec) -> str:
    k, n = _sizes(s.region, s.graph.weights[s.region.operands[1]])
    block = chosen.block or _BLOCK
    blocks, layout = -(-k // block), BlockQuantized(_BITS, block, "integer")

    def fitted() -> tuple[Array, Array, Array]:
        if chosen.codes is not None and chosen.scales is not None and chosen.zeros is not None:
            return chosen.codes, chosen.scales, chosen.zeros
        return quantize_blocks(_matrix(s, CalibratedRounding(0.0)), _BITS, block)

    def codes() -> Array:
        return layout.packed(np.pad(fitted()[0], ((0, -k % block), (0, 0))).T)

    def zeros() -> Array:
        rows = np.pad(fitted()[2].T.astype(np.uint8), ((0, 0), (0, blocks % 2)))
        made: Array = (rows[:, 0::2] | rows[:, 1::2] << np.uint8(4)).reshape(-1)
        return made

    def scales() -> Array:
        return np.ascontiguousarray(fitted()[1].T, np.float32).reshape(-1)

    operands = (
        x,
        _entered(s, DType.U8, codes, *layout.shape(k, n)),
        _entered(s, DType.F32, scales, n * blocks),
        _entered(s, DType.U8, zeros, n * -(-blocks // 2)),
    )
    name = f"{s.region.results[0]}_s{len(s.nodes)}"
    attrs = {"K": k, "N": n, "bits": _BITS, "block_size": block, "accuracy_level": _INT8_LEVEL}
    s.nodes.append(
        Node("MatMulNBits", operands, (name,), attrs, "com.microsoft", s.region.node.label)
    )
    s.specs[name] = spec
    return name
