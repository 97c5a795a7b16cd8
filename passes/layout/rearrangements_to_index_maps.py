"""Read data movement that merges axes as an index map and a Reshape.

DepthToSpace, SpaceToDepth, Tile, and Resize that repeats elements an integer number of times
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tracea_graph.ir import Extent
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.iteration_space_parts import constant_ints
from tracea_graph.passes.region_helpers import attribute
from tracea_graph.ttg import Region, TileGraph

__all__ = ["read_rearrangement"]

Shape = tuple[Extent, ...]
Rearrangement = tuple[IndexMap, tuple[int, ...]]
"""Index map of the operand, and the target of the Reshape after it."""

_UPRIGHT = (("half_pixel", "round_prefer_floor"), ("asymmetric", "floor"))
"""Coordinate and rounding modes under which an integer scale repeats every element."""


def read_rearrangement(graph: TileGraph, region: Region) -> Rearrangement | None:
    """Return the constant index map by which an operator rearranges its first operand, or None."""
    reader = None if region.fused else _READERS.get(region.op)
    if reader is None or len(region.results) != 1:
        return None
    shape = graph.spec(region.operands[0]).shape
    return None if not shape else reader(graph, region, shape)


def _sizes(*dims: Extent | None) -> tuple[int, ...] | None:
    """Return a Reshape target: constants, 0 for a copied first dimension, -1 for one symbol."""
    sizes = tuple(0 if i == 0 else d if isinstance(d, int) else -1 for i, d in enumerate(dims))
    return sizes if sizes.count(-1) <= 1 else None


def _times(dim: Extent, factor: int) -> Extent | None:
    return dim * factor if isinstance(dim, int) else None


def _depth_to_space(graph: TileGraph, region: Region, shape: Shape) -> Rearrangement | None:
    b = int(attribute(region, "blocksize", 0))  # type: ignore[call-overload]
    if len(shape) != 4 or not isinstance(shape[1], int) or b < 1:
        return None
    depth, (_, _, h, w) = shape[1] // (b * b), shape
    columns_first = attribute(region, "mode", "DCR") == "CRD"
    split = _sizes(0, depth, b, b, h, w) if columns_first else _sizes(0, b, b, depth, h, w)
    target = _sizes(0, depth, _times(h, b), _times(w, b))
    order = (0, 1, 4, 2, 5, 3) if columns_first else (0, 3, 4, 1, 5, 2)
    if split is None or target is None:
        return None
    return IndexMap((ViewMove("reshape", split), ViewMove("transpose", order))), target


def _space_to_depth(graph: TileGraph, region: Region, shape: Shape) -> Rearrangement | None:
    b = int(attribute(region, "blocksize", 0))  # type: ignore[call-overload]
    if len(shape) != 4 or not all(isinstance(d, int) for d in shape[1:]) or b < 1:
        return None
    c, h, w = (d if isinstance(d, int) else 0 for d in shape[1:])
    split = ViewMove("reshape", (0, c, h // b, b, w // b, b))
    target = (0, c * b * b, h // b, w // b)
    columns_first = attribute(region, "mode", "DCR") == "CRD"
    order = (0, 1, 3, 5, 2, 4) if columns_first else (0, 3, 5, 1, 2, 4)
    return IndexMap((split, ViewMove("transpose", order))), target


def _tile(graph: TileGraph, region: Region, shape: Shape) -> Rearrangement | None:
    """Read Tile: ``[2·a, 3·b]`` is ``[2, a, 3, b]`` merged."""
    repeats = constant_ints(region, graph, "repeats", 1)
    if not repeats or len(repeats) != len(shape) or min(repeats) < 1:
        return None
    return _repeated(shape, repeats, 0)


def _resize(graph: TileGraph, region: Region, shape: Shape) -> Rearrangement | None:
    """Read Resize: ``[a·2, b·3]`` is ``[a, 2, b, 3]`` merged."""
    how = (
        attribute(region, "coordinate_transformation_mode", "half_pixel"),
        attribute(region, "nearest_mode", "round_prefer_floor"),
    )
    if attribute(region, "mode", "nearest") != "nearest" or how not in _UPRIGHT:
        return None
    if attribute(region, "axes", None) is not None:
        return None
    result = graph.spec(region.results[0]).shape
    weight = graph.weight(region.operands[2]) if len(region.operands) > 2 else None
    if weight is not None and weight.count == len(shape):
        scales = tuple(float(s) for s in weight.array().reshape(-1))
    elif result is not None and all(isinstance(d, int) for d in (*shape, *result)):
        scales = tuple(float(y) / float(x) for x, y in zip(shape, result, strict=True))  # type: ignore[arg-type]
    else:
        return None
    if any(s != int(s) or s < 1 for s in scales):
        return None
    return _repeated(shape, tuple(int(s) for s in scales), 1)


def _repeated(shape: Shape, repeats: tuple[int, ...], behind: int) -> Rearrangement | None:
    """Insert an axis of repeats before (0) or after (1) every axis, then merge them."""
    new: list[int] = []
    target: list[int] = []
    expanded: list[int] = []
    for axis, (dim, count) in enumerate(zip(shape, repeats, strict=True)):
        at = [1]
        if count > 1:
            new.append(axis + len(new) + behind)
            at.insert(behind, count)
        expanded += at
        merged = dim if count == 1 else _times(dim, count)
        copied = isinstance(dim, str) and count == 1
        target.append(merged if isinstance(merged, int) else 0 if copied else -1)
    # 0 copies the dimension at its own index: only the first axis keeps that index
    if new and any(t == 0 and i >= new[0] for i, t in enumerate(target)):
        target = [-1 if t == 0 and i >= new[0] else t for i, t in enumerate(target)]
    if target.count(-1) > 1:
        return None
    if not new:
        return None
    moves = (ViewMove("unsqueeze", tuple(new)), ViewMove("expand", tuple(expanded)))
    return IndexMap(moves), tuple(target)


_READERS: Mapping[str, Callable[[TileGraph, Region, Shape], Rearrangement | None]] = (
    MappingProxyType(
        {
            "DepthToSpace": _depth_to_space,
            "SpaceToDepth": _space_to_depth,
            "Tile": _tile,
            "Resize": _resize,
        }
    )
)
