"""Lower attention: to a kernel, or with wide heads to two matmuls and a softmax.

The kernels of attention hold a head's row in registers.  With wide heads the scores are a small
part of the work, and writing them costs less than multiplying without tensor cores.  In float32
that is so where queries and keys are many.  Where their numbers vary, both are written; which of
them has items to compute depends on the sizes of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from tracea_graph.ir import DType, Extent, TensorSpec, combine, product
from tracea_graph.kernels.gpu.families import attention, attention_rows
from tracea_graph.kernels.gpu.families.cached_attention import HEADS, TOGETHER
from tracea_graph.kernels.gpu.lowering.attention_tiles import without_tiles
from tracea_graph.kernels.gpu.lowering.elementwise_ops import Targets
from tracea_graph.kernels.gpu.lowering.product_calls import product_call
from tracea_graph.kernels.gpu.lowering.program_writer import HALVES, GpuProgramWriter
from tracea_graph.kernels.gpu.lowering.row_ops import rows_call
from tracea_graph.kernels.gpu.tile_choice import WHOLE_KEYS
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import LackingError, Shape, Value
from tracea_graph.ops.attention import LOWEST, AttentionParams
from tracea_graph.ops.chain import FULL, Chain, Step
from tracea_graph.ops.index_map import IndexMap, ViewMove

__all__ = [
    "attend_to_few_queries", "heads_of_value", "lower_attention", "mask_of_scores", "of_items",
    "suits_split_keys",
]  # fmt: skip

_FLOATS = (DType.F32, DType.F16, DType.BF16)
Copied = Callable[[Extent], tuple[Value, Value]]
"""Writes the copies of the keys and values of the first items, ``[items, Hkv, T, D]``."""

_NARROW_F32, _LARGEST_F32, _LEAST_QUERIES = 256, 128, 16
"""Largest heads with which kernels of float32 are faster than matmuls, and with which they use
tensor cores; and fewest queries that fill tiles of a matmul.
"""
_FEW_QUERIES = 8
"""Most queries of a head of keys whose multiplications tensor cores would not make faster."""
_LEAST_SCORES, _MANY_SCORES, _MOST_SCORES = 1 << 15, 1 << 22, 1 << 28
"""Scores of a run for which matmuls in float32 are worth two launches; for which values are worth
being stored by columns, which warpgroups need; and for which there is memory.

