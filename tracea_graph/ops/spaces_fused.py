"""Iteration spaces and access maps of the custom-op vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tracea_graph.ir import combine
from tracea_graph.ops.append import AppendParams
from tracea_graph.ops.arg import ArgParams
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.reduction import ReduceParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.ops.space_parts import Shape, access, aligned, axes_named, model_of
from tracea_graph.ops.spaces_maps import concat, elementwise
from tracea_graph.ops.spaces_windows import fused_conv, fused_pool, resize
from tracea_graph.ops.top_k import TopKParams
from tracea_graph.ops.weights import NK
from tracea_graph.ttg.graph import Region, TileGraph
from tracea_graph.ttg.model import RegionModel, Work
from tracea_graph.ttg.space import AccessMap, Axis, Dim, IterationSpace, along, whole

__all__ = ["MODELS"]

Model = Callable[[Region, TileGraph], RegionModel | None]
SOFTMAX_COST = 14
"""Vector instructions per score: scale, maximum, exponential, sum."""


def gemm(region: Region, graph: TileGraph) -> RegionModel | None:
    """Rows of x times columns of W; with a norm every result needs the whole row of sums.

    The weight is described by its logical matrix, however it is stored.
    """
    params: GemmParams = region.params
    x, w, bias, extras, affine = params.split(region.operands)
    shape = graph.spec(x).shape
    if not shape:
        return None
    rows, column, axes = _rows_and_columns((*shape[:-1], params.n), params.norm)
    space = IterationSpace((*axes, Axis("k", params.k, True)))
    nk = params.layout == NK
    dims, view = (along("k"), along("n")), (params.k, params.n)
    weight = access(graph, w, dims[::-1] if nk else dims, view[::-1] if nk else view)
    sums, outs = (*rows, "n"), (*rows, column)
    reads = [aligned(graph, x, (*rows, "k")), weight]
    reads += [aligned(graph, v, sums) for v in ((bias,) if bias else ()) + tuple(extras)]
    reads += [aligned(graph, v, outs) for v in affine]
    writes = [aligned(graph, v, n) for v, n in zip(region.results, (outs, sums), strict=False)]
    work = (
        Work((*sums, "k"), 2),
        Work(sums, _chain_cost(params.epilogue) + bool(bias)),
        Work(outs, _norm_cost(params.norm)),
    )
    columns = () if params.norm else ("n",)
    return model_of(region, space, reads, writes, work, rows, columns, ("k",))


def matmul(region: Region, graph: TileGraph) -> RegionModel | None:
    """Batches of rows of a times columns of b, both as they lie in memory."""
    params: MatMulParams = region.params
    operands = [graph.spec(v) for v in region.operands]
    try:
        a, b, full = params.shapes(operands[:2])
    except ValueError:
        return None
    if min(len(s.shape or ()) for s in operands[:2]) < 2:
        return None
    batch, space = axes_named("b", full[:-2])
    sums = (*batch, "m", "n")
    axes = (*space.axes, Axis("m", full[-2]), Axis("n", full[-1]), Axis("k", a[-1], True))
    reads = [
        _turned(graph, region.operands[0], (*batch, "m", "k"), a, params, 0),
        _turned(graph, region.operands[1], (*batch, "k", "n"), b, params, 1),
        *(aligned(graph, v, sums) for v in region.operands[2:]),
    ]
    writes = [aligned(graph, v, sums) for v in region.results]
    work = (Work((*sums, "k"), 2), Work(sums, _chain_cost(params.epilogue)))
    space = IterationSpace(axes)
    return model_of(region, space, reads, writes, work, ("m",), ("n",), ("k",), batch)


def _turned(
    graph: TileGraph, value: str, names: tuple[str, ...], seen: Shape, p: MatMulParams, which: int
) -> AccessMap | None:
    """The map of an operand whose axes are read in another order, heads apart."""
    perm = (p.a_perm, p.b_perm)[which]
    own = names[len(names) - len(seen) :]
    dims = [Dim() if e == 1 else along(n) for n, e in zip(own, seen, strict=True)]
    stored = [dims[perm.index(i)] for i in range(len(perm))] if perm else dims
    if p.heads[which]:
        *rest, head, column = stored
        size = seen[perm.index(len(perm) - 1)]
        assert isinstance(size, int)  # as the parameters have found
        terms = tuple((name, combine("mul", step, size)) for name, step in head.terms)
        stored = [*rest, Dim(terms + column.terms)]
    return access(graph, value, stored)


def norm(region: Region, graph: TileGraph) -> RegionModel | None:
    """Whole rows in, rows out; the prologue's other operands broadcast."""
    params: NormParams = region.params
    shape = graph.spec(region.results[0]).shape
    if not shape:
        return None
    rows, column, axes = _rows_and_columns(shape, params.norm)
    data, out = (*rows, "n"), (*rows, column)
    reads = [aligned(graph, v, data) for v in region.operands[: params.data_operands]]
    reads += [aligned(graph, v, out) for v in region.operands[params.data_operands :]]
    writes = [aligned(graph, v, n) for v, n in zip(region.results, (out, data), strict=False)]
    work = (Work(data, _chain_cost(params.prologue)), Work(out, _norm_cost(params.norm)))
    return model_of(region, IterationSpace(axes), reads, writes, work, rows)


