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

__all__ = ["key_padding_bias", "kv_operand"]


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
