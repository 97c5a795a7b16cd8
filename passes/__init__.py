"""List the target-independent passes in order, and give the reasons for that order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from tracea_graph.config import AttentionWindow
from tracea_graph.passes import cluster_programs, embedding, recurrent
from tracea_graph.passes.attention.attention import Attention
from tracea_graph.passes.attention.attention_op import AttentionOp
from tracea_graph.passes.attention.byte_caches import ByteCaches
from tracea_graph.passes.attention.half_caches import HalfCaches
from tracea_graph.passes.attention.rotary_embedding import RotaryEmbedding
from tracea_graph.passes.attention.unflatten_heads import UnflattenHeads
from tracea_graph.passes.convolution import batch_norm, channel_shuffle, conv, pad, pool, resize
from tracea_graph.passes.convolution.conv3d_to_conv2d import Conv3dToConv2d
from tracea_graph.passes.convolution.conv_transpose import ConvTranspose
from tracea_graph.passes.convolution.merge_parallel_convs import MergeParallelConvs
from tracea_graph.passes.decompose.decompose import Decompose
from tracea_graph.passes.layout.channels_last_transposes import (
    CancelTransposes,
    QuantizeLast,
    SinkTransposes,
)
from tracea_graph.passes.layout.concat import Concat, FuseIntoConcat, SinkConcat
from tracea_graph.passes.layout.fuse_views import FuseReshape, FuseView, StridedCopy
from tracea_graph.passes.layout.gather_elements import GATHER_ELEMENTS
from tracea_graph.passes.layout.hoist_gather import HoistGather
from tracea_graph.passes.layout.hoist_slice import HoistSlice
from tracea_graph.passes.layout.iota import Iota
from tracea_graph.passes.layout.range_limits import RangeLimit
from tracea_graph.passes.layout.slice_of_concat import SliceOfConcat
from tracea_graph.passes.layout.updated_boxes import UpdatedBox
from tracea_graph.passes.matmul import gemm, matmul
from tracea_graph.passes.matmul.merge_gemms import MergeGemms, MergeQkv
from tracea_graph.passes.matmul.unflatten_rows import UnflattenRows
from tracea_graph.passes.pointwise import decomposed_activations, image_norms, reductions
from tracea_graph.passes.pointwise.channel_norm import ChannelNorm
from tracea_graph.passes.pointwise.elementwise import ElementwiseOp, NormPrologue
from tracea_graph.passes.pointwise.gemm_epilogue import GemmEpilogue
from tracea_graph.passes.pointwise.horizontal_fusion import HorizontalFusion
from tracea_graph.passes.pointwise.vertical_fusion import VerticalFusion
from tracea_graph.passes.quantized import dynamic_quantization
from tracea_graph.passes.quantized.calibrated_rounding import UNCALIBRATED, CalibratedRounding
from tracea_graph.passes.quantized.conv import CONV_INTEGER, QUANTIZED_PAD, QuantizedConv
from tracea_graph.passes.quantized.conv_int8 import READ_ROUNDED, ConvInt8
from tracea_graph.passes.quantized.dequantize_past_views import (
    DEQUANTIZE_EACH,
    QUANTIZE_FIRST,
    QUANTIZE_PARTS,
    CancelQuantize,
    DequantizeFirst,
    GatherFirst,
    PoolFirst,
    SelectFirst,
)
from tracea_graph.passes.quantized.fold_scales import FoldScales
from tracea_graph.passes.quantized.gemm import QuantizedGemm
from tracea_graph.passes.quantized.matmul import QuantizedMatmul
from tracea_graph.passes.quantized.quantized_embedding import QuantizedEmbedding
from tracea_graph.passes.quantized.weight_only import DequantizedGemm, MatmulNbits
from tracea_graph.passes.quantized.wide_round_trips import WIDE_ROUND_TRIP
from tracea_graph.passes.sparse.chosen_compression import PRUNED, CompressedMatrix
from tracea_graph.passes.sparse.dead_channels import DEAD_CHANNELS, DeadChannels
from tracea_graph.passes.sparse.low_rank import LowRankConv, LowRankEmbedding
from tracea_graph.passes.sparse.low_rank_exact import LOW_RANK, LOW_RANK_EXACT
from tracea_graph.passes.sparse.prune_channels import PruneChannels
from tracea_graph.passes.sparse.prune_heads import PruneHeads
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.rewrite import Pass, Phase, RulePass

__all__ = [
    "CLUSTERING",
    "LAYOUT",
    "NOT_COMPRESSED",
    "PARTITION",
    "REVERTIBLE",
    "STRUCTURE",
    "UNMEASURED",
    "WEIGHT_DEPENDENT",
    "PlanRequest",
    "phases",
    "write_convolutions",
]

STRUCTURE = "structure"
"""The phase in which the rules that exploit structure in weights compete."""
PARTITION = "partition"
"""The phase that clusters neighbouring regions into one program."""
CLUSTERING = (
    cluster_programs.ClusterConv.name,
    cluster_programs.Cluster.name,
    cluster_programs.ClusterAll.name,
)
"""Rules that cluster several regions into one program."""
REVERTIBLE = (
    DEAD_CHANNELS, LOW_RANK_EXACT, *LOW_RANK, *PRUNED, "block-sparse-gemm", "column-block-gemm",
    "two-of-four-gemm", "unstructured-sparse-gemm", "impose-window",
)  # fmt: skip
"""Rules that can be undone for a single region, which then keeps its unoptimized form."""
WEIGHT_DEPENDENT = (DEAD_CHANNELS, LOW_RANK_EXACT, "block-sparse-gemm")
"""Rules that depend on the values of weights."""

NOT_COMPRESSED: Mapping[str, CompressedMatrix] = MappingProxyType({})
"""Compress no matrix."""
UNMEASURED: Mapping[str, float] = MappingProxyType({})
"""Empty table of measured magnitudes."""


@dataclass(frozen=True)
class PlanRequest:
    """Options of a plan, and what was measured and calibrated for it.

    * ``precision``: one of ``config.PRECISIONS``.
    * ``prepack``: False keeps all matrices in the layout of the model.
    * ``pack_at_load``: store matrices in the layout of the model, and let nodes pack them on
      loading.
    * ``windows``: windows that restrict attention.
    * ``compressed``: replacements of stored matrices, by name.
    * ``scan``: weight analysis, shared with earlier plans.
    * ``ranges``: largest measured magnitudes of values, by name.
    * ``calibrated``: roundings for the products with a stored matrix, by the name of the matrix.
    * ``float8``: whether the target multiplies 8-bit floats.
    * ``whole_models``: whether the target runs whole models, so that an operator without a kernel
      splits a program.
    * ``convolves_volumes``: whether the target convolves and pools volumes, which need not become
      images.
    * ``levels``: ISA levels that the library is built for; empty if they are not known.
    """

    precision: str = "fp32"
    prepack: bool = True
    windows: Sequence[AttentionWindow] = ()
    compressed: Mapping[str, CompressedMatrix] = field(default_factory=lambda: NOT_COMPRESSED)
    scan: WeightScan = field(default_factory=WeightScan)
    ranges: Mapping[str, float] = field(default_factory=lambda: UNMEASURED)
    pack_at_load: bool = False
    calibrated: Mapping[str, CalibratedRounding] = field(default_factory=lambda: UNCALIBRATED)
    float8: bool = False
    whole_models: bool = False
    convolves_volumes: bool = False
    levels: Sequence[str] = ()


def _decompose(whole_models: bool, takes_volumes: bool) -> Phase:
    """Run first: other rules match the plain operators of which others consist."""
    return Phase("decompose", (Decompose(whole_models, takes_volumes),))


_UNFLATTEN_HEADS = Phase("unflatten-heads", (UnflattenHeads(),))
"""Run before matching idioms: if heads are a separate axis, shared operands broadcast over it."""

_HOIST = Phase("hoist", (UpdatedBox(), SliceOfConcat(), HoistSlice(), HoistGather(), RangeLimit()))
"""Run before fusing anything: remove rows nobody reads."""

_DEQUANTIZE = Phase(
    "dequantize",
    (
        DequantizeFirst(),
        GatherFirst(),
        PoolFirst(),
        RulePass(QUANTIZE_FIRST),
        RulePass(QUANTIZE_PARTS),
        SelectFirst(),
        RulePass(QUANTIZED_PAD),
        CancelQuantize(),
    ),
)
"""Run before matching idioms: the matchers follow views of float32 values, not of integers."""


def write_convolutions(request: PlanRequest, custom_ops: bool = True) -> tuple[Phase, ...]:
    """Return the phases that round the inputs of convolutions to 8-bit integers.

    There are none unless int8 was requested.  They run before ``dequantize``, so that later phases
    see the same operators as in a model that is quantized already.
    """
    if request.precision != "int8" or not request.prepack:
        return ()
    rounds = Phase("conv-int8", (ConvInt8(request.calibrated, custom_ops),))
    return rounds, Phase("read-rounded", (RulePass(READ_ROUNDED),))


_WIDE_ROUND_TRIPS = Phase("wide-round-trips", (RulePass(WIDE_ROUND_TRIP),))
"""Run after ``dequantize``, which brings the two conversions of a value together."""

_QUANTIZED_CONV = Phase("quantized-conv", (QuantizedConv(), RulePass(CONV_INTEGER)))
"""Run before ``transposes``: convolutions of integers need inputs with channels last."""

_MATCH = Phase(
    "match",
    (
        *map(RulePass, decomposed_activations.RULES),
        Attention(),
        AttentionOp(),
        ChannelNorm(),
        RotaryEmbedding(),
    ),
)
"""Match idioms before fusing: once a part of an idiom is fused, the idiom no longer matches."""

_HALF_CACHES = Phase("half-caches", (HalfCaches(), ByteCaches()))
"""Run after matching attention, and before anything is fused into concatenations."""

_UNFLATTEN_ROWS = Phase("unflatten-rows", (UnflattenRows(),))
"""Run after ``convert``: converted products accept any number of row axes."""


def _transposes(convolves_volumes: bool) -> Phase:
    """Run after matching idioms and before fusing epilogues into convolutions."""
    images = Conv3dToConv2d(convolves_volumes)
    return Phase("transposes", (SinkTransposes(), CancelTransposes(), images))


_QUANTIZE_LAST = Phase("quantize-last", (QuantizeLast(),))
"""Run after ``transposes``, which sink through QuantizeLinear."""

_REDUCE = Phase(
    "reduce",
    tuple(
        map(
            RulePass,
            (*image_norms.RULES, *reductions.MATCH_RULES, *reductions.CONVERT_RULES),
        )
    ),
)
"""Run after ``convert``: pools and norms between convolutions become steps of their program."""

_DEQUANTIZE_EACH = Phase("dequantize-each", (RulePass(DEQUANTIZE_EACH),))
"""Run after all rules that match a DequantizeLinear, and before fusing."""

_IOTA = Phase("iota", (Iota(),))
"""Run after matching idioms of integers and masks, and before fusing parts of such idioms."""

LAYOUT = (
    # try to sink a concatenation into its consumer before fusing producers into it
    Phase("fuse-views", (FuseView(), FuseReshape(), Concat(), SinkConcat())),
    Phase("layout-ops", (FuseIntoConcat(), FuseView(), FuseReshape(), StridedCopy())),
    # last: let two regions that read the same operand read it once
    Phase("horizontal-fusion", (HorizontalFusion(),)),
)
"""Fuse views and copies, after every rule that matches larger patterns."""


def _convert(prepack: bool, float8: bool, pools_volumes: bool) -> Phase:
    """Convert operators to custom ops into which others can be fused."""
    quantized = (
        RulePass(dynamic_quantization.MATMUL_INTEGER),
        QuantizedGemm(float8),
        QuantizedMatmul(),
        MatmulNbits(),
        DequantizedGemm(),
        QuantizedEmbedding(),
    )
    return Phase(
        "convert",
        (
            gemm.Gemm(plain=not prepack),
            RulePass(matmul.MATMUL),
            RulePass(dynamic_quantization.DYNAMIC_QUANTIZE),
            *(quantized if prepack else ()),
            RulePass(embedding.EMBEDDING),
            RulePass(GATHER_ELEMENTS),
            RulePass(gemm.GEMM_BIAS),
            gemm.GemmReshape(),
            RulePass(conv.CONV),
            RulePass(conv.CONV_PAD),
            ConvTranspose(plain=not prepack),
            batch_norm.ConvBatchNorm(),
            MergeParallelConvs(),
            RulePass(pool.POOL_VOLUMES if pools_volumes else pool.POOL),
            RulePass(pool.POOL_FLATTEN),
            RulePass(pool.POOL_UNSQUEEZE),
            RulePass(resize.RESIZE),
            RulePass(channel_shuffle.CHANNEL_SHUFFLE),
            channel_shuffle.DeinterleaveChannels(),
            RulePass(recurrent.RECURRENT),
        ),
    )


def _fuse(prepack: bool) -> tuple[Phase, ...]:
    """Fuse neighbours into regions; if ``prepack``, also merge products that share an input."""
    near = (MergeQkv(),) if prepack else ()
    alone = (MergeGemms(),) if prepack else ()
    fuse = (
        RulePass(embedding.EMBEDDING_SUM),
        *near,
        GemmEpilogue(),
        RulePass(gemm.GEMM_NORM),
        RulePass(batch_norm.BATCH_NORM),
        conv.ConvEpilogue(),
        RulePass(pad.PAD),
        RulePass(embedding.EMBEDDING_NORM),
        VerticalFusion(),
    )
    # after epilogues: a sum that fits a product's epilogue must not become a norm's prologue
    prologues = (
        NormPrologue(),
        reductions.ReducePrologue(),
        reductions.ReduceEpilogue(),
        ElementwiseOp(),
        *alone,
    )
    return (
        Phase("fuse", fuse),
        Phase("fuse-prologues", prologues),
        # after all epilogues
        Phase("fold-scales", (FoldScales(),)),
    )


def _structure(request: PlanRequest, backend_rules: Sequence[Pass]) -> Phase:
    """Exploit structure in weights: all ways to compute a product or convolution compete here.

    Run after fusing, because a fused region has one matrix per product and its epilogue decides
    which channels are constant; and before weights get the backend's layouts, because a packed or
    transformed matrix can no longer be narrowed or factored.
    """
    chosen = request.compressed
    lossy = (LowRankConv(chosen), PruneChannels(chosen), PruneHeads(chosen)) if chosen else ()
    rules = (DeadChannels(request.scan), *lossy, *backend_rules)
    return Phase(STRUCTURE, rules, rollouts=True)


def phases(
    request: PlanRequest = PlanRequest(), structure_rules: Sequence[Pass] = ()
) -> tuple[Phase, ...]:
    """Return the target-independent phases in order; a backend appends its own.

    Within a phase the scheduler orders proposals by predicted gain.  ``structure_rules`` are rules
    of the backend that compete in the phase :data:`STRUCTURE`.
    """
    compressed = request.compressed
    looked_up = (Phase("compress-tables", (LowRankEmbedding(compressed),)),)
    return (
        _decompose(request.whole_models, request.convolves_volumes),
        _UNFLATTEN_HEADS,
        _HOIST,
        *write_convolutions(request),
        _DEQUANTIZE,
        _WIDE_ROUND_TRIPS,
        _MATCH,
        _HALF_CACHES,
        *((_QUANTIZED_CONV,) if request.prepack else ()),
        _transposes(request.convolves_volumes),
        _QUANTIZE_LAST,
        *(looked_up if compressed else ()),
        _convert(request.prepack, request.float8, request.convolves_volumes),
        _UNFLATTEN_ROWS,
        _REDUCE,
        _IOTA,
        _DEQUANTIZE_EACH,
        *_fuse(request.prepack),
        _structure(request, structure_rules),
    )
