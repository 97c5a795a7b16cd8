"""A model that grows operator by operator while hypothesis decides what comes next.

    draft = Draft(draw, opset=17)
    x = draft.floats(rank=4)                # a value so far, or a new input
    y = draft.add("Relu", [x], x.dims)

Dims are numbers or symbols; a symbol is equal only to itself, so every size it is given fits.  A
value is ``exact`` where rounding cannot differ between two ways to compute it: only such values
may reach operators whose result jumps (Floor, Less, ArgMax …).

The model may declare other dims than the draft has: one name for several symbols (:meth:`tangle`).
What it really takes stands in its metadata (:func:`true_dims`), and so do its ``traits``: what
makes it hard.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

__all__ = [
    "Dims", "Draft", "Unfit", "Value", "broadcast", "ends", "fixed", "reduced", "symbolic",
    "traits", "true_dims",
]  # fmt: skip

Dims = tuple[int | str, ...]
T = TypeVar("T")

SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 33)
SYMBOLS = ("batch", "seq", "n")
_ELEMENT = {
    "f": onnx.TensorProto.FLOAT, "b": onnx.TensorProto.BOOL, "i": onnx.TensorProto.INT64,
    "n": onnx.TensorProto.INT32, "h": onnx.TensorProto.FLOAT16, "d": onnx.TensorProto.DOUBLE,
}  # fmt: skip
_MAX_RANK, _MOST = 5, 1 << 15
_DIMS, _TRAITS = "fuzz.dims", "fuzz.traits"


class Unfit(Exception):
    """An operator that nothing in the draft can feed; another is drawn."""


@dataclass(frozen=True)
class Value:
    """A tensor of the draft; ``type`` is ``f``, ``b`` or ``i`` (float32, bool, int64).

    Those of type ``n``, ``h`` and ``d`` (int32, float16, double) are only outputs, and of type
    ``q`` (uint8) nothing but read.
    """

    name: str
    dims: Dims
    type: str = "f"
    exact: bool = False
    constant: bool = False

    @property
    def rank(self) -> int:
        return len(self.dims)


def broadcast(*shapes: Dims) -> Dims:
    """The common dims.  Raises Unfit if there are none."""
    rank = max(map(len, shapes))
    found: list[int | str] = []
    for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        large = {d for d in dims if d != 1}
        if len(large) > 1:
            raise Unfit
        found.append(large.pop() if large else 1)
    return tuple(found)


def fixed(dim: int | str) -> int:
    """A dim that a weight can have.  Raises Unfit for a symbol."""
    if isinstance(dim, str):
        raise Unfit
    return dim


def symbolic(dims: Dims) -> bool:
    return any(isinstance(d, str) for d in dims)


def reduced(dims: Dims, axes: Sequence[int], keep: bool) -> Dims:
    """Dims without these axes, or with 1 in their place."""
    if keep:
        return tuple(1 if i in axes else dim for i, dim in enumerate(dims))
    return tuple(dim for i, dim in enumerate(dims) if i not in axes)


def ends(draft: Draft, axis: int, rank: int) -> int:
    """An axis, sometimes counted from the end."""
    return axis - rank if draft.often(50) else axis


class Draft:
    """Nodes, inputs and constants so far; ``draw`` is hypothesis's."""

    def __init__(self, draw: Callable[..., Any], choices: Any, opset: int, dynamic: bool) -> None:
        self._draw, self._st = draw, choices
        self.opset, self.dynamic = opset, dynamic
        self.values: list[Value] = []
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.domains: set[str] = set()
        self.shown: list[Value] = []
        """Values that must be outputs, read or not."""
        self.traits: list[str] = []
        self._declared: dict[str, str] = {}
        self._count = 0

    # ---- decisions ---------------------------------------------------------------------

    def choose(self, options: Sequence[T]) -> T:
        """One of the options; shrinks towards the first.  Raises Unfit if there are none."""
        if not options:
            raise Unfit
        found: T = self._draw(self._st.sampled_from(list(options)))
        return found

    def often(self, percent: int) -> bool:
        return self.number(0, 99) < percent

    def number(self, low: int, high: int) -> int:
        found: int = self._draw(self._st.integers(low, high))
        return found

    def need(self, opset: int) -> None:
        """Raise Unfit in models of an older opset."""
        if self.opset < opset:
            raise Unfit

    # ---- values ------------------------------------------------------------------------

    def floats(
        self, rank: int = 0, where: Callable[[Value], bool] = lambda v: True, least: int = 0
    ) -> Value:
        """A float value, of this rank if it is not 0 and at least ``least``; else a new input."""
        found = [
            v
            for v in reversed(self.values)
            if v.type == "f" and (not rank or v.rank == rank) and v.rank >= least and where(v)
        ]
        if found and self.often(93):
            return self.choose(found[:8])
        fresh = self.input(rank or max(least, self.number(1, 4)))
        if not where(fresh):
            raise Unfit
        return fresh

    def exact(self) -> Value:
        """A float value that two ways to compute it give alike."""
        return self.floats(where=lambda v: v.exact)

    def input(
        self, rank: int, type: str = "f", dims: Dims | None = None, prefix: str = "x"
    ) -> Value:
        if len(self.inputs) > 4:
            raise Unfit
        if dims is None:
            dims = tuple(self._dim(axis, rank) for axis in range(rank))
        name = f"{prefix}{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, _ELEMENT[type], dims))
        return self._known(Value(name, dims, type, exact=True))

    def _dim(self, axis: int, rank: int) -> int | str:
        if self.dynamic and self.often(40 if axis < 2 else 60):
            if axis == 0 and rank > 1:
                return "batch"
            if rank == 3 and axis == 1:
                return "seq"
            if rank == 4 and axis > 1:
                return ("rows", "columns")[axis - 2]
        return self.choose(SIZES[1:8] if rank > 2 and axis < rank - 1 else SIZES)

    def weight(self, *dims: int, scale: float = 1.0) -> Value:
        """Fixed numbers from N(0, scale²)."""
        self._count += 1
        rng = np.random.default_rng([7, self._count, *dims])
        return self.const((rng.standard_normal(dims) * scale).astype(np.float32))

    def const(self, array: npt.ArrayLike, kind: Any = None) -> Value:
        """A constant: an initializer, one that callers may override, or a node."""
        array = np.asarray(array, kind)
        self._count += 1
        name = f"w{self._count}"
        tensor = numpy_helper.from_array(array, name)
        how = self.number(0, 9)
        if how == 9:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.weights.append(tensor)
        if how == 8 and array.dtype == np.float32:
            self.inputs.append(helper.make_tensor_value_info(name, tensor.data_type, array.shape))
        letter = "b" if array.dtype == np.bool_ else "i" if array.dtype.kind == "i" else "f"
        return Value(name, array.shape, letter, True, True)

    def ints(self, *numbers: int) -> Value:
        return self.const(np.array(numbers, np.int64))

    # ---- operators ---------------------------------------------------------------------

    def add(
        self,
        op: str,
        operands: Sequence[Value | None],
        dims: Dims,
        type: str = "f",
        exact: bool = False,
        **attributes: Any,
    ) -> Value:
        """An operator of one result."""
        return self.many(op, operands, [dims], type, exact, **attributes)[0]

    def many(
        self,
        op: str,
        operands: Sequence[Value | None],
        shapes: Sequence[Dims],
        type: str = "f",
        exact: bool = False,
        **attributes: Any,
    ) -> list[Value]:
        """An operator of several results.  Raises Unfit where one would be too large."""
        for dims in shapes:
            fixed = [8 if isinstance(d, str) else d for d in dims]
            if len(dims) > _MAX_RANK or np.prod(fixed, dtype=np.int64) > _MOST or 0 in fixed:
                raise Unfit
        names = []
        for _ in shapes:
            self._count += 1
            names.append(f"v{self._count}")
        given = [v.name if v else "" for v in operands]
        while given and not given[-1]:
            given.pop()
        domain = attributes.get("domain", "")
        self.domains.add(domain)
        label = names[0] if self.often(80) else ""
        self.nodes.append(helper.make_node(op, given, names, name=label, **attributes))
        return [self._known(Value(n, d, type, exact)) for n, d in zip(names, shapes, strict=True)]

    def _known(self, value: Value) -> Value:
        self.values.append(value)
        return value

    def mark(self) -> tuple[int, ...]:
        """Where the draft stands, for :meth:`reset`."""
        return tuple(map(len, self._lists()))

    def reset(self, mark: tuple[int, ...]) -> None:
        """Forget what was begun and did not fit."""
        for found, length in zip(self._lists(), mark, strict=True):
            del found[length:]

    def _lists(self) -> tuple[list[Any], ...]:
        return self.values, self.nodes, self.inputs, self.weights, self.shown, self.traits

    # ---- the model ---------------------------------------------------------------------

    def tangle(self) -> None:
        """Declare all symbols, and some dims of 1 that broadcast, under one name.

        Raises Unfit where they would all be fed one size nevertheless.
        """
        dims = [d for v in self.values if v.name in self._fed() for d in v.dims]
        symbols = sorted({d for d in dims if isinstance(d, str)})
        ones = bool(symbols) and 1 in dims and self.often(50)
        if len(symbols) + ones < 2:
            raise Unfit
        self._declared = dict.fromkeys((*symbols, *(("1",) * ones)), "size")
        self.traits.append("symbols")

    def _fed(self) -> set[str]:
        held = {t.name for t in self.weights}
        return {v.name for v in self.inputs} - held

    def model(self, outputs: Sequence[Value], name: str = "fuzz") -> onnx.ModelProto:
        """The model with these outputs; what leads to none of them stays in it."""
        results = [
            helper.make_tensor_value_info(v.name, _ELEMENT[v.type], self._outer(v.dims))
            for v in outputs
        ]
        fed = [v for v in self.values if v.name in self._fed()]
        dims = {v.name: v.dims for v in fed}
        inputs = [
            helper.make_tensor_value_info(
                v.name, v.type.tensor_type.elem_type, self._given(v.name, dims[v.name])
            )
            if v.name in dims
            else v
            for v in self.inputs
        ]
        graph = helper.make_graph(self.nodes, name, inputs, results, self.weights)
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(d, 1) for d in sorted(self.domains) if d]
        version = 8 if self.opset < 21 else 10
        model = helper.make_model(graph, opset_imports=opsets, ir_version=version)
        known = {_DIMS: json.dumps(dims), _TRAITS: json.dumps(sorted({*self.traits}))}
        helper.set_model_props(model, known)
        return model

    def _given(self, name: str, dims: Dims) -> list[int | str]:
        """Dims of an input as the model declares them; no other number of heads fits a mask."""
        heads = 1 if name.startswith(("mask", "keep")) else None
        return [d if d == heads else self._declared.get(str(d), d) for d in dims]

    def _outer(self, dims: Dims) -> list[int | str | None]:
        """Dims as a model declares them: those computed from symbols have no name."""
        plain = {d.dim_param for v in self.inputs for d in v.type.tensor_type.shape.dim}
        return [
            d if isinstance(d, int) else self._declared.get(d, d) if d in plain else None
            for d in dims
        ]


def true_dims(model: onnx.ModelProto) -> Mapping[str, Dims]:
    """What each input of a drawn model takes: a number, or a symbol that is equal to itself."""
    return {name: tuple(dims) for name, dims in json.loads(_known(model, _DIMS)).items()}


def traits(model: onnx.ModelProto) -> frozenset[str]:
    """What makes a drawn model hard: ``symbols`` of one name for two sizes, rows that ``masks``
    hide wholly under every input, a number that ``absorbs`` scores it is added to, several
    ``outputs`` of one product, and a product that ``rounds`` numbers beside the largest of their
    block (docs/precision.md)."""
    return frozenset(json.loads(_known(model, _TRAITS)))


def _known(model: onnx.ModelProto, key: str) -> str:
    return next(p.value for p in model.metadata_props if p.key == key)
