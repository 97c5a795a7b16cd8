"""Convert softmax over several axes, as before opset 13, to softmax over one axis and two views.

Softmax(x, axis=1)    ->    Reshape(FusedSoftmax(Reshape(x, [0, -1])), shape of x)
"""

from __future__ import annotations

from math import prod
from typing import Any

from tracea_graph.ir import Extent, TensorSpec
from tracea_graph.ops.elementwise import IDENTITY, MAX_RANK, ElementwiseParams
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.passes.region_helpers import attribute, fused_region, is_f32
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule
from tracea_graph.ttg import Region

__all__ = ["SOFTMAX_OVER_AXES"]

_ONE_AXIS = 13
"""Opset from which softmax is over one axis."""


def _normalised(op: Any, x: Any) -> Any:
    return op.one_of(("Softmax", "LogSoftmax"), x)


def _check(m: Match) -> str | None:
    if m.graph.opset >= _ONE_AXIS or not is_f32(m.graph, m.values["x"]):
        return unsuited_reason("it is over one axis, or not of float32 values")
    return None if m.spec("x").shape else Reason("its shape is not known", Code.UNKNOWN_SHAPE)


def _over_axes(m: Match) -> Rewrite | str:
    """Normalise matrices whose columns are all axes from ``axis`` on."""
    x, result, shape = m.values["x"], m.root.results[0], m.spec("x").shape or ()
    axis = attribute(m.root, "axis", 1)
    assert isinstance(axis, int)
    kept = shape[: axis % len(shape)]
    sizes = [d for d in shape[len(kept) :] if isinstance(d, int) and d > 0]
    if len(kept) + len(sizes) != len(shape) or len(shape) > MAX_RANK:
        return Reason(
            f"{result!r} is empty, or its sizes from axis {axis} on are not known",
            Code.UNKNOWN_SHAPE,
        )
    flat: tuple[Extent, ...] = (*kept, prod(sizes))
    rows, normal = f"{m.root.id} rows", f"{m.root.id} normalised"
    params = SoftmaxParams(-1, m.root.op == "LogSoftmax")
    new = (
        _view((*(0,) * len(kept), prod(sizes)), x, rows),
        fused_region("softmax-over-axes", params, (rows,), (normal,), (m.root,)),
        _view((*(0,) * len(kept), *sizes), normal, result),
    )
    spec = TensorSpec(m.spec("x").dtype, flat)
    return Rewrite(new, specs={rows: spec, normal: spec}, step=True)


def _view(target: tuple[int, ...], value: str, result: str) -> Region:
    params = ElementwiseParams(IDENTITY, (IndexMap((ViewMove("reshape", target),)),))
    return fused_region("softmax-over-axes", params, (value,), (result,), ())


SOFTMAX_OVER_AXES = Rule("softmax-over-axes", (_normalised,), _over_axes, _check)
