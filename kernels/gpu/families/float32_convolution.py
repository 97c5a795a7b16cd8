"""Float32 implicit-GEMM convolution by fused multiply-adds."""

from __future__ import annotations

from typing import Any

from tracea_graph.kernels.gpu.families import float32_matmul
from tracea_graph.kernels.gpu.families.convolution import (
    is_of_volumes,
    launch_over,
    name,
    product_of,
)
from tracea_graph.kernels.gpu.launch import Launch
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    made = float32_matmul.parameters(product_of(call), variant)
    return {**made, "volume": is_of_volumes(call)}


def shared(call: Call, variant: Variant) -> int:
    return float32_matmul.shared(product_of(call), variant)


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    return launch_over(call, variant, symbol, shared(call, variant))
