"""What lies between the calls of a loop over rows: how far it is made, where its rows lie.

Rows are lines of blocked values ``[N, Cb, H, W, 16]``, or rows of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from tracea_graph.ir import Extent, combine, product
from tracea_graph.kernels.cpu.lowering.loop_reach import NotCut, Reach, made_together
from tracea_graph.kernels.program import Call, View

__all__ = [
    "LINES", "ROWS", "Before", "Need", "Value", "at_row_0", "cut", "joint", "least", "lines_of",
    "minus", "plus", "row_of", "step_of", "times", "zeros_below",
]  # fmt: skip

LINES, ROWS = 2, 0
"""The axis of rows: of blocked values, and of matrices."""


@dataclass(frozen=True)
class Need:
    """Rows of a result that exist once ``e`` rows of the last are to be made: a·e + b.

    ``first`` is the first one that a turn reads, which makes it if no turn before has left it;
    ``rounded``: or one of those before it, for some rows are made together.
    """

    a: int
    b: int
    rows: Extent
    first: Extent = field(compare=False)
    rounded: bool = field(default=False, compare=False)

    def since(self, e: str, apart: bool) -> Extent:
        """The first row that a turn from ``e`` on makes, ``apart`` from those before it."""
        return self.first if apart else self.until(e)

    def until(self, e: str) -> Extent:
        if (self.a, self.b) == (1, 0):
            return e
        grown = combine("add", combine("mul", e, self.a), self.b)
        return combine("max", 0, least(least(grown, self.rows), combine("mul", e, self.rows)))


def least(a: Extent, b: Extent) -> Extent:
    return combine("min", a, b)


def minus(a: Extent, b: Extent) -> Extent:
    return combine("sub", a, b) if a != b else 0


def plus(a: Extent, b: Extent) -> Extent:
    return combine("add", a, b)


def times(a: Extent, b: Extent) -> Extent:
    return combine("mul", a, b)


@dataclass(frozen=True)
class Before:
    """The same size a turn earlier."""

    start: str
    step: int

    def __call__(self, extent: Extent) -> Extent:
        if extent == self.start:
            return combine("max", 0, combine("sub", extent, self.step))
        if isinstance(extent, int | str):
            return extent
        a, b = (self(arg) for arg in extent.args)
        return combine(extent.op, a, b)


def joint(
    call: Call, rows: Extent, top: int, readers: Sequence[tuple[Need, Reach, int]]
) -> Need | None:
    """What all readers of a call's results need of it."""
    together = made_together(call)
    found, firsts = [], list[Extent]()
    for need, reach, at in readers:
        ahead = (need.b - 1) * reach.stride + reach.span + at - top
        found.append((need.a * reach.stride, -(-ahead // together) * together))
        firsts.append(plus(times(need.first, reach.stride), at - top))
    if not found:
        return None
    if len({a for a, _ in found}) > 1:
        raise NotCut("readers of a value go through it at different speeds")
    first = reduce(least, firsts)
    if together > 1:
        first = times(combine("floordiv", combine("max", 0, first), together), together)
    last = max(b for _, b in found)
    return Need(found[0][0], last, rows, combine("max", 0, first), together > 1)


@dataclass
class Value:
    """A buffer that calls of the loop write: where its rows begin, and who reads them.

    ``top`` is its first row within the buffer, after ``top`` rows of zeros; ``lines`` all rows of
    the buffer; ``step`` elements between two; ``room`` rows are left of it (None: it stays whole).
    Turns that run ``apart`` find nothing in it.
    """

    view: View
    need: Need
    top: int
    lines: Extent
    step: Extent
    readers: list[tuple[Need, Reach, int]] = field(default_factory=list)
    room: int | None = None
    carries: bool = False
    apart: bool = False

    @property
    def blocked(self) -> bool:
        return len(self.view.dims) == 5

    def window(self, e: str) -> Extent:
        """The first row of the buffer that is made or read when rows from ``e`` on are made."""
        rows = [plus(times(n.since(e, self.apart), r.stride), at) for n, r, at in self.readers]
        first = rows[0]
        for other in rows[1:]:
            first = first if other == first else least(first, other)
        return least(first, self.begins(e)) if self.apart and self.need.rounded else first

    def made(self, e: str) -> Extent:
        return plus(self.need.until(e), self.top)

    def begins(self, e: str) -> Extent:
        """The first row that is made when rows from ``e`` on are."""
        return plus(self.need.since(e, self.apart), self.top)

    def read(self, e: str) -> Extent:
        """The end of the rows that are read once rows up to ``e`` are made."""
        ends = [_reads(n, r, at, e) for n, r, at in self.readers]
        end = ends[0]
        for other in ends[1:]:
            end = end if other == end else combine("max", end, other)
        return end

    @property
    def count(self) -> Extent:
        """Elements of what is left of the buffer."""
        assert self.room is not None
        if not self.blocked:
            return times(self.room, self.step)
        return product((self.view.dims[0], self._blocks, self.room, self.step))

    @property
    def _blocks(self) -> int:
        """Blocks of channels the buffer has room for."""
        batch, block = self.view.strides[:2]
        assert isinstance(batch, int) and isinstance(block, int)
        return batch // block

    def rows_of(self, view: View, row: Extent, count: Extent) -> View:
        """Rows [row, row + count) of the buffer, all else as the view has it."""
        if self.room is not None:
            view = self._moved(view)
        return cut(view, times(self.step, row), count)

    def _moved(self, view: View) -> View:
        """The view at row 0 of what is left of the buffer."""
        if not self.blocked:
            return view
        old, new = self.view.strides[1], times(self.step, self.room or 0)
        assert isinstance(old, int) and isinstance(view.offset, int)
        block, within = divmod(view.offset, old)
        strides = (times(new, self._blocks), new, *view.strides[2:])
        offset = plus(times(block, new), within)
        return replace(view, strides=strides, offset=offset)


def _reads(need: Need, reach: Reach, at: int, e: str) -> Extent:
    end = plus(times(plus(need.until(e), -1), reach.stride), reach.span + at)
    return plus(need.until(e), at) if (reach.stride, reach.span) == (1, 1) else end


def cut(view: View, shift: Extent, count: Extent) -> View:
    axis = LINES if len(view.dims) == 5 else ROWS
    dims = (*view.dims[:axis], count, *view.dims[axis + 1 :])
    return replace(view, dims=dims, offset=plus(view.offset, shift))


def row_of(view: View) -> int:
    """The row of its buffer a view begins at."""
    if len(view.dims) != 5:
        if not isinstance(view.offset, int):
            raise NotCut("a matrix begins somewhere unknown")
        return 0
    block, line = view.strides[1], view.strides[LINES]
    if not isinstance(view.offset, int) or not isinstance(block, int) or not isinstance(line, int):
        raise NotCut("the sizes of an image are not known")
    return view.offset % block // line if block and line else 0


def at_row_0(view: View) -> Extent:
    """The offset of the same columns in the first row."""
    if len(view.dims) != 5:
        return view.offset
    line = view.strides[LINES]
    assert isinstance(view.offset, int) and isinstance(line, int)
    return view.offset - row_of(view) * line


def lines_of(view: View) -> Extent:
    """All rows of the buffer."""
    if len(view.dims) != 5:
        return view.dims[ROWS]
    block, line = view.strides[1], view.strides[LINES]
    assert isinstance(block, int) and isinstance(line, int)
    return block // line


def step_of(view: View) -> Extent:
    return view.strides[LINES if len(view.dims) == 5 else ROWS]


def zeros_below(value: Value) -> int:
    """Rows of zeros under a value."""
    rest = combine("sub", value.lines, plus(value.top, value.need.rows))
    return rest if isinstance(rest, int) else 0
