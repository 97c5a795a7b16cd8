"""Fuse a run of calls into a loop over row tiles, so that the values between them stay in cache.

    for rows [start, end) of the last result:
        each call computes the rows that are needed next

Values that only calls of the loop read shrink to the rows of one iteration.  Rows that a window
reads from the previous iteration are loop-carried: they are moved to the front of the buffer
first.  If they are few, every iteration recomputes them instead, and iterations run in parallel.
The zero padding of a value is written when a tile touches its edge.  Before anything is changed,
all iterations are simulated to check that every row exists when it is read; calls that cannot be
tiled stay unchanged.

Rows are lines of blocked values ``[N, Cb, H, W, 16]``, or rows of matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracea_graph.ir import Extent, combine, evaluate
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.lowering.region_writer import RegionWriter, touches
from tracea_graph.kernels.cpu.lowering.row_loop_storage import (
    LINES,
    ROWS,
    LoopValue,
    PreviousIterationExtent,
    RowsOfLastResult,
    at_row_0,
    extent_min,
    minus,
    padding_below,
    plus,
    row_count,
    row_of,
    row_stride,
    rows_needed,
    slice_rows,
    times,
)  # fmt: skip
from tracea_graph.kernels.cpu.lowering.rows_read_by_calls import (
    SAME,
    NotTileable,
    RowsRead,
    access_ranges,
    as_rows,
    call_inside_loop,
    granularity_of,
    halo_of_result,
    result_indices,
    result_views,
    row_tiled,
    views_read,
)  # fmt: skip
from tracea_graph.kernels.program import Buffer, Call, Loop, View

__all__ = ["NotTileable", "loop_over_row_tiles"]

_MAX_ITERATIONS = 4096
_STEP_MULTIPLE = 16
"""The runtime may shorten parallel iterations to multiples of this."""
_ROUNDING_PERIOD = 16
"""Iterations after which rows are rounded as before: the largest granularity of a call."""
_RECOMPUTED = 1 / 8
"""Largest share of rows that are recomputed rather than carried over."""


def loop_over_row_tiles(w: RegionWriter, first: int, last: int, rows: int) -> None:
    """Turn calls ``first`` to ``last`` of a program into a loop of ``rows`` rows an iteration.

    Calls among them that do not depend on the others move in front of the loop.  Raises
    NotTileable, leaving the program unchanged, if a call cannot be tiled or would read a row that
    no iteration has computed.
    """
    before, inside = _sorted([call_inside_loop(call) for call in w.calls[first : last + 1]])
    others = [*w.calls[:first], *before, *w.calls[last + 1 :]]
    builder = _LoopBuilder.of(inside, others, rows, len(w.loops))
    prologue, calls = builder.calls()
    front = [*w.calls[:first], *before, *prologue]
    w.calls[:] = [*front, *calls, *w.calls[last + 1 :]]
    shift = len(before) + len(prologue) + len(calls) - (last + 1 - first)
    w.loops[:] = [_moved(loop, last, shift) for loop in w.loops]
    start, end = builder.symbols
    last = len(front) + len(calls) - 1
    w.loops.append(Loop(len(front), last, builder.extent, rows, start, end, builder.parallel))
    w.loops.sort(key=lambda loop: loop.first)
    for buffer, value in builder.values.items():
        if value.capacity is not None:
            dtype, _ = w.temps[buffer.index]
            w.temps[buffer.index] = dtype, value.count
            if value.carries:
                w.carried.add(buffer)


def _moved(loop: Loop, last: int, shift: int) -> Loop:
    later = shift if loop.first > last else 0
    return replace(loop, first=loop.first + later, last=loop.last + later)


def _sorted(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """Calls that can run before the loop, and those of the loop."""
    before, inside, made = list[Call](), list[Call](), set[Buffer]()
    for call in calls:
        needs = any(v is not None and v.buffer in made for v in call.views)
        if row_tiled(call):
            inside.append(call)
            made |= {v.buffer for v in result_views(call)}
        elif needs:
            raise NotTileable(f"{call.name} does not work row by row")
        else:
            before.append(call)
    return before, inside


# ---- one loop ------------------------------------------------------------------------------


@dataclass
class _LoopBuilder:
    """The calls of a loop, the values between them, and the rows of an iteration."""

    inside: list[Call]
    needs: list[RowsOfLastResult]
    values: dict[Buffer, LoopValue]
    step: int
    symbols: tuple[str, str]
    before: str = ""

    @property
    def extent(self) -> Extent:
        return self.needs[-1].rows

    @property
    def parallel(self) -> bool:
        """True if each iteration computes all rows it reads."""
        return not any(v.carries or (v.blocked and not v.parallel) for v in self.values.values())

    @classmethod
    def of(
        cls, calls: Sequence[Call], others: Sequence[Call], step: int, number: int
    ) -> _LoopBuilder:
        halos = {c.views[-1].buffer: c for c in calls if c.op == "zero_pad" and c.views[-1]}
        inside = [as_rows(c) for c in calls if c.op != "zero_pad"]
        if len(inside) < 2:
            raise NotTileable("there is only one call")
        if len({len(v.dims) for c in inside for v in result_views(c)}) > 1:
            raise NotTileable("rows of matrices and lines of images cannot share a loop")
        builder = cls(inside, [], {}, step, (f"start{number}", f"end{number}"))
        builder._propagate(halos)
        for buffer, value in builder.values.items():
            outside = buffer.kind != "temp" or any(touches(c, buffer) for c in others)
            last = buffer in {v.buffer for v in result_views(inside[-1])}
            if not value.readers and not last:
                raise NotTileable("a result is read only after the loop")
            if not outside and value.readers:
                value.capacity = 0
            elif value.need.end("e") != "e" and not last:
                raise NotTileable("the loop may not compute all rows that are read outside it")
        if not builder._try_parallel():
            builder._simulate()
        return builder

    def _try_parallel(self) -> bool:
        """Let every iteration recompute the rows it shares with the previous one, if few.

        Returns False, with nothing changed, if they are too many or rows would be missing.
        """
        made = result_views(self.inside[-1])[0].buffer
        between = [v for buffer, v in self.values.items() if buffer != made]
        if not isinstance(self.extent, int) or not all(
            v.capacity == 0 and v.blocked for v in between
        ):
            return False
        if any(
            self._rows_in_all(n) > (1 + _RECOMPUTED) * evaluate(n.rows, {}) for n in self.needs
        ):
            return False
        for value in self.values.values():
            value.parallel = True
        try:
            self._simulate()
        except NotTileable:
            for value in self.values.values():
                value.parallel, value.capacity = False, 0 if value in between else value.capacity
            return False
        return True

    def _propagate(self, halos: Mapping[Buffer, Call]) -> None:
        """Propagate the rows needed of each call backwards from the last one."""
        wanted: dict[Buffer, list[tuple[RowsOfLastResult, RowsRead, int]]] = {}
        needs: list[RowsOfLastResult] = []
        for call in reversed(self.inside):
            made = result_views(call)
            top, rows = _interior(call, halos.get(made[0].buffer))
            readers = [r for v in made for r in wanted.get(v.buffer, ())]
            begin = self.symbols[0]
            need = (
                RowsOfLastResult(1, 0, rows, begin)
                if not needs
                else rows_needed(call, rows, top, readers)
            )
            if need is None:
                raise NotTileable("a call computes nothing that the loop needs")
            if need.factor * self.step % granularity_of(call):
                raise NotTileable("a tile would split rows that a kernel computes together")
            needs.append(need)
            for view in made:
                value = self.values.get(view.buffer)
                if value is None:
                    self.values[view.buffer] = LoopValue(
                        view, need, top + row_of(view), row_count(view), row_stride(view),
                        wanted.get(view.buffer, []),
                    )  # fmt: skip
                elif value.need != need or value.view != view:
                    raise NotTileable("two calls write different parts of one buffer")
            for view, access in views_read(call):
                if access is not None:
                    wanted.setdefault(view.buffer, []).append((need, access, row_of(view)))
        self.needs = needs[::-1]
        for call in self.inside:
            if any(
                access is None and view.buffer in self.values for view, access in views_read(call)
            ):
                raise NotTileable("a call needs all rows of what another call computes")
        if any(n.rows != self.needs[-1].rows for n in self.needs) and not isinstance(
            self.extent, int
        ):
            raise NotTileable("its calls may differ in their number of rows")
        for value in self.values.values():
            for view in (
                v for c in self.inside for v in c.views if v and v.buffer == value.view.buffer
            ):
                if row_stride(view) != value.step or len(view.dims) != len(value.view.dims):
                    raise NotTileable("calls use different views of a buffer")

    def _rows_in_all(self, need: RowsOfLastResult) -> int:
        """Rows computed in total by iterations that recompute all they need."""
        start, end = self.symbols
        assert isinstance(self.extent, int)
        iterations = ({start: e, end: min(e + self.step, self.extent)}
                 for e in range(0, self.extent, self.step))  # fmt: skip
        return sum(evaluate(need.end(end), t) - evaluate(need.first, t) for t in iterations)

    def _simulate(self) -> None:
        """Find the capacity of each value, and check that rows exist when they are read.

        Raises NotTileable if one does not.
        """
        near = [v for v in self.values.values() if v.capacity is not None]
        if not near:
            raise NotTileable("every value between its calls is also read elsewhere")
        if not isinstance(self.extent, int):
            for value in near:
                value.capacity = self.step
            return
        iterations = range(0, self.extent, self.step)
        if len(iterations) > _MAX_ITERATIONS:
            raise NotTileable("there are too many iterations")
        for value in near:
            if value.parallel:
                for step in (_STEP_MULTIPLE, self.step):
                    for start in self._distinct_starts(step):
                        self._simulate_iteration(value, {}, start)
                continue
            held = dict[int, int]()
            for start in iterations:
                held = self._simulate_iteration(value, held, start)

    def _distinct_starts(self, step: int) -> list[int]:
        """First rows of parallel iterations, which are independent, without most in the middle.

        Iterations that touch no edge of a value differ by a shift alone, and by how rows are
        rounded to the granularity of a call, which repeats within 16 iterations.
        """
        assert isinstance(self.extent, int)
        starts, begin = list(range(0, self.extent, step)), self.symbols[0]
        middle = {begin: starts[len(starts) // 2]}
        behind = (n.factor * middle[begin] - evaluate(n.first, middle) for n in self.needs)
        margins = (max(v.top, padding_below(v)) for v in self.values.values())
        reach = max(*behind, *margins, *(abs(n.extra) for n in self.needs))
        edge = reach + max(step, self.step) + _ROUNDING_PERIOD * step
        return [s for s in starts if s < edge or s >= self.extent - 2 * edge]

    def _simulate_iteration(
        self, value: LoopValue, held: dict[int, int], start: int
    ) -> dict[int, int]:
        """Return the rows a buffer holds after an iteration, by slot; ``held`` before it."""
        e0, e1 = self.symbols
        last = max(0, start - self.step)
        assert isinstance(self.extent, int)
        now = {e0: start, e1: min(start + self.step, self.extent)}
        window = evaluate(value.window(e0), now)
        shift = window - evaluate(value.window(e0), {e0: last})
        begins = evaluate(value.begins(e0), now) if start else value.top
        if begins < window:
            raise NotTileable("an iteration would compute rows that lie before its buffer")
        kept = max(0, begins - window) if start and not value.parallel else 0
        if kept > shift > 0:
            raise NotTileable("a tile has fewer rows than its windows share with the next tile")
        value.carries |= kept > 0
        held = {place: held[place + shift] for place in range(kept) if place + shift in held}
        edge = evaluate(plus(value.top, value.need.rows), now)
        ends = evaluate(value.read(e1), now)
        if start == 0:
            held |= {row: row for row in range(value.top)}
        held |= {row - window: row for row in range(edge, ends)}
        made = evaluate(value.made(e1), now)
        held |= {row - window: row for row in range(begins, made)}
        for need, access, at in value.readers:
            n0, n1 = (evaluate(e, now) for e in (need.begin(e0, value.parallel), need.end(e1)))
            rows = range(n0 * access.stride + at, (n1 - 1) * access.stride + access.span + at)
            if n1 > n0 and any(held.get(row - window) != row for row in rows):
                raise NotTileable("a row that is read would be missing")
            value.capacity = max(value.capacity or 0, rows.stop - window)
        under = edge + padding_below(value) - window if ends > edge else 0
        value.capacity = max(value.capacity or 0, value.top + 1, made - window, under)
        return held

    # ---- the calls ---------------------------------------------------------------------

    def calls(self) -> tuple[list[Call], list[Call]]:
        """The calls in front of the loop, and the loop's body."""
        prologue, body = list[Call](), list[Call]()
        start, end = self.symbols
        for value in self.values.values():
            if value.capacity is None:
                prologue += self._pad_whole_value(value)
            else:
                body += self._carry_over(value)
        alone = any(value.parallel for value in self.values.values())
        for call, need in zip(self.inside, self.needs, strict=True):
            n0, n1 = need.begin(start, alone), need.end(end)
            sure = need.extra == 0 and n0 in (start, need.end(start))
            count = minus(n1, n0) if sure else combine("max", 0, minus(n1, n0))
            views, own = list[View | None](), result_indices(call)
            for i, access in enumerate(access_ranges(call)):
                view = call.views[i]
                if view is None or access is None:
                    views.append(view)
                elif i in own:
                    views.append(self._result(view, n0, count))
                else:
                    views.append(self._operand(view, access, n0, count))
            if "halo" in call.attributes:
                _, left, _, right = halo_of_result(call)
                call = call.having(halo=(0, left, 0, right))
            body.append(replace(call, views=tuple(views)))
        return prologue, body

    def _result(self, view: View, n0: Extent, count: Extent) -> View:
        value = self.values[view.buffer]
        row = plus(n0, value.top - row_of(view))
        if value.capacity is not None:
            row = minus(plus(n0, value.top), value.window(self.symbols[0]))
            view = replace(view, offset=at_row_0(view))
        return value.rows_of(view, row, count)

    def _operand(self, view: View, access: RowsRead, n0: Extent, count: Extent) -> View:
        first = times(n0, access.stride)
        if access == SAME:
            rows = count
        else:
            rows = plus(times(plus(count, -1), access.stride), access.span)
            rows = combine("max", 0, rows)
        value = self.values.get(view.buffer)
        if value is None:
            axis = LINES if len(view.dims) == 5 else ROWS
            return slice_rows(view, times(view.strides[axis], first), rows)
        if value.capacity is None:
            return value.rows_of(view, first, rows)
        row = minus(plus(first, row_of(view)), value.window(self.symbols[0]))
        return value.rows_of(replace(view, offset=at_row_0(view)), row, rows)

    def _pad_whole_value(self, value: LoopValue) -> list[Call]:
        """Write the zeros above and below a value that is not shrunken."""
        if not value.blocked:
            return []
        top, below = value.top - row_of(value.view), padding_below(value)
        return [_zeros(value.view, top, below)] if top or below else []

    def _carry_over(self, value: LoopValue) -> list[Call]:
        """Move loop-carried rows to the front, and write zeros where the tile meets an edge."""
        if not value.blocked:
            return []
        start, end = self.symbols
        lines = replace(value.view, offset=at_row_0(value.view))
        made: list[Call] = []
        if value.carries:
            before = PreviousIterationExtent(start, self.step)
            kept = combine("max", 0, minus(value.made(start), value.window(start)))
            kept = extent_min(kept, times(start, value.lines))
            shift = minus(value.window(start), before(value.window(start)))
            source = value.rows_of(lines, shift, kept)
            made.append(CALLS.make("copy", x=source, y=value.rows_of(lines, 0, kept)))
        if value.top:
            first = combine("max", 0, minus(value.top + 1, times(start, value.top + 1)))
            made.append(_zeros(value.rows_of(lines, 0, first), value.top, 0))
        if below := padding_below(value):
            edge = plus(value.top, value.need.rows)
            wanted = extent_min(1, combine("max", 0, minus(value.read(end), edge)))
            row = combine("max", 0, minus(plus(edge, -1), value.window(start)))
            view = value.rows_of(lines, row, times(wanted, below + 1))
            made.append(_zeros(view, 0, below))
        return made


def _zeros(view: View, above: int, below: int) -> Call:
    """The call that clears the first ``above`` and the last ``below`` rows of a value."""
    return CALLS.make("zero_pad", y=view, halo=(above, 0, below, 0))


def _interior(call: Call, halo: Call | None) -> tuple[int, Extent]:
    """Rows of halo above a call's result, and rows of the result."""
    view = result_views(call)[0]
    if len(view.dims) != 5:
        return 0, view.dims[ROWS]
    lines = view.dims[LINES]
    if not all(isinstance(d, int) for d in (*view.dims[1:], *view.strides)):
        raise NotTileable("the sizes of an image are not known")
    assert isinstance(lines, int)
    top, _, bottom, _ = halo_of_result(call)
    if halo is not None and call.op == "elementwise":
        raise NotTileable("the result of an elementwise call has a halo")
    return top, lines - top - bottom
