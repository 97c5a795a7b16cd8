"""Convert arithmetic on integers that a program finds, such as indices of detections.

Add, Div, Mod, Less, Where, Cast … of int32 or int64    ->    FusedIntegerStep

TopK over all classes and boxes gives one index for both: models divide it and gather by the parts.
Sizes and positions, which no kernel computes, stay where they are.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType
from tracea_graph.ops.elementwise import MAX_RANK
from tracea_graph.ops.integer_step import INTEGER_STEPS, IntegerStepParams
from tracea_graph.passes.layout.read_views import RESHAPES
from tracea_graph.passes.preparation_steps import preparation_steps
from tracea_graph.passes.region_helpers import attribute, fused_region
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule
from tracea_graph.ttg import Region, TileGraph

__all__ = ["INTEGER_STEP"]

_INTEGERS = (DType.I32, DType.I64)
_ALIKE: tuple[set[DType | None], ...] = tuple({t} for t in _INTEGERS)
_SINCE = 12
"""Opset from which Max and Min take integers."""
_VIEWS = (*RESHAPES, "Transpose")


def _step(op: Any, x: Any) -> Any:
    return op.one_of(INTEGER_STEPS, x, ...)


def _convert(m: Match) -> Rewrite | str:
    """Convert an operator on integers, one of which a kernel computes."""
    found, region = _read(m.graph, m.root), m.root
    if isinstance(found, str):
        return found
    new = fused_region("integer-step", found, region.operands, region.results, [region])
    return Rewrite((new,), step=True)


INTEGER_STEP = Rule("integer-step", (_step,), _convert)


def _read(graph: TileGraph, region: Region) -> IntegerStepParams | str:
    """Return the parameters of a step, or why there is none."""
    specs = [graph.spec(v) for v in region.operands]
    numbers = specs[region.op == "Where" :]
    if graph.opset < _SINCE or {s.dtype for s in numbers} not in _ALIKE:
        return unsuited_reason("its operands are not integers of one type")
    made = graph.spec(region.results[0])
    if not made.rank or made.rank > MAX_RANK or made.dtype not in (*_INTEGERS, DType.BOOL):
        return unsuited_reason(f"its result is {made}")
    if not any(_found_by_kernel(graph, v) for v in region.operands):
        return unsuited_reason("no kernel computes its operands")
    if preparation_steps(graph, region) is not None:
        return unsuited_reason("it is a step of masks or positions")
    if region.op == "Mod" and attribute(region, "fmod", 0):
        return "its result has the sign of the dividend"
    try:
        params = IntegerStepParams(region.op, made.dtype if region.op == "Cast" else None)
        if len(specs) != params.operands or params.infer(specs) != (made,):
            return "the number of its operands, or its shape, is not that of a step"
    except ValueError as why:
        return str(why)
    return params


def _found_by_kernel(graph: TileGraph, value: str) -> bool:
    """Return whether a kernel computes a value, which views may rearrange."""
    made = graph.producer(value)
    while made is not None and not made.fused and made.op in _VIEWS:
        made = graph.producer(made.operands[0])
    return made is not None and made.fused
