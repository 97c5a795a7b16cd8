"""Let attention read keys and values that are stored in int8 as they are.

    k' ─DequantizeLinear→ k → attention(q, k, v) → y
        ->   attention(q · scale_k, k', v') · scale_v → y

    scores = q · (k' scale_k) = (q scale_k) · k'        y = Σ w (v' scale_v) = scale_v Σ w v'

Scales are one number each, or one for each column of a head; zero points are 0.  A cache is read
in a quarter of the bytes then, and is never written in float32.
Source: the scales of GroupQueryAttention, which ``narrow_caches`` treats in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tracea_graph.ir import Array, DType, Node, Weight
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.passes.attention.attention_matcher import NoMatch
from tracea_graph.passes.attention.stored_caches import proposals_for_float_keys
from tracea_graph.passes.quantized.scale_checks import ordinary
from tracea_graph.passes.region_helpers import fused_region, operand_producer
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Miss, Proposal, constant_number
from tracea_graph.ttg import Region, TileGraph

__all__ = ["ByteCaches"]


@dataclass(frozen=True)
class _Integers:
    """Keys or values as integers, their scales [heads or 1, columns or 1], and what makes numbers
    of them."""

    value: str
    scales: Array
    sources: tuple[Region, ...]


class ByteCaches:
    """Let attention read keys and values in int8, with their scales in its queries and results."""

    name = "byte-caches"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        return proposals_for_float_keys(self.name, self._build, graph, region)

    def _build(self, graph: TileGraph, region: Region, params: AttentionParams) -> Proposal:
        q, k, v, *rest = region.operands
        if k == v or set(params.layouts[1:3]) != {"heads"}:
            raise NoMatch(unsuited_reason("its keys and values do not lie head by head"))
        keys, values = (_integers(graph, one) for one in (k, v))
        result, stem = region.results[0], f"{region.results[0]}.i8"
        by_key, by_value = f"{stem}.keys", f"{stem}.values"
        weights = {
            by_key: _constant(by_key, _factors(keys.scales, params, 0)),
            by_value: _constant(by_value, _factors(values.scales, params, 3)),
        }
        scaled, integral = f"{stem}.q", f"{stem}.y"
        specs = {scaled: graph.spec(q), integral: graph.spec(result)}
        attend = replace(params, stored="i8")
        operands = (scaled, keys.value, values.value, *rest)
        inside = fused_region(self.name, attend, operands, (integral,), [region])
        sources = {s.id: s for one in (keys, values) for s in one.sources}
        old = tuple(s for s in sources.values() if _is_left(graph, s, sources, region))
        new = (_product(q, by_key, scaled), inside, _product(integral, by_value, result))
        return Proposal(self.name, (*old, region), new, specs, weights)


def _integers(graph: TileGraph, value: str) -> _Integers:
    """Return the int8 numbers of which a value ``[B,H,T,D]`` is dequantized."""
    converts = operand_producer(graph, value, "DequantizeLinear")
    if converts is not None:
        scale = graph.weight(converts.operands[1])
        zero = (*converts.operands, "", "")[2]
        if scale is None or scale.count != 1 or (zero and constant_number(graph, zero) != 0):
            raise NoMatch("its keys or values have several scales, or a zero point")
        return _checked(graph, converts.operands[0], scale, (1, 1), (converts,))
    scales = operand_producer(graph, value, "Mul")
    weight = graph.weight(scales.operands[1]) if scales is not None else None
    casts = operand_producer(graph, scales.operands[0], "Cast") if scales is not None else None
    if scales is None or weight is None or casts is None:
        raise NoMatch(unsuited_reason("its keys and values are not stored in int8"))
    shape = (1, 1, 1, *weight.shape)[-4:]
    if shape[0] != 1 or shape[2] != 1:
        raise NoMatch("its keys or values have scales for items or rows")
    return _checked(graph, casts.operands[0], weight, (shape[1], shape[3]), (scales, casts))


def _checked(
    graph: TileGraph, value: str, scale: Weight, shape: tuple[int, int],
    sources: tuple[Region, ...],
) -> _Integers:  # fmt: skip
    if graph.spec(value).dtype is not DType.I8:
        raise NoMatch(unsuited_reason("its keys and values are not stored in int8"))
    if scale.dtype is not DType.F32 or not ordinary(scale):
        raise NoMatch("a scale of its keys or values is zero, negative, infinite or no number")
    return _Integers(value, np.asarray(scale.array(), np.float32).reshape(shape), sources)


def _factors(scales: Array, params: AttentionParams, which: int) -> Array:
    """Return scales in the shape that multiplies queries (0) or results (3) of a layout."""
    heads, columns = params.heads, params.head_v if which else params.head
    grouped = len(scales) if len(scales) > 1 else 1
    if heads % grouped or scales.shape[1] not in (1, columns):
        raise NoMatch("its keys or values do not have a scale for each column")
    each = np.broadcast_to(np.repeat(scales, heads // grouped, 0), (heads, columns))
    layout = params.layouts[which]
    if layout == "rows":
        width = 0 if which else params.widths[0]
        made = np.ones(width or heads * columns, np.float32)
        first = 0 if which else params.offsets[0]
        made[first : first + heads * columns] = each.ravel()
        return made
    return np.ascontiguousarray(
        {"split": each, "heads": each[:, None], "transposed": each[..., None]}[layout]
    )


def _constant(name: str, array: Array) -> Weight:
    return Weight(name, DType.F32, array.shape, lambda: array)


def _is_left(graph: TileGraph, source: Region, sources: dict[str, Region], region: Region) -> bool:
    """Whether only attention, and others of its sources, read what a source writes."""
    readers = {u.region.id for u in graph.uses(source.results[0])}
    shown = graph.is_output(source.results[0])
    return not shown and readers <= {region.id, *sources}


def _product(value: str, by: str, result: str) -> Region:
    node = Node("Mul", (value, by), (result,), {})
    return Region(f"scales:{result}", "Mul", node.inputs, node.outputs, (node,))
