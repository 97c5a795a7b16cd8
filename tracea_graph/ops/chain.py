"""Elementwise chains: straight-line programs that run as an epilogue or on their own.

A chain reads up to :data:`MAX_OPERANDS` operands over one ``rows x cols`` tile and computes its
results element by element.  One chain is rendered as C++ (``kernels``), NumPy (here) and ONNX
nodes (here); tests compare the three.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Attr, DType
from tracea_graph.ops.bf16 import round_bf16
from tracea_graph.ops.elementwise_steps import ELEMENTARY, ElementwiseOpDef, Row
from tracea_graph.ops.function_body import BodyBuilder

__all__ = [
    "DTYPES",
    "ELEMENTARY",
    "FAST_MATH",
    "FLOAT8",
    "FLOATS8",
    "HALVES",
    "INTEGERS",
    "LARGEST_FLOAT8",
    "MAX_OPERANDS",
    "MAX_RESULTS",
    "WIDE_FLOAT8",
    "Chain",
    "ElementwiseOpDef",
    "Ref",
    "Step",
]

MAX_OPERANDS = 8
MAX_RESULTS = 2

FULL, ROW, COL, SCALAR = "full", "row", "col", "scalar"
KINDS = (FULL, ROW, COL, SCALAR)
"""How an operand maps onto the tile: every element; one row repeated (a bias); one column repeated
(a per-row factor); a scalar.
"""

INTEGERS = (DType.I32, DType.I64, DType.U8, DType.I8)
DTYPES = (DType.F32, DType.BOOL, *INTEGERS)
"""Element types of operands and results.  Booleans are truth values.  Integers are converted to
float32 when read, like Cast, and numbers to integers when stored; a chain that stores integers
first rounds its numbers to integral values within the type's range.
"""

HALVES = (DType.F16, DType.BF16)
"""16-bit element types that only some backends support: converted to float32 when read, rounded to
nearest, ties to even, when stored.
"""

FLOAT8, WIDE_FLOAT8 = FLOATS8 = (DType.F8E4M3FN, DType.F8E5M2)
"""Element types that only some backends support: numbers are rounded as to :data:`HALVES` when
stored, and those beyond the range become the largest number.
"""
LARGEST_FLOAT8 = 448.0
_LARGEST = {FLOAT8: LARGEST_FLOAT8, WIDE_FLOAT8: 57344.0}

FAST_MATH = frozenset({"gelu", "gelu_tanh", "silu"})
"""Steps with a cheaper approximation whose error is a fraction of the error of rounding to bf16.
"""

_CAST = (*INTEGERS, DType.F16, *FLOATS8)
"""Element types that are converted in ONNX nodes; bf16 occurs only inside programs."""
_NUMPY = {DType.I32: np.int32, DType.I64: np.int64, DType.U8: np.uint8, DType.I8: np.int8}

Ref = int | float
"""An int is operand ``i``, or step ``i - len(operands)``; a float is a literal."""

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Step:
    """One operation ``op(*args)``; each argument is a :data:`Ref`."""

    op: str
    args: tuple[Ref, ...]

    def __post_init__(self) -> None:
        meaning = ELEMENTARY[self.op]
        if len(self.args) != meaning.arity:
            raise ValueError(f"{self.op} must have {meaning.arity} arguments")
        if not all(isinstance(a, float) for a in self.args[meaning.arity - meaning.literals :]):
            raise ValueError(f"{self.op}: the last {meaning.literals} arguments must be literals")

    def renumbered(self, new: Callable[[int], int]) -> Step:
        """Return the step with references to operands and steps changed by ``new``."""
        return Step(self.op, tuple(new(a) if isinstance(a, int) else a for a in self.args))


@dataclass(frozen=True)
class Chain:
    """An elementwise program: operand kinds, steps in order, results and element types.

    ``results`` are indices of operands and steps, as in :data:`Ref`.

    * ``dtypes``: element types of the operands; empty if every operand is float32;
    * ``stores``: element types of the results; empty if every numeric result is float32. Results
      in bf16 occur only inside programs;
    * ``fast_math``: whether :data:`FAST_MATH` steps may use their cheaper approximation whatever
      the type of the results, because these feed products of 16-bit numbers.

    In an epilogue, operand 0 is the accumulator tile.
    """

    operands: tuple[str, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    dtypes: tuple[DType, ...] = ()
    stores: tuple[DType, ...] = ()
    fast_math: bool = False

    def __post_init__(self) -> None:
        if len(self.operands) > MAX_OPERANDS or not 1 <= len(self.results) <= MAX_RESULTS:
            raise ValueError("a chain must have at most 8 operands and 1 or 2 results")
        if bad := set(self.operands) - set(KINDS):
            raise ValueError(f"unknown operand kind {bad}")
        count = len(self.operands)
        object.__setattr__(
            self, "fast_math", self.fast_math and any(s.op in FAST_MATH for s in self.steps)
        )
        for i, step in enumerate(self.steps):
            if any(isinstance(a, int) and not 0 <= a < count + i for a in step.args):
                raise ValueError(f"step {i} reads a later value")
        last = count + len(self.steps)
        if any(isinstance(r, float) or not 0 <= r < last for r in self.results):
            raise ValueError("a result is not a value of the chain")
        if self.dtypes and len(self.dtypes) != count:
            raise ValueError("a chain must have one element type per operand (dtypes)")
        if all(d is DType.F32 for d in self.dtypes):
            # canonical form, which makes equal chains compare equal
            object.__setattr__(self, "dtypes", ())
        elif not set(self.dtypes) <= {*DTYPES, *HALVES, *FLOATS8}:
            raise ValueError(
                "operands must be float32, a smaller float, bool or a supported integer"
            )
        types = self.types
        natural = tuple(DType.BOOL if types[r] == "b" else DType.F32 for r in self.results)
        if self.stores and len(self.stores) != len(self.results):
            raise ValueError("a chain must have one element type per result (stores)")
        if self.stores == natural:
            object.__setattr__(self, "stores", ())
        elif self.stores and any(
            s is not n and (n is DType.BOOL or s not in (*INTEGERS, *HALVES, *FLOATS8))
            for s, n in zip(self.stores, natural, strict=True)
        ):
            raise ValueError("only a number may be stored as an integer or a small float")
        for i, step in enumerate(self.steps):
            found = "".join("f" if isinstance(a, float) else types[a] for a in step.args)
            if found != ELEMENTARY[step.op].takes:
                raise ValueError(f"step {i} ({step.op}) has arguments of wrong types")

    @property
    def types(self) -> str:
        """One letter per operand and step: ``f`` for numbers, ``b`` for truth values."""
        operands = "".join("b" if d is DType.BOOL else "f" for d in self.operand_types)
        return operands + "".join(ELEMENTARY[s.op].gives for s in self.steps)

    @property
    def operand_types(self) -> tuple[DType, ...]:
        """Element type of each operand."""
        return self.dtypes or (DType.F32,) * len(self.operands)

    @property
    def result_types(self) -> tuple[DType, ...]:
        """Element type of each result."""
        if self.stores:
            return self.stores
        types = self.types
        return tuple(DType.BOOL if types[r] == "b" else DType.F32 for r in self.results)

    def step_of(self, ref: Ref, op: str = "") -> Step | None:
        """Return the step that computes a value; None for operands, literals and steps but ``op``.

        Without ``op`` every operation counts.
        """
        at = ref - len(self.operands) if isinstance(ref, int) else -1
        return self.steps[at] if at >= 0 and op in ("", self.steps[at].op) else None

    @property
    def text(self) -> str:
        """Canonical one-line text: equal chains have equal text."""
        steps = ";".join(f"{s.op}({','.join(_ref_text(a) for a in s.args)})" for s in self.steps)
        types = [f":{d.short}" if d is not DType.F32 else "" for d in self.operand_types]
        operands = ",".join(k + t for k, t in zip(self.operands, types, strict=True))
        stores = [f":{d.short}" for d in self.stores] or [""] * len(self.results)
        results = ",".join(str(r) + t for r, t in zip(self.results, stores, strict=True))
        return f"{operands}|{steps}|{results}{'|fast-math' if self.fast_math else ''}"

    @property
    def key(self) -> int:
        """Positive 62-bit number that names this chain in plans and symbol tables."""
        return int.from_bytes(hashlib.sha256(self.text.encode()).digest()[:8], "big") >> 2

    @property
    def flops(self) -> int:
        """Vector instructions per element vector."""
        return sum(ELEMENTARY[s.op].flops for s in self.steps)

    def reference(self, operands: Sequence[Floats]) -> list[Floats]:
        """Evaluate with NumPy in the operands' precision; operands broadcast."""
        values: list[Any] = [
            np.asarray(v, np.float32) if d in (*INTEGERS, *FLOATS8) else v
            for v, d in zip(operands, self.operand_types, strict=True)
        ]
        for step in self.steps:
            args = [a if isinstance(a, float) else values[a] for a in step.args]
            values.append(ELEMENTARY[step.op].numpy(*args))
        shape = np.broadcast_shapes(*(np.shape(v) for v in operands))
        results = [np.broadcast_to(values[r], shape) for r in self.results]
        pairs = zip(results, self.result_types, strict=True)
        return [_stored(v, d) for v, d in pairs]

    def to_onnx(self, b: BodyBuilder, operands: Sequence[str]) -> list[str]:
        """Write the chain as ONNX nodes that read ``operands``; return the results' names."""
        numbers: dict[float, str] = {}

        def number(value: float) -> str:
            if value not in numbers:
                numbers[value] = b.number(value)
            return numbers[value]

        names = [
            b("Cast", v, to=DType.F32.onnx) if d in _CAST else v
            for v, d in zip(operands, self.operand_types, strict=True)
        ]
        for step in self.steps:
            meaning = ELEMENTARY[step.op]
            rows = meaning.onnx if b.opset >= meaning.since else meaning.older
            written: list[str] = []
            for row in rows:
                written.append(_write(b, row, step, names, written, number))
            names.append(written[-1])
        pairs = zip(self.results, self.result_types, strict=True)
        return [b("Cast", names[r], to=d.onnx) if d in _CAST else names[r] for r, d in pairs]


