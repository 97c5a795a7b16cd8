"""Iteration spaces of convolutions and pools, both ONNX operators and fused ops.

    y[n, g·O + o, p…] = Σ_{c, t…} x[n, g·C + c, stride·p + dilation·t − pad …] · w[g·O + o, c, t…]

The position of an output tile determines the rows it reads: neighboring tiles share a halo.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import Extent
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.iteration_space_parts import Shape, access_map, region_model
from tracea_graph.ttg.iteration_space import AccessMap, Axis, DimIndex, IterationSpace, index_along
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = [
    "broadcast_access",
    "global_pool",
    "group_channel_index",
    "pooling",
    "window_axes",
    "window_result_shape",
]


def pooling(
    region: Region, graph: TileGraph, window: ConvWindow, channels_last: bool = False
) -> RegionModel | None:
    """Model each result as reading a window of one channel; None if sizes are unknown."""
    sizes = window_result_shape(graph, region, window)
    if sizes is None:
        return None
    places, taps, seen = window_axes(window)
    points = ("n", *places, "c") if channels_last else ("n", "c", *places)
    axes = [Axis(p, e) for p, e in zip(points, sizes, strict=True)]
    axes += [Axis(t, e, True) for t, e in zip(taps, window.kernel, strict=True)]
    space = IterationSpace(tuple(axes))
    image, channel = index_along("n"), index_along("c")
    read = (image, *seen, channel) if channels_last else (image, channel, *seen)
    reads = [access_map(graph, region.operands[0], read)]
    writes = [access_map(graph, region.results[0], tuple(map(index_along, points)))]
    work = (LoopWork(space.names, 1),)
    return region_model(region, space, reads, writes, work, places, ("c",), taps, ("n",))


def global_pool(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model ``GlobalAveragePool`` and similar operators: one number per channel."""
    shape, result = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
    if shape is None or result is None or len(shape) < 3:
        return None
    gone = tuple(f"r{i}" for i in range(len(shape) - 2))
    axes = [Axis("n", shape[0]), Axis("c", shape[1])]
    axes += [Axis(r, e, True) for r, e in zip(gone, shape[2:], strict=True)]
    space = IterationSpace(tuple(axes))
    reads = [access_map(graph, region.operands[0], tuple(map(index_along, space.names)))]
    dims = (index_along("n"), index_along("c"), *(DimIndex() for _ in result[2:]))
    writes = [access_map(graph, region.results[0], dims)]
    work = (LoopWork(space.names, 1),)
    return region_model(region, space, reads, writes, work, ("n",), ("c",), gone)


def window_axes(
    window: ConvWindow,
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[DimIndex, ...]]:
    """Return the axes of positions, the axes of taps, and the input dimensions they index."""
    places = tuple(f"p{i}" for i in range(window.rank))
    taps = tuple(f"t{i}" for i in range(window.rank))
    dims = tuple(
        DimIndex(((p, stride), (t, dilation)), -before)
        for p, t, stride, dilation, (before, _) in zip(
            places, taps, window.strides, window.dilations, window.pairs, strict=True
        )
    )
    return places, taps, dims


def group_channel_index(channel: str, extents: tuple[int, int]) -> DimIndex:
    """Return the index of a channel: its index within the group plus the offset of the group."""
    return index_along("g", channel, extents=extents)


def broadcast_access(graph: TileGraph, value: str, result: Sequence[DimIndex]) -> AccessMap | None:
    """Return how the axes of a result index an operand that broadcasts to it.

    None if the operand's shape is unknown or does not broadcast.
    """
    shape: Shape | None = graph.spec(value).shape
    if shape is None or len(shape) > len(result):
        return None
    last = result[len(result) - len(shape) :]
    dims = [DimIndex() if e == 1 else d for e, d in zip(shape, last, strict=True)]
    return access_map(graph, value, dims)


def window_result_shape(
    graph: TileGraph, region: Region, window: ConvWindow
) -> tuple[Extent, ...] | None:
    """Return the shape of a window operator's result.

    Returns None if a shape is unknown, or if the rank of the operand or of the result does not fit
    the window.
    """
    shape, result = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
    if shape is None or result is None or not len(shape) == len(result) == window.rank + 2:
        return None
    return result
