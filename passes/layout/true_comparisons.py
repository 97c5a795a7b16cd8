"""Drop conditions that hold everywhere from the masks that they are part of.

And(Range(0, n) >= 0, mask)    ->    mask, expanded to the shape of both

Exporters compare the positions of queries with 0, where other models compare them with those of
keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracea_graph.ir import DType, Extent
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.passes.layout.iota import read_iota
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import fused_region, input_with
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["TrueComparisons"]

_AT_LEAST = {"GreaterOrEqual": (0, 0), "Greater": (0, 1), "LessOrEqual": (1, 0), "Less": (1, 1)}
"""For each comparison, the operand that is at least the other one plus the second number."""


class TrueComparisons:
    """Replace a conjunction by its only condition that may be false."""

    name = "true-comparisons"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not isinstance(region.params, ElementwiseParams):
            return
        made, found = graph.spec(region.results[0]).shape, _conditions(region)
        open_conditions = [v for v in found if not _holds(graph, v)]
        if len(open_conditions) != 1 or made is None:
            why = unsuited_reason("it is no conjunction with one condition that may be false")
            yield Miss(self.name, region.id, why)
            return
        (value,) = open_conditions
        likes = list[str]()
        sizes = [
            _size(graph, value, axis - len(made), size, likes) for axis, size in enumerate(made)
        ]
        known = tuple(s for s in sizes if s is not None)
        if len(known) < len(made):
            why = Reason(f"no input has the sizes of {region.results[0]!r}", Code.UNKNOWN_SHAPE)
            yield Miss(self.name, region.id, why)
            return
        layout = LayoutParams("expand", (), 1 + len(likes), known)
        step = RegionParams.of(layout, 1 + len(likes), 1)
        new = fused_region(self.name, step, (value, *likes), region.results, [region])
        yield Proposal(self.name, (region,), (new,))


def _size(
    graph: TileGraph, value: str, axis: int, size: Extent, likes: list[str]
) -> Extent | None:
    """Return a size as one of the operands ``value`` and ``likes``, to which it may add an input.

    ``axis`` counts from the end.  None if neither ``value`` nor an input has the size.
    """
    shape = graph.spec(value).shape or ()
    if -axis <= len(shape) and equal_as_polynomials(shape[axis], size):
        return size if isinstance(size, int) else f"0.{len(shape) + axis}"
    if isinstance(size, int):
        return size
    found = input_with(graph, size)
    if found is None:
        return None
    if found[0] not in likes:
        likes.append(found[0])
    return f"{1 + likes.index(found[0])}.{found[1]}"


def _conditions(region: Region) -> tuple[str, ...]:
    """Return the values whose conjunction a region computes; none if it computes anything else."""
    params = region.params
    if not isinstance(params, ElementwiseParams) or params.moves or len(region.results) != 1:
        return ()
    only_and = {step.op for step in params.chain.steps} == {"and"}
    return region.operands if only_and else ()


def _holds(graph: TileGraph, value: str) -> bool:
    """Return whether a condition holds everywhere: a constant, or a bound of what counts up."""
    weight, region = graph.weight(value), graph.producer(value)
    if weight is not None:
        return weight.dtype is DType.BOOL and weight.count == 1 and bool(np.all(weight.array()))
    if region is None:
        return False
    if conditions := _conditions(region):
        return all(_holds(graph, v) for v in conditions)
    if region.fused or region.op not in _AT_LEAST:
        return False
    side, more = _AT_LEAST[region.op]
    number = constant_number(graph, region.operands[1 - side])
    found = read_iota(graph, region.operands[side])
    if number is None or isinstance(found, Reason) or any(s < 0 for s in found[0].steps):
        return False
    return found[0].start >= number + more
