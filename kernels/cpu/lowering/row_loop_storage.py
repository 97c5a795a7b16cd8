"""Values between the calls of a loop over rows: which rows exist, and where they are stored.

Rows are lines of blocked values ``[N, Cb, H, W, 16]``, or rows of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from tracea_graph.ir import Extent, combine, product
from tracea_graph.kernels.cpu.lowering.rows_read_by_calls import (
    NotTileable,
    RowsRead,
    granularity_of,
)
from tracea_graph.kernels.program import Call, View

__all__ = [
    "LINES",
    "ROWS",
    "LoopValue",
    "PreviousIterationExtent",
    "RowsOfLastResult",
    "at_row_0",
    "extent_min",
    "minus",
    "padding_below",
    "plus",
    "row_count",
    "row_of",
    "row_stride",
    "rows_needed",
    "slice_rows",
    "times",
]  # fmt: skip

LINES, ROWS = 2, 0
"""The axis of rows: of blocked values, and of matrices."""


@dataclass(frozen=True)
class RowsOfLastResult:
    """Rows of a result needed for ``e`` rows of the loop's last result: factor·e + extra.

    ``rows`` is the number of all rows of the result.  ``first`` is the first row that an iteration
    reads, and computes unless an earlier iteration left it in the buffer.  If ``rounded``, the
    first row computed is rounded down to a multiple of the granularity.
    """

    factor: int
    extra: int
    rows: Extent
    first: Extent = field(compare=False)
    rounded: bool = field(default=False, compare=False)

    def begin(self, e: str, parallel: bool) -> Extent:
        """The first row computed by an iteration that starts at row ``e``."""
        return self.first if parallel else self.end(e)

    def end(self, e: str) -> Extent:
        if (self.factor, self.extra) == (1, 0):
            return e
        grown = combine("add", combine("mul", e, self.factor), self.extra)
        return combine(
            "max", 0, extent_min(extent_min(grown, self.rows), combine("mul", e, self.rows))
        )


def extent_min(a: Extent, b: Extent) -> Extent:
    return combine("min", a, b)


def minus(a: Extent, b: Extent) -> Extent:
    return combine("sub", a, b) if a != b else 0


def plus(a: Extent, b: Extent) -> Extent:
    return combine("add", a, b)


def times(a: Extent, b: Extent) -> Extent:
    return combine("mul", a, b)


@dataclass(frozen=True)
class PreviousIterationExtent:
    """An extent as it was one iteration earlier."""

    start: str
    step: int

    def __call__(self, extent: Extent) -> Extent:
        if extent == self.start:
            return combine("max", 0, combine("sub", extent, self.step))
        if isinstance(extent, int | str):
            return extent
        a, b = (self(arg) for arg in extent.args)
        return combine(extent.op, a, b)


def rows_needed(
    call: Call, rows: Extent, top: int, readers: Sequence[tuple[RowsOfLastResult, RowsRead, int]]
) -> RowsOfLastResult | None:
    """Return the rows of a call's result that ``readers`` need; None if there are no readers.

    A reader has the rows needed of its own result, its access range, and the row of the buffer at
    which its view begins.  ``rows`` is the number of rows of the call's result, ``top`` the number
    of zero rows above it.  Raises NotTileable if readers advance at different rates.
    """
    granularity = granularity_of(call)
    found, firsts = [], list[Extent]()
    for need, access, at in readers:
        ahead = (need.extra - 1) * access.stride + access.span + at - top
        found.append((need.factor * access.stride, -(-ahead // granularity) * granularity))
        firsts.append(plus(times(need.first, access.stride), at - top))
    if not found:
        return None
    if len({a for a, _ in found}) > 1:
        raise NotTileable("the readers of a value advance at different rates")
    first = reduce(extent_min, firsts)
    if granularity > 1:
        first = times(combine("floordiv", combine("max", 0, first), granularity), granularity)
    last = max(b for _, b in found)
    return RowsOfLastResult(found[0][0], last, rows, combine("max", 0, first), granularity > 1)


@dataclass
class LoopValue:
    """A buffer that the loop's calls write, and the calls that read it.

    * ``top``: rows of zeros above the value; ``lines``: all rows of the buffer
    * ``step``: elements from one row to the next
    * ``capacity``: rows of the shrunken buffer; None if the buffer keeps all its rows
    * ``parallel``: no iteration uses rows of the previous one
    """

    view: View
    need: RowsOfLastResult
    top: int
    lines: Extent
    step: Extent
    readers: list[tuple[RowsOfLastResult, RowsRead, int]] = field(default_factory=list)
    capacity: int | None = None
    carries: bool = False
    parallel: bool = False

    @property
    def blocked(self) -> bool:
        return len(self.view.dims) == 5

    def window(self, e: str) -> Extent:
        """The first row of the buffer that an iteration starting at row ``e`` reads or writes."""
        rows = [plus(times(n.begin(e, self.parallel), r.stride), at) for n, r, at in self.readers]
        first = rows[0]
        for other in rows[1:]:
            first = first if other == first else extent_min(first, other)
        return extent_min(first, self.begins(e)) if self.parallel and self.need.rounded else first

    def made(self, e: str) -> Extent:
        return plus(self.need.end(e), self.top)

    def begins(self, e: str) -> Extent:
        """The first row of the buffer that an iteration starting at row ``e`` writes."""
        return plus(self.need.begin(e, self.parallel), self.top)

    def read(self, e: str) -> Extent:
        """The end of the buffer's rows that are read to compute the loop's rows up to ``e``."""
        ends = [_reads(n, r, at, e) for n, r, at in self.readers]
        end = ends[0]
        for other in ends[1:]:
            end = end if other == end else combine("max", end, other)
        return end

    @property
    def count(self) -> Extent:
        """Elements of the shrunken buffer."""
        assert self.capacity is not None
        if not self.blocked:
            return times(self.capacity, self.step)
        return product((self.view.dims[0], self._blocks, self.capacity, self.step))

    @property
    def _blocks(self) -> int:
        """Channel blocks of the buffer."""
        batch, block = self.view.strides[:2]
        assert isinstance(batch, int) and isinstance(block, int)
        return batch // block

    def rows_of(self, view: View, row: Extent, count: Extent) -> View:
        """Restrict a view to rows [row, row + count) of the buffer."""
        if self.capacity is not None:
            view = self._moved(view)
        return slice_rows(view, times(self.step, row), count)

    def _moved(self, view: View) -> View:
        """The view, moved to row 0 of the shrunken buffer."""
        if not self.blocked:
            return view
        old, new = self.view.strides[1], times(self.step, self.capacity or 0)
        assert isinstance(old, int) and isinstance(view.offset, int)
        block, within = divmod(view.offset, old)
        strides = (times(new, self._blocks), new, *view.strides[2:])
        offset = plus(times(block, new), within)
        return replace(view, strides=strides, offset=offset)


def _reads(need: RowsOfLastResult, access: RowsRead, at: int, e: str) -> Extent:
    end = plus(times(plus(need.end(e), -1), access.stride), access.span + at)
    return plus(need.end(e), at) if (access.stride, access.span) == (1, 1) else end


def slice_rows(view: View, shift: Extent, count: Extent) -> View:
    axis = LINES if len(view.dims) == 5 else ROWS
    dims = (*view.dims[:axis], count, *view.dims[axis + 1 :])
    return replace(view, dims=dims, offset=plus(view.offset, shift))


def row_of(view: View) -> int:
    """The row of its buffer that a view begins at.

    Raises NotTileable if the view's offset or strides are symbolic.
    """
    if len(view.dims) != 5:
        if not isinstance(view.offset, int):
            raise NotTileable("the offset of a matrix in its buffer is not known")
        return 0
    block, line = view.strides[1], view.strides[LINES]
    if not isinstance(view.offset, int) or not isinstance(block, int) or not isinstance(line, int):
        raise NotTileable("the sizes of an image are not known")
    return view.offset % block // line if block and line else 0


def at_row_0(view: View) -> Extent:
    """The offset of a view moved up to row 0 of its buffer."""
    if len(view.dims) != 5:
        return view.offset
    line = view.strides[LINES]
    assert isinstance(view.offset, int) and isinstance(line, int)
    return view.offset - row_of(view) * line


def row_count(view: View) -> Extent:
    """The number of rows of a view's buffer."""
    if len(view.dims) != 5:
        return view.dims[ROWS]
    block, line = view.strides[1], view.strides[LINES]
    assert isinstance(block, int) and isinstance(line, int)
    return block // line


def row_stride(view: View) -> Extent:
    return view.strides[LINES if len(view.dims) == 5 else ROWS]


def padding_below(value: LoopValue) -> int:
    """Return the number of zero rows that follow a value's own rows in its buffer."""
    rest = combine("sub", value.lines, plus(value.top, value.need.rows))
    return rest if isinstance(rest, int) else 0