12 heads of 64 columns take 41 µs by the kernel at batch 1 and 128 tokens and 18 by matmuls; at
batch 32 608 and 69, with 512 tokens at batch 8 2885 and 188 (one H100).
"""


def lower_attention(
    w: GpuProgramWriter, p: AttentionParams, operands: Sequence[Value], targets: Targets
) -> list[Value]:
    p, operands = _widened(w, p, operands)
    specs = [TensorSpec(v.dtype, v.shape) for v in operands]
    (spec,) = p.infer(specs)
    batch, queries = p.extents(0, specs[0])
    keys = p.extents(1, specs[1])[1]
    listed = (
        operands[-1].view if p.tiles and p.tiles.by_row and _visits(w, p, queries, keys) else None
    )
    band = p.tiles.band if p.tiles and listed else None
    if p.tiles is not None:
        p, operands = without_tiles(w, p, operands, (queries, keys))
    if band:
        p, listed = replace(p, mask="none"), None
    y = targets[0] or w.number(spec.shape or ())
    sizes = (p.head, p.head, p.head_v)
    q, k, v = (
        heads_of_value(w, operands[i], p.layouts[i], p.counts[i], sizes[i], p.offsets[i])
        for i in range(3)
    )
    out = heads_of_value(w, y, p.layouts[3], p.heads, p.head_v, 0)
    kind, full = p.mask, (batch, p.heads, queries, keys)
    masks = mask_of_scores(w, p, operands, full)
    mask = masks.view if masks else None
    positions = operands[3].view if p.causal == "placed" else None
    left, right = band or p.reach
    if p.zero_rows in ("masked", "infinite") and _have_keys(p):
        p = replace(p, zero_rows="none")
    held = w.narrow in HALVES and isinstance(keys, int) and keys <= max(WHOLE_KEYS)
    if not band and not held and suits_split_keys(w, p, queries):
        return [attend_to_few_queries(w, p, (q, k, v), masks, y)]
    dtype = w.narrow
    q, k, v = (w.typed_as(one, dtype) for one in (q, k, v))
    if _suits_tensor_cores(w, p, queries):
        if y.dtype is not dtype:
            y2 = w.number(spec.shape or ())
            out = heads_of_value(w, y2, p.layouts[3], p.heads, p.head_v, 0)
        _attend_by_tiles(w, p, (q, k, v), masks, out, listed, positions, (left, right))
        return [y2 if y.dtype is not dtype else y]
    if _suits_matmuls(w, p, batch, queries, keys):
        _attend_by_matmuls(w, p, q, k, v, masks, out)
        return [y]
    if _may_suit_matmuls(w, p, batch, queries, keys):
        many = _where_many(batch, p.heads, queries, keys)
        own = [of_items(one, many) for one in (q, k, v)]
        own_masks = masks and of_items(masks, many)
        _attend_by_matmuls(w, p, own[0], own[1], own[2], own_masks, of_items(out, many))
        few = combine("sub", batch, many)
        q, k, v, out = (of_items(one, few) for one in (q, k, v, out))
        mask = of_items(masks, few).view if masks else None
    if max(p.head, p.head_v) > attention_rows.LARGEST_HEAD:
        most = attention_rows.LARGEST_HEAD
        raise LackingError(f"GPU attention kernels support head sizes up to {most}")
    w.call(
        "attention_rows", dtype.short, q=q.view, k=k.view, v=v.view, mask=mask,
        positions=positions, y=out.view, mask_kind=kind, order=p.causal, zero_rows=p.zero_rows,
        window_left=left, window_right=right, global_keys=p.global_keys,
        scale=p.scale, fill=p.fill, softcap=p.softcap, y_type=y.dtype.short,
    )  # fmt: skip
    return [y]


def _widened(
    w: GpuProgramWriter, p: AttentionParams, operands: Sequence[Value]
) -> tuple[AttentionParams, Sequence[Value]]:
    """Convert keys and values in 8 bits; those in 16 bits are converted as others are."""
    if p.stored == "i8":
        wide = [w.typed_as(v, DType.F32) for v in operands[1:3]]
        operands = (operands[0], *wide, *operands[3:])
    return replace(p, stored="f32"), operands


def _suits_tensor_cores(w: GpuProgramWriter, p: AttentionParams, queries: Extent) -> bool:
    """Whether the kernels that use tensor cores compute an attention; not few queries in float32.

    Rows without keys become zeros there, for they have no weights: what counts as masked is −∞.
    """
    if max(p.head, p.head_v) > _largest_head(w):
        return False
    likely = w.about(queries)
    if w.narrow not in HALVES and likely is not None and likely < _LEAST_QUERIES:
        return False
    if p.global_keys and p.causal != "none" and p.fill != -inf:
        return False
    infinite = bool(p.window) or p.causal == "none" or p.fill == -inf
    if p.causal == "placed" and not infinite:
        return False
    return p.zero_rows != "lowest" or (p.mask == "none" and infinite)


def _largest_head(w: GpuProgramWriter) -> int:
    """Return the largest head size whose sums fit into registers."""
    return attention.LARGEST_HEAD if w.narrow in HALVES else _LARGEST_F32


def mask_of_scores(
    w: GpuProgramWriter, p: AttentionParams, operands: Sequence[Value], full: Shape
) -> Value | None:
    """Return the mask of an attention in the shape of its scores, in float32 unless boolean."""
    if p.mask == "none":
        return None
    mask = operands[3]
    return (mask if mask.dtype is DType.BOOL else w.typed_as(mask, DType.F32)).stretched(full)


def suits_split_keys(w: GpuProgramWriter, p: AttentionParams, queries: Extent) -> bool:
    """Whether blocks that share the keys of few queries compute an attention to many soonest."""
    one = isinstance(queries, int) and queries == 1 and p.causal == "bottom"
    if p.window or p.global_keys or p.tiles or not (one or p.causal == "none"):
        return False
    likely, group = w.about(queries), p.heads // p.shared_heads
    few = likely is not None and 0 < likely * group <= _FEW_QUERIES
    rows_agree = p.mask != "none" or p.zero_rows in ("none", "lowest")
    return few and rows_agree and p.head == p.head_v and p.head in HEADS


def attend_to_few_queries(
    w: GpuProgramWriter, p: AttentionParams, qkv: tuple[Value, Value, Value], mask: Value | None,
    y: Value, table: Value | None = None, copied: Copied | None = None,
) -> Value:  # fmt: skip
    """Write an attention of few queries to all keys; return its result, y if that has its type.

    q is ``[B, H, S, D]``, k and v are ``[B, Hkv, T, D]``, or with a ``table`` of pages ``[B, N]``
    pools of these, ``[pages, Hkv, rows, D]``, which ``copied`` puts in order.  Where the number of
    queries varies, a run of many has items for another call alone, by tiles of queries.
    """
    own, (q, k, v) = w.narrow, qkv
    if y.dtype is not own:
        y = w.temp(own, y.shape)
    out = heads_of_value(w, y, p.layouts[3], p.heads, p.head_v, 0)
    if (many := _of_many_queries(w, p, q.shape)) != 0:
        near = copied(many) if copied else (of_items(k, many), of_items(v, many))
        tiled = [w.typed_as(one, own) for one in (of_items(q, many), *near)]
        _attend_by_tiles(w, p, tiled, mask and of_items(mask, many), of_items(out, many))
        few = combine("sub", q.shape[0], many)
        q, out, mask = of_items(q, few), of_items(out, few), mask and of_items(mask, few)
        table = table and of_items(table, few)
        k, v = (k, v) if table else (of_items(k, few), of_items(v, few))
    q, cache = w.typed_as(q, own), k.dtype if k.dtype is v.dtype else own
    cache = cache if cache in _FLOATS else own
    k, v = (w.typed_as(one, cache) for one in (k, v))
    count = p.heads // p.shared_heads * (w.about(q.shape[2]) or 1)
    pages: dict[str, Any] = {}
    if table is not None:
        pages = {"table": table.view, "page_size": k.shape[2], "index_type": table.dtype.short}
    w.call(
        "attention_cached", own.short, q=q.view, past_k=k.view, past_v=v.view, y=out.view,
        mask=mask.view if mask else None, mask_kind=p.mask, fill=p.fill, **pages,
        cache_type=cache.short, zero_rows=p.zero_rows, scale=p.scale, softcap=p.softcap,
        queries=max(n for n in TOGETHER if n <= max(count, 1)),
    )  # fmt: skip
    return y


def _of_many_queries(w: GpuProgramWriter, p: AttentionParams, shape: Shape) -> Extent:
    """Return how many items of ``[B, H, S, D]`` tiles of queries suit: 0, or all at some sizes."""
    batch, _, queries, _ = shape
    if isinstance(queries, int) or w.narrow not in HALVES:
        return 0
    if not _suits_tensor_cores(w, p, queries):
        return 0
    above = combine("max", 0, combine("sub", queries, _LEAST_QUERIES - 1))
    return combine("mul", batch, combine("min", 1, above))


def _attend_by_tiles(
    w: GpuProgramWriter, p: AttentionParams, qkv: Sequence[Value], mask: Value | None, out: Value,
    listed: View | None = None, positions: View | None = None, reach: tuple[int, int] = (-1, 0),
) -> None:  # fmt: skip
    """Write the call of an attention whose queries and keys are multiplied in tiles."""
    q, k, v = qkv
    left, right = reach
    w.call(
        "attention", w.multiplied, q=q.view, k=k.view, v=v.view, mask=mask.view if mask else None,
        listed=listed, positions=positions, y=out.view, mask_kind=p.mask, order=p.causal,
        zero_rows="masked" if p.zero_rows == "infinite" and p.mask != "add" else p.zero_rows,
        window_left=left, window_right=right, global_keys=p.global_keys if p.window else 0,
        scale=p.scale, fill=-inf if p.zero_rows == "masked" and p.fill <= LOWEST else p.fill,
        softcap=p.softcap,
    )  # fmt: skip


def _visits(w: GpuProgramWriter, p: AttentionParams, queries: Extent, keys: Extent) -> bool:
    """Whether the kernel of an attention visits key tiles on a list: not if it holds all keys."""
    few = isinstance(keys, int) and keys <= max(WHOLE_KEYS)
    return _suits_tensor_cores(w, p, queries) and not few


def _have_keys(p: AttentionParams) -> bool:
    """Whether no query can have all of its keys masked."""
    return p.mask == "none" and p.causal in ("none", "top") and not p.window


def heads_of_value(
    w: GpuProgramWriter, value: Value, layout: str, count: int, size: int, first: int
) -> Value:
    """View a tensor as ``[B, H, rows, size]``."""
    if layout == "rows":
        part = value.part(2, first, count * size)
        return w.through(
            part,
            IndexMap(
                (ViewMove("reshape", (0, 0, count, size)), ViewMove("transpose", (0, 2, 1, 3)))
            ),
        )
    if layout == "split":
        return value.transposed((0, 2, 1, 3))
    return value.transposed((0, 1, 3, 2)) if layout == "transposed" else value


# ---- wide heads ------------------------------------------------------------------------------


def _many_scores(
    w: GpuProgramWriter, batch: Extent, heads: int, queries: Extent, keys: Extent
) -> bool:
    """Whether there are so many scores that tensor cores are worth writing them to memory.

    No for sequences of unknown length; see :func:`_where_many`.
    """
    items = w.about(batch)
    if not (isinstance(queries, int) and isinstance(keys, int)) or items is None:
        return False
    return _LEAST_SCORES <= items * heads * queries * keys <= _MOST_SCORES


def _where_many(batch: Extent, heads: int, queries: Extent, keys: Extent) -> Extent:
    """Return the number of items where :func:`_many_scores` holds, else 0."""
    scores = product((batch, heads, queries, keys))
    above = combine("sub", scores, _LEAST_SCORES - 1)
    inside = combine("min", above, combine("sub", _MOST_SCORES + 1, scores))
    return combine("mul", batch, combine("min", 1, combine("max", 0, inside)))


def of_items(value: Value, items: Extent) -> Value:
    """View the first items of a value, or none."""
    return Value(replace(value.view, dims=(items, *value.view.dims[1:])), value.dtype)


def _may_suit_matmuls(
    w: GpuProgramWriter, p: AttentionParams, batch: Extent, queries: Extent, keys: Extent
) -> bool:
    """Whether matmuls and a softmax compute a float32 attention sooner at some lengths."""
    if isinstance(queries, int) and isinstance(keys, int):
        return False
    if w.narrow is not DType.F32 or p.zero_rows != "none" or p.window or p.causal == "placed":
        return False
    if p.causal == "bottom" and _first_place(queries, keys) is None:
        return False
    likely = w.about(queries)
    return likely is None or likely >= _LEAST_QUERIES


def _suits_matmuls(
    w: GpuProgramWriter, p: AttentionParams, batch: Extent, queries: Extent, keys: Extent
) -> bool:
    """Whether matmuls and a softmax compute an attention, and sooner than its kernels do."""
    likely, narrow = w.about(queries), _NARROW_F32 if w.narrow is DType.F32 else _largest_head(w)
    many = w.narrow is DType.F32 and _many_scores(w, batch, p.heads, queries, keys)
    if (max(p.head, p.head_v) <= narrow and not many) or p.zero_rows != "none" or p.window:
        return False
    if p.causal == "placed" or (p.causal == "bottom" and _first_place(queries, keys) is None):
        return False
    return likely is None or likely >= _LEAST_QUERIES


def _first_place(queries: Extent, keys: Extent) -> int | None:
    """Return the key that the first query sees last in order "bottom"; None if it is symbolic."""
    first = combine("sub", keys, queries)
    return first if isinstance(first, int) else None


def _attend_by_matmuls(
    w: GpuProgramWriter, p: AttentionParams, q: Value, k: Value, v: Value, mask: Value | None,
    y: Value,
) -> None:  # fmt: skip
    """Write an attention over heads: q ``[B, H, S, D]``, mask ``[B, H, S, T]``, and so on."""
    (batch, _, queries, _), keys = q.shape, k.shape[2]
    shared = p.heads // p.shared_heads
    full = (batch, p.shared_heads, shared, queries, keys)
    q, y, *masks = (one.split(1, shared) for one in (q, y, *([mask] if mask else [])))
    turned = w.narrow is DType.F32 and (w.about(product(full)) or 0) >= _MANY_SCORES
    if turned:
        v = w.again(v, w.narrow, _BY_COLUMNS).transposed(_BY_COLUMNS)
    k, values = (one.split(1, 1).stretched((batch, p.shared_heads, shared, *one.shape[2:]))
                 for one in (k, v))  # fmt: skip
    scores = w.temp(DType.F32, full)
    chain, inputs = _scored(w, p, masks, (queries, keys))
    seen = [one.stretched(full) for one in inputs]
    product_call(w, q, k, "nk", chain, seen, [scores])
    weights = w.number(full)
    rows_call(w, "softmax", [scores.flat(4, 1)], None, weights.flat(4, 1), log=False)
    product_call(w, weights, values, "nk" if turned else "kn", None, (), [y])


def _scored(
    w: GpuProgramWriter, p: AttentionParams, masks: Sequence[Value], sides: tuple[Extent, Extent]
) -> tuple[Chain, list[Value]]:
    """Return the chain from products to scores, and what else it reads."""
    causal, inputs = p.causal != "none", list(masks)
    if causal:
        queries, keys = sides
        start = 0 if p.causal == "top" else _first_place(queries, keys) or 0
        places = _ramp(w, queries, start).transposed((1, 0)), _ramp(w, keys, 0)
        inputs += (one.stretched(sides) for one in places)
    steps, count = list[Step](), 1 + len(inputs)

    def add(op: str, *args: int | float) -> int:
        steps.append(Step(op, args))
        return count + len(steps) - 1

    last = add("mul", 0, p.scale)
    if p.softcap:
        last = add("mul", add("tanh", add("div", last, p.softcap)), p.softcap)
    if causal:
        last = add("where", add("less", count - 2, count - 1), p.fill, last)
    if p.mask == "add":
        last = add("add", last, 1)
    elif p.mask == "bool":
        last = add("where", 1, last, p.fill)
    types = (DType.F32, *(one.dtype for one in inputs))
    return Chain((FULL,) * count, tuple(steps), (last,), types), inputs


_BY_COLUMNS = (0, 1, 3, 2)


def _ramp(w: GpuProgramWriter, count: Extent, start: int) -> Value:
    """Write the numbers from ``start`` on, ``[1, count]``, in float32."""
    made = w.temp(DType.F32, (1, count))
    w.call("iota", y=made.view, y_type="f32", start=float(start), steps=(0.0, 1.0))
    return made
