"""Restore the item axis of rows that were flattened to one matrix.

Reshape(op(Reshape(x, [B·S,K]), w), [B,S,N])   ->   op(x, w)

Sums, norms and products accept rows of any rank; without the Reshapes, the regions before, between
and after them form one program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tracea_graph.ir import Extent, TensorSpec, product
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.passes.attention.attention_matcher import NoMatch
from tracea_graph.passes.layout.axis_selection import BY_ELEMENT
from tracea_graph.passes.layout.read_views import RESHAPES
from tracea_graph.passes.prove_extents import equal_as_polynomials
from tracea_graph.passes.region_helpers import first_value_read_outside, with_private_producers
from tracea_graph.reason_codes import Code, Reason, other_readers_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["UnflattenRows"]

_MAX_DEPTH = 24
Shape = tuple[Extent, ...]


class UnflattenRows:
    """Remove the flattening of rows around operators that work row by row."""

    name = "unflatten-rows"

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if region.fused or region.op != "Reshape":
            return
        flat, apart = (graph.spec(v).shape for v in (region.operands[0], region.results[0]))
        if flat is None or apart is None or len(flat) != 2 or len(apart) < 3 or flat[0] == 1:
            yield Miss(
                self.name,
                region.id,
                unsuited_reason("it does not split flattened rows into items and rows"),
            )
            return
        last = graph.producer(region.operands[0])
        if flat[1] != apart[-1] or last is None or _by_rows(graph, last) is None:
            why = unsuited_reason("the operator before it may mix rows")
            yield Miss(self.name, region.id, why)
            return
        new = _UnflattenedRows(graph, apart[:-1], flat[0], region.results[0])
        try:
            new.value(region.operands[0])
        except NoMatch as why:
            yield Miss(self.name, region.id, str(why))
            return
        covered = with_private_producers(graph, [*new.covered, region], tuple(new.kept))
        if others := first_value_read_outside(
            graph, (v for r in new.covered for v in r.writes), covered
        ):
            yield Miss(self.name, region.id, other_readers_reason(others))
            return
        yield Proposal(self.name, tuple(covered), tuple(new.regions), new.specs, step=True)


def _by_rows(graph: TileGraph, region: Region) -> Sequence[int] | None:
    """Return the indices of operands with one row per result row; None if rows may be mixed."""
    params, count = region.params, len(region.operands)
    if region.captures or len(region.results) != 1:
        return None
    if not region.fused:
        return range(count) if region.op in BY_ELEMENT else None
    if isinstance(params, GemmParams):
        first = params.first + params.bias
        return (0, *range(first, first + params.epilogue_inputs))
    if isinstance(params, NormParams):
        return range(params.data_operands)
    if isinstance(params, ElementwiseParams) and not params.moves:
        return range(count)
    return None


@dataclass
class _UnflattenedRows:
    """Values ``[B·S,N]`` rewritten as ``[B,S,N]``, and the regions that compute them.

    The last region writes ``result``.
    """

    graph: TileGraph
    lead: Shape
    rows: Extent
    result: str
    regions: list[Region] = field(default_factory=list)
    covered: list[Region] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)

    def value(self, value: str, depth: int = 0) -> str:
        """Return the name of the unflattened value, ``[B,S,N]``, or of one that all rows share.

        Raises NoMatch if the value cannot be unflattened.
        """
        if value not in self.made:
            self.made[value] = self._found(value, depth)
        return self.made[value]

    def _found(self, value: str, depth: int) -> str:
        shape, region = self.graph.spec(value).shape, self.graph.producer(value)
        if shape is None or len(shape) > 2:
            raise NoMatch(f"{value!r} does not have the product's rows")
        if len(shape) < 2 or shape[0] == 1:
            self.kept.append(value)
            return value
        if region is not None and (source := self._source(region, shape)):
            self.kept.append(source)
            return source
        by_rows = _by_rows(self.graph, region) if region else None
        if region is None or by_rows is None or depth > _MAX_DEPTH:
            raise NoMatch(f"the operator that writes {value!r} may mix rows")
        if not equal_as_polynomials(shape[0], self.rows):
            raise NoMatch(
                Reason(
                    f"{value!r} is not proven to have the rows of {self.result!r}",
                    Code.UNKNOWN_SHAPE,
                )
            )
        operands = tuple(
            self.value(v, depth + 1) if v and i in by_rows else v
            for i, v in enumerate(region.operands)
        )
        self.kept += [v for i, v in enumerate(region.operands) if v and i not in by_rows]
        result = f"{value}_unflattened" if depth else self.result
        self._write(region, operands, result)
        if depth:
            self.specs[result] = TensorSpec(self.graph.spec(value).dtype, (*self.lead, shape[1]))
        return result

    def _source(self, region: Region, shape: Shape) -> str:
        """Return the input of a Reshape that flattens; else empty."""
        if region.fused or region.op not in RESHAPES:
            return ""
        before = self.graph.spec(region.operands[0]).shape or ()
        fits = len(before) == len(self.lead) + 1 and before[-1] == shape[1]
        same = fits and all(map(equal_as_polynomials, before[:-1], self.lead))
        return (
            region.operands[0]
            if same and equal_as_polynomials(shape[0], product(before[:-1]))
            else ""
        )

    def _write(self, region: Region, operands: tuple[str, ...], result: str) -> None:
        self.covered.append(region)
        nodes = region.nodes
        if not region.fused:
            nodes = (replace(region.node, inputs=operands, outputs=(result,)),)
        made = replace(
            region, id=f"{UnflattenRows.name}:{result}", operands=operands, results=(result,),
            nodes=nodes,
        )  # fmt: skip
        self.regions.append(made)
