"""``Loop`` and ``Scan`` nodes that compute recurrent cells step by step become LSTM, GRU and RNN.

    h, c, y = Loop(T, true, h0, c0) { t, h, c -> gates = X[t] · W + h · R + b; … }
        ->   y, h, c = LSTM(X, W', R', B', h0, c0)

A body is evaluated symbolically: what is linear in a row of the sequence and in the states is a
matrix for each, whatever matrix products, concatenations and slices compute it.  A loop is
replaced only if everything that is read of it comes from its cells, and if it runs once for each
row of the sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import GraphProto, ModelProto, NodeProto

from tracea_graph.ir import Extent
from tracea_graph.onnx_io.graph_editor import EditorNode, GraphEditor
from tracea_graph.onnx_io.recurrent_cells import (
    Cell,
    LinearRows,
    Rows,
    Symbolic,
    match_cell,
    same_value,
)
from tracea_graph.onnx_io.recurrent_steps import LoopStep, axes_of
from tracea_graph.onnx_io.skeleton_additions import SkeletonAdditions
from tracea_graph.onnx_io.value_facts import attribute

__all__ = ["RecurrentLoop", "find_recurrent_loops", "replace_recurrent_loops"]

_Input = tuple[str, int, str] | int
"""A sequence's name, the axis of its rows and their axes, or the number of an earlier cell."""
_OPSET = 9
"""Opset from which Scan has no batch axis and ``Where`` exists."""
_OPSET_OF_SPREAD = 10
"""Opset from which ``Slice`` takes computed bounds."""


@dataclass(frozen=True, eq=False)
class _Result:
    """A result of a loop: of cell ``cell``, its rows or its last ``state`` (0 or 1).

    Rows are joined along ``joined``, None for a last state; ``axes`` are those of one row.
    """

    cell: int
    state: int
    axes: str
    joined: int | None


@dataclass(frozen=True, eq=False)
class RecurrentLoop:
    """The cells of a loop, in the order of their computation.

    * ``inputs``: what each cell reads;
    * ``initial``: the loop's operand and its axes, for each initial state by its number;
    * ``results``: what each result of the loop is, None if nothing reads it;
    * ``spread``: whether sequences and states may have batches of size 1 besides one other size;
    * ``empty``: whether the sequence may have no rows.
    """

    cells: tuple[Cell, ...]
    inputs: tuple[_Input, ...]
    initial: Mapping[int, tuple[int, str]]
    results: tuple[_Result | None, ...]
    batched: bool
    spread: bool
    reverse: bool
    empty: bool


def find_recurrent_loops(editor: GraphEditor) -> dict[str, RecurrentLoop]:
    """Return the loops of a canonicalized graph that compute recurrent cells, by first output."""
    found = {}
    for call in editor.calls():
        body = attribute(call.proto, "body") if call.op in ("Loop", "Scan") else None
        if body is None or editor.opsets.get("", 0) < _OPSET:
            continue
        loop = _Matcher(call, body, editor).match()
        if loop is not None:
            found[next(filter(None, call.proto.output))] = loop
    return found


