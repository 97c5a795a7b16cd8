"""Read keys and values of attention operators with past inputs or present outputs.

    k [B,S,H·D] -> Reshape -> Transpose -> Concat(past, ·) = present
    k [B,H,S,D] -> Concat(past, ·) = present, or Identity = present

Attention reads concatenated keys from the present output as heads; keys that are only copied to an
output are read from their source.
"""

from __future__ import annotations

from tracea_graph.ir import Attr, DType, Extent, Node, TensorSpec, combine
from tracea_graph.passes.attention.attention_matcher import NoMatch
from tracea_graph.passes.attention.qkv_operands import (
    AttentionOperand,
    rows_operand,
    split_heads_operand,
)
from tracea_graph.passes.attention.score_masks import Masks
from tracea_graph.passes.region_helpers import is_f32
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.ttg import Region

__all__ = ["key_padding_bias", "kv_operand", "valid_key_mask"]


def kv_operand(new: Masks, value: str, heads: int, past: str, present: str) -> AttentionOperand:
    """Return the keys or values that attention reads: those in the cache, followed by ``value``.

    ``past`` names the cache, ``present`` the result with both; they may be "".  ``heads`` is the
    number of heads if ``value`` has rank 3.  New regions are added to ``new``.  Raises NoMatch if
    the operand is not float32 or its heads are not known.
    """
    shape = new.graph.spec(value).shape
    if shape is None or len(shape) not in (3, 4):
        raise NoMatch("an operand is not split into heads")
    flat = len(shape) == 3
    if not past and not present:
        return (
            rows_operand(new.graph, value, heads)
            if flat
            else split_heads_operand(new.graph, value, False)
        )
    if not is_f32(new.graph, value, *([past] if past else [])):
        raise NoMatch(Reason("q, k and v are not float32", Code.UNSUPPORTED_DTYPE))
    if not past:
        if flat:
            _heads_of(new, value, heads, present)
            return rows_operand(new.graph, value, heads)
        _write(new, "Identity", (value,), present, shape)
        return split_heads_operand(new.graph, value, False)
    split = _heads_of(new, value, heads, f"{value}_heads") if flat else value
    return _joined(new, split, past, present or f"{value}_joined")


def _heads_of(new: Masks, value: str, heads: int, result: str) -> str:
    """Write ``value`` ``[B,S,H·D]`` as ``[B,H,S,D]``; return the name."""
    batch, rows, width = new.graph.spec(value).shape or ()
    if not isinstance(width, int) or width % heads:
        raise NoMatch("the columns of a rank-3 operand are not known to divide into heads")
    size = width // heads
    split = f"{result}_split"
    target = new.numbers(0, 0, heads, size)
    _write(new, "Reshape", (value, target), split, (batch, rows, heads, size))
    return _write(
        new, "Transpose", (split,), result, (batch, heads, rows, size), perm=(0, 2, 1, 3)
    )


def _joined(new: Masks, value: str, past: str, result: str) -> AttentionOperand:
    before, after = new.graph.spec(past).shape, new.spec(value).shape
    if before is None or after is None or len(before) != 4 or len(after) != 4:
        raise NoMatch("past keys or values, or those appended to them, are not of rank 4")
    heads, size = after[1], after[3]
    if not isinstance(heads, int) or not isinstance(size, int):
        raise NoMatch("the number or size of heads is not known")
    length = combine("add", before[2], after[2])
    _write(new, "Concat", (past, value), result, (after[0], heads, length, size), axis=2)
    return AttentionOperand(result, "heads", after[0], length, heads, size)


def _write(
    new: Masks, op: str, operands: tuple[str, ...], result: str, shape: tuple[Extent, ...],
    **attrs: Attr,
) -> str:  # fmt: skip
    if result not in new.specs:
        node = Node(op, operands, (result,), attrs)
        new.regions.append(Region(f"join:{result}", op, operands, (result,), (node,)))
        new.specs[result] = TensorSpec(DType.F32, shape)
    return result


# ---- how many keys each item has ---------------------------------------------------------


