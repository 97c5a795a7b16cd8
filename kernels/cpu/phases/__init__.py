"""What the CPU does to a graph before it is lowered, in order: precision, layouts, programs."""

from __future__ import annotations

from tracea_graph.kernels.cpu.phases.block_sparse import BlockSparseGemm, PruneBlocks, TiledGemm
from tracea_graph.kernels.cpu.phases.conv_bf16 import ConvBf16, DepthwiseBf16
from tracea_graph.kernels.cpu.phases.conv_bf16x2 import ConvBf16x2
from tracea_graph.kernels.cpu.phases.conv_int16 import ConvInt16
from tracea_graph.kernels.cpu.phases.conv_winograd import ConvWinograd
from tracea_graph.kernels.cpu.phases.fp16_products import ConvFp16, GemmFp16
from tracea_graph.kernels.cpu.phases.gemm_int4 import GemmInt4
from tracea_graph.kernels.cpu.phases.gemm_int8 import GemmInt8
from tracea_graph.kernels.cpu.phases.lower_precision import (
    AttentionBf16,
    GemmBf16,
    GemmBf16x2,
    GemmInt16,
)
from tracea_graph.kernels.cpu.phases.pack_filters import PackFilters
from tracea_graph.kernels.cpu.phases.pack_gates import PackGates
from tracea_graph.kernels.cpu.phases.pack_integers import PACK_INTEGERS
from tracea_graph.kernels.cpu.phases.pack_matrices import PackMatrices
from tracea_graph.kernels.cpu.phases.pack_nbits import PACK_NBITS, PACK_NBITS_TABLE
from tracea_graph.kernels.cpu.phases.unstructured_sparse import FEW_ROWS, UnstructuredSparseGemm
from tracea_graph.ops.weight_layouts import BLOCKS
from tracea_graph.passes import LAYOUT, PARTITION, PlanRequest, cluster_programs
from tracea_graph.passes.attention.impose_window import ImposeWindow
from tracea_graph.passes.attention.mask_tiles import MaskTiles
from tracea_graph.passes.pointwise.gemm_epilogue import GemmEpilogue
from tracea_graph.passes.pointwise.vertical_fusion import VerticalFusion
from tracea_graph.passes.sparse.low_rank import LowRankGemm
from tracea_graph.passes.sparse.low_rank_exact import LowRankExact
from tracea_graph.rewrite import Pass, Phase, RulePass

__all__ = ["MASK_TILES", "phases", "structure_rules"]

MASK_TILES = MaskTiles(rows=24, keys=16, dropped=-1e3)
"""Tiles of the kernel: the queries that it takes at once (``TRACEA_QUERIES``), and the keys of a
panel.  If every key of a query is masked, or scores are too large for the mask, it visits the
skipped tiles as well, so that the result is exact for any mask.
"""


def phases(request: PlanRequest, tiles: bool = False, bf16: bool = True) -> tuple[Phase, ...]:
    """The CPU phases that follow :func:`tracea_graph.passes.phases`, row tiling excluded.

    ``tiles``: the processor has matrix tiles for bf16 (AMX); ``bf16``: it multiplies bf16.
    """
    precision, fp16 = request.precision, request.precision == "fp16"
    at_load = request.pack_at_load
    pack = Phase("layouts", (PackMatrices(_twice(request), at_load),))
    return (
        Phase("gates", (PackGates(),), always=True),
        *(_integers(request) if request.prepack else ()),
        Phase(
            "integers",
            (RulePass(PACK_INTEGERS), RulePass(PACK_NBITS), RulePass(PACK_NBITS_TABLE)),
            always=True,
        ),
        *((Phase("filters", (PackFilters(at_load),)),) if request.prepack else ()),
        *_lower_convolutions(precision, tiles, bf16),
        Phase("transform", (ConvWinograd(),)),
        # after Winograd's transform, which saves more where it applies
        *((Phase("conv-precision", (ConvFp16(request.ranges),)),) if fp16 else ()),
        # forms the programs of convolutions; values between their steps are stored blocked
        Phase(PARTITION, (cluster_programs.ClusterConv(),)),
        *LAYOUT,
        # after all that views a matrix in its plain order
        *((pack,) if request.prepack else ()),
        *_lower(precision, tiles, bf16),
        *((Phase("precision", (GemmFp16(request.ranges),)),) if fp16 else ()),
        Phase(PARTITION, (cluster_programs.Cluster(),)),
    )


