"""Attention as ONNX Runtime's contributed operators have it, written out.

MultiHeadAttention with a bias               -> three Adds before it
MultiHeadAttention with a mask of keys       -> the same, then products and a Softmax
Attention with a projection of its own       -> three products before that

A mask of keys [batch, keys] adds ``mask_filter_value`` (-10000) where it is not above 0.  Source:
ONNX Runtime's documentation of its contributed operators, and its CPU kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.passes.spelling.script import Script, Unfit

__all__ = ["attention", "multi_head"]

_FILTER = -10000.0


def multi_head(s: Script) -> Script:
    """The operator without its bias; without the operator where it has a mask of keys."""
    *qkv, bias, mask, added = s.operands[:6]
    if not bias and not mask:
        raise Unfit("")
    cached = len(s.region.writes) > 1 or any(s.operands[6:]) or s.attribute("unidirectional", 0)
    if mask and cached:
        raise Unfit("it keeps a cache or an order beside a mask of keys")
    if not all(qkv) or any(len(s.image(v)) != 3 for v in qkv):
        raise Unfit("q, k and v are packed in one tensor")
    moved = _biased(s, qkv, bias) if bias else qkv
    if mask:
        return _written_out(s, moved, (_added(s, mask), *filter(None, (added,))))
    node, result = s.region.node, s.region.results[0]
    inputs = (*moved, "", *s.region.operands[4:])
    s.nodes.append(Node(node.op, inputs, s.region.results, node.attrs, node.domain, node.name))
    s.specs[result] = s.spec(result)
    return s


def attention(s: Script) -> Script:
    """Its projections as products of their own."""
    x, weight, bias, mask, past, added = s.operands[:6]
    s.unread(1)
    if past or any(s.operands[6:]) or s.attribute("unidirectional", 0):
        raise Unfit("it keeps a cache or an order")
    if s.attribute("do_rotary", 0):
        raise Unfit("it turns queries and keys")
    shape, stored = s.image(x), s.graph.weight(weight)
    if len(shape) != 3 or stored is None or stored.dtype is not DType.F32:
        raise Unfit("its weights are not float32 constants")
    depth, wide = stored.shape
    sizes = s.attribute("qkv_hidden_sizes", None) or (wide // 3,) * 3
    if sum(sizes) != wide or shape[-1] != depth:
        raise Unfit("its weights are not as wide as q, k and v")
    moved, start = [], 0
    for size in sizes:
        part = s.columns(stored, start, start + size)
        spec = TensorSpec(DType.F32, (*shape[:2], size))
        moved.append(s("MatMul", x, part, spec=spec))
        start += size
    if bias:
        moved = _biased(s, moved, bias)
    masks = (*((_added(s, mask),) if mask else ()), *filter(None, (added,)))
    return _written_out(s, moved, masks)


def _biased(s: Script, qkv: Sequence[str], bias: str) -> list[str]:
    """Queries, keys and values with their part of the bias added."""
    weight = s.graph.weight(bias)
    if weight is None or weight.dtype is not DType.F32:
        raise Unfit("its bias is not a float32 constant")
    sizes = [(s.spec(v).shape or ())[-1] for v in qkv]
    if not all(isinstance(n, int) for n in sizes) or sum(sizes) != weight.count:  # type: ignore[arg-type]
        raise Unfit("its bias is not as wide as q, k and v")
    moved, start = [], 0
    for value, size in zip(qkv, sizes, strict=True):
        assert isinstance(size, int)
        part = s.derived(weight, (size,), slice(start, start + size))
        moved.append(s("Add", value, part))
        start += size
    return moved


def _added(s: Script, mask: str) -> str:
    """A mask of keys as what is added to the scores, ``[batch, 1, 1, keys]``."""
    spec = s.spec(mask)
    if spec.shape is None or len(spec.shape) != 2 or spec.dtype is None:
        raise Unfit("its mask is not one number for each key")
    batch, keys = spec.shape
    known = s("Cast", mask, spec=TensorSpec(DType.F32, spec.shape), to=DType.F32.onnx)
    seen = s("Greater", known, 0.0, spec=TensorSpec(DType.BOOL, spec.shape))
    number = float(s.attribute("mask_filter_value", _FILTER))
    flat = s("Where", seen, 0.0, number, spec=TensorSpec(DType.F32, spec.shape))
    full = TensorSpec(DType.F32, (batch, 1, 1, keys))
    return s("Reshape", flat, s.indices(0, 1, 1, -1), spec=full)


def _written_out(s: Script, qkv: Sequence[str], masks: Sequence[str]) -> Script:
    """softmax(q kᵀ · scale + masks) v, head by head."""
    heads = int(s.attribute("num_heads", 0))
    shapes = [s.spec(v).shape or () for v in qkv]
    widths = [n for shape in shapes for n in shape[2:] if isinstance(n, int)]
    if heads < 1 or len(widths) != 3 or any(n % heads for n in widths):
        raise Unfit("the number of heads does not divide q, k and v")
    split: list[str] = []
    for value, shape, perm in zip(
        qkv, shapes, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True
    ):
        size = widths[len(split)] // heads
        apart = (*shape[:2], heads, size)
        y = s("Reshape", value, s.indices(0, 0, heads, size), spec=TensorSpec(DType.F32, apart))
        turned = TensorSpec(DType.F32, tuple(apart[i] for i in perm))
        split.append(s("Transpose", y, spec=turned, perm=perm))
    (batch, rows, _), (_, keys, _) = shapes[:2]
    scores = TensorSpec(DType.F32, (batch, heads, rows, keys))
    size = widths[0] // heads
    y = s("MatMul", split[0], split[1], spec=scores)
    y = s("Mul", y, float(s.attribute("scale", 0.0)) or 1 / sqrt(size), spec=scores)
    for mask in masks:
        y = s("Add", y, mask, spec=scores)
    y = s("Softmax", y, spec=scores, axis=-1)
    each = widths[2] // heads
    y = s("MatMul", y, split[2], spec=TensorSpec(DType.F32, (batch, heads, rows, each)))
    together = TensorSpec(DType.F32, (batch, rows, heads, each))
    y = s("Transpose", y, spec=together, perm=(0, 2, 1, 3))
    final = TensorSpec(DType.F32, (batch, rows, heads * each))
    s("Reshape", y, s.indices(0, 0, heads * each), spec=final)
    return s
