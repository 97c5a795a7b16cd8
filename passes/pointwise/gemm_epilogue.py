"""Fuse elementwise ops into the product before them, whose tile is in registers or L1.

elementwise(FusedGemm(x), a, b …)      -> FusedGemm(x, …, epilogue)
elementwise(FusedMatMul(x), a, b …)    -> FusedMatMul(x, …, epilogue)
elementwise(FusedConvInteger(x), a …)  -> FusedConvInteger(x, …, epilogue)

If a product has other readers, it stays a result, beside the result of the epilogue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.chain import MAX_RESULTS
from tracea_graph.ops.matmul import MatMulParams, broadcast_kind
from tracea_graph.passes.pointwise.bound_expressions import (
    IDENTITY,
    BoundChain,
    inline_producer,
    matrix_broadcast_kind,
)
from tracea_graph.passes.pointwise.read_elementwise import fuse_into_producer
from tracea_graph.passes.region_helpers import (
    broadcasts_over_matrix,
    fused_region,
    only_read_by,
    product_producer,
    same_shape,
)
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["GemmEpilogue"]


class GemmEpilogue:
    """Fuse one elementwise operator or chain into the product before it."""

    name = "gemm-epilogue"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        return fuse_into_producer(graph, region, product_producer, self._fuse)

    def _fuse(
        self,
        graph: TileGraph,
        region: Region,
        bound_chain: BoundChain,
        value: str,
        product: Region,
    ) -> Proposal | Miss:
        result = graph.spec(region.results[0])
        if not same_shape(graph.spec(value), result):
            return Miss(self.name, region.id, f"the matmul's {value!r} is broadcast")
        if len(graph.convex((product, region))) > 2:
            why = Reason(f"another operand also depends on the product {value!r}", Code.CYCLE)
            return Miss(self.name, region.id, why)
        if _widens(graph, product, value, region):
            return Miss(
                self.name,
                region.id,
                f"{value!r} is stored in 8 bits, but its reader's result is not",
            )
        kept = [i for i, v in enumerate(product.results) if not only_read_by(graph, v, region)]
        if len(kept) >= MAX_RESULTS:
            return Miss(
                self.name,
                region.id,
                Reason(f"the product {value!r} has other readers", Code.OTHER_READERS),
            )
        if (uneven := _uneven(graph, product, bound_chain, value, result)) is not None:
            return Miss(self.name, region.id, uneven)
        before, epilogue_inputs = product.params.epilogue or IDENTITY, _extras(product)
        count = len(product.operands) - len(epilogue_inputs)
        inner = (before, (value, *epilogue_inputs))
        joined = inline_producer(bound_chain, product.results, inner, kept)
        if joined is None:
            return Miss(
                self.name,
                region.id,
                Reason("the epilogue would have too many operands", Code.TOO_MANY_OPERANDS),
            )
        chain, names = joined
        kinds = tuple(_kind(product, graph.spec(n), result) for n in names)
        chain = dataclasses.replace(chain, operands=kinds)
        params = dataclasses.replace(product.params, epilogue=chain)
        operands = (*product.operands[:count], *names[1:])
        results = (*region.results, *(product.results[i] for i in kept))
        new = fused_region(self.name, params, operands, results, (product, region))
        return Proposal(self.name, (product, region), (new,))


def _widens(graph: TileGraph, product: Region, value: str, region: Region) -> bool:
    """Return whether a convolution would store float32 instead of the integers it stores now."""
    if product.op != "FusedConvInteger" or graph.spec(value).dtype not in (DType.U8, DType.I8):
        return False
    (result,) = region.results
    return graph.spec(result).dtype is DType.F32 and not graph.is_output(result)


def _extras(product: Region) -> tuple[str, ...]:
    """Return the operands of the product's epilogue, which come last."""
    return product.operands[len(product.operands) - product.params.epilogue_inputs :]


def _uneven(
    graph: TileGraph, product: Region, bound_chain: BoundChain, value: str, result: TensorSpec
) -> str | None:
    """Return why an operand does not broadcast over the product's rows and columns, or None."""
    if isinstance(product.params, MatMulParams):
        ranks = [graph.spec(v).rank or 0 for v in product.operands[:2]]
        return "an operand of the product is a vector" if min(ranks) < 2 else None
    for other in bound_chain[1]:
        if other != value and not broadcasts_over_matrix(graph.spec(other), result):
            return f"operand {graph.spec(other)} is not full, row, column or scalar over {result}"
    return None


def _kind(product: Region, spec: TensorSpec, result: TensorSpec) -> str:
    if isinstance(product.params, MatMulParams):
        return broadcast_kind(spec.shape or (), result.shape or ())
    return matrix_broadcast_kind(spec, result)
