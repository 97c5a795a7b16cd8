"""``FusedRecurrent``: a long short-term memory or a gated recurrent unit, one or both directions.

With p = x · W + bias over all steps at once, and for each step in the direction's order

    lstm   i, o, f, g = σ(pᵢ + h·Rᵢ), σ(pₒ + h·Rₒ), σ(p_f + h·R_f), tanh(p_g + h·R_g)
           c = f·c + i·g        h = o·tanh(c)
    gru    z, r = σ(p_z + h·R_z), σ(p_r + h·R_r)       n = tanh(pₙ + r·(h·Rₙ + rest))
           h = (1 − z)·n + z·h
    before n = tanh(pₙ + (r·h)·Rₙ), the rest as gru

which is what ONNX's LSTM, and its GRU with and without ``linear_before_reset``, do by default.

W and R are stored as panels ``[directions, gates · ⌈H/16⌉, K, 16]``: each gate begins a panel, so
that one pass over k gives all gates of 16 units.  Lanes past H are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Attr, DType, TensorSpec
from tracea_graph.ops.body import Body, BodyBuilder
from tracea_graph.ops.gemm import PANEL

__all__ = ["GATES", "RecurrentParams", "pack_gates", "pad_gates"]

Floats = npt.NDArray[np.floating[Any]]

GATES = {"lstm": 4, "gru": 3}
_RESULTS = ("y", "h", "c")


def pad_gates(rows: Floats, gates: int) -> Floats:
    """``[directions, gates · H, …]`` with each gate's rows padded to whole panels, by zeros."""
    directions, length, *rest = rows.shape
    units = length // gates
    padded = np.zeros((directions, gates, -(-units // PANEL) * PANEL, *rest), rows.dtype)
    padded[:, :, :units] = rows.reshape(directions, gates, units, *rest)
    return padded.reshape(directions, -1, *rest)


def pack_gates(matrix: Floats, gates: int) -> Floats:
    """ONNX's ``[directions, gates · H, K]`` as panels ``[directions, gates · ⌈H/16⌉, K, 16]``."""
    padded = pad_gates(matrix, gates)
    directions, rows, k = padded.shape
    panels = padded.reshape(directions, rows // PANEL, PANEL, k)
    return np.ascontiguousarray(panels.transpose(0, 1, 3, 2))


@dataclass(frozen=True)
class RecurrentParams:
    """Operands: x ``[T, B, I]``, W, R, bias ``[directions, padded gates]``, the gru's rest
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
    def padded(self) -> int:
        """Units of a gate, whole panels of them."""
        return -(-self.hidden // PANEL) * PANEL

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
            ahead = [self._units(a) for a in np.split(x @ _matrix(w[d]) + bias[d], self.gates, -1)]
            back = [a[:, : self.hidden] for a in np.split(_matrix(r[d]), self.gates, -1)]
            own = [s[d] for s in states]
            late = None if rest is None else self._units(rest[d])
            for t in reversed(range(steps)) if turned else range(steps):
                own = self._step([a[t] for a in ahead], back, own, late)
                y[t, d] = own[0]
            for state, value in zip(last, own, strict=True):
                state[d] = value
        found = {"y": y, "h": last[0], "c": last[-1]}
        return [found[name] for name in self.results]

    def _units(self, a: Floats) -> Floats:
        return a[..., : self.hidden]

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
        zeros = np.zeros((self.directions, self.gates * self.hidden), np.float32)
        late = b("Constant", value=zeros[:, : 2 * self.hidden] if self.late else zeros)
        if rest is not None:
            late = b("Concat", late, self._spell_units(b, rest, 1), axis=1)
        both = b("Concat", self._spell_units(b, bias, self.gates), late, axis=1)
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

    def _spell_units(self, b: BodyBuilder, value: str, gates: int) -> str:
        """``[directions, gates · padded]`` without what pads it."""
        if self.padded == self.hidden:
            return value
        apart = b("Reshape", value, b.ints(self.directions, gates, self.padded))
        return b("Reshape", b.slice_last(apart, 0, self.hidden), b.ints(self.directions, -1))

    def _spell_matrix(self, b: BodyBuilder, panels: str) -> str:
        """``[directions, gates · H, K]`` from panels."""
        turned = b("Transpose", panels, perm=(0, 1, 3, 2))
        sizes = b.ints(self.directions, self.gates, self.padded, -1)
        apart = b("Reshape", turned, sizes)
        if self.padded != self.hidden:
            apart = b.slice_last(apart, 0, self.hidden, 2)
        rows = self.gates * self.hidden
        return b("Reshape", apart, b.ints(self.directions, rows, -1))


def _matrix(panels: Floats) -> Floats:
    """``[K, N]`` from ``[N/16, K, 16]``."""
    count, k, width = panels.shape
    return panels.transpose(1, 0, 2).reshape(k, count * width)


def _sigmoid(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))
