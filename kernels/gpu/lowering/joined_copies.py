"""Replace copies that together write all of a tensor by one launch: concatenations and paddings.

Each copy alone writes parts of rows, whose ends are parts of vectors and of sectors that memory
must read first.  One launch writes whole vectors, and a padded tensor once instead of twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tracea_graph.ir import Extent, combine, evaluate, product, symbols_of
from tracea_graph.kernels.gpu.calls import CALLS, MOST_CONCATENATED
from tracea_graph.kernels.gpu.lowering.program_writer import ZERO, GpuProgramWriter
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.passes.prove_extents import equal_as_polynomials

__all__ = ["join_copies"]


@dataclass(frozen=True)
class _CopiedRows:
    """What a copy reads and writes, both as contiguous rows, with at least two axes."""

    x: View
    y: View


def join_copies(w: GpuProgramWriter) -> None:
    """Join adjacent copies into the same buffer where together they write all of a tensor."""
    at = 0
    while at < len(w.calls):
        found = _padded(w.calls[at : at + 2]) or _concatenated(
            w.calls[at : at + MOST_CONCATENATED]
        )
        if found is not None:
            made, count = found
            for call in w.calls[at + 1 : at + count]:
                w.drop(call)
            w.calls[at] = replace(made, step=w.calls[at].step)
        at += 1


def _padded(calls: Sequence[Call]) -> tuple[Call, int] | None:
    """Return the padding that a fill with zeros and the copy behind it are, and their number."""
    if len(calls) < 2 or calls[0].op != "elementwise":
        return None
    chain, whole = calls[0].chain, calls[0].views[-1]
    if chain is None or (chain.operands, chain.steps) != (ZERO.operands, ZERO.steps):
        return None
    rows = _rows_of(calls[1])
    if rows is None or whole is None or rows.y.buffer != whole.buffer:
        return None
    first = combine("sub", rows.y.offset, whole.offset)
    if whole.strides != dense_strides(whole.dims) or not isinstance(first, int) or first < 0:
        return None
    if not _ends_inside(rows.y, whole):  # a copy beside what is filled
        return None
    if len(rows.y.dims) == 2 and rows.y.dims[0] == 1:
        rows = _CopiedRows(rows.x, replace(rows.y, strides=(product(whole.dims), 1)))
    elif not _nested(rows.y):
        return None
    return CALLS.make("concat", calls[1].dtype, x=[rows.x], place=rows.y, y=whole, count=1,
                      filled=True), 2  # fmt: skip


def _ends_inside(view: View, whole: View) -> bool:
    """Whether a view's last element is one of a dense tensor, or lies before it, at all sizes."""
    end: Extent = combine("add", view.offset, 1)
    for dim, step in zip(view.dims, view.strides, strict=True):
        end = combine("add", end, combine("mul", combine("sub", dim, 1), step))
    room = combine("sub", combine("add", whole.offset, product(whole.dims)), end)
    least = evaluate(room, dict.fromkeys(symbols_of(room), 1))
    return least >= 0 and equal_as_polynomials(room, least)


def _nested(view: View) -> bool:
    """Whether each stride is a multiple of the next one and spans all of the axis behind it."""
    inner, steps = view.dims[1:], view.strides
    for dim, (far, near) in zip(inner, pairwise(steps), strict=True):
        if not (isinstance(dim, int) and isinstance(far, int) and isinstance(near, int)):
            return False
        if near < 1 or far % near or dim * near > far:
            return False
    return True


def _concatenated(calls: Sequence[Call]) -> tuple[Call, int] | None:
    """Return the concatenation that the first calls are, and how many of them; None if none."""
    parts = list[_CopiedRows]()
    for call in calls:
        rows = _rows_of(call)
        if rows is None or len(rows.y.dims) != 2 or call.dtype != calls[0].dtype:
            return None
        parts.append(rows)
        if len(parts) > 1 and not _adjacent(parts[0].y, *(p.y for p in parts[-2:])):
            return None
        if len(parts) > 1 and (whole := _covered([p.y for p in parts])) is not None:
            place = replace(parts[0].y, strides=whole.strides)
            return CALLS.make("concat", call.dtype, x=[p.x for p in parts], place=place, y=whole,
                              count=len(parts)), len(parts)  # fmt: skip
    return None


def _adjacent(first: View, before: View, view: View) -> bool:
    """Whether columns of the same rows follow those of the view before."""
    behind = combine("add", before.offset, before.dims[1])
    return (
        view.buffer == first.buffer
        and equal_as_polynomials(view.offset, behind)
        and equal_as_polynomials(view.dims[0], first.dims[0])
        and (view.dims[0] == 1 or equal_as_polynomials(view.strides[0], first.strides[0]))
    )


def _covered(parts: Sequence[View]) -> View | None:
    """Return the dense matrix that adjacent columns make up; None if columns are left out."""
    first, width = parts[0], parts[0].dims[1]
    for part in parts[1:]:
        width = combine("add", width, part.dims[1])
    if first.dims[0] != 1 and not equal_as_polynomials(first.strides[0], width):
        return None
    dims: tuple[Extent, ...] = (first.dims[0], width)
    return View(first.buffer, dims, dense_strides(dims), first.offset)


def _rows_of(call: Call) -> _CopiedRows | None:
    """Return the rows that a copy reads and writes; None for other calls, and for other copies."""
    if call.op != "copy":
        return None
    x, y = call.views
    assert x is not None and y is not None
    if x.buffer == y.buffer:
        return None
    if len(y.dims) == 1:
        alone = y.strides[0] == 1
        x, y = (_with_axis(view, front=alone) for view in (x, y))
    alike = all(map(equal_as_polynomials, x.dims, y.dims))  # else the copy's own launch refuses
    return _CopiedRows(x, y) if alike and x.strides[-1] == y.strides[-1] == 1 else None


def _with_axis(view: View, front: bool) -> View:
    """Return a vector as one row, or as rows of one column."""
    (size,), (step,) = view.dims, view.strides
    if front:
        return replace(view, dims=(1, size), strides=(size, step))
    return replace(view, dims=(size, 1), strides=(step, 1))
