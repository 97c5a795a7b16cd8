"""What structure in the weights saves: bytes of the stored weights, group by group.

zero blocks        the dense matrix                  ->    stored blocks and their map
scattered zeros    the same                          ->    stored numbers and their map
exact, low rank    the same, with its last product   ->    either factor
"""

from __future__ import annotations

from collections.abc import Set
from math import prod

from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weights import aligned
from tracea_graph.passes.sparse.exact_rank import FACTORED, LOW_RANK
from tracea_graph.pipeline.assembly import Assembly, Placed
from tracea_graph.views import SavingRow

__all__ = ["saving_rows"]

_RANKS = {FACTORED: "exact rank", LOW_RANK: "low rank"}


def saving_rows(planned: Assembly, kept: Set[str]) -> tuple[SavingRow, ...]:
    """A row for each planned group of products that stores less; ``kept`` are those that stay."""
    rows = []
    for group, items in planned.groups.items():
        params = items[0].region.params
        if not isinstance(params, GemmParams):
            continue
        if params.layout.skips:
            technique = params.layout.skips
        elif items[0].region.rule in _RANKS:
            technique = _RANKS[items[0].region.rule]
        else:
            continue
        before = sum(_dense_bytes(planned, item) for item in items)
        after = sum(_stored_bytes(planned, item) for item in items)
        rows.append(SavingRow(group, technique, len(items), before, after, group in kept))
    return tuple(rows)


def _stored_bytes(planned: Assembly, item: Placed) -> int:
    """Of the matrix, and of its map if it has one."""
    params, operands = item.region.params, item.region.operands
    return sum(planned.graph.weights[name].nbytes for name in params.stored(operands))


def _dense_bytes(planned: Assembly, item: Placed) -> int:
    """Of the product's own matrix in float32; 0 for the first of two factors, which has none."""
    region = item.region
    params: GemmParams = region.params
    if region.rule not in _RANKS:
        return 4 * params.k * aligned(params.n)
    written = {v for node in region.nodes for v in node.outputs}
    if region.results[0] not in written:
        return 0
    sources = [n.inputs[1] for n in region.nodes if n.op in ("MatMul", "Gemm")]
    weights = [planned.graph.weight(source) for source in sources]
    return sum(4 * prod(weight.shape) for weight in weights if weight)
