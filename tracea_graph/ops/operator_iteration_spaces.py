"""Iteration spaces and access maps of regions: the tile graph's knowledge of operators.

A custom op defines its own (``space`` of its parameters).  ONNX operators are modelled here from
their shapes and attributes: each function takes a region of one operator and returns its model, or
None (opaque) if shapes or parameters are not known well enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tracea_graph.ir import Extent, combine
from tracea_graph.ops import OpParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.elementwise_steps import ELEMENTARY, OPERATORS
from tracea_graph.ops.iteration_space_parts import (
    access_map,
    aligned_access,
    axes_named,
    constant_ints,
    region_model,
    reshape_groups,
)
from tracea_graph.ops.window_space import global_pool, pooling
from tracea_graph.ttg.iteration_space import (
    AccessMap,
    Axis,
    DimIndex,
    IterationSpace,
    index_along,
    index_whole,
)
from tracea_graph.ttg.loop_nest_model import LoopWork, RegionModel
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = ["COSTS", "MODELS", "space_of"]

Model = Callable[[Region, TileGraph], RegionModel | None]

COSTS: Mapping[str, int] = MappingProxyType(
    {e.onnx[0][0]: e.flops for e in ELEMENTARY.values() if len(e.onnx) == 1}
    | {operator: ELEMENTARY[step].flops for operator, step in OPERATORS.items()}
    | dict.fromkeys(("Identity", "Cast", "Expand", "Dropout"), 0)
    | dict.fromkeys(("Greater", "GreaterOrEqual"), 1)
    | {"Sum": 1, "Mean": 2, "Mod": 2, "Gelu": 22, "Mish": 44}
)
"""Elementwise operators and their cost in vector instructions."""
REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSum", "LogSumExp")
ROW_COST = {"Softmax": 14, "LogSoftmax": 14, "LayerNormalization": 6, "RMSNormalization": 4}


def elementwise_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model broadcast operands, with one point per element of the result."""
    shape = graph.spec(region.results[0]).shape
    if shape is None:
        return None
    names, space = axes_named("d", shape)
    operands = region.operands[:1] if region.op == "Expand" else region.operands
    reads = tuple(aligned_access(graph, v, names) for v in operands if v)
    writes = tuple(aligned_access(graph, v, names) for v in region.writes)
    return _rowwise(region, space, names, reads, writes, (LoopWork(names, COSTS[region.op]),))


def matmul_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model ``[…, M, K] x […, K, N]``; a rank-2 right operand merges batch and rows."""
    a, b = (graph.spec(v).shape for v in region.operands)
    y = graph.spec(region.results[0]).shape
    if not a or not b or y is None:
        return None
    inner = [n for n, rank in (("m", len(a)), ("n", len(b))) if rank > 1]
    batch = tuple(f"b{i}" for i in range(len(y) - len(inner)))
    names = (*batch, *inner)
    left, right = (*batch, "m", "k")[-len(a) :], (*batch, "k", "n")[-len(b) :]
    left, right = ("k",) if len(a) == 1 else left, ("k",) if len(b) == 1 else right
    space = IterationSpace(
        (*(Axis(n, e) for n, e in zip(names, y, strict=True)), Axis("k", a[-1], True))
    )
    reads = (
        aligned_access(graph, region.operands[0], left),
        aligned_access(graph, region.operands[1], right),
    )
    write = aligned_access(graph, region.results[0], names)
    rows = ("m",) if "m" in names else ()
    cols = ("n",) if "n" in names else ()
    joined = all(e == 1 for e in b[:-2])
    return region_model(
        region, space, reads, (write,), (LoopWork(space.names, 2),),
        (*batch, *rows) if joined else rows, cols, ("k",), () if joined else batch,
    )  # fmt: skip


def gemm_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model ``alpha · op(A) · op(B) + beta · C``."""
    y, a = (graph.spec(v).shape for v in (region.results[0], region.operands[0]))
    if y is None or a is None or len(y) != 2 or len(a) != 2:
        return None
    attrs = region.node.attrs
    left = ("k", "m") if attrs.get("transA", 0) else ("m", "k")
    right = ("n", "k") if attrs.get("transB", 0) else ("k", "n")
    space = IterationSpace((Axis("m", y[0]), Axis("n", y[1]), Axis("k", a[left.index("k")], True)))
    names = (left, right, ("m", "n"))
    pairs = zip(region.operands, names, strict=False)
    reads = tuple(aligned_access(graph, v, n) for v, n in pairs if v)
    write = aligned_access(graph, region.results[0], ("m", "n"))
    work = (LoopWork(("m", "n", "k"), 2), LoopWork(("m", "n"), 2 * (len(reads) - 2)))
    return region_model(region, space, reads, (write,), work, ("m",), ("n",), ("k",))


