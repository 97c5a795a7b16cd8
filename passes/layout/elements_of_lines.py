"""Convert look-ups, sums and updates along an axis, and samples of images.

Gather(x, i)                   -> FusedGather(x, i)
CumSum(x, axis)                -> FusedCumSum(x)
ScatterElements(x, i, u)       -> FusedScatterElements(x, i, u)
GridSample(x, grid)            -> FusedGridSample(x, grid)

Views come first: equidistant constant indices need no look-up, nor do rows of a stored table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.ops import OpParams
from tracea_graph.ops.cumulative_sum import CumulativeSumParams
from tracea_graph.ops.gather import GatherParams
from tracea_graph.ops.grid_sample import BEYOND, GridSampleParams
from tracea_graph.ops.indexed_slices import SCATTERS
from tracea_graph.ops.scatter_elements import ScatterElementsParams
from tracea_graph.passes.region_helpers import attribute, fused_region, is_f32
from tracea_graph.reason_codes import Code, Reason, unsuited_reason
from tracea_graph.rewrite import Match, Rewrite, Rule, constant_number

__all__ = ["RULES"]

_FLOATS = (DType.F32, DType.F16, DType.BF16)
_INTEGERS = (DType.I32, DType.I64)
_SAMPLINGS = {
    "linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic",
    "bicubic": "cubic",
}  # fmt: skip


def _axis(m: Match, given: object, rank: int) -> int:
    """Return an axis counted from the start; raises ValueError for one that x does not have."""
    axis = int(str(given))
    if not -rank <= axis < rank:
        raise ValueError(f"its operand has no axis {axis}")
    return axis % rank


def _indexed(spec: TensorSpec, index: TensorSpec) -> Reason | None:
    """Return why a value is not looked up or updated by a kernel."""
    if index.dtype not in _INTEGERS:
        return Reason("its indices are neither int32 nor int64", Code.UNSUPPORTED_DTYPE)
    if spec.dtype not in (*_FLOATS, *_INTEGERS):
        return Reason("its elements are neither floats, int32 nor int64", Code.UNSUPPORTED_DTYPE)
    if spec.dtype in _INTEGERS and (spec.rank or 0) < 2:
        return unsuited_reason("numbers of one axis, such as sizes, stay where they are computed")
    return None


def _gather(m: Match) -> OpParams | str:
    x, index = (m.graph.spec(v) for v in m.root.operands[:2])
    if (why := _indexed(x, index)) is not None:
        return why
    return GatherParams(_axis(m, attribute(m.root, "axis", 0), x.rank or 0))


def _cumulative_sum(m: Match) -> OpParams | str:
    x, axis = m.graph.spec(m.root.operands[0]), constant_number(m.graph, m.root.operands[1])
    if x.dtype not in (DType.F32, *_INTEGERS) or not x.rank:
        return Reason("it does not sum float32, int32 or int64", Code.UNSUPPORTED_DTYPE)
    if axis is None:
        return Reason("its axis is not constant", Code.NOT_CONSTANT)
    how = (attribute(m.root, name, 0) == 1 for name in ("exclusive", "reverse"))
    return CumulativeSumParams(_axis(m, int(axis), x.rank), *how)


def _scatter_elements(m: Match) -> OpParams | str:
    x, index = (m.graph.spec(v) for v in m.root.operands[:2])
    if (why := _indexed(x, index)) is not None:
        return why
    reduction = str(attribute(m.root, "reduction", "none"))
    if reduction not in SCATTERS:
        return f"it combines by {reduction!r}"
    return ScatterElementsParams(_axis(m, attribute(m.root, "axis", 0), x.rank or 0), reduction)


def _grid_sample(m: Match) -> OpParams | str:
    sampling = _SAMPLINGS.get(str(attribute(m.root, "mode", "linear")))
    beyond = str(attribute(m.root, "padding_mode", "zeros"))
    if not is_f32(m.graph, *m.root.operands):
        return Reason("its image or grid is not float32", Code.UNSUPPORTED_DTYPE)
    if sampling is None or beyond not in BEYOND:
        return "its mode or padding_mode is unknown"
    return GridSampleParams(sampling, beyond, attribute(m.root, "align_corners", 0) == 1)


def _rule(name: str, op: str, read: Callable[[Match], OpParams | str], operands: int) -> Rule:
    def pattern(make: Any, x: Any) -> Any:
        return getattr(make, op)(x, ...)

    def convert(m: Match) -> Rewrite | str:
        try:
            params = read(m)
            if isinstance(params, str):
                return params
            taken: Sequence[str] = m.root.operands[:operands]
            (spec,) = params.infer([m.graph.spec(v) for v in taken])
        except ValueError as why:
            return str(why)
        if spec.shape != m.graph.spec(m.root.results[0]).shape:
            return Reason(f"the shape of {m.root.results[0]!r} is not proven", Code.UNKNOWN_SHAPE)
        new = fused_region(name, params, tuple(taken), m.root.results, (m.root,))
        return Rewrite((new,), step=True)  # what it gains is the program around it

    return Rule(name, (pattern,), convert)


RULES = (
    _rule("gather", "Gather", _gather, 2),
    _rule("cumulative-sum", "CumSum", _cumulative_sum, 1),
    _rule("scatter-elements", "ScatterElements", _scatter_elements, 3),
    _rule("grid-sample", "GridSample", _grid_sample, 2),
)
