"""Replace slices of a concatenation by its operands.

Split(Concat(a, b))                              ->   a, b
Split(Concat(Reshape(Concat(a, b)), …, axis=2))  ->   Concat(Reshape(a), …), Concat(Reshape(b), …)

Detectors concatenate the boxes and classes of every level, then the levels, and split boxes from
classes again.  The rewrite is exact, since it only removes data movement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tracea_graph.ir import Attr, Node, TensorSpec, Weight
from tracea_graph.passes.layout.axis_selection import AxisSelection, operand_axes
from tracea_graph.passes.layout.hoist_slice import NO_ATTRIBUTES
from tracea_graph.passes.layout.read_views import read_view
from tracea_graph.passes.prove_extents import reshape_target
from tracea_graph.passes.region_helpers import attribute, int_constant, only_read_by
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["SliceOfConcat"]

_MOVERS = frozenset({"Concat", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators through which a slice can be moved."""


class SliceOfConcat:
    """Match a Split or Slice whose boundaries are those of a concatenation."""

    name = "slice-of-concat"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        cuts = [_read_cut(graph, region, v) for v in region.writes]
        known = [cut for cut in cuts if cut is not None]
        if not known or len(known) < len(cuts):
            return
        site = _Slices(graph)
        names = [
            site.part(region.operands[0], region, cut, result)
            for cut, result in zip(known, region.writes, strict=True)
        ]
        if any(name is None for name in names):
            why = unsuited_reason("a part is not made of whole operands of a concatenation")
            yield Miss(self.name, region.id, why)
            return
        renamed = {v: n for v, n in zip(region.writes, names, strict=True) if n and n != v}
        readers = {u.region.id: u.region for v in renamed for u in graph.uses(v)}.values()
        if any(graph.is_output(v) for v in renamed):
            yield Miss(
                self.name,
                region.id,
                "a part is a graph output, whose name another value would replace",
            )
            return
        if any(r.fused or r.captures for r in readers) or not (readers or site.new):
            why = unsuited_reason("it has no readers, or a reader is fused or has a body")
            yield Miss(self.name, region.id, why)
            return
        new = (*site.new, *(_reading(reader, renamed) for reader in readers))
        old = (region, *site.gone.values(), *readers)
        yield Proposal(self.name, old, new, site.specs, site.weights, step=True)


def _read_cut(graph: TileGraph, region: Region, value: str) -> AxisSelection | None:
    """Return a range of one axis of known size; None for anything else."""
    if region.op not in ("Split", "Slice") or (view := read_view(graph, region, value)) is None:
        return None
    axis, start, end, step = view.moves[0].ints
    size = (graph.spec(region.operands[0]).shape or ())[axis]
    if len(view.moves) > 1 or step != 1 or not isinstance(size, int):
        return None
    start, end, _ = slice(start, end).indices(size)
    return AxisSelection("Slice", axis, (start, end), end - start) if start < end else None


@dataclass
class _Slices:
    """Slices of values, rewritten through the operators that produced them."""

    graph: TileGraph
    new: list[Region] = field(default_factory=list)
    gone: dict[str, Region] = field(default_factory=dict)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)

    def part(self, value: str, reader: Region, cut: AxisSelection, name: str) -> str | None:
        """Return the name of a slice of ``value``, joined from operands of a concatenation.

        ``cut`` is the range; a new value is called ``name``.  ``reader`` is the region that reads
        ``value``.  None if the range does not begin and end between operands.
        """
        if name in self.specs:
            return name
        source, alone = self.graph.producer(value), only_read_by(self.graph, value, reader)
        if source is None or source.op not in _MOVERS or source.fused:
            return None
        if alone:
            self.gone[source.id] = source
        if source.op == "Concat" and self._axis(source) == cut.axis:
            return self._joined(source, cut, name)
        axes = operand_axes(self.graph, source, cut.axis) if alone else None
        if axes is None:
            return None
        operands: list[str] = []
        for operand, axis in zip(source.operands, axes, strict=True):
            moved = cut.moved(axis or 0)
            found = operand
            if axis is not None:
                found = self.part(operand, source, moved, f"{operand}_{moved.name}") or ""
            if axis is not None and not found:
                return None
            operands.append(found)
        spec = cut.spec(self.graph.spec(value))
        if source.op in ("Flatten", "Reshape"):
            return self._reshaped(operands[0], spec, name)
        return self._write(source.op, operands, name, spec, source.node.attrs)

    def _axis(self, concat: Region) -> int:
        rank = self.graph.spec(concat.results[0]).rank or 1
        return int(str(attribute(concat, "axis", 0))) % rank

    def _joined(self, concat: Region, cut: AxisSelection, name: str) -> str | None:
        """Return the operands of a concatenation between two of its boundaries."""
        (start, end), place, found = cut.ints, 0, 0
        inside: list[str] = []
        for operand in concat.operands:
            shape = self.graph.spec(operand).shape
            size = shape[cut.axis] if shape else None
            if not isinstance(size, int):
                break
            if start <= place and place + size <= end and size:
                inside.append(operand)
                found += size
            place += size
        if found != cut.count:
            return None
        if len(inside) == 1:
            return inside[0]
        spec = cut.spec(self.graph.spec(concat.results[0]))
        return self._write("Concat", inside, name, spec, {"axis": cut.axis})

    def _reshaped(self, value: str, spec: TensorSpec, name: str) -> str | None:
        before = (self.specs.get(value) or self.graph.spec(value)).shape or ()
        if (target := reshape_target(before, spec.shape or ())) is None:
            return None
        constant = int_constant(target)
        self.weights[constant.name] = constant
        return self._write("Reshape", (value, constant.name), name, spec)

    def _write(
        self, op: str, inputs: Sequence[str], result: str, spec: TensorSpec,
        attrs: Mapping[str, Attr] = NO_ATTRIBUTES,
    ) -> str:  # fmt: skip
        node = Node(op, tuple(inputs), (result,), attrs)
        self.new.append(
            Region(f"slice-of-concat:{result}", op, node.inputs, node.outputs, (node,))
        )
        self.specs[result] = spec
        return result


def _reading(reader: Region, renamed: Mapping[str, str]) -> Region:
    """Return an operator that reads other values."""
    operands = tuple(renamed.get(v, v) for v in reader.operands)
    node = replace(reader.node, inputs=operands, source=None)
    return Region(
        f"slice-of-concat:{reader.writes[0]}", reader.op, operands, reader.results, (node,)
    )
