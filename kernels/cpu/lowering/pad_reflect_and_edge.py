"""Lower padding in the modes reflect and edge.

Columns are padded first, then whole rows.  If possible, the border of a blocked value is written
into its halo in place; otherwise the value is copied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.cpu.lowering.region_values import RegionValues
from tracea_graph.kernels.program import View
from tracea_graph.ops.conv_windows import add_constant
from tracea_graph.ops.layout_op import LayoutParams

__all__ = ["lower_border"]

_ROWS, _COLUMNS = 2, 3
"""Axes of blocked and of plain values."""


def lower_border(v: RegionValues, p: LayoutParams, source: int, result: int) -> None:
    """Write the border of ``result`` around ``source``."""
    top, left, bottom, right = p.ints
    if result in v.layout.around:
        inner = v.block(source)
        tall, wide = (
            add_constant(inner.height, top + bottom),
            add_constant(inner.width, left + right),
        )
        dst = replace(inner, height=tall, width=wide, halo=(0, 0, 0, 0))
        v.blocks[result], whole = dst, dst.view()
    else:
        if result in v.layout.blocked:
            small, whole = v.block(source).view(), v.interior(result)
        else:
            small, whole = v.view(source), v.out(result).view
        lines = _part(whole, _ROWS, top, small.dims[_ROWS])
        v.w.call("copy", x=small, y=_part(lines, _COLUMNS, left, small.dims[_COLUMNS]))
    height, width = v.shape(source)[_ROWS:]
    middle = _part(whole, _ROWS, top, height)
    _sides(v, p.kind, middle, _COLUMNS, width, (left, right))
    _sides(v, p.kind, whole, _ROWS, height, (top, bottom))
    if result in v.layout.blocked and result not in v.layout.around:
        v.finish(result, v.dst(result))


def _part(view: View, axis: int, start: Extent, size: Extent, direction: int = 1) -> View:
    """``size`` positions of an axis from ``start`` on.

    ``direction`` is 1, -1 to go backwards, or 0 to repeat one position.
    """
    step = view.strides[axis]
    offset = combine("add", view.offset, combine("mul", step, start))
    return View(
        view.buffer,
        _with(view.dims, axis, size),
        _with(view.strides, axis, combine("mul", step, direction)),
        offset,
    )


def _with(extents: Sequence[Extent], axis: int, value: Extent) -> tuple[Extent, ...]:
    return (*extents[:axis], value, *extents[axis + 1 :])


def _sides(
    v: RegionValues, kind: str, whole: View, axis: int, size: Extent, pads: tuple[int, int]
) -> None:
    """Pad both sides of an axis whose ``size`` positions from ``pads[0]`` on are written.

    If the value is too small for its padding, the views of the copy differ in size, and the copy
    fails at run time.
    """
    before, behind = pads
    last = add_constant(size, before - 1)
    mirrored = kind == "reflect"
    sides = (
        (before, 0, before + 1 if mirrored else before),
        (behind, add_constant(last, 1), add_constant(last, -1) if mirrored else last),
    )
    for number, (count, to, nearest) in enumerate(sides):
        if not count:
            continue
        most = add_constant(size, -1) if mirrored else combine("mul", size, count)
        there = combine("min", count, most)
        if not mirrored:
            read = _part(whole, axis, nearest, there, 0)
        elif number == 0:
            # read backwards, from the farthest position to the edge
            read = _part(whole, axis, add_constant(there, before), there, -1)
        else:
            read = _part(whole, axis, nearest, there, -1)
        v.w.call("copy", x=read, y=_part(whole, axis, to, count))
