"""Phases that prepare a graph for GPUs before lowering: views, programs, precision.

fp16 and bf16 apply to matmul operands and to the values between the steps of a program; sums,
statistics, and inputs and outputs of the program stay float32.  The precision of each op is
decided separately: an op whose values leave the range, or whose error is too large, stays float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.byte_embedding import BYTE_EMBEDDING
from tracea_graph.kernels.gpu.families.attention import LISTED_SIDE
from tracea_graph.kernels.gpu.float8_rounding import FLOAT8_FACTORS, Float8Factors
from tracea_graph.kernels.gpu.transposed_epilogues import TransposedEpilogue
from tracea_graph.kernels.gpu.two_of_four_rules import TWO_OF_FOUR_GEMM, TwoOfFourGemm
from tracea_graph.kernels.gpu.zero_block_rules import ColumnBlockGemm, TiledColumnBlockGemm
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.passes import LAYOUT, PARTITION, UNMEASURED, PlanRequest, cluster_programs
from tracea_graph.passes.attention.impose_window import ImposeWindow
from tracea_graph.passes.attention.mask_tiles import MaskTiles
from tracea_graph.passes.layout import elements_of_lines, indexed_slices
from tracea_graph.passes.layout.integer_steps import INTEGER_STEP
from tracea_graph.passes.layout.iota import Iota
from tracea_graph.passes.layout.item_rows import WIDE_ARG, ItemRows
from tracea_graph.passes.layout.mask_positions import MaskPositions
from tracea_graph.passes.layout.softmax_over_axes import SOFTMAX_OVER_AXES
from tracea_graph.passes.layout.true_comparisons import TrueComparisons
from tracea_graph.passes.region_helpers import fused_region
from tracea_graph.passes.sparse.low_rank import LowRankGemm
from tracea_graph.passes.sparse.low_rank_exact import LowRankExact
from tracea_graph.reason_codes import Reason, out_of_range_reason, unsuited_reason
from tracea_graph.rewrite import Miss, Pass, Phase, Proposal, RulePass
from tracea_graph.ttg import Region, TileGraph

__all__ = ["MASK_TILES", "MIXED_PRECISION", "TYPES", "phases", "structure_rules"]

MASK_TILES = MaskTiles(LISTED_SIDE, LISTED_SIDE, dropped=-1e4, by_row=True)
"""Tiles that attention kernels visit.  Scores of 16-bit numbers do not differ by ten thousand, but
perhaps by a thousand.
"""
_MAX_STEPS, _MAX_OPERANDS = 2000, 1000
"""Limits of one program: those of a plan, with a margin for scratch buffers."""
TYPES = MappingProxyType({"fp16": "f16", "bf16": "bf16", "tf32": "tf32", "fp8": "f16"})
"""Compute type of each reduced precision; under fp8, of everything but factors of matmuls."""
MIXED_PRECISION = "mixed-precision"
_ERRORS = MappingProxyType({"f16": 2.0**-11 / 12, "bf16": 2.0**-8 / 12, "tf32": 2.0**-11 / 12})
"""Estimated error that one matmul adds to the outputs, as a fraction of max|y|."""
_PRODUCTS = (GemmParams, MatMulParams, ConvParams, AttentionParams)
_MULTIPLY = _PRODUCTS[:3]
_FACTORS = MappingProxyType({GemmParams: 2, MatMulParams: 2, ConvParams: 2, AttentionParams: 3})
"""Number of leading operands that are rounded before they are multiplied."""
_RANGES = MappingProxyType(
    {"f16": (2.0**-14, 65504.0), "bf16": (0.0, 3.3e38), "tf32": (0.0, 3.3e38)}
)
"""Bounds of a tensor's largest magnitude between which a type keeps its precision."""
_MASK = 1e30
"""Magnitude above which values are mask values, added to scores to exclude keys."""


