"""``FusedRecurrent``: a long short-term memory or a gated recurrent unit, one or both directions.

With p = x · W + bias over all steps at once, and for each step in the direction's order

    lstm   i, o, f, g = σ(pᵢ + h·Rᵢ), σ(pₒ + h·Rₒ), σ(p_f + h·R_f), tanh(p_g + h·R_g)
           c = f·c + i·g        h = o·tanh(c)
    gru    z, r = σ(p_z + h·R_z), σ(p_r + h·R_r)       n = tanh(pₙ + r·(h·Rₙ + rest))
           h = (1 − z)·n + z·h
    before n = tanh(pₙ + (r·h)·Rₙ), the rest as gru

which is what ONNX's LSTM, and its GRU with and without ``linear_before_reset``, do by default.

W and R are stored as panels ``[directions, panels, K, 16]``.  Each gate has panels of its own, so
that one pass over k gives all gates of 16 units.  What is left of the units behind those, gate
after gate, shares the panels that follow where that saves one: an LSTM of 100 units has four times
6 panels and then one with 4 units of each gate.  Lanes past the units are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Attr, DType, TensorSpec
from tracea_graph.ops.body import Body, BodyBuilder
from tracea_graph.ops.weights import ALIGNED

__all__ = ["GATES", "Gates", "RecurrentParams", "pack_gates", "pad_gates", "take_gates"]

Floats = npt.NDArray[np.floating[Any]]

GATES = {"lstm": 4, "gru": 3}
_RESULTS = ("y", "h", "c")


@dataclass(frozen=True)
class Gates:
    """How some gates of ``hidden`` units lie in panels."""

    gates: int
    hidden: int

    @property
    def own(self) -> int:
        """Panels that each gate has for itself."""
        whole, rest = divmod(self.hidden, ALIGNED)
        return whole + (-(-self.gates * rest // ALIGNED) == self.gates)

    @property
    def shared(self) -> int:
        """Units of each gate that lie in panels shared by all."""
        return max(0, self.hidden - self.own * ALIGNED)

    @property
    def columns(self) -> int:
        """Lanes of all panels."""
        return (self.gates * self.own + -(-self.gates * self.shared // ALIGNED)) * ALIGNED

    def pad(self, rows: Floats) -> Floats:
        """``[directions, gates, H, …]`` as ``[directions, columns, …]``."""
        directions, _, _, *more = rows.shape
        padded = np.zeros((directions, self.columns, *more), rows.dtype)
        split, wide = min(self.hidden, self.own * ALIGNED), self.gates * self.own * ALIGNED
        own = padded[:, :wide].reshape(directions, self.gates, self.own * ALIGNED, *more)
        own[:, :, :split] = rows[:, :, :split]
        shared = rows[:, :, split:].reshape(directions, -1, *more)
        padded[:, wide : wide + shared.shape[1]] = shared
        return padded


def pad_gates(rows: Floats, layout: Sequence[Gates]) -> Floats:
    """``[directions, gates · H, …]`` as the lanes of the panels, with zeros between."""
    directions, _, *more = rows.shape
    apart = rows.reshape(directions, -1, layout[0].hidden, *more)
    ends = np.cumsum([part.gates for part in layout])
    parts = zip(layout, np.split(apart, ends[:-1], axis=1), strict=True)
    return np.concatenate([part.pad(gates) for part, gates in parts], axis=1)


def pack_gates(matrix: Floats, layout: Sequence[Gates]) -> Floats:
    """ONNX's ``[directions, gates · H, K]`` as panels ``[directions, panels, K, 16]``."""
    padded = pad_gates(matrix, layout)
    directions, rows, k = padded.shape
    panels = padded.reshape(directions, rows // ALIGNED, ALIGNED, k)
    return np.ascontiguousarray(panels.transpose(0, 1, 3, 2))


def take_gates(lanes: Floats, layout: Sequence[Gates]) -> list[Floats]:
    """Each gate's ``[…, H]`` from ``[…, columns]``."""
    found, at = [], 0
    for part in layout:
        wide = at + part.gates * part.own * ALIGNED
        for g in range(part.gates):
            first, behind = at + g * part.own * ALIGNED, wide + g * part.shared
            own = lanes[..., first : first + min(part.hidden, part.own * ALIGNED)]
            found.append(np.concatenate((own, lanes[..., behind : behind + part.shared]), -1))
        at += part.columns
    return found


@dataclass(frozen=True)
class RecurrentParams:
    """Operands: x ``[T, B, I]``, W, R, bias ``[directions, columns]``, the gru's rest
    ``[directions, padded H]`` unless it resets ``before`` its product; with ``initial`` h and the
    lstm's c, ``[directions, B, H]``.

    ``reverse``: for each direction, whether it begins at the last step.  ``results``: which of
    y ``[T, directions, B, H]``, the last h and the lstm's last c are wanted, in this order.
    """

    kind: str
    inputs: int
    hidden: int
    reverse: tuple[bool, ...] = (False,)
    initial: bool = False
    results: tuple[str, ...] = ("y",)
    before: bool = False

    def __post_init__(self) -> None:
        if self.kind not in GATES or min(self.inputs, self.hidden) < 1:
            raise ValueError(f"no {self.kind} of {self.inputs} inputs and {self.hidden} units")
        if self.before and self.kind != "gru":
            raise ValueError("only a gru resets its state")
        if self.reverse not in ((False,), (True,), (False, True)):
            raise ValueError("directions are forward, reverse, or forward and reverse")
        known = _RESULTS[: 3 if self.kind == "lstm" else 2]
        if not self.results or self.results != tuple(r for r in known if r in self.results):
            raise ValueError(f"results are some of {', '.join(known)}, in this order")

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def directions(self) -> int:
        return len(self.reverse)

    @property
    def layout(self) -> tuple[Gates, ...]:
        """A gru that resets its state before the product computes its last gate after that."""
        if self.before:
            return Gates(2, self.hidden), Gates(1, self.hidden)
        return (Gates(self.gates, self.hidden),)

    @property
    def columns(self) -> int:
        """Lanes of the panels of all gates."""
        return sum(part.columns for part in self.layout)

    @property
    def padded(self) -> int:
        """Units of a gate, whole panels of them."""
        return -(-self.hidden // ALIGNED) * ALIGNED

    @property
    def states(self) -> int:
        return 2 if self.kind == "lstm" else 1

    @property
    def operands(self) -> int:
        return 4 + self.late + (self.states if self.initial else 0)

    @property
    def late(self) -> bool:
        """True if a part of the bias is added to the state's product, which is reset then."""
        return self.kind == "gru" and not self.before

    def split(self, items: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any | None, Sequence[Any]]:
        """Operands by role: x, W, R, bias, rest or None, initial states."""
        first = 4 + self.late
        return (*items[:4], items[4] if first == 5 else None, items[first:])

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Raises ValueError if x is no ``[T, B, I]``."""
        shape = specs[0].shape
        if shape is None or len(shape) != 3:
            raise ValueError("x is not known to have three axes")
        steps, batch, _ = shape
        whole = TensorSpec(DType.F32, (steps, self.directions, batch, self.hidden))
        last = TensorSpec(DType.F32, (self.directions, batch, self.hidden))
        return tuple(whole if name == "y" else last for name in self.results)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        """NumPy, in the operands' precision."""
        x, w, r, bias, rest, initial = self.split(arrays)
        steps, batch, _ = x.shape
        zeros = np.zeros((self.directions, batch, self.hidden), x.dtype)
        states = [a.astype(x.dtype) for a in initial] or [zeros] * self.states
        y = np.zeros((steps, self.directions, batch, self.hidden), x.dtype)
        last = [np.zeros_like(zeros) for _ in states]
        for d, turned in enumerate(self.reverse):
            ahead = take_gates(x @ _matrix(w[d]) + bias[d], self.layout)
            back = take_gates(_matrix(r[d]), self.layout)
            own = [s[d] for s in states]
            late = None if rest is None else rest[d][: self.hidden]
            for t in reversed(range(steps)) if turned else range(steps):
                own = self._step([a[t] for a in ahead], back, own, late)
                y[t, d] = own[0]
            for state, value in zip(last, own, strict=True):
                state[d] = value
        found = {"y": y, "h": last[0], "c": last[-1]}
        return [found[name] for name in self.results]

    def _step(
        self, p: Sequence[Floats], back: Sequence[Floats], own: Sequence[Floats], rest: Any
    ) -> list[Floats]:
        s = [own[0] @ m for m in back]
        if self.kind == "gru":
            z, r = _sigmoid(p[0] + s[0]), _sigmoid(p[1] + s[1])
            reset = (r * own[0]) @ back[2] if self.before else r * (s[2] + rest)
            n = np.tanh(p[2] + reset)
            return [(1 - z) * n + z * own[0]]
        i, o, f = (_sigmoid(p[g] + s[g]) for g in range(3))
        c = f * own[1] + i * np.tanh(p[3] + s[3])
        return [o * np.tanh(c), c]

    def body(self, opset: int) -> Body:
        """ONNX's own operator, with its matrices unpacked."""
        b = BodyBuilder(self.operands, opset)
        x, w, r, bias, rest, initial = self.split(b.inputs)
        rows = self.gates * self.hidden
        zeros = np.zeros((self.directions, rows), np.float32)
        late = b("Constant", value=zeros[:, : 2 * self.hidden] if self.late else zeros)
        if rest is not None:
            if self.padded != self.hidden:
                rest = b.slice_last(rest, 0, self.hidden)
            late = b("Concat", late, rest, axis=1)
        ahead = b("Reshape", self._spell_gates(b, bias), b.ints(self.directions, rows))
        both = b("Concat", ahead, late, axis=1)
        direction = "bidirectional" if len(self.reverse) > 1 else "reverse"
        attributes: dict[str, Attr] = {
            "hidden_size": self.hidden,
            "direction": direction if any(self.reverse) else "forward",
        }
        if self.late:
            attributes["linear_before_reset"] = 1
        operands = (x, self._spell_matrix(b, w), self._spell_matrix(b, r), both)
        names = b.node(
            self.kind.upper(), (*operands, *(("", *initial) if initial else ())),
            [name if name in self.results else "" for name in _RESULTS[: 1 + self.states]],
            attributes,
        )  # fmt: skip
        return b.done(*filter(None, names))

    def _spell_matrix(self, b: BodyBuilder, panels: str) -> str:
        """``[directions, gates · H, K]`` from panels."""
        turned = b("Transpose", panels, perm=(0, 1, 3, 2))
        lanes = b("Reshape", turned, b.ints(self.directions, self.columns, -1))
        rows = self.gates * self.hidden
        return b("Reshape", self._spell_gates(b, lanes), b.ints(self.directions, rows, -1))

    def _spell_gates(self, b: BodyBuilder, lanes: str) -> str:
        """``[directions, gates, H, K]`` from ``[directions, columns, K]``; of a bias K is 1."""
        parts, at = [], 0
        for part in self.layout:
            of = b.slice_last(lanes, at, at + part.columns, 1) if len(self.layout) > 1 else lanes
            parts.append(self._spell_part(b, of, part))
            at += part.columns
        return b("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]

    def _spell_part(self, b: BodyBuilder, lanes: str, part: Gates) -> str:
        """The same of some gates."""
        wide, shared = part.gates * part.own * ALIGNED, part.shared
        pieces = []
        if part.own:
            own = b.slice_last(lanes, 0, wide, 1) if shared else lanes
            own = b("Reshape", own, b.ints(self.directions, part.gates, part.own * ALIGNED, -1))
            if part.own * ALIGNED > self.hidden:
                own = b.slice_last(own, 0, self.hidden, 2)
            pieces.append(own)
        if shared:
            rest = b.slice_last(lanes, wide, wide + part.gates * shared, 1)
            pieces.append(b("Reshape", rest, b.ints(self.directions, part.gates, shared, -1)))
        return b("Concat", *pieces, axis=2) if len(pieces) > 1 else pieces[0]


def _matrix(panels: Floats) -> Floats:
    """``[K, N]`` from ``[N/16, K, 16]``."""
    count, k, width = panels.shape
    return panels.transpose(1, 0, 2).reshape(k, count * width)


def _sigmoid(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))
