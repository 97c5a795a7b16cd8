"""``FusedRecurrent``: LSTM or GRU, in one or both directions.

With p = x · W + bias over all steps at once, and for each step in the direction's order

    lstm   i, o, f, g = σ(pᵢ + h·Rᵢ), σ(pₒ + h·Rₒ), σ(p_f + h·R_f), tanh(p_g + h·R_g)
           c = f·c + i·g        h = o·tanh(c)
    gru    z, r = σ(p_z + h·R_z), σ(p_r + h·R_r)       n = tanh(pₙ + r·(h·Rₙ + rest))
           h = (1 − z)·n + z·h
    before n = tanh(pₙ + (r·h)·Rₙ), otherwise like gru

These are the defaults of ONNX's LSTM, and of its GRU with and without ``linear_before_reset``.

W, R and the biases are stored in a :class:`GateLayout`.  ONNX's two biases are added into one,
except for the part that a GRU adds to its last product, which is called ``rest``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from tracea_graph.ir import Attr, DType, TensorSpec
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ops.weight_layouts import Floats
from tracea_graph.ttg.loop_nest_model import RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["GATES", "PLAIN_GATES", "GateLayout", "PlainGates", "RecurrentParams", "cell_cost"]

GATES = {"lstm": 4, "gru": 3}
_RESULTS = ("y", "h", "c")


@dataclass(frozen=True)
class GateLayout(ABC):
    """One way to store a cell's matrices and biases.

    ``groups`` holds, in ONNX's order of gates, the number of gates that each product computes.
    """

    name: ClassVar[str]

    @abstractmethod
    def matrix(self, stored: Floats, groups: Sequence[int], hidden: int) -> Floats:
        """Return the matrix in ONNX's layout, ``[directions, gates · H, K]``."""

    @abstractmethod
    def bias(self, stored: Floats, groups: Sequence[int], hidden: int) -> Floats:
        """Return the bias ``[directions, gates · H]``."""

    @abstractmethod
    def rest(self, stored: Floats, hidden: int) -> Floats:
        """Return the hidden bias ``[directions, H]`` of a GRU with ``linear_before_reset``."""

    @abstractmethod
    def matrix_to_onnx(
        self, b: BodyBuilder, stored: str, directions: int, groups: Sequence[int], hidden: int
    ) -> str:
        """Write :meth:`matrix` in ONNX; return its name."""

    @abstractmethod
    def bias_to_onnx(
        self, b: BodyBuilder, stored: str, directions: int, groups: Sequence[int], hidden: int
    ) -> str:
        """Write :meth:`bias` in ONNX; return its name."""

    @abstractmethod
    def rest_to_onnx(self, b: BodyBuilder, stored: str, hidden: int) -> str:
        """Write :meth:`rest` in ONNX; return its name."""


@dataclass(frozen=True)
class PlainGates(GateLayout):
    """Matrices and biases in ONNX's own layout, without reordering."""

    name: ClassVar[str] = "plain"

    def matrix(self, stored: Floats, groups: Sequence[int], hidden: int) -> Floats:
        return stored

    def bias(self, stored: Floats, groups: Sequence[int], hidden: int) -> Floats:
        return stored

    def rest(self, stored: Floats, hidden: int) -> Floats:
        return stored

    def matrix_to_onnx(
        self, b: BodyBuilder, stored: str, directions: int, groups: Sequence[int], hidden: int
    ) -> str:
        return stored

    def bias_to_onnx(
        self, b: BodyBuilder, stored: str, directions: int, groups: Sequence[int], hidden: int
    ) -> str:
        return stored

    def rest_to_onnx(self, b: BodyBuilder, stored: str, hidden: int) -> str:
        return stored


PLAIN_GATES = PlainGates()


def cell_cost(
    fit: FittedCoefficients, operands: Sequence[Dims], ahead: float, back: float, step_us: float
) -> OpCost:
    """Return the cost of a recurrent cell.

    ``ahead`` and ``back`` are the fractions of peak that the products with W and with R reach;
    ``step_us`` is the overhead of a time step in one direction.
    """
    x, w, r = operands[:3]
    steps, batch = x[0], prod(x[:2])
    units = prod(r[:2]) * (r[3] if len(r) > 3 else 1)  # of all gates; stored in three or four axes
    product = 2.0 * batch * (prod(w) / ahead + prod(r) / back)
    return OpCost(product, batch * units * fit.instructions["fused gate"], steps * w[0] * step_us)


