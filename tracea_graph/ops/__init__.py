"""The custom-op vocabulary: the only thing passes and kernels share.

Each op is a frozen parameter record that knows its operands, result specs, NumPy reference and
ONNX body.
"""

from __future__ import annotations

from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.matmul import MatMulParams
from tracea_graph.ops.norm import NormParams
from tracea_graph.ops.region import RegionParams

__all__ = ["VOCABULARY", "OpParams"]

OpParams = (
    GemmParams
    | MatMulParams
    | AttentionParams
    | NormParams
    | ElementwiseParams
    | EmbeddingParams
    | RegionParams
)

VOCABULARY: tuple[tuple[str, type], ...] = (
    ("FusedGemm", GemmParams),
    ("FusedMatMul", MatMulParams),
    ("FusedAttention", AttentionParams),
    ("FusedNorm", NormParams),
    ("FusedElementwise", ElementwiseParams),
    ("FusedEmbedding", EmbeddingParams),
    ("FusedRegion", RegionParams),
)
"""Word and parameter record of every custom op."""