def reduce_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model a reduction: one result per index of the axes that are kept."""
    x, y = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
    axes = constant_ints(region, graph, "axes", 1)
    if x is None or y is None or axes is None:
        return None
    gone = {a % len(x) for a in axes} if x else set()
    if not gone and not region.node.attrs.get("noop_with_empty_axes", 0):
        gone = set(range(len(x)))
    names = tuple(f"d{i}" for i in range(len(x)))
    space = IterationSpace(
        tuple(Axis(n, e, i in gone) for i, (n, e) in enumerate(zip(names, x, strict=True)))
    )
    kept = tuple(n for i, n in enumerate(names) if i not in gone)
    flat = tuple(DimIndex() if i in gone else index_along(n) for i, n in enumerate(names))
    dims = flat if len(y) == len(x) else tuple(map(index_along, kept))
    reads = (aligned_access(graph, region.operands[0], names),)
    writes = (access_map(graph, region.results[0], dims),)
    last = () if not kept or kept[-1] != names[-1] else kept[-1:]
    depth = tuple(n for n in names if n not in kept)
    rows = kept[: len(kept) - len(last)]
    return region_model(region, space, reads, writes, (LoopWork(names, 1),), rows, last, depth)


def norm_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model softmax and norms: each result reads its whole row, and rows are never split."""
    shape = graph.spec(region.operands[0]).shape
    if not shape:
        return None
    single = "Softmax" in region.op and graph.opset >= 13
    default = 1 if "Softmax" in region.op and not single else -1
    axis = int(str(region.node.attrs.get("axis", default))) % len(shape)
    names, space = axes_named("d", shape)
    row = range(axis, axis + 1 if single else len(shape))
    dims = tuple(
        index_whole(e) if i in row else index_along(names[i]) for i, e in enumerate(shape)
    )
    flat = tuple(DimIndex() if i in row else index_along(n) for i, n in enumerate(names))
    reads = [access_map(graph, region.operands[0], dims)]
    reads += [aligned_access(graph, v, names) for v in region.operands[1:] if v]
    writes = [aligned_access(graph, region.results[0], names)]
    writes += [access_map(graph, v, flat) for v in region.results[1:] if v]
    work = (LoopWork(names, ROW_COST[region.op]),)
    rows = tuple(n for i, n in enumerate(names) if i not in row)
    return region_model(region, space, reads, writes, work, rows)


def transpose_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model a permuted copy."""
    y = graph.spec(region.results[0]).shape
    if y is None:
        return None
    perm = region.node.attrs.get("perm")
    order = tuple(perm) if isinstance(perm, tuple) else tuple(range(len(y)))[::-1]
    if len(order) != len(y):
        return None
    names, space = axes_named("d", y)
    source = tuple(index_along(names[order.index(i)]) for i in range(len(y)))
    reads = (access_map(graph, region.operands[0], source),)
    return _rowwise(
        region, space, names, reads, (aligned_access(graph, region.results[0], names),)
    )


def gather_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model slices of the data along one axis, chosen by indices."""
    data, index = (graph.spec(v).shape for v in region.operands)
    y = graph.spec(region.results[0]).shape
    if not data or index is None or y is None or len(y) != len(data) - 1 + len(index):
        return None
    axis = int(str(region.node.attrs.get("axis", 0))) % len(data)
    names, space = axes_named("d", y)
    chosen = names[axis : axis + len(index)]
    others = [*names[:axis], "", *names[axis + len(index) :]]
    dims = tuple(index_along(n) if n else index_whole(data[axis], chosen) for n in others)
    reads = (
        access_map(graph, region.operands[0], dims),
        aligned_access(graph, region.operands[1], chosen),
    )
    return _rowwise(
        region, space, names, reads, (aligned_access(graph, region.results[0], names),)
    )


