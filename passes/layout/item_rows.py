"""Look up one row of each item as what it is, instead of at its place among all rows.

Gather(Flatten(x, 2), Range(items) · rows + ArgMax(…))    ->    GatherElements along the rows of x
ArgMax(Cast(ids, int32))                                  ->    ArgMax(ids)

Text encoders of CLIP return the row of the last token of each item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.ops.arg_max import ArgParams
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.elementwise import IDENTITY, ElementwiseParams, identity
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gather_elements import GatherElementsParams
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.passes.layout.counted_positions import scaled_axis
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import attribute, fused_region, operand_producer
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Match, Miss, Proposal, Rule
from tracea_graph.ttg import Region, TileGraph

__all__ = ["WIDE_ARG", "ItemRows"]

_LARGEST = 1 << 31


class ItemRows:
    """Convert a Gather of one row of each item, which an ArgMax selects."""

    name = "item-rows"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or region.op != "Gather":
            return
        found = _read_row_of_each_item(graph, region)
        if found is None:
            why = unsuited_reason("it does not look up one row of each item, found by an ArgMax")
            yield Miss(self.name, region.id, why)
            return
        x, place = found
        items, rows, columns = graph.spec(x).shape or ()
        turned, column, picked = (f"{region.id} {part}" for part in ("rows", "place", "picked"))
        index = identity(DType.I64)
        new = (
            _view(self.name, IDENTITY, ViewMove("transpose", (0, 2, 1)), x, turned, ()),
            _view(self.name, index, ViewMove("unsqueeze", (1, 2)), place, column, ()),
            fused_region(self.name, GatherElementsParams(3), (turned, column), (picked,), ()),
            _view(self.name, IDENTITY, ViewMove("squeeze", (2,)), picked, region.results[0],
                  (region,)),
        )  # fmt: skip
        specs: Mapping[str, TensorSpec] = {
            turned: TensorSpec(DType.F32, (items, columns, rows)),
            column: TensorSpec(DType.I64, (items, 1, 1)),
            picked: TensorSpec(DType.F32, (items, columns, 1)),
        }
        yield Proposal(self.name, (region,), new, specs)


def _view(
    name: str, chain: Chain, move: ViewMove, value: str, result: str, covered: Sequence[Region]
) -> Region:
    params = ElementwiseParams(chain, (IndexMap((move,)),))
    return fused_region(name, params, (value,), (result,), covered)


def _read_row_of_each_item(graph: TileGraph, region: Region) -> tuple[str, str] | None:
    """Return ``x`` of shape [items, rows, columns] and the places of rows in their items."""
    flat = graph.producer(region.operands[0])
    added = operand_producer(graph, region.operands[1], "Add")
    if attribute(region, "axis", 0) != 0 or flat is None or flat.fused or added is None:
        return None
    x, made = flat.operands[0], graph.spec(region.operands[0]).shape
    spec = graph.spec(x)
    shape = spec.shape or ()
    if flat.op not in ("Flatten", "Reshape") or len(shape) != 3 or spec.dtype is not DType.F32:
        return None
    if made is None or len(made) != 2 or made[1] != shape[2]:
        return None
    for place, scaled in (added.operands, added.operands[::-1]):
        own = graph.spec(place).shape or ()
        if scaled_axis(graph, scaled, shape[1]) != 0 or len(own) != 1:
            continue
        if equal_as_polynomials(own[0], shape[0]) and _selects(graph, place, shape[1]):
            return x, place
    return None


def _selects(graph: TileGraph, value: str, rows: Extent) -> bool:
    """Return whether a value holds places among ``rows`` elements, which an ArgMax found."""
    region = graph.producer(value)
    if region is None or not isinstance(region.params, ArgParams):
        return False
    full = region.params.full([graph.spec(v).shape for v in region.operands])
    return equal_as_polynomials(full[region.params.axis], rows)


def _arg_of_cast(op: Any, ids: Any) -> Any:
    return op.FusedArg(op.Cast(ids))


def _wide_check(m: Match) -> str | None:
    types = m.spec("ids").dtype, m.graph.spec(m.root.operands[0]).dtype
    if m.root.params.prologue is not None or types != (DType.I64, DType.I32):
        return unsuited_reason("it does not read an int64 tensor that is cast to int32")
    if not _looks_up(m.graph, m.values["ids"]):
        return "the cast may change numbers: they are not known to be the ids of an embedding"
    return None


def _wide_arg(m: Match) -> Region:
    """Read token ids before they are cast to int32.

    The cast changes none of them, because they are rows of a table of fewer than 2^31 rows.
    """
    return fused_region("wide-arg", m.root.params, (m.values["ids"],), m.root.results, (m.root,))


def _looks_up(graph: TileGraph, ids: str) -> bool:
    """Return whether rows of a table of fewer than 2^31 rows are looked up by ``ids``."""
    for use in graph.uses(ids):
        if isinstance(use.region.params, EmbeddingParams) and use.operand % 2:
            table = graph.spec(use.region.operands[use.operand - 1]).shape or (_LARGEST,)
            if isinstance(table[0], int) and table[0] < _LARGEST:
                return True
    return False


WIDE_ARG = Rule("wide-arg", (_arg_of_cast,), _wide_arg, _wide_check)
