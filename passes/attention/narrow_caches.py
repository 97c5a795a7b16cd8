"""Caches of GroupQueryAttention in fp16, bf16 and int8, which attention reads as they are stored.

    fp16    the operator's own type; ONNX Runtime runs it
    bf16    Cast → GroupQueryAttention in float32 → Cast, which import makes of the operator, as
            ONNX Runtime has none in bf16 for CPUs: attention takes the place of the casts, too
    int8    integers k' = round(k / scale), one scale or one for each column of a head:

    scores = q · (k' scale_k) = (q scale_k) · k'        y = Σ w (v' scale_v) = scale_v Σ w v'

so that kernels meet plain integers, and scales are in what is multiplied anyway.  A new row is
divided by its scales, rounded half to even and limited to int8, as QuantizeLinear does; ONNX
Runtime's kernel does the same.
Source: ONNX Runtime's documentation of GroupQueryAttention, and its CPU kernel's results.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracea_graph.ir import Array, DType
from tracea_graph.passes.attention.attention_matcher import NoMatch
from tracea_graph.passes.quantized.scale_checks import ordinary
from tracea_graph.passes.region_helpers import attribute, operand_producer
from tracea_graph.reason_codes import Code, Reason
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Caches", "cache_scales", "find_caches"]

_OWN = (DType.F32, DType.F16, DType.I8)
"""Types of caches that the operator itself has in ONNX Runtime."""


@dataclass(frozen=True)
class Caches:
    """The caches that attention reads and writes.

    ``past`` and ``present`` are keys and values before and after the new rows, "" where there are
    none; ``stored`` is their type; ``casts`` are the regions that attention makes superfluous.
    """

    past: tuple[str, str]
    present: tuple[str, str]
    stored: str
    casts: tuple[Region, ...] = ()


def find_caches(graph: TileGraph, node: Region, operands: tuple[str, ...]) -> Caches:
    """Return the caches of a GroupQueryAttention; raises NoMatch for types not supported."""
    past = (operands[3], operands[4])
    results = (*node.results, "", "")
    present = (results[1], results[2])
    kinds = {graph.spec(v).dtype for v in (past if past[0] else operands[:1])}
    stored = next(iter(kinds)) if len(kinds) == 1 else None
    if stored not in _OWN:
        raise NoMatch(
            Reason("its caches are not float32, fp16 or int8 alike", Code.UNSUPPORTED_DTYPE)
        )
    if stored is DType.F32:
        return _in_bf16(graph, past, present) or Caches(past, present, "f32")
    return Caches(past, present, stored.short)


def _in_bf16(graph: TileGraph, past: tuple[str, str], present: tuple[str, str]) -> Caches | None:
    """Return the caches in bf16 that are cast to and from float32, if all of them are."""
    held: list[str] = []
    for value in past:
        cast = operand_producer(graph, value, "Cast") if value else None
        if cast is None or graph.spec(cast.operands[0]).dtype is not DType.BF16:
            return None
        held.append(cast.operands[0])
    casts: list[Region] = []
    for value in filter(None, present):
        readers = {use.region.id: use.region for use in graph.uses(value)}
        if graph.is_output(value) or len(readers) > 1:
            return None
        for reader in readers.values():
            if reader.op != "Cast" or graph.spec(reader.results[0]).dtype is not DType.BF16:
                return None
            casts.append(reader)
    made = {cast.operands[0]: cast.results[0] for cast in casts}
    keys, values = (made.get(v, "") for v in present)
    return Caches((held[0], held[1]), (keys, values), "bf16", tuple(casts))


def cache_scales(
    graph: TileGraph, node: Region, names: tuple[str, ...], columns: int, stored: str
) -> tuple[Array, Array] | None:
    """Return the scales of int8 keys and values, one or one for each column of all heads.

    None for caches of other types.  Raises NoMatch for scales that are not constant, not ordinary
    numbers or not as many, and for caches of 4 bits.
    """
    kinds = tuple(_text(attribute(node, f"{x}_quant_type", b"NONE")) for x in "kv")
    if kinds == ("NONE", "NONE"):
        if any(names):
            raise NoMatch("it has scales of a cache that is not quantized")
        if stored == "i8":
            raise NoMatch("its caches are int8, but not quantized")
        return None
    if attribute(node, "kv_cache_bit_width", 8) != 8:
        raise NoMatch("its caches hold integers of 4 bits")
    if stored != "i8":
        raise NoMatch("its caches are quantized, but not of int8")
    counts = {"PER_TENSOR": 1, "PER_CHANNEL": columns}
    found = []
    for kind, name in zip(kinds, names, strict=True):
        weight = graph.weight(name) if name else None
        if weight is None or kind not in counts:
            raise NoMatch("its keys and values do not both have constant scales")
        if weight.dtype is not DType.F32 or not ordinary(weight):
            raise NoMatch("a scale of its caches is zero, negative, infinite or no number")
        numbers = np.asarray(weight.array(), np.float32).ravel()
        if numbers.size != counts[kind]:
            raise NoMatch(f"its caches have {numbers.size} scales instead of {counts[kind]}")
        found.append(numbers)
    return found[0], found[1]


def _text(value: object) -> str:
    return (value.decode() if isinstance(value, bytes) else str(value)) or "NONE"
