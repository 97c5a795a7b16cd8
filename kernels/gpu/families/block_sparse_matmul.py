"""Matmuls over the nonzero blocks of a constant matrix, on tensor cores.

The main loop is that of ``tensor_core_matmul``, over the blocks that the L1 map lists.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import tensor_core_matmul
from tracea_graph.kernels.gpu.launch import Launch, constant_buffer_flag, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.gpu.zero_block_storage import MOST_SLICES, SIDE
from tracea_graph.kernels.program import Call, View

__all__ = ["launch", "name", "parameters", "product_of", "shared"]


def product_of(call: Call) -> Call:
    """Return the matmul of the same shapes in which w is the concatenation of its blocks."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    w = named["w"]
    stored = View(w.buffer, (combine("mul", w.dims[0], SIDE), SIDE), w.strides[1:], w.offset)
    return CALLS.make(
        "gemm", call.dtype, layout="nk", chain=call.chain, bias=named["bias"], x=named["x"],
        w=stored, inputs=named["inputs"], y=named["y"],
    )  # fmt: skip


def name(call: Call) -> str:
    return tensor_core_matmul.name(product_of(call)).replace("gemm_nk", "gemm_blocks")


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    made = tensor_core_matmul.parameters(product_of(call), variant)
    return {**made, "side": SIDE, "most_slices": MOST_SLICES, "spoilt": True}


def shared(call: Call, variant: Variant) -> int:
    beside = 4 * (MOST_SLICES + variant.params["m"])
    return tensor_core_matmul.shared(product_of(call), variant) + beside


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    blocks, made = tensor_core_matmul.arguments(product_of(call), variant.params["m"], SIDE)
    made += [pointer(named["map"], DType.I32), pointer(named["odd"], DType.F32)]
    made += [constant_buffer_flag(named["map"]), constant_buffer_flag(named["w"])]
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), tuple(made))
