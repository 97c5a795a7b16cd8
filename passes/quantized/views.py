"""Move conversions from integers past what only selects or rearranges elements.

DequantizeLinear(Transpose(q))       -> Transpose(DequantizeLinear(q))      so that products see it
Gather(DequantizeLinear(table), ids) -> DequantizeLinear(Gather(table, ids))   so that few rows are
"""

from __future__ import annotations

from collections.abc import Iterator

from tracea_graph.ir import Node, TensorSpec
from tracea_graph.passes.regions import only_read_by, operand_producer
from tracea_graph.reasons import other_readers, unsuited
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.region import region_of

__all__ = ["DequantizeFirst", "GatherFirst"]

_SCALES = unsuited("it has several scales, or one that is not constant")
_VIEWS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")


class DequantizeFirst:
    """Dequantize, with one scale, in front of a view of the integers."""

    name = "dequantize-first"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "DequantizeLinear":
            return
        view = graph.producer(region.operands[0])
        if view is None or view.op not in _VIEWS or view.fused or len(view.results) != 1:
            yield Miss(self.name, region.id, unsuited("what it dequantizes is no view"))
            return
        if not _one_scale(graph, region):
            yield Miss(self.name, region.id, _SCALES)
            return
        source, result = view.operands[0], region.results[0]
        if graph.spec(source).shape is None or graph.weight(source) is not None:
            why = unsuited(f"{source!r} is constant, or its rank is not known")
            yield Miss(self.name, region.id, why)
            return
        if not only_read_by(graph, view.results[0], region):
            yield Miss(self.name, region.id, other_readers(view.results[0]))
            return
        name = f"{result}_first"
        new = (
            _made(region, (source, *region.operands[1:]), name),
            _made(view, (name, *view.operands[1:]), result),
        )
        specs = {name: TensorSpec(graph.spec(result).dtype, graph.spec(source).shape)}
        yield Proposal(self.name, (view, region), new, specs, step=True)


class GatherFirst:
    """Gather the integers of a constant table and dequantize what was gathered, with one scale."""

    name = "gather-first"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Gather" or region.fused:
            return
        table = operand_producer(graph, region.operands[0], "DequantizeLinear")
        if table is None:
            yield Miss(self.name, region.id, unsuited("its table is not dequantized"))
            return
        if not _one_scale(graph, table):
            yield Miss(self.name, region.id, _SCALES)
            return
        stored = graph.weight(table.operands[0])
        if stored is None or graph.spec(region.results[0]).shape is None:
            why = unsuited(f"{table.operands[0]!r} is not constant, or a rank not known")
            yield Miss(self.name, region.id, why)
            return
        result, alone = region.results[0], only_read_by(graph, table.results[0], region)
        name = f"{result}_integers"
        new = (
            _made(region, (stored.name, *region.operands[1:]), name),
            _made(table, (name, *table.operands[1:]), result),
        )
        specs = {name: TensorSpec(stored.dtype, graph.spec(result).shape)}
        old = (table, region) if alone else (region,)
        yield Proposal(self.name, old, new, specs, step=True)


def _one_scale(graph: TileGraph, region: Region) -> bool:
    """Return whether a DequantizeLinear has one constant scale for all elements."""
    scale = graph.weight(region.operands[1])
    return not region.fused and scale is not None and scale.count == 1


def _made(region: Region, operands: tuple[str, ...], result: str) -> Region:
    """Return the operator of a region on other operands."""
    node = region.node
    made = region_of(Node(node.op, operands, (result,), node.attrs, node.domain, node.name), 0)
    return Region(f"{region.id}.{result}", made.op, made.operands, made.results, made.nodes)