def _stored(value: Any, dtype: DType) -> Any:
    if dtype is DType.BF16:
        return round_bf16(value)
    if dtype in FLOATS8:
        import ml_dtypes  # slow to import, and few programs need it

        most = _LARGEST[dtype]
        kept = np.clip(np.asarray(value, np.float32), -most, most)
        kind = ml_dtypes.float8_e4m3fn if dtype is FLOAT8 else ml_dtypes.float8_e5m2
        return kept.astype(kind).astype(value.dtype)
    if dtype is DType.F16:
        with np.errstate(over="ignore"):
            return np.asarray(value, np.float32).astype(np.float16).astype(value.dtype)
    return value.astype(_NUMPY[dtype]) if dtype in INTEGERS else value


def _write(
    b: BodyBuilder,
    row: Row,
    step: Step,
    names: Sequence[str],
    written: Sequence[str],
    number: Callable[[float], str],
) -> str:
    """Write the ONNX operator of one row of a step; return the name of its result."""
    op, items = row
    inputs: list[str] = []
    attrs: dict[str, Attr] = {}
    for item in items:
        if isinstance(item, float):
            inputs.append(number(item))
        elif "=" in item:
            name, value = item.split("=")
            attrs[name] = step.args["abc".index(value)] if value in "abc" else _number(value)
        elif item in "abc":
            ref = step.args["abc".index(item)]
            inputs.append(number(ref) if isinstance(ref, float) else names[ref])
        else:
            inputs.append(written[int(item)])
    return b(op, *inputs, **attrs)


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)


def _ref_text(ref: Ref) -> str:
    return repr(ref) if isinstance(ref, float) else str(ref)