def attention(region: Region, graph: TileGraph) -> RegionModel | None:
    """Heads are independent problems, queries their rows, keys the reduction.

    Where heads share keys, head h is the pair (g, r) with h = g · (heads per key head) + r.
    """
    params: AttentionParams = region.params
    q, k, v, *mask = region.operands
    try:
        batch, queries = params.extents(0, graph.spec(q))
        keys = params.extents(1, graph.spec(k))[1]
    except ValueError:
        return None
    shared = params.heads // params.shared_heads
    heads = (("g", shared), ("r", 1)) if shared > 1 else (("h", 1),)
    of_keys = heads[:1] if shared == 1 else (("g", 1),)
    extents = {"g": params.shared_heads, "r": shared, "h": params.heads}
    names = tuple(name for name, _ in heads)
    space = IterationSpace(
        (
            Axis("b", batch), *(Axis(n, extents[n]) for n in names), Axis("s", queries),
            Axis("e", params.head_v), Axis("t", keys, True),
        )
    )  # fmt: skip
    whole_head, value = whole(params.head), along("e")
    reads = [
        _head_access(graph, q, params, 0, heads, "s", whole_head),
        _head_access(graph, k, params, 1, of_keys, "t", whole_head),
        _head_access(graph, v, params, 2, of_keys, "t", value),
        *(
            aligned(graph, m, ("b",))
            if params.causal == "placed"
            else _mask_access(graph, m, heads)
            for m in mask
        ),
    ]
    writes = [_head_access(graph, region.results[0], params, 3, heads, "s", value)]
    scores = ("b", *names, "s", "t")
    work = (Work(scores, 2 * params.head + SOFTMAX_COST), Work((*scores, "e"), 2))
    return model_of(region, space, reads, writes, work, ("s",), ("e",), ("t",), ("b", *names))


def append(region: Region, graph: TileGraph) -> RegionModel | None:
    """Each row comes from the cache or is new, which its place decides: both may be read."""
    params: AppendParams = region.params
    new, *past, places, slots = region.operands
    shape, room = graph.spec(region.results[0]).shape, graph.spec(slots).shape
    try:
        rows = params.extents(graph.spec(new))[1]
    except ValueError:
        return None
    if shape is None or room is None:
        return None
    names, space = axes_named("d", shape)
    b, h, t, d = names
    columns = Dim(((h, params.size), (d, 1)), params.offset)
    held = [(graph.spec(v).shape or shape)[2] for v in past]
    reads = [
        access(graph, new, (along(b), whole(rows, (t,)), columns)),
        *(
            access(graph, v, (along(b), along(h), whole(rows, (t,)), along(d)))
            for v, rows in zip(past, held, strict=True)
        ),
        aligned(graph, places, names[:1]),
        aligned(graph, slots, (names[2],)),
    ]  # fmt: skip
    writes = [aligned(graph, region.results[0], names)]
    return model_of(region, space, reads, writes, (Work(names, 1),), names[:3], names[3:])


HeadTerms = tuple[tuple[str, int], ...]


def _head_access(
    graph: TileGraph, name: str, p: AttentionParams, which: int, heads: HeadTerms, row: str,
    columns: Dim,
) -> AccessMap | None:  # fmt: skip
    """q, k, v or y (0 to 3); ``columns`` is how a head's own columns are walked."""
    layout, rows = p.layouts[which], along(row)
    if layout == "rows":
        size, offset = (p.head if which < 2 else p.head_v), (*p.offsets, 0)[which]
        terms = tuple((n, c * size) for n, c in heads)
        merged = Dim((*terms, *columns.terms), offset, columns.window)
        return access(graph, name, (along("b"), rows, merged))
    own = Dim(heads)
    dims = {
        "split": (along("b"), rows, own, columns),
        "heads": (along("b"), own, rows, columns),
        "turned": (along("b"), own, columns, rows),
    }
    return access(graph, name, dims[layout])


