"""``FusedKvCacheAppend``: new keys or values written into a cache at each item's own position.

    y[b,h,t] = past[b,h,t]              t < place[b]
             = new[b,h,t − place[b]]    place[b] ≤ t < place[b] + S
             = 0                        after that

ONNX Runtime's attention operators update caches of items of different lengths this way; source:
ONNX Runtime's documentation of GroupQueryAttention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import (
    access_map,
    aligned_access,
    axes_named,
    region_model,
)
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import DimIndex, index_along, index_whole
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["KvCacheAppendParams"]

Floats = npt.NDArray[np.floating[Any]]
_STORED = MappingProxyType(
    {"f32": DType.F32, "f16": DType.F16, "bf16": DType.BF16, "i8": DType.I8}
)
"""Types of caches by name."""
_AXES = MappingProxyType({"rows": 1, "split": 1, "heads": 2})
"""The sequence axis of new rows in each layout."""
_LEAST, _LARGEST = -128, 127
"""Bounds of int8."""


def _numpy_type(stored: str) -> np.dtype[Any] | None:
    """Return the NumPy type of a cache; None for float32, whose references may be wider."""
    import ml_dtypes

    types = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8}
    return np.dtype(types[stored]) if stored in types else None


@dataclass(frozen=True)
class KvCacheAppendParams:
    """Parameters of an op that writes new keys or values into a cache ``[B,H,P,D]``.

    Operands: ``new``, ``past [B,H,T,D]`` if present, positions (int64 ``[B]``), ``slots [P]``.
    ``new`` is ``[B,S,W]`` in layout ``rows``, with W = ``width`` columns, of which ``heads`` heads
    of ``size`` columns start at column ``offset``; it is ``[B,S,H,D]`` in layout ``split``, and
    ``[B,H,S,D]`` in layout ``heads``.  ``slots`` is read only for its length P.  The cache holds
    numbers of type ``stored`` (``f32``, ``f16``, ``bf16`` or ``i8``), to which ``new`` is rounded
    half to even; what exceeds int8 becomes its bound.  Raises ValueError if a head lies outside
    the columns of ``new``, or for another type or layout.
    """

    heads: int
    size: int
    offset: int
    width: int
    past: bool = True
    stored: str = "f32"
    layout: str = "rows"

    def __post_init__(self) -> None:
        end = self.offset + self.heads * self.size
        inside = 0 <= self.offset < end <= self.width or self.layout != "rows"
        if min(self.heads, self.size) < 1 or not inside:
            raise ValueError(f"{self.heads} heads of {self.size} do not fit {self.width} columns")
        if self.stored not in _STORED:
            raise ValueError(f"caches in {self.stored} are not supported")
        if self.layout not in _AXES:
            raise ValueError(f"new rows in layout {self.layout!r} are not supported")

    @property
    def operands(self) -> int:
        return 3 + self.past

    def extents(self, spec: TensorSpec) -> tuple[Extent, Extent]:
        """Return batch and sequence sizes of ``new``; raises ValueError for a wrong rank."""
        rank = 3 if self.layout == "rows" else 4
        if spec.shape is None or len(spec.shape) != rank:
            raise ValueError(f"the appended operand is not a rank-{rank} tensor")
        return spec.shape[0], spec.shape[_AXES[self.layout]]

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        batch, _ = self.extents(specs[0])
        slots = specs[-1].shape
        if slots is None or len(slots) != 1:
            raise ValueError("the length of the cache is not known")
        return (TensorSpec(_STORED[self.stored], (batch, self.heads, slots[0], self.size)),)

    def reference(self, arrays: Sequence[Any]) -> list[Floats]:
        new, *past, places, slots = arrays
        batch, rows = new.shape[0], new.shape[_AXES[self.layout]]
        heads = new
        if self.layout == "rows":
            part = new[..., self.offset : self.offset + self.heads * self.size]
            heads = part.reshape(batch, rows, self.heads, self.size)
        if self.layout != "heads":
            heads = heads.swapaxes(1, 2)
        if self.stored == "i8":
            heads = np.clip(np.rint(heads), _LEAST, _LARGEST)
        dtype = _numpy_type(self.stored) or new.dtype
        y = np.zeros((batch, self.heads, len(slots), self.size), dtype)
        for b, place in enumerate(places):
            if past:
                y[b, :, :place] = past[0][b, :, :place]
            y[b, :, place : place + rows] = heads[b]
        return [y]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        return OpCost(vector=prod(result))

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        new, *past, places, slots = b.inputs
        if self.layout == "rows" and self.heads * self.size != self.width:
            end = self.offset + self.heads * self.size
            new = b.slice_last(new, self.offset, end, 2)
        narrow = self.stored != "f32"
        if self.stored == "i8":
            bounds = (b.number(_LEAST), b.number(_LARGEST))
            new = b("Min", b("Max", b.round(new), bounds[0]), bounds[1])
        past = [b("Cast", v, to=DType.F32.onnx) if narrow else v for v in past]
        if self.layout == "rows":
            new = b("Reshape", new, b.ints(0, 0, self.heads, self.size))
        if self.layout != "heads":
            new = b("Transpose", new, perm=(0, 2, 1, 3))
        one = b("Constant", value=np.asarray(1, np.int64))
        zero = b("Constant", value=np.asarray(0, np.int64))
        room = b("Shape", slots)
        key = b("Range", zero, b("Gather", room, zero, axis=0), one)
        place = b("Reshape", places, b.ints(-1, 1, 1, 1))
        behind = b("Sub", b("Reshape", key, b.ints(1, 1, -1, 1)), place)
        before = b("Less", behind, zero)
        rows = b("Gather", b("Shape", new), b.ints(2), axis=0)
        fresh = b("And", b("Less", behind, rows), b("Not", before))
        sizes = b("Shape", new)
        whole = b("Concat", b("Gather", sizes, b.ints(0, 1)), room, b.ints(self.size), axis=0)
        index = b("Expand", b("Where", fresh, behind, zero), whole)
        y = b("Where", fresh, b("GatherElements", new, index, axis=2), b.number(0.0))
        if past:
            held = b("Shape", past[0])
            more = b("Sub", room, b("Gather", held, b.ints(2)))
            lead = b("Gather", held, b.ints(0, 1))
            free = b("ConstantOfShape", b("Concat", lead, more, b.ints(self.size), axis=0))
            y = b("Where", before, b("Concat", past[0], free, axis=2), y)
        return b.done(b("Cast", y, to=_STORED[self.stored].onnx) if narrow else y)

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model each row as reading the cache and ``new``: positions are unknown before a run."""
        new, *past, places, slots = region.operands
        shape, room = graph.spec(region.results[0]).shape, graph.spec(slots).shape
        try:
            rows = self.extents(graph.spec(new))[1]
        except ValueError:
            return None
        if shape is None or room is None:
            return None
        names, space = axes_named("d", shape)
        b, h, t, d = names
        every = index_whole(rows, (t,))
        new_dims = {
            "rows": (index_along(b), every, DimIndex(((h, self.size), (d, 1)), self.offset)),
            "split": (index_along(b), every, index_along(h), index_along(d)),
            "heads": (index_along(b), index_along(h), every, index_along(d)),
        }
        held = [(graph.spec(v).shape or shape)[2] for v in past]
        reads = [
            access_map(graph, new, new_dims[self.layout]),
            *(
                access_map(graph, v,
                    (index_along(b), index_along(h), index_whole(rows, (t,)), index_along(d)))
                for v, rows in zip(past, held, strict=True)
            ),
            aligned_access(graph, places, names[:1]),
            aligned_access(graph, slots, (names[2],)),
        ]  # fmt: skip
        writes = [aligned_access(graph, region.results[0], names)]
        return region_model(
            region, space, reads, writes, (LoopWork(names, 1),), names[:3], names[3:]
        )
