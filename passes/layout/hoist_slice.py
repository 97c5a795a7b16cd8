"""Move slices before operators that work row by row, so that unread rows are not computed.

Gather(MatMul(x, w), -1, axis=1)   ->   Squeeze(MatMul(Gather(x, [-1], axis=1), w))
Slice(Add(x, y))                   ->   Add(Slice(x), Slice(y))
Slice(Reshape(Gemm(Reshape(x))))   ->   Reshape(Gemm(Reshape(Slice(x))))
Gather(Split(x))                   ->   Slice(Gather(x)) over the axis that was split

The logits of a language model's last token need only the last row of its last block; a classifier
needs only the row of its first token.  The rewrite is exact: no row depends on another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from types import MappingProxyType

import numpy as np

from tracea_graph.ir import Array, Attr, DType, Extent, Node, TensorSpec, Weight, combine
from tracea_graph.passes.layout.axis_selection import (
    AxisSelection,
    operand_axes,
    read_selection,
)
from tracea_graph.passes.layout.read_views import read_view
from tracea_graph.passes.prove_extents import equal_as_polynomials, reshape_target
from tracea_graph.passes.region_helpers import attribute, int_constant, only_read_by
from tracea_graph.reason_codes import other_readers_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["HoistSlice"]

NO_ATTRIBUTES: Mapping[str, Attr] = MappingProxyType({})


class HoistSlice:
    """Let an operator compute only those indices of an axis that all its readers select."""

    name = "hoist-slice"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        found = read_selection(graph, region)
        if found is None:
            return
        value = region.operands[0]
        source = graph.producer(value)
        if source is None:
            yield Miss(self.name, region.id, unsuited_reason(f"{value!r} is a graph input"))
            return
        readers = {u.region.id: u.region for u in graph.uses(value)}.values()
        site = _Hoist(graph, found[0], value, source, tuple(readers))
        reason = site.obstacle()
        if reason is None:
            site.name_result()
        old = site.unflattened() or site.flattened() or site.part()
        if old is None:
            why = unsuited_reason("the operator before it may mix indices of the axis")
            yield Miss(self.name, region.id, why)
            return
        if reason is not None:
            yield Miss(self.name, region.id, reason)
            return
        site.hand_out()
        yield Proposal(
            self.name, (*old, *site.readers), tuple(site.new), site.specs, site.weights,
            step=True, shared=tuple(site.shared),
        )  # fmt: skip


@dataclass
class _Hoist:
    """An operator and the selections of its result, rewritten to select before the operator.

    ``result`` names the value that replaces the selections.
    """

    graph: TileGraph
    chosen: AxisSelection
    value: str
    source: Region
    readers: tuple[Region, ...]
    result: str = ""
    new: list[Region] = field(default_factory=list)
    shared: list[Region] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)

    def obstacle(self) -> str | None:
        """Return why the whole value is needed, or None if all readers select the same indices."""
        value, found = self.value, (read_selection(self.graph, r) for r in self.readers)
        same = all(f is not None and f[0] == self.chosen for f in found)
        if self.graph.is_output(value):
            return f"{value!r} is a graph output"
        operands = [u.operand for u in self.graph.uses(value)]
        return None if same and not any(operands) else other_readers_reason(value)

    def name_result(self) -> None:
        """Choose the result's name: an existing selection that keeps the axis, or a new one."""
        kept = (name for name, axis_stays in self._readings() if axis_stays)
        self.result = next(kept, f"{self.value}_{self.chosen.name}")

    def _readings(self) -> Iterator[tuple[str, bool]]:
        """Yield the name of each selection that readers make and whether it keeps the axis."""
        for reader in self.readers:
            if (found := read_selection(self.graph, reader)) is not None:
                yield reader.results[0], found[1]

    # ---- rewrite the operator ----------------------------------------------------------

    def unflattened(self) -> tuple[Region, ...] | None:
        """Apply an operator to selected operands; return the regions that this replaces.

        None unless the operator treats the indices of the axis separately.
        """
        source, chosen = self.source, self.chosen
        axes = operand_axes(self.graph, source, chosen.axis)
        if axes is None:
            return None
        operands = list(source.operands)
        if source.op == "Reshape":
            before = chosen.moved(axes[0] or 0).spec(self.graph.spec(operands[0])).shape or ()
            target = reshape_target(before, chosen.spec(self.graph.spec(self.value)).shape or ())
            if target is None:
                return None
            operands[1] = self.ints(target)
        operands = [
            v if axis is None else self.selected(v, chosen.moved(axis))
            for v, axis in zip(operands, axes, strict=True)
        ]
        node = source.node
        attrs = {k: v for k, v in node.attrs.items() if k != "allowzero"}
        self.append(node.op, operands, self.result, attrs, node.name)
        return (source,)

    def flattened(self) -> tuple[Region, ...] | None:
        """Apply a product between Reshapes that flatten and restore its rows to selected rows.

        Returns the regions that this replaces; None for other operators.
        """
        graph, chosen = self.graph, self.chosen
        found = _flat_product(graph, self.source)
        if found is None or chosen.axis >= len(found.after) - 1:
            return None
        part = chosen.spec(TensorSpec(None, found.after)).shape or ()
        count = reduce(partial(combine, "mul"), part[:-1])
        target = reshape_target((count, part[-1]), part)
        if target is None:
            return None
        node = found.product.node
        flat, product = (f"{v}_{chosen.name}" for v in (node.inputs[0], node.outputs[0]))
        self.specs[flat] = TensorSpec(DType.F32, (count, found.width))
        self.specs[product] = TensorSpec(DType.F32, (count, part[-1]))
        rows = self.selected(found.x, chosen)
        self.append("Reshape", (rows, self.ints((-1, found.width))), flat)
        inputs = (flat, *found.product.operands[1:])
        self.append(node.op, inputs, product, node.attrs, node.name)
        self.append("Reshape", (product, self.ints(target)), self.result)
        gone = [found.product]
        if only_read_by(graph, found.product.operands[0], found.product):
            gone.append(found.flat)
        return (*gone, self.source)

    def part(self) -> tuple[Region, ...] | None:
        """Compute the selection of one result of a Split by a Slice of the selected operand.

        The Split stays, for readers of its other results.  Returns no regions to replace, or None
        if this does not apply.
        """
        chosen, graph = self.chosen, self.graph
        view = read_view(graph, self.source, self.value) if self.source.op == "Split" else None
        if view is None or graph.opset < 10:
            return None
        axis, start, end, _ = view.moves[0].ints
        if axis == chosen.axis:
            return None
        rows = self.selected(self.source.operands[0], chosen)
        inputs = (rows, *(self.ints((i,)) for i in (start, end, axis)))
        self.append("Slice", inputs, self.result)
        return ()

    def hand_out(self) -> None:
        """Write all values that the readers selected, from ``result``.

        They are copies with another name, or lack the axis if the reader removed it.
        """
        result = self.result
        self.specs[result] = self.chosen.spec(self.graph.spec(self.value))
        for other, axis_stays in self._readings():
            if other == result:
                continue
            if axis_stays:
                self.append("Identity", (result,), other)
            elif self.graph.opset < 13:
                self.append("Squeeze", (result,), other, {"axes": (self.chosen.axis,)})
            else:
                axis = self.ints((self.chosen.axis,))
                self.append("Squeeze", (result, axis), other)

    # ---- select from operands ----------------------------------------------------------

    def selected(self, value: str, chosen: AxisSelection) -> str:
        """Return the name of the selected part of an operand.

        An existing selection is used if there is one; otherwise a constant or a region is added.
        """
        for use in self.graph.uses(value):
            if use.operand or use.region.op != chosen.op or use.region in self.readers:
                continue
            if read_selection(self.graph, use.region) == (chosen, True):
                return use.region.results[0]
        name = f"{value}_{chosen.name}"
        if (weight := self.graph.weight(value)) is not None:
            self.weights[name] = _part(weight, name, chosen)
            return name
        inputs = (value, *self._where(chosen))
        attrs = {"axis": chosen.axis} if chosen.op == "Gather" else {}
        self.shared.append(_region(chosen.op, inputs, name, attrs))
        self.specs[name] = chosen.spec(self.graph.spec(value))
        return name

    def _where(self, chosen: AxisSelection) -> tuple[str, ...]:
        if chosen.op == "Gather":
            return (self.ints(chosen.ints),)
        start, end = chosen.ints
        return self.ints((start,)), self.ints((end,)), self.ints((chosen.axis,))

    # ---- writing -----------------------------------------------------------------------

    def ints(self, numbers: Sequence[int]) -> str:
        """Return the name of a 1-D int64 constant."""
        constant = int_constant(numbers)
        self.weights[constant.name] = constant
        return constant.name

    def append(
        self, op: str, inputs: Sequence[str], result: str,
        attrs: Mapping[str, Attr] = NO_ATTRIBUTES, name: str = "",
    ) -> None:  # fmt: skip
        """Append a node; new nodes have no name, since node names must be unique."""
        self.new.append(_region(op, inputs, result, attrs, name))


