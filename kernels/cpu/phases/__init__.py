"""What the CPU does to a graph before it is lowered, in order: precision, layouts, programs."""

from __future__ import annotations

from tracea_graph.kernels.cpu.phases.block_sparse import BlockSparseGemm, PruneBlocks
from tracea_graph.kernels.cpu.phases.conv_bf16 import ConvBf16, DepthwiseBf16
from tracea_graph.kernels.cpu.phases.conv_bf16x2 import ConvBf16x2
from tracea_graph.kernels.cpu.phases.conv_int16 import ConvInt16
from tracea_graph.kernels.cpu.phases.conv_winograd import ConvWinograd
from tracea_graph.kernels.cpu.phases.pack_filters import PackFilters
from tracea_graph.kernels.cpu.phases.pack_gates import PackGates
from tracea_graph.kernels.cpu.phases.pack_matrices import PackMatrices
from tracea_graph.kernels.cpu.phases.precision import (
    AttentionBf16,
    GemmBf16,
    GemmBf16x2,
    GemmInt16,
)
from tracea_graph.kernels.cpu.phases.unstructured_sparse import FEW_ROWS, UnstructuredSparseGemm
from tracea_graph.ops.weights import BLOCKS
from tracea_graph.passes import LAYOUT, PARTITION, Request, partition
from tracea_graph.passes.attention.window_attention import WindowAttention
from tracea_graph.passes.sparse.low_rank import LowRankGemm
from tracea_graph.passes.sparse.low_rank_exact import LowRankExact
from tracea_graph.rewrite import Phase

__all__ = ["phases"]


def phases(request: Request, tiles: bool = False) -> tuple[Phase, ...]:
    """The phases after those of :func:`tracea_graph.passes.phases`, but for row tiling.

    ``tiles`` says that there are matrix tiles for bf16.
    """
    precision, compressed = request.precision, request.compressed
    # regions are what they will be: what can be skipped in them is all that changes
    near = (WindowAttention(tuple(request.windows)),) if request.windows else ()
    blocks = BLOCKS[1:] if precision == "bf16" else BLOCKS  # pairs of steps lie together there
    other = (LowRankGemm(compressed), PruneBlocks(compressed, blocks))
    twice = precision == "bf16"  # of half the size, a second copy is no matter
    few = FEW_ROWS if precision == "fp32" else 1
    skipping = (
        LowRankExact(request.scan),
        BlockSparseGemm(request.scan, blocks, twice),
        UnstructuredSparseGemm(request.scan, few, twice),
    )
    pack = Phase("layouts", (PackMatrices(twice),))
    return (
        Phase("gates", (PackGates(),), always=True),
        *((Phase("filters", (PackFilters(),)),) if request.prepack else ()),
        *_lower_convolutions(precision, tiles),
        Phase("transform", (ConvWinograd(),)),
        # whole at last: what lies between the steps of one program lies as its kernels like it
        Phase(PARTITION, (partition.ClusterConv(),)),
        *LAYOUT,
        *((Phase("compress", other),) if compressed else ()),
        Phase("sparsity", (*(skipping if request.prepack else ()), *near)),
        *((pack,) if request.prepack else ()),
        *_lower(precision, tiles),
        Phase(PARTITION, (partition.Cluster(),)),
    )


def _lower(precision: str, tiles: bool) -> tuple[Phase, ...]:
    """Regions are what they will be: only their numbers change.

    What bf16 is not to be used for is left for integers, or sums of two numbers in bf16 where
    matrix ``tiles`` make those faster.
    """
    integers, halves = Phase("int16", (GemmInt16(),)), Phase("bf16x2", (GemmBf16x2(),))
    rounds = Phase("precision", (GemmBf16(), AttentionBf16()))
    return {
        "bf16": (rounds, halves if tiles else integers),
        "bf16-weights": (Phase("precision", (GemmBf16("bf16-weights"),)),),
        "bf16x2": (halves,),
        "int16": (integers,),
    }.get(precision, ())


def _lower_convolutions(precision: str, tiles: bool) -> tuple[Phase, ...]:
    """Before they are steps of a program, which stores values as its steps read them.

    What bf16 is not to be used for is left for integers; with matrix ``tiles``, where those have
    none of their own, for sums of two numbers in bf16, but for what is transformed.  Processors
    with them convert numbers of a depthwise convolution faster than they multiply pairs.
    """
    rounds = Phase("conv-precision", (ConvBf16(nchw32c=tiles),))
    integers = Phase("conv-int16", (ConvInt16(transformed=tiles and precision == "bf16"),))
    further = Phase("depthwise-precision", (DepthwiseBf16(),))
    halves = Phase("conv-bf16x2", (ConvBf16x2(),))
    return {
        "bf16": (rounds, integers, halves) if tiles else (rounds, further, integers),
        "int16": (integers,),
        "bf16x2": (halves,),
    }.get(precision, ())
