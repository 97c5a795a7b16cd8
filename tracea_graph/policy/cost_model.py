"""The cost model: a roofline over arithmetic and traffic, plus costs specific to ONNX Runtime.

    one pass        t = node + max(arithmetic, traffic)   products, attention, fused chains
    several passes  t = node + arithmetic + traffic       everything else

It ranks proposals and prunes those not worth timing; timing decides about the rest.  A tensor
moves at the bandwidth of the memory level it fits; a written byte counts twice, because its cache
line is read first.  Constants come from memory: models are larger than caches. Source: Williams,
Waterman, Patterson, "Roofline" (CACM 2009).  Arithmetic is given by each op's ``cost`` and by
``ort_cost``, fitted numbers by ``coefficients``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from tracea_graph.ir import Extent, TensorSpec, assumed_size
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.concat import ConcatParams, operand_layouts
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams, is_pure_reshape
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.op_cost import OpCost
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.program_row_tiling import row_tilings_in
from tracea_graph.ops.region_subgraph import Subgraph
from tracea_graph.ops.resize import ResizeParams
from tracea_graph.policy.cost_coefficients import Coefficients, packaged_coefficients
from tracea_graph.policy.machine_model import Machine
from tracea_graph.policy.ort_cost import SHAPE_ONLY, ort_cost
from tracea_graph.ttg import Region, TileGraph

__all__ = ["CostModel", "decision_time_share"]

_PARTS = frozenset(("Slice", "Split"))
"""Operators that read as much as they write."""
_RANDOM = 0.25
"""Fraction of memory bandwidth that gathered rows reach."""
_COPY = 3.0
"""Traffic of a copy as a multiple of its size: a written byte counts twice."""
_ABSENT = TensorSpec(None, ())


@dataclass(frozen=True)
class CostModel:
    """Predicts the time of a region in µs on one core, under given symbol values."""

    machine: Machine
    bindings: Mapping[str, int]
    coefficients: Coefficients = field(default_factory=packaged_coefficients)
    _sizes: dict[Extent, float] = field(default_factory=dict, init=False, compare=False)
    _known: dict[Hashable, float] = field(default_factory=dict, init=False, compare=False)
    """Cache of predictions, by everything they depend on."""

    @cached_property
    def _coefficients(self) -> Coefficients:
        """Coefficients for this machine."""
        return self.coefficients.on(self.machine)

    def __call__(self, graph: TileGraph, region: Region) -> float:
        """Return the predicted µs of one run of the region."""
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
        """Predicted µs of a region whose values are in its kernel's preferred layout."""
        cost, traffic = self._op_cost(graph, region), self._traffic_us(graph, region)
        arithmetic = self._arithmetic_us(cost)
        busy = max(arithmetic, traffic) if cost.one_pass else arithmetic + traffic
        return self.machine.node_us + busy

    def within(self, graph: TileGraph, region: Region) -> float:
        """Return the predicted µs of a region as one step of a program."""
        return self._step(graph, region) - self.machine.node_us + self.machine.step_us

    def bound(self, graph: TileGraph, region: Region) -> str:
        """Return what dominates the predicted time: ``compute``, ``memory`` or ``overhead``."""
        parts = {
            "compute": self._arithmetic_us(self._op_cost(graph, region)),
            "memory": self._traffic_us(graph, region),
            "overhead": self.machine.node_us,
        }
        return max(parts, key=lambda name: parts[name])

    # ---- regions -----------------------------------------------------------------------

    def _region(self, graph: TileGraph, region: Region) -> float:
        """Predicted µs of a program: its steps as one node, and reorders at its borders."""
        subgraph = Subgraph(graph, region)
        total = sum(
            self.within(subgraph, r) for r in subgraph.steps if not is_pure_reshape(r.params)
        )
        edges = dict.fromkeys(v for r in subgraph.steps for v in reordered_values(r))
        moved = [v for v in edges if v in region.operands or subgraph.is_output(v)]
        copies = sum(self._warm_us(subgraph.spec(v)) * _COPY for v in moved)
        return self.machine.node_us + total + copies - self._saved_us(subgraph, region)

    def _saved_us(self, subgraph: Subgraph, region: Region) -> float:
        """Time saved by row tiling, which keeps values in cache."""
        found = row_tilings_in(subgraph, region.params, self.bindings, self.machine.near)
        return sum(band.gain for band in found) / self.machine.l3_gbytes * 1e-3

    def _reorders(self, graph: TileGraph, region: Region) -> float:
        """Time of the reorders before and after a single convolution or pool."""
        return sum(self._warm_us(graph.spec(v)) * _COPY for v in reordered_values(region))

    # ---- traffic -----------------------------------------------------------------------

    def _traffic_us(self, graph: TileGraph, region: Region) -> float:
        if region.op in SHAPE_ONLY:
            return 0.0
        tables = self._gathered(region)
        written = sum(self._warm_us(graph.spec(v)) for v in dict.fromkeys(region.writes))
        if isinstance(region.params, ElementwiseParams | ConcatParams):
            return self._mapped_us(graph, region) + 2.0 * written
        if region.op in _PARTS:
            return written + 2.0 * written
        fallbacks = _fallbacks(region)
        whole = [v for v in dict.fromkeys(region.reads) if v not in tables and v not in fallbacks]
        constant = [v for v in whole if graph.weight(v) is not None]
        most = self._bytes(graph.spec(region.results[0]))
        rows = sum(min(most, self._bytes(graph.spec(v))) for v in tables)
        cold = sum(self._bytes(graph.spec(v)) for v in constant) + rows / _RANDOM
        read = sum(self._warm_us(graph.spec(v)) for v in whole if graph.weight(v) is None)
        return read + 2.0 * written + cold / self.machine.dram_gbytes * 1e-3

    def _mapped_us(self, graph: TileGraph, region: Region) -> float:
        """Time to read operands through maps; of each, at most its size is read."""
        bytes_of = dict.fromkeys(region.operands, 0.0)
        specs = [graph.spec(v) for v in region.operands]
        for i, at in operand_layouts(region.params, specs):
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
        """Time to read what another operator has just written."""
        size = self._bytes(spec)
        return size / self.machine.gbytes(size) * 1e-3

    def _gathered(self, region: Region) -> tuple[str, ...]:
        """Embedding tables of which only the gathered rows are read."""
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
            return ort_cost(self._coefficients, region.op, region.node.attrs, operands, result)
        if isinstance(params, RegionParams):
            return self._steps(params, specs)
        cost: OpCost = params.cost(self._coefficients, operands, result)
        if isinstance(params, ElementwiseParams | ConcatParams):
            cost = replace(cost, vector=cost.vector + self._staged(params, specs))
        return cost

    def _staged(
        self, params: ElementwiseParams | ConcatParams, specs: Sequence[TensorSpec]
    ) -> float:
        """Vector instructions to gather operands that are not contiguous along the columns."""
        each = self._coefficients.instructions["fused staging"]
        return sum(
            each * self._count(TensorSpec(None, at.dims))
            for _, at in operand_layouts(params, specs)
            if at.dims and at.dims[-1] != 1 and at.strides[-1] not in (0, 1)
        )

    def _steps(self, params: RegionParams, specs: Sequence[TensorSpec]) -> OpCost:
        """Cost of all steps of a program."""
        values, total, at = params.infer_all(specs), OpCost(), params.inputs
        for step in params.steps:
            inner = [values[i] for i in step.operands]
            if isinstance(step.params, RegionParams):
                total += self._steps(step.params, inner)
            else:
                result = self._dims(values[at])
                operands = [self._dims(s) for s in inner]
                total += step.params.cost(self._coefficients, operands, result)
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
            self._sizes[extent] = float(assumed_size(extent, self.bindings))
        return self._sizes[extent]