def _mask_access(graph: TileGraph, name: str, heads: HeadTerms) -> AccessMap | None:
    """A mask that broadcasts to [B, H, S, T]."""
    shape = graph.spec(name).shape
    if shape is None or len(shape) > 4:
        return None
    full = (along("b"), Dim(heads), along("s"), along("t"))[4 - len(shape) :]
    dims = [Dim() if e == 1 else d for d, e in zip(full, shape, strict=True)]
    return access(graph, name, dims)


def channel_norm(region: Region, graph: TileGraph) -> RegionModel | None:
    """A result needs its whole group, or every channel at its position."""
    params: ChannelNormParams = region.params
    shape = graph.spec(region.results[0]).shape
    if shape is None:
        return None
    names, space = axes_named("d", shape)
    over = range(1, len(shape)) if params.groups else (1,)
    data = tuple(f"r{i}" if i in over else n for i, n in enumerate(names))
    axes = (*space.axes, *(Axis(f"r{i}", shape[i], True) for i in over))
    vectors = [
        access(graph, v, (along(names[1]),), (shape[1],)) for v in region.operands[1:]
    ]  # fmt: skip
    reads = [aligned(graph, region.operands[0], data), *vectors]
    writes = [aligned(graph, region.results[0], names)]
    work = (Work(names, _norm_cost(params.norm)),)
    rows = tuple(n for i, n in enumerate(names) if i not in over)
    return model_of(region, IterationSpace(axes), reads, writes, work, rows)


def reduce(region: Region, graph: TileGraph) -> RegionModel | None:
    """Kept axes are parallel; the epilogue's operands lie over them."""
    params: ReduceParams = region.params
    full = params.full([graph.spec(v).shape for v in region.operands])
    gone = {len(full) + a for a in params.axes}
    names = tuple(f"d{i}" for i in range(len(full)))
    axes = tuple(Axis(n, e, i in gone) for i, (n, e) in enumerate(zip(names, full, strict=True)))
    kept = tuple(n for i, n in enumerate(names) if params.keepdims or i not in gone)
    parallel = tuple(n for i, n in enumerate(names) if i not in gone)
    reads = [aligned(graph, v, names) for v in region.operands[: params.data_operands]]
    reads += [aligned(graph, v, kept) for v in region.operands[params.data_operands :]]
    writes = [aligned(graph, region.results[0], kept)]
    work = (
        Work(names, 1 + _chain_cost(params.prologue)), Work(parallel, _chain_cost(params.epilogue))
    )  # fmt: skip
    return model_of(region, IterationSpace(axes), reads, writes, work, parallel)


def arg(region: Region, graph: TileGraph) -> RegionModel | None:
    """Kept axes are parallel; of the axis that is searched nothing but an index is left."""
    params: ArgParams = region.params
    full = params.full([graph.spec(v).shape for v in region.operands])
    place = len(full) + params.axis
    names = tuple(f"d{i}" for i in range(len(full)))
    axes = tuple(Axis(n, e, i == place) for i, (n, e) in enumerate(zip(names, full, strict=True)))
    kept = tuple(n for i, n in enumerate(names) if params.keepdims or i != place)
    parallel = tuple(n for i, n in enumerate(names) if i != place)
    reads = [aligned(graph, v, names) for v in region.operands]
    writes = [aligned(graph, region.results[0], kept)]
    work = (Work(names, params.flops),)
    return model_of(region, IterationSpace(axes), reads, writes, work, parallel)


def top_k(region: Region, graph: TileGraph) -> RegionModel | None:
    """Every result of a row may be any of its elements: that axis is read whole."""
    params: TopKParams = region.params
    shape, chosen = graph.spec(region.operands[0]).shape, graph.spec(region.results[0]).shape
    if shape is None or chosen is None:
        return None
    names, space = axes_named("d", chosen)
    data = (*names[:-1], "t")
    axes = (*space.axes, Axis("t", shape[-1], True))
    reads = [aligned(graph, region.operands[0], data)]
    writes = [aligned(graph, y, names) for y in region.results]
    return model_of(
        region, IterationSpace(axes), reads, writes, (Work(data, params.flops),), names[:-1]
    )


