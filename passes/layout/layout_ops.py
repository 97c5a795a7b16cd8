"""Read operators that move values without arithmetic as layout ops, the steps of programs.

Concat over channels, Split, Slice of channels, nearest Resize and Upsample by integer factors,
Transpose between channels first and channels last; Concat and Resize also of bytes with channels
last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tracea_graph.ir import DType
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.passes.layout.read_views import read_view
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.ttg import Region, TileGraph

__all__ = ["LayoutOps", "read_layout_ops"]

LayoutOps = tuple[tuple[LayoutParams, tuple[str, ...], str], ...]
"""Steps with their operands and results."""

_TURNS = ((0, 2, 3, 1), (0, 3, 1, 2))
_BYTES = (DType.U8, DType.I8)


def read_layout_ops(graph: TileGraph, region: Region) -> LayoutOps | None:
    """Return the layout ops that a region consists of; None if it does more than move elements.

    Elements are float32, or bytes if channels are last.
    """
    reader = None if region.fused else _READERS.get(region.op)
    if reader is None:
        return None
    dtype = graph.spec(region.operands[0]).dtype
    if dtype is not DType.F32 and (dtype not in _BYTES or reader is _read_view):
        return None
    rank = graph.spec(region.operands[0]).rank
    return reader(graph, region) if rank in (3, 4) else None


def _channels(graph: TileGraph, value: str, axis: int = 1) -> int | None:
    count = (graph.spec(value).shape or (0, None))[axis]
    return count if isinstance(count, int) else None


def _read_concat(graph: TileGraph, region: Region) -> LayoutOps | None:
    spec = graph.spec(region.results[0])
    axis = 3 if spec.dtype in _BYTES else 1
    if spec.rank is None or int(str(attribute(region, "axis", 1))) % spec.rank != axis:
        return None
    params = LayoutParams("concat", (axis,), len(region.operands))
    if any(_channels(graph, v, axis) is None or graph.weight(v) for v in region.operands):
        return None
    try:
        params.infer([graph.spec(v) for v in region.operands])
    except ValueError:
        return None
    return ((params, region.operands, region.results[0]),)


def _read_view(graph: TileGraph, region: Region) -> LayoutOps | None:
    """Read every result as a view: a range of channels or a transposition."""
    moves = []
    for value in filter(None, region.results):
        params = _of_view(graph, region, value)
        if params is None:
            return None
        moves.append((params, region.operands[:1], value))
    return tuple(moves)


def _of_view(graph: TileGraph, region: Region, value: str) -> LayoutParams | None:
    view, total = read_view(graph, region, value), _channels(graph, region.operands[0])
    if view is None or len(view.moves) != 1 or graph.weight(region.operands[0]) is not None:
        return None
    op, ints = view.moves[0].op, view.moves[0].ints
    if op == "transpose":
        return LayoutParams("transpose", ints) if ints in _TURNS else None
    axis, start, stop, step = ints
    if axis != 1 or step != 1 or total is None:
        return None
    start, stop, _ = slice(start, stop).indices(total)
    return LayoutParams("channels", (start, stop)) if start < stop else None


def _read_resize(graph: TileGraph, region: Region) -> LayoutOps | None:
    """Read a nearest resize by integer factors: every rounding and coordinate mode that gives
    ``x[i // factor]``."""
    before, after = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
    if _text(region, "mode", "nearest") != "nearest" or before is None or after is None:
        return None
    where = _text(region, "coordinate_transformation_mode", "half_pixel")
    rounding = _text(region, "nearest_mode", "round_prefer_floor")
    old = region.op == "Upsample" or graph.opset < 11
    if not old and (where, rounding) not in _SAME:
        return None
    if len(after) != len(before) or before[0] != after[0]:
        return None
    kept = 2 if before[1] == after[1] else 1
    if kept == 1 and (len(before) != 4 or before[3] != after[3]):
        return None
    factors = _factors(graph, region, kept, old)
    if factors is None:
        return None
    params = LayoutParams("repeat", factors)
    return ((params, region.operands[:1], region.results[0]),)


_SAME = (
    ("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"), ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
)  # fmt: skip


def _factors(graph: TileGraph, region: Region, kept: int, old: bool) -> tuple[int, ...] | None:
    """Return the integer factors of the axes from ``kept`` on, read from scales or known sizes.

    None if an earlier axis is resized or a factor is no integer.
    """
    before, after = (graph.spec(v).shape or () for v in (region.operands[0], region.results[0]))
    at = 1 if old else 2
    given = attribute(region, "scales", None)
    weight = graph.weight(region.operands[at]) if len(region.operands) > at else None
    if given is None and weight is not None and weight.count == len(before):
        given = tuple(float(v) for v in weight.array().reshape(-1))
    if isinstance(given, tuple):
        scales = tuple(float(s) for s in given)
        whole = all(s.is_integer() and s >= 1 for s in scales)
        same = scales[:kept] == (1.0,) * kept
        return tuple(map(int, scales[kept:])) if whole and same else None
    factors = []
    for a, b in zip(before[kept:], after[kept:], strict=True):
        if not isinstance(a, int) or not isinstance(b, int) or b % a or a < 1:
            return None
        factors.append(b // a)
    return tuple(factors)


def _text(region: Region, name: str, default: str) -> str:
    value = attribute(region, name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


_READERS: Mapping[str, Callable[[TileGraph, Region], LayoutOps | None]] = MappingProxyType(
    {
        "Concat": _read_concat, "Split": _read_view, "Slice": _read_view,
        "Transpose": _read_view, "Resize": _read_resize, "Upsample": _read_resize,
    }
)  # fmt: skip
