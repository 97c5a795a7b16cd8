"""Read integers that count the positions along one axis."""

from __future__ import annotations

from tracea_graph.ir import Extent
from tracea_graph.passes.prove_extents import equal_as_polynomials, scalar_extent, squeeze_axes
from tracea_graph.passes.region_helpers import operand_producer
from tracea_graph.rewrite import constant_number
from tracea_graph.ttg import TileGraph

__all__ = ["counting_axis", "scaled_axis"]

_DEEPEST = 12


def scaled_axis(graph: TileGraph, value: str, step: Extent) -> int | None:
    """Return the axis along which a value is 0, ``step``, 2 · ``step`` …, whatever the others."""
    product = operand_producer(graph, value, "Mul")
    for count, factor in (product.operands, product.operands[::-1]) if product else ():
        number = scalar_extent(graph, factor)
        if number is not None and equal_as_polynomials(number, step):
            same = graph.spec(count).rank == graph.spec(value).rank
            return counting_axis(graph, count) if same else None
    return None


def counting_axis(graph: TileGraph, value: str, depth: int = 0) -> int | None:
    """Return the axis along which a value is 0, 1, 2 …, whatever the other indices."""
    region, shape = graph.producer(value), graph.spec(value).shape
    if region is None or region.fused or shape is None or depth > _DEEPEST:
        return None
    if region.op == "Range":
        start, step = (constant_number(graph, region.operands[i]) for i in (0, 2))
        return 0 if (start, step) == (0, 1) else None
    if region.op not in ("Unsqueeze", "Expand", "Cast", "Identity"):
        return None
    axis = counting_axis(graph, region.operands[0], depth + 1)
    before = graph.spec(region.operands[0]).shape
    if axis is None or before is None:
        return None
    if region.op == "Unsqueeze":
        given = squeeze_axes(graph, value)
        if given is None:
            return None
        kept = [a for a in range(len(shape)) if a not in {g % len(shape) for g in given}]
        return kept[axis]
    place = axis + len(shape) - len(before)
    return (
        place if before[axis] != 1 and equal_as_polynomials(before[axis], shape[place]) else None
    )