def _alike(graph: TileGraph, region: Region) -> Hashable:
    """Key that is equal for regions of equal time: computations, operand specs and aliasing.

    It also says which operands are constant.  None if the key cannot be determined.
    """
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
"""Types of attributes that compare by value."""


def _fallbacks(region: Region) -> tuple[str, ...]:
    """Operands that are fallback weights, read instead of others."""
    params = region.params
    fallbacks = params.layout.fallbacks if isinstance(params, ConvParams) else 0
    return region.operands[len(region.operands) - fallbacks :]


def reordered_values(region: Region) -> tuple[str, ...]:
    """Return the operands and results of a step that have a kernel's own order of axes."""
    params = region.params
    if isinstance(params, ConvParams):
        reads = region.operands[:1] if params.layout.reads_reordered else ()
        return (*reads, *(region.results if params.layout.writes_reordered else ()))
    if isinstance(params, PoolParams):
        return (region.operands[0], *(region.results if params.window else ()))
    if isinstance(params, ResizeParams):
        return (region.operands[0], *region.results)
    return ()


_TIMING_S, _COMPILE_S = 2.0, 1.0
"""Seconds to time a group on the whole model, and to compile a unit that is not cached."""


def decision_time_share(region: Region, budget: float) -> float:
    """Return the fraction of ``budget`` (seconds) that deciding about a region like this takes.

    An operator that stays with ONNX Runtime costs nothing.  Micro-kernels are assumed to be in the
    build cache, where the first model leaves them; elementwise code is compiled for each model.
    """
    if region.params is None:
        return 0.0
    parts = (getattr(region.params, name, None) for name in ("chain", "epilogue", "prologue"))
    units = sum(isinstance(part, Chain) for part in parts)
    return (_TIMING_S + units * _COMPILE_S) / budget
