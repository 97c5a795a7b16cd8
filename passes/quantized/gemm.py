"""Convert products of dequantized operands into products of integers.

MatMul(DequantizeLinear(x), DequantizeLinear(W))           -> FusedGemm of integers, rescaled
Gemm(DequantizeLinear(x), DequantizeLinear(W), bias)       -> the same with a bias
MatMul(Mul(Cast(x), scales), DequantizeLinear(W))          -> the same of 8-bit floats

W is constant, with one scale or one for each column.  8-bit floats are multiplied likewise, also
if each row of x has a computed scale (``scaled_rows.py``).
The bias may be a constant behind a DequantizeLinear.  Operators that quantize the result join the
product's epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tracea_graph.ir import DType
from tracea_graph.ops.chain import FLOATS8, ROW, SCALAR
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
from tracea_graph.passes.quantized.scale_checks import ordinary
from tracea_graph.passes.quantized.scaled_rows import ScaledRows, scaled_rows
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    only_read_by,
    operand_producer,
)
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
        if rows := _rows_of_float8(graph, region):
            yield self._by_rows(graph, region, *rows)
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

    def _by_rows(
        self, graph: TileGraph, region: Region, rows: ScaledRows, w: Region
    ) -> Proposal | Miss:
        """Convert a product of rows of 8-bit floats, which have a scale each or none."""
        made = self._product(graph, region, (rows.codes, ""), w)
        if isinstance(made, str):
            return Miss(self.name, region.id, made)
        right = graph.weights[w.operands[1]]
        if not ordinary(right):
            return Miss(self.name, region.id, "a scale is zero, negative or out of range")
        kind = matrix_broadcast_kind(graph.spec(rows.scales), graph.spec(region.results[0]))
        factors = (RescaleFactor(rows.scales, kind),) if rows.scales else ()
        columns = RescaleFactor(w.operands[1], SCALAR if right.count == 1 else ROW)
        bias = _bias(graph, region, made)
        if isinstance(bias, str):
            return Miss(self.name, region.id, bias)
        made = _finished(made, (*factors, columns), bias)
        covered = (*_converting(graph, rows, region), *covered_with(graph, region, (w,)))
        new = fused_region(self.name, made.params, made.operands, region.results, covered)
        return Proposal(self.name, covered, (new,), weights=made.weights)

    def _made(self, graph: TileGraph, region: Region, x: Region, w: Region) -> IntegerGemm | str:
        (q, scale, zero), scales = (*x.operands, "")[:3], w.operands[1]
        made = self._product(graph, region, (q, zero), w)
        if isinstance(made, str):
            return made
        factors = rescaling(graph, scale, scales, made.weights)
        if isinstance(factors, str):
            return factors
        bias = _bias(graph, region, made)
        return bias if isinstance(bias, str) else _finished(made, factors, bias)

    def _product(
        self, graph: TileGraph, region: Region, x: tuple[str, str], w: Region
    ) -> IntegerGemm | str:
        """Return the product without scales, or why it stays; ``x`` are codes and zero point."""
        gemm = region.op == "Gemm"
        turned = gemm and attribute(region, "transB", 0) == 1
        if gemm and (attribute(region, "transA", 0), _factors(region)) != (0, (1.0, 1.0)):
            return "its left operand is transposed, or it has factors other than 1"
        (q, zero), (m, scales, zeros) = x, (*w.operands, "")[:3]
        if graph.spec(q).dtype in FLOATS8 and not self.float8:
            return "only GPUs from sm_89 on have instructions for products of 8-bit floats"
        made = integer_gemm(graph, q, m, zero, zeros, turned)
        if isinstance(made, str):
            return made
        axis = 0 if turned else 1
        why = one_scale_each(graph, w, scales, made.params.n, axis)
        return made if why is None else why


def _rows_of_float8(graph: TileGraph, region: Region) -> tuple[ScaledRows, Region] | None:
    """Return the rows of 8-bit floats and the dequantized constant that a product multiplies."""
    rows = scaled_rows(graph, region.operands[0])
    w = operand_producer(graph, region.operands[1], "DequantizeLinear")
    if rows is None or w is None or graph.weight(w.operands[0]) is None:
        return None
    return rows, w


def _converting(graph: TileGraph, rows: ScaledRows, region: Region) -> tuple[Region, ...]:
    """Return the regions that convert ``rows`` for ``region`` alone, in graph order."""
    found, reader = list[Region](), region
    for one in reversed(rows.regions):
        if not only_read_by(graph, one.results[0], reader):
            break
        found.insert(0, one)
        reader = one
    return tuple(found)


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