@dataclass(frozen=True)
class RecurrentParams:
    """Parameters of an LSTM or a GRU.

    Operands: x ``[T, B, I]``, W, R, bias, hidden bias, initial states ``[directions, B, H]``.  The
    hidden bias is present only for a GRU with ONNX's ``linear_before_reset``, that is, if
    ``before`` is False.

    * ``reverse``: whether each direction starts at the last time step;
    * ``initial``: whether the initial h, and the initial c of an LSTM, are operands;
    * ``results``: those that are needed of y ``[T, directions, B, H]``, the last h, and the last c
      of an LSTM, in this order.
    """

    kind: str
    inputs: int
    hidden: int
    reverse: tuple[bool, ...] = (False,)
    initial: bool = False
    results: tuple[str, ...] = ("y",)
    before: bool = False
    layout: GateLayout = PLAIN_GATES

    def __post_init__(self) -> None:
        if self.kind not in GATES or min(self.inputs, self.hidden) < 1:
            raise ValueError(f"invalid {self.kind}: {self.inputs} inputs, {self.hidden} units")
        if self.before and self.kind != "gru":
            raise ValueError("only a GRU has a reset gate to apply before the product")
        if self.reverse not in ((False,), (True,), (False, True)):
            raise ValueError("directions must be forward, reverse, or forward and reverse")
        known = _RESULTS[: 3 if self.kind == "lstm" else 2]
        if not self.results or self.results != tuple(r for r in known if r in self.results):
            raise ValueError(f"results must be some of {', '.join(known)}, in this order")

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def directions(self) -> int:
        return len(self.reverse)

    @property
    def groups(self) -> tuple[int, ...]:
        """Gates computed by each product; with ``before``, a GRU's last gate is computed alone."""
        return (2, 1) if self.before else (self.gates,)

    @property
    def states(self) -> int:
        return 2 if self.kind == "lstm" else 1

    @property
    def operands(self) -> int:
        return 4 + self.late + (self.states if self.initial else 0)

    @property
    def late(self) -> bool:
        """Whether a GRU adds the hidden bias to the product with R before the reset gate."""
        return self.kind == "gru" and not self.before

    def split(self, items: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any | None, Sequence[Any]]:
        """Return operands by role: x, W, R, bias, rest or None, initial states."""
        first = 4 + self.late
        return (*items[:4], items[4] if first == 5 else None, items[first:])

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the results' specs; raises ValueError if x is not ``[T, B, I]``."""
        shape = specs[0].shape
        if shape is None or len(shape) != 3:
            raise ValueError("x is not known to have three axes")
        steps, batch, _ = shape
        whole = TensorSpec(DType.F32, (steps, self.directions, batch, self.hidden))
        last = TensorSpec(DType.F32, (self.directions, batch, self.hidden))
        return tuple(whole if name == "y" else last for name in self.results)

    def reference(self, arrays: Sequence[Floats]) -> list[Floats]:
        """Evaluate with NumPy in the operands' precision."""
        x, w, r, bias, rest, initial = self.split(arrays)
        steps, batch, _ = x.shape
        zeros = np.zeros((self.directions, batch, self.hidden), x.dtype)
        states = [a.astype(x.dtype) for a in initial] or [zeros] * self.states
        y = np.zeros((steps, self.directions, batch, self.hidden), x.dtype)
        last = [np.zeros_like(zeros) for _ in states]
        matrices = [self.layout.matrix(m, self.groups, self.hidden) for m in (w, r)]
        offsets = self.layout.bias(bias, self.groups, self.hidden)
        late_all = None if rest is None else self.layout.rest(rest, self.hidden)
        for d, turned in enumerate(self.reverse):
            ahead = self._by_gate(x @ matrices[0][d].T + offsets[d], -1)
            back = [gate.T for gate in self._by_gate(matrices[1][d], 0)]
            own = [s[d] for s in states]
            late = None if late_all is None else late_all[d]
            for t in reversed(range(steps)) if turned else range(steps):
                own = self._step([a[t] for a in ahead], back, own, late)
                y[t, d] = own[0]
            for state, value in zip(last, own, strict=True):
                state[d] = value
        found = {"y": y, "h": last[0], "c": last[-1]}
        return [found[name] for name in self.results]

    def _by_gate(self, numbers: Floats, axis: int) -> list[Floats]:
        """Split numbers by gate along an axis."""
        return np.split(numbers, self.gates, axis)

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

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return cell_cost(fit, operands, fit.shares["FusedGemm"], fit.shares["state product"], 0.0)

    def body(self, opset: int) -> Body:
        """Write ONNX's LSTM or GRU, with matrices in ONNX's layout."""
        b = BodyBuilder(self.operands, opset)
        x, w, r, bias, rest, initial = self.split(b.inputs)
        rows = self.gates * self.hidden
        zeros = np.zeros((self.directions, rows), np.float32)
        late = b("Constant", value=zeros[:, : 2 * self.hidden] if self.late else zeros)
        if rest is not None:
            late = b("Concat", late, self.layout.rest_to_onnx(b, rest, self.hidden), axis=1)
        ahead = self.layout.bias_to_onnx(b, bias, self.directions, self.groups, self.hidden)
        both = b("Concat", ahead, late, axis=1)
        direction = "bidirectional" if len(self.reverse) > 1 else "reverse"
        attributes: dict[str, Attr] = {
            "hidden_size": self.hidden,
            "direction": direction if any(self.reverse) else "forward",
        }
        if self.late:
            attributes["linear_before_reset"] = 1
        matrices = (
            self.layout.matrix_to_onnx(b, m, self.directions, self.groups, self.hidden)
            for m in (w, r)
        )
        operands = (x, *matrices, both)
        names = b.node(
            self.kind.upper(), (*operands, *(("", *initial) if initial else ())),
            [name if name in self.results else "" for name in _RESULTS[: 1 + self.states]],
            attributes,
        )  # fmt: skip
        return b.done(*filter(None, names))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Return None: the op is opaque to the tile graph."""
        return None


def _sigmoid(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))
