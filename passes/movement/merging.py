"""Putting elementwise ops together, whatever map one sees the other through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.kernels.signature import clipped, localise
from tracea_graph.ops.chain import FULL, MAX_OPERANDS, Chain, Ref, Step
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.elementwise import IDENTITY, MAX_RANK, ElementwiseParams
from tracea_graph.ops.index_map import IndexMap, Move
from tracea_graph.passes.movement.rearranging import read_rearrangement
from tracea_graph.passes.movement.views import read_move, through
from tracea_graph.passes.pointwise.elementary import read_chain
from tracea_graph.ttg import Region, TileGraph

__all__ = ["Operation", "fits", "merge", "read_operation", "side_by_side", "sliced"]

Shape = tuple[Extent, ...]


@dataclass(frozen=True)
class Operation:
    """An elementwise op and the values it reads."""

    params: ElementwiseParams
    names: tuple[str, ...]

    def common(self, graph: TileGraph) -> Shape:
        """The shape it loops over.  Raises ValueError if symbols leave it open."""
        return self.params.common([graph.spec(n).shape or () for n in self.names])


def read_operation(graph: TileGraph, region: Region, value: str) -> Operation | None:
    """What computes ``value`` from stored values: a chain, data movement, or both."""
    if isinstance(region.params, ElementwiseParams):
        return Operation(region.params, region.operands) if len(region.results) == 1 else None
    if (spelled := read_chain(graph, region)) is not None:
        return Operation(ElementwiseParams(spelled[0]), spelled[1])
    if graph.spec(value).dtype is not DType.F32:
        return None
    if (index_map := read_move(graph, region, value)) is not None:
        return Operation(ElementwiseParams(IDENTITY, (index_map,)), region.operands[:1])
    if (found := read_rearrangement(graph, region)) is not None:
        index_map, target = found
        return Operation(ElementwiseParams(IDENTITY, (index_map,), target), region.operands[:1])
    return None


@dataclass
class _Builder:
    """Collects the operands and steps of a chain."""

    operands: list[tuple[str, IndexMap, DType]] = field(default_factory=list)
    steps: list[tuple[str, tuple[Ref | str, ...]]] = field(default_factory=list)

    def operand(self, name: str, index_map: IndexMap, dtype: DType) -> str:
        """Values go by names until their number is known: ``x3`` an operand, ``s3`` a step."""
        entry = (name, index_map, dtype)
        if entry not in self.operands:
            self.operands.append(entry)
        return f"x{self.operands.index(entry)}"

    def run(self, chain: Chain, operands: Sequence[str]) -> list[str]:
        """Append a chain over these values; every value of it."""
        values = list(operands)
        for step in chain.steps:
            args = tuple(a if isinstance(a, float) else values[a] for a in step.args)
            if (step.op, args) not in self.steps:
                self.steps.append((step.op, args))
            values.append(f"s{self.steps.index((step.op, args))}")
        return values

    def operation(self, results: Sequence[str], target: tuple[int, ...]) -> Operation | None:
        count = len(self.operands)
        if count > MAX_OPERANDS:
            return None

        def place(value: Ref | str) -> Ref:
            if not isinstance(value, str):
                return value
            return int(value[1:]) + (count if value[0] == "s" else 0)

        steps = tuple(Step(op, tuple(map(place, args))) for op, args in self.steps)
        dtypes = tuple(d for _, _, d in self.operands)
        numbers = tuple(int(place(r)) for r in results)
        chain = Chain((FULL,) * count, steps, numbers, dtypes)
        maps = tuple(m for _, m, _ in self.operands)
        names = tuple(n for n, _, _ in self.operands)
        return Operation(ElementwiseParams(chain, maps, target), names)


def merge(graph: TileGraph, outer: Operation, value: str, inner: Operation) -> Operation | None:
    """``outer`` with operand ``value`` computed by ``inner`` as it goes.

    None if the result would have too many operands, or a map does not go through a broadcast.
    """
    builder, around = _Builder(), inner.common(graph)
    values: list[str] = []
    for name, seen, dtype in _operands(outer):
        if name != value:
            values.append(builder.operand(name, seen, dtype))
            continue
        if inner.params.target:
            seen = IndexMap((Move("reshape", inner.params.target),)).then(*seen.moves)
        below: list[str] = []
        for source, index_map, kind in _operands(inner):
            own = index_map.shape(graph.spec(source).shape or ())
            rest = through(seen, own, around)
            if rest is None:
                return None
            below.append(builder.operand(source, index_map.then(*rest.moves), kind))
        values.append(builder.run(inner.params.chain, below)[inner.params.chain.results[0]])
    values = builder.run(outer.params.chain, values)
    results = [values[r] for r in outer.params.chain.results]
    return builder.operation(results, outer.params.target)


def side_by_side(graph: TileGraph, first: Region, second: Region) -> Operation | None:
    """Both regions' results from one chain; the second may read the first's result.

    None if that would have too many operands.
    """
    builder, made = _Builder(), ""
    results: list[str] = []
    for region in (first, second):
        op = Operation(region.params, region.operands)
        values = [
            made if name == first.results[0] else builder.operand(name, seen, dtype)
            for name, seen, dtype in _operands(op)
        ]
        made = builder.run(op.params.chain, values)[op.params.chain.results[0]]
        results.append(made)
    return builder.operation(results, ())


def _operands(op: Operation) -> Iterator[tuple[str, IndexMap, DType]]:
    return zip(op.names, op.params.views, op.params.chain.operand_types, strict=True)


def sliced(graph: TileGraph, op: Operation, axis: int, start: int, end: int) -> Operation | None:
    """The op over a stretch of one axis of its common shape."""
    around = op.common(graph)
    cut = IndexMap((Move("slice", (axis, start, end, 1)),))
    maps: list[IndexMap] = []
    for name, index_map in zip(op.names, op.params.views, strict=True):
        own = index_map.shape(graph.spec(name).shape or ())
        rest = through(cut, own, around) if own else IndexMap()
        if rest is None:
            return None
        maps.append(index_map.then(*rest.moves))
    return Operation(ElementwiseParams(op.params.chain, tuple(maps), op.params.target), op.names)


def fits(
    graph: TileGraph,
    params: ElementwiseParams | ConcatParams,
    names: Sequence[str],
    wanted: Sequence[TensorSpec],
) -> bool:
    """True if an op provably gives results of these shapes, from its operands' shapes alone too.

    A kernel knows its operands' sizes and nothing else of the graph.
    """
    specs = [graph.spec(n) for n in names]
    try:
        found = params.infer(specs)
        params.infer(localise(clipped(specs))[0])
        rank = len(params.common([s.shape or () for s in specs]))
    except ValueError:
        return False
    return rank <= MAX_RANK and [(s.dtype, s.shape) for s in found] == [
        (s.dtype, s.shape) for s in wanted
    ]
