"""Multiply by 2:4 sparse matrices on GPUs: store two of every four numbers along K.

step(FusedGemm(x, [K, N]))    ->    step(FusedGemm(x, values, positions))

The kernels are those of sm_90a, which were timed; a matmul whose dense kernels are predicted to
be as fast stays dense.  Zeros that are not stored are not multiplied by an infinity or NaN of x.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracea_graph.ir import DType, Weight, evaluate, product
from tracea_graph.kernels.gpu.structured_choice import two_of_four_cycles
from tracea_graph.kernels.gpu.tile_choice import LEAST_MANY, warpgroup_cycles
from tracea_graph.kernels.gpu.two_of_four_storage import STEPS, TWO_OF_FOUR
from tracea_graph.ops.chain import FAST_MATH
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import NK, Floats, PlainMatrix
from tracea_graph.passes.matmul.constant_matrices import matrix_of, must_stay_plain
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.reason_codes import Code, Reason, not_constant_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import Region, TileGraph

__all__ = ["TIMED_LEVEL", "TWO_OF_FOUR_GEMM", "TWO_OF_FOUR_TIME", "TwoOfFourGemm"]

TWO_OF_FOUR_GEMM = "two-of-four-gemm"
TIMED_LEVEL = "sm_90a"
"""The architecture on which these kernels were timed, and are chosen."""
TWO_OF_FOUR_TIME = 0.75
"""Likely share of its dense time that a large matmul takes."""
_SINCE = 10
"""First opset with Mod, with which function bodies read positions."""
_LEAST_SIDE = 768
"""Least side of a matrix: that of the smallest one that was timed."""
_MOST = 0.95
"""Largest share of a dense matmul's predicted time that counts as a gain."""


@dataclass(frozen=True)
class _Packed:
    """Both arrays of a matrix, computed when one is first read."""

    params: GemmParams
    weight: Weight

    @cached_property
    def arrays(self) -> tuple[Floats, npt.NDArray[np.uint8]]:
        return TWO_OF_FOUR.packed(matrix_of(self.params, self.weight))


@dataclass(frozen=True)
class TwoOfFourGemm:
    """Store two of every four numbers of a matmul's matrix, if that is predicted to be faster.

    ``levels`` are the architectures of the library, ``sizes`` likely values of symbols.  Only
    steps in 16 bits are changed, so the rule follows the one that decides types.
    """

    scan: WeightScan
    levels: Sequence[str]
    sizes: Mapping[str, int] = field(default_factory=dict, compare=False)
    name: str = TWO_OF_FOUR_GEMM

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        steps = region.params.steps if isinstance(region.params, RegionParams) else ()
        if len(steps) != 1 or not isinstance(steps[0].params, GemmParams):
            return
        step, p, weight = steps[0], steps[0].params, graph.weight(region.operands[1])
        if weight is None:
            yield Miss(self.name, region.id, not_constant_reason(region.operands[1]))
        elif why := self._unfit(graph, region, p, weight):
            yield Miss(self.name, region.id, why)
        else:
            params, operands, made = _halved(p, region.operands, weight)
            one = RegionParams.of(params, len(operands), step.results, step.narrow)
            new = fused_region(self.name, one, operands, region.results, [region])
            yield Proposal(self.name, (region,), (new,), weights=made, step=True)

    def _unfit(
        self, graph: TileGraph, region: Region, p: GemmParams, weight: Weight
    ) -> str | None:
        """Return why a matmul stays as it is; the matrix is read last."""
        assert isinstance(region.params, RegionParams)
        step = region.params.steps[0]
        if p.integers or not isinstance(p.layout, PlainMatrix):
            return Reason(f"{weight.name!r} is already stored in another form", Code.OTHER_FORM)
        if step.narrow not in ("f16", "bf16") or step.factor:
            return unsuited_reason("it is not computed in 16 bits")
        if must_stay_plain(graph, weight.name):
            return Reason(f"other readers need {weight.name!r} unchanged", Code.OTHER_READERS)
        if not _groups_fit(self.scan.structure(weight).pattern, p.layout == NK):
            return Reason(f"{weight.name!r} is not 2:4 sparse along K", Code.DENSE_WEIGHTS)
        return self._slower(graph, region, p, weight.name)

    def _slower(self, graph: TileGraph, region: Region, p: GemmParams, name: str) -> str | None:
        """Return why a 2:4 sparse matrix stays dense."""
        if tuple(self.levels) != (TIMED_LEVEL,):
            return f"{name!r} is 2:4 sparse; the kernels for it were timed on {TIMED_LEVEL} alone"
        if graph.opset < _SINCE:
            return f"opset {graph.opset} has no Mod, which opset {_SINCE} added"
        if p.k % STEPS or min(p.k, p.n) < _LEAST_SIDE:
            depth = f"its K={p.k} is no multiple of {STEPS}"
            return f"{name!r} has a side below {_LEAST_SIDE}, or {depth}"
        rows = self._rows(graph, region)
        if rows < LEAST_MANY:
            which = f"{rows} rows" if rows else "rows of an unknown number"
            least = f"which saves time from {LEAST_MANY} rows on"
            return f"{name!r} is 2:4 sparse, {least}, not for {which}"
        size = rows, p.n, p.k, _steps(p), _reads(p)
        dense, sparse = warpgroup_cycles(*size), two_of_four_cycles(*size)
        if sparse > _MOST * dense:
            share = f"{sparse / dense:.2f} of the dense one's time"
            return f"the product with the 2:4 sparse {name!r} is predicted to take {share}"
        return None

    def _rows(self, graph: TileGraph, region: Region) -> int:
        """Return the likely number of rows of x; 0 if it is unknown."""
        try:
            return evaluate(
                product(tuple((graph.spec(region.operands[0]).shape or ())[:-1])), self.sizes
            )
        except KeyError:
            return 0


def _groups_fit(pattern: tuple[int, int, int] | None, transposed: bool) -> bool:
    """Return whether a pattern of a stored matrix has at most two of four numbers along K."""
    return (
        pattern is not None
        and pattern[:2] in ((1, 4), (2, 4), (2, 8))
        and (pattern[2] == int(transposed))
    )


def _steps(p: GemmParams) -> int:
    """Return the cost of an epilogue in cheap steps."""
    return sum(5 if s.op in FAST_MATH else 1 for s in p.epilogue.steps) if p.epilogue else 0


def _reads(p: GemmParams) -> int:
    """Return the number of matrices that an epilogue reads."""
    return p.epilogue.operands[1:].count("full") if p.epilogue else 0


def _halved(
    p: GemmParams, operands: Sequence[str], weight: Weight
) -> tuple[GemmParams, tuple[str, ...], dict[str, Weight]]:
    """Return a matmul's parameters, operands and weights with the 2:4 sparse matrix."""
    packed, (first, second) = _Packed(p, weight), TWO_OF_FOUR.shapes(p.k, p.n)
    values = Weight(f"{weight.name}_kept", DType.F32, first, lambda: packed.arrays[0])
    at = Weight(f"{weight.name}_positions", DType.U8, second, lambda: packed.arrays[1])
    params = dataclasses.replace(p, layout=TWO_OF_FOUR)
    new = (operands[0], values.name, *operands[2:], at.name)
    return params, new, {w.name: w for w in (values, at)}
