"""Let producers write into a concatenation, or compute its consumer part by part.

Concat(f(x), Slice(y))         -> FusedConcat that writes every part directly into the result
Concat(Expand(x, sizes), y)    -> FusedConcat that expands x to the sizes of y
elementwise(Concat(a, b), y)   -> FusedConcat of elementwise(a, y), elementwise(b, y)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tracea_graph.ir import DType
from tracea_graph.ops.concat import MAX_PARTS, ConcatParams, ConcatPart
from tracea_graph.ops.elementwise import ElementwiseParams, identity
from tracea_graph.ops.index_map import HUGE, IndexMap
from tracea_graph.passes.layout.fuse_views import CHEAP, why_not_fused
from tracea_graph.passes.layout.read_views import RESHAPES
from tracea_graph.passes.pointwise.compose_elementwise import (
    ElementwiseOperation,
    fuse_producer,
    read_operation,
    results_fit,
    slice_operation,
)
from tracea_graph.passes.region_helpers import (
    attribute,
    fused_region,
    only_read_by,
    with_private_producers,
)
from tracea_graph.reason_codes import Code, Reason, other_readers_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Concat", "FuseIntoConcat", "SinkConcat"]

_TYPES = (DType.F32, DType.U8, DType.I8)
"""Types of values that are concatenated."""


@dataclass(frozen=True)
class _Piece:
    """One part of a concatenation and the names of the values it reads."""

    params: ElementwiseParams | ConcatParams
    names: tuple[str, ...]
    like: int = -1


def _pieces(params: ConcatParams, names: Sequence[str]) -> list[_Piece]:
    return [_Piece(p.params, tuple(names[i] for i in p.operands), p.like) for p in params.parts]


def _assembled(
    axis: int, pieces: Sequence[_Piece], target: tuple[int, ...] = ()
) -> tuple[ConcatParams, tuple[str, ...]]:
    names = tuple(dict.fromkeys(n for p in pieces for n in p.names))
    parts = tuple(ConcatPart(p.params, tuple(map(names.index, p.names)), p.like) for p in pieces)
    return ConcatParams(axis, parts, target), names


class Concat:
    """Convert a Concat to FusedConcat."""

    name = "concat"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.op != "Concat" or region.fused:
            return
        spec = graph.spec(region.results[0])
        if spec.dtype not in _TYPES or not spec.rank:
            why = unsuited_reason(
                "its result is neither float32 nor bytes, or its rank is not known"
            )
            yield Miss(self.name, region.id, why)
            return
        if len(region.operands) > MAX_PARTS:
            yield Miss(self.name, region.id, f"it has more than {MAX_PARTS} parts")
            return
        axis = int(attribute(region, "axis", 0)) % spec.rank  # type: ignore[call-overload]
        pieces, expands = _plain_pieces(graph, region, axis)
        params, names = _assembled(axis, pieces)
        if not results_fit(graph, params, names, [spec]):
            yield Miss(
                self.name,
                region.id,
                Reason("the shapes of its parts are not proven compatible", Code.UNKNOWN_SHAPE),
            )
            return
        covered = with_private_producers(graph, [region, *expands], names)
        new = fused_region(self.name, params, names, region.results, covered)
        yield Proposal(self.name, tuple(covered), (new,))


def _plain_pieces(
    graph: TileGraph, region: Region, axis: int
) -> tuple[list[_Piece], list[Region]]:
    """Return the parts of a Concat, and the Expands that it replaces by reading their inputs.

    The sizes of a replaced Expand are those of a part that is no Expand.
    """
    found = [_expanded(graph, v, axis) for v in region.operands]
    like = next((i for i, first in enumerate(found) if first is None), -1)
    plain = ElementwiseParams(identity(graph.spec(region.results[0]).dtype or DType.F32))
    pieces, expands = list[_Piece](), list[Region]()
    for value, first in zip(region.operands, found, strict=True):
        if first is None or like < 0:
            pieces.append(_Piece(plain, (value,)))
            continue
        pieces.append(_Piece(plain, (first.operands[0],), like))
        if only_read_by(graph, value, region):
            expands.append(first)
    return pieces, expands


def _expanded(graph: TileGraph, value: str, axis: int) -> Region | None:
    """Return the Expand to a computed size that writes a value; None if it expands ``axis``."""
    first = graph.producer(value)
    if first is None or first.op != "Expand" or first.fused:
        return None
    if graph.weight(first.operands[1]) is not None:
        return None
    shape, source = graph.spec(value).shape, graph.spec(first.operands[0]).shape
    if shape is None or source is None or len(shape) != len(source):
        return None
    kept = all(d in (1, s) for s, d in zip(shape, source, strict=True))
    return first if kept and source[axis] == shape[axis] else None


class FuseIntoConcat:
    """Fuse the producer of a concatenated part: the fused op writes the part in its position."""

    name = "fuse-into-concat"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not isinstance(region.params, ConcatParams):
            return
        wanted = [graph.spec(region.results[0])]
        for value in dict.fromkeys(region.operands):
            first = graph.producer(value)
            if first is None or len(first.writes) == 0:
                continue
            alone = len(first.results) == 1 and only_read_by(graph, value, region)
            whole = _Piece(region.params, region.operands)
            made = self._absorbed(graph, whole, value, first, alone)
            if isinstance(made, str):
                yield Miss(self.name, region.id, made)
                continue
            if made == whole:
                continue
            if not results_fit(graph, made.params, made.names, wanted):
                yield Miss(
                    self.name,
                    region.id,
                    f"it reads {value!r} in an order that strides cannot express",
                )
                continue
            covered = (first, region) if alone else (region,)
            new = fused_region(self.name, made.params, made.names, region.results, covered)
            yield Proposal(self.name, covered, (new,))

    def _absorbed(
        self, graph: TileGraph, piece: _Piece, value: str, first: Region, alone: bool
    ) -> _Piece | str:
        """Return the part with the producer of ``value`` fused into it, or why it cannot be.

        A part that does not read ``value`` is returned unchanged.
        """
        if value not in piece.names:
            return piece
        if isinstance(piece.params, ConcatParams):
            inside = [
                self._absorbed(graph, p, value, first, alone)
                for p in _pieces(piece.params, piece.names)
            ]
            if reason := next((p for p in inside if isinstance(p, str)), None):
                return reason
            known = [
                replace(p, like=old.like)
                for p, old in zip(inside, _pieces(piece.params, piece.names), strict=True)
                if isinstance(p, _Piece)
            ]
            return _Piece(*_assembled(piece.params.axis, known, piece.params.target))
        plain = piece.params.moves_only and not piece.params.moves
        if isinstance(first.params, ConcatParams):
            if plain and alone and not first.params.target:
                return _Piece(first.params, first.operands)
            return piece
        inner = read_operation(graph, first, value)
        if inner is None:
            return piece
        outer = ElementwiseOperation(piece.params, piece.names)
        if (reason := why_not_fused(graph, outer, value, inner, alone)) is not None:
            return reason
        joined = fuse_producer(graph, outer, value, inner)
        if joined is None:
            return Reason("a part would have too many operands", Code.TOO_MANY_OPERANDS)
        return _Piece(joined.params, joined.names)


class SinkConcat:
    """Apply an elementwise op to each part of a concatenation, and concatenate the results.

    The op's operand is then never stored.
    """

    name = "sink-concat"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        outer = read_operation(graph, region, region.results[0]) if region.results else None
        if outer is None or len(region.results) != 1 or region.op in RESHAPES:
            return
        if outer.params.target or outer.params.moves_only:
            return
        for value in dict.fromkeys(outer.names):
            first = graph.producer(value)
            if first is None or not isinstance(first.params, ConcatParams):
                continue
            item = self._pushed(graph, region, outer, value, first)
            yield Miss(self.name, region.id, item) if isinstance(item, str) else item

    def _pushed(
        self,
        graph: TileGraph,
        region: Region,
        outer: ElementwiseOperation,
        value: str,
        first: Region,
    ) -> Proposal | str:
        inner: ConcatParams = first.params
        alone = only_read_by(graph, value, region)
        common = inner.common([graph.spec(n).shape or () for n in first.operands])
        maps = {m for n, m in zip(outer.names, outer.params.views, strict=True) if n == value}
        if maps != {IndexMap()} or inner.target or common != outer.common(graph):
            return f"it reads {value!r} through a view"
        if not alone and inner.flops > CHEAP:
            return other_readers_reason(value)
        shapes = inner.shapes([graph.spec(n).shape or () for n in first.operands])
        parts, start = _pieces(inner, first.operands), 0
        pieces: list[_Piece] = []
        for i, (piece, shape) in enumerate(zip(parts, shapes, strict=True)):
            size, last = shape[inner.axis], i + 1 == len(shapes)
            if not isinstance(piece.params, ElementwiseParams) or not (
                isinstance(size, int) or last
            ):
                return "a part's size is not known"
            end = start + size if isinstance(size, int) else HUGE
            part = self._part(graph, outer, value, piece, inner.axis, start, end)
            if part is None:
                return Reason("a part would have too many operands", Code.TOO_MANY_OPERANDS)
            pieces.append(replace(part, like=piece.like))
            start = end
        params, names = _assembled(inner.axis, pieces)
        if not results_fit(graph, params, names, [graph.spec(region.results[0])]):
            return Reason("the shapes of its parts are not proven compatible", Code.UNKNOWN_SHAPE)
        covered = (first, region) if alone else (region,)
        new = fused_region(self.name, params, names, region.results, covered)
        return Proposal(self.name, covered, (new,))

    def _part(
        self, graph: TileGraph, outer: ElementwiseOperation, value: str, piece: _Piece, axis: int,
        start: int, end: int,
    ) -> _Piece | None:  # fmt: skip
        """Return the outer op over one range of the axis, with ``value`` computed by the part.

        None if the part would have too many operands.
        """
        assert isinstance(piece.params, ElementwiseParams)
        cut = slice_operation(graph, outer, axis, start, end)
        if cut is None:
            return None
        whole = [IndexMap() if n == value else m
                 for n, m in zip(cut.names, cut.params.views, strict=True)]  # fmt: skip
        cut = ElementwiseOperation(replace(cut.params, maps=tuple(whole)), cut.names)
        joined = fuse_producer(graph, cut, value, ElementwiseOperation(piece.params, piece.names))
        return None if joined is None else _Piece(joined.params, joined.names)
