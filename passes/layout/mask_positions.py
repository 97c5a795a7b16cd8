"""Replace look-ups of a mask at all its positions by a view of the mask.

GatherND(mask, Concat(Expand(Range(batch)), Expand(Range(keys))))    ->    mask[:, None, None, :]
Gather(Reshape(mask, [-1]), Range(batch) * keys + Range(keys))       ->    mask[:, None, None, :]

Exporters write this for ``mask[b, k]`` over all batches and keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.ops.chain import FULL, Chain
from tracea_graph.ops.elementwise import MAX_RANK, ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.size_expressions import substitute_symbols
from tracea_graph.passes.layout.counted_positions import counting_axis, scaled_axis
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    input_with,
    operand_producer,
    with_private_producers,
)
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["MaskPositions"]

_TYPES = (DType.BOOL, DType.I32, DType.I64, DType.F32)


class MaskPositions:
    """Replace a look-up of a mask at all its positions by views of the mask.

    The positions then need not be computed.  A GatherND may look up the leading positions only.
    """

    name = "mask-positions"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or region.op not in ("Gather", "GatherND"):
            return
        found = _read_positions(graph, region) or _read_flat_positions(graph, region)
        mask, axes = found or ("", ())
        made, dtype = graph.spec(region.results[0]).shape or (), graph.spec(mask).dtype
        if not found or dtype not in _TYPES or graph.weight(mask) or len(made) > MAX_RANK:
            why = unsuited_reason("it does not look up a computed mask at all its positions")
            yield Miss(self.name, region.id, why)
            return
        slices = _leading_parts(graph, mask, tuple(made[a] for a in axes), region.id)
        if slices is None:
            why = Reason(f"no input has the sizes of {region.results[0]!r}", Code.UNKNOWN_SHAPE)
            yield Miss(self.name, region.id, why)
            return
        parts, specs = slices
        last, places = _reshaped(graph, region, axes)
        rank = graph.spec(last.results[0]).rank or 0
        ones = tuple(a for a in range(rank) if a not in places)
        chain = Chain((FULL,), (), (0,), (dtype,), (dtype,))
        params = ElementwiseParams(chain, (IndexMap((ViewMove("unsqueeze", ones),)),))
        covered = with_private_producers(
            graph, [last] if last is region else [region, last], (mask,)
        )
        value = parts[-1].results[0] if parts else mask
        new = fused_region(self.name, params, (value,), last.results, covered)
        yield Proposal(self.name, tuple(covered), (*parts, new), specs)


def _reshaped(
    graph: TileGraph, region: Region, axes: tuple[int, ...]
) -> tuple[Region, tuple[int, ...]]:
    """Return the last of the reshapes behind a region that only move axes of size 1.

    Also returns where these put ``axes``.  Returns the region itself if there are none.
    """
    sizes = [(graph.spec(region.results[0]).shape or ())[a] for a in axes]
    last, place = region, region
    while not graph.is_output(place.results[0]) and len(uses := graph.uses(place.results[0])) == 1:
        reader = uses[0].region
        if reader.fused or reader.op != "Reshape" or reader.operands[0] != place.results[0]:
            break
        place = reader
        shape = graph.spec(place.results[0]).shape or ()
        wide = tuple(a for a, size in enumerate(shape) if size != 1)
        if len(shape) <= MAX_RANK and [shape[a] for a in wide] == sizes:
            last, axes = place, wide
    return last, axes


def _leading_parts(
    graph: TileGraph, mask: str, sizes: tuple[Extent, ...], name: str
) -> tuple[list[Region], dict[str, TensorSpec]] | None:
    """Return regions that slice a mask to ``sizes``, and the specs of what they write.

    None if a size is not made of dimensions of graph inputs.
    """
    spec, parts, specs = graph.spec(mask), list[Region](), dict[str, TensorSpec]()
    shape = spec.shape or ()
    for axis, size in enumerate(sizes):
        if equal_as_polynomials(shape[axis], size):
            continue
        likes = list[str]()
        own = _over_inputs(graph, size, likes)
        if own is None:
            return None
        value, made = (parts[-1].results[0] if parts else mask), f"{name} part {axis}"
        params = LayoutParams("first", (axis,), 1 + len(likes), (own,))
        step = RegionParams.of(params, 1 + len(likes), 1)
        parts.append(fused_region("mask-positions", step, (value, *likes), (made,), ()))
        shape = (*shape[:axis], size, *shape[axis + 1 :])
        specs[made] = TensorSpec(spec.dtype, shape)
    return parts, specs


def _over_inputs(graph: TileGraph, size: Extent, likes: list[str]) -> Extent | None:
    """Write a size over dimensions of graph inputs, ``1.0`` being axis 0 of the first one.

    Adds the inputs to ``likes``; returns None if a symbol is no dimension of an input.
    """
    unknown = list[str]()

    def named(symbol: str) -> str:
        found = input_with(graph, symbol)
        if found is None:
            unknown.append(symbol)
            return symbol
        if found[0] not in likes:
            likes.append(found[0])
        return f"{1 + likes.index(found[0])}.{found[1]}"

    own = substitute_symbols(size, named)
    return None if unknown or not likes else own


def _read_positions(graph: TileGraph, region: Region) -> tuple[str, tuple[int, ...]] | None:
    """Match a GatherND that reads the leading positions of a mask along some of its axes.

    Returns the mask and, for each of its axes, the axis of the result that counts its positions;
    the other axes of the result have size 1.
    """
    if region.op != "GatherND" or attribute(region, "batch_dims", 0):
        return None
    data, made = graph.spec(region.operands[0]).shape, graph.spec(region.results[0]).shape
    joined = operand_producer(graph, region.operands[1], "Concat")
    if data is None or made is None or joined is None:
        return None
    last = len(made)
    if attribute(joined, "axis", 0) not in (-1, last) or len(joined.operands) != len(data):
        return None
    axes = [counting_axis(graph, v) for v in joined.operands]
    found = tuple(a for a in axes if a is not None and a < last)
    ones = all(made[a] == 1 for a in range(last) if a not in found)
    rising = len(found) == len(axes) and all(a < b for a, b in pairwise(found))
    return (region.operands[0], found) if ones and rising else None


def _read_flat_positions(graph: TileGraph, region: Region) -> tuple[str, tuple[int, ...]] | None:
    """Match a Gather of the leading rows of a flattened matrix, element by element.

    Returns the matrix and the axes of the result that count its rows and columns; the other axes
    of the result have size 1.
    """
    flat, places = graph.producer(region.operands[0]), graph.producer(region.operands[1])
    made, data = graph.spec(region.results[0]).shape, graph.spec(region.operands[0]).shape
    if region.op != "Gather" or attribute(region, "axis", 0) != 0 or made is None or not data:
        return None
    if flat is None or flat.fused or flat.op not in ("Reshape", "Flatten"):
        return None
    shape = graph.spec(flat.operands[0]).shape or ()
    if len(shape) != 2 or any(d != 1 for d in data[1:]) or places is None or places.op != "Add":
        return None
    rank = len(made) - len(data) + 1
    for col, scaled in (places.operands, places.operands[::-1]):
        row, own = scaled_axis(graph, scaled, shape[1]), counting_axis(graph, col)
        if row is None or own is None or row >= own or graph.spec(col).rank != rank:
            continue
        ones = all(d == 1 for a, d in enumerate(made) if a not in (row, own))
        if ones and graph.spec(scaled).rank == rank and equal_as_polynomials(made[own], shape[1]):
            return flat.operands[0], (row, own)
    return None
