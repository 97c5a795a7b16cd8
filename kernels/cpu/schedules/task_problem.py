"""Calls cut into tasks of rows and columns as tuning problems: attention, elementwise …

Such a problem is the call itself: its attributes and views, with its number of rows as the symbol
``m``.  A symbolic batch counts as one item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType, Expr, Extent, combine, evaluate, symbols_of
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.kernel_catalog import CATALOG
from tracea_graph.kernels.cpu.schedule import TASK_SCHEDULES, TaskSchedule
from tracea_graph.kernels.program import Attributes, Buffer, Call, Program, Schedule, View
from tracea_graph.ops.chain import Chain
from tracea_graph.policy import OperatorTopology

__all__ = ["ROWS", "TASKS", "Strided", "TaskProblem", "tasks_of_call"]

ROWS = "m"
"""The symbol of the number of rows."""
TASKS = tuple(dict.fromkeys(s.op for s in CALLS.values() if s.schedule is TaskSchedule))
"""The operations that are cut into tasks."""
_TILE = MappingProxyType({"rows": "rows", "columns": "columns"})
_ROWS_ONLY = MappingProxyType({"rows": "rows"})
_DUMMY_BYTES = 64
"""Bytes of the weights that a benchmark repeats where a call has none."""


@dataclass(frozen=True)
class Strided:
    """Dims and strides of a view, in elements, and the name of its element type."""

    dims: tuple[Extent, ...]
    strides: tuple[Extent, ...]
    dtype: str

    @property
    def span(self) -> Extent:
        """Number of elements from the first to the last, inclusive."""
        steps = (
            combine("mul", combine("sub", dim, 1), stride)
            for dim, stride in zip(self.dims, self.strides, strict=True)
        )
        total: Extent = 1
        for step in steps:
            total = combine("add", total, step)
        return total


@dataclass(frozen=True)
class TaskProblem:
    """One call for any number of rows; a view is None if the call omits the operand."""

    op: str
    multiplies: str
    attributes: Attributes
    views: tuple[Strided | None, ...]
    epilogue: Chain | None = None

    @property
    def kernel(self) -> str:
        return Call.name_of(self.op, self.multiplies)

    @property
    def dtype(self) -> str:
        return self.multiplies

    @cached_property
    def call(self) -> Call:
        """The call, with a buffer for each of its views."""
        views = (
            View(Buffer("input", i), v.dims, v.strides) if v else None
            for i, v in enumerate(self.views)
        )
        return Call(self.op, self.multiplies, tuple(views), self.attributes, self.epilogue)

    @cached_property
    def named(self) -> Mapping[str, tuple[Strided, ...]]:
        """The views of each operand."""
        places = CALLS[self.kernel].slices(self.call)
        return {n: tuple(v for v in self.views[at] if v) for n, at in places.items()}

    @property
    def weight(self) -> Strided | None:
        """The stored weights; None if the call has none."""
        return next(iter(self.named.get("w", ())), None)

    @property
    def weight_bytes(self) -> int:
        weight = self.weight
        if weight is None:
            return _DUMMY_BYTES
        return int(evaluate(weight.span, {}) * DType[weight.dtype].size)

    @property
    def defaults(self) -> tuple[Schedule, ...]:
        """The library's own choice, by ranges of row counts."""
        return TASK_SCHEDULES

    @property
    def typical_rows(self) -> tuple[int, ...]:
        """Empty: the model determines the number of rows."""
        return ()

    @property
    def unit(self) -> str:
        return "row"

    @property
    def reuses_weights(self) -> bool:
        return self.weight is None

    @property
    def tile(self) -> Mapping[str, str]:
        return _ROWS_ONLY if self.op == "elementwise" else _TILE

    @property
    def stages(self) -> str:
        return ""

    def rows_of(self, dims: Sequence[int]) -> int:
        """Number of rows of a call whose first view has these dims; 0 if its batch differs."""
        if self.op == "attention":
            return dims[2] if dims[0] == self.named["q"][0].dims[0] else 0
        return prod(dims[:-1])

    def topology(self, rows: int) -> OperatorTopology:
        """The topology of the call on ``rows`` rows."""
        return CATALOG.topology(self.call, partial(evaluate, bindings={ROWS: rows}))

    def flops(self, rows: int) -> float:
        """Return the operations of the products, plus one per result and step of the chain."""
        topology = self.topology(rows)
        steps = len(self.epilogue.steps) if self.epilogue else 0
        results = float(topology.batch * topology.m * topology.n)
        return (topology.flops if self.op != "elementwise" else 0.0) + steps * results

    def moved(self, rows: int) -> float:
        """Bytes of all operands and results; each byte is counted once."""
        bound = {ROWS: rows}
        return sum(evaluate(v.span, bound) * DType[v.dtype].size for v in self.views if v)

    @property
    def sizes(self) -> dict[str, int]:
        """The problem's sizes by name, as in telemetry and entry points of candidates."""
        topology = self.topology(1)
        return {"batch": topology.batch, "n": topology.n, "k": topology.k}

    @property
    def key(self) -> dict[str, Any]:
        """JSON-ready values that identify the problem in the cache."""
        views = [v and [str(v.dims), str(v.strides), v.dtype] for v in self.views]
        return {
            "kernel": self.kernel,
            "attributes": {name: str(value) for name, value in self.attributes.items()},
            "views": views,
            "epilogue": self.epilogue.text if self.epilogue else "",
        }

    def __str__(self) -> str:
        if self.op == "attention":
            (q,), (k,), (v,) = (self.named[name] for name in ("q", "k", "v"))
            return f"{self.kernel} {q.dims[1]}x{q.dims[3]} over {k.dims[2]} keys of {v.dims[1]}"
        if self.op == "elementwise" and self.epilogue:
            wide, steps = self.views[-1], len(self.epilogue.steps)
            return f"{self.kernel} {wide.dims[-1] if wide else 1} wide, {steps} steps"
        topology, suffix = self.topology(1), " + epilogue" if self.epilogue else ""
        return f"{self.kernel} {topology.k}x{topology.n}{suffix}"


