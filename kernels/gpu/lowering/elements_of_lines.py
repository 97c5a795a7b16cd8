"""Lower Gather, CumSum, ScatterElements, GridSample and steps on integers."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.lowering.elementwise_ops import Targets
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.gpu.lowering.row_ops import COMPARED, INTEGERS
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import LackingError, Shape, Value
from tracea_graph.ops.cumulative_sum import CumulativeSumParams
from tracea_graph.ops.gather import GatherParams
from tracea_graph.ops.grid_sample import GridSampleParams
from tracea_graph.ops.index_map import ViewMove
from tracea_graph.ops.integer_step import IntegerStepParams
from tracea_graph.ops.scatter_elements import ScatterElementsParams

__all__ = [
    "lower_cumulative_sum",
    "lower_gather",
    "lower_grid_sample",
    "lower_integer_step",
    "lower_scatter_elements",
]

_MOST_AXES = 4
"""Maximum rank of the operands of ScatterElements."""
_LAST = (0, 2, 3, 1)


def _checked(op: str, x: Value, ids: Value | None = None) -> None:
    if x.dtype not in COMPARED or (ids is not None and ids.dtype not in INTEGERS):
        raise LackingError(f"GPU kernels of {op} need floats, int32 or int64")


def _own(w: GpuProgramWriter, target: Value | None, dtype: DType, shape: Shape) -> Value:
    """Return the target if it has this type, or else scratch."""
    return target if target is not None and target.dtype is dtype else w.temp(dtype, shape)


def lower_gather(
    w: GpuProgramWriter, p: GatherParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    """Write a look-up by tuples of one index, which all items share."""
    x, ids = operands
    _checked("Gather", x, ids)
    shape = (*x.shape[: p.axis], *ids.shape, *x.shape[p.axis + 1 :])
    y = _own(w, targets[0], x.dtype, shape)
    behind, rank = len(x.shape) - p.axis - 1, len(ids.shape)
    numbers = w.flat(ids, rank).view
    seen = w.flat(x, p.axis, 1, behind).view
    items = seen.dims[0]
    shared = View(numbers.buffer, (items, *numbers.dims, 1), (0, *numbers.strides, 1),
                  numbers.offset)  # fmt: skip
    w.call(
        "gather_nd", x.dtype.short, x=seen, ids=shared, y=y.flat(p.axis, rank, behind).view,
        index_type=ids.dtype.short,
    )  # fmt: skip
    return [y]


def lower_cumulative_sum(
    w: GpuProgramWriter, p: CumulativeSumParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    """Write the sums of lines, whose places are an outer and an inner group of axes."""
    (x,) = operands
    _checked("CumSum", x)
    rank = len(x.shape)
    order = [*range(p.axis), *range(p.axis + 1, rank), p.axis]
    y = _own(w, targets[0], x.dtype, x.shape)
    seen = [w.flat(v.transposed(order), p.axis, rank - 1 - p.axis, 1).view for v in (x, y)]
    w.call("cumulative_sum", x.dtype.short, x=seen[0], y=seen[1], exclusive=p.exclusive,
           reverse=p.reverse)  # fmt: skip
    return [y]


def lower_scatter_elements(
    w: GpuProgramWriter, p: ScatterElementsParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    x, ids, updates = operands
    _checked("ScatterElements", x, ids)
    rank = len(x.shape)
    if rank > _MOST_AXES:
        raise LackingError("GPU kernels of ScatterElements take up to four axes")
    y = targets[0] or w.temp(x.dtype, x.shape)
    order = [*range(p.axis), *range(p.axis + 1, rank), p.axis]
    wide = ViewMove("unsqueeze", tuple(range(_MOST_AXES - rank)))
    own = w.typed_as(x, y.dtype), ids, w.typed_as(updates, y.dtype), y
    seen = [v.transposed(order) for v in own]
    x4, ids4, updates4, y4 = ((v.moved(wide) if wide.ints else v).view for v in seen)
    w.call(
        "scatter_elements", y.dtype.short, x=x4, ids=ids4, updates=updates4, y=y4,
        reduction=p.reduction, index_type=ids.dtype.short,
    )  # fmt: skip
    return [y]


def lower_grid_sample(
    w: GpuProgramWriter, p: GridSampleParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    """Write a call on images that are stored channels-last, and copied if they are not."""
    x, grid = operands
    (spec,) = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    if x.view.strides[1] != 1:
        x = w.again(x, x.dtype, _LAST)
    y = w.temp(x.dtype, spec.shape or (), _LAST)
    w.call(
        "grid_sample", x.dtype.short, x=x.transposed(_LAST).view,
        grid=w.typed_as(grid, DType.F32).view, y=y.transposed(_LAST).view, sampling=p.sampling,
        beyond=p.beyond, aligned=p.aligned,
    )  # fmt: skip
    return [y]


def lower_integer_step(
    w: GpuProgramWriter, p: IntegerStepParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    (spec,) = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    shape, dtype = spec.shape or (), spec.dtype
    if operands[-1].dtype not in INTEGERS or not shape or dtype is None:
        raise LackingError("GPU kernels of integers take int32 and int64 with an axis")
    y = _own(w, targets[0], dtype, shape)
    w.call(
        "integer_step", operands[-1].dtype.short, x=[v.stretched(shape).view for v in operands],
        y=y.view, step=p.op, count=len(operands), y_type=dtype.short,
    )  # fmt: skip
    return [y]
