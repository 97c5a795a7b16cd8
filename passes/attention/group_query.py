"""Convert com.microsoft GroupQueryAttention: rotary embedding, KV cache and attention.

    q, k, v ─rotate→ append k and v to the cache ─→ FusedAttention with positions

Item b of a batch holds ``seqlens_k[b] + 1`` rows including its S new ones; the model's inputs hold
these lengths:

    position[b] = 0 if total_sequence_length = S (a first prompt) else seqlens_k[b] + 1 − S
    query i sees keys up to position[b] + i, at most the last ``local_window_size`` of them
    cos and sin are read at position[b] + i; in a first prompt with position ids at ids[0, 0] + i
    with an attention bias, keys that are masked or outside the window are −inf in its mask
    without softcap, a query of several keys whose scores are all at float32's lowest returns zeros

The cache is as long as the past one, or ``total_sequence_length`` if that is larger.  Rows after
an item's last are never read (ONNX Runtime writes zeros there; so does this op).  For rows of a
first prompt beyond an item's own length, ONNX Runtime leaves the output unspecified; this op
computes plain causal attention.
Caches in fp16, bf16 and int8 stay as they are: attention converts their rows as it reads them,
and new rows are rounded as they are appended (see ``narrow_caches``).  Queries, new keys and
values, and results are float32; where the operator has them in fp16, they are cast, and casts
beside it are removed.
Positions and table rows are computed once for all layers. Source: ONNX Runtime's documentation of
its contributed operators, and its CPU kernel's results.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt

import numpy as np

from tracea_graph.ir import Array, DType, Extent, Node, TensorSpec, Weight
from tracea_graph.ops import OpParams
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.passes.attention.attention_matcher import NoMatch, numeric_attribute
from tracea_graph.passes.attention.kv_cache_positions import Positions
from tracea_graph.passes.attention.narrow_caches import cache_scales, find_caches
from tracea_graph.passes.attention.qkv_operands import columns_operand
from tracea_graph.passes.attention.rotary_embedding import RotaryOperands
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    int_constant,
    is_f32,
    operand_producer,
)
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.rewrite import Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["GROUP_QUERY", "convert_group_query"]

GROUP_QUERY = "com.microsoft::GroupQueryAttention"
_INPUTS = (
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length",
    "cos_cache", "sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale",
    "q_norm_weight", "k_norm_weight",
)  # fmt: skip
_UNMODELLED = ("head_sink", "q_norm_weight", "k_norm_weight")
_OFF = ("smooth_softmax", "sliding_window_cache", "qk_output")
_MAX_HEAD = 256
"""Largest head size that kernels support."""
_RANGE = 11
"""Opset of Range, which the ONNX function body needs to compute positions."""


@dataclass(frozen=True)
class _Columns:
    """``count`` heads of ``size`` columns, from column ``offset`` of a value with ``width``."""

    value: str
    count: int
    size: int
    offset: int
    width: int


@dataclass
class _Writer:
    """Collects the regions that replace a node; ``places`` has those that layers share."""

    rule: str
    node: Region
    places: Positions
    regions: list[Region] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)

    def fused(self, params: OpParams, reads: tuple[str, ...], result: str) -> str:
        known = [self.specs.get(v) or self.places.spec(v) for v in reads]
        self.specs[result] = params.infer(known)[0]
        self.regions.append(fused_region(self.rule, params, reads, (result,), [self.node]))
        return result

    def plain(self, op: str, reads: tuple[str, ...], result: str, like: str, width: int) -> str:
        """Write an ONNX operator whose result has ``width`` columns, and the rows of ``like``."""
        shape = (self.specs.get(like) or self.places.spec(like)).shape or ()
        self.specs[result] = TensorSpec(DType.F32, (*shape[:-1], width))
        made = Node(op, reads, (result,))
        self.regions.append(Region(f"{op.lower()}:{result}", op, reads, (result,), (made,)))
        return result

    def scaled(self, op: str, part: _Columns, scales: Array, result: str) -> _Columns:
        """Multiply heads by the scales of a cache, or divide them: one for all, or one a column.

        Several heads that share keys have the same scales.
        """
        size = part.size
        if scales.size > 1:
            shared = part.count * size // scales.size
            scales = np.repeat(scales.reshape(-1, size), shared, axis=0).ravel()
        value, width = part.value, part.count * size
        if width != part.width:
            bounds = [int_constant((x,)) for x in (part.offset, part.offset + width, 2)]
            self.weights.update({w.name: w for w in bounds})
            reads = (value, *(w.name for w in bounds))
            value = self.plain("Slice", reads, f"{result}_columns", value, width)
        name = f"{result}_by"
        self.weights[name] = Weight(name, DType.F32, scales.shape, lambda: scales)
        value = self.plain(op, (value, name), result, value, width)
        return _Columns(value, part.count, size, 0, width)


def convert_group_query(rule: str, graph: TileGraph, node: Region) -> Proposal:
    """Convert a GroupQueryAttention node; raises NoMatch for unsupported attributes and
    operands."""
    operands = (*node.operands, *[""] * (len(_INPUTS) - len(node.operands)))
    caches = find_caches(graph, node, operands)
    operands = (*operands[:3], *caches.past, *operands[5:])
    _check(graph, node, operands)
    batch, rows, size, qkv = _heads(graph, node, operands)
    scales = cache_scales(graph, node, operands[12:14], qkv[1].count * size, caches.stored)
    places = Positions(graph, operands, batch, rows)
    w, stem = _Writer(rule, node, places), node.results[0]
    qkv = [replace(part, value=places.widened(part.value)) for part in qkv]
    if attribute(node, "do_rotary", 0):
        tables = places.tables()
        interleaved = attribute(node, "rotary_interleaved", 0) == 1
        rotated = 2 * _columns_of(graph, operands[7])
        for which in (0, 1):
            part = qkv[which]
            params = _rotated(part, size, rotated, interleaved, tables)
            value = w.fused(params, (part.value, *tables), f"{stem}_rotated_{'qk'[which]}")
            qkv[which] = _Columns(value, part.count, size, 0, part.count * size)
    if scales:
        each = (("Mul", scales[0]), ("Div", scales[0]), ("Div", scales[1]))
        for which, (op, numbers) in enumerate(each):
            qkv[which] = w.scaled(op, qkv[which], numbers, f"{stem}_scaled_{'qkv'[which]}")
    cache = []
    for part, past, present, name in zip(qkv[1:], caches.past, caches.present, "kv", strict=True):
        append = KvCacheAppendParams(
            part.count, size, part.offset, part.width, bool(past), caches.stored
        )
        reads = (part.value, *([past] if past else []), places.first(), places.slots())
        cache.append(w.fused(append, reads, present or f"{stem}_present_{name}"))
    q, attend = qkv[0], _attention(node, qkv, size, bool(operands[10]), caches.stored)
    bias = operands[10]
    window = int(numeric_attribute(node, "local_window_size", -1))
    last = places.bias(places.widened(bias), q.count, window) if bias else places.first()
    narrow = not is_f32(graph, operands[0])
    covered, result = _result_in_f32(graph, node) if narrow else ((node,), stem)
    if scales:
        value = w.fused(attend, (q.value, *cache, last), f"{stem}_of_integers")
        whole = _Columns(value, q.count, size, 0, q.count * size)
        w.scaled("Mul", whole, scales[1], result)
    else:
        w.fused(attend, (q.value, *cache, last), result)
    if narrow and len(covered) == 1:
        w.regions.append(_cast(result, stem, DType.F16))
    return Proposal(
        rule, (*covered, *caches.casts), tuple(w.regions[::-1]), {**places.specs, **w.specs},
        {**places.weights, **w.weights}, shared=tuple(places.regions),
    )  # fmt: skip


def _attention(
    node: Region, qkv: list[_Columns], size: int, biased: bool, stored: str
) -> AttentionParams:
    """Return the op that attends to the caches; ``biased``: it reads a mask, not positions."""
    q, window = qkv[0], int(numeric_attribute(node, "local_window_size", -1))
    softcap, near = numeric_attribute(node, "softcap"), window > 0 and not biased
    return AttentionParams(
        q.count, size, size, numeric_attribute(node, "scale") or 1 / sqrt(size),
        "add" if biased else "none",
        offsets=(q.offset, 0, 0), widths=(q.width, 0, 0),
        kv_heads=qkv[1].count if qkv[1].count != q.count else 0,
        layouts=("rows", "heads", "heads", "rows"), causal="none" if biased else "placed",
        softcap=softcap, window=(window - 1, 0) if near else None,
        zero_rows="none" if softcap else "lowest", stored=stored,
    )  # fmt: skip


def _check(graph: TileGraph, node: Region, operands: tuple[str, ...]) -> None:
    """Raise NoMatch for unsupported operands and attributes."""
    for name, value in zip(_INPUTS, operands, strict=True):
        if value and name in _UNMODELLED:
            raise NoMatch(f"it has a {name}")
    if len(node.results) > 3 and node.results[3]:
        raise NoMatch("its output of attention scores is used")
    for name in _OFF:
        if attribute(node, name, 0) not in (0, -1):
            raise NoMatch(f"its {name} is {attribute(node, name, 0)}")
    if not attribute(node, "causal", 1):
        raise NoMatch("it is not causal, and its item lengths are known only at run time")
    if bool(operands[1]) != bool(operands[2]) or bool(operands[3]) != bool(operands[4]):
        raise NoMatch("only one of keys and values is given")
    if not all(operands[5:7]):
        raise NoMatch("its item lengths are not given")
    window = attribute(node, "local_window_size", -1)
    if not isinstance(window, int) or window == 0 or window < -1:
        raise NoMatch(f"its window of {window} keys is not supported")
    if attribute(node, "do_rotary", 0) and not all(operands[7:9]):
        raise NoMatch("it rotates without cos and sin tables")
    floats = [v for v in (*operands[:3], *operands[7:9], operands[10]) if v]
    if not is_f32(graph, *floats) and not _is_f16(graph, *floats):
        raise NoMatch(Reason("its operands are neither float32 nor fp16", Code.UNSUPPORTED_DTYPE))
    if graph.opset < _RANGE:
        raise NoMatch(f"its function body needs Range, which requires opset {_RANGE}")


def _is_f16(graph: TileGraph, *values: str) -> bool:
    return all(graph.spec(v).dtype is DType.F16 for v in values)


def _cast(value: str, result: str, dtype: DType) -> Region:
    node = Node("Cast", (value,), (result,), {"to": dtype.onnx})
    return Region(f"cast:{result}", "Cast", node.inputs, node.outputs, (node,))


def _result_in_f32(graph: TileGraph, node: Region) -> tuple[tuple[Region, ...], str]:
    """Return the regions that attention replaces, and the name of its result in float32.

    These are the node and, if nothing else reads its result, the cast of that to float32.
    """
    value = node.results[0]
    readers = {use.region.id: use.region for use in graph.uses(value)}
    if len(readers) == 1 and not graph.is_output(value):
        (reader,) = readers.values()
        if reader.op == "Cast" and is_f32(graph, reader.results[0]):
            return (node, reader), reader.results[0]
    return (node,), f"{value}_in_f32"


def _heads(
    graph: TileGraph, node: Region, operands: tuple[str, ...]
) -> tuple[Extent, Extent, int, list[_Columns]]:
    """Return batch, sequence length, head size, and the columns of q, k and v."""
    heads, shared = (int(numeric_attribute(node, name)) for name in ("num_heads", "kv_num_heads"))
    shape = graph.spec(operands[0]).shape
    if heads < 1 or shared < 1 or heads % shared:
        raise NoMatch("its number of key heads does not divide that of query heads")
    if shape is None or len(shape) != 3 or not isinstance(shape[2], int):
        raise NoMatch("the number or size of heads is not known")
    packed = not operands[1]
    size, rest = divmod(shape[2], heads + 2 * shared if packed else heads)
    if rest or not 0 < size <= _MAX_HEAD:
        raise NoMatch(
            f"heads of {size} columns exceed {_MAX_HEAD}, or do not divide the columns of q"
        )
    counts, starts = (heads, shared, shared), (0, heads, heads + shared)
    found = []
    for value, count, start in zip(operands[:3], counts, starts, strict=True):
        own = graph.spec(value).shape if value else shape
        if own is None or len(own) != 3 or not all(map(equal_as_polynomials, own[:2], shape[:2])):
            raise NoMatch(
                Reason(
                    "q, k and v are not proven to have equal batch sizes and lengths",
                    Code.UNKNOWN_SHAPE,
                )
            )
        if not packed and own[2] != count * size:
            raise NoMatch("q, k and v differ in the number or size of heads")
        source, offset, width = columns_operand(graph, _in_f32(graph, value or operands[0]))
        first = offset + (start * size if packed else 0)
        found.append(_Columns(source, count, size, first, width))
    for past in filter(None, operands[3:5]):
        held = graph.spec(past).shape
        if held is None or len(held) != 4 or held[1] != shared or held[3] != size:
            raise NoMatch("its cache does not have the number and size of its heads")
    return shape[0], shape[1], size, found


def _in_f32(graph: TileGraph, value: str) -> str:
    """Return the float32 value that was cast to this one, if there is one, else this one."""
    cast = operand_producer(graph, value, "Cast")
    return cast.operands[0] if cast and is_f32(graph, cast.operands[0]) else value


def _columns_of(graph: TileGraph, table: str) -> int:
    shape = graph.spec(table).shape
    if shape is None or len(shape) != 2 or not isinstance(shape[1], int):
        raise NoMatch("the size of its cos and sin tables is not known")
    return shape[1]


def _rotated(
    part: _Columns, size: int, rotated: int, interleaved: bool, tables: tuple[str, str]
) -> ConcatParams:
    if rotated > size or (interleaved and rotated != size):
        raise NoMatch("it rotates only a part of each head in interleaved pairs")
    width = part.count * size
    cut = (
        (ViewMove("slice", (2, part.offset, part.offset + width, 1)),)
        if width != part.width
        else ()
    )
    split = IndexMap((*cut, ViewMove("reshape", (0, 0, part.count, size))))
    table = IndexMap((ViewMove("unsqueeze", (2,)),))
    return RotaryOperands(
        part.value, *tables, "", size, rotated, interleaved, split, table, width
    ).params()  # fmt: skip
