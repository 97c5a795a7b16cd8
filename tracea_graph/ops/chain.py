"""Elementwise chains: the straight-line programs that run as an epilogue or on their own.

A chain reads up to :data:`MAX_OPERANDS` operands over one ``rows x cols`` tile and computes its
results element by element.  The same chain text becomes C++ (``kernels``), NumPy (here) and ONNX
nodes (here), so the three cannot drift apart unnoticed: tests compare them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ops.body import BodyBuilder

__all__ = ["ELEMENTARY", "MAX_OPERANDS", "Chain", "Elementary", "Ref", "Step"]

MAX_OPERANDS = 8
MAX_RESULTS = 2

FULL, ROW, COL, SCALAR = "full", "row", "col", "scalar"
KINDS = (FULL, ROW, COL, SCALAR)
"""How an operand lies over the tile: every element; one row repeated (a bias); one column
repeated (a per-row factor); one number."""

Ref = int | float
"""An int is operand ``i``, or step ``i - len(operands)``; a float is a literal."""

Floats = npt.NDArray[np.floating[Any]]


def _erf(x: Floats) -> Floats:
    wide: Floats = np.vectorize(math.erf, otypes=[np.float64])(x)
    return wide.astype(x.dtype)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)), dtype=x.dtype)


_GELU_TANH = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class Elementary:
    """One elementwise operation: its arity, NumPy meaning, ONNX spelling and cost.

    ``onnx`` lists ``(op, inputs)`` rows; an input is ``"a"``, ``"b"``, ``"c"`` (arguments),
    ``"0"``, ``"1"`` … (an earlier row) or a float literal.  ``flops`` is the cost in vector
    instructions per element vector, for the cost model.
    """

    arity: int
    numpy: Callable[..., Any]
    onnx: tuple[tuple[str, tuple[str | float, ...]], ...]
    flops: int


ELEMENTARY: Mapping[str, Elementary] = MappingProxyType(
    {
        "add": Elementary(2, np.add, (("Add", ("a", "b")),), 1),
        "sub": Elementary(2, np.subtract, (("Sub", ("a", "b")),), 1),
        "mul": Elementary(2, np.multiply, (("Mul", ("a", "b")),), 1),
        "div": Elementary(2, np.divide, (("Div", ("a", "b")),), 8),
        "max": Elementary(2, np.maximum, (("Max", ("a", "b")),), 1),
        "min": Elementary(2, np.minimum, (("Min", ("a", "b")),), 1),
        "neg": Elementary(1, np.negative, (("Neg", ("a",)),), 1),
        "abs": Elementary(1, np.abs, (("Abs", ("a",)),), 1),
        "sqrt": Elementary(1, np.sqrt, (("Sqrt", ("a",)),), 8),
        "reciprocal": Elementary(1, lambda x: 1 / x, (("Reciprocal", ("a",)),), 8),
        "exp": Elementary(1, np.exp, (("Exp", ("a",)),), 10),
        "log": Elementary(1, np.log, (("Log", ("a",)),), 14),
        "erf": Elementary(1, _erf, (("Erf", ("a",)),), 20),
        "tanh": Elementary(1, np.tanh, (("Tanh", ("a",)),), 20),
        "sigmoid": Elementary(1, _sigmoid, (("Sigmoid", ("a",)),), 18),
        "relu": Elementary(1, lambda x: np.maximum(x, 0), (("Relu", ("a",)),), 1),
        "gelu": Elementary(
            1,
            lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
            (
                ("Div", ("a", math.sqrt(2))),
                ("Erf", ("0",)),
                ("Add", ("1", 1.0)),
                ("Mul", ("a", "2")),
                ("Mul", ("3", 0.5)),
            ),
            22,
        ),
        "gelu_tanh": Elementary(
            1,
            lambda x: x * 0.5 * (1 + np.tanh(_GELU_TANH * (x + 0.044715 * x**3))),
            (
                ("Mul", ("a", "a")),
                ("Mul", ("a", "0")),
                ("Mul", ("1", 0.044715)),
                ("Add", ("a", "2")),
                ("Mul", ("3", _GELU_TANH)),
                ("Tanh", ("4",)),
                ("Add", ("5", 1.0)),
                ("Mul", ("a", "6")),
                ("Mul", ("7", 0.5)),
            ),
            26,
        ),
        "silu": Elementary(
            1, lambda x: x * _sigmoid(x), (("Sigmoid", ("a",)), ("Mul", ("a", "0"))), 19
        ),
    }
)
"""The closed vocabulary of steps.  Adding one means a line here and one in the vector headers."""


@dataclass(frozen=True)
class Step:
    """``op(*args)``; see :data:`Ref`."""

    op: str
    args: tuple[Ref, ...]

    def __post_init__(self) -> None:
        if len(self.args) != ELEMENTARY[self.op].arity:
            raise ValueError(f"{self.op} takes {ELEMENTARY[self.op].arity} arguments")


@dataclass(frozen=True)
class Chain:
    """Operand kinds, steps in order, and which values are results.

    As an epilogue, operand 0 is the accumulator tile.
    """

    operands: tuple[str, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.operands) > MAX_OPERANDS or not 1 <= len(self.results) <= MAX_RESULTS:
            raise ValueError("a chain has at most 8 operands and 1 or 2 results")
        if bad := set(self.operands) - set(KINDS):
            raise ValueError(f"unknown operand kind {bad}")
        count = len(self.operands)
        for i, step in enumerate(self.steps):
            if any(isinstance(a, int) and not 0 <= a < count + i for a in step.args):
                raise ValueError(f"step {i} reads a later value")
        last = count + len(self.steps)
        if any(isinstance(r, float) or not 0 <= r < last for r in self.results):
            raise ValueError("a result is no value of the chain")

    @property
    def text(self) -> str:
        """One canonical line: equal chains have equal text."""
        steps = ";".join(f"{s.op}({','.join(_spell(a) for a in s.args)})" for s in self.steps)
        return f"{','.join(self.operands)}|{steps}|{','.join(map(str, self.results))}"

    @property
    def key(self) -> int:
        """A positive 62-bit number that names this chain in plans and symbol tables."""
        return int.from_bytes(hashlib.sha256(self.text.encode()).digest()[:8], "big") >> 2

    @property
    def flops(self) -> int:
        """Vector instructions per element vector."""
        return sum(ELEMENTARY[s.op].flops for s in self.steps)

    def reference(self, operands: Sequence[Floats]) -> list[Floats]:
        """Evaluate with NumPy, in the operands' own precision; operands broadcast."""
        values: list[Any] = list(operands)
        for step in self.steps:
            args = [a if isinstance(a, float) else values[a] for a in step.args]
            values.append(ELEMENTARY[step.op].numpy(*args))
        shape = np.broadcast_shapes(*(np.shape(v) for v in operands))
        return [np.broadcast_to(values[r], shape) for r in self.results]

    def spell(self, b: BodyBuilder, operands: Sequence[str]) -> list[str]:
        """Write the chain as ONNX nodes on the named operands; return the results' names."""
        names = list(operands)
        numbers: dict[float, str] = {}

        def number(value: float) -> str:
            if value not in numbers:
                numbers[value] = b.number(value)
            return numbers[value]

        for step in self.steps:
            args = [number(a) if isinstance(a, float) else names[a] for a in step.args]
            rows: list[str] = []
            for op, inputs in ELEMENTARY[step.op].onnx:
                rows.append(b(op, *(_argument(i, args, rows, number) for i in inputs)))
            names.append(rows[-1])
        return [names[r] for r in self.results]


def _argument(
    spelled: str | float, args: Sequence[str], rows: Sequence[str], number: Callable[[float], str]
) -> str:
    """One input of a spelled operator: a literal, an argument of the step, or an earlier row."""
    if isinstance(spelled, float):
        return number(spelled)
    return args["abc".index(spelled)] if spelled in "abc" else rows[int(spelled)]


def _spell(ref: Ref) -> str:
    return repr(ref) if isinstance(ref, float) else str(ref)
