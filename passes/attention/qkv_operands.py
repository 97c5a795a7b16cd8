"""Trace q, k and v of an attention back through operators that only move data.

    x [B,S,H·D] -> Reshape -> Transpose                                rows of x
    x [B,S,W] -> Split or Slice -> Reshape -> Transpose                columns of x
    x [B,S,3·H·D] -> Reshape [B,S,3,H,D] -> Transpose -> Gather i      columns of x
    x [B,S,3·H·D] -> Reshape [B,S,3,H,D] -> Gather i -> Transpose      columns of x
    x [B,G,T,D] -> Unsqueeze -> Expand -> Reshape [B,H,T,D]            shared heads of x
    x [B,H,S,D] -> Reshape [B·H,S,D]                                   heads of x
    any other value of rank 4                                          its heads

The operators in between stay if they have other readers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracea_graph.ir import Extent
from tracea_graph.passes.attention.attention_matcher import (
    NoMatch,
    dims,
    numeric_attribute,
    strip_scale,
)
from tracea_graph.passes.prove_extents import (
    constant_ints,
    equal_as_polynomials,
    squeeze_axes,
    tail_agrees,
)
from tracea_graph.passes.region_helpers import attribute, operand_producer
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "AttentionOperand",
    "columns_operand",
    "head_major_operand",
    "matrices_operand",
    "rows_operand",
    "split_heads_operand",
]

_SPLIT = (0, 2, 1, 3)
_SPLIT_KEYS = (0, 2, 3, 1)
_SWAP = (0, 1, 3, 2)
_SWAP_MATRICES = (0, 2, 1)
_THREE = {0: (2, 0, 3, 1, 4), 1: (0, 2, 3, 1, 4)}
"""Permutations of [B,S,3,H,D] that move the axis of three to this position."""


@dataclass(frozen=True)
class AttentionOperand:
    """A tensor that attention reads as q, k or v.

    It has ``heads`` heads with ``size`` columns each, in one of the layouts of the attention op.
    Each of its heads is read by ``shared`` query heads.  It is multiplied by ``scale``.  If it is
    a range of the columns of ``value``, ``offset`` is the first of them, and ``width`` the number
    of all columns.
    """

    value: str
    layout: str
    batch: Extent
    length: Extent
    heads: int
    size: int
    offset: int = 0
    width: int = 0
    shared: int = 1
    scale: float = 1.0


def split_heads_operand(graph: TileGraph, value: str, keys: bool) -> AttentionOperand:
    """Return the operand behind a MatMul's input ``[…,S,D]`` (``[…,D,T]`` if ``keys``).

    Raises NoMatch if its heads are not known.
    """
    value, scale = strip_scale(graph, value)
    transposed = keys
    if keys and (swapped := _before_swap(graph, value)) is not None:
        value, more = strip_scale(graph, swapped)
        scale, transposed = scale * more, False
    value, more = strip_scale(graph, _before_flattening(graph, value))
    found = _repeated(graph, value) if not transposed else None
    shared = 1
    if found is not None:
        (value, shared), scale = found, scale * more
        value, more = strip_scale(graph, value)
    operand = _split(graph, value, transposed) or _selected(graph, value, transposed)
    if operand is None:
        operand = head_major_operand(graph, value, transposed)
    return replace(operand, shared=shared, scale=operand.scale * scale * more)


def matrices_operand(graph: TileGraph, value: str, keys: bool) -> AttentionOperand:
    """Return a batch of matrices as an operand: N items with one head each.

    ``value`` is ``[N,S,D]``, or ``[N,D,T]`` if ``keys``.  Raises NoMatch unless each key is stored
    as a row.
    """
    value, scale = strip_scale(graph, value)
    if keys:
        region = operand_producer(graph, value, "Transpose")
        if region is None or attribute(region, "perm", ()) != _SWAP_MATRICES:
            raise NoMatch("the keys are not stored one row per key")
        value, more = strip_scale(graph, region.operands[0])
        scale *= more
    shape = graph.spec(value).shape
    if shape is None or len(shape) != 3 or not isinstance(shape[2], int):
        raise NoMatch(
            f"{value!r} is not a rank-3 batch of matrices with a known number of columns"
        )
    width = shape[2]
    return AttentionOperand(value, "rows", shape[0], shape[1], 1, width, 0, width, scale=scale)


def rows_operand(graph: TileGraph, value: str, heads: int) -> AttentionOperand:
    """Return a value ``[B,S,H·D]`` as an operand; if it is a slice of columns, the sliced tensor.

    Raises NoMatch unless ``value`` has rank 3 and ``heads`` heads of equal size.
    """
    value, scale = strip_scale(graph, value)
    shape = graph.spec(value).shape
    if shape is None or len(shape) != 3 or not isinstance(shape[2], int) or shape[2] % heads:
        raise NoMatch("an operand is not a rank-3 tensor whose columns split into heads")
    source, offset, width = columns_operand(graph, value)
    size = shape[2] // heads
    return AttentionOperand(
        source, "rows", shape[0], shape[1], heads, size, offset, width, scale=scale
    )


def columns_operand(graph: TileGraph, value: str) -> tuple[str, int, int]:
    """Return the tensor of which a rank-3 value is a column range.

    Also returns the first column of the range, and the number of columns of the tensor.
    """
    source, offset = _columns(graph, value)
    width = (graph.spec(source).shape or ("",))[-1]
    if isinstance(width, int):
        return source, offset, width
    own = (graph.spec(value).shape or ("",))[-1]
    if not isinstance(own, int):
        raise NoMatch("an operand is not a rank-3 tensor whose columns split into heads")
    return value, 0, own


# ---- [B,S,H·D] and columns of it ---------------------------------------------------------


def _split(graph: TileGraph, value: str, transposed: bool) -> AttentionOperand | None:
    """Match a Transpose that moves heads before the sequence, with or without a Reshape."""
    region = operand_producer(graph, value, "Transpose")
    if region is None or attribute(region, "perm", ()) != (_SPLIT_KEYS if transposed else _SPLIT):
        return None
    source, scale = strip_scale(graph, region.operands[0])
    shape = graph.spec(source).shape
    if shape is None or len(shape) != 4:
        return None
    heads, size = shape[2:]
    if not isinstance(heads, int) or not isinstance(size, int):
        raise NoMatch("the number or size of heads is not known")
    reshape = operand_producer(graph, source, "Reshape")
    before = graph.spec(reshape.operands[0]).shape if reshape else None
    if reshape is not None and before is not None and len(before) == 3:
        if not tail_agrees(before[:2], shape[:2], 2) or before[2] != heads * size:
            raise NoMatch(f"the Reshape from {dims(before)} to {dims(shape)} does not split heads")
        rows = rows_operand(graph, reshape.operands[0], heads)
        return replace(rows, scale=rows.scale * scale)
    chosen = _choice(graph, source)
    stacked = operand_producer(graph, chosen[0], "Reshape") if chosen and chosen[1] == 2 else None
    rows_there = _stacked(graph, stacked, chosen[2]) if chosen and stacked else None
    if rows_there is not None:
        return replace(rows_there, scale=scale)
    return AttentionOperand(source, "split", shape[0], shape[1], heads, size, scale=scale)


def _columns(graph: TileGraph, value: str) -> tuple[str, int]:
    """Return the tensor a column range was sliced from, and its first column."""
    region = graph.producer(value)
    if region is None or region.fused or region.op not in ("Split", "Slice"):
        return value, 0
    source = region.operands[0]
    rank = graph.spec(source).rank
    if region.op == "Split":
        if rank is None or attribute(region, "axis", 0) not in (-1, rank - 1):
            return value, 0
        before = region.results[: region.results.index(value)]
        sizes = [(graph.spec(v).shape or (None,))[-1] for v in before]
        known = [s for s in sizes if isinstance(s, int)]
        return (source, sum(known)) if len(known) == len(sizes) else (value, 0)
    if rank is None or len(region.operands) < 4:
        return value, 0
    start, axes = (constant_ints(graph, region.operands[i]) for i in (1, 3))
    step = constant_ints(graph, region.operands[4]) if len(region.operands) > 4 else (1,)
    if not start or len(start) != 1 or start[0] < 0 or step != (1,):
        return value, 0
    return (source, start[0]) if axes in ((-1,), (rank - 1,)) else (value, 0)


def _selected(graph: TileGraph, value: str, transposed: bool) -> AttentionOperand | None:
    """Match one of three values stacked in [B,S,3,H,D], chosen by Gather or Split and Squeeze."""
    chosen = _choice(graph, value)
    transpose = (
        operand_producer(graph, chosen[0], "Transpose") if chosen and not transposed else None
    )
    reshape = operand_producer(graph, transpose.operands[0], "Reshape") if transpose else None
    if chosen is None or transpose is None or reshape is None:
        return None
    if chosen[1] not in _THREE or attribute(transpose, "perm", ()) != _THREE[chosen[1]]:
        return None
    return _stacked(graph, reshape, chosen[2])


def _stacked(graph: TileGraph, reshape: Region, index: int) -> AttentionOperand | None:
    """Return element ``index`` of a Reshape ``[B,S,n·H·D]`` -> ``[B,S,n,H,D]`` as columns."""
    before, stacked = (graph.spec(v).shape for v in (reshape.operands[0], reshape.results[0]))
    if before is None or stacked is None or len(before) != 3 or len(stacked) != 5:
        return None
    sizes = [d for d in stacked[2:] if isinstance(d, int)]
    if len(sizes) < 3 or not tail_agrees(before[:2], stacked[:2], 2):
        return None
    count, heads, size = sizes
    width = count * heads * size
    if before[2] != width:
        return None
    offset = index * heads * size
    return AttentionOperand(reshape.operands[0], "rows", *before[:2], heads, size, offset, width)


def _choice(graph: TileGraph, value: str) -> tuple[str, int, int] | None:
    """Return the stacked value that ``value`` is selected from, and the axis and index."""
    region = graph.producer(value)
    if region is None or region.fused:
        return None
    if region.op == "Gather":
        index = constant_ints(graph, region.operands[1])
        if index is None or len(index) != 1 or graph.spec(region.operands[1]).rank != 0:
            return None
        axis = int(numeric_attribute(region, "axis"))
        return (region.operands[0], axis, index[0]) if index[0] >= 0 else None
    if region.op == "Squeeze":
        part = operand_producer(graph, region.operands[0], "Split")
        axes = squeeze_axes(graph, value)
        if part is None or axes != (attribute(part, "axis", 0),):
            return None
        return part.operands[0], axes[0], part.results.index(region.operands[0])
    return None


# ---- heads -------------------------------------------------------------------------------


def head_major_operand(graph: TileGraph, value: str, transposed: bool = False) -> AttentionOperand:
    """Return a ``[B,H,S,D]`` value (``[B,H,D,T]`` if ``transposed``) as an operand of attention.

    Raises NoMatch if its rank is not 4.
    """
    shape = graph.spec(value).shape
    if shape is None or len(shape) != 4:
        raise NoMatch("an operand is not split into heads")
    batch, heads, a, b = shape
    length, size = (b, a) if transposed else (a, b)
    if not isinstance(heads, int) or not isinstance(size, int):
        raise NoMatch("the number or size of heads is not known")
    return AttentionOperand(
        value, "transposed" if transposed else "heads", batch, length, heads, size
    )


def _before_swap(graph: TileGraph, value: str) -> str | None:
    """Return the value whose last two axes this one swaps, or None."""
    region = operand_producer(graph, value, "Transpose")
    if region is not None and attribute(region, "perm", ()) in (_SWAP, _SWAP_MATRICES):
        return region.operands[0]
    last = operand_producer(graph, value, "Reshape")
    swap = operand_producer(graph, last.operands[0], "Transpose") if last else None
    if last is None or swap is None or attribute(swap, "perm", ()) != _SWAP_MATRICES:
        return None
    # [B,H,S,D] -> [B·H,S,D] -> [B·H,D,S] -> [B,H,D,S]
    first = operand_producer(graph, swap.operands[0], "Reshape")
    source = graph.spec(first.operands[0]).shape if first else None
    flat, result = graph.spec(swap.operands[0]).shape, graph.spec(value).shape
    if first is None or source is None or flat is None or result is None or len(source) != 4:
        return None
    swapped = (*source[:2], source[3], source[2])
    if not tail_agrees(flat, source, 2) or len(result) != 4 or not tail_agrees(result, swapped, 4):
        return None
    return first.operands[0]


def _before_flattening(graph: TileGraph, value: str) -> str:
    """Return the value ``[B,H,S,D]`` that was reshaped to ``[B·H,S,D]``, else ``value``."""
    region = operand_producer(graph, value, "Reshape")
    flat = graph.spec(value).shape
    if region is None or flat is None or len(flat) != 3:
        return value
    source = graph.spec(region.operands[0]).shape
    if source is None or len(source) != 4 or not tail_agrees(flat, source, 2):
        return value
    return region.operands[0]


def _repeated(graph: TileGraph, value: str) -> tuple[str, int] | None:
    """Return the value ``[B,G,T,D]`` whose heads are each repeated, and the number of copies."""
    last = operand_producer(graph, value, "Reshape")
    after = graph.spec(value).shape
    if last is None or after is None or len(after) != 4:
        return None
    wide = graph.spec(last.operands[0]).shape
    repeat = graph.producer(last.operands[0])
    if repeat is None or repeat.op not in ("Expand", "Tile") or wide is None or len(wide) != 5:
        return None
    narrow = graph.spec(repeat.operands[0]).shape
    lifted = graph.producer(repeat.operands[0])
    if narrow is None or len(narrow) != 5 or lifted is None:
        return None
    if lifted.op not in ("Unsqueeze", "Reshape"):
        return None
    source = graph.spec(lifted.operands[0]).shape
    groups, times = wide[1:3]
    if source is None or len(source) != 4 or narrow[2] != 1:
        return None
    if not isinstance(groups, int) or not isinstance(times, int) or after[1] != groups * times:
        return None
    same = (
        tail_agrees(source[:2], narrow[:2], 2) and tail_agrees(source, narrow, 2)
        and tail_agrees(narrow[:2], wide[:2], 2) and tail_agrees(narrow, wide, 2)
        and tail_agrees(wide, after, 2) and equal_as_polynomials(wide[0], after[0])
    )  # fmt: skip
    return (lifted.operands[0], times) if same else None
