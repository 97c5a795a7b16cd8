"""Move a gather of one row per item before operators that work row by row.

Gather(Flatten(op(x, y)), i)   ->   op(Gather(Flatten(x), i), Gather(Flatten(y), i))
GatherND(op(x, y), i)          ->   op(GatherND(x, i), GatherND(y, i))

A text encoder returns the row of each text's last token, whose position is an input.  Rows are
those of ``[batch, sequence, columns]``; attention mixes them and is not crossed.  The rewrite is
exact for all positions, since no row depends on another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tracea_graph.ir import Node, TensorSpec, Weight, combine
from tracea_graph.passes.layout.axis_selection import BY_ROW, NORMS, operand_axes
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import attribute, int_constant, only_read_by
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["HoistGather"]


class HoistGather:
    """Compute an operator only for the one row of each item that a gather reads."""

    name = "hoist-gather"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        pick = _read_pick(graph, region)
        if pick is None:
            return
        source = graph.producer(pick.value)
        if source is None:
            yield Miss(self.name, region.id, unsuited_reason(f"{pick.value!r} is a graph input"))
            return
        by_row = _row_operands(graph, source)
        if by_row is None:
            why = unsuited_reason("the operator before it may mix rows")
            yield Miss(self.name, region.id, why)
            return
        if graph.is_output(pick.value) or not only_read_by(graph, pick.value, pick.regions[0]):
            yield Miss(
                self.name,
                region.id,
                Reason(f"{pick.value!r} has other readers or is an output", Code.OTHER_READERS),
            )
            return
        new = _Written(graph, pick)
        operands = tuple(
            new.picked(v) if rows else v for v, rows in zip(source.operands, by_row, strict=True)
        )
        attrs = {**source.node.attrs, **({"axis": -1} if source.op in NORMS else {})}
        node = Node(source.op, operands, region.results, attrs, "", source.node.name)
        yield Proposal(
            self.name, (source, *pick.regions), (_region(node),), new.specs, new.weights,
            step=True, shared=tuple(new.regions),
        )  # fmt: skip


@dataclass(frozen=True)
class _Pick:
    """A gather of rows of ``value`` by ``index``; the first of ``regions`` reads the value."""

    op: str
    value: str
    index: str
    regions: tuple[Region, ...]


def _read_pick(graph: TileGraph, region: Region) -> _Pick | None:
    """Match a gather of one row per item; return None for anything else."""
    if region.fused or region.op not in ("Gather", "GatherND"):
        return None
    flat, index = region.operands
    regions: tuple[Region, ...] = (region,)
    value = flat
    if region.op == "Gather":
        before = graph.producer(flat)
        if before is None or before.fused or before.op not in ("Flatten", "Reshape"):
            return None
        if attribute(region, "axis", 0) != 0 or not only_read_by(graph, flat, region):
            return None
        regions, value = (before, region), before.operands[0]
    elif attribute(region, "batch_dims", 0):
        return None
    x, places = graph.spec(value).shape, graph.spec(index).shape
    if x is None or len(x) != 3 or x[1] == 1 or not isinstance(x[2], int) or not places:
        return None
    if region.op == "Gather" and (graph.spec(flat).shape or ())[1:] != x[2:]:
        return None
    if places[1:] != ((2,) if region.op == "GatherND" else ()):
        return None
    return (
        _Pick(region.op, value, index, regions) if equal_as_polynomials(places[0], x[0]) else None
    )


def _row_operands(graph: TileGraph, source: Region) -> tuple[bool, ...] | None:
    """Return, for each operand, whether it has the result's rows; None if rows may be mixed."""
    if source.op not in BY_ROW:
        return None
    items, rows = (operand_axes(graph, source, axis) for axis in (0, 1))
    if items is None or rows is None:
        return None
    found = []
    for value, places in zip(source.operands, zip(items, rows, strict=True), strict=True):
        shape = graph.spec(value).shape or ()
        whole = places == (0, 1) and len(shape) == 3 and isinstance(shape[2], int)
        if not whole and (places != (None, None) or len(shape) > 2):
            return None
        found.append(whole)
    return tuple(found) if any(found) else None


@dataclass
class _Written:
    """Gathered rows of further values; a value's rows are gathered once for all operators."""

    graph: TileGraph
    pick: _Pick
    regions: list[Region] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)

    def picked(self, value: str) -> str:
        spec, index = self.graph.spec(value), self.pick.index
        batch, rows, columns = spec.shape or ()
        count = (self.graph.spec(index).shape or ())[0]
        name = f"{value}_rows_{index}"
        attrs: dict[str, int] = {}
        if self.pick.op == "Gather":
            flat = f"{name}_flat"
            target = int_constant((-1, int(str(columns))))
            self.weights[target.name] = target
            self._write("Reshape", (value, target.name), flat)
            self.specs[flat] = TensorSpec(spec.dtype, (combine("mul", batch, rows), columns))
            value, attrs = flat, {"axis": 0}
        self._write(self.pick.op, (value, index), name, **attrs)
        self.specs[name] = TensorSpec(spec.dtype, (count, columns))
        return name

    def _write(self, op: str, inputs: tuple[str, ...], result: str, **attrs: int) -> None:
        self.regions.append(_region(Node(op, inputs, (result,), attrs)))


def _region(node: Node) -> Region:
    result = node.outputs[0]
    return Region(f"hoist-gather:{result}", node.op, node.inputs, node.outputs, (node,))
