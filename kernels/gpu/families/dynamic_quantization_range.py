"""The range of a tensor, as the scale and zero point of its quantization to uint8."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call
from tracea_graph.ops.dynamic_quantize import PARAMETERS

__all__ = ["launch", "name", "parameters", "shared"]


def name(call: Call) -> str:
    return "value_range"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    own = TYPES[call.dtype]
    return {**chain_parameters.chain_template_parameters(PARAMETERS),
        "element": chain_parameters.ELEMENTS[own],
            "run": chain_parameters.vector_length(own)}  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    return variant.threads // 32 * 8


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, partial = named["x"], named["partial"]
    blocks = partial.dims[0]
    made = (
        pointer(x, TYPES[call.dtype]), i32(x.dims[0]), pointer(named["scale"], DType.F32),
        pointer(named["zero"], DType.U8), pointer(partial, DType.F32),
        pointer(named["arrivals"], DType.I32), i32(blocks),
    )  # fmt: skip
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), made)
