"""Convert GatherElements along the last axis, as in relative position biases.

GatherElements(x, i, axis=-1)                   -> FusedGatherElements(x, i)
GatherElements(x, Expand(i, …), axis=-1)        -> FusedGatherElements(x, i)
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType
from tracea_graph.ops.gather_elements import GatherElementsParams
from tracea_graph.passes.region_helpers import (
    COMPARED,
    attribute,
    fused_region,
    operand_producer,
    with_private_producers,
)
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule

__all__ = ["GATHER_ELEMENTS"]

_SINCE = 11
"""Opset that introduced GatherElements."""


def _picked(op: Any, x: Any, index: Any) -> Any:
    return op.GatherElements(x, index)


def _take_check(m: Match) -> str | None:
    rank, index = m.spec("x").rank, m.spec("index")
    if m.graph.opset < _SINCE or not rank or m.spec("x").dtype not in COMPARED:
        return unsuited_reason(
            "x is not float32, int32 or int64 of known rank, or the opset is too old"
        )
    if attribute(m.root, "axis", 0) not in (-1, rank - 1):
        return "it does not gather along the last axis"
    if index.dtype not in (DType.I32, DType.I64):
        return f"the indices {m.values['index']!r} are {index}, not int32 or int64"
    return None


def _take(m: Match) -> Rewrite | str:
    """Convert GatherElements along the last axis, reading expanded indices before the Expand."""
    graph, region, (x, index) = m.graph, m.root, m.root.operands
    params, wanted = (
        GatherElementsParams(m.spec("x").rank or 0),
        graph.spec(region.results[0]).shape,
    )
    repeat, reason = operand_producer(graph, index, "Expand"), ""
    for value in (*([repeat.operands[0]] if repeat else []), index):
        try:
            made = params.infer([graph.spec(x), graph.spec(value)])[0].shape
        except ValueError as why:
            reason = str(why)
            continue
        if made != wanted:
            reason = Reason(
                f"the shape of {region.results[0]!r} is not proven", Code.UNKNOWN_SHAPE
            )
            continue
        covered = with_private_producers(graph, [region], (x, value))
        new = fused_region("gather-elements", params, (x, value), region.results, covered)
        return Rewrite((new,), tuple(covered))
    return reason


GATHER_ELEMENTS = Rule("gather-elements", (_picked,), _take, _take_check)
