"""Select a few indices of an axis, and find the operators that compute every index separately.

Gather(x, i, axis), Slice(x, start, end, axis)   -> an AxisSelection of x
MatMul(x, w), an axis of the rows of x           -> x has the axis, w does not
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tracea_graph.ir import Extent, TensorSpec
from tracea_graph.ops.elementwise_steps import OPERATORS
from tracea_graph.ops.index_map import HUGE
from tracea_graph.ops.iteration_space_parts import constant_ints, reshape_groups
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "BY_ROW",
    "NORMS",
    "AxisSelection",
    "OperandAxes",
    "operand_axes",
    "read_selection",
]  # fmt: skip

Shape = tuple[Extent, ...]
OperandAxes = tuple[int | None, ...]
"""For each operand, its axis that corresponds to an axis of the result; None: there is none."""


@dataclass(frozen=True)
class AxisSelection:
    """Some indices of an axis, selected by a Gather or a Slice; the axis is not removed.

    ``ints`` are the indices of the Gather, or the start and end of the Slice; ``count`` is the
    number of selected indices.
    """

    op: str
    axis: int
    ints: tuple[int, ...]
    count: int

    @property
    def name(self) -> str:
        """Suffix for names of selected values."""
        numbers = "_".join("end" if i >= HUGE else str(i).replace("-", "m") for i in self.ints)
        return f"{self.op.lower()}{self.axis}_{numbers}"

    def moved(self, axis: int) -> AxisSelection:
        """Return a selection of the same indices along another axis."""
        return AxisSelection(self.op, axis, self.ints, self.count)

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of the selected part of a value of known rank."""
        shape = list(spec.shape or ())
        shape[self.axis] = self.count
        return TensorSpec(spec.dtype, tuple(shape))


def read_selection(graph: TileGraph, region: Region) -> tuple[AxisSelection, bool] | None:
    """Return what a Gather or Slice with constant indices selects, and whether it keeps the axis.

    None for other operators, and if more than half of the axis is selected.
    """
    if region.fused or region.op not in ("Gather", "Slice"):
        return None
    x, y = graph.spec(region.operands[0]).shape, graph.spec(region.results[0]).shape
    if x is None or y is None or len(x) < 2:
        return None
    found = (_gather if region.op == "Gather" else _slice)(graph, region, x, y)
    if found is None:
        return None
    whole = x[found[0].axis]
    least = 2 * found[0].count
    return found if (whole >= least if isinstance(whole, int) else least <= _FEW) else None


_FEW = 8
"""Assumed size of an axis of unknown size: a selection may have half as many indices."""


def _gather(
    graph: TileGraph, region: Region, x: Shape, y: Shape
) -> tuple[AxisSelection, bool] | None:
    weight = graph.weight(region.operands[1])
    if weight is None or len(weight.shape) > 1 or not 0 < weight.count <= _FEW:
        return None
    axis = int(str(attribute(region, "axis", 0))) % len(x)
    places = tuple(int(i) for i in weight.array().reshape(-1))
    return AxisSelection("Gather", axis, places, len(places)), bool(weight.shape)


def _slice(
    graph: TileGraph, region: Region, x: Shape, y: Shape
) -> tuple[AxisSelection, bool] | None:
    parts = [
        constant_ints(region, graph, name, i + 1)
        for i, name in enumerate(("starts", "ends", "axes", "steps"))
    ]
    if graph.opset < 10 or any(p is None or len(p) > 1 for p in parts):
        return None
    starts, ends, axes, steps = (p or () for p in parts)
    if not (starts and ends) or steps not in ((), (1,)):
        return None
    axis = (axes or (0,))[0] % len(x)
    count = y[axis]
    if not isinstance(count, int) or count < 1:
        return None
    start, end = (max(-HUGE, min(HUGE, i)) for i in (starts[0], ends[0]))
    return AxisSelection("Slice", axis, (start, end), count), True


# ---- operators that treat an axis index by index ------------------------------------------


def operand_axes(graph: TileGraph, region: Region, axis: int) -> OperandAxes | None:
    """Return, for each operand, the axis that corresponds to ``axis`` of the result.

    None if the operator may combine elements with different indices along the axis.
    """
    reader = None if region.fused or region.captures else _READERS.get(region.op)
    if reader is None or len(region.writes) != 1 or not region.results[0]:
        return None
    shapes = [graph.spec(v).shape for v in (*region.writes, *filter(None, region.operands))]
    if any(s is None for s in shapes):
        return None
    return reader(graph, region, axis)


def _shape(graph: TileGraph, value: str) -> Shape:
    return graph.spec(value).shape or ()


def _broadcast(shape: Shape, whole: Shape, axis: int) -> tuple[bool, int | None]:
    """Return whether an operand's relation to a broadcast axis is known, and its own axis."""
    own = axis - (len(whole) - len(shape))
    if own < 0 or (shape[own] == 1 and whole[axis] != 1):
        return True, None
    return equal_as_polynomials(shape[own], whole[axis]), own