def tasks_of_call(program: Program, call: Call) -> TaskProblem | None:
    """The problem of a call that takes a :class:`TaskSchedule`; None if it cannot be timed alone.

    That is the case if a size other than rows and batch is symbolic, if the weights are computed,
    or if the call reads positions or a tile map, which only the model can supply.
    """
    schema = CALLS.of(call)
    first = call.views[0]
    weights = [v for o, v in schema.each(call) if o.name == "w"]
    if first is None or any(v is None or v.buffer.kind != "input" for v in weights):
        return None
    if call.op == "attention" and (
        call.attributes["order"] == "placed" or call.attributes["tile_kind"] != "none"
    ):
        return None
    table = _symbols(call.op, first.dims)
    views: list[Strided | None] = []
    for view in call.views:
        strided = _strided(program, view, table) if view else None
        if view is not None and strided is None:
            return None
        views.append(strided)
    return TaskProblem(call.op, call.dtype, call.attributes, tuple(views), call.chain)


def _symbols(op: str, dims: Sequence[Extent]) -> Mapping[Extent, Extent]:
    """Replacements of a call's symbolic extents: one becomes the rows, all others 1."""
    axes = (0, 2) if op == "attention" else range(len(dims) - 1)
    open_dims = [d for i in axes if not isinstance(d := dims[i], int)]
    if op == "attention" and isinstance(dims[2], int):
        return dict.fromkeys(open_dims, 1)
    return {**dict.fromkeys(open_dims, 1), **dict.fromkeys(open_dims[-1:], ROWS)}


def _strided(program: Program, view: View, table: Mapping[Extent, Extent]) -> Strided | None:
    dims, strides = (tuple(_put(e, table) for e in part) for part in (view.dims, view.strides))
    known = all(s == ROWS for e in (*dims, *strides) for s in symbols_of(e))
    dtype = program.dtype_of(view.buffer)
    if not known or dtype is None or dtype.short not in _FED:
        return None
    return Strided(dims, strides, dtype.name)


_FED = ("f32", "bf16", "bool", "i32", "i64", "u8", "i8")
"""Element types that a benchmark can feed, or round to."""


def _put(extent: Extent, table: Mapping[Extent, Extent]) -> Extent:
    """Replace what the table has, whole expressions first."""
    if extent in table:
        return table[extent]
    if isinstance(extent, Expr):
        a, b = (_put(part, table) for part in extent.args)
        return combine(extent.op, a, b)
    return extent
