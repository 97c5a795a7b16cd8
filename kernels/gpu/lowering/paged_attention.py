"""Lower attention to keys and values that a table of pages names in pools.

    k = view(Gather(pool, table)), v likewise, attention(q, k, v, mask)    -> one call

The views give each item its rows one after another: reshapes and transposes of the gathered
pages.  Attention of few queries reads the rows through the table; for many the pages are copied
first, as the steps say, which is little beside their products.
Source of pages: Kwon et al., "Efficient memory management for large language model serving with
PagedAttention", 2023.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tracea_graph.ir import DType, Extent, TensorSpec, combine
from tracea_graph.kernels.gpu.lowering.attention import (
    attend_to_few_queries,
    heads_of_value,
    mask_of_scores,
    of_items,
    suits_split_keys,
)
from tracea_graph.kernels.gpu.lowering.elements_of_lines import lower_gather
from tracea_graph.kernels.gpu.lowering.elementwise_ops import lower_elementwise
from tracea_graph.kernels.gpu.lowering.program_writer import GpuProgramWriter
from tracea_graph.kernels.program_writer import IDENTITY, Value
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.gather import GatherParams
from tracea_graph.ops.index_map import ViewMove, resolve_target, size_factors

__all__ = ["PagedAttention", "lower_paged_attention", "paged_attentions"]

_STORED = (DType.F32, DType.F16, DType.BF16)
_INDICES = (DType.I32, DType.I64)
Axes = list[list[str]]
"""For each axis of a view, the named axes of the gathered pages of which it consists."""


@dataclass(frozen=True)
class _Pages:
    """Keys or values: rows of the pages of ``pool`` that ``table`` names, through ``views``."""

    pool: int
    table: int
    views: tuple[ElementwiseParams, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class PagedAttention:
    """An attention to pages, and the ``earlier`` steps that would copy them.

    ``operands`` are the numbers of the attention's operands, ``result`` that of its result.
    """

    params: AttentionParams
    operands: tuple[int, ...]
    keys: _Pages
    values: _Pages
    result: int

    @property
    def earlier(self) -> tuple[int, ...]:
        return tuple(sorted((*self.keys.steps, *self.values.steps)))


def paged_attentions(p: RegionParams) -> dict[int, PagedAttention]:
    """Return the attentions to pages of a program, by the numbers of their steps."""
    starts, made, readers = p.starts, p.makers, p.readers
    found = dict[int, PagedAttention]()
    for number, step in enumerate(p.steps):
        if not isinstance(step.params, AttentionParams):
            continue
        keys, values = (_pages(p, one, made, readers) for one in step.operands[1:3])
        if keys and values and keys.table == values.table:
            found[number] = PagedAttention(
                step.params, step.operands, keys, values, starts[number]
            )  # fmt: skip
    return found


def _pages(
    p: RegionParams, value: int, made: Mapping[int, int], readers: Counter[int]
) -> _Pages | None:
    """Trace a value that one step reads back to a Gather of pages."""
    views, steps = list[ElementwiseParams](), list[int]()
    while (number := made.get(value)) is not None:
        step = p.steps[number]
        if readers[value] != 1 or value in p.results:
            return None
        steps.append(number)
        if isinstance(step.params, GatherParams) and step.params.axis == 0:
            pool, table = step.operands
            return _Pages(pool, table, tuple(views[::-1]), tuple(steps))
        if not isinstance(step.params, ElementwiseParams) or not _keeps_values(step.params.chain):
            return None
        views.append(step.params)
        (value,) = step.operands
    return None


def _keeps_values(chain: Chain) -> bool:
    """Whether results are the operand, perhaps widened to float32."""
    unchanged = not chain.steps and chain.results == (0,)
    return unchanged and (not chain.stores or chain.result_types == (DType.F32,))


def lower_paged_attention(
    w: GpuProgramWriter, group: PagedAttention, values: dict[int, Value],
    wanted: Mapping[int, Value | None],
) -> bool:  # fmt: skip
    """Write the call and add its result to ``values``; return whether a kernel reads the pages."""
    p, table = group.params, values[group.keys.table]
    if table.dtype not in _INDICES or len(table.shape) != 2:
        return False
    pools = [
        _pool(p, values[one.pool], table.shape, one.views, p.layouts[i + 1])
        for i, one in enumerate((group.keys, group.values))
    ]
    k, v = pools
    q = values[group.operands[0]]
    batch, queries = p.extents(0, TensorSpec(q.dtype, q.shape))
    if k is None or v is None or k.dtype is not v.dtype or k.shape[2] != v.shape[2]:
        return False
    if not suits_split_keys(w, p, queries) or p.offsets[1:] != (0, 0):
        return False
    full = (batch, p.heads, queries, combine("mul", table.shape[1], k.shape[2]))
    operands = [values[i] if i not in group.operands[1:3] else q for i in group.operands]
    mask = mask_of_scores(w, p, operands, full)
    (spec,) = p.infer([TensorSpec(v.dtype, v.shape) for v in operands])
    target = wanted.get(group.result)
    asked = heads_of_value(w, q, p.layouts[0], p.heads, p.head, p.offsets[0])
    y = target or w.number(spec.shape or ())

    def copied(items: Extent) -> tuple[Value, Value]:
        sides = (group.keys, group.values)
        k, v = (_copied(w, p, i, one, values, items) for i, one in enumerate(sides, 1))
        return k, v

    made = attend_to_few_queries(w, p, (asked, k, v), mask, y, table, copied)
    if target is not None and made.view != target.view:
        w.copy(made, target)
    values[group.result] = made
    return True


def _copied(
    w: GpuProgramWriter, p: AttentionParams, operand: int, pages: _Pages,
    values: Mapping[int, Value], items: Extent,
) -> Value:  # fmt: skip
    """Write copies of the pages of the first items, in order: heads of an operand of attention."""
    table = of_items(values[pages.table], items)
    (made,) = lower_gather(w, GatherParams(0), (values[pages.pool], table), (None,))
    for view in pages.views:
        (made,) = lower_elementwise(w, replace(view, chain=IDENTITY), (made,), (None,))
    return heads_of_value(w, made, p.layouts[operand], p.shared_heads, p.head, 0)


def _pool(
    p: AttentionParams, pool: Value, table: tuple[Extent, ...],
    views: tuple[ElementwiseParams, ...], layout: str,
) -> Value | None:  # fmt: skip
    """Return a pool as ``[pages, heads, rows, columns]``, or None if it is no such pool.

    The views of its pages must give each item all rows of all pages in order, by ``layout``.
    """
    heads, size, last = p.shared_heads, p.head, pool.shape[1:]
    if pool.dtype not in _STORED or not all(isinstance(n, int) for n in last):
        return None
    merged = len(last) == 2 and last[1] == heads * size
    pool = pool.split(2, size) if merged else pool
    if len(pool.shape) != 4 or pool.shape[3] != size:
        return None
    for names, order in ((("rows", "heads"), (0, 2, 1, 3)), (("heads", "rows"), (0, 1, 2, 3))):
        viewed = pool.transposed(order)
        if viewed.shape[1] != heads:
            continue
        extents = dict(zip(("items", "pages", *names, "columns"), (*table, *pool.shape[1:]),
                           strict=True))  # fmt: skip
        start: Axes = [["items"], ["pages"], [names[0]], [names[1]], ["columns"]]
        if merged:
            start[3:] = [[names[1], "columns"]]
        found = _viewed([_known(axis, extents) for axis in start], views, extents)
        if found == [_known(axis, extents) for axis in _IN_ORDER.get(layout, [])]:
            return viewed
    return None


_IN_ORDER: Mapping[str, Axes] = {
    "rows": [["items"], ["pages", "rows"], ["heads", "columns"]],
    "split": [["items"], ["pages", "rows"], ["heads"], ["columns"]],
    "heads": [["items"], ["heads"], ["pages", "rows"], ["columns"]],
}
"""What the axes of keys and values consist of in each layout."""


def _known(axis: list[str], extents: Mapping[str, Extent]) -> list[str]:
    """Return the axes that are not of size 1, and may thus not lie anywhere."""
    return [name for name in axis if extents[name] != 1]


def _viewed(
    axes: Axes, views: tuple[ElementwiseParams, ...], extents: Mapping[str, Extent]
) -> Axes | None:
    """Return the axes behind the views; None if these split an axis or do more than reorder."""
    found: Axes | None = axes
    for view in views:
        moves = view.views[0].moves
        moves += (ViewMove("reshape", view.target),) if view.target else ()
        for move in moves:
            found = found and _moved(found, move, extents)
    return found


def _moved(axes: Axes, move: ViewMove, extents: Mapping[str, Extent]) -> Axes | None:
    if move.op == "transpose":
        return [axes[i] for i in move.ints]
    if move.op != "reshape":
        return None
    dims = resolve_target(tuple(_size(axis, extents) for axis in axes), move.ints)
    left, made = [name for axis in axes for name in axis], Axes()
    for dim in dims:
        made.append([])
        while left and size_factors((_size(made[-1], extents),)) != size_factors((dim,)):
            made[-1].append(left.pop(0))
        if size_factors((_size(made[-1], extents),)) != size_factors((dim,)):
            return None
    return made if not left else None


def _size(axis: list[str], extents: Mapping[str, Extent]) -> Extent:
    size: Extent = 1
    for name in axis:
        size = combine("mul", size, extents[name])
    return size
