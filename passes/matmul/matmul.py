"""Convert products of two computed tensors, and fuse transposes and scales into them.

MatMul(a, b), Gemm(a, b, c)                   -> FusedMatMul
FusedMatMul(Transpose(a), b)                  -> FusedMatMul that reads a through strides
FusedMatMul(Transpose(Reshape(a)), b)         -> FusedMatMul that reads a as heads
FusedMatMul(a · number, b)                    -> FusedMatMul with the number in the epilogue
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from tracea_graph.ir import combine
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.passes.matmul.gemm import constant_matrix, gemm_epilogue, why_not_added
from tracea_graph.passes.pointwise.bound_expressions import IDENTITY, inline_producer
from tracea_graph.passes.region_helpers import attribute, fused_region, is_f32, operand_producer
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["MATMUL", "ProductOperand", "seen_through"]

MAX_RANK = 8


@dataclass
class ProductOperand:
    """A product's operand: the value to read, its axis order and a factor for the epilogue.

    Its last axis is split into ``heads`` before its axes are ordered, unless that is 0.  The
    product makes the regions ``covered`` superfluous.
    """

    value: str
    perm: tuple[int, ...]
    factor: float = 1.0
    heads: int = 0
    covered: list[Region] = field(default_factory=list)


def _product(op: Any, a: Any, b: Any) -> Any:
    return op.one_of(("MatMul", "Gemm"), a, b, ...)


def _check(m: Match) -> str | None:
    graph, region, (a, b) = m.graph, m.root, m.root.operands[:2]
    if constant_matrix(graph, region) is not None:
        return unsuited_reason(f"{b!r} is constant")
    if not is_f32(graph, *filter(None, region.operands)):
        return Reason("the operands are not float32", Code.UNSUPPORTED_DTYPE)
    ranks = [graph.spec(v).rank for v in (a, b)]
    if not all(r is not None and 1 <= r <= MAX_RANK for r in ranks):
        return f"the ranks of {a!r} and {b!r} are not both known"
    sources = [operand_producer(graph, v, "DequantizeLinear") for v in (a, b)]
    if sources[1] is not None and graph.weight(sources[1].operands[0]) is not None:
        return f"{b!r} is quantized, and integer kernels are faster for it"
    return why_not_added(graph, region)


def _build(m: Match) -> Rewrite | str:
    """Convert a product whose right operand is not a constant matrix."""
    graph, region = m.graph, m.root
    turns = [
        (1, 0) if region.op == "Gemm" and attribute(region, name, 0) else ()
        for name in ("transA", "transB")
    ]
    left, right = (
        seen_through(graph, value, perm)
        for value, perm in zip(region.operands[:2], turns, strict=True)
    )
    chain, epilogue_inputs = gemm_epilogue(graph, region)
    if (factor := left.factor * right.factor) != 1.0:
        scaled = Chain((FULL,), (Step("mul", (0, factor)),), (1,))
        joined = inline_producer(
            (chain or IDENTITY, ("y", *epilogue_inputs)), "y", (scaled, ("acc",))
        )
        assert joined is not None  # the operand count does not grow
        chain = joined[0]
    params = MatMulParams(left.perm, right.perm, chain, (left.heads, right.heads))
    operands = (left.value, right.value, *epilogue_inputs)
    specs = [graph.spec(v) for v in operands]
    try:
        inferred = params.infer(specs)[0].shape
    except ValueError as error:
        return str(error)
    if inferred != graph.spec(region.results[0]).shape:
        return Reason(f"the shape of {region.results[0]!r} is not proven", Code.UNKNOWN_SHAPE)
    covered = (*left.covered, *right.covered, region)
    new = fused_region("matmul", params, operands, region.results, covered)
    return Rewrite((new,), tuple({r.id: r for r in covered}.values()), step=True)


MATMUL = Rule("matmul", (_product,), _build, _check)


def seen_through(graph: TileGraph, value: str, perm: tuple[int, ...] = ()) -> ProductOperand:
    """Follow an operand back through views, and through scales that have no other reader.

    A view with other readers stays in the graph for them; the product still reads its source.
    """
    found, alone = ProductOperand(value, perm), True
    while (region := graph.producer(found.value)) is not None and not region.fused:
        alone = alone and graph.only_use(found.value) is not None
        step = None
        if not found.heads:
            step = _untranspose(graph, region, found) or _unsplit(graph, region, found)
            if step is None and alone:
                step = _unscale(graph, region, found)
        if step is None:
            break
        found = dataclasses.replace(step, covered=[region] * alone + found.covered)
    return found


def _untranspose(graph: TileGraph, region: Region, found: ProductOperand) -> ProductOperand | None:
    """Skip a Transpose that keeps the contiguous axis among the last two."""
    rank = graph.spec(region.operands[0]).rank if region.op == "Transpose" else None
    if not rank:
        return None
    stored = attribute(region, "perm", tuple(reversed(range(rank))))
    assert isinstance(stored, tuple)
    order = found.perm or tuple(range(rank))
    perm = tuple(int(stored[i]) for i in order)
    if rank - 1 not in perm[-2:]:
        return None
    whole = perm if perm != tuple(range(rank)) else ()
    return dataclasses.replace(found, value=region.operands[0], perm=whole)


def _unsplit(graph: TileGraph, region: Region, found: ProductOperand) -> ProductOperand | None:
    """Skip a Reshape that splits heads from columns."""
    if region.op != "Reshape" or not found.perm:
        return None
    before, after = (graph.spec(v).shape for v in (region.operands[0], found.value))
    if before is None or after is None or len(after) != len(before) + 1 or not before:
        return None
    heads, size = after[-2:]
    known = isinstance(heads, int) and isinstance(size, int) and 0 not in after
    if not known or before[-1] != combine("mul", heads, size) or before[:-1] != after[:-2]:
        return None
    return dataclasses.replace(found, value=region.operands[0], heads=int(str(heads)))


def _unscale(graph: TileGraph, region: Region, found: ProductOperand) -> ProductOperand | None:
    """Skip a multiplication or division by a number."""
    if region.op not in ("Mul", "Div"):
        return None
    value, other = region.operands
    factor = constant_number(graph, other)
    if factor is None and region.op == "Mul":
        value, factor = other, constant_number(graph, value)
    if not factor or graph.spec(value).shape != graph.spec(found.value).shape:
        return None
    factor = factor if region.op == "Mul" else 1 / factor
    return dataclasses.replace(found, value=value, factor=found.factor * factor)