@dataclass(frozen=True)
class MixedPrecision:
    """Round results of an op, and factors of a matmul, to ``dtype`` unless values leave its range.

    ``ranges`` holds the largest measured magnitude of each value.  With a 16-bit type, ops between
    matmuls are rounded as well, so that each value is stored only once, in one type.
    """

    dtype: str
    ranges: Mapping[str, float] = field(default_factory=lambda: UNMEASURED, compare=False)
    name: str = MIXED_PRECISION

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        if not region.fused or isinstance(region.params, RegionParams):
            return
        if self.dtype == "tf32" and not isinstance(region.params, _MULTIPLY):
            return  # other ops compute in float32, where products of tf32 numbers are summed
        concerned = (*self._factors(region), *region.writes)
        if not any(graph.spec(v).dtype is DType.F32 for v in concerned):
            yield Miss(self.name, region.id, unsuited_reason("it has no float32 values"))
            return
        if not any(_multiplies(r.params) for r in graph.regions()):
            yield Miss(
                self.name, region.id, unsuited_reason("no matmul reads or computes its values")
            )
            return
        if why := self._outside(graph, region):
            yield Miss(self.name, region.id, why)
            return
        lower = RegionParams.of(
            region.params, len(region.operands), len(region.results), self.dtype
        )
        new = fused_region(self.name, lower, region.operands, region.results, [region])
        error = _ERRORS[self.dtype] if isinstance(region.params, _PRODUCTS) else 0.0
        yield Proposal(self.name, (region,), (new,), error=error, step=True)

    @staticmethod
    def _factors(region: Region) -> tuple[str, ...]:
        """Return the operands of a matmul that are rounded before they are multiplied."""
        return tuple(region.operands[: _FACTORS.get(type(region.params), 0)])

    def _outside(self, graph: TileGraph, region: Region) -> Reason | None:
        """Return the reason if a value leaves the range of the type; None if none is known to."""
        least, most = _RANGES[self.dtype]
        for value in dict.fromkeys((*self._factors(region), *region.writes)):
            largest = self.ranges.get(value, 0.0)
            if largest > _MASK:
                return unsuited_reason(f"{value!r} holds mask values outside the range of fp16")
            if why := out_of_range_reason(value, largest, self.dtype, least, most):
                return why
        return None


def _multiplies(params: object) -> bool:
    """Whether an op, or the step that it became, is a matmul."""
    own = [s.params for s in params.steps] if isinstance(params, RegionParams) else [params]
    return any(isinstance(p, _PRODUCTS) for p in own)


def structure_rules(request: PlanRequest) -> tuple[Pass, ...]:
    """Return the rules for matmuls with structured matrices, and for windowed attention."""
    exact = (
        TiledColumnBlockGemm(),  # other rules leave matmuls alone whose tiles were set by hand
        LowRankExact(request.scan),
        ColumnBlockGemm(request.scan),
    )
    return (
        *((LowRankGemm(request.compressed),) if request.compressed else ()),
        *(exact if request.prepack else ()),
        ImposeWindow(tuple(request.windows)) if request.windows else MASK_TILES,
    )


def phases(request: PlanRequest, sizes: Mapping[str, int]) -> tuple[Phase, ...]:
    """Return the phases that follow those of :func:`tracea_graph.passes.phases`.

    ``sizes`` are likely values of symbols.
    """
    dtype = TYPES.get(request.precision)
    float8 = Float8Factors("f16", request.ranges, sizes) if request.precision == "fp8" else None
    mixed = Phase("precision", (MixedPrecision(dtype, request.ranges),)) if dtype else None
    halved = TwoOfFourGemm(request.scan, request.levels, sizes)
    tables = Phase("byte-tables", (RulePass(BYTE_EMBEDDING), Iota()))
    return (
        tables,
        Phase(
            "views-of-operands",
            (
                MaskPositions(),
                TrueComparisons(),
                ItemRows(),
                *map(RulePass, (WIDE_ARG, SOFTMAX_OVER_AXES)),
            ),
        ),
        *LAYOUT,
        Phase(
            "indexed-slices",
            tuple(map(RulePass, (*indexed_slices.RULES, *elements_of_lines.RULES, INTEGER_STEP))),
        ),
        Phase(TransposedEpilogue.name, (TransposedEpilogue(),)),
        *((Phase(FLOAT8_FACTORS, (float8,)),) if float8 else ()),
        *((mixed,) if mixed else ()),
        *((Phase(TWO_OF_FOUR_GEMM, (halved,)),) if request.prepack else ()),
        Phase(PARTITION, (cluster_programs.ClusterAll(_MAX_STEPS, _MAX_OPERANDS),)),
    )
