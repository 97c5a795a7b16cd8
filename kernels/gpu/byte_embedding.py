"""Look up rows of 8-bit integer tables on GPUs without converting the tables to floats.

Gather(table, ids)    ->    FusedEmbedding
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType
from tracea_graph.ops.embedding import BYTES, EmbeddingParams
from tracea_graph.passes.region_helpers import attribute, fused_region
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Match, Rule
from tracea_graph.ttg import Region

__all__ = ["BYTE_EMBEDDING"]


def _rows_of(op: Any, table: Any, ids: Any) -> Any:
    return op.Gather(table, ids)


def _check(m: Match) -> str | None:
    weight, spec = m.graph.weight(m.values["table"]), m.spec("ids")
    if weight is None or weight.dtype not in BYTES or len(weight.shape) != 2:
        return unsuited_reason(f"{m.values['table']!r} is not a constant matrix of 8-bit integers")
    if attribute(m.root, "axis", 0) != 0:
        return unsuited_reason("its axis is not 0, so it does not select rows")
    if spec.dtype not in (DType.I64, DType.I32) or not spec.rank:
        return "the ids are not an integer tensor of known rank"
    return None


def _embed(m: Match) -> Region:
    operands = (m.values["table"], m.values["ids"])
    return fused_region("byte-embedding", EmbeddingParams(1), operands, m.root.results, [m.root])


BYTE_EMBEDDING = Rule("byte-embedding", (_rows_of,), _embed, _check)
