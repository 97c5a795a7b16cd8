"""Read data movement as an index map: the moves that turn a stored value into a view.

Transpose, Reshape, Flatten, Squeeze, Unsqueeze, Slice, Split, Expand, GatherND of one constant
index, Gather of one or of equidistant indices
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import Extent
from tracea_graph.ops.index_map import HUGE, IndexMap, ViewMove, resolve_target
from tracea_graph.ops.iteration_space_parts import constant_ints, reshape_groups
from tracea_graph.passes.prove_extents import reshape_target
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.ttg import Region, TileGraph

__all__ = ["RESHAPES", "read_view", "view_of_operand"]

RESHAPES = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze"))
"""Operators that ONNX Runtime runs without copying."""

_MOST_PLACES = 1 << 16
"""Number of elements up to which a constant index tensor is read."""

Shape = tuple[Extent, ...]


def read_view(graph: TileGraph, region: Region, value: str) -> IndexMap | None:
    """Return the index map with which ``value`` views the first operand of ``region``.

    ``value`` is a result of the region.  None if the operator does not only move data, or if the
    map depends on the input.
    """
    reader = None if region.fused else _READERS.get(region.op)
    if reader is None or not region.operands or not region.operands[0]:
        return None
    x, y = graph.spec(region.operands[0]).shape, graph.spec(value).shape
    if x is None or y is None:
        return None
    moves = reader(graph, region, value, x, y)
    return None if moves is None else IndexMap(tuple(moves))


Moves = Sequence[ViewMove] | None


def _transpose(graph: TileGraph, region: Region, value: str, x: Shape, y: Shape) -> Moves:
    perm = attribute(region, "perm", tuple(range(len(x)))[::-1])
    return [ViewMove("transpose", tuple(perm))]  # type: ignore[arg-type]


def _reshape(graph: TileGraph, region: Region, value: str, x: Shape, y: Shape) -> Moves:
    """Read the target from the shapes: constants, copied dimensions and one inferred dimension."""
    if (target := reshape_target(x, y)) is None:
        return None
    move = ViewMove("reshape", target)
    try:
        IndexMap((move,)).shape(x)
    except ValueError:  # axes that split and merge at once, or sizes that contradict each other
        return None
    return [move]


def _axes(graph: TileGraph, region: Region, rank: int) -> tuple[int, ...] | None:
    axes = constant_ints(region, graph, "axes", 1)
    return None if axes is None else tuple(sorted(a % rank for a in axes))


def _squeeze(graph: TileGraph, region: Region, value: str, x: Shape, y: Shape) -> Moves:
    axes = _axes(graph, region, len(x)) if x else None
    if axes is not None and not axes:
        axes = tuple(i for i, d in enumerate(x) if d == 1)
    return [ViewMove("squeeze", axes)] if axes else None


def _unsqueeze(graph: TileGraph, region: Region, value: str, x: Shape, y: Shape) -> Moves:
    axes = _axes(graph, region, len(y))
    return [ViewMove("unsqueeze", axes)] if axes else None


def _slice(graph: TileGraph, region: Region, value: str, x: Shape, y: Shape) -> Moves:
    parts = [
        constant_ints(region, graph, name, i + 1)
        for i, name in enumerate(("starts", "ends", "axes", "steps"))
    ]
    starts, ends, axes, steps = parts
    if starts is None or ends is None or axes is None or steps is None:
        return None
    axes, steps = axes or tuple(range(len(starts))), steps or (1,) * len(starts)
    rows = zip(starts, ends, axes, steps, strict=True)
    return [ViewMove("slice", (a % len(x), _clip(s), _clip(e), t)) for s, e, a, t in rows]


def _clip(place: int) -> int:
    """Clamp an index such as INT64_MAX to a number that plans and NumPy hold."""
    return max(-HUGE, min(HUGE, place))


def _split(graph: TileGraph, region: Region, value: str, x: Shape, y: Shape) -> Moves:
    axis = int(attribute(region, "axis", 0)) % len(x)  # type: ignore[call-overload]
    before = [graph.spec(v).shape for v in region.results[: region.results.index(value)]]
    sizes = [None if s is None else s[axis] for s in (*before, y)]
    numbers = [s for s in sizes if isinstance(s, int)]
    if len(numbers) < len(sizes):
        return None
    start = sum(numbers[:-1])
    return [ViewMove("slice", (axis, start, start + numbers[-1], 1))]


def _expand(graph: TileGraph, region: Region, value: str, x: Shape, y: Shape) -> Moves:
    """Read an Expand to constant sizes: a symbolic size would need a value to read it from."""
    extra = len(y) - len(x)
    own = (1,) * extra + x
    target = [1 if a == b else b for a, b in zip(own, y, strict=True)]
    if not all(isinstance(t, int) for t in target):
        return None
    moves = [ViewMove("unsqueeze", tuple(range(extra)))] if extra else []
    return [*moves, ViewMove("expand", tuple(t for t in target if isinstance(t, int)))]


def _gather(graph: TileGraph, region: Region, value: str, x: Shape, y: Shape) -> Moves:
    weight = graph.weight(region.operands[1])
    if weight is None or not 0 < weight.count <= _MOST_PLACES or not x:
        return None
    axis = int(attribute(region, "axis", 0)) % len(x)  # type: ignore[call-overload]
    if weight.count > 1 or len(weight.shape) > 1:
        return _places(weight.array(), axis, x, y)
    index = int(weight.array().reshape(()))
    kept = [ViewMove("unsqueeze", (axis,))] if weight.shape else []
    return [ViewMove("select", (axis, index)), *kept]


def _places(index: npt.NDArray[Any], axis: int, x: Shape, y: Shape) -> Moves:
    """Read equidistant indices of any shape, or a permutation that transposes a grid.

    Window partitioning uses the latter.
    """
    size = x[axis]
    if not isinstance(size, int):
        return None
    places = np.where(index < 0, index + size, index).astype(np.int64)
    flat = places.reshape(-1)
    if flat.min() < 0 or flat.max() >= size:
        return None
    step = int(flat[1] - flat[0]) if flat.size > 1 else 1
    if step > 0 and np.array_equal(flat, flat[0] + step * np.arange(flat.size)):
        first, last = int(flat[0]), int(flat[-1])
        cut = ViewMove("slice", (axis, first, last + 1, step))
        return _under([cut], x, y)
    wide = next((d for d in places.shape[::-1] if d > 1), 1)
    if size % wide or not np.array_equal(flat, np.arange(size).reshape(wide, -1).T.reshape(-1)):
        return None
    grid = (*x[:axis], wide, size // wide, *x[axis + 1 :])
    if (split := reshape_target(x, grid)) is None:
        return None
    perm = list(range(len(grid)))
    perm[axis : axis + 2] = axis + 1, axis
    return _under([ViewMove("reshape", split), ViewMove("transpose", tuple(perm))], x, y)


def _under(moves: list[ViewMove], x: Shape, y: Shape) -> Moves:
    """Append a reshape to ``moves`` on ``x`` if shape ``y`` needs it; None if impossible."""
    made = IndexMap(tuple(moves)).shape(x)
    if made == y:
        return moves
    target = reshape_target(made, y)
    return None if target is None else [*moves, ViewMove("reshape", target)]


def _gather_nd(graph: TileGraph, region: Region, value: str, x: Shape, y: Shape) -> Moves:
    """Read one constant index along the first axes."""
    weight = graph.weight(region.operands[1])
    if weight is None or not weight.shape or weight.count != weight.shape[-1]:
        return None
    if attribute(region, "batch_dims", 0):
        return None
    picked = [ViewMove("select", (0, int(i))) for i in weight.array().reshape(-1)]
    kept = tuple(range(len(weight.shape) - 1))
    return [*picked, *([ViewMove("unsqueeze", kept)] if kept else [])]


Reader = Callable[[TileGraph, Region, str, Shape, Shape], Moves]
_READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "Transpose": _transpose,
        "Reshape": _reshape,
        "Flatten": _reshape,
        "Squeeze": _squeeze,
        "Unsqueeze": _unsqueeze,
        "Slice": _slice,
        "Split": _split,
        "Expand": _expand,
        "Gather": _gather,
        "GatherND": _gather_nd,
    }
)


# ---- maps through broadcasts -----------------------------------------------------------


def view_of_operand(index_map: IndexMap, own: Shape, full: Shape) -> IndexMap | None:
    """Return the map of an operand of shape ``own`` that broadcasts to the mapped ``full``.

        x[S,D] + y[B,S,D], transposed   ->   x transposed as [1,S,D]

    None if a Reshape merges axes that repeat with axes that do not.
    """
    if own == full:
        return index_map
    if all(d == 1 for d in own):
        return IndexMap((ViewMove("squeeze", tuple(range(len(own)))),) if own else ())
    extra = len(full) - len(own)
    moves = [ViewMove("unsqueeze", tuple(range(extra)))] if extra else []
    mine, whole = (1,) * extra + own, full
    for move in index_map.moves:
        adapted = _adapted(move, mine, whole)
        if adapted is None:
            return None
        moves += adapted
        mine = IndexMap(tuple(adapted)).shape(mine)
        whole = IndexMap((move,)).shape(whole)
    return IndexMap(tuple(moves))


def _adapted(move: ViewMove, mine: Shape, whole: Shape) -> list[ViewMove] | None:
    if move.op in ("slice", "select"):
        axis = move.ints[0]
        if mine[axis] == 1 and whole[axis] != 1:
            return [ViewMove("squeeze", (axis,))] if move.op == "select" else []
    if move.op != "reshape" or mine == whole:
        return [move]
    target = resolve_target(whole, move.ints)
    groups = reshape_groups(whole, target)
    if groups is None:
        return None
    sizes: list[int] = [1] * len(target)
    for old, new in groups:
        if all(mine[i] == 1 for i in old):
            continue
        if any(mine[i] != whole[i] for i in old):
            return None
        for j in new:
            dim = target[j]
            copied = 0 if mine[j : j + 1] == (dim,) else -1
            sizes[j] = dim if isinstance(dim, int) else copied
    return [ViewMove("reshape", tuple(sizes))] if sizes.count(-1) <= 1 else None