def _all(found: Sequence[tuple[bool, int | None]]) -> OperandAxes | None:
    return tuple(place for _, place in found) if all(known for known, _ in found) else None


def _by_element(graph: TileGraph, region: Region, axis: int) -> OperandAxes | None:
    whole = _shape(graph, region.results[0])
    return _all([_broadcast(_shape(graph, v), whole, axis) for v in region.operands])


def _rows(graph: TileGraph, region: Region, axis: int) -> OperandAxes | None:
    """Read norms and softmaxes: the axes from attribute ``axis`` on form one row.

    Rows share the other operands.
    """
    rank = len(_shape(graph, region.results[0]))
    old = "Softmax" in region.op and graph.opset < 13
    first = int(str(attribute(region, "axis", 1 if old else -1))) % rank
    others = [graph.spec(v).rank for v in region.operands[1:] if v]
    if axis >= first or any(r is None or r > rank - first for r in others):
        return None
    return (axis, *(None for _ in region.operands[1:]))


def _reduce(graph: TileGraph, region: Region, axis: int) -> OperandAxes | None:
    rank = len(_shape(graph, region.operands[0]))
    axes = constant_ints(region, graph, "axes", 1)
    if not axes:
        return None
    gone = {a % rank for a in axes}
    left = [a for a in range(rank) if attribute(region, "keepdims", 1) or a not in gone]
    own = left[axis]
    return None if own in gone else (own, *(None for _ in region.operands[1:]))


def _matmul(graph: TileGraph, region: Region, axis: int) -> OperandAxes | None:
    """Read MatMul: rows of the left operand, or a batch axis of both."""
    left, right = (_shape(graph, v) for v in region.operands)
    whole = _shape(graph, region.results[0])
    if min(len(left), len(right)) < 2 or axis == len(whole) - 1:
        return None
    if axis == len(whole) - 2:
        return len(left) - 2, None
    batches = [_broadcast(s[:-2], whole[:-2], axis) for s in (left, right)]
    return _all(batches)


def _gemm(graph: TileGraph, region: Region, axis: int) -> OperandAxes | None:
    if axis != 0:
        return None
    left = 1 if attribute(region, "transA", 0) else 0
    whole = _shape(graph, region.results[0])
    added = [_broadcast(_shape(graph, v), whole, 0) for v in region.operands[2:]]
    return _all([(True, left), (True, None), *added])


def _transpose(graph: TileGraph, region: Region, axis: int) -> OperandAxes | None:
    perm = attribute(region, "perm", None)
    rank = len(_shape(graph, region.results[0]))
    return (perm[axis] if isinstance(perm, tuple) else rank - 1 - axis,)


def _reshape(graph: TileGraph, region: Region, axis: int) -> OperandAxes | None:
    """Read a Reshape that neither merges nor splits the axis."""
    before, after = (_shape(graph, v) for v in (region.operands[0], region.results[0]))
    if before[:axis] == after[:axis] and axis < len(before) and before[axis] == after[axis]:
        return axis, *(None for _ in region.operands[1:])
    groups = reshape_groups(before, after) or []
    own = next((a[0] for a, b in groups if b == [axis] and len(a) == 1), None)
    return None if own is None else (own, *(None for _ in region.operands[1:]))


def _squeeze(graph: TileGraph, region: Region, axis: int) -> OperandAxes | None:
    """Read Squeeze with explicit axes; without them, it would also drop a selected axis of size
    1."""
    named = constant_ints(region, graph, "axes", 1)
    return _reshape(graph, region, axis) if named else None


def _other_axis(graph: TileGraph, region: Region, axis: int) -> OperandAxes | None:
    """Read a Concat over another axis."""
    rank = len(_shape(graph, region.results[0]))
    same = int(str(attribute(region, "axis", 0))) % rank == axis
    return None if same else (axis,) * len(region.operands)


BY_ELEMENT = frozenset(OPERATORS) | frozenset(
    ("Cast", "Clip", "Gelu", "Greater", "GreaterOrEqual", "Max", "Min", "Pow", "Sum")
)  # fmt: skip
NORMS = frozenset(
    ("LayerNormalization", "LogSoftmax", "RMSNormalization", "SimplifiedLayerNormalization",
     "Softmax")
)  # fmt: skip
BY_ROW = BY_ELEMENT | NORMS | {"MatMul"}
"""Operators that compute every row of the last axis separately, for any number of rows."""

_READERS: Mapping[str, Callable[[TileGraph, Region, int], OperandAxes | None]] = MappingProxyType(
    {
        **dict.fromkeys(BY_ELEMENT, _by_element),
        **dict.fromkeys(NORMS, _rows),
        **dict.fromkeys(
            ("ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _reduce
        ),
        "Concat": _other_axis,
        "Flatten": _reshape,
        "Gemm": _gemm,
        "MatMul": _matmul,
        "Reshape": _reshape,
        "Squeeze": _squeeze,
        "Transpose": _transpose,
        "Unsqueeze": _reshape,
    }
)  # fmt: skip
