"""Split ONNX Runtime's contributed attention operators into projections and plain attention.

MultiHeadAttention with a bias               -> three Adds before it, or one to q alone
Attention with its own projection            -> three products before a MultiHeadAttention
Attention with one cache tensor              -> keys and values split, and concatenated again

Source: ONNX Runtime's documentation of its contributed operators, and its CPU kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tracea_graph.ir import Attr, DType, Extent, Node, TensorSpec, combine, product
from tracea_graph.passes.attention.visible_keys import holds_counts
from tracea_graph.passes.decompose.onnx_builder import CannotDecompose, OnnxBuilder

__all__ = ["decompose_attention", "decompose_multi_head", "plain_attention", "why_no_mask"]

_MULTI_HEAD = "com.microsoft::MultiHeadAttention"
_KEPT = ("num_heads", "scale", "mask_filter_value", "unidirectional")
"""Attributes that both operators have."""


def decompose_multi_head(s: OnnxBuilder) -> OnnxBuilder:
    """Move the bias of a MultiHeadAttention before it."""
    *qkv, bias = s.operands[:4]
    if not bias:
        raise CannotDecompose("")
    ranks = [len(s.image(v)) for v in qkv] if all(qkv) else []
    if ranks not in ([3, 3, 3], [3, 4, 4]):
        raise CannotDecompose("q, k and v are packed in one tensor")
    inputs = (*_biased(s, qkv, bias), "", *s.region.operands[4:])
    return _multi_head(s, inputs, s.region.results, s.region.node.attrs)


def decompose_attention(s: OnnxBuilder) -> OnnxBuilder:
    """Write an Attention as separate products for q, k and v, and a MultiHeadAttention."""
    x, weight, bias, mask, past, added = s.operands[:6]
    if any(s.operands[6:]):
        raise CannotDecompose(
            "it has inputs after its attention bias, such as a cache with a separate length"
        )
    if s.attribute("do_rotary", 0):
        raise CannotDecompose("its rotary embedding (do_rotary) is not supported")
    if why := why_no_mask(s, mask):
        raise CannotDecompose(why)
    shape, stored = s.image(x), s.graph.weight(weight)
    if len(shape) != 3 or stored is None or stored.dtype is not DType.F32:
        raise CannotDecompose("its weights are not a float32 constant, or x is not of rank 3")
    depth, wide = stored.shape
    sizes = s.attribute("qkv_hidden_sizes", None) or (wide // 3,) * 3
    if sum(sizes) != wide or shape[-1] != depth:
        raise CannotDecompose("its weights do not have the sizes of x and of q, k and v")
    if past and sizes[1] != sizes[2]:
        raise CannotDecompose(
            "its cache does not hold keys and values of equal size in one tensor"
        )
    moved, start = [], 0
    for size in sizes:
        part = s.columns(stored, start, start + size)
        spec = TensorSpec(DType.F32, (*shape[:2], size))
        moved.append(s("MatMul", x, part, spec=spec))
        start += size
    if bias:
        moved = _biased(s, moved, bias)
    return plain_attention(s, moved, shape[:2], sizes[1], mask, past, added)


def why_no_mask(s: OnnxBuilder, mask: str) -> str:
    """Return why MultiHeadAttention cannot use a mask; "" if it can.

    A mask of rank 1 may count the keys of items, or hold their ends and starts.
    """
    if not mask:
        return ""
    shape, whole = s.spec(mask).shape or (), s.spec(s.operands[0]).shape
    if whole and len(shape) == 1 and holds_counts(shape[0], whole[0]):
        return ""
    if len(shape) not in (2, 3) or shape[-1] == 1:
        return "its mask does not hold one number for each key"
    return ""


def plain_attention(
    s: OnnxBuilder, moved: Sequence[str], sizes: Sequence[Extent], width: int, mask: str,
    past: str, added: str = "",
) -> OnnxBuilder:  # fmt: skip
    """Write a MultiHeadAttention with the cache of an Attention.

    ``moved`` are q, k and v after their projections.  ``sizes`` are the batch size and the number
    of rows; keys have ``width`` columns.
    """
    batch, rows = sizes
    pasts, results = _split_cache(s, past, batch, rows, width)
    inputs = (*moved, "", mask, added, *pasts)
    attrs = {k: v for k, v in s.region.node.attrs.items() if k in _KEPT}
    return _multi_head(s, inputs, results, attrs)


def _multi_head(
    s: OnnxBuilder, inputs: Sequence[str], results: Sequence[str], attrs: Mapping[str, Attr]
) -> OnnxBuilder:
    """Write the MultiHeadAttention as the last node."""
    while not inputs[-1]:
        inputs = inputs[:-1]
    domain, op = _MULTI_HEAD.split("::")
    name, result = s.region.node.name, s.region.results[0]
    s.nodes.append(Node(op, tuple(inputs), tuple(results), attrs, domain, name))
    s.specs[result] = s.spec(result)
    return s


def _split_cache(
    s: OnnxBuilder, past: str, batch: Extent, rows: Extent, width: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split past keys and values ``[2,B,H,P,D]``; write the new cache as the second result."""
    result, present = (*s.region.results, "")[:2]
    heads = int(s.attribute("num_heads", 0))
    if heads < 1 or width % heads:
        raise CannotDecompose("the number of heads does not divide the columns of the keys")
    pasts: tuple[str, ...] = ()
    length = rows
    if past:
        before = s.image(past)
        if len(before) != 5:
            raise CannotDecompose(
                "its cache does not hold keys and values of equal size in one tensor"
            )
        held = TensorSpec(DType.F32, before[1:])
        pasts = tuple(
            s("Gather", past, s.constant(i, np.int64), spec=held, axis=0) for i in (0, 1)
        )
        length = combine("add", before[3], rows)
    if not present:
        return pasts, (result,)
    names, parts = tuple(f"{result}_present_{x}" for x in "kv"), []
    shape = (batch, heads, length, width // heads)
    for name in names:
        s.specs[name] = TensorSpec(DType.F32, shape)
        parts.append(s.unsqueezed(name, 0))
    whole = TensorSpec(DType.F32, (2, *shape))
    s("Concat", *parts, spec=whole, result=present, axis=0)
    return pasts, (result, *names)


def _biased(s: OnnxBuilder, qkv: Sequence[str], bias: str) -> list[str]:
    """Add to queries, keys and values their parts of the bias; return the sums.

    Keys and values of rank 4 have theirs already: ONNX Runtime does not read those parts.
    """
    weight = s.graph.weight(bias)
    if weight is None or weight.dtype is not DType.F32:
        raise CannotDecompose("its bias is not a float32 constant")
    shapes = [s.spec(v).shape or () for v in qkv]
    sizes = [x[-1] if len(x) == 3 else product((x[1], x[3])) for x in shapes]
    if not all(isinstance(n, int) for n in sizes) or sum(sizes) != weight.count:  # type: ignore[arg-type]
        raise CannotDecompose("its bias does not have as many elements as q, k and v have columns")
    moved, start = [], 0
    for value, shape, size in zip(qkv, shapes, sizes, strict=True):
        assert isinstance(size, int)
        if len(shape) == 3:
            part = s.derived(weight, (size,), slice(start, start + size))
            value = s("Add", value, part)
        moved.append(value)
        start += size
    return moved
