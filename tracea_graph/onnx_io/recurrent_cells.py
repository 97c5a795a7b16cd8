"""Symbolic values of one step of a recurrence, and the cells that they add up to.

A step reads rows: of sequences, of the states that it carries, of values that it has computed.
What is linear in rows is kept as a matrix for each of them (:class:`LinearRows`); sigmoids, tanhs
(:class:`Activation`), products and sums (:class:`Combination`) of these make a cell.

    LSTM    c' = f·c + i·g,  h' = o·tanh(c')
    GRU     h' = (1 − z)·n + z·h,  n = tanh(… + (r·h)·R)  or  tanh(… + r·(h·R + b))
    RNN     h' = tanh(x·W + h·R + b)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "Activation", "Cell", "Combination", "LinearRows", "Rows", "Symbolic", "match_cell",
    "same_value", "slice_columns",
]  # fmt: skip

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rows:
    """A batch of rows that a step reads.

    ``kind`` is "sequence", "state" or "value"; ``key`` is the number of the state, or what
    identifies the sequence; for a value it is the symbolic value itself.
    """

    kind: str
    key: Any
    width: int

    def same(self, other: Rows) -> bool:
        """Return whether both are the same rows."""
        if self.kind != other.kind:
            return False
        if self.kind == "value":
            return same_value(self.key, other.key)
        return bool(self.key == other.key)


@dataclass(frozen=True, eq=False)
class Symbolic:
    """A float32 value with ``width`` columns.

    ``axes`` has a letter for each axis: "b" the batch, "c" the columns, "1" an axis of size 1.
    """

    axes: str
    width: int


@dataclass(frozen=True, eq=False)
class LinearRows(Symbolic):
    """The sum of ``rows · matrix`` over ``terms``, plus ``bias`` [width]; None is the identity."""

    terms: tuple[tuple[Rows, Array | None], ...]
    bias: Array

    @classmethod
    def of(cls, rows: Rows, axes: str) -> LinearRows:
        """Return rows themselves."""
        return cls(axes, rows.width, ((rows, None),), np.zeros(rows.width, np.float32))

    @property
    def source(self) -> Rows | None:
        """The rows that this is equal to, if there are any."""
        if len(self.terms) != 1 or self.terms[0][1] is not None or self.bias.any():
            return None
        return self.terms[0][0]

    def times(self, matrix: Array) -> LinearRows:
        """Return the product with a matrix [width, columns]."""
        terms = tuple((r, matrix if m is None else m @ matrix) for r, m in self.terms)
        return LinearRows(self.axes, matrix.shape[1], terms, self.bias @ matrix)

    def scaled(self, factor: Array | np.float32) -> LinearRows:
        """Return the columns times ``factor``, a number or [width]."""
        terms = tuple((r, _dense(r, m) * factor) for r, m in self.terms)
        return LinearRows(self.axes, self.width, terms, self.bias * factor)

    def plus(self, other: LinearRows, axes: str) -> LinearRows:
        """Return the sum of two values of equal width."""
        terms = list(self.terms)
        for rows, matrix in other.terms:
            at = next((i for i, (r, _) in enumerate(terms) if r.same(rows)), None)
            if at is None:
                terms.append((rows, matrix))
            else:
                terms[at] = rows, _dense(rows, terms[at][1]) + _dense(rows, matrix)
        return LinearRows(axes, self.width, tuple(terms), self.bias + other.bias)

    def widened(self, before: int, after: int) -> LinearRows:
        """Return the columns with columns of zeros around them."""
        pads = (before, after)
        terms = tuple((r, np.pad(_dense(r, m), ((0, 0), pads))) for r, m in self.terms)
        return LinearRows(self.axes, before + self.width + after, terms, np.pad(self.bias, pads))

    def matrix_of(self, rows: Rows) -> Array:
        """Return the matrix [rows.width, width] of some rows; zeros if they are not read."""
        found = next((_dense(r, m) for r, m in self.terms if r.same(rows)), None)
        return np.zeros((rows.width, self.width), np.float32) if found is None else found


@dataclass(frozen=True, eq=False)
class Activation(Symbolic):
    """``name`` ("Sigmoid" or "Tanh") of a value."""

    name: str
    of: Symbolic


@dataclass(frozen=True, eq=False)
class Combination(Symbolic):
    """The product ("Mul"), sum ("Add") or difference ("Sub") of two values.

    A minuend may be None, which stands for ones.
    """

    name: str
    sides: tuple[Symbolic | None, Symbolic]


def same_value(left: Any, right: Any) -> bool:
    """Return whether two symbolic values are equal but for axes of size 1."""
    if left is right or type(left) is not type(right):
        return left is right
    if isinstance(left, Activation):
        return left.name == right.name and same_value(left.of, right.of)
    if isinstance(left, Combination):
        return left.sides is right.sides
    return isinstance(left, LinearRows) and left.terms is right.terms and left.bias is right.bias


def _dense(rows: Rows, matrix: Array | None) -> Array:
    return np.eye(rows.width, dtype=np.float32) if matrix is None else matrix


def slice_columns(value: Symbolic, start: int, end: int) -> Symbolic | None:
    """Return some columns of a value; None for combinations."""
    if isinstance(value, Activation):
        inner = slice_columns(value.of, start, end)
        return inner and Activation(value.axes, end - start, value.name, inner)
    if not isinstance(value, LinearRows):
        return None
    terms = tuple((r, _dense(r, m)[:, start:end]) for r, m in value.terms)
    return LinearRows(value.axes, end - start, terms, value.bias[start:end])


# ---- cells -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cell:
    """An LSTM, GRU or RNN operator's weights, and which rows it reads.

    ``w`` [1, gates·hidden, input], ``r`` [1, gates·hidden, hidden], ``b`` [1, 2·gates·hidden] have
    ONNX's order of gates; ``states`` are the numbers of its states.
    """

    op: str
    x: Rows
    states: tuple[int, ...]
    w: Array
    r: Array
    b: Array
    reset_after: bool = False

    @property
    def hidden(self) -> int:
        """The width of a state."""
        return int(self.r.shape[2])


def match_cell(nexts: Mapping[int, Symbolic], state: int) -> Cell | None:
    """Return the cell whose result is the next value of a state; None if there is none.

    ``nexts`` are the next values of all states by their numbers.
    """
    return _lstm(nexts, state) or _gru(nexts, state) or _rnn(nexts, state)


def _lstm(nexts: Mapping[int, Symbolic], h: int) -> Cell | None:
    for o, squashed in _factors(nexts[h]):
        if not (_is(o, "Sigmoid") and _is(squashed, "Tanh")):
            continue
        assert isinstance(o, Activation) and isinstance(squashed, Activation)
        c = next((k for k, v in nexts.items() if k != h and same_value(v, squashed.of)), None)
        if c is None:
            continue
        for kept, added in _addends_in_turn(squashed.of):
            for (f, before), (i, g) in product(_factors(kept), _factors(added)):
                if not (_is(f, "Sigmoid") and _is(i, "Sigmoid") and _is(g, "Tanh")):
                    continue
                if _state_of(before) != c:
                    continue
                return _assembled("LSTM", (i, o, f, g), (h, c))
    return None


def _gru(nexts: Mapping[int, Symbolic], h: int) -> Cell | None:
    for z, n, negative in _blends(nexts[h], h):
        if not (_is(z, "Sigmoid") and _is(n, "Tanh")):
            continue
        assert isinstance(z, Activation) and isinstance(n, Activation)
        update = z.of
        if not isinstance(update, LinearRows):
            continue
        if negative:
            update = update.scaled(np.float32(-1.0))
        found = _reset_before(n.of, h) or _reset_after(n.of, h)
        if found is not None:
            reset, ahead, back, after = found
            return _gates("GRU", [update, reset, ahead], (h,), (back, after))
    return None


def _rnn(nexts: Mapping[int, Symbolic], h: int) -> Cell | None:
    value = nexts[h]
    return _assembled("RNN", (value,), (h,)) if _is(value, "Tanh") else None


def _blends(value: Symbolic, h: int) -> Iterator[tuple[Symbolic, Symbolic, bool]]:
    """Yield z, n and whether z weighs n instead of h, for all readings of ``(1 − z)·n + z·h``."""
    for kept, added in _addends_in_turn(value):
        for (z, before), (rest, n) in product(_factors(kept), _factors(added)):
            if _state_of(before) != h:
                continue
            if _is_rest(rest, z):  # z·h + (1 − z)·n
                yield z, n, False
            elif _is_rest(z, rest):  # (1 − z)·h + z·n
                yield rest, n, True
        for z, gap in _factors(added):
            if not (isinstance(gap, Combination) and gap.name == "Sub" and gap.sides[0]):
                continue
            if same_value(gap.sides[1], kept) and _state_of(gap.sides[0]) == h:  # n + z·(h − n)
                yield z, kept, False
            elif _state_of(kept) == h and _state_of(gap.sides[1]) == h:  # h + z·(n − h)
                yield z, gap.sides[0], True


def _reset_before(value: Symbolic, h: int) -> tuple[LinearRows, LinearRows, Array, None] | None:
    """``x·W + (r·h)·R + b``: the reset gate, what is linear in x, R, and no bias of its own."""
    if not isinstance(value, LinearRows):
        return None
    for rows, matrix in value.terms:
        for r, before in _factors(rows.key) if rows.kind == "value" else ():
            if _is(r, "Sigmoid") and _state_of(before) == h:
                rest = tuple(t for t in value.terms if t[0] is not rows)
                assert isinstance(r, Activation)
                if isinstance(r.of, LinearRows) and not any(t.kind == "state" for t, _ in rest):
                    ahead = LinearRows(value.axes, value.width, rest, value.bias)
                    return r.of, ahead, _dense(rows, matrix), None
    return None


def _reset_after(value: Symbolic, h: int) -> tuple[LinearRows, LinearRows, Array, Array] | None:
    """``x·W + b + r·(h·R + b')``: the reset gate, what is linear in x, R and b'."""
    parts = [*_addends(value)]
    linear = [p for p in parts if isinstance(p, LinearRows)]
    others = [p for p in parts if not isinstance(p, LinearRows)]
    if len(others) != 1 or not linear:
        return None
    ahead = linear[0]
    for part in linear[1:]:
        ahead = ahead.plus(part, ahead.axes)
    for r, back in _factors(others[0]):
        if not (_is(r, "Sigmoid") and isinstance(back, LinearRows)):
            continue
        assert isinstance(r, Activation)
        only = all(t.kind == "state" and t.key == h for t, _ in back.terms)
        if only and back.terms and isinstance(r.of, LinearRows):
            return r.of, ahead, back.matrix_of(back.terms[0][0]), back.bias
    return None


def _assembled(op: str, gates: Sequence[Symbolic], states: tuple[int, ...]) -> Cell | None:
    """Return the cell of these activations, each of linear rows."""
    inner = [g.of for g in gates if isinstance(g, Activation)]
    linear = [v for v in inner if isinstance(v, LinearRows)]
    return _gates(op, linear, states) if len(linear) == len(gates) else None


def _gates(
    op: str,
    gates: Sequence[LinearRows],
    states: tuple[int, ...],
    last: tuple[Array, Array | None] | None = None,
) -> Cell | None:
    """Return the cell with these gates; ``last`` are R and bias of the last one, if separate."""
    read = [rows for gate in gates for rows, _ in gate.terms]
    inputs = [r for r in read if r.kind != "state"]
    recurrent = [r for r in read if r.kind == "state"]
    if not inputs or not all(r.same(inputs[0]) for r in inputs):
        return None
    if any(r.key != states[0] for r in recurrent):
        return None
    hidden = gates[0].width
    state = Rows("state", states[0], hidden)
    back = [gate.matrix_of(state) for gate in gates]
    biases = [np.zeros(hidden, np.float32) for _ in gates]
    if last is not None:
        back[-1] = last[0]
        biases[-1] = biases[-1] if last[1] is None else last[1]
    if any(g.width != hidden for g in gates) or any(m.shape != (hidden, hidden) for m in back):
        return None
    if all(np.count_nonzero(m - np.diag(m.diagonal())) == 0 for m in back):
        return None  # elementwise in the states: products with whole matrices would be slower
    w = np.concatenate([gate.matrix_of(inputs[0]).T for gate in gates])
    bias = np.concatenate([*(gate.bias for gate in gates), *biases])
    r = np.concatenate([m.T for m in back])
    after = last is not None and last[1] is not None
    w, r, bias = (a[None].astype(np.float32) for a in (w, r, bias))
    return Cell(op, inputs[0], states, w, r, bias, after)


# ---- readings --------------------------------------------------------------------------


def _is(value: Any, name: str) -> bool:
    return isinstance(value, Activation) and value.name == name


def _state_of(value: Any) -> int | None:
    """Return the number of the state that a value is, if it is one."""
    rows = value.source if isinstance(value, LinearRows) else None
    return int(rows.key) if rows is not None and rows.kind == "state" else None


def _is_rest(value: Any, of: Any) -> bool:
    """Whether a value is ``1 − of``."""
    sub = isinstance(value, Combination) and value.name == "Sub"
    return sub and value.sides[0] is None and same_value(value.sides[1], of)


def _factors(value: Any) -> list[tuple[Any, Any]]:
    """Return both orders of a product's factors."""
    return _sides(value, "Mul")


def _addends_in_turn(value: Any) -> list[tuple[Any, Any]]:
    """Return both orders of a sum's addends."""
    return _sides(value, "Add")


def _sides(value: Any, name: str) -> list[tuple[Any, Any]]:
    found = isinstance(value, Combination) and value.name == name
    return [*permutations(value.sides)] if found else []


def _addends(value: Symbolic | None) -> Iterator[Symbolic]:
    if isinstance(value, Combination) and value.name == "Add":
        for side in value.sides:
            yield from _addends(side)
    elif value is not None:
        yield value
