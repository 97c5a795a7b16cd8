"""The custom ops: everything that passes and kernels share.

Each op is a frozen parameter record that knows its operands, result specs, NumPy reference and
ONNX body.
"""

from __future__ import annotations

from tracea_graph.ops.arg_max import ArgParams
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.channel_norm import ChannelNormParams
from tracea_graph.ops.concat import ConcatParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_integer import ConvIntegerParams
from tracea_graph.ops.cumulative_sum import CumulativeSumParams
from tracea_graph.ops.dynamic_quantize import DynamicQuantizeParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.fused_region import RegionParams
from tracea_graph.ops.gather import GatherParams
from tracea_graph.ops.gather_elements import GatherElementsParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.grid_sample import GridSampleParams
from tracea_graph.ops.indexed_slices import GatherNDParams, ScatterNDParams
from tracea_graph.ops.integer_step import IntegerStepParams
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.ops.layout_op import LayoutParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.quantize_rows import QuantizeRowsParams
from tracea_graph.ops.quantized_embedding import QuantizedEmbeddingParams
from tracea_graph.ops.recurrent import RecurrentParams
from tracea_graph.ops.reduction import ReduceParams
from tracea_graph.ops.resize import ResizeParams
from tracea_graph.ops.scatter_elements import ScatterElementsParams
from tracea_graph.ops.softmax import SoftmaxParams
from tracea_graph.ops.top_k import TopKParams

__all__ = ["OPS", "OpParams"]

OpParams = (
    GemmParams
    | MatMulParams
    | AttentionParams
    | KvCacheAppendParams
    | NormParams
    | ElementwiseParams
    | ConcatParams
    | EmbeddingParams
    | QuantizedEmbeddingParams
    | ChannelNormParams
    | ReduceParams
    | ArgParams
    | TopKParams
    | SoftmaxParams
    | DynamicQuantizeParams
    | QuantizeRowsParams
    | GatherElementsParams
    | GatherNDParams
    | ScatterNDParams
    | GatherParams
    | ScatterElementsParams
    | CumulativeSumParams
    | GridSampleParams
    | IntegerStepParams
    | IotaParams
    | RecurrentParams
    | ConvParams
    | ConvIntegerParams
    | PoolParams
    | LayoutParams
    | ResizeParams
    | RegionParams
)

OPS: tuple[tuple[str, type], ...] = (
    ("FusedGemm", GemmParams),
    ("FusedMatMul", MatMulParams),
    ("FusedAttention", AttentionParams),
    ("FusedKvCacheAppend", KvCacheAppendParams),
    ("FusedNorm", NormParams),
    ("FusedElementwise", ElementwiseParams),
    ("FusedConcat", ConcatParams),
    ("FusedEmbedding", EmbeddingParams),
    ("FusedQuantizedEmbedding", QuantizedEmbeddingParams),
    ("FusedChannelNorm", ChannelNormParams),
    ("FusedReduce", ReduceParams),
    ("FusedArg", ArgParams),
    ("FusedTopK", TopKParams),
    ("FusedSoftmax", SoftmaxParams),
    ("FusedDynamicQuantize", DynamicQuantizeParams),
    ("FusedQuantizeRows", QuantizeRowsParams),
    ("FusedGatherElements", GatherElementsParams),
    ("FusedGatherND", GatherNDParams),
    ("FusedScatterND", ScatterNDParams),
    ("FusedGather", GatherParams),
    ("FusedScatterElements", ScatterElementsParams),
    ("FusedCumSum", CumulativeSumParams),
    ("FusedGridSample", GridSampleParams),
    ("FusedIntegerStep", IntegerStepParams),
    ("FusedIota", IotaParams),
    ("FusedRecurrent", RecurrentParams),
    ("FusedConv", ConvParams),
    ("FusedConvInteger", ConvIntegerParams),
    ("FusedPool", PoolParams),
    ("FusedLayout", LayoutParams),
    ("FusedResize", ResizeParams),
    ("FusedRegion", RegionParams),
)
"""Name and parameter record of every custom op."""
