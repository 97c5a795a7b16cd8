"""A run of calls becomes a loop over bands of rows, so that what lies between them stays near.

    for rows [start, end) of the last result:
        each call makes the rows that are needed next

What is read by calls of the loop alone shrinks to the rows of one turn.  Where a window reads rows
of the turn before, these move to the front first; where they are few, every turn makes them
itself: turns then run apart, a thread each.  Zeros around a value are written when the band
touches its edge.  Whether every row is there when it is read is checked turn by turn before
anything is changed: calls that cannot be cut so stay as they are.

Rows are lines of blocked values ``[N, Cb, H, W, 16]``, or rows of matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracea_graph.ir import Extent, combine, evaluate
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.lowering.loop_reach import (
    SAME,
    NotCut,
    Reach,
    as_rows,
    halo_of_result,
    in_turns,
    made_together,
    reaches,
    read,
    results,
    row_tiled,
    written,
)  # fmt: skip
from tracea_graph.kernels.cpu.lowering.loop_values import (
    LINES,
    ROWS,
    Before,
    Need,
    Value,
    at_row_0,
    cut,
    joint,
    least,
    lines_of,
    minus,
    plus,
    row_of,
    step_of,
    times,
    zeros_below,
)  # fmt: skip
from tracea_graph.kernels.cpu.lowering.writer import Writer, touches
from tracea_graph.kernels.program import Buffer, Call, Loop, View

__all__ = ["NotCut", "loop_over"]

_MAX_TURNS = 4096
_SHORTER = 16
"""Turns that run apart begin at multiples of this too, where they are shortened."""
_TWICE = 1 / 8
"""Of the rows of a turn, those that are cheaper made twice than waited for."""


def loop_over(w: Writer, first: int, last: int, rows: int) -> None:
    """Let calls ``first`` to ``last`` of a program run for ``rows`` rows at a time.

    Calls among them that need nothing of the others move in front.  Raises NotCut, having changed
    nothing, if some call cannot be cut or a row would be missing.
    """
    before, inside = _sorted([in_turns(call) for call in w.calls[first : last + 1]])
    others = [*w.calls[:first], *before, *w.calls[last + 1 :]]
    band = _Band.of(inside, others, rows, len(w.loops))
    opening, calls = band.calls()
    front = [*w.calls[:first], *before, *opening]
    w.calls[:] = [*front, *calls, *w.calls[last + 1 :]]
    shift = len(before) + len(opening) + len(calls) - (last + 1 - first)
    w.loops[:] = [_moved(loop, last, shift) for loop in w.loops]
    start, end = band.symbols
    last = len(front) + len(calls) - 1
    w.loops.append(Loop(len(front), last, band.extent, rows, start, end, band.apart))
    w.loops.sort(key=lambda loop: loop.first)
    for buffer, value in band.values.items():
        if value.room is not None:
            dtype, _ = w.temps[buffer.index]
            w.temps[buffer.index] = dtype, value.count
            if value.carries:
                w.carried.add(buffer)


def _moved(loop: Loop, last: int, shift: int) -> Loop:
    later = shift if loop.first > last else 0
    return replace(loop, first=loop.first + later, last=loop.last + later)


def _sorted(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """Those that can run before the loop, and those of the loop."""
    before, inside, made = list[Call](), list[Call](), set[Buffer]()
    for call in calls:
        needs = any(v is not None and v.buffer in made for v in call.views)
        if row_tiled(call):
            inside.append(call)
            made |= {v.buffer for v in results(call)}
        elif needs:
            raise NotCut(f"{call.name} does not work row by row")
        else:
            before.append(call)
    return before, inside


# ---- one band ----------------------------------------------------------------------------


@dataclass
class _Band:
    """The calls of a loop, the values between them, and how many rows a turn makes."""

    inside: list[Call]
    needs: list[Need]
    values: dict[Buffer, Value]
    step: int
    symbols: tuple[str, str]
    before: str = ""

    @property
    def extent(self) -> Extent:
        return self.needs[-1].rows

    @property
    def apart(self) -> bool:
        """True if each turn makes what it reads."""
        return not any(v.carries or (v.blocked and not v.apart) for v in self.values.values())

    @classmethod
    def of(cls, calls: Sequence[Call], others: Sequence[Call], step: int, number: int) -> _Band:
        halos = {c.views[-1].buffer: c for c in calls if c.op == "halo" and c.views[-1]}
        inside = [as_rows(c) for c in calls if c.op != "halo"]
        if len(inside) < 2:
            raise NotCut("there is one call only")
        if len({len(v.dims) for c in inside for v in results(c)}) > 1:
            raise NotCut("rows of matrices and lines of images do not run together")
        band = cls(inside, [], {}, step, (f"start{number}", f"end{number}"))
        band._measure(halos)
        for buffer, value in band.values.items():
            outside = buffer.kind != "temp" or any(touches(c, buffer) for c in others)
            last = buffer in {v.buffer for v in results(inside[-1])}
            if not value.readers and not last:
                raise NotCut("a result is read behind the loop only")
            if not outside and value.readers:
                value.room = 0
            elif value.need.until("e") != "e" and not last:
                raise NotCut("rows that others need may not all be made")
        if not band._set_apart():
            band._rehearse()
        return band

    def _set_apart(self) -> bool:
        """Let every turn make what it reads, where that is little more than it makes anyhow."""
        made = results(self.inside[-1])[0].buffer
        between = [v for buffer, v in self.values.items() if buffer != made]
        if not isinstance(self.extent, int) or not all(v.room == 0 and v.blocked for v in between):
            return False
        if any(self._rows_in_all(n) > (1 + _TWICE) * evaluate(n.rows, {}) for n in self.needs):
            return False
        for value in self.values.values():
            value.apart = True
        try:
            self._rehearse()
        except NotCut:
            for value in self.values.values():
                value.apart, value.room = False, 0 if value in between else value.room
            return False
        return True

    def _measure(self, halos: Mapping[Buffer, Call]) -> None:
        """What every call has to make by when, from the last one back."""
        wanted: dict[Buffer, list[tuple[Need, Reach, int]]] = {}
        needs: list[Need] = []
        for call in reversed(self.inside):
            made = results(call)
            top, rows = _interior(call, halos.get(made[0].buffer))
            readers = [r for v in made for r in wanted.get(v.buffer, ())]
            begin = self.symbols[0]
            need = Need(1, 0, rows, begin) if not needs else joint(call, rows, top, readers)
            if need is None:
                raise NotCut("a call makes nothing the loop needs")
            if need.a * self.step % made_together(call):
                raise NotCut("a turn would cut rows that a kernel makes together")
            needs.append(need)
            for view in made:
                value = self.values.get(view.buffer)
                if value is None:
                    self.values[view.buffer] = Value(
                        view, need, top + row_of(view), lines_of(view), step_of(view),
                        wanted.get(view.buffer, []),
                    )  # fmt: skip
                elif value.need != need or value.view != view:
                    raise NotCut("two calls write different parts of one buffer")
            for view, reach in read(call):
                if reach is not None:
                    wanted.setdefault(view.buffer, []).append((need, reach, row_of(view)))
        self.needs = needs[::-1]
        for call in self.inside:
            if any(reach is None and view.buffer in self.values for view, reach in read(call)):
                raise NotCut("a call needs all of what another one makes")
        if any(n.rows != self.needs[-1].rows for n in self.needs) and not isinstance(
            self.extent, int
        ):
            raise NotCut("the rows of its calls are not known to agree")
        for value in self.values.values():
            for view in (
                v for c in self.inside for v in c.views if v and v.buffer == value.view.buffer
            ):
                if step_of(view) != value.step or len(view.dims) != len(value.view.dims):
                    raise NotCut("calls see a buffer in different ways")

    def _rows_in_all(self, need: Need) -> int:
        """Rows that turns make which make all they need."""
        start, end = self.symbols
        assert isinstance(self.extent, int)
        turns = ({start: e, end: min(e + self.step, self.extent)}
                 for e in range(0, self.extent, self.step))  # fmt: skip
        return sum(evaluate(need.until(end), t) - evaluate(need.first, t) for t in turns)

    def _rehearse(self) -> None:
        """How many rows of each value a turn needs, and that all are there when they are read."""
        near = [v for v in self.values.values() if v.room is not None]
        if not near:
            raise NotCut("everything between its calls is read elsewhere too")
        if not isinstance(self.extent, int):
            for value in near:
                value.room = self.step
            return
        turns = range(0, self.extent, self.step)
        if len(turns) > _MAX_TURNS:
            raise NotCut("there are too many turns")
        for value in near:
            held = dict[int, int]()
            for start in range(0, self.extent, _SHORTER) if value.apart else ():
                self._turn(value, {}, start)
            for start in turns:
                held = self._turn(value, {} if value.apart else held, start)

    def _turn(self, value: Value, held: dict[int, int], start: int) -> dict[int, int]:
        """The rows of a value that lie in its room after a turn, by place; before it ``held``."""
        e0, e1 = self.symbols
        last = max(0, start - self.step)
        assert isinstance(self.extent, int)
        now = {e0: start, e1: min(start + self.step, self.extent)}
        window = evaluate(value.window(e0), now)
        shift = window - evaluate(value.window(e0), {e0: last})
        begins = evaluate(value.begins(e0), now) if start else value.top
        if begins < window:
            raise NotCut("a turn makes rows that lie before those it keeps")
        kept = max(0, begins - window) if start and not value.apart else 0
        if kept > shift > 0:
            raise NotCut("a turn is shorter than what its windows share with the next one")
        value.carries |= kept > 0
        held = {place: held[place + shift] for place in range(kept) if place + shift in held}
        edge = evaluate(plus(value.top, value.need.rows), now)
        ends = evaluate(value.read(e1), now)
        if start == 0:
            held |= {row: row for row in range(value.top)}
        held |= {row - window: row for row in range(edge, ends)}
        made = evaluate(value.made(e1), now)
        held |= {row - window: row for row in range(begins, made)}
        for need, reach, at in value.readers:
            n0, n1 = (evaluate(e, now) for e in (need.since(e0, value.apart), need.until(e1)))
            rows = range(n0 * reach.stride + at, (n1 - 1) * reach.stride + reach.span + at)
            if n1 > n0 and any(held.get(row - window) != row for row in rows):
                raise NotCut("a row would be missing")
            value.room = max(value.room or 0, rows.stop - window)
        under = edge + zeros_below(value) - window if ends > edge else 0
        value.room = max(value.room or 0, value.top + 1, made - window, under)
        return held

    # ---- the calls ---------------------------------------------------------------------

    def calls(self) -> tuple[list[Call], list[Call]]:
        """Those in front of the loop, and those of each turn."""
        opening, turn = list[Call](), list[Call]()
        start, end = self.symbols
        for value in self.values.values():
            if value.room is None:
                opening += self._whole_halo(value)
            else:
                turn += self._carry(value)
        alone = any(value.apart for value in self.values.values())
        for call, need in zip(self.inside, self.needs, strict=True):
            n0, n1 = need.since(start, alone), need.until(end)
            sure = need.b == 0 and n0 in (start, need.until(start))
            count = minus(n1, n0) if sure else combine("max", 0, minus(n1, n0))
            views, own = list[View | None](), written(call)
            for i, reach in enumerate(reaches(call)):
                view = call.views[i]
                if view is None or reach is None:
                    views.append(view)
                elif i in own:
                    views.append(self._made(view, n0, count))
                else:
                    views.append(self._seen(view, reach, n0, count))
            if "halo" in call.attributes:
                _, left, _, right = halo_of_result(call)
                call = call.having(halo=(0, left, 0, right))
            turn.append(replace(call, views=tuple(views)))
        return opening, turn

    def _made(self, view: View, n0: Extent, count: Extent) -> View:
        value = self.values[view.buffer]
        row = plus(n0, value.top - row_of(view))
        if value.room is not None:
            row = minus(plus(n0, value.top), value.window(self.symbols[0]))
            view = replace(view, offset=at_row_0(view))
        return value.rows_of(view, row, count)

    def _seen(self, view: View, reach: Reach, n0: Extent, count: Extent) -> View:
        first = times(n0, reach.stride)
        if reach == SAME:
            rows = count
        else:
            rows = plus(times(plus(count, -1), reach.stride), reach.span)
            rows = combine("max", 0, rows)
        value = self.values.get(view.buffer)
        if value is None:
            axis = LINES if len(view.dims) == 5 else ROWS
            return cut(view, times(view.strides[axis], first), rows)
        if value.room is None:
            return value.rows_of(view, first, rows)
        row = minus(plus(first, row_of(view)), value.window(self.symbols[0]))
        return value.rows_of(replace(view, offset=at_row_0(view)), row, rows)

    def _whole_halo(self, value: Value) -> list[Call]:
        """Zeros above and below a value that stays whole."""
        if not value.blocked:
            return []
        top, below = value.top - row_of(value.view), zeros_below(value)
        return [_zeros(value.view, top, below)] if top or below else []

    def _carry(self, value: Value) -> list[Call]:
        """What the last turn left, moved to the front, and zeros where the band meets an edge."""
        if not value.blocked:
            return []
        start, end = self.symbols
        lines = replace(value.view, offset=at_row_0(value.view))
        made: list[Call] = []
        if value.carries:
            before = Before(start, self.step)
            kept = combine("max", 0, minus(value.made(start), value.window(start)))
            kept = least(kept, times(start, value.lines))
            shift = minus(value.window(start), before(value.window(start)))
            source = value.rows_of(lines, shift, kept)
            made.append(CALLS.make("copy", x=source, y=value.rows_of(lines, 0, kept)))
        if value.top:
            first = combine("max", 0, minus(value.top + 1, times(start, value.top + 1)))
            made.append(_zeros(value.rows_of(lines, 0, first), value.top, 0))
        if below := zeros_below(value):
            edge = plus(value.top, value.need.rows)
            wanted = least(1, combine("max", 0, minus(value.read(end), edge)))
            row = combine("max", 0, minus(plus(edge, -1), value.window(start)))
            view = value.rows_of(lines, row, times(wanted, below + 1))
            made.append(_zeros(view, 0, below))
        return made


def _zeros(view: View, above: int, below: int) -> Call:
    """The call that clears the first and the last rows of a value."""
    return CALLS.make("halo", y=view, halo=(above, 0, below, 0))


def _interior(call: Call, halo: Call | None) -> tuple[int, Extent]:
    """Rows of halo above a call's result, and rows of the result."""
    view = results(call)[0]
    if len(view.dims) != 5:
        return 0, view.dims[ROWS]
    lines = view.dims[LINES]
    if not all(isinstance(d, int) for d in (*view.dims[1:], *view.strides)):
        raise NotCut("the sizes of an image are not known")
    assert isinstance(lines, int)
    top, _, bottom, _ = halo_of_result(call)
    if halo is not None and call.op == "elementwise":
        raise NotCut("a chain whose result has a halo")
    return top, lines - top - bottom
