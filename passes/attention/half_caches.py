"""Let attention read keys and values that are stored in fp16 or bf16 as they are.

    past ─Cast→ Concat(·, new) ─Cast→ present        past ─append(new)→ present
                   └→ attention                               └→ attention

    Concat(past, Cast(new)) = present                past ─append(new)→ present
                   └─Cast→ attention                          └→ attention

    k ─Cast→ attention                               k → attention

Most exported decoders concatenate the cache of earlier steps and new rows.  The first form is what
import makes of a half model, as it computes in float32; the casts read and write the whole cache.
Attention converts rows in registers instead, and new rows are rounded as they are appended, as the
model's own Concat would do.  Positions, which are those behind the last past row, and the length
of the cache are computed once for all layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tracea_graph.ir import Attr, DType, Extent, Node, TensorSpec, Weight, combine
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.passes.attention.attention_matcher import NoMatch
from tracea_graph.passes.attention.kv_cache_positions import size_source
from tracea_graph.passes.attention.qkv_operands import (
    AttentionOperand,
    head_major_operand,
    split_heads_operand,
)
from tracea_graph.passes.attention.stored_caches import proposals_for_float_keys
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    int_constant,
    only_read_by,
    operand_producer,
)
from tracea_graph.reason_codes import Code, Reason, other_readers_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["HalfCaches"]

_HALF = (DType.F16, DType.BF16)
_SEQUENCE = 2
"""Axis of the rows of a cache ``[B,H,T,D]``."""


class HalfCaches:
    """Let attention read keys and values in fp16 or bf16 instead of their casts to float32."""

    name = "half-caches"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        return proposals_for_float_keys(self.name, self._build, graph, region)

    def _build(self, graph: TileGraph, region: Region, params: AttentionParams) -> Proposal:
        sources = [_half_source(graph, v) for v in region.operands[1:3]]
        kinds = {kind for _, kind in sources}
        if kinds == {None}:
            raise NoMatch(unsuited_reason("its keys and values are not stored in a half type"))
        stored = next(iter(kinds))
        if len(kinds) > 1 or stored is None:
            raise NoMatch(Reason("its keys and values differ in type", Code.UNSUPPORTED_DTYPE))
        if "transposed" in params.layouts:
            raise NoMatch("its keys are stored one column per key")
        w = _CacheWriter(self.name, graph, region, stored)
        q, k, v, *rest = region.operands
        if k == v:
            raise NoMatch("its keys are its values, too")
        read = [w.operand(which, source) for which, (source, _) in enumerate(sources, start=1)]
        attend = replace(params, stored=stored.short)
        operands = (q, *read, *rest)
        new = fused_region(self.name, attend, operands, region.results, [region])
        old = tuple({r.id: r for r in (region, *w.covered)}.values())
        return Proposal(
            self.name, old, (new, *w.regions), w.specs, w.weights, shared=tuple(w.shared)
        )


def _half_source(graph: TileGraph, value: str) -> tuple[Region | None, DType | None]:
    """Return the Cast or Concat by which a value comes from a half type, and that type."""
    joined = operand_producer(graph, value, "Concat")
    first = operand_producer(graph, joined.operands[0] if joined else value, "Cast")
    kind = graph.spec(first.operands[0]).dtype if first else None
    return (joined or first, kind) if kind in _HALF else (None, None)


def _is_growing(joined: Region) -> bool:
    """Whether a Concat joins two values of rank 4 along their rows."""
    axis = attribute(joined, "axis", 0)
    return len(joined.operands) == 2 and axis in (_SEQUENCE, _SEQUENCE - 4)


@dataclass
class _CacheWriter:
    """Collects the regions that read and append to the keys and values of one attention.

    ``covered`` are the regions that they replace, ``shared`` those that layers have in common.
    """

    rule: str
    graph: TileGraph
    attention: Region
    stored: DType
    covered: list[Region] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    shared: list[Region] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)

    def operand(self, which: int, source: Region | None) -> str:
        """Return the value in a half type that attention reads as its operand ``which``."""
        assert source is not None
        heads = self.attention.params.layouts[which] == "heads"
        if source.op == "Concat":
            if not heads:
                raise NoMatch("the rows of its cache do not lie head by head")
            return self._grown(source)
        if only_read_by(self.graph, source.results[0], self.attention):
            self.covered.append(source)
        value = source.operands[0]
        joined = operand_producer(self.graph, value, "Concat") if heads else None
        last = operand_producer(self.graph, joined.operands[-1], "Cast") if joined else None
        if joined and last and self._is_f32(last.operands[0]) and _is_growing(joined):
            self._append(joined.operands[0], last.operands[0], value, [joined])
        return value

    def _grown(self, joined: Region) -> str:
        """Append rows to a cache whose cast they were concatenated with; return the whole."""
        first = self.graph.producer(joined.operands[0])
        assert first is not None
        if not _is_growing(joined):
            raise NoMatch("its cache is not one of earlier rows, followed by new ones")
        result, casts = self._result(joined)
        alone = only_read_by(self.graph, joined.operands[0], joined)
        covered = [*([first] if alone else []), joined, *casts]
        self._append(first.operands[0], joined.operands[1], result, covered)
        return result

    def _append(self, past: str, new: str, result: str, covered: Sequence[Region]) -> None:
        """Write rows behind a cache instead of what concatenates them, ``covered``."""
        joined = next(r for r in covered if r.op == "Concat")
        held, made = (self.graph.spec(v).shape for v in (past, joined.results[0]))
        if held is None or made is None or len(held) != 4 or len(made) != 4:
            raise NoMatch(Reason("the rank of its cache is not known", Code.UNKNOWN_SHAPE))
        rows = self._rows(new)
        grown = combine("add", held[_SEQUENCE], rows.length)
        same = (rows.heads, rows.size) == (held[1], held[3])
        if not same or not equal_as_polynomials(made[_SEQUENCE], grown):
            raise NoMatch(
                Reason("its cache is not proven to grow by the new rows", Code.UNKNOWN_SHAPE)
            )
        append = KvCacheAppendParams(
            rows.heads, rows.size, rows.offset, rows.width, True, self.stored.short, rows.layout
        )
        operands = (rows.value, past, *self._places(past, held, rows, made))
        self.specs[result] = TensorSpec(self.stored, made)
        self.covered += covered
        self.regions.append(fused_region(self.rule, append, operands, (result,), covered))

    def _rows(self, value: str) -> AttentionOperand:
        """Return new rows as heads, or as the rows that are split into heads."""
        rows = split_heads_operand(self.graph, value, keys=False)
        if rows.scale != 1.0 or rows.shared != 1 or not self._is_f32(rows.value):
            rows = head_major_operand(self.graph, value)
        return rows

    def _is_f32(self, value: str) -> bool:
        return self.graph.spec(value).dtype is DType.F32

    def _result(self, joined: Region) -> tuple[str, list[Region]]:
        """Return the name of the new cache: that of the Concat's cast, if it has one; and casts.

        Raises NoMatch if anything else reads the concatenation.
        """
        value, graph = joined.results[0], self.graph
        readers = {u.region.id: u.region for u in graph.uses(value)}
        if graph.is_output(value):
            raise NoMatch("its cache is also an output in float32")
        casts = list[Region]()
        for reader in readers.values():
            if reader.id == self.attention.id:
                continue
            kept = graph.spec(reader.results[0]).dtype if reader.op == "Cast" else None
            if kept is not self.stored or casts:
                raise NoMatch(other_readers_reason(value))
            casts.append(reader)
        name = casts[0].results[0] if casts else f"{value}.{self.stored.short}"
        return name, casts

    # ---- positions of new rows and the length of the cache --------------------------------

    def _places(
        self, past: str, held: tuple[Extent, ...], new: AttentionOperand, made: tuple[Extent, ...]
    ) -> tuple[str, str]:
        """Return int64 ``[B]``, the row at which new ones begin, and a value as long as the cache.

        Names depend on the sizes alone, so that layers with equal sizes share the regions.
        """
        batch, before, after = held[0], held[_SEQUENCE], made[_SEQUENCE]
        axis = _SEQUENCE if new.layout == "heads" else 1
        count = self._size(before, past, _SEQUENCE)
        stem = f"cache.{batch}.{before}.{new.length}"
        first = self._write(
            f"{stem}.first", "Expand", count, self._size(batch, past, 0), shape=(batch,)
        )
        more = self._size(new.length, new.value, axis)
        total = self._write(f"{stem}.total", "Add", count, more, shape=(1,))
        slots = self._write(
            f"{stem}.slots", "ConstantOfShape", total, shape=(after,), dtype=DType.BOOL,
            value=np.zeros(1, bool),
        )  # fmt: skip
        return first, slots

    def _size(self, extent: Extent, value: str, axis: int) -> str:
        """Return an extent, that of an axis of ``value``, as int64 ``[1]``."""
        if isinstance(extent, int):
            return self._numbers(extent)
        value, axis = size_source(self.graph, extent, value, axis)
        rank, stem = self.graph.spec(value).rank or 0, f"cache.sizes.{value}"
        sizes = self._write(stem, "Shape", value, shape=(rank,))
        return self._write(
            f"{stem}.{axis}", "Gather", sizes, self._numbers(axis), shape=(1,), axis=0
        )

    def _numbers(self, number: int) -> str:
        constant = int_constant((number,))
        self.weights[constant.name] = constant
        return constant.name

    def _write(
        self, name: str, op: str, *operands: str, shape: tuple[Extent, ...],
        dtype: DType = DType.I64, **attrs: Attr,
    ) -> str:  # fmt: skip
        if name not in self.specs:
            node = Node(op, operands, (name,), attrs)
            self.shared.append(Region(f"cache:{name}", op, operands, (name,), (node,)))
            self.specs[name] = TensorSpec(dtype, shape)
        return name
