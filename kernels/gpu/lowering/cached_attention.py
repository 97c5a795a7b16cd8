"""Lower attention to a cache together with the rows that it appends and their rotation.

    norms of heads of q and new keys, rotate both, append keys, append values, attend -> one call
    … of many rows, or to a window -> a call that appends and rotates, and attention

The steps of a program that ``passes/attention/group_query.py`` makes of GroupQueryAttention are
found by their parameters.  Steps whose results others read, too, stay calls of their own.  Where
the number of rows varies, both ways are written; which of them has items depends on a run's sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from tracea_graph.ir import DType, Extent, combine
from tracea_graph.kernels.gpu.families.attention import LARGEST_HEAD
from tracea_graph.kernels.gpu.families.cached_attention import HEADS, TOGETHER
from tracea_graph.kernels.gpu.lowering.attention import of_items
from tracea_graph.kernels.gpu.lowering.program_writer import HALVES, GpuProgramWriter
from tracea_graph.kernels.program import View
from tracea_graph.kernels.program_writer import Value
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.ops.norm import Norm, NormParams

__all__ = ["CachedAttention", "cached_attentions", "lower_cached_attention"]

_FLOATS = (DType.F32, DType.F16, DType.BF16)
_HEADS_FIRST = (0, 2, 1, 3)
_ROWS_FIRST = (0, 2, 1, 3)
"""Order of axes in which rotated queries are stored."""
_LEAST_ROWS = 16
"""Fewest rows that an attention by tensor cores computes sooner, with a launch more."""


@dataclass(frozen=True)
class _Rows:
    """A value ``[B, S, columns]`` and the map from it to heads, ``[B, S, H, D]``."""

    value: int
    heads: IndexMap


@dataclass(frozen=True)
class CachedAttention:
    """An attention over caches, and the ``earlier`` steps that are computed together with it.

    ``q``, ``keys`` and ``values`` are rows before their rotation by ``tables``, the numbers of two
    values, if there are any.  Heads of q and keys may be normalised by ``norm`` before that;
    ``gammas`` are the numbers of its two factors.  ``pasts`` and ``caches`` are numbers of values,
    too.
    """

    earlier: tuple[int, ...]
    params: AttentionParams
    q: _Rows
    keys: _Rows
    values: _Rows
    tables: tuple[int, int] | None
    pasts: tuple[int, int]
    positions: int
    caches: tuple[int, int]
    slots: int
    result: int
    norm: Norm | None = None
    gammas: tuple[int, int] | None = None


def cached_attentions(p: RegionParams) -> dict[int, CachedAttention]:
    """Return the attentions over caches of a program, by the numbers of their steps."""
    starts, made, readers = p.starts, p.makers, p.readers
    found = dict[int, CachedAttention]()
    for number, step in enumerate(p.steps):
        if isinstance(step.params, AttentionParams) and _suits(step.params):
            group = _group(p, step, starts[number], made, readers)
            if group is not None:
                found[number] = group
    return found


def _suits(p: AttentionParams) -> bool:
    """Whether the kernel supports an attention."""
    plain = (
        p.stored != "i8"
        and p.mask == "none"
        and p.fill == -inf
        and not p.global_keys
        and p.tiles is None
    )
    plain = plain and p.causal == "placed" and p.zero_rows in ("none", "lowest")
    plain = plain and not (p.window and p.head > LARGEST_HEAD)
    heads = p.head == p.head_v and p.head in HEADS and not any(p.offsets[1:])
    return plain and heads and p.layouts == ("rows", "heads", "heads", "rows")


def _group(
    p: RegionParams, step: RegionStep, result: int, made: Mapping[int, int],
    readers: Counter[int],
) -> CachedAttention | None:  # fmt: skip
    params, (q, k, v, positions) = step.params, step.operands
    assert isinstance(params, AttentionParams)
    appends = [made.get(i) for i in (k, v)]
    if None in appends or readers[k] != 1 or readers[v] != 1:
        return None
    steps = [p.steps[i] for i in appends if i is not None]
    for one in steps:
        own = one.params
        if (
            not isinstance(own, KvCacheAppendParams)
            or not own.past
            or one.operands[2] != positions
        ):
            return None
    of_keys, of_values = (one.params for one in steps)
    assert isinstance(of_keys, KvCacheAppendParams) and isinstance(of_values, KvCacheAppendParams)
    rows = [
        _Rows(q, _split(params.offsets[0], params.heads, params.head)),
        *(_Rows(one.operands[0], _split(a.offset, a.heads, a.size))
          for one, a in zip(steps, (of_keys, of_values), strict=True)),
    ]  # fmt: skip
    earlier = [i for i in appends if i is not None]
    turned = [_rotation(p, made.get(one.value), readers[one.value]) for one in rows[:2]]
    tables = None
    if turned[0] and turned[1] and turned[0][1] == turned[1][1]:
        whole = not any((params.offsets[0], of_keys.offset))
        if whole and not {one.value for one in rows[:2]} & set(p.results):
            tables = turned[0][1]
            earlier += [made[one.value] for one in rows[:2]]
            rows[:2] = [turned[0][0], turned[1][0]]
    found = [_normed(p, one, made, readers) for one in rows[:2]] if tables else [None, None]
    norm, gammas = None, None
    if found[0] and found[1] and found[0].norm == found[1].norm:
        norm, gammas = found[0].norm, (found[0].gamma, found[1].gamma)
        earlier += [*found[0].steps, *found[1].steps]
        rows[:2] = [found[0].rows, found[1].rows]
    return CachedAttention(
        tuple(sorted(earlier)), params, rows[0], rows[1], rows[2], tables,
        (steps[0].operands[1], steps[1].operands[1]), positions, (k, v), steps[0].operands[3],
        result, norm, gammas,
    )  # fmt: skip


def _split(offset: int, heads: int, size: int) -> IndexMap:
    """Return the map from rows to the heads that start at a column."""
    cut = ViewMove("slice", (2, offset, offset + heads * size, 1))
    return IndexMap((cut, ViewMove("reshape", (0, 0, heads, size))))


def _rotation(
    p: RegionParams, number: int | None, readers: int
) -> tuple[_Rows, tuple[int, int]] | None:
    """Return what a step rotates, and its tables; None unless it rotates halves of whole heads."""
    if number is None or readers != 1:
        return None
    step = p.steps[number]
    params = step.params
    if not isinstance(params, ConcatParams) or params.axis != 3 or len(params.parts) != 2:
        return None
    maps = list[tuple[IndexMap, ...]]()
    for part, form in zip(params.parts, _FORMS, strict=True):
        own = part.params
        if not isinstance(own, ElementwiseParams) or part.operands != (0, 0, 1, 2):
            return None
        if _form(own.chain) != form:
            return None
        maps.append(own.views)
    first, second, *tables = maps[0]
    if maps[0] != maps[1] or tables != [IndexMap((ViewMove("unsqueeze", (2,)),))] * 2:
        return None
    split, last = first.moves[:-1], (first.moves[-1], second.moves[-1])
    if second.moves[:-1] != split or not split or split[-1].op != "reshape":
        return None
    size = split[-1].ints[-1]
    half = size // 2
    halves = ViewMove("slice", (3, 0, half, 1)), ViewMove("slice", (3, half, size, 1))
    if last != halves or len(split[-1].ints) != 4 or size not in HEADS:
        return None
    x, cos, sin = step.operands
    return _Rows(x, IndexMap(split)), (cos, sin)


@dataclass(frozen=True)
class _NormedHeads:
    """The norm of each head of ``rows``, and the ``steps`` that compute it."""

    rows: _Rows
    norm: Norm
    gamma: int
    steps: tuple[int, ...]


def _normed(
    p: RegionParams, heads: _Rows, made: Mapping[int, int], readers: Counter[int]
) -> _NormedHeads | None:
    """Return the rows whose heads are normalised to become ``heads``; None if none are."""
    number = made.get(heads.value)
    if number is None or not _alone(p, heads.value, readers):
        return None
    step, split = p.steps[number], heads.heads.moves[-1].ints
    params = step.params
    if not isinstance(params, NormParams) or params.prologue or params.keep_sum:
        return None
    norm = params.norm
    before = made.get(step.operands[0])
    if norm.kind != "rms" or not norm.gamma or norm.beta or before is None:
        return None
    view = p.steps[before].params
    if not isinstance(view, ElementwiseParams) or view.chain.steps or len(view.views) != 1:
        return None
    moves = view.views[0].moves
    reshaped = all(move.op == "reshape" for move in (*moves, *heads.heads.moves))
    if not moves or not reshaped or moves[-1].ints != split or view.target:
        return None
    if not _alone(p, step.operands[0], readers):
        return None
    (value,) = p.steps[before].operands
    return _NormedHeads(_Rows(value, view.views[0]), norm, step.operands[1], (before, number))


def _alone(p: RegionParams, value: int, readers: Counter[int]) -> bool:
    """Whether one step reads a value, and nothing outside of the program."""
    return readers[value] == 1 and value not in p.results


_FORMS = (
    ((("mul", (0, 2)), ("mul", (1, 3)), ("sub", (4, 5))), (6,)),
    ((("mul", (1, 2)), ("mul", (0, 3)), ("add", (4, 5))), (6,)),
)
"""Steps and results of the chains of both halves; operands are the halves, cos and sin."""


def _form(chain: Chain) -> tuple[tuple[tuple[str, tuple[int | float, ...]], ...], tuple[int, ...]]:
    return tuple((step.op, step.args) for step in chain.steps), chain.results


@dataclass(frozen=True)
class _Operands:
    """What both ways of an attention read and write; heads are ``[B, H, rows, D]``.

    ``news`` are q, new keys and new values, ``tables`` cos and sin, if there are any.
    """

    news: tuple[Value, Value, Value]
    pasts: tuple[Value, Value]
    tables: tuple[Value, ...]
    gammas: tuple[Value, ...]
    positions: Value
    caches: tuple[Value, Value]
    y: Value

    def of_items(self, items: Extent) -> _Operands:
        """Return the operands of the first items, or of none."""
        q, k, v = (of_items(one, items) for one in self.news)
        pasts, caches = (tuple(of_items(one, items) for one in pair)
                         for pair in (self.pasts, self.caches))  # fmt: skip
        tables = tuple(of_items(one, items) for one in self.tables)
        positions, y = (of_items(one, items) for one in (self.positions, self.y))
        return replace(
            self, news=(q, k, v), pasts=(pasts[0], pasts[1]), tables=tables,
            positions=positions, caches=(caches[0], caches[1]), y=y,
        )  # fmt: skip

    def views(self) -> dict[str, View]:
        """Return the views that both calls read, by operand."""
        named = dict(zip(("new_k", "new_v", "past_k", "past_v", "k", "v", "positions"),
                         (*self.news[1:], *self.pasts, *self.caches, self.positions),
                         strict=True))  # fmt: skip
        named |= zip(("cos", "sin"), self.tables, strict=False)
        named |= zip(("q_gamma", "k_gamma"), self.gammas, strict=False)
        return {name: value.view for name, value in named.items()}


def lower_cached_attention(
    w: GpuProgramWriter, group: CachedAttention, values: dict[int, Value],
    wanted: Mapping[int, Value | None],
) -> bool:  # fmt: skip
    """Write the calls and add their results to ``values``; return whether types are supported."""
    pasts, p = [values[i] for i in group.pasts], group.params
    targets = [wanted.get(i) for i in group.caches]
    types = {v.dtype for v in (*pasts, *targets) if v is not None}
    if len(types) != 1 or not types <= set(_FLOATS):
        return False
    if p.window and w.narrow not in HALVES:
        return False
    cache_type, own = types.pop(), w.narrow
    slots = values[group.slots].shape[0]
    caches = [
        target or w.temp(cache_type, (*past.shape[:2], slots, past.shape[3]))
        for target, past in zip(targets, pasts, strict=True)
    ]
    q, keys, new_values = (
        w.through(w.typed_as(values[rows.value], own), rows.heads).transposed(_HEADS_FIRST)
        for rows in (group.q, group.keys, group.values)
    )
    batch, _, rows, _ = q.shape
    y = wanted.get(group.result)
    if y is None or y.dtype is not own:
        y = w.temp(own, (batch, rows, p.heads * p.head))
    heads = IndexMap((ViewMove("reshape", (0, 0, p.heads, p.head)),))
    operands = _Operands(
        (q, keys, new_values), (pasts[0], pasts[1]),
        tuple(w.typed_as(values[i], own) for i in group.tables or ()),
        tuple(w.typed_as(values[i], DType.F32) for i in group.gammas or ()),
        values[group.positions], (caches[0], caches[1]), y.through(heads).transposed(_HEADS_FIRST),
    )  # fmt: skip
    many = _of_many_rows(w, p, batch, rows)
    if many != batch:
        few = operands.of_items(combine("sub", batch, many)) if many != 0 else operands
        _attend_to_rows(w, group, few, cache_type)
    if many != 0:
        _append_and_attend(w, group, operands.of_items(many), cache_type)
    if (target := wanted.get(group.result)) is not None and target.view != y.view:
        w.copy(y, target)
    values.update({group.result: y, group.caches[0]: caches[0], group.caches[1]: caches[1]})
    return True


def _of_many_rows(w: GpuProgramWriter, p: AttentionParams, batch: Extent, rows: Extent) -> Extent:
    """Return the number of items whose queries tensor cores multiply: all, none, or an extent."""
    if p.window:
        return batch
    if w.narrow not in HALVES or p.head > LARGEST_HEAD:
        return 0
    if isinstance(rows, int):
        return batch if rows >= _LEAST_ROWS else 0
    above = combine("max", 0, combine("sub", rows, _LEAST_ROWS - 1))
    return combine("mul", batch, combine("min", 1, above))


def _attend_to_rows(
    w: GpuProgramWriter, group: CachedAttention, operands: _Operands, cache_type: DType
) -> None:
    """Write an attention of few rows, which appends them."""
    p, q = group.params, operands.news[0]
    count = p.heads // p.shared_heads * (w.about(q.shape[2]) or 1)
    norms = {"epsilon": group.norm.epsilon} if group.norm else {}
    w.call(
        "attention_cached", w.narrow.short, q=q.view, **operands.views(), y=operands.y.view,
        cache_type=cache_type.short, zero_rows=p.zero_rows,
        queries=max(n for n in TOGETHER if n <= max(count, 1)), scale=p.scale, softcap=p.softcap,
        **norms,
    )  # fmt: skip


def _append_and_attend(
    w: GpuProgramWriter, group: CachedAttention, operands: _Operands, cache_type: DType
) -> None:
    """Write a call that appends and rotates rows, and attention by tensor cores."""
    p, own, (q, _, _) = group.params, w.narrow, operands.news
    turned = w.temp(own, q.shape, _ROWS_FIRST) if operands.tables else q
    near = list(operands.caches)
    more = dict[str, View]()
    if cache_type is not own:
        near = [w.temp(own, one.shape) for one in near]
        more = {f"near_{side}": one.view for side, one in zip("kv", near, strict=True)}
    if operands.tables:
        more |= {"q": q.view, "turned": turned.view}
    w.call(
        "kv_append_rotated", own.short, **operands.views(), **more, cache_type=cache_type.short,
        epsilon=group.norm.epsilon if group.norm else 0.0,
    )  # fmt: skip
    left, right = p.reach
    w.call(
        "attention", own.short, q=turned.view, k=near[0].view, v=near[1].view,
        positions=operands.positions.view, y=operands.y.view, mask_kind="none", order=p.causal,
        zero_rows=p.zero_rows, window_left=left, window_right=right, scale=p.scale, fill=p.fill,
        softcap=p.softcap,
    )  # fmt: skip
