"""Iteration spaces of what slides windows: convolutions and pools, original and fused.

    y[n, g·O + o, p…] = Σ_{c, t…} x[n, g·C + c, stride·p + dilation·t − pad …] · w[g·O + o, c, t…]

The position of an output tile says which rows it reads: neighbouring tiles share a halo.  A value
that kernels keep in blocks is described by its logical shape ``[N, C, spatial…]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracea_graph.ir import Extent
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.space_parts import Shape, access, model_of
from tracea_graph.ops.windows import Window
from tracea_graph.ttg.graph import Region, TileGraph
from tracea_graph.ttg.model import RegionModel, Work
from tracea_graph.ttg.space import AccessMap, Axis, Dim, IterationSpace, along, whole

__all__ = ["conv", "fused_conv", "fused_pool", "pool", "pool_all", "resize"]


def conv(region: Region, graph: TileGraph) -> RegionModel | None:
    """``Conv``; opaque where ``auto_pad`` asks for padding that depends on unknown sizes."""
    x, weight, *bias = region.operands
    shape = graph.spec(weight).shape
    if shape is None or len(shape) < 3 or not all(isinstance(e, int) for e in shape):
        return None
    filters, inputs, *kernel = (e for e in shape if isinstance(e, int))
    spatial = (graph.spec(x).shape or ())[2:]
    window, groups = _window(region, kernel, spatial), region.node.attrs.get("group", 1)
    if window is None or not isinstance(groups, int) or groups < 1:
        return None
    params = ConvParams(inputs * groups, filters, window, groups, bias=bool(bias and bias[0]))
    return _convolution(region, graph, params, [x, weight, *bias])


def fused_conv(region: Region, graph: TileGraph) -> RegionModel | None:
    """The window of a result, and what its epilogue reads there."""
    return _convolution(region, graph, region.params, region.operands)


def _convolution(
    region: Region, graph: TileGraph, params: ConvParams, operands: Sequence[str]
) -> RegionModel | None:
    sizes = _sizes(graph, region, params.window)
    if sizes is None:
        return None
    batch, (places, taps, seen) = sizes[0], _sliding(params.window)
    extents = (params.groups, params.filters // params.groups, params.channels // params.groups)
    several = params.groups > 1
    outer = (Axis("n", batch), *((Axis("g", extents[0]),) if several else ()))
    space = IterationSpace(
        (
            *outer, Axis("o", extents[1]),
            *(Axis(p, e) for p, e in zip(places, sizes[2:], strict=True)),
            Axis("c", extents[2], True),
            *(Axis(t, e, True) for t, e in zip(taps, params.window.kernel, strict=True)),
        )
    )  # fmt: skip
    made = _grouped("o", extents[:2]) if several else along("o")
    read = _grouped("c", (extents[0], extents[2])) if several else along("c")
    x, weight, bias, extras = params.split(operands)
    result = (along("n"), made, *map(along, places))
    reads = [
        access(graph, x, (along("n"), read, *seen)),
        access(graph, weight, (made, along("c"), *map(along, taps)), params.shape),
        *([access(graph, bias, (made,), (params.filters,))] if bias else []),
        *(_over(graph, v, result) for v in extras),
    ]
    writes = [access(graph, region.results[0], result)]
    points = (*(a.name for a in outer), "o", *places)
    chain = params.epilogue.flops if params.epilogue else 0
    work = (Work(space.names, 2), Work(points, chain + params.bias))
    depth, groups = ("c", *taps), tuple(a.name for a in outer)
    return model_of(region, space, reads, writes, work, places, ("o",), depth, groups)


def pool(region: Region, graph: TileGraph) -> RegionModel | None:
    """``MaxPool`` and ``AveragePool``; opaque where indices are asked for too."""
    kernel = region.node.attrs.get("kernel_shape")
    if not isinstance(kernel, tuple) or len(region.writes) > 1:
        return None
    spatial = (graph.spec(region.operands[0]).shape or ())[2:]
    window = _window(region, [int(k) for k in kernel], spatial)
    return None if window is None else _pooling(region, graph, window)


def fused_pool(region: Region, graph: TileGraph) -> RegionModel | None:
    params: PoolParams = region.params
    if params.window is None:
        return pool_all(region, graph)
    return _pooling(region, graph, params.window)


def _pooling(region: Region, graph: TileGraph, window: Window) -> RegionModel | None:
    sizes = _sizes(graph, region, window)
    if sizes is None:
        return None
    places, taps, seen = _sliding(window)
    points = ("n", "c", *places)
    axes = [Axis(p, e) for p, e in zip(points, sizes, strict=True)]
    axes += [Axis(t, e, True) for t, e in zip(taps, window.kernel, strict=True)]
    space = IterationSpace(tuple(axes))
    reads = [access(graph, region.operands[0], (along("n"), along("c"), *seen))]
    writes = [access(graph, region.results[0], tuple(map(along, points)))]
    work = (Work(space.names, 1),)
    return model_of(region, space, reads, writes, work, places, ("c",), taps, ("n",))


def pool_all(region: Region, graph: TileGraph) -> RegionModel | None:
    """``GlobalAveragePool`` and the like: one number per channel."""
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


def resize(region: Region, graph: TileGraph) -> RegionModel | None:
    """Every result lies between two positions of each axis, which its scale decides."""
    shape, result = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
    if shape is None or result is None or len(shape) != len(result):
        return None
    places, taps = (tuple(f"{a}{i}" for i in range(len(shape) - 2)) for a in "pt")
    axes = [Axis(p, e) for p, e in zip(("n", "c", *places), result, strict=True)]
    space = IterationSpace((*axes, *(Axis(t, 2, True) for t in taps)))
    spread = (whole(d, (p, t)) for d, p, t in zip(shape[2:], places, taps, strict=True))
    seen = (along("n"), along("c"), *spread)
    reads = [access(graph, region.operands[0], seen)]
    writes = [access(graph, region.results[0], tuple(map(along, ("n", "c", *places))))]
    return model_of(
        region, space, reads, writes, (Work(space.names, 2),), places, ("c",), taps, ("n",)
    )


# ---- parts -----------------------------------------------------------------------------


def _sliding(window: Window) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Dim, ...]]:
    """Axes of positions and of taps, and the input dimensions they index."""
    places = tuple(f"p{i}" for i in range(window.rank))
    taps = tuple(f"t{i}" for i in range(window.rank))
    dims = tuple(
        Dim(((p, stride), (t, dilation)), -before)
        for p, t, stride, dilation, (before, _) in zip(
            places, taps, window.strides, window.dilations, window.pairs, strict=True
        )
    )
    return places, taps, dims


def _grouped(channel: str, extents: tuple[int, int]) -> Dim:
    return along("g", channel, extents=extents)


def _over(graph: TileGraph, value: str, result: Sequence[Dim]) -> AccessMap | None:
    """An operand that broadcasts over the result."""
    shape: Shape | None = graph.spec(value).shape
    if shape is None or len(shape) > len(result):
        return None
    last = result[len(result) - len(shape) :]
    dims = [Dim() if e == 1 else d for e, d in zip(shape, last, strict=True)]
    return access(graph, value, dims)


def _sizes(graph: TileGraph, region: Region, window: Window) -> tuple[Extent, ...] | None:
    """The result's shape, if its rank is that of the window and the operand."""
    shape, result = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
    if shape is None or result is None or not len(shape) == len(result) == window.rank + 2:
        return None
    return result


