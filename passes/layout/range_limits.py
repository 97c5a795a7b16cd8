"""Compute the limits of ranges from dimensions of the model's inputs.

Range(0, Gather(Shape(k), 2), 1), n·16 numbers    ->    Range(0, Gather(Shape(table), 1) · 16, 1)

A mask of as many keys as pages hold would otherwise wait for the keys, which would have to be
computed before all that attends to them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracea_graph.ir import DType, Expr, Extent, Node, TensorSpec
from tracea_graph.passes.region_helpers import input_with, int_constant
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["RangeLimit"]

_DEEPEST = 16
"""Number of operators between a Shape and a limit."""


class RangeLimit:
    """Compute the limit of a Range from an input's dimension instead of an activation's."""

    name = "range-limit"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Range":
            return
        start, limit, step = region.operands
        if not _reads_activation(graph, limit):
            yield Miss(self.name, region.id, unsuited_reason("its limit waits for nothing"))
            return
        counts = constant_number(graph, start) == 0 and constant_number(graph, step) == 1
        (size,) = graph.spec(region.results[0]).shape or ("",)
        source = _scaled(graph, size)
        if not counts or source is None or graph.spec(limit).dtype is not DType.I64:
            why = unsuited_reason("it is not known to count to a multiple of an input's size")
            yield Miss(self.name, region.id, why)
            return
        (value, axis), factor = source
        stem = f"{value}.{axis}.{factor}"
        axes, times = int_constant(axis), int_constant(factor)
        shape, dim, whole = (f"{stem}.{role}" for role in ("sizes", "size", "limit"))
        nodes = (
            Node("Shape", (value,), (shape,)), Node("Gather", (shape, axes.name), (dim,)),
            Node("Mul", (dim, times.name), (whole,)),
        )  # fmt: skip
        specs = {name: TensorSpec(DType.I64, ()) for name in (dim, whole)}
        specs[shape] = TensorSpec(DType.I64, (graph.spec(value).rank or 0,))
        shared = tuple(Region(f"range:{n.outputs[0]}", n.op, n.inputs, n.outputs, (n,))
                       for n in nodes)  # fmt: skip
        made = Node("Range", (start, whole, step), region.results)
        new = Region(f"range:{region.id}", "Range", made.inputs, made.outputs, (made,))
        yield Proposal(
            self.name, (region,), (new,), specs, {w.name: w for w in (axes, times)}, step=True,
            shared=shared,
        )  # fmt: skip


def _scaled(graph: TileGraph, size: Extent) -> tuple[tuple[str, int], int] | None:
    """Return the input and axis of whose dimension a size is a multiple, and by what.

    A loose axis may have size 1 instead of its symbol's.
    """
    if not isinstance(size, Expr) or size.op != "mul" or not isinstance(size.args[1], int):
        return None
    if size.args[0] in graph.loose:
        return None
    source = input_with(graph, size.args[0])
    return source and (source, size.args[1])


def _reads_activation(graph: TileGraph, value: str, depth: int = 0) -> bool:
    """Whether an integer is computed from the shape of a value that is no input."""
    region = graph.producer(value)
    if region is None or region.fused or depth > _DEEPEST:
        return False
    if region.op == "Shape":
        return graph.producer(region.operands[0]) is not None
    return any(_reads_activation(graph, v, depth + 1) for v in region.operands if v)
