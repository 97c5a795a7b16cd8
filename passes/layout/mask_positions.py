"""Read look-ups of a mask at all its positions as a view of the mask.

GatherND(mask, Concat(Expand(Range(batch)), Expand(Range(keys))))    ->    mask[:, None, None, :]

Exporters write this for ``mask[b, k]`` over all batches and keys.
"""

from __future__ import annotations

from itertools import pairwise

from tracea_graph.passes.prove_extents import equal_as_polynomials, squeeze_axes
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.rewrite import constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["read_mask_positions"]

_DEEPEST = 12


def read_mask_positions(graph: TileGraph, region: Region) -> tuple[int, ...] | None:
    """Match a GatherND that reads the leading positions of a mask along some of its axes.

    Returns, for each axis of the mask, the axis of the result that counts its positions; the other
    axes of the result have size 1.  None for any other region.
    """
    if region.fused or region.op != "GatherND" or attribute(region, "batch_dims", 0):
        return None
    data, made = graph.spec(region.operands[0]).shape, graph.spec(region.results[0]).shape
    joined = graph.producer(region.operands[1])
    if data is None or made is None or joined is None or joined.op != "Concat":
        return None
    last = len(made)
    if attribute(joined, "axis", 0) not in (-1, last) or len(joined.operands) != len(data):
        return None
    axes = [_counting_axis(graph, v) for v in joined.operands]
    found = tuple(a for a in axes if a is not None and a < last)
    ones = all(made[a] == 1 for a in range(last) if a not in found)
    rising = len(found) == len(axes) and all(a < b for a, b in pairwise(found))
    return found if ones and rising else None


def _counting_axis(graph: TileGraph, value: str, depth: int = 0) -> int | None:
    """Return the axis along which a value is 0, 1, 2 …, whatever the other indices."""
    region, shape = graph.producer(value), graph.spec(value).shape
    if region is None or region.fused or shape is None or depth > _DEEPEST:
        return None
    if region.op == "Range":
        start, step = (constant_number(graph, region.operands[i]) for i in (0, 2))
        return 0 if (start, step) == (0, 1) else None
    if region.op not in ("Unsqueeze", "Expand", "Cast", "Identity"):
        return None
    axis = _counting_axis(graph, region.operands[0], depth + 1)
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
