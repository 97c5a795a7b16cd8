"""``FusedEmbedding``: a sum of table look-ups with an optional norm.

s[..., :] = Σ_t table_t[ids_t[...], :]        y = norm(s)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops.elementwise import Floats, broadcast
from tracea_graph.ops.function_body import Body, BodyBuilder
from tracea_graph.ops.iteration_space_parts import (
    access_map,
    aligned_access,
    region_model,
    rows_and_columns,
)
from tracea_graph.ops.norm import Norm
from tracea_graph.ops.op_cost import Dims, FittedCoefficients, OpCost
from tracea_graph.ttg.iteration_space import IterationSpace, index_along, index_whole
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["BYTES", "MAX_TABLES", "EmbeddingParams"]

MAX_TABLES = 4
BYTES = (DType.U8, DType.I8)
"""Element types of a single table whose rows are returned unconverted."""


@dataclass(frozen=True)
class EmbeddingParams:
    """Parameters of a sum of rows from ``tables`` embedding tables, with an optional norm.

    Operands: for each table, the table ``[V, H]`` and its integer ids; then gamma and beta, if the
    norm has them.  Rows of a single table of 8-bit integers keep their element type.
    """

    tables: int
    norm: Norm | None = None
    keep_sum: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.tables <= MAX_TABLES:
            raise ValueError(f"an embedding must have 1 to {MAX_TABLES} tables, not {self.tables}")
        if self.keep_sum and self.norm is None:
            raise ValueError("the sum before a norm can be kept only if there is a norm")

    @property
    def operands(self) -> int:
        return 2 * self.tables + (self.norm.operands if self.norm else 0)

    def infer(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the ids' broadcast shape with H; raises ValueError if it is undetermined."""
        shapes = [specs[2 * t + 1].shape for t in range(self.tables)]
        known = [s for s in shapes if s is not None]
        rows = broadcast(known) if len(known) == self.tables else None
        table = specs[0].shape
        if rows is None or table is None:
            raise ValueError("id shapes cannot be proven to broadcast")
        held = specs[0].dtype if specs[0].dtype in BYTES else DType.F32
        spec = TensorSpec(held, (*rows, table[-1]))
        return (spec, spec) if self.keep_sum else (spec,)

    def reference(self, arrays: Sequence[Any]) -> list[Floats]:
        pairs = [arrays[2 * t : 2 * t + 2] for t in range(self.tables)]
        total = sum(table[ids] for table, ids in pairs)
        if self.norm is None:
            return [total]
        y = self.norm.reference(total, arrays[2 * self.tables :])
        return [y, total] if self.keep_sum else [y]

    def cost(self, fit: FittedCoefficients, operands: Sequence[Dims], result: Dims) -> OpCost:
        norm = fit.instructions["fused norm"] if self.norm else 0
        return OpCost(vector=prod(result) * (self.tables + norm))

    def body(self, opset: int) -> Body:
        b = BodyBuilder(self.operands, opset)
        total = b("Gather", b.inputs[0], b.inputs[1], axis=0)
        for t in range(1, self.tables):
            part = b("Gather", b.inputs[2 * t], b.inputs[2 * t + 1], axis=0)
            total = b("Add", total, part)
        if self.norm is None:
            return b.done(total)
        y = self.norm.to_onnx(b, total, b.inputs[2 * self.tables :])
        return b.done(*((y, total) if self.keep_sum else (y,)))

    def space(self, region: Region, graph: TileGraph) -> RegionModel | None:
        """Model the rows of each table as gathered by its ids."""
        shape = graph.spec(region.results[0]).shape
        if not shape:
            return None
        rows, column, axes = rows_and_columns(shape, self.norm)
        data, out = (*rows, "n"), (*rows, column)
        reads = []
        for t in range(self.tables):
            table, ids = region.operands[2 * t : 2 * t + 2]
            index, size = aligned_access(graph, ids, rows), graph.spec(table).shape
            if index is None or not size:
                return None
            chosen = tuple(name for dim in index.dims for name, _ in dim.terms)
            reads += [
                access_map(graph, table, (index_whole(size[0], chosen), index_along("n"))),
                index,
            ]
        reads += [aligned_access(graph, v, out) for v in region.operands[2 * self.tables :]]
        writes = [
            aligned_access(graph, v, n) for v, n in zip(region.results, (out, data), strict=False)
        ]
        work = (
            LoopWork(data, self.tables - 1),
            LoopWork(out, (self.norm.cost if self.norm else 0)),
        )
        columns = () if self.norm else ("n",)
        return region_model(region, IterationSpace(axes), reads, writes, work, rows, columns)
