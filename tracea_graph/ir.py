"""Frozen leaf types shared by every stage: dtypes, symbolic extents, tensors, nodes, weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

__all__ = [
    "LOOP_VALUE",
    "RANDOM_OPS",
    "SYMBOL_NUMBER_MARK",
    "Attr",
    "Blob",
    "DType",
    "Expr",
    "Extent",
    "Node",
    "TensorSpec",
    "Weight",
    "assumed_size",
    "evaluate",
    "product",
    "symbols_of",
]

Array = npt.NDArray[np.generic]

RANDOM_OPS = frozenset({
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
})  # fmt: skip
"""ONNX operators that draw new values in every run (Dropout in training mode)."""

LOOP_VALUE = ("ai.onnx.loops", "LoopValue")
"""Domain and name of the operator that stands for an input of an iteration while the body of its
loop is part of the graph.  It has no operands, and its value is another one in each iteration."""


class DType(Enum):
    """Element type: ``(short name, ONNX TensorProto code, bytes per element)``.

    Sub-byte types count half a byte; strings count none.
    """

    F32 = ("f32", 1, 4.0)
    U8 = ("u8", 2, 1.0)
    I8 = ("i8", 3, 1.0)
    U16 = ("u16", 4, 2.0)
    I16 = ("i16", 5, 2.0)
    I32 = ("i32", 6, 4.0)
    I64 = ("i64", 7, 8.0)
    STR = ("str", 8, 0.0)
    BOOL = ("bool", 9, 1.0)
    F16 = ("f16", 10, 2.0)
    F64 = ("f64", 11, 8.0)
    U32 = ("u32", 12, 4.0)
    U64 = ("u64", 13, 8.0)
    C64 = ("c64", 14, 8.0)
    C128 = ("c128", 15, 16.0)
    BF16 = ("bf16", 16, 2.0)
    F8E4M3FN = ("f8e4m3fn", 17, 1.0)
    F8E4M3FNUZ = ("f8e4m3fnuz", 18, 1.0)
    F8E5M2 = ("f8e5m2", 19, 1.0)
    F8E5M2FNUZ = ("f8e5m2fnuz", 20, 1.0)
    U4 = ("u4", 21, 0.5)
    I4 = ("i4", 22, 0.5)
    F4E2M1 = ("f4e2m1", 23, 0.5)
    F8E8M0 = ("f8e8m0", 24, 1.0)
    U2 = ("u2", 25, 0.25)
    I2 = ("i2", 26, 0.25)

    @property
    def short(self) -> str:
        return self.value[0]

    @property
    def onnx(self) -> int:
        """The ``TensorProto.DataType`` code."""
        return self.value[1]

    @property
    def size(self) -> float:
        """Bytes per element."""
        return self.value[2]

    @classmethod
    def from_onnx(cls, code: int) -> DType | None:
        """Return the type with this ``TensorProto`` code; None for an unknown one."""
        return next((t for t in cls if t.onnx == code), None)

    @classmethod
    def from_short(cls, short: str) -> DType:
        """Return the type with this short name; raises ValueError for an unknown one."""
        found = next((t for t in cls if t.short == short), None)
        if found is None:
            raise ValueError(f"there is no element type {short!r}")
        return found


# ---- symbolic extents ------------------------------------------------------------------


@dataclass(frozen=True)
class Expr:
    """An arithmetic expression over extents: ``op`` is one of :data:`EXPR_OPS`."""

    op: str
    args: tuple[Extent, Extent]

    def __str__(self) -> str:
        sign = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "ceildiv": "/^"}
        a, b = self.args
        return f"({a}{sign[self.op]}{b})" if self.op in sign else f"{self.op}({a},{b})"


Extent = int | str | Expr
"""A size: a number, a symbol such as ``"seq"``, or arithmetic over them."""

SYMBOL_NUMBER_MARK = "#"
"""Separator before the number of a symbol that the model uses for axes of different sizes."""

EXPR_OPS: Mapping[str, Callable[[int, int], int]] = MappingProxyType(
    {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "floordiv": lambda a, b: a // b,
        "ceildiv": lambda a, b: -(-a // b),
        "max": max,
        "min": min,
    }
)

_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "floordiv": 1, "ceildiv": 1}


def combine(op: str, a: Extent, b: Extent) -> Extent:
    """Build ``a op b`` and simplify it.

    Evaluates operations on two numbers, drops neutral elements, adds up multiples of one extent,
    and cancels a term that is subtracted and added again.  In sums and products of more terms,
    numbers come last.
    """
    if isinstance(a, int) and isinstance(b, int):
        return EXPR_OPS[op](a, b)
    if b == _NEUTRAL.get(op):
        return a
    if op in ("add", "mul"):
        (x, m), (y, n) = _multiple(a), _multiple(b)
        if op == "add" and x == y:
            return combine("mul", x, m + n)
        if op == "mul" and m * n != 1:
            return Expr(op, (combine(op, x, y), m * n)) if m * n else 0
        if a == _NEUTRAL[op]:
            return b
    if op == "add":
        for x, difference in ((a, b), (b, a)):
            if (total := _restored(x, difference)) is not None:
                return total
    return Expr(op, (a, b))


def _restored(x: Extent, difference: Extent) -> Extent | None:
    """Return ``x + (y - z)`` if x is z or a sum with z; else None."""
    if not (isinstance(difference, Expr) and difference.op == "sub"):
        return None
    y, z = difference.args
    if x == z:
        return y
    if isinstance(x, Expr) and x.op == "add" and z in x.args:
        return combine("add", x.args[x.args[0] == z], y)
    return None


def _multiple(extent: Extent) -> tuple[Extent, int]:
    """Write an extent as a number times another extent; a number is that number times 1."""
    if isinstance(extent, int):
        return 1, extent
    if isinstance(extent, Expr) and extent.op == "mul" and isinstance(extent.args[1], int):
        return extent.args[0], extent.args[1]
    return extent, 1


def product(extents: tuple[Extent, ...]) -> Extent:
    """Return the product of extents; 1 for none."""
    result: Extent = 1
    for extent in extents:
        result = combine("mul", result, extent)
    return result


def evaluate(extent: Extent, bindings: Mapping[str, int]) -> int:
    """Return an extent's value.  Raises KeyError for an unbound symbol."""
    if isinstance(extent, int):
        return extent
    if isinstance(extent, str):
        return bindings[extent]
    a, b = (evaluate(arg, bindings) for arg in extent.args)
    return EXPR_OPS[extent.op](a, b)


