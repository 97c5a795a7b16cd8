"""Lower GatherND and ScatterND."""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.lowering.elementwise_ops import Targets
from tracea_graph.kernels.gpu.lowering.program_writer import ZERO, GpuProgramWriter
from tracea_graph.kernels.gpu.lowering.row_ops import COMPARED, INTEGERS
from tracea_graph.kernels.program_writer import LackingError, Value
from tracea_graph.ops.indexed_slices import GatherNDParams, ScatterNDParams

__all__ = ["lower_gather_nd", "lower_scatter_nd"]

_MOST_INDICES = 6
"""Maximum number of indices in a tuple: a view has two axes more."""


def _depth(op: str, x: Value, ids: Value) -> int:
    """Return the number of indices in a tuple; raises LackingError for types without kernels."""
    if ids.dtype not in INTEGERS or x.dtype not in COMPARED:
        raise LackingError(f"GPU kernels of {op} need floats, int32 or int64")
    depth = ids.shape[-1]
    if not isinstance(depth, int) or depth > _MOST_INDICES:
        raise LackingError(f"GPU kernels of {op} take tuples of up to {_MOST_INDICES} indices")
    return depth


def lower_gather_nd(
    w: GpuProgramWriter, p: GatherNDParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    x, ids = operands
    depth, items = _depth("GatherND", x, ids), p.batch_dims
    rows, cols = len(ids.shape) - 1 - items, len(x.shape) - items - depth
    shape, target = (*ids.shape[:-1], *x.shape[items + depth :]), targets[0]
    y = target if target and target.dtype is x.dtype else w.temp(x.dtype, shape)
    w.call(
        "gather_nd", x.dtype.short, x=w.flat(x, items, *(1,) * depth, cols).view,
        ids=w.flat(ids, items, rows, 1).view, y=y.flat(items, rows, cols).view,
        index_type=ids.dtype.short,
    )  # fmt: skip
    return [y]


def lower_scatter_nd(
    w: GpuProgramWriter, p: ScatterNDParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    x, ids, updates = operands
    depth, target = _depth("ScatterND", x, ids), targets[0]
    y = target or w.temp(x.dtype, x.shape)
    rows, cols = len(ids.shape) - 1, len(x.shape) - depth
    seen = w.flat(w.typed_as(x, y.dtype), depth, cols)
    new = w.flat(w.typed_as(updates, y.dtype), rows, cols)
    tuples = w.flat(ids, rows, 1)
    ends = w.temp(DType.I32, (*x.shape[:depth], 2))
    slices = w.temp(DType.I32, tuples.shape[:1])
    w.chain(ZERO, [], [ends])
    w.call(
        "update_order", "i32", ids=tuples.view, ends=ends.view, slices=slices.view,
        index_type=ids.dtype.short,
    )  # fmt: skip
    w.call(
        "scatter_nd", y.dtype.short, x=seen.view, updates=new.view,
        ends=ends.flat(depth, 1).view, slices=slices.view, y=y.flat(depth, cols).view,
        reduction=p.reduction,
    )  # fmt: skip
    return [y]
