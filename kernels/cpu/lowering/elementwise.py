"""Lower elementwise ops: chains, data movement, and concatenations of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.cpu.lowering.region_writer import RegionWriter, Shape, Slot
from tracea_graph.kernels.cpu.lowering.row_ops import with_bf16_stores
from tracea_graph.kernels.program import View
from tracea_graph.ops.chain import COL, FULL, Chain
from tracea_graph.ops.concat import ConcatParams, ConcatPart
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.index_map import IndexMap, StridedLayout
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.size_expressions import resolve_extent

__all__ = [
    "chain_call",
    "columns_of",
    "lower_elementwise",
    "lower_grid",
    "part_views",
    "write_part",
]


def lower_elementwise(
    w: RegionWriter, p: ElementwiseParams, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    full = p.common([s.shape for s in operands])
    chain, slots = with_bf16_stores(p.chain, results)
    p = replace(p, chain=chain or p.chain)
    _write_chain(w, p, operands, [View.dense(slot.buffer, full) for slot in slots])


def part_views(p: ConcatParams, shapes: Sequence[Shape], result: Slot) -> list[View]:
    """Return the view of each part within ``result``; ``shapes`` are the operands' shapes."""
    return _stretches(p, shapes, View.dense(result.buffer, p.common(shapes)))


def write_part(
    w: RegionWriter, part: ConcatPart, operands: Sequence[Slot], destination: View
) -> None:
    """Write one part of a concatenation to ``destination``; ``operands`` are those of the part."""
    if not isinstance(part.params, ConcatParams):
        _write_chain(w, part.params, operands, [destination])
        return
    inner = _stretches(part.params, [s.shape for s in operands], destination)
    for within, stretch in zip(part.params.parts, inner, strict=True):
        write_part(w, within, [operands[i] for i in within.operands], stretch)


def chain_call(
    w: RegionWriter, chain: Chain, operands: Sequence[Slot], results: Sequence[Slot]
) -> None:
    """Emit a chain over slots that broadcast to the results' shape."""
    _write_chain(w, ElementwiseParams(chain), operands, [slot.view for slot in results])


def lower_grid(w: RegionWriter, p: IotaParams, shapes: Sequence[Shape], result: Slot) -> None:
    """Emit ``iota``; it depends on the ``shapes`` of its operands only."""
    sizes = tuple(resolve_extent(size, shapes) for size in p.sizes)
    y = View.dense(result.buffer, sizes)
    w.call("iota", y=y, y_type=p.dtype.short, start=p.start, steps=p.steps)


def _write_chain(
    w: RegionWriter, p: ElementwiseParams, operands: Sequence[Slot], results: Sequence[View]
) -> None:
    """Emit one call: a chain, or a copy if the chain computes nothing."""
    full = results[0].dims
    seen = [_through(m, slot) for m, slot in zip(p.views, operands, strict=True)]
    views = [v.stretched(full) for v in seen]
    if p.moves_only:
        w.call("copy", x=views[0], y=results[0])
        return
    w.call("elementwise", x=views, y=results, chain=columns_of(p.chain, seen, full))


def _stretches(p: ConcatParams, shapes: Sequence[Shape], y: View) -> list[View]:
    """Split ``y`` along the concatenation's axis into the views of its parts."""
    start: Extent = 0
    found = []
    for shape in p.shapes(shapes):
        shift = combine("mul", y.strides[p.axis], start)
        found.append(View(y.buffer, shape, y.strides, combine("add", y.offset, shift)))
        start = combine("add", start, shape[p.axis])
    return found


def _through(index_map: IndexMap, slot: Slot) -> View:
    """View a stored tensor through an index map."""
    at = index_map.layout(StridedLayout.dense(slot.shape))
    return View(slot.buffer, at.dims, at.strides, at.offset)


def columns_of(chain: Chain, views: Sequence[View], full: Shape) -> Chain:
    """Reduce the chain's operand kinds to two: varies along the last axis longer than 1, or not.

    The runtime merges axes depending on actual sizes, which would invalidate finer kinds.
    """
    last = next((-i for i, dim in enumerate(reversed(full), 1) if dim != 1), -1)
    kinds = tuple(FULL if _moves(v, full, last) else COL for v in views)
    return replace(chain, operands=kinds)


def _moves(view: View, full: Shape, axis: int) -> bool:
    """Return True if a view varies along an axis, which is counted from the end."""
    within = len(view.dims) >= -axis
    return within and view.dims[axis] == full[axis] and view.strides[axis] != 0
