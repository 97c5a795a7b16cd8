"""Fuse elementwise ops into the matmul before them, across a transpose of its result.

elementwise(Transpose(FusedGemm(x)), y)  ->  Transpose(FusedGemm(x, Transpose⁻¹(y), epilogue))
elementwise(FusedGemm(x), Transpose(y))  ->  FusedGemm(x, Transpose(y), epilogue)

Kernels read and write images with channels last, as matmuls do, so these transposes move no data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracea_graph.ir import TensorSpec
from tracea_graph.ops.chain import FULL
from tracea_graph.ops.elementwise import IDENTITY, ElementwiseParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.passes.pointwise.bound_expressions import inline_producer
from tracea_graph.passes.region_helpers import fused_region, gemm_producer, only_read_by
from tracea_graph.reason_codes import Code, Reason, other_readers_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["TransposedEpilogue"]

_FIRST, _LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations of an image's axes to channels first, and to channels last."""


class TransposedEpilogue:
    """Fuse an elementwise op on images into the matmul that computes one of its operands."""

    name = "transposed-epilogue"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, ElementwiseParams) or params.moves_only:
            return
        if params.target or len(region.results) != 1:
            return
        if not any(params.views):
            yield Miss(self.name, region.id, unsuited_reason("it reads no transposed operand"))
            return
        for value, view in zip(region.operands, params.views, strict=True):
            product = gemm_producer(graph, value) if _perm(view) in ((), _FIRST) else None
            if product is not None and isinstance(product.params, GemmParams):
                yield self._fuse(graph, region, value, product)
                return

    def _fuse(
        self, graph: TileGraph, region: Region, value: str, product: Region
    ) -> Proposal | Miss:
        outer, inner = region.params, product.params
        assert isinstance(outer, ElementwiseParams) and isinstance(inner, GemmParams)
        if not only_read_by(graph, value, region) or region.operands.count(value) > 1:
            return Miss(self.name, region.id, other_readers_reason(value))
        if inner.splits or len(product.results) > 1:
            return Miss(
                self.name, region.id, unsuited_reason(f"{value!r} is one of several results")
            )
        if len(graph.convex((product, region))) > 2:
            why = Reason(f"another operand also depends on the product {value!r}", Code.CYCLE)
            return Miss(self.name, region.id, why)
        spec, result = graph.spec(value), region.results[0]
        first = _perm(outer.views[region.operands.index(value)]) == _FIRST
        names, moved, specs = list[str](), list[Region](), dict[str, TensorSpec]()
        for name, view in zip(region.operands, outer.views, strict=True):
            perm, own = _perm(view), graph.spec(name)
            if perm == (_FIRST if first else ()) and own.shape == spec.shape:
                names.append(name)
            elif (
                perm == (() if first else _LAST)
                and view.shape(own.shape or ()) == graph.spec(result).shape
            ):
                last = f"{name}_last_{result}"
                specs[last] = TensorSpec(own.dtype, spec.shape)
                moved.append(self._transpose(name, last, _LAST, region))
                names.append(last)
            else:
                return Miss(
                    self.name,
                    region.id,
                    unsuited_reason(f"{name!r} does not have the shape of the result"),
                )
        before = inner.epilogue or IDENTITY
        extras = product.operands[len(product.operands) - inner.epilogue_inputs :]
        plain = replace(outer.chain, operands=(FULL,) * len(names))
        joined = inline_producer(
            (plain, tuple(names)), product.results, (before, (value, *extras))
        )
        if joined is None:
            why = Reason("the epilogue would have too many operands", Code.TOO_MANY_OPERANDS)
            return Miss(self.name, region.id, why)
        chain, read = joined
        count = len(product.operands) - len(extras)
        params = replace(inner, epilogue=chain)
        operands = (*product.operands[:count], *read[1:])
        if not first:
            new = fused_region(self.name, params, operands, region.results, (product, region))
            return Proposal(self.name, (product, region), (*moved, new), specs, step=True)
        made = f"{result}_last"
        specs[made] = TensorSpec(graph.spec(result).dtype, spec.shape)
        new = fused_region(self.name, params, operands, (made,), (product, region))
        back = self._transpose(made, result, _FIRST, region)
        return Proposal(self.name, (product, region), (*moved, new, back), specs, step=True)

    def _transpose(
        self, value: str, result: str, perm: tuple[int, ...], covered: Region
    ) -> Region:
        params = ElementwiseParams(IDENTITY, (IndexMap((ViewMove("transpose", perm),)),))
        return fused_region(self.name, params, (value,), (result,), (covered,))


def _perm(view: IndexMap) -> tuple[int, ...] | None:
    """Return the permutation of a map: () if it moves nothing, None if it is no transpose."""
    moves = view.moves
    if not moves:
        return ()
    return tuple(moves[0].ints) if len(moves) == 1 and moves[0].op == "transpose" else None
