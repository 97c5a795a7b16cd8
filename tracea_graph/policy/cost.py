"""The cost model: a roofline over arithmetic and traffic, with ONNX Runtime's known weak spots.

    one pass        t = node + max(arithmetic, traffic)   products, attention, fused chains
    several passes  t = node + arithmetic + traffic       everything else

It ranks proposals and decides what is not worth measuring; what stays is decided by timing.
A tensor moves at the speed of the memory level it fits in; a written byte counts twice, as its
cache line is read first.  Constants come from memory: models are larger than caches.
Source: Williams, Waterman, Patterson, "Roofline" (CACM 2009).  What is computed stands in
each op's ``cost`` and in ``ort_cost``, the numbers that are fitted in ``tables``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from tracea_graph.ir import Extent, TensorSpec, assumed
from tracea_graph.ops.concat import ConcatParams, seen_layouts
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams, reshapes
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.op_cost import OpCost
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.region import RegionParams
from tracea_graph.ops.resize import ResizeParams
from tracea_graph.ops.row_tiling import row_tilings_in
from tracea_graph.ops.subgraph import Subgraph
from tracea_graph.policy.coefficients import Tables, fitted
from tracea_graph.policy.machine import Machine
from tracea_graph.policy.ort_cost import SHAPE_ONLY, ort_cost
from tracea_graph.ttg import Region, TileGraph

__all__ = ["CostModel"]

_PARTS = frozenset(("Slice", "Split"))
"""Operators that read as much as they write."""
_RANDOM = 0.25
"""Share of the memory's bandwidth that rows fetched here and there get."""
_COPY = 3.0
"""What a copy moves, in its size: a written byte counts twice."""
_ABSENT = TensorSpec(None, ())


