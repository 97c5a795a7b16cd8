"""Compose elementwise ops: a consumer with its producer, two siblings, or a slice of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.kernels.region_signature import localise_symbols, replace_clipped_sizes
from tracea_graph.ops.chain import FULL, MAX_OPERANDS, Chain, Ref, Step
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.elementwise import MAX_RANK, ElementwiseParams, identity
from tracea_graph.ops.index_map import IndexMap, ViewMove
from tracea_graph.passes.layout.read_views import read_view, view_of_operand
from tracea_graph.passes.layout.rearrangements_to_index_maps import read_rearrangement
from tracea_graph.passes.pointwise.read_elementwise import read_chain
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "ElementwiseOperation",
    "fuse_producer",
    "fuse_siblings",
    "read_operation",
    "results_fit",
    "slice_operation",
]

Shape = tuple[Extent, ...]

_MANY = 1 << 14
"""Number of results cached: a model composes the same few ops again and again."""
_MOVED = (DType.F32, DType.U8, DType.I8)
"""Types of values that kernels can read through views."""


@dataclass(frozen=True)
class ElementwiseOperation:
    """An elementwise op and the names of the values it reads."""

    params: ElementwiseParams
    names: tuple[str, ...]

    def common(self, graph: TileGraph) -> Shape:
        """Return the shape of the op's loops.  Raises ValueError if it depends on how symbolic
        sizes broadcast."""
        return self.params.common([graph.spec(n).shape or () for n in self.names])


def read_operation(graph: TileGraph, region: Region, value: str) -> ElementwiseOperation | None:
    """Return the elementwise op that computes ``value``; None if it is not elementwise.

    The op may be a chain, data movement, or both.
    """
    if isinstance(region.params, ElementwiseParams):
        return (
            ElementwiseOperation(region.params, region.operands)
            if len(region.results) == 1
            else None
        )
    if (bound_chain := read_chain(graph, region)) is not None:
        return ElementwiseOperation(ElementwiseParams(bound_chain[0]), bound_chain[1])
    if (dtype := graph.spec(value).dtype) not in _MOVED:
        return None
    if (index_map := read_view(graph, region, value)) is not None:
        return ElementwiseOperation(
            ElementwiseParams(identity(dtype), (index_map,)), region.operands[:1]
        )
    if (found := read_rearrangement(graph, region)) is not None:
        index_map, target = found
        return ElementwiseOperation(
            ElementwiseParams(identity(dtype), (index_map,), target), region.operands[:1]
        )
    return None


@dataclass
class _Builder:
    """Builder of a chain, which collects numbered operands and steps."""

    operands: list[tuple[int, IndexMap, DType]] = field(default_factory=list)
    steps: list[tuple[str, tuple[Ref | str, ...]]] = field(default_factory=list)

    def operand(self, value: int, index_map: IndexMap, dtype: DType) -> str:
        """Add an operand and return its name, such as ``x3``.

        Steps are called ``s0``, ``s1``, … until the chain is built.
        """
        entry = (value, index_map, dtype)
        if entry not in self.operands:
            self.operands.append(entry)
        return f"x{self.operands.index(entry)}"

    def run(self, chain: Chain, operands: Sequence[str]) -> list[str]:
        """Append the steps of a chain, applied to ``operands``.

        Returns the names of the operands and of all steps.
        """
        values = list(operands)
        for step in chain.steps:
            args = tuple(a if isinstance(a, float) else values[a] for a in step.args)
            if (step.op, args) not in self.steps:
                self.steps.append((step.op, args))
            values.append(f"s{self.steps.index((step.op, args))}")
        return values

    def operation(
        self, results: Sequence[str], types: Sequence[DType], target: tuple[int, ...]
    ) -> tuple[ElementwiseParams, tuple[int, ...]] | None:
        """Return the built op, and the numbers of the values that it reads.

        ``types`` are those of the results.  None if the op would have too many operands.
        """
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
        chain = Chain((FULL,) * count, steps, numbers, dtypes, tuple(types))
        maps = tuple(m for _, m, _ in self.operands)
        return ElementwiseParams(chain, maps, target), tuple(n for n, _, _ in self.operands)


def fuse_producer(
    graph: TileGraph, outer: ElementwiseOperation, value: str, inner: ElementwiseOperation
) -> ElementwiseOperation | None:
    """Return ``outer``, changed such that it computes its operand ``value`` by ``inner`` itself.

    None if the result would have too many operands, or if a view cannot be applied to a broadcast
    operand.  Raises ValueError if the loop shape of ``inner`` depends on how symbolic sizes
    broadcast.
    """
    values = tuple(dict.fromkeys((*inner.names, *outer.names)))
    number = {v: i for i, v in enumerate(values)}
    shapes = tuple(graph.spec(v).shape or () for v in values[: len({*inner.names})])
    made = _merged(
        outer.params, tuple(number[v] for v in outer.names), number.get(value, -1),
        inner.params, tuple(number[v] for v in inner.names), shapes,
    )  # fmt: skip
    return made and ElementwiseOperation(made[0], tuple(values[i] for i in made[1]))


@lru_cache(_MANY)
def _merged(
    outer: ElementwiseParams, outer_reads: tuple[int, ...], value: int,
    inner: ElementwiseParams, inner_reads: tuple[int, ...], shapes: Sequence[Shape],
) -> tuple[ElementwiseParams, tuple[int, ...]] | None:  # fmt: skip
    """Do the work of :func:`fuse_producer` on numbered values; ``shapes`` are those of values
    that the inner op reads."""
    builder = _Builder()
    around = inner.common([shapes[i] for i in inner_reads])
    values: list[str] = []
    for name, seen, dtype in _operands(outer, outer_reads):
        if name != value:
            values.append(builder.operand(name, seen, dtype))
            continue
        if inner.target:
            seen = IndexMap((ViewMove("reshape", inner.target),)).then(*seen.moves)
        below: list[str] = []
        for source, index_map, kind in _operands(inner, inner_reads):
            rest = view_of_operand(seen, index_map.shape(shapes[source]), around)
            if rest is None:
                return None
            below.append(builder.operand(source, index_map.then(*rest.moves), kind))
        values.append(builder.run(inner.chain, below)[inner.chain.results[0]])
    values = builder.run(outer.chain, values)
    results = [values[r] for r in outer.chain.results]
    return builder.operation(results, outer.result_types, outer.target)


def fuse_siblings(graph: TileGraph, first: Region, second: Region) -> ElementwiseOperation | None:
    """Return one op with both regions' results; the second region may read the first's result.

    None if the op would have too many operands.
    """
    names = tuple(dict.fromkeys((*first.operands, *second.operands)))
    builder, made = _Builder(), ""
    results: list[str] = []
    types: list[DType] = []
    for region in (first, second):
        params: ElementwiseParams = region.params
        values = [
            made if names[i] == first.results[0] else builder.operand(i, seen, dtype)
            for i, seen, dtype in _operands(params, [names.index(v) for v in region.operands])
        ]
        made = builder.run(params.chain, values)[params.chain.results[0]]
        results.append(made)
        types += params.result_types
    both = builder.operation(results, types, ())
    return both and ElementwiseOperation(both[0], tuple(names[i] for i in both[1]))


def _operands(
    params: ElementwiseParams, reads: Sequence[int]
) -> Iterator[tuple[int, IndexMap, DType]]:
    return zip(reads, params.views, params.chain.operand_types, strict=True)


def slice_operation(
    graph: TileGraph, op: ElementwiseOperation, axis: int, start: int, end: int
) -> ElementwiseOperation | None:
    """Return an op that computes only the range ``start`` to ``end`` of one axis of its loops.

    None if a view cannot be restricted to the range.
    """
    around = op.common(graph)
    cut = IndexMap((ViewMove("slice", (axis, start, end, 1)),))
    maps: list[IndexMap] = []
    for name, index_map in zip(op.names, op.params.views, strict=True):
        own = index_map.shape(graph.spec(name).shape or ())
        rest = view_of_operand(cut, own, around) if own else IndexMap()
        if rest is None:
            return None
        maps.append(index_map.then(*rest.moves))
    return ElementwiseOperation(
        ElementwiseParams(op.params.chain, tuple(maps), op.params.target), op.names
    )


def results_fit(
    graph: TileGraph,
    params: ElementwiseParams | ConcatParams,
    names: Sequence[str],
    wanted: Sequence[TensorSpec],
) -> bool:
    """Return whether an op's results have the types and shapes ``wanted``.

    This must follow from its operands' shapes alone, since a kernel knows nothing else about the
    graph.
    """
    found = _given(params, tuple(map(graph.spec, names)))
    return found is not None and found == tuple((s.dtype, s.shape) for s in wanted)


@lru_cache(_MANY)
def _given(
    params: ElementwiseParams | ConcatParams, specs: Sequence[TensorSpec]
) -> tuple[tuple[DType | None, Shape | None], ...] | None:
    """Return types and shapes of an op's results; None for a shape that a kernel cannot infer."""
    try:
        found = params.infer(specs)
        params.infer(localise_symbols(replace_clipped_sizes(specs))[0])
        rank = len(params.common([s.shape or () for s in specs]))
    except ValueError:
        return None
    return tuple((s.dtype, s.shape) for s in found) if rank <= MAX_RANK else None