class _Matcher:
    """Recognizes the cells of one loop."""

    def __init__(self, call: EditorNode, body: GraphProto, editor: GraphEditor) -> None:
        self.call, self.body, self.editor = call, body, editor
        self.loop = call.op == "Loop"
        scanned = 0 if self.loop else attribute(call.proto, "num_scan_inputs", 0)
        self.first = 2 if self.loop else 0
        self.states = len(body.input) - self.first - scanned
        self.step = LoopStep(call, body, editor, self.first, self.states)
        self.reverse = False
        self.nexts: dict[int, Symbolic] = {}

    def match(self) -> RecurrentLoop | None:
        if not self._enter_rows():
            return None
        self.step.run()
        self.nexts = {i: v for i in range(self.states) if (v := self._next(i)) is not None}
        found = self._ordered([c for i in self.nexts if (c := match_cell(self.nexts, i))])
        if not found:
            return None
        cells, inputs = [cell for cell, _ in found], [source for _, source in found]
        results: list[_Result | None] = []
        for index, tensor in enumerate(self.call.handle.outputs):
            results.append(self._result(index, cells) if self._is_read(tensor) else None)
            if self._is_read(tensor) and results[-1] is None:
                return None
        initial, batches = self._initial(cells), self._batches(cells)
        spread = len(batches) > 1 or not batches.isdisjoint(self.editor.loose)
        if initial is None or (spread and None in batches):
            return None
        if spread and self.editor.opsets.get("", 0) < _OPSET_OF_SPREAD:
            return None
        if spread and any(c.op == "RNN" for c in cells):
            return None  # no kernel computes it, while those of the body may be computed by some
        length = self._length(cells)
        if length is None:
            return None
        empty = not isinstance(length, int) or not length
        if empty and any(c.op == "GRU" for c in cells):
            return None  # ONNX Runtime's GRU ends the process for a sequence without rows
        return RecurrentLoop(
            tuple(cells), tuple(inputs), initial, tuple(results), None not in batches,
            spread, self.reverse, empty,
        )  # fmt: skip

    def _next(self, state: int) -> Symbolic | None:
        """The next value of a state, if it has the axes of the value before."""
        before = self.step.value(self.body.input[self.first + state].name)
        after = self.step.next_of(state)
        both = isinstance(before, LinearRows) and isinstance(after, Symbolic)
        return after if both and after.axes == before.axes else None

    def _enter_rows(self) -> bool:
        """Enter the rows that a Scan reads; return whether they are understood."""
        if self.loop:
            return True
        proto, count = self.call.proto, len(self.body.input) - self.states
        directions = {
            d
            for name, n in (
                ("scan_input_directions", count),
                ("scan_output_directions", len(self.body.output) - self.states),
            )
            for d in attribute(proto, name, [0] * n)
        }
        if len(directions) != 1:
            return False
        self.reverse = directions == {1}
        axes = attribute(proto, "scan_input_axes", [0] * count)
        for axis, name, info in zip(
            axes, proto.input[self.states :], self.body.input[self.states :], strict=True
        ):
            made = self.step.outer_row(name, axis)
            if made is not None:
                self.step.values[info.name] = made
        return True

    def _ordered(self, cells: list[Cell]) -> list[tuple[Cell, _Input]]:
        """Cells after those whose results they read, and what each reads.

        Cells that read anything else are left out.
        """
        found: list[tuple[Cell, _Input]] = []
        while True:
            before = [cell for cell, _ in found]
            left = [c for c in cells if not any(c is one for one in before)]
            ready = ((c, i) for c in left if (i := self._input(c.x, before)) is not None)
            if (pair := next(ready, None)) is None:
                return found
            found.append(pair)

    def _input(self, rows: Rows, before: Sequence[Cell]) -> _Input | None:
        """The sequence that a cell reads, or the number of the cell whose results it reads."""
        if rows.kind == "sequence":
            name, axis = rows.key
            return name, axis, self.step.row_axes(name, axis)
        for i, cell in enumerate(before):
            if same_value(self.nexts[cell.states[0]], rows.key):
                return i
        return None

    def _is_read(self, tensor: gs.Variable) -> bool:
        """Whether anything reads a result of the loop."""
        named = self.editor.kept | self.editor.captured()
        return bool(tensor.name) and bool(tensor.outputs or tensor.name in named)

    def _result(self, index: int, cells: Sequence[Cell]) -> _Result | None:
        """What a result is; None if it is not of a cell."""
        if index < self.states:
            for i, cell in enumerate(cells):
                if index in cell.states:
                    return _Result(i, cell.states.index(index), self.nexts[index].axes, None)
            return None
        value = self.step.value(self.body.output[self.first // 2 + index].name)
        for i, cell in enumerate(cells):
            if isinstance(value, Symbolic) and same_value(value, self.nexts[cell.states[0]]):
                default = [0] * (len(self.body.output) - self.states)
                axes = attribute(self.call.proto, "scan_output_axes", default)
                joined = 0 if self.loop else axes[index - self.states]
                return _Result(i, 0, value.axes, joined % (len(value.axes) + 1))
        return None

    def _length(self, cells: Sequence[Cell]) -> Extent | None:
        """The rows of the sequences; None if the loop does not run once for every row."""
        keys = [c.x.key for c in cells if c.x.kind == "sequence"]
        lengths: set[Extent] = {(self.editor.facts.shape(name) or ())[axis] for name, axis in keys}
        if len(lengths) != 1:
            return None
        (length,) = lengths
        if not self.loop:
            return length
        limit, start = self.call.proto.input[:2]
        allowed = self.step.ends_with(self.body.output[0].name)
        if allowed is None or (start and not self._may_start(start, allowed)):
            return None
        own = self.step.limits(limit) if limit else ()
        if own is None:
            return None
        return length if {*allowed, *own} == {length} else None

    def _may_start(self, start: str, allowed: Sequence[Extent]) -> bool:
        """Whether a loop's first condition holds if there is a row."""
        known = self.editor.facts.numbers(start)
        if known is not None:
            return len(known) == 1 and bool(known[0])
        return all(n in allowed for n in self.step.lengths_above_zero(start) or (None,))

    def _initial(self, cells: Sequence[Cell]) -> dict[int, tuple[int, str]] | None:
        found = {}
        for state in (s for c in cells for s in c.states):
            operand = self.first + state
            axes = axes_of(self.call.proto.input[operand], self.editor)
            if axes is None:
                return None
            found[state] = operand, axes
        return found

    def _batches(self, cells: Sequence[Cell]) -> set[Extent | None]:
        """The batch sizes of all sequences and states; None for values without the axis."""
        facts, found = self.editor.facts, set[Extent | None]()
        for state in (s for c in cells for s in c.states):
            shape = facts.shape(self.call.proto.input[self.first + state]) or ()
            found |= {*shape[:-1]} - {1} or {None}
        for name, axis in (c.x.key for c in cells if c.x.kind == "sequence"):
            shape = facts.shape(name) or ()
            found |= {*shape[:axis], *shape[axis + 1 : -1]} - {1} or {None}
        return found


# ---- replacing -------------------------------------------------------------------------


def replace_recurrent_loops(model: ModelProto, found: Mapping[str, RecurrentLoop]) -> bool:
    """Replace the loops in ``found`` by recurrent operators, in place; return whether any was."""
    graph, count = model.graph, 0
    opset = next((i.version for i in model.opset_import if i.domain in ("", "ai.onnx")), 1)
    additions = SkeletonAdditions(graph, opset)
    for index in range(len(graph.node)):
        node = graph.node[index]
        loop = found.get(next(filter(None, node.output), ""))
        if loop is not None:
            _Replacement(node, loop, additions).write()
            count += 1
    return count > 0


@dataclass
class _Replacement:
    """Writes one loop's recurrent operators.

    Axes are written as in ``Symbolic.axes``, with "t" for the axis of the rows.
    """

    node: NodeProto
    loop: RecurrentLoop
    to: SkeletonAdditions

    def write(self) -> None:
        """Replace the loop."""
        stem, batch = next(filter(None, self.node.output)), "b" if self.loop.batched else "1"
        rows: list[str] = []
        made: list[Sequence[str]] = []
        for i, (cell, source) in enumerate(zip(self.loop.cells, self.loop.inputs, strict=True)):
            x = rows[source] if isinstance(source, int) else self._sequence(source, batch)
            made.append(self._operator(cell, x, f"{stem}:{cell.op.lower()}{i}", batch))
            axes = f"t1{batch}c", f"t{batch}c"
            rows.append(self._with_axes(made[-1][0], *axes, f"{stem}:rows{i}"))
        finals = []
        for result, name in zip(self.loop.results, self.node.output, strict=True):
            final = ""
            if result is not None and result.joined is not None:
                wanted = result.axes[: result.joined] + "t" + result.axes[result.joined :]
                final = self._with_axes(rows[result.cell], f"t{batch}c", wanted, f"{name}:rows")
            elif result is not None:
                last = made[result.cell][1 + result.state]
                final = self._with_axes(last, f"1{batch}c", result.axes, f"{name}:last")
            finals.append(final)
        self.to.replace(self.node, finals)

    def _sequence(self, source: tuple[str, int, str], batch: str) -> str:
        name, axis, axes = source
        have = axes[:axis] + "t" + axes[axis:]
        return self._with_axes(name, have, f"t{batch}c", f"{name}:sequence")

    def _operator(self, cell: Cell, x: str, stem: str, batch: str) -> list[str]:
        """Add a cell's operator; return its rows and its last states."""
        weights = [
            self.to.constant(f"{stem}:{n}", a)
            for n, a in (("w", cell.w), ("r", cell.r), ("b", cell.b))
        ]
        states = []
        for state in cell.states:
            operand, axes = self.loop.initial[state]
            name = self.node.input[operand]
            states.append(self._with_axes(name, axes, f"1{batch}c", f"{name}:start"))
        first = states
        if self.loop.spread:
            x, *states = self._of_one_batch([x, *states], stem)
        results = [self.to.fresh(f"{stem}:{n}") for n in ("y", "h", "c")[: 1 + len(states)]]
        attributes: dict[str, Any] = {"hidden_size": cell.hidden}
        if cell.op == "GRU":
            attributes["linear_before_reset"] = int(cell.reset_after)
        if self.loop.reverse:
            attributes["direction"] = "reverse"
        self.to.add_node(cell.op, [x, *weights, "", *states], results, **attributes)
        if not self.loop.empty:
            return results
        return [results[0], *self._unless_empty(x, results[1:], first, stem)]

    def _of_one_batch(self, values: Sequence[str], stem: str) -> list[str]:
        """Repeat values [rows, batch, columns] whose batch is 1 as often as the others have it."""
        one = self.to.constant(f"{stem}:one", np.array([1], np.int64))
        batches = [self._batch(value, stem) for value in values]
        most, *others = batches
        for other in others:
            single = self.to.add("Equal", [most, one], f"{stem}:single")
            most = self.to.add("Where", [single, other, most], f"{stem}:batch")
        shape = self.to.add("Concat", [one, most, one], f"{stem}:repeated", axis=0)
        return [self.to.add("Expand", [v, shape], f"{v}:repeated") for v in values]

    def _batch(self, value: str, stem: str) -> str:
        """Return the number of rows [1] in the middle axis of a value."""
        shape = self.to.add("Shape", [value], f"{stem}:shape")
        middle = self.to.constant(f"{stem}:middle", np.array([1], np.int64))
        return self.to.add("Gather", [shape, middle], f"{stem}:batch", axis=0)

    def _unless_empty(
        self, x: str, last: Sequence[str], first: Sequence[str], stem: str
    ) -> list[str]:
        """Return the last states, or the first ones of a sequence without rows.

        ONNX Runtime's operators answer zeros then.
        """
        if all(r is None or r.joined is not None for r in self.loop.results):
            return [*last]
        shape = self.to.add("Shape", [x], f"{stem}:shape")
        zero = self.to.constant(f"{stem}:zero", np.array(0, np.int64))
        rows = self.to.add("Gather", [shape, zero], f"{stem}:length", axis=0)
        none = self.to.add("Equal", [rows, zero], f"{stem}:empty")
        chosen = []
        for f, v in zip(first, last, strict=True):
            made = self.to.add("Where", [none, f, v], f"{v}:or first")
            if self.loop.spread:  # a first state of fewer rows is not repeated
                size = [self._batch(f, stem), self._batch(v, stem)]
                held = self.to.add("Where", [none, *size], f"{v}:batch")
                bounds = [self.to.constant(f"{v}:{at}", np.array([at])) for at in (0, 1)]
                made = self.to.add("Slice", [made, bounds[0], held, bounds[1]], f"{v}:as first")
            chosen.append(made)
        return chosen

    def _with_axes(self, value: str, have: str, want: str, name: str) -> str:
        """Return a value with other axes of size 1, and other axes first."""
        if have == want:
            return value
        value = self.to.with_axes(
            "Squeeze", value, [i for i, a in enumerate(have) if a == "1"], name
        )
        order, wanted = have.replace("1", ""), want.replace("1", "")
        if order != wanted:
            perm = [order.index(a) for a in wanted]
            value = self.to.add("Transpose", [value], name, perm=perm)
        return self.to.with_axes(
            "Unsqueeze", value, [i for i, a in enumerate(want) if a == "1"], name
        )