def reshape_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model dimensions that split or merge; any other Reshape is opaque."""
    x, y = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
    groups = reshape_groups(x, y) if x is not None and y is not None else None
    if x is None or y is None or groups is None:
        return None
    axes: list[Axis] = []
    dims: tuple[list[DimIndex], list[DimIndex]] = [DimIndex()] * len(x), [DimIndex()] * len(y)
    for group in groups:
        fine, coarse = (0, 1) if len(group[0]) >= len(group[1]) else (1, 0)
        extents = [(x, y)[fine][i] for i in group[fine]]
        fresh = tuple(f"d{len(axes) + i}" for i in range(len(extents)))
        axes += [Axis(n, e) for n, e in zip(fresh, extents, strict=True)]
        for i, name in zip(group[fine], fresh, strict=True):
            dims[fine][i] = index_along(name)
        dims[coarse][group[coarse][0]] = index_along(*fresh, extents=extents)
    names = tuple(a.name for a in axes)
    last = len(groups[-1][0]) + len(groups[-1][1]) - 1 if groups else 0
    reads = (access_map(graph, region.operands[0], dims[0]),)
    writes = (access_map(graph, region.results[0], dims[1]),)
    split = len(names) - last
    space = IterationSpace(tuple(axes))
    return region_model(region, space, reads, writes, (), names[:split], names[split:])


def concat_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model concatenated operands: each is read where an index of the result is in its range."""
    return _side_by_side(region, graph, region.results[0], region.operands, joining=True)


def split_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model results that are ranges of the operand, as the mirror image of :func:`concat`."""
    return _side_by_side(region, graph, region.operands[0], region.results, joining=False)


def _side_by_side(
    region: Region, graph: TileGraph, long: str, parts: Sequence[str], joining: bool
) -> RegionModel | None:
    shape = graph.spec(long).shape
    if not shape:
        return None
    axis = int(str(region.node.attrs.get("axis", 0))) % len(shape)
    names, space = axes_named("d", shape)
    maps: list[AccessMap | None] = []
    offset: Extent = 0
    for part in parts:
        size = graph.spec(part).shape
        if size is None or len(size) != len(shape):
            return None
        dims = [index_along(n) for n in names]
        dims[axis] = index_along(names[axis], offset=combine("sub", 0, offset))
        maps.append(access_map(graph, part, dims) if part else None)
        offset = combine("add", offset, size[axis])
    ends = (aligned_access(graph, long, names),)
    reads, writes = (maps, ends) if joining else (ends, maps)
    return _rowwise(region, space, names, reads, writes)


def slice_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model a strided slice; starts and steps must be constants."""
    x, y = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
    starts = constant_ints(region, graph, "starts", 1)
    if x is None or y is None or len(x) != len(y) or not starts:
        return None
    axes = constant_ints(region, graph, "axes", 3)
    steps = constant_ints(region, graph, "steps", 4)
    if axes is None or steps is None:
        return None
    names, space = axes_named("d", y)
    dims = [index_along(n) for n in names]
    axes, steps = axes or tuple(range(len(starts))), steps or (1,) * len(starts)
    for start, axis, step in zip(starts, axes, steps, strict=False):
        i = axis % len(x)
        dims[i] = DimIndex(((names[i], step),), _first(start, step, x[i]))
    reads = (access_map(graph, region.operands[0], dims),)
    return _rowwise(
        region, space, names, reads, (aligned_access(graph, region.results[0], names),)
    )