def valid_key_mask(new: Masks, counts: str, q: str, k: str, causal: bool) -> str:
    """Return a boolean mask that is true for the keys a query may see.

    These are the first counts[b] keys of item b (``counts`` is int64 ``[B]``); with ``causal``,
    query i of S sees keys up to i + counts[b] − S.  Layers with equal sizes share the mask.
    Raises NoMatch unless there is one count per item.
    """
    spec, (batch, _, rows, keys) = new.graph.spec(counts), new.full
    if spec.dtype is not DType.I64 or spec.shape != (batch,):
        raise NoMatch("its key counts are not one int64 number for each batch item")
    stem = f"{counts}.{rows}.{keys}"

    def write(
        role: str, op: str, *operands: str, shape: tuple[Extent, ...], dtype: DType = DType.I64,
        **attrs: Attr,
    ) -> str:  # fmt: skip
        name = f"{stem}.{role}"
        node = Node(op, operands, (name,), attrs)
        new.shared.append(Region(f"keys:{name}", op, operands, (name,), (node,)))
        new.specs[name] = TensorSpec(dtype, shape)
        return name

    def size(role: str, value: str) -> str:
        rank = new.graph.spec(value).rank or 0
        sizes = write(f"{role}_sizes", "Shape", value, shape=(rank,))
        return write(role, "Gather", sizes, new.number(rank - 2), shape=(), axis=0)

    zero, one = new.number(0), new.number(1)
    key = write("key", "Range", zero, size("keys", k), one, shape=(keys,))
    column = new.numbers(-1, 1, 1, 1)
    end = write("end", "Reshape", counts, column, shape=(batch, 1, 1, 1))
    if not causal:
        return write("valid", "Less", key, end, shape=(batch, 1, 1, keys), dtype=DType.BOOL)
    count = size("rows", q)
    query = write("query", "Range", zero, count, one, shape=(rows,))
    down = write("down", "Reshape", query, new.numbers(-1, 1), shape=(rows, 1))
    first = write("first", "Sub", end, count, shape=(batch, 1, 1, 1))
    place = write("place", "Add", first, down, shape=(batch, 1, rows, 1))
    full = (batch, 1, rows, keys)
    return write("seen", "LessOrEqual", key, place, shape=full, dtype=DType.BOOL)


# ---- which keys are padding --------------------------------------------------------------


def key_padding_bias(new: Masks, mask: str, number: float | None) -> str:
    """Return the bias that a key mask ``[B,T]`` or ``[B,S,T]`` adds to the scores.

    The bias is ``number`` where the mask is not above 0.  If ``number`` is None, return a boolean
    mask instead, true where the mask is above 0.  Layers share the result.  The result has the
    operator's extents, even if the mask has other symbols.  Raises NoMatch for other ranks.
    """
    spec, (batch, _, rows, keys) = new.graph.spec(mask), new.full
    if spec.rank not in (2, 3) or spec.dtype is None:
        raise NoMatch("its mask does not hold one number for each key")
    between = (rows,) if spec.rank == 3 else ()
    shape: tuple[Extent, ...] = (batch, *between, keys)
    for have, need in zip(spec.shape or (), shape, strict=True):
        if have != need and (have == 1 or (isinstance(have, int) and isinstance(need, int))):
            raise NoMatch("its mask does not hold one number for each key")
    stem = f"{mask}.{'kept' if number is None else format(number, 'g')}.{keys}"

    def write(role: str, op: str, *operands: str, dtype: DType = DType.F32, **attrs: Attr) -> str:
        name = f"{stem}.{role}"
        node = Node(op, operands, (name,), attrs)
        new.shared.append(Region(f"padding:{name}", op, operands, (name,), (node,)))
        new.specs[name] = TensorSpec(dtype, shape)
        return name

    known = write("known", "Cast", mask, to=DType.F32.onnx)
    value, dtype = (
        write("above", "Greater", known, new.constant(0.0), dtype=DType.BOOL),
        DType.BOOL,
    )
    if number is not None:
        value = write("added", "Where", value, new.constant(0.0), new.constant(number))
        dtype = DType.F32
    axes = (1,) if between else (1, 2)
    shape = (batch, *(1 for _ in axes), *between, keys)
    if new.graph.opset < 13:
        return write("padding", "Unsqueeze", value, dtype=dtype, axes=axes)
    return write("padding", "Unsqueeze", value, new.numbers(*axes), dtype=dtype)
