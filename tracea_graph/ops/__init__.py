"""The custom-op vocabulary: the only thing passes and kernels share.

Each op is a frozen parameter record that knows its operands, result specs, NumPy reference and
ONNX body.
"""

from __future__ import annotations

from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.moves import MoveParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.pool import PoolParams
from tracea_graph.ops.region import RegionParams

__all__ = ["VOCABULARY", "OpParams"]

OpParams = (
    GemmParams
    | MatMulParams
    | AttentionParams
    | NormParams
    | ElementwiseParams
    | EmbeddingParams
    | ConvParams
    | PoolParams
    | MoveParams
    | RegionParams
)

VOCABULARY: tuple[tuple[str, type], ...] = (
    ("FusedGemm", GemmParams),
    ("FusedMatMul", MatMulParams),
    ("FusedAttention", AttentionParams),
    ("FusedNorm", NormParams),
    ("FusedElementwise", ElementwiseParams),
    ("FusedEmbedding", EmbeddingParams),
    ("FusedConv", ConvParams),
    ("FusedPool", PoolParams),
    ("FusedMove", MoveParams),
    ("FusedRegion", RegionParams),
)
"""Word and parameter record of every custom op."""
