"""Convert com.microsoft GroupQueryAttention: rotary embedding, KV cache and attention.

    q, k, v ─rotate→ append k and v to the cache ─→ FusedAttention with positions

Item b of a batch holds ``seqlens_k[b] + 1`` rows including its S new ones; the model's inputs hold
these lengths:

    position[b] = 0 if total_sequence_length = S (a first prompt) else seqlens_k[b] + 1 − S
    query i sees keys up to position[b] + i, at most the last ``local_window_size`` of them
    cos and sin are read at position[b] + i; in a first prompt with position ids at ids[0, 0] + i
    with an attention bias, masked keys are −inf in the mask built from the bias
    without softcap, a query of several keys whose scores are all at float32's lowest returns zeros

The cache is as long as the past one, or ``total_sequence_length`` if that is larger.  Rows after
an item's last are never read (ONNX Runtime writes zeros there; so does this op).  For rows of a
first prompt beyond an item's own length, ONNX Runtime leaves the output unspecified; this op
computes plain causal attention.
Caches in fp16 stay as they are: attention converts their rows as it reads them, and new rows are
rounded as they are appended.  Queries, new keys and values, and results are float32; where the
operator has them in fp16, they are cast, and casts beside it are removed.
Positions and table rows are computed once for all layers. Source: ONNX Runtime's documentation of
its contributed operators, and its CPU kernel's results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

from tracea_graph.ir import DType, Extent, Node, TensorSpec
from tracea_graph.ops import OpParams
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.passes.attention.attention_matcher import NoMatch, numeric_attribute
from tracea_graph.passes.attention.kv_cache_positions import Positions
from tracea_graph.passes.attention.qkv_operands import columns_operand
from tracea_graph.passes.attention.rotary_embedding import RotaryOperands
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
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
_UNMODELLED = _INPUTS[11:]
_OFF = ("smooth_softmax", "sliding_window_cache", "qk_output", "kv_cache_bit_width")
_MAX_HEAD = 256
"""Largest head size that kernels support."""
_RANGE = 11
"""Opset of Range, which the ONNX function body needs to compute positions."""


@dataclass(frozen=True)
class _Columns:
    """``count`` heads that start at column ``offset`` of a value with ``width`` columns."""

    value: str
    count: int
    offset: int
    width: int


def convert_group_query(rule: str, graph: TileGraph, node: Region) -> Proposal:
    """Convert a GroupQueryAttention node; raises NoMatch for unsupported attributes and
    operands."""
    operands = (*node.operands, *[""] * (len(_INPUTS) - len(node.operands)))
    _check(graph, node, operands)
    batch, rows, size, qkv = _heads(graph, node, operands)
    places = Positions(graph, operands, batch, rows)
    qkv = [replace(part, value=places.widened(part.value)) for part in qkv]
    regions: list[Region] = []
    specs: dict[str, TensorSpec] = {}

    def write(params: OpParams, reads: tuple[str, ...], result: str) -> str:
        known = [specs.get(v) or places.spec(v) for v in reads]
        specs[result] = params.infer(known)[0]
        regions.append(fused_region(rule, params, reads, (result,), [node]))
        return result

    if attribute(node, "do_rotary", 0):
        tables = places.tables()
        interleaved = attribute(node, "rotary_interleaved", 0) == 1
        rotated = 2 * _columns_of(graph, operands[7])
        for which in (0, 1):
            part, name = qkv[which], f"{node.results[0]}_rotated_{'qk'[which]}"
            params = _rotated(part, size, rotated, interleaved, tables)
            value = write(params, (part.value, *tables), name)
            qkv[which] = _Columns(value, part.count, 0, part.count * size)
    cache = []
    results = (*node.results, "", "")
    stored = "f16" if _is_f16(graph, operands[3] or operands[0]) else "f32"
    for part, past, present, name in zip(qkv[1:], operands[3:5], results[1:], "kv", strict=False):
        append = KvCacheAppendParams(part.count, size, part.offset, part.width, bool(past), stored)
        reads = (part.value, *([past] if past else []), places.first(), places.slots())
        cache.append(write(append, reads, present or f"{node.results[0]}_present_{name}"))
    q = qkv[0]
    window = int(numeric_attribute(node, "local_window_size", -1))
    bias = operands[10]
    softcap = numeric_attribute(node, "softcap")
    attend = AttentionParams(
        q.count, size, size, numeric_attribute(node, "scale") or 1 / sqrt(size),
        "add" if bias else "none",
        offsets=(q.offset, 0, 0), widths=(q.width, 0, 0),
        kv_heads=qkv[1].count if qkv[1].count != q.count else 0,
        layouts=("rows", "heads", "heads", "rows"), causal="none" if bias else "placed",
        softcap=softcap, window=max(window, 0), zero_rows="none" if softcap else "lowest",
        stored=stored,
    )  # fmt: skip
    last = places.bias(places.widened(bias), q.count) if bias else places.first()
    if is_f32(graph, operands[0]):
        write(attend, (q.value, *cache, last), node.results[0])
        covered: tuple[Region, ...] = (node,)
    else:
        covered, result = _result_in_f32(graph, node)
        write(attend, (q.value, *cache, last), result)
        if len(covered) == 1:
            regions.append(_cast(result, node.results[0], DType.F16))
    return Proposal(
        rule, covered, tuple(regions[::-1]), {**places.specs, **specs}, places.weights,
        shared=tuple(places.regions),
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
    for name in ("k_quant_type", "v_quant_type"):
        if attribute(node, name, b"NONE") not in (b"NONE", "NONE", b"", ""):
            raise NoMatch("its cache is quantised")
    if not attribute(node, "causal", 1):
        raise NoMatch("it is not causal, and its item lengths are known only at run time")
    if bool(operands[1]) != bool(operands[2]) or bool(operands[3]) != bool(operands[4]):
        raise NoMatch("only one of keys and values is given")
    if not all(operands[5:7]):
        raise NoMatch("its item lengths are not given")
    window = attribute(node, "local_window_size", -1)
    if not isinstance(window, int) or window == 0 or window < -1:
        raise NoMatch(f"its window of {window} keys is not supported")
    if window > 0 and operands[10]:
        raise NoMatch("it has both a window and an attention bias")
    if attribute(node, "do_rotary", 0) and not all(operands[7:9]):
        raise NoMatch("it rotates without cos and sin tables")
    floats = [v for v in (*operands[:3], *operands[7:9], operands[10]) if v]
    caches = [v for v in operands[3:5] if v]
    whole = is_f32(graph, *floats)
    if not whole and not _is_f16(graph, *floats, *caches):
        raise NoMatch(Reason("its operands are neither float32 nor fp16", Code.UNSUPPORTED_DTYPE))
    if not is_f32(graph, *caches) and not _is_f16(graph, *caches):
        raise NoMatch(Reason("its caches are neither float32 nor fp16", Code.UNSUPPORTED_DTYPE))
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
        found.append(_Columns(source, count, offset + (start * size if packed else 0), width))
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
