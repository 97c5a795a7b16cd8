"""Fuse views into elementwise readers, or make them one strided copy.

elementwise(Transpose(x), y)                 -> FusedElementwise reading x through strides
Transpose(Slice(x)), Reshape(Transpose(x))   -> FusedElementwise that only copies

Every reader of a view reads the viewed value in place: no copy is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.passes.layout.read_views import RESHAPES
from tracea_graph.passes.pointwise.compose_elementwise import (
    ElementwiseOperation,
    fuse_producer,
    read_operation,
    results_fit,
)
from tracea_graph.passes.prove_extents import reshape_target
from tracea_graph.passes.region_helpers import attribute, fused_region, only_read_by
from tracea_graph.reason_codes import Code, Reason, other_readers_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["CHEAP", "FuseReshape", "FuseView", "StridedCopy", "why_not_fused"]

CHEAP = 4
"""Vector instructions per element up to which recomputing a value is cheap."""
_CHEAP_REPEATED = 8
"""Cost up to which recomputing a broadcast value is cheap."""


def why_not_fused(
    graph: TileGraph,
    outer: ElementwiseOperation,
    value: str,
    inner: ElementwiseOperation,
    alone: bool,
) -> str | None:
    """Return why ``outer`` should not compute its operand ``value`` by ``inner`` itself, or None.

    ``alone`` says that ``outer`` is the only reader of the value.
    """
    flops = inner.params.flops
    if not alone and (flops > CHEAP or _joins(graph, inner)):
        return other_readers_reason(value)
    if flops > _CHEAP_REPEATED and not _same_size(graph, outer, value):
        return f"{value!r} is broadcast"
    return None


def _joins(graph: TileGraph, inner: ElementwiseOperation) -> bool:
    """Return whether an op reads several tensors as large as its result.

    Reading its result is then faster than recomputing it.
    """
    common = inner.common(graph)
    maps = zip(inner.names, inner.params.views, strict=True)
    return sum(m.shape(graph.spec(name).shape or ()) == common for name, m in maps) > 1


def _same_size(graph: TileGraph, outer: ElementwiseOperation, value: str) -> bool:
    """Return whether every element of ``value`` is read once."""
    maps = [m for n, m in zip(outer.names, outer.params.views, strict=True) if n == value]
    seen = maps[0].shape(graph.spec(value).shape or ())
    return len(maps) == 1 and seen == outer.common(graph)


def _left_to_products(graph: TileGraph, move: Region) -> bool:
    """Return whether only products read a transposed value, directly or after a scaling.

    ONNX Runtime's MatMul reads a transposed matrix in place, even if it is scaled first.
    """
    perm = attribute(move, "perm", ())
    rank = len(perm) if isinstance(perm, tuple) else 0
    if move.op != "Transpose" or rank < 2:
        return False
    swapped = perm == (*range(rank - 2), rank - 1, rank - 2)
    return swapped and _reaches_products(graph, move.results[0])


def _reaches_products(graph: TileGraph, value: str, further: bool = True) -> bool:
    readers = [u.region for u in graph.uses(value)]
    return bool(readers) and all(
        r.op == "MatMul"
        or (
            further
            and r.op == "FusedElementwise"
            and _reaches_products(graph, r.results[0], False)
        )
        for r in readers
    )


_PRODUCT_READS_IT = "ONNX Runtime's MatMul reads a transposed matrix in place"


class FuseView:
    """Let an elementwise op read the operand of a view, or compute a cheap operand itself."""

    name = "fuse-view"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        outer = read_operation(graph, region, region.results[0]) if region.results else None
        if outer is None or len(region.results) != 1:
            return
        wanted = [graph.spec(region.results[0])]
        for value in dict.fromkeys(outer.names):
            first = graph.producer(value)
            inner = read_operation(graph, first, value) if first is not None else None
            if first is None or inner is None:
                continue
            if _left_to_products(graph, first):
                yield Miss(self.name, region.id, _PRODUCT_READS_IT)
                continue
            alone = len(first.results) == 1 and only_read_by(graph, value, region)
            if region.op in RESHAPES and (first.op in RESHAPES or not alone):
                continue
            if (reason := why_not_fused(graph, outer, value, inner, alone)) is not None:
                yield Miss(self.name, region.id, reason)
                continue
            joined = fuse_producer(graph, outer, value, inner)
            if joined is None:
                yield Miss(
                    self.name,
                    region.id,
                    Reason("the chain would have too many operands", Code.TOO_MANY_OPERANDS),
                )
                continue
            if not results_fit(graph, joined.params, joined.names, wanted):
                yield Miss(
                    self.name,
                    region.id,
                    f"it reads {value!r} in an order that strides cannot express",
                )
                continue
            covered = (first, region) if alone else (region,)
            new = fused_region(self.name, joined.params, joined.names, region.results, covered)
            yield Proposal(self.name, covered, (new,))


class FuseReshape:
    """Fuse a reshape into the elementwise op or concatenation before it; no data moves."""

    name = "fuse-reshape"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op not in RESHAPES or region.fused or not region.operands:
            return
        value = region.operands[0]
        first, shape = graph.producer(value), graph.spec(region.results[0]).shape
        if first is None or shape is None or not only_read_by(graph, value, region):
            why = unsuited_reason(f"{value!r} is a graph input or has other readers")
            yield Miss(self.name, region.id, why)
            return
        if len(first.results) != 1:
            yield Miss(
                self.name,
                region.id,
                unsuited_reason(f"the operator that writes {value!r} has other results"),
            )
            return
        if isinstance(first.params, ConcatParams):
            params: ElementwiseParams | ConcatParams = first.params
            names: Sequence[str] = first.operands
        elif (
            first.op not in RESHAPES and (inner := read_operation(graph, first, value)) is not None
        ):
            params, names = inner.params, inner.names
        else:
            why = unsuited_reason(
                f"neither an elementwise op nor a concatenation writes {value!r}"
            )
            yield Miss(self.name, region.id, why)
            return
        common = params.common([graph.spec(n).shape or () for n in names])
        if (target := reshape_target(common, shape)) is None:
            yield Miss(
                self.name,
                region.id,
                Reason(f"the shape of {value!r} is not known", Code.UNKNOWN_SHAPE),
            )
            return
        params = replace(params, target=target)
        if not results_fit(graph, params, names, [graph.spec(region.results[0])]):
            yield Miss(
                self.name,
                region.id,
                Reason(f"the shape of {value!r} is not known", Code.UNKNOWN_SHAPE),
            )
            return
        new = fused_region(self.name, params, names, region.results, (first, region))
        yield Proposal(self.name, (first, region), (new,))


class StridedCopy:
    """Convert Transpose, Slice, Expand and other copies to one strided copy."""

    name = "strided-copy"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or region.op in RESHAPES or len(region.results) != 1:
            return
        op = read_operation(graph, region, region.results[0])
        if op is None or not op.params.moves_only:
            return
        if _left_to_products(graph, region):
            yield Miss(self.name, region.id, _PRODUCT_READS_IT)
            return
        if not results_fit(graph, op.params, op.names, [graph.spec(region.results[0])]):
            yield Miss(
                self.name,
                region.id,
                Reason("the shape of its result is not determined", Code.UNKNOWN_SHAPE),
            )
            return
        new = fused_region(self.name, op.params, op.names, region.results, [region])
        # a step: the kernel may gain nothing alone but joins its neighbours in a program
        yield Proposal(self.name, (region,), (new,), step=True)
