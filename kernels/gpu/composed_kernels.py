"""Modules of calls that stand for one of several calls, which one kernel can compute together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import Extent
from tracea_graph.kernels.gpu.families import (
    attention_projection,
    expanded_depthwise,
    gated_matmul,
    grouped_integers,
    low_rank_matmul,
    normed_integers,
    quantized_attention,
    row_mlp,
)
from tracea_graph.kernels.gpu.low_rank_choice import low_rank_choices
from tracea_graph.kernels.gpu.row_choice import (
    gated_choices,
    grouped_choices,
    mlp_choices,
    normed_choices,
    projection_choices,
    rounded_attention_choices,
)
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.gpu.window_choice import expansion_choices
from tracea_graph.kernels.program import Call

__all__ = ["COMPOSED", "COMPOSED_CHOICES"]

COMPOSED: Mapping[str, Any] = MappingProxyType(
    {
        "mlp": row_mlp,
        "gated_gemm": gated_matmul,
        "grouped_integer_gemm": grouped_integers,
        "normed_integer_gemm": normed_integers,
        "low_rank_gemm": low_rank_matmul,
        "attention_projection": attention_projection,
        "quantized_attention": quantized_attention,
        "expanded_depthwise": expanded_depthwise,
    }
)
"""The family of each such op."""
COMPOSED_CHOICES: Mapping[str, Callable[[Call], list[tuple[Variant, Extent]]]] = MappingProxyType(
    {
        "mlp": mlp_choices,
        "gated_gemm": gated_choices,
        "grouped_integer_gemm": grouped_choices,
        "normed_integer_gemm": normed_choices,
        "low_rank_gemm": low_rank_choices,
        "attention_projection": projection_choices,
        "quantized_attention": rounded_attention_choices,
        "expanded_depthwise": expansion_choices,
    }
)
"""The function that chooses kernels of all parts, by op."""