def _window(region: Region, kernel: Sequence[int], spatial: Sequence[Extent]) -> Window | None:
    """The window an operator's attributes describe over an input of these sizes."""
    attrs, rank = region.node.attrs, len(kernel)
    found = []
    for name, default in (("strides", 1), ("dilations", 1), ("pads", 0)):
        count = 2 * rank if name == "pads" else rank
        value = attrs.get(name, (default,) * count)
        if not isinstance(value, tuple):
            return None
        found.append(tuple(int(v) for v in value))
    try:
        window = Window(tuple(kernel), *found)
        kind = str(attrs.get("auto_pad", "NOTSET"))
        if not kind.startswith("SAME"):
            return window
        return replace(window, pads=_same(window, spatial, kind == "SAME_UPPER"))
    except ValueError:
        return None


def _same(window: Window, spatial: Sequence[Extent], upper: bool) -> tuple[int, ...]:
    """Padding that gives ⌈size / stride⌉ positions, the odd one after (upper) or before.

    Raises ValueError where it depends on a size that is not known.
    """
    totals = []
    for size, span, stride in zip(spatial, window.spans, window.strides, strict=True):
        if stride > 1 and not isinstance(size, int):
            raise ValueError(f"the padding depends on {size}")
        left = (size - 1) % stride if isinstance(size, int) else 0
        totals.append(max(span - 1 - left, 0))
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (*less, *more) if upper else (*more, *less)
