"""Copies between views of any strides: transposes, slices, repeats, and parts of a concatenation.

The template ``move`` copies runs of a row.  The template ``transpose`` is for x and y that are
contiguous along different axes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access, prove_free
from tracea_graph.kernels.gpu.semantic.fragment_layouts import WARP
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View

__all__ = [
    "ELEMENTS",
    "VECTOR_BYTES",
    "contiguous_axis",
    "launch",
    "name",
    "parameters",
    "shared",
]

ELEMENTS = {"b1": (1, "u8", DType.U8), "b2": (2, "u16", DType.U16), "b4": (4, "u32", DType.U32),
             "b8": (8, "u64", DType.U64)}  # fmt: skip
"""Element size in bytes, the templates' type of that size, and a DType of that size, by dtype."""
VECTOR_BYTES = 16
"""Size of the longest vectors of the templates."""
_PADS = {1: 4, 2: 2, 4: 1, 8: 1}
"""Elements of padding between rows of a square, which put a column into different banks."""


def _views(call: Call) -> tuple[View, View]:
    """Return x and y with at least two axes."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    pair = []
    for view in (named["x"], named["y"]):
        add = (1,) * (2 - len(view.dims))
        steps = (*(0 for _ in add), *view.strides)
        pair.append(View(view.buffer, (*add, *view.dims), steps, view.offset))
    return pair[0], pair[1]


def contiguous_axis(call: Call) -> int | None:
    """Return the axis along which x is contiguous if it is not the last, else None."""
    x, _ = _views(call)
    steps = zip(x.strides[:-1], x.dims[:-1], strict=True)
    found = [axis for axis, (step, dim) in enumerate(steps) if step == 1 and dim != 1]
    return found[-1] if found else None


def _along(call: Call) -> int:
    """Return the axis to swap with the last.  Raises GraphError if there is none."""
    if (axis := contiguous_axis(call)) is None:
        raise GraphError("A copy transposes nothing: x is contiguous along no axis but y's last.")
    return axis


@cache
def _pitch(side: int, size: int) -> int:
    """Return the row pitch of a square in elements, proved free of bank conflicts."""
    pitch = side + _PADS[size]
    rows = tuple(lane * size for lane in range(WARP))
    columns = tuple(lane * pitch * size for lane in range(WARP))
    prove_free([Access("store of a row", size, rows), Access("load of a column", size, columns)])
    return pitch


def name(call: Call) -> str:
    axis = contiguous_axis(call)
    return f"copy_rank{len(_views(call)[0].dims)}" + f"along{axis}" * (axis is not None)


def _start(tensor: str, axes: list[int]) -> str:
    return " + ".join(f"i{axis} * {tensor}_{axis}" for axis in axes) or "0"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    size, element, _ = ELEMENTS[call.dtype]
    rank = len(_views(call)[0].dims)
    others = list(range(rank - 1))
    run = VECTOR_BYTES // size
    widths = [run >> i for i in range(run.bit_length() - 1)]
    made: dict[str, Any] = {"size": size, "element": element, "rank": rank, "run": run,
                            "widths": widths}  # fmt: skip
    if side := variant.params.get("side", 0):
        along = _along(call)
        others.remove(along)
        made |= {"along": along, "pitch": _pitch(side, size)}
    return {**made, "others": others, "start_x": _start("x", others),
            "start_y": _start("y", others)}  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    side, size = variant.params.get("side", 0), ELEMENTS[call.dtype][0]
    return side * (side + _PADS[size]) * size


def _windows(cols: Extent, run: int) -> Extent:
    """Return how many aligned vectors hold a row, wherever it starts."""
    return combine("ceildiv", combine("add", cols, run - 1), run)


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    (x, y), (size, _, dtype) = _views(call), ELEMENTS[call.dtype]
    made: list[Argument] = [pointer(x, dtype), pointer(y, dtype)]
    for pair in zip(x.strides, y.strides, strict=True):
        made += map(i32, pair)
    *outer, cols = y.dims
    if side := variant.params.get("side", 0):
        along = _along(call)
        others = [dim for axis, dim in enumerate(outer) if axis != along]
        tiles = combine("ceildiv", outer[along], side), combine("ceildiv", cols, side)
        made += [divisor(dim) for dim in others[1:]]
        made += [i32(outer[along]), i32(cols), *map(divisor, tiles)]
        blocks = product((*others, *tiles))
    else:
        count = product(y.dims)
        made += [divisor(dim) for dim in outer[1:]]
        part = WARP * (VECTOR_BYTES // size)
        made += [divisor(cols), i32(count), divisor(combine("ceildiv", cols, part))]
        made += [divisor(_windows(cols, VECTOR_BYTES // size))]
        blocks = combine("ceildiv", count, variant.threads * (VECTOR_BYTES // size))
    taken = shared(call, variant)
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