@dataclass(frozen=True)
class CostModel:
    """Predicted µs of a region on one core, under given symbol values."""

    machine: Machine
    bindings: Mapping[str, int]
    tables: Tables = field(default_factory=fitted)
    _sizes: dict[Extent, float] = field(default_factory=dict, init=False, compare=False)
    _known: dict[Hashable, float] = field(default_factory=dict, init=False, compare=False)
    """What was predicted, by all that it follows from."""

    @cached_property
    def _tables(self) -> Tables:
        """What holds on this machine."""
        return self.tables.on_tiles() if self.machine.tiles else self.tables

    def __call__(self, graph: TileGraph, region: Region) -> float:
        """µs for one run of the region."""
        if (key := _alike(graph, region)) is None:
            return self._predicted(graph, region)
        if key not in self._known:
            self._known[key] = self._predicted(graph, region)
        return self._known[key]

    def _predicted(self, graph: TileGraph, region: Region) -> float:
        if isinstance(region.params, RegionParams):
            return self._region(graph, region)
        return self._step(graph, region) + self._reorders(graph, region)

    def _step(self, graph: TileGraph, region: Region) -> float:
        """µs of a region whose values lie as its kernel likes them."""
        cost, traffic = self._op_cost(graph, region), self._traffic_us(graph, region)
        arithmetic = self._arithmetic_us(cost)
        busy = max(arithmetic, traffic) if cost.one_pass else arithmetic + traffic
        return self.machine.node_us + busy

    def bound(self, graph: TileGraph, region: Region) -> str:
        """What most of the predicted time is: ``compute``, ``memory`` or ``overhead``."""
        parts = {
            "compute": self._arithmetic_us(self._op_cost(graph, region)),
            "memory": self._traffic_us(graph, region),
            "overhead": self.machine.node_us,
        }
        return max(parts, key=lambda name: parts[name])

    # ---- regions -----------------------------------------------------------------------

    def _region(self, graph: TileGraph, region: Region) -> float:
        """Its steps as one node, and the reorders at its edges."""
        subgraph = Subgraph(graph, region)
        total = sum(
            self._step(subgraph, r) - self.machine.node_us
            for r in subgraph.steps
            if not reshapes(r.params)
        )
        edges = dict.fromkeys(v for r in subgraph.steps for v in reordered(r))
        moved = [v for v in edges if v in region.operands or subgraph.is_output(v)]
        copies = sum(self._warm_us(subgraph.spec(v)) * _COPY for v in moved)
        return self.machine.node_us + total + copies - self._saved_us(subgraph, region)

    def _saved_us(self, subgraph: Subgraph, region: Region) -> float:
        """Time saved by row tiles, whose values stay in cache."""
        found = row_tilings_in(subgraph, region.params, self.bindings, self.machine.near)
        return sum(band.gain for band in found) / self.machine.l3_gbytes * 1e-3

    def _reorders(self, graph: TileGraph, region: Region) -> float:
        """Bringing values into blocks and back, where a convolution or pool stands alone."""
        return sum(self._warm_us(graph.spec(v)) * _COPY for v in reordered(region))

    # ---- traffic -----------------------------------------------------------------------

    def _traffic_us(self, graph: TileGraph, region: Region) -> float:
        if region.op in SHAPE_ONLY:
            return 0.0
        tables = self._gathered(region)
        written = sum(self._warm_us(graph.spec(v)) for v in dict.fromkeys(region.writes))
        if isinstance(region.params, ElementwiseParams | ConcatParams):
            return self._seen_us(graph, region) + 2.0 * written
        if region.op in _PARTS:
            return written + 2.0 * written
        spare = _spare(region)
        whole = [v for v in dict.fromkeys(region.reads) if v not in tables and v not in spare]
        constant = [v for v in whole if graph.weight(v) is not None]
        most = self._bytes(graph.spec(region.results[0]))
        rows = sum(min(most, self._bytes(graph.spec(v))) for v in tables)
        cold = sum(self._bytes(graph.spec(v)) for v in constant) + rows / _RANDOM
        read = sum(self._warm_us(graph.spec(v)) for v in whole if graph.weight(v) is None)
        return read + 2.0 * written + cold / self.machine.dram_gbytes * 1e-3

    def _seen_us(self, graph: TileGraph, region: Region) -> float:
        """Reading operands through maps: of each at most all of it, wherever it is read from."""
        bytes_of = dict.fromkeys(region.operands, 0.0)
        specs = [graph.spec(v) for v in region.operands]
        for i, at in seen_layouts(region.params, specs):
            bytes_of[region.operands[i]] += self._bytes(TensorSpec(specs[i].dtype, at.dims))
        total = 0.0
        for value, size in bytes_of.items():
            whole = self._bytes(graph.spec(value))
            speed = self.machine.gbytes(whole)
            if graph.weight(value) is not None:
                speed = self.machine.dram_gbytes
            total += min(size, whole) / speed * 1e-3
        return total

    def _warm_us(self, spec: TensorSpec) -> float:
        """Reading what another operator has just written."""
        size = self._bytes(spec)
        return size / self.machine.gbytes(size) * 1e-3

    def _gathered(self, region: Region) -> tuple[str, ...]:
        """Tables of which only as many elements are read as the result has, row by row."""
        if isinstance(region.params, EmbeddingParams):
            return region.operands[: 2 * region.params.tables : 2]
        return region.operands[:1] if region.op == "Gather" else ()

    # ---- arithmetic --------------------------------------------------------------------

    def _arithmetic_us(self, cost: OpCost) -> float:
        products, vectors = cost.product / self.machine.gflops, cost.vector
        return cost.us + (products + vectors / self.machine.vector_gops) * 1e-3

    def _op_cost(self, graph: TileGraph, region: Region) -> OpCost:
        specs = [graph.spec(v) if v else _ABSENT for v in region.operands]
        result = self._dims(graph.spec(region.results[0]))
        params, operands = region.params, [self._dims(spec) for spec in specs]
        if params is None:
            return ort_cost(self._tables, region.op, region.node.attrs, operands, result)
        if isinstance(params, RegionParams):
            return self._steps(params, specs)
        cost: OpCost = params.cost(self._tables, operands, result)
        if isinstance(params, ElementwiseParams | ConcatParams):
            cost = replace(cost, vector=cost.vector + self._staged(params, specs))
        return cost

    def _staged(
        self, params: ElementwiseParams | ConcatParams, specs: Sequence[TensorSpec]
    ) -> float:
        """Vector instructions to bring together what does not lie along the columns."""
        each = self._tables.instructions["fused staging"]
        return sum(
            each * self._count(TensorSpec(None, at.dims))
            for _, at in seen_layouts(params, specs)
            if at.dims and at.dims[-1] != 1 and at.strides[-1] not in (0, 1)
        )

    def _steps(self, params: RegionParams, specs: Sequence[TensorSpec]) -> OpCost:
        """All steps of a region of several."""
        values, total, at = params.infer_all(specs), OpCost(), params.inputs
        for step in params.steps:
            inner = [values[i] for i in step.operands]
            if isinstance(step.params, RegionParams):
                total += self._steps(step.params, inner)
            else:
                result = self._dims(values[at])
                operands = [self._dims(s) for s in inner]
                total += step.params.cost(self.tables, operands, result)
            at += step.results
        return total

    # ---- sizes -------------------------------------------------------------------------

    def _dims(self, spec: TensorSpec) -> tuple[float, ...]:
        return tuple(self._value(d) for d in spec.shape or ())

    def _count(self, spec: TensorSpec) -> float:
        return float(prod(self._dims(spec)))

    def _bytes(self, spec: TensorSpec) -> float:
        return self._count(spec) * (spec.dtype.size if spec.dtype else 4.0)

    def _value(self, extent: Extent) -> float:
        if isinstance(extent, int):
            return float(max(0, extent))
        if extent not in self._sizes:
            self._sizes[extent] = float(assumed(extent, self.bindings))
        return self._sizes[extent]


def _alike(graph: TileGraph, region: Region) -> Hashable:
    """What regions have in common that take the same time: what they compute, and of what; which
    operands are one value, and which constant.  None where that is more than can be told."""
    what: Hashable = region.params
    if what is None:
        attrs = region.node.attrs.values()
        if region.captures or not all(isinstance(a, _PLAIN) for a in attrs):
            return None
        what = tuple(region.node.attrs.items())
    first = {v: i for i, v in reversed([*enumerate(region.operands)])}
    operands = tuple(
        (first[v], graph.spec(v), graph.weight(v) is not None) for v in region.operands
    )
    return region.op, what, operands, tuple(map(graph.spec, region.results))


_PLAIN = (int, float, str, bytes, tuple)
"""Attributes that are equal where they mean the same."""


def _spare(region: Region) -> tuple[str, ...]:
    """What is read in place of another operand, never beside it."""
    params = region.params
    spare = params.layout.spare if isinstance(params, ConvParams) else 0
    return region.operands[len(region.operands) - spare :]


def reordered(region: Region) -> tuple[str, ...]:
    """Values a step wants with their axes in an order of its own, or writes so."""
    params = region.params
    if isinstance(params, ConvParams):
        reads = region.operands[:1] if params.layout.reads_reordered else ()
        return (*reads, *(region.results if params.layout.writes_reordered else ()))
    if isinstance(params, PoolParams):
        return (region.operands[0], *(region.results if params.window else ()))
    if isinstance(params, ResizeParams):
        return (region.operands[0], *region.results)
    return ()
