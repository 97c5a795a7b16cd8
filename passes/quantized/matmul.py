"""Convert products of two dequantized values into products of integers, as attention has them.

MatMul(DequantizeLinear(a), DequantizeLinear(b))    -> FusedMatMul of integers, rescaled

Neither a nor b is constant; views may follow the DequantizeLinear.  Quantizers write this for
queries by keys and for weights by values.  Sums are exact, and multiplied by both scales at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import DType
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.int8_matmul import MAX_DEPTH, IntegerOperand
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.passes.matmul.matmul import ProductOperand, seen_through
from tracea_graph.passes.quantized.integer_matrix import left_zero
from tracea_graph.passes.quantized.scale_checks import ordinary
from tracea_graph.passes.region_helpers import fused_region, only_read_by, operand_producer
from tracea_graph.reason_codes import Code, Reason, not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["QuantizedMatmul"]


@dataclass(frozen=True)
class _Side:
    """An operand of the product: where its integers are read, and their scale."""

    seen: ProductOperand
    value: str
    integers: IntegerOperand
    scale: float
    covered: tuple[Region, ...]


class QuantizedMatmul:
    """Multiply integers if both operands of a product are computed and dequantized."""

    name = "quantized-matmul"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "MatMul" or region.fused:
            return
        seen = [seen_through(graph, v) for v in region.operands]
        sources = [operand_producer(graph, one.value, "DequantizeLinear") for one in seen]
        if None in sources or any(s and graph.weight(s.operands[0]) for s in sources):
            why = "its operands are not both dequantized, or one is constant"
            yield Miss(self.name, region.id, unsuited_reason(why))
            return
        made = self._built(graph, region, seen)
        yield Miss(self.name, region.id, made) if isinstance(made, str) else made

    def _built(
        self, graph: TileGraph, region: Region, seen: list[ProductOperand]
    ) -> Proposal | str:
        sides = list[_Side]()
        for one in seen:
            reader = one.covered[0] if one.covered else region
            side = _side(graph, one, reader)
            if isinstance(side, str):
                return side
            sides.append(side)
        a, b = sides
        scale = np.float32(a.scale) * np.float32(b.scale)
        factor = float(scale) * a.seen.factor * b.seen.factor
        params = MatMulParams(
            a.seen.perm, b.seen.perm, Chain((FULL,), (Step("mul", (0, factor)),), (1,)),
            (a.seen.heads, b.seen.heads), (a.integers, b.integers),
        )  # fmt: skip
        specs = [graph.spec(one.value) for one in sides]
        try:
            depth = params.shapes(specs)[0][-1]
            shape = params.infer(specs)[0].shape
        except ValueError as error:
            return str(error)
        if shape != graph.spec(region.results[0]).shape:
            return Reason(f"the shape of {region.results[0]!r} is not proven", Code.UNKNOWN_SHAPE)
        if isinstance(depth, int) and depth > MAX_DEPTH:
            return f"sums of {depth} products of integers may not fit 32 bits"
        covered = tuple({r.id: r for r in (*a.covered, *b.covered, region)}.values())
        new = fused_region(
            self.name, params, (a.value, b.value), region.results, graph.in_order(covered)
        )
        return Proposal(self.name, covered, (new,), step=True)


def _side(graph: TileGraph, seen: ProductOperand, reader: Region) -> _Side | str:
    """Return an operand whose integers the product can read, or why there is none.

    ``reader`` is the region that reads the dequantized value, if that has a single reader.
    """
    source = operand_producer(graph, seen.value, "DequantizeLinear")
    assert source is not None
    value, name, zero = (*source.operands, "")[:3]
    dtype, scale = graph.spec(value).dtype, graph.weight(name)
    if dtype not in (DType.U8, DType.I8):
        return Reason(f"{value!r} does not hold 8-bit integers", Code.UNSUPPORTED_DTYPE)
    if scale is None:
        return not_constant_reason(name)
    if scale.count != 1 or scale.dtype is not DType.F32:
        return f"{value!r} does not have one float32 scale"
    if not ordinary(scale):
        return f"the scale of {value!r} is zero, negative or out of range"
    point = left_zero(graph, value, zero)
    if not isinstance(point, int):
        return point or not_constant_reason(zero)
    alone = only_read_by(graph, seen.value, reader)
    return _Side(
        seen, value, IntegerOperand(dtype, point), float(scale.array().reshape(())),
        (*([source] if alone else []), *seen.covered),
    )  # fmt: skip