def symbols_of(extent: Extent) -> Iterator[str]:
    """Yield every symbol in an extent."""
    if isinstance(extent, str):
        yield extent
    elif isinstance(extent, Expr):
        for arg in extent.args:
            yield from symbols_of(arg)


_ASSUMED = 16
"""Assumed size of a symbol without a value."""


def assumed_size(extent: Extent, bindings: Mapping[str, int]) -> int:
    """Return a plausible size, at least 0, of an extent whose symbols may be unbound."""
    if isinstance(extent, int):
        return max(0, extent)
    known = {s: bindings.get(s, _ASSUMED) for s in symbols_of(extent)}
    return max(0, evaluate(extent, known))


# ---- tensors, weights, nodes -----------------------------------------------------------


@dataclass(frozen=True)
class TensorSpec:
    """Element type and shape of a value; ``shape`` is None if the rank is unknown."""

    dtype: DType | None
    shape: tuple[Extent, ...] | None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ",".join(map(str, self.shape))
        return f"{self.dtype.short if self.dtype else '?'}[{dims}]"


_FEW = 16


@dataclass(frozen=True, eq=False)
class Weight:
    """A constant of the model whose bytes are read only on request.

    ``load`` returns the array and may be called more than once; it must not cache, so that memory
    stays bounded by the arrays in use.  Two kinds of weight are not stored in the result: those
    that the nodes in ``computed_by`` compute from smaller constants when the model is loaded, and
    ``filled`` ones, which repeat one number.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    load: Callable[[], Array] = field(repr=False)
    computed_by: tuple[Node, ...] = field(default=(), repr=False, compare=False)
    filled: bool = field(default=False, repr=False, compare=False)

    @cached_property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.dtype, self.shape)

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)  # may exceed 64 bits in a damaged model

    @property
    def nbytes(self) -> int:
        """Size in bytes as stored: sub-byte elements are packed, and the last byte is padded."""
        return math.ceil(self.count * self.dtype.size)

    def array(self) -> Array:
        """Return the read-only values in the declared shape."""
        return self._few if self.count <= _FEW else self.load()

    @cached_property
    def _few(self) -> Array:
        """Cached values of a small weight: axes, bounds and factors are read often."""
        return self.load()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of dtype, shape and bytes: equal weights have equal digests."""
        head = f"{self.dtype.short}{self.shape}".encode()
        digest, array = hashlib.sha256(head), self.load()
        if array.dtype.hasobject:  # strings
            for word in array.reshape(-1).tolist():
                data = word if isinstance(word, bytes) else str(word).encode()
                digest.update(len(data).to_bytes(8, "little") + data)
        else:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Blob:
    """The serialized proto of an attribute that no pass inspects (graph, sparse tensor, type)."""

    kind: str
    data: bytes = field(repr=False)


Attr = (
    int
    | float
    | str
    | bytes
    | tuple[int, ...]
    | tuple[float, ...]
    | tuple[str, ...]
    | Array
    | Blob
)
"""An attribute value.  A NumPy array is an ONNX tensor attribute."""

_NO_ATTRS: Mapping[str, Attr] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Node:
    """One ONNX operator call.  Absent optional inputs and outputs are ``""``.

    ``captures`` are outer-scope values that its subgraphs read.  ``source`` is the node's index in
    the imported model: while it is set, export writes that node unchanged.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=lambda: _NO_ATTRS)
    domain: str = ""
    name: str = ""
    captures: tuple[str, ...] = ()
    source: int | None = None

    @property
    def label(self) -> str:
        """What the node is called: by its name, or without one by its first output."""
        return self.name or next(filter(None, self.outputs), self.op)

    @property
    def reads(self) -> tuple[str, ...]:
        """Every value the node needs, including captured ones, without absent ones."""
        return tuple(v for v in (*self.inputs, *self.captures) if v)