@dataclass(frozen=True)
class _FlatProduct:
    """Reshape(product(Reshape(x))): one result row for each row of x, of ``width`` numbers."""

    x: str
    width: int
    after: tuple[Extent, ...]
    flat: Region
    product: Region


def _flat_product(graph: TileGraph, outer: Region) -> _FlatProduct | None:
    product = graph.producer(outer.operands[0]) if outer.op == "Reshape" else None
    if product is None or product.fused or product.op not in ("Gemm", "MatMul"):
        return None
    flat = graph.producer(product.operands[0])
    if flat is None or flat.fused or flat.op not in ("Reshape", "Flatten"):
        return None
    if attribute(product, "transA", 0) or not only_read_by(graph, product.results[0], outer):
        return None
    spec = graph.spec(flat.operands[0])
    before, after = spec.shape, graph.spec(outer.results[0]).shape
    if not before or not after or spec.dtype is not DType.F32 or len(before) != len(after):
        return None
    width = before[-1]
    known = [graph.spec(v).shape for v in (product.operands[0], product.results[0])]
    if not isinstance(width, int) or any(s is None or len(s) != 2 for s in known):
        return None
    if (known[0] or ())[1] != width or (known[1] or ())[1] != after[-1]:
        return None
    vectors = (graph.spec(v).shape for v in product.operands[2:] if v)
    whole = all(s is not None and (len(s) < 2 or s[0] == 1) for s in vectors)
    same = all(equal_as_polynomials(a, b) for a, b in zip(before[:-1], after[:-1], strict=True))
    return _FlatProduct(flat.operands[0], width, after, flat, product) if whole and same else None


def _part(weight: Weight, name: str, chosen: AxisSelection) -> Weight:
    """Return the selected part of a constant."""
    load = weight.load

    def array() -> Array:
        if chosen.op == "Gather":
            return np.take(load(), chosen.ints, chosen.axis)
        return load()[(*[slice(None)] * chosen.axis, slice(*chosen.ints))].copy()

    shape = chosen.spec(weight.spec).shape or ()
    return Weight(name, weight.dtype, tuple(int(str(d)) for d in shape), array)


def _region(
    op: str, inputs: Sequence[str], result: str, attrs: Mapping[str, Attr], name: str = ""
) -> Region:
    node = Node(op, tuple(inputs), (result,), attrs, "", name)
    return Region(f"hoist-slice:{result}", op, node.inputs, node.outputs, (node,))