def _integers(request: PlanRequest) -> tuple[Phase, ...]:
    """Phases that round the operands of products to bytes, if possible as they are computed, or
    that round matrices to 4 bits."""
    epilogues = Phase("int8-epilogues", (GemmEpilogue(), VerticalFusion()))
    return {
        "int8": (Phase("int8", (GemmInt8(request.calibrated),)), epilogues),
        "int4-weights": (Phase("int4", (GemmInt4(request.calibrated),)),),
    }.get(request.precision, ())


def structure_rules(request: PlanRequest) -> tuple[Pass, ...]:
    """Return the rules that exploit zeros and low rank of matrices, and windows of attention.

    The rules for matrices avoid the dense product.  The last rule lets attention skip positions:
    those outside a requested window, else those that a constant mask excludes.
    """
    chosen, precision, twice = request.compressed, request.precision, _twice(request)
    blocks = BLOCKS[1:] if precision == "bf16" else BLOCKS  # bf16 interleaves pairs of k
    few = FEW_ROWS if precision == "fp32" else 1
    exact = (
        TiledGemm(blocks),  # other rules leave products alone whose tiles were set by hand
        LowRankExact(request.scan),
        BlockSparseGemm(request.scan, blocks, twice),
        UnstructuredSparseGemm(request.scan, few, twice),
    )
    lossy = (LowRankGemm(chosen), PruneBlocks(chosen, blocks))
    near = ImposeWindow(tuple(request.windows)) if request.windows else MASK_TILES
    return (
        *(lossy if chosen else ()),
        *(exact if request.prepack else ()),
        near,
    )


def _twice(request: PlanRequest) -> bool:
    """Whether a matrix may be stored twice: in bf16, the copy takes half the memory."""
    return request.precision == "bf16"


def _lower(precision: str, tiles: bool, bf16: bool) -> tuple[Phase, ...]:
    """Phases that lower the precision of products and attention; regions stay as they are.

    With bf16, products that must not use it fall back to int16, or to bf16x2 where matrix
    ``tiles`` make that faster.  With int8, they fall back to bf16 if there are tiles, else to
    int16, which is then as fast as bf16; a processor without ``bf16`` has no fallback.
    """
    integers, halves = Phase("int16", (GemmInt16(),)), Phase("bf16x2", (GemmBf16x2(),))
    rounds = Phase("precision", (GemmBf16(), AttentionBf16()))
    attention = Phase("precision", (AttentionBf16(),))
    weights = (Phase("precision", (GemmBf16("bf16-weights"),)),)
    between = (rounds, halves) if tiles else (attention, integers)
    return {
        "int8": between if bf16 else (),
        "bf16": (rounds, halves if tiles else integers),
        "bf16-weights": weights,
        "int4-weights": weights,
        "bf16x2": (halves,),
        "int16": (integers,),
    }.get(precision, ())


def _lower_convolutions(precision: str, tiles: bool, bf16: bool) -> tuple[Phase, ...]:
    """Phases that lower the precision of convolutions, before partitioning.

    They run first because a program stores its values in the layouts that its steps read.  With
    bf16, convolutions that must not use it fall back to int16.  Matrix ``tiles`` have no int16
    instruction: there only Winograd convolutions fall back to int16, all others to bf16x2.
    Depthwise filters stay in float32 on such processors, which convert them faster than they
    multiply bf16 pairs.  For int8, see :func:`_lower`: what it leaves is lowered further.
    """
    rounds = Phase("conv-precision", (ConvBf16(nchw32c=tiles),))
    integers = Phase("conv-int16", (ConvInt16(transformed=tiles and precision == "bf16"),))
    further = Phase("depthwise-precision", (DepthwiseBf16(),))
    halves = Phase("conv-bf16x2", (ConvBf16x2(),))
    on_tiles = (rounds, integers, halves)
    return {
        "int8": (on_tiles if tiles else (integers,)) if bf16 else (),
        "bf16": on_tiles if tiles else (rounds, further, integers),
        "int16": (integers,),
        "bf16x2": (halves,),
    }.get(precision, ())
