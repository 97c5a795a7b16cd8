"""Fuse embedding lookups, their sums and the norm after them.

Gather(table, ids)                          -> FusedEmbedding
Add(FusedEmbedding, FusedEmbedding)         -> FusedEmbedding of both tables
FusedNorm(FusedEmbedding)                   -> FusedEmbedding(…, norm)
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tracea_graph.ir import DType
from tracea_graph.ops.embedding import MAX_TABLES, EmbeddingParams
from tracea_graph.passes.region_helpers import attribute, fused_region, only_read_by
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule
from tracea_graph.ttg import Region

__all__ = ["EMBEDDING", "EMBEDDING_NORM", "EMBEDDING_SUM"]

_MIN_COLUMNS = 16
"""Number of columns below which a table serves index arithmetic and is no embedding."""


def _rows_of(op: Any, table: Any, ids: Any) -> Any:
    return op.Gather(table, ids)


def _table_check(m: Match) -> str | None:
    weight, spec = m.graph.weight(m.values["table"]), m.spec("ids")
    if weight is None or weight.dtype is not DType.F32 or len(weight.shape) != 2:
        return unsuited_reason(f"{m.values['table']!r} is not a constant float32 matrix")
    if attribute(m.root, "axis", 0) != 0 or weight.shape[1] < _MIN_COLUMNS:
        return unsuited_reason(f"it does not look up rows of at least {_MIN_COLUMNS} numbers")
    if spec.dtype not in (DType.I64, DType.I32) or not spec.rank:
        return "the ids are not an integer tensor of known rank"
    return None


def _embed(m: Match) -> Region:
    """Look up rows of a constant float32 table by integer ids."""
    operands = (m.values["table"], m.values["ids"])
    return fused_region("embedding", EmbeddingParams(1), operands, m.root.results, [m.root])


def _sum_of_two(op: Any) -> Any:
    return op.Add(op.FusedEmbedding(..., label="a"), op.FusedEmbedding(..., label="b"))


def _sum_check(m: Match) -> str | None:
    a, b = m.labels["a"], m.labels["b"]
    if a.params.norm is not None or b.params.norm is not None or a.id == b.id:
        return unsuited_reason(
            "a lookup is already normalised, or both operands are the same lookup"
        )
    if a.params.tables + b.params.tables > MAX_TABLES:
        return f"the lookup would read more than {MAX_TABLES} tables"
    return None


def _sum(m: Match) -> Rewrite | str:
    """Sum two lookups in one pass over the rows."""
    a, b = m.labels["a"], m.labels["b"]
    operands = (*a.operands, *b.operands)
    params = EmbeddingParams(a.params.tables + b.params.tables)
    try:
        spec = params.infer([m.graph.spec(v) for v in operands])[0]
    except ValueError as error:
        return str(error)
    if len({m.graph.spec(v).dtype for v in operands[1::2]}) > 1:
        return "the ids have different integer types"
    new = fused_region("embedding-sum", params, operands, m.root.results, (a, b, m.root))
    return Rewrite((new,), specs={m.root.results[0]: spec})


def _normalised(op: Any) -> Any:
    return op.FusedNorm(op.FusedEmbedding(..., label="rows"), ...)


def _norm_check(m: Match) -> str | None:
    free = m.root.params.prologue is None and m.labels["rows"].params.norm is None
    return (
        None
        if free
        else unsuited_reason("the lookup already has a norm, or the norm already has a prologue")
    )


def _norm(m: Match) -> Region:
    """Normalise each block of rows of an embedding sum while it is in cache."""
    rows, value = m.labels["rows"], m.root.operands[0]
    keep = not only_read_by(m.graph, value, m.root)
    params = dataclasses.replace(rows.params, norm=m.root.params.norm, keep_sum=keep)
    results = (m.root.results[0], *([value] if keep else []))
    operands = (*rows.operands, *m.root.operands[1:])
    return fused_region("embedding-norm", params, operands, results, (rows, m.root))


EMBEDDING = Rule("embedding", (_rows_of,), _embed, _table_check)
EMBEDDING_SUM = Rule("embedding-sum", (_sum_of_two,), _sum, _sum_check)
EMBEDDING_NORM = Rule("embedding-norm", (_normalised,), _norm, _norm_check, keeps=True)
