"""Compute the positions of new rows in caches whose items have individual lengths.

The values are ONNX operators over ``seqlens_k`` and ``total_sequence_length`` that all layers
share; see ``group_query``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tracea_graph.ir import Attr, DType, Extent, Node, TensorSpec, Weight, combine
from tracea_graph.passes.attention.attention_matcher import NoMatch
from tracea_graph.passes.prove_extents import equal_as_polynomials, scalar_extent
from tracea_graph.passes.region_helpers import int_constant
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Positions", "size_source"]


def size_source(graph: TileGraph, extent: Extent, value: str, axis: int) -> tuple[str, int]:
    """Return a graph input and its axis with this extent; if there is none, ``value`` and
    ``axis``."""
    for entry in graph.inputs:
        if extent in (shape := graph.spec(entry).shape or ()):
            return entry, shape.index(extent)
    return value, axis


@dataclass
class Positions:
    """Builds the positions of new rows and cache rows of a GroupQueryAttention.

    There are ``batch`` items with ``rows`` new rows each.  ``regions``, ``specs`` and ``weights``
    collect the new operators.  Names depend only on ``operands`` and ``rows``, so that layers with
    equal lengths share the operators.
    """

    graph: TileGraph
    operands: Sequence[str]
    batch: Extent
    rows: Extent
    regions: list[Region] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)

    def spec(self, value: str) -> TensorSpec:
        return self.specs.get(value) or self.graph.spec(value)

    # ---- values that layers read ---------------------------------------------------------

    def first(self) -> str:
        """Return int64 ``[B]``: the position of each item's first new row."""
        each, one = (self.batch,), self._number(1)
        length = self._flat(self.operands[5], self.batch, "length")
        behind = self._write("behind", "Add", length, one, shape=each)
        place = self._write("place", "Sub", behind, self._rows(), shape=each)
        return self._write("first", "Where", self._prompt(), self._number(0), place, shape=each)

    def slots(self) -> str:
        """Return a value of shape ``[P]``; P is the number of rows of the resulting cache."""
        total, past = self._total(), self.operands[3]
        held: Extent = (self.graph.spec(past).shape or (0,) * 4)[2] if past else 0
        if past:
            size = self._size(held, past, 2)
            fewer = self._write(f"less.{held}", "Less", total, size, shape=(1,), dtype=DType.BOOL)
            total = self._write(f"most.{held}", "Where", fewer, size, total, shape=(1,))
        return self._write(
            f"slots.{held}", "ConstantOfShape", total, shape=(self._room(held),),
            dtype=DType.BOOL, value=np.zeros(1, bool),
        )  # fmt: skip

    def bias(self, value: str, heads: int, window: int) -> str:
        """Return the attention bias ``[B,1 or H,S,P]``: ``value``, or −inf where a key is masked.

        ``value`` is ``[1 or B,1 or H,S,T]`` for T keys; the cache has P rows, and P may exceed T.
        A query sees the last ``window`` keys up to its own, or all if that is not positive.
        """
        shape = self.spec(value).shape
        if shape is None or len(shape) != 4 or shape[1] not in (1, heads):
            raise NoMatch("its attention bias does not broadcast over its heads")
        slots = self.slots()
        (room,) = self.specs[slots].shape or ("",)
        stem, row = slots.removeprefix(f"{self._stem}."), (self.batch, 1, self.rows, 1)
        size = self._write(f"size.{stem}", "Shape", slots, shape=(1,))
        key = self._counted(f"keys.{stem}", size, room)
        step = self._write("step", "Reshape", self._steps(), self._numbers((-1, 1)),
                           shape=(self.rows, 1))  # fmt: skip
        rank4 = self._numbers((-1, 1, 1, 1))
        first = self._write("first4d", "Reshape", self.first(), rank4, shape=(self.batch, 1, 1, 1))
        last = self._write("last", "Add", first, step, shape=row)
        every = (*row[:3], room)
        later = self._write(f"later.{stem}", "Greater", key, last, shape=every, dtype=DType.BOOL)
        near = ""
        if window > 0:
            start = self._write(f"start.{window}", "Sub", last, self._number(window), shape=row)
            gone = self._write(f"gone.{stem}.{window}", "LessOrEqual", key, start, shape=every,
                               dtype=DType.BOOL)  # fmt: skip
            near = f".{window}"
            later = self._write(f"unseen.{stem}{near}", "Or", later, gone, shape=every,
                                dtype=DType.BOOL)  # fmt: skip
        self.weights["minus_infinity"] = Weight(
            "minus_infinity", DType.F32, (), lambda: np.array(-np.inf, np.float32)
        )
        full = (self.batch, shape[1], self.rows, room)
        padded = value
        if not equal_as_polynomials(shape[3], room):
            keys = self._size(shape[3], value, 3)
            more = self._write(f"more.{stem}.{value}", "Sub", size, keys, shape=(1,))
            pads = self._write(f"pads.{stem}.{value}", "Concat", self._numbers((0,) * 7), more,
                               shape=(8,), axis=0)  # fmt: skip
            padded = self._write(f"padded.{stem}.{value}", "Pad", value, pads,
                                 shape=(*shape[:3], room), dtype=DType.F32)  # fmt: skip
        return self._write(f"bias.{stem}.{value}{near}", "Where", later, "minus_infinity", padded,
                           shape=full, dtype=DType.F32)  # fmt: skip

    def tables(self) -> tuple[str, str]:
        """Return the rows of the cos and sin tables for all new positions, each ``[B,S,R]``."""
        ids, given = self._ids(), self.operands[9]
        found = []
        for table in self.operands[7:9]:
            columns = (self.graph.spec(table).shape or ("",))[-1]
            shape, role = (self.batch, self.rows, columns), f"rows.{table}.{given}"
            found.append(
                self.widened(
                    self._write(
                        role, "Gather", table, ids, shape=shape,
                        dtype=self.graph.spec(table).dtype or DType.F32, axis=0,
                    )
                )
            )  # fmt: skip
        return found[0], found[1]

    def widened(self, value: str) -> str:
        """Return a value in float32: itself, or its cast from fp16."""
        spec = self.spec(value)
        if spec.dtype is DType.F32:
            return value
        return self._write(
            f"wide.{value}", "Cast", value, shape=spec.shape, dtype=DType.F32, to=DType.F32.onnx
        )

    def _ids(self) -> str:
        """Return int64 ``[B,S]``: the position id of every new row."""
        steps = self._steps()
        given, every = self.operands[9], (self.batch, self.rows)
        if not given:
            column = (self._numbers((-1, 1)),)
            place = self._write("column", "Reshape", self.first(), *column, shape=(self.batch, 1))
            return self._write("ids", "Add", place, steps, shape=every)
        if self.graph.spec(given).shape != every or self.graph.spec(given).dtype is not DType.I64:
            raise NoMatch("it does not have one position id for each row")
        flat = self._write(
            f"all.{given}", "Reshape", given, self._number(-1), shape=(f"{given}.all",)
        )
        start = self._write(f"start.{given}", "Gather", flat, self._number(0), shape=(1,), axis=0)
        ahead = self._write(f"ahead.{given}", "Add", start, steps, shape=(self.rows,))
        return self._write(f"ids.{given}", "Where", self._prompt(), ahead, given, shape=every)

    def _steps(self) -> str:
        return self._counted("steps", self._rows(), self.rows)

    def _counted(self, role: str, size: str, extent: Extent) -> str:
        """Return int64 ``0, 1, …, size - 1``."""
        count = self._write(f"{role}.count", "Reshape", size, self._numbers(()), shape=())
        zero, one = self._numbers(0), self._numbers(1)
        return self._write(role, "Range", zero, count, one, shape=(extent,))

    # ---- lengths -----------------------------------------------------------------------

    def _total(self) -> str:
        """Return ``total_sequence_length`` as int64 ``[1]``."""
        return self._flat(self.operands[6], 1, "total")

    def _prompt(self) -> str:
        """Return whether this is a first prompt, as bool ``[1]``."""
        operands = self._total(), self._rows()
        return self._write("prompt", "Equal", *operands, shape=(1,), dtype=DType.BOOL)

    def _room(self, held: Extent) -> Extent:
        """Return the number of rows of the resulting cache; a new symbol if it is not known."""
        total = scalar_extent(self.graph, self.operands[6])
        if total is None:
            return f"{self._stem}.{held}"
        if held == 0 or equal_as_polynomials(total, combine("add", held, self.rows)):
            return total
        return combine("max", total, held)

    def _flat(self, value: str, count: Extent, role: str) -> str:
        """Return a value of integers as int64 ``[count]``."""
        wide = self._write(
            f"{role}64", "Cast", value, shape=self.graph.spec(value).shape, to=DType.I64.onnx
        )
        return self._write(role, "Reshape", wide, self._number(-1), shape=(count,))

    def _rows(self) -> str:
        """Return the number of new rows as int64 ``[1]``."""
        return self._size(self.rows, self.operands[0], 1)

    def _size(self, extent: Extent, value: str, axis: int) -> str:
        """Return an extent as int64 ``[1]``, read from a graph input that has this extent, else
        from axis ``axis`` of ``value``."""
        if isinstance(extent, int):
            return self._number(extent)
        value, axis = size_source(self.graph, extent, value, axis)
        rank = self.spec(value).rank
        sizes = self._write(f"sizes.{value}", "Shape", value, shape=(rank or 0,))
        at = self._number(axis)
        return self._write(f"size.{value}.{axis}", "Gather", sizes, at, shape=(1,), axis=0)

    # ---- writing -----------------------------------------------------------------------

    @property
    def _stem(self) -> str:
        return f"{self.operands[5]}.{self.operands[6]}.{self.rows}"

    def _number(self, number: int) -> str:
        return self._numbers((number,))

    def _numbers(self, numbers: int | tuple[int, ...]) -> str:
        constant = int_constant(numbers)
        self.weights[constant.name] = constant
        self.specs[constant.name] = constant.spec
        return constant.name

    def _write(
        self, role: str, op: str, *operands: str, shape: tuple[Extent, ...] | None,
        dtype: DType = DType.I64, **attrs: Attr,
    ) -> str:  # fmt: skip
        """Write one operator and return its value, named after the lengths and ``role``."""
        name = f"{self._stem}.{role}"
        if name not in self.specs:
            node = Node(op, operands, (name,), attrs)
            self.regions.append(Region(f"positions:{name}", op, operands, (name,), (node,)))
            self.specs[name] = TensorSpec(dtype, shape)
        return name
