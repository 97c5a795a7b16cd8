"""Iteration spaces of convolutions and pools, both ONNX operators and fused ops.

    y[n, g·O + o, p…] = Σ_{c, t…} x[n, g·C + c, stride·p + dilation·t − pad …] · w[g·O + o, c, t…]

The position of an output tile determines the rows it reads: neighboring tiles share a halo.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracea_graph.ir import Extent
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.iteration_space_parts import Shape, access, model_of
from tracea_graph.ttg.iteration_space import AccessMap, Axis, Dim, IterationSpace, along
from tracea_graph.ttg.loop_nest_model import RegionModel, Work
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["broadcast_access", "grouped", "pool_all", "pooling", "sizes_of", "sliding"]


def pooling(
    region: Region, graph: TileGraph, window: ConvWindow, channels_last: bool = False
) -> RegionModel | None:
    """Model a window of each channel per result; None if sizes are unknown."""
    sizes = sizes_of(graph, region, window)
    if sizes is None:
        return None
    places, taps, seen = sliding(window)
    points = ("n", *places, "c") if channels_last else ("n", "c", *places)
    axes = [Axis(p, e) for p, e in zip(points, sizes, strict=True)]
    axes += [Axis(t, e, True) for t, e in zip(taps, window.kernel, strict=True)]
    space = IterationSpace(tuple(axes))
    image, channel = along("n"), along("c")
    read = (image, *seen, channel) if channels_last else (image, channel, *seen)
    reads = [access(graph, region.operands[0], read)]
    writes = [access(graph, region.results[0], tuple(map(along, points)))]
    work = (Work(space.names, 1),)
    return model_of(region, space, reads, writes, work, places, ("c",), taps, ("n",))


def pool_all(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model ``GlobalAveragePool`` and similar operators: one number per channel."""
    shape, result = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
    if shape is None or result is None or len(shape) < 3:
        return None
    gone = tuple(f"r{i}" for i in range(len(shape) - 2))
    axes = [Axis("n", shape[0]), Axis("c", shape[1])]
    axes += [Axis(r, e, True) for r, e in zip(gone, shape[2:], strict=True)]
    space = IterationSpace(tuple(axes))
    reads = [access(graph, region.operands[0], tuple(map(along, space.names)))]
    dims = (along("n"), along("c"), *(Dim() for _ in result[2:]))
    writes = [access(graph, region.results[0], dims)]
    work = (Work(space.names, 1),)
    return model_of(region, space, reads, writes, work, ("n",), ("c",), gone)


def sliding(window: ConvWindow) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Dim, ...]]:
    """Return the axes of positions, the axes of taps, and the input dimensions they index."""
    places = tuple(f"p{i}" for i in range(window.rank))
    taps = tuple(f"t{i}" for i in range(window.rank))
    dims = tuple(
        Dim(((p, stride), (t, dilation)), -before)
        for p, t, stride, dilation, (before, _) in zip(
            places, taps, window.strides, window.dilations, window.pairs, strict=True
        )
    )
    return places, taps, dims


def grouped(channel: str, extents: tuple[int, int]) -> Dim:
    """Index of a channel within a group plus its group's offset."""
    return along("g", channel, extents=extents)


def broadcast_access(graph: TileGraph, value: str, result: Sequence[Dim]) -> AccessMap | None:
    """Return how the axes of a result index an operand that broadcasts to it.

    None if the operand's shape is unknown or does not broadcast.
    """
    shape: Shape | None = graph.spec(value).shape
    if shape is None or len(shape) > len(result):
        return None
    last = result[len(result) - len(shape) :]
    dims = [Dim() if e == 1 else d for e, d in zip(shape, last, strict=True)]
    return access(graph, value, dims)


def sizes_of(graph: TileGraph, region: Region, window: ConvWindow) -> tuple[Extent, ...] | None:
    """Return the result's shape; None unless its rank is that of the window and the operand."""
    shape, result = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
    if shape is None or result is None or not len(shape) == len(result) == window.rank + 2:
        return None
    return result