def take(region: Region, graph: TileGraph) -> RegionModel | None:
    """Each result is one element of its row, which an index decides: that axis is read whole."""
    x, index = region.operands
    shape, places = graph.spec(x).shape, graph.spec(index).shape
    if shape is None or places is None:
        return None
    names, space = axes_named("d", (*shape[:-1], places[-1]))
    row = (*map(along, names[:-1]), whole(shape[-1]))
    reads = [access(graph, x, row), aligned(graph, index, names)]
    writes = [aligned(graph, region.results[0], names)]
    return model_of(region, space, reads, writes, (Work(names, 1),), names[:-1])


def softmax(region: Region, graph: TileGraph) -> RegionModel | None:
    """A result needs everything along its axis: that axis is read whole."""
    params: SoftmaxParams = region.params
    full = params.full([graph.spec(v).shape for v in region.operands])
    names, space = axes_named("d", full)
    place = len(full) + params.axis
    data = tuple("t" if i == place else n for i, n in enumerate(names))
    axes = (*space.axes, Axis("t", full[place], True))
    reads = [aligned(graph, v, data) for v in region.operands]
    writes = [aligned(graph, region.results[0], names)]
    work = (Work(names, SOFTMAX_COST), Work(data, _chain_cost(params.prologue)))
    rows = tuple(n for i, n in enumerate(names) if i != place)
    return model_of(region, IterationSpace(axes), reads, writes, work, rows)


def embedding(region: Region, graph: TileGraph) -> RegionModel | None:
    """Rows of each table, chosen by its ids."""
    params: EmbeddingParams = region.params
    shape = graph.spec(region.results[0]).shape
    if not shape:
        return None
    rows, column, axes = _rows_and_columns(shape, params.norm)
    data, out = (*rows, "n"), (*rows, column)
    reads = []
    for t in range(params.tables):
        table, ids = region.operands[2 * t : 2 * t + 2]
        index, size = aligned(graph, ids, rows), graph.spec(table).shape
        if index is None or not size:
            return None
        chosen = tuple(name for dim in index.dims for name, _ in dim.terms)
        reads += [access(graph, table, (whole(size[0], chosen), along("n"))), index]
    reads += [aligned(graph, v, out) for v in region.operands[2 * params.tables :]]
    writes = [aligned(graph, v, n) for v, n in zip(region.results, (out, data), strict=False)]
    work = (Work(data, params.tables - 1), Work(out, _norm_cost(params.norm)))
    columns = () if params.norm else ("n",)
    return model_of(region, IterationSpace(axes), reads, writes, work, rows, columns)


def grid(region: Region, graph: TileGraph) -> RegionModel | None:
    """A point per element of the result; of operands nothing but their sizes is read."""
    shape = graph.spec(region.results[0]).shape
    if shape is None:
        return None
    names, space = axes_named("d", shape)
    writes = [aligned(graph, region.results[0], names)]
    return model_of(region, space, [], writes, (Work(names, 1),), names[:-1], names[-1:])


def _rows_and_columns(
    shape: Shape, normed: Norm | None
) -> tuple[tuple[str, ...], str, tuple[Axis, ...]]:
    """The row axes, the result's column axis, and all axes.

    A norm's results run along ``j``, its input along ``n``: a result needs its whole row.
    """
    rows, space = axes_named("m", shape[:-1])
    if normed is None:
        return rows, "n", (*space.axes, Axis("n", shape[-1]))
    return rows, "j", (*space.axes, Axis("j", shape[-1]), Axis("n", shape[-1], True))


def _chain_cost(chain: Chain | None) -> int:
    return chain.flops if chain else 0


def _norm_cost(kind: Norm | None) -> int:
    """Vector instructions per element: centre, square, sum, scale."""
    return 0 if kind is None else 6 if kind.kind == "layer" else 4


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "FusedGemm": gemm,
        "FusedMatMul": matmul,
        "FusedNorm": norm,
        "FusedElementwise": elementwise,
        "FusedConcat": concat,
        "FusedAttention": attention,
        "FusedAppend": append,
        "FusedEmbedding": embedding,
        "FusedChannelNorm": channel_norm,
        "FusedReduce": reduce,
        "FusedArg": arg,
        "FusedTopK": top_k,
        "FusedSoftmax": softmax,
        "FusedTake": take,
        "FusedGrid": grid,
        "FusedConv": fused_conv,
        "FusedPool": fused_pool,
        "FusedResize": resize,
    }
)
"""The words of the vocabulary with a model."""