def _first(start: int, step: int, extent: Extent) -> Extent:
    """Return the first index of a slice by ONNX's clamping rules."""
    place = combine("add", extent, start) if start < 0 else start
    top = extent if step > 0 else combine("sub", extent, 1)
    if place == 0:
        return 0
    return combine("max", combine("min", place, top), 0 if step > 0 or start >= 0 else -1)


def _rowwise(
    region: Region, space: IterationSpace, names: tuple[str, ...],
    reads: Sequence[AccessMap | None], writes: Sequence[AccessMap | None],
    work: tuple[LoopWork, ...] = (),
) -> RegionModel | None:  # fmt: skip
    """Build a model whose last axis is its columns and whose other axes are its rows."""
    return region_model(region, space, reads, writes, work, names[:-1], names[-1:])


def conv_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model ``Conv``; opaque if ``auto_pad`` padding depends on unknown sizes."""
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
    return params.space(region, graph)


def pool_space(region: Region, graph: TileGraph) -> RegionModel | None:
    """Model ``MaxPool`` and ``AveragePool``; opaque if indices are requested too."""
    kernel = region.node.attrs.get("kernel_shape")
    if not isinstance(kernel, tuple) or len(region.writes) > 1:
        return None
    spatial = (graph.spec(region.operands[0]).shape or ())[2:]
    window = _window(region, [int(k) for k in kernel], spatial)
    return None if window is None else pooling(region, graph, window)


def _window(region: Region, kernel: Sequence[int], spatial: Sequence[Extent]) -> ConvWindow | None:
    """Return the window that an operator's attributes describe over ``spatial`` sizes."""
    attrs, rank = region.node.attrs, len(kernel)
    found = []
    for name, default in (("strides", 1), ("dilations", 1), ("pads", 0)):
        count = 2 * rank if name == "pads" else rank
        value = attrs.get(name, (default,) * count)
        if not isinstance(value, tuple):
            return None
        found.append(tuple(int(v) for v in value))
    try:
        window = ConvWindow(tuple(kernel), *found)
        kind = str(attrs.get("auto_pad", "NOTSET"))
        if not kind.startswith("SAME"):
            return window
        return replace(window, pads=_same(window, spatial, kind == "SAME_UPPER"))
    except ValueError:
        return None


def _same(window: ConvWindow, spatial: Sequence[Extent], upper: bool) -> tuple[int, ...]:
    """Return the padding that yields ⌈size / stride⌉ positions.

    An odd amount is larger after (upper) or before.  Raises ValueError if the padding depends on
    an unknown size.
    """
    totals = []
    for size, span, stride in zip(spatial, window.spans, window.strides, strict=True):
        if stride > 1 and not isinstance(size, int):
            raise ValueError(f"the padding depends on {size}")
        left = (size - 1) % stride if isinstance(size, int) else 0
        totals.append(max(span - 1 - left, 0))
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (*less, *more) if upper else (*more, *less)


MODELS: Mapping[str, Model] = MappingProxyType(
    dict.fromkeys(COSTS, elementwise_space)
    | dict.fromkeys(ROW_COST, norm_space)
    | dict.fromkeys((f"Reduce{kind}" for kind in REDUCTIONS), reduce_space)
    | dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), reshape_space)
    | {
        "MatMul": matmul_space,
        "Gemm": gemm_space,
        "Transpose": transpose_space,
        "Gather": gather_space,
    }
    | {"Concat": concat_space, "Split": split_space, "Slice": slice_space, "Conv": conv_space}
    | dict.fromkeys(("MaxPool", "AveragePool"), pool_space)
    | dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool"), global_pool)
)
"""Operators with a model; all others are opaque."""


def space_of(region: Region, graph: TileGraph) -> RegionModel | None:
    """Return the loops, accesses and arithmetic of a region; None if it is opaque.

    A region is opaque if its operator has no model, or if its shapes, axes or slice bounds do not
    determine what an output tile reads.
    """
    if not region.writes:
        return None
    if region.fused:
        params: OpParams = region.params
        return params.space(region, graph)
    model = MODELS.get(region.op)
    return model(region, graph) if model else None
