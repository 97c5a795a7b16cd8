"""Convert RotaryEmbedding (opset 23 and com.microsoft) to a concatenation of rotated parts.

    x1, x2 = halves of x (or its even and odd columns)
    y = [x1·cos − x2·sin, x2·cos + x1·sin, the columns that are not rotated]

The decomposed form needs no rule: it already is a Concat of elementwise operators.
Source: Su et al., "RoFormer" (2021); the operators' specifications.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracea_graph.ir import Node, TensorSpec
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.concat import ConcatParams, ConcatPart
from tracea_graph.ops.elementwise import IDENTITY, ElementwiseParams
from tracea_graph.ops.index_map import HUGE, IndexMap, ViewMove
from tracea_graph.passes.region_helpers import attribute, fused_region, is_f32
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["RotaryEmbedding", "RotaryOperands"]

_FIRST = Chain((FULL,) * 4, (Step("mul", (0, 2)), Step("mul", (1, 3)), Step("sub", (4, 5))), (6,))
_SECOND = Chain((FULL,) * 4, (Step("mul", (1, 2)), Step("mul", (0, 3)), Step("add", (4, 5))), (6,))
"""Operands x1, x2, cos, sin."""


@dataclass(frozen=True)
class RotaryOperands:
    """The operator's operands by role, and its attributes."""

    x: str
    cos: str
    sin: str
    ids: str
    size: int
    rotated: int
    interleaved: bool
    split: IndexMap
    """Map from x to four axes, the last of which are a head's columns."""
    table: IndexMap
    """Map from cos and sin to these four axes."""
    merged: int
    """Columns of the result if its heads are merged, else 0."""

    def params(self) -> ConcatParams:
        """Return the parameters of an op that reads x and the rows of both tables."""
        half = self.rotated // 2
        if self.interleaved:
            cuts = [ViewMove("slice", (3, start, HUGE, 2)) for start in (0, 1)]
            last: tuple[ViewMove, ...] = (ViewMove("unsqueeze", (4,)),)
            target: tuple[int, ...] = (0, 0, self.merged) if self.merged else (0, 0, 0, self.size)
        else:
            cuts = [ViewMove("slice", (3, start, start + half, 1)) for start in (0, half)]
            last, target = (), (0, 0, self.merged) if self.merged else ()
        halves = [self.split.then(cut, *last) for cut in cuts]
        table = self.table.then(*last)
        parts = [
            ConcatPart(ElementwiseParams(chain, (*halves, table, table)), (0, 0, 1, 2))
            for chain in (_FIRST, _SECOND)
        ]
        if self.rotated < self.size:
            rest = self.split.then(ViewMove("slice", (3, self.rotated, HUGE, 1)))
            parts.append(ConcatPart(ElementwiseParams(IDENTITY, (rest,)), (0,)))
        return ConcatParams(4 if self.interleaved else 3, tuple(parts), target)


class RotaryEmbedding:
    """Convert a RotaryEmbedding operator to arithmetic on views of its operands."""

    name = "rotary-embedding"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or region.op not in ("RotaryEmbedding", "com.microsoft::RotaryEmbedding"):
            return
        found = _read(graph, region)
        if isinstance(found, str):
            yield Miss(self.name, region.id, found)
            return
        tables, extra, specs = _gathered(graph, region, found)
        params, names = found.params(), (found.x, *tables)
        known = {**{v: graph.spec(v) for v in names}, **specs}
        try:
            made = params.infer([known[v] for v in names])
        except ValueError as error:
            yield Miss(self.name, region.id, str(error))
            return
        if made != (graph.spec(region.results[0]),):
            yield Miss(
                self.name,
                region.id,
                Reason("its result is not proven to have the shape of x", Code.UNKNOWN_SHAPE),
            )
            return
        new = fused_region(self.name, params, names, region.results, [region])
        yield Proposal(self.name, (region,), (new, *extra), specs)


def _read(graph: TileGraph, region: Region) -> RotaryOperands | str:
    """Return the operator's operands and attributes, or why it is not supported."""
    own = region.op != "RotaryEmbedding"
    if len(region.operands) < 3 or (own and len(region.operands) < 4):
        return "an operand is missing"
    x, *rest = region.operands
    ids, cos, sin = rest[:3] if own else (rest[2] if len(rest) > 2 else "", *rest[:2])
    shape, table = graph.spec(x).shape, graph.spec(cos).shape
    if shape is None or table is None or not is_f32(graph, x, cos, sin):
        return Reason("its operands are not float32 tensors of known rank", Code.UNSUPPORTED_DTYPE)
    if own and (
        attribute(region, "scale", 1.0) != 1.0 or attribute(region, "is_packed_batching", 0)
    ):
        return "its scale is not 1, or its batches are packed"
    if ids and graph.spec(ids).rank != 2:
        return "its position ids are not a matrix"
    if len(table) != (2 if ids else 3) or graph.spec(sin).shape != table:
        return "its cos and sin tables differ in shape"
    half = table[-1]
    heads = int(attribute(region, "num_heads", 0))  # type: ignore[call-overload]
    columns = shape[-1]
    if len(shape) == 3 and heads and isinstance(columns, int):
        size = columns // heads
        split = IndexMap((ViewMove("reshape", (0, 0, heads, size)),))
    elif len(shape) == 4 and isinstance(columns, int):
        size, split = columns, IndexMap()
    else:
        return "the number or size of its heads is not known"
    rotated = int(attribute(region, "rotary_embedding_dim", 0)) or size  # type: ignore[call-overload]
    interleaved = attribute(region, "interleaved", 0) == 1
    if half != rotated // 2 or rotated % 2 or (interleaved and rotated != size):
        return "it rotates only a part of each head in interleaved pairs, or its tables do not fit"
    axis = IndexMap((ViewMove("unsqueeze", (1 if len(shape) == 4 else 2,)),))
    merged = columns if len(shape) == 3 else 0
    return RotaryOperands(x, cos, sin, ids, size, rotated, interleaved, split, axis, merged)


def _gathered(
    graph: TileGraph, region: Region, found: RotaryOperands
) -> tuple[tuple[str, str], tuple[Region, ...], dict[str, TensorSpec]]:
    """Return the names of the table rows for every position, and the regions that look them up."""
    if not found.ids:
        return (found.cos, found.sin), (), {}
    rows = graph.spec(found.ids).shape or ()
    names: list[str] = []
    regions: list[Region] = []
    specs: dict[str, TensorSpec] = {}
    for table in (found.cos, found.sin):
        name = f"{region.results[0]}_{len(names)}_rows"
        node = Node("Gather", (table, found.ids), (name,), {"axis": 0})
        regions.append(Region(f"gather:{name}", "Gather", node.inputs, node.outputs, (node,)))
        specs[name] = TensorSpec(
            graph.spec(table).dtype, (*rows, (graph.spec(table).shape or ())[-1])
        )
        names.append(name)
    return (names[0], names[1]), tuple(regions), specs
