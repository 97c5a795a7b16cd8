"""Convert products of dequantized operands into products of integers.

MatMul(DequantizeLinear(x), DequantizeLinear(W))           -> FusedGemm of integers, rescaled
Gemm(DequantizeLinear(x), DequantizeLinear(W), bias)       -> the same with a bias

W is constant, with one scale or one for each column.  8-bit floats are multiplied likewise.
The bias may be a constant behind a DequantizeLinear.  Operators that quantize the result join the
product's epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tracea_graph.ir import DType
from tracea_graph.ops.chain import ROW
from tracea_graph.ops.int8_matmul import FLOATS8
from tracea_graph.passes.pointwise.bound_expressions import matrix_broadcast_kind
from tracea_graph.passes.quantized.integer_matrix import IntegerGemm, integer_gemm
from tracea_graph.passes.quantized.rescale import (
    RescaleFactor,
    covered_with,
    dequantized_row,
    dequantized_sides,
    one_scale_each,
    rescale_chain,
    rescaling,
    why_not_dequantized,
)
from tracea_graph.passes.region_helpers import attribute, fused_region
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["QuantizedGemm"]


@dataclass(frozen=True)
class QuantizedGemm:
    """Multiply integers if a product's left operand and constant matrix are both dequantized.

    8-bit floats are multiplied too if ``float8``: if the target has instructions for that.
    """

    float8: bool = False
    name: str = "quantized-gemm"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in ("MatMul", "Gemm") or region.fused:
            return
        if (sides := dequantized_sides(graph, region)) is None:
            why = unsuited_reason(
                "its left operand is not dequantized, or its right one is not from a constant"
            )
            yield Miss(self.name, region.id, why_not_dequantized(graph, region, why))
            return
        made = self._made(graph, region, *sides)
        if isinstance(made, str):
            yield Miss(self.name, region.id, made)
            return
        covered = covered_with(graph, region, sides)
        new = fused_region(self.name, made.params, made.operands, region.results, covered)
        yield Proposal(self.name, covered, (new,), weights=made.weights)

    def _made(self, graph: TileGraph, region: Region, x: Region, w: Region) -> IntegerGemm | str:
        gemm = region.op == "Gemm"
        turned = gemm and attribute(region, "transB", 0) == 1
        if gemm and (attribute(region, "transA", 0), _factors(region)) != (0, (1.0, 1.0)):
            return "its left operand is transposed, or it has factors other than 1"
        (q, scale, zero), (m, scales, zeros) = ((*r.operands, "")[:3] for r in (x, w))
        if graph.spec(q).dtype in FLOATS8 and not self.float8:
            return "only GPUs from sm_89 on have instructions for products of 8-bit floats"
        made = integer_gemm(graph, q, m, zero, zeros, turned)
        if isinstance(made, str):
            return made
        axis = 0 if turned else 1
        if (why := one_scale_each(graph, w, scales, made.params.n, axis)) is not None:
            return why
        factors = rescaling(graph, scale, scales, made.weights)
        if isinstance(factors, str):
            return factors
        bias = _bias(graph, region, made)
        return bias if isinstance(bias, str) else _finished(made, factors, bias)


def _factors(region: Region) -> tuple[float, float]:
    return float(attribute(region, "alpha", 1.0)), float(attribute(region, "beta", 1.0))  # type: ignore[arg-type]


def _bias(graph: TileGraph, region: Region, made: IntegerGemm) -> RescaleFactor | str | None:
    """Return the bias of a Gemm, None if it has none, or why it is not supported.

    A dequantized constant becomes a weight.
    """
    name = region.operands[2] if len(region.operands) > 2 else ""
    if not name:
        return None
    spec = graph.spec(name)
    if spec.dtype is not DType.F32 or spec.shape is None:
        return "its bias is not float32 of known rank"
    kind = matrix_broadcast_kind(spec, graph.spec(region.results[0]))
    row = dequantized_row(graph, name, made.weights) if kind == ROW else None
    return RescaleFactor(name, kind) if row is None else row


def _finished(
    made: IntegerGemm, factors: tuple[RescaleFactor, ...], bias: RescaleFactor | None
) -> IntegerGemm:
    """Return the product with an epilogue that rescales its sums and adds the bias."""
    params = replace(made.params, epilogue=rescale_chain(factors, bias))
    beside = (*factors, *([bias] if bias else []))
    return IntegerGemm(params, (*made.operands, *(f.name for f in beside)), made.weights)
