"""Let calls store their results where a concatenation puts them, which then copies nothing.

Parts are columns of rows that lie one behind the other in scratch, such as the channels of pixels.
In the concatenation these rows are farther apart.  Every view of a buffer whose columns are all
copied there is moved there, if the calls that use it take rows that are apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from tracea_graph.ir import Expr, Extent, combine
from tracea_graph.kernels.gpu.lowering.buffer_uses import BufferUses
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program import Buffer, Call, View
from tracea_graph.passes.prove_extents import equal_as_polynomials

__all__ = ["fold_concatenations"]

_TAKE_ROWS_APART = ("conv", "gemm", "depthwise", "pool", "resize", "elementwise", "copy")
"""Calls whose kernels take and store rows that are apart."""
_RUN = 16
"""Bytes by which columns must be aligned in a concatenation, for kernels that copy such runs."""
_MOST_AXES = 7
"""Maximum axes of a call whose rows are divided: those of an interleaved volume."""


@dataclass(frozen=True)
class _Part:
    """Columns ``[first, first + count)`` of rows ``width`` apart that a call copies.

    In the concatenation, whose rows are ``pitch`` apart, they are those from ``at`` on.
    """

    call: Call
    first: int
    count: int
    width: int
    pitch: int
    at: int

    @property
    def source(self) -> View:
        view = self.call.views[0]
        assert view is not None
        return view


@dataclass(frozen=True)
class _JoinedColumns:
    """Where ``count`` columns lie in the rows of ``whole``: ``pitch`` apart, from ``at`` on."""

    whole: Buffer
    count: int
    pitch: int
    at: int

    def of(self, view: View) -> View | None:
        """Return a view of these columns in the concatenation; None if no strides express it."""
        steps, last = list[Extent](), 0
        for dim, step in zip(view.dims, view.strides, strict=True):
            if (rows := _divided(step, self.count)) is not None:
                steps.append(combine("mul", rows, self.pitch))
            elif isinstance(dim, int) and isinstance(step, int) and step > 0:
                steps.append(step)
                last += (dim - 1) * step
            else:
                return None
        if not isinstance(view.offset, int) or view.offset % self.count + last >= self.count:
            return None
        row, column = divmod(view.offset, self.count)
        return View(self.whole, view.dims, tuple(steps), row * self.pitch + column + self.at)


def _divided(extent: Extent, by: int) -> Extent | None:
    """Return an extent divided by a number that one of its factors is a multiple of, else None."""
    if isinstance(extent, int):
        return extent // by if extent % by == 0 else None
    if not isinstance(extent, Expr) or extent.op != "mul":
        return None
    a, b = extent.args
    if (part := _divided(b, by)) is not None:
        return combine("mul", a, part)
    return None if (part := _divided(a, by)) is None else combine("mul", part, b)


def fold_concatenations(w: GpuProgramWriter) -> None:
    """Replace copies into concatenations by results that are stored there."""
    uses = BufferUses(w.calls)
    for whole in list(uses.writers):
        parts = [_part_of(call) for call in uses.writers.get(whole, [])]
        known = sorted((p for p in parts if p is not None), key=lambda p: p.at)
        if whole.kind != "temp" or len(known) < len(parts) or not _apart(known):
            continue
        places = {id(call): i for i, call in enumerate(w.calls)}
        last = max(places[id(p.call)] for p in known)
        if all(places[id(one)] > last for one in uses.readers.get(whole, [])):
            for _, own in groupby(known, key=lambda p: p.source.buffer):
                _fold(w, whole, list(own))
            uses = BufferUses(w.calls)


def _apart(parts: list[_Part]) -> bool:
    """Whether parts are different columns of the same rows."""
    if not parts or len({p.pitch for p in parts}) > 1:
        return False
    if any(a.at + a.count > b.at for a, b in pairwise(parts)):
        return False
    return parts[-1].at + parts[-1].count <= parts[-1].pitch


def _part_of(call: Call) -> _Part | None:
    """Return what a call copies of the rows of a buffer; None for other calls."""
    if call.op != "copy":
        return None
    x, y = call.views
    if x is None or y is None or len(x.dims) != 2 or (x.strides[1], y.strides[1]) != (1, 1):
        return None
    first, width, count = x.offset, x.strides[0], x.dims[1]
    at, pitch = y.offset, y.strides[0]
    if not (isinstance(first, int) and isinstance(width, int) and isinstance(count, int)):
        return None
    if not isinstance(at, int) or not isinstance(pitch, int) or first + count > width:
        return None
    return _Part(call, first, count, width, pitch, at)


def _fold(w: GpuProgramWriter, whole: Buffer, parts: list[_Part]) -> None:
    """Move a buffer that adjacent parts of a concatenation are copied from, if its calls can."""
    head, source = parts[0], parts[0].source
    columns = _JoinedColumns(whole, head.width, head.pitch, head.at)
    if (
        source.buffer.kind != "temp"
        or head.first
        or parts[-1].first + parts[-1].count != head.width
    ):
        return
    if any(a.first + a.count != b.first or a.at + a.count != b.at for a, b in pairwise(parts)):
        return
    dtype, count = w.temps[source.buffer.index]
    run = _RUN // int(dtype.size) or 1
    if dtype is not w.temps[whole.index][0] or any(
        n % run for n in (head.width, head.pitch, head.at)
    ):
        return
    if not equal_as_polynomials(count, combine("mul", head.width, source.dims[0])):
        return
    copies, moved = {id(p.call) for p in parts}, dict[int, Call]()
    for i, call in enumerate(w.calls):
        if id(call) in copies or all(v is None or v.buffer != source.buffer for v in call.views):
            continue
        made = _moved(call, source.buffer, columns)
        if made is None:
            return
        moved[i] = made
    for i, call in moved.items():
        w.calls[i] = call
    for part in parts:
        w.drop(part.call)
    w.temps[source.buffer.index] = dtype, 0


def _moved(call: Call, buffer: Buffer, columns: _JoinedColumns) -> Call | None:
    """Return a call that uses columns of a concatenation instead of a buffer, or None."""
    if call.op not in _TAKE_ROWS_APART:
        return None
    if call.op in ("copy", "elementwise"):
        call = _by_rows(call, buffer, columns.count)
    views = list(call.views)
    for i, view in enumerate(call.views):
        if view is not None and view.buffer == buffer:
            if (made := columns.of(view)) is None:
                return None
            views[i] = made
    return replace(call, views=tuple(views))


def _by_rows(call: Call, buffer: Buffer, count: int) -> Call:
    """Divide axes that span several rows of ``count`` columns, in all views of a call."""
    axis = 0
    while axis < len(shape := _shape(call)) < _MOST_AXES:
        step = next(v.strides[axis] for v in call.views if v is not None and v.buffer == buffer)
        if isinstance(step, int) and 0 < step < count and count % step == 0:
            rows = _divided(shape[axis], count // step)
            if rows not in (None, 0, 1):
                sides = rows, count // step
                views = tuple(v and _split(v, axis, sides) for v in call.views)
                call, axis = replace(call, views=views), axis + 1
        axis += 1
    return call


def _shape(call: Call) -> tuple[Extent, ...]:
    """Return the common shape of a call's views; () if they have none."""
    shapes = {v.dims for v in call.views if v is not None}
    return next(iter(shapes)) if len(shapes) == 1 else ()


def _split(view: View, axis: int, sides: tuple[Extent, int]) -> View:
    """Divide an axis into two."""
    dims = (*view.dims[:axis], *sides, *view.dims[axis + 1 :])
    step = combine("mul", view.strides[axis], sides[1])
    return replace(view, dims=dims, strides=(*view.strides[:axis], step, *view.strides[axis:]))
