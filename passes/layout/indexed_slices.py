"""Convert look-ups and updates by index tuples.

GatherND(x, i)         -> FusedGatherND(x, i)
ScatterND(x, i, u)     -> FusedScatterND(x, i, u)

Views come first: one constant tuple, or all positions of a mask, need no look-up.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType
from tracea_graph.ops.indexed_slices import SCATTERS, GatherNDParams, ScatterNDParams
from tracea_graph.passes.region_helpers import attribute, fused_region
from tracea_graph.rewrite import Match, Rewrite, Rule

__all__ = ["RULES"]

_TYPES = (DType.F32, DType.F16, DType.BF16, DType.I32, DType.I64)


def _read(op: Any, x: Any, index: Any) -> Any:
    return op.GatherND(x, index)


def _updated(op: Any, x: Any, index: Any, updates: Any) -> Any:
    return op.ScatterND(x, index, updates)


def _check(m: Match) -> str | None:
    if m.spec("x").dtype not in _TYPES:
        return f"{m.values['x']!r} is {m.spec('x')}, neither floats nor integers"
    if m.spec("index").dtype not in (DType.I32, DType.I64):
        return f"the indices {m.values['index']!r} are {m.spec('index')}, not int32 or int64"
    how = attribute(m.root, "reduction", "none")
    return None if how in SCATTERS else f"it combines by {how!r}"


def _convert(m: Match) -> Rewrite | str:
    graph, region = m.graph, m.root
    operands = tuple(v for v in region.operands if v)
    params: GatherNDParams | ScatterNDParams
    if region.op == "GatherND":
        params = GatherNDParams(int(str(attribute(region, "batch_dims", 0))))
    else:
        params = ScatterNDParams(str(attribute(region, "reduction", "none")))
    try:
        params.infer([graph.spec(v) for v in operands])
    except ValueError as why:
        return str(why)
    name = "gather-nd" if region.op == "GatherND" else "scatter-nd"
    new = fused_region(name, params, operands, region.results, (region,))
    return Rewrite((new,), step=True)  # what it gains is the program around it


RULES = (
    Rule("gather-nd", (_read,), _convert, _check),
    Rule("scatter-nd", (_updated,), _convert, _check),
)
