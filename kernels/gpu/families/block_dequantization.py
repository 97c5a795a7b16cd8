"""Dequantize a block-quantized matrix as a whole, for matmuls of many rows in 16 bits."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.block_quantized_storage import WINDOW
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.block_quantized_matmul import codes_of
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]

_LANES = 4
"""Threads that have the codes of a window of a column."""


def name(call: Call) -> str:
    a = call.attributes
    words = [f"dequantize{a['bits']}x{a['group']}"] + ["divided"] * bool(a["divided"])
    return "_".join(words + [f"{a['zero_kind']}_zeros"] * (a["zero_kind"] != "middle"))


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    element = chain_parameters.ELEMENTS[TYPES[call.dtype]]
    return {"element": element, **codes_of(call, WINDOW)}


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    a = call.attributes
    w, scales, zeros, y = (named[one] for one in ("w", "scales", "zeros", "y"))
    made = [pointer(w, DType.U8), i32(w.strides[0])]
    made += [pointer(scales, DType.F32), i32(scales.strides[0])]
    made += [] if zeros is None else [pointer(zeros, DType.F32)]
    columns, depth = y.dims
    windows = combine("ceildiv", depth, WINDOW)
    threads = combine("mul", combine("mul", columns, windows), _LANES)
    made += [pointer(y, TYPES[call.dtype]), i32(y.strides[0]), i32(depth)]
    made += [i32(scales.dims[1]), divisor(int(a["block"]) // int(a["group"]))]
    made += [divisor(windows), i32(threads)]
    blocks = combine("ceildiv", threads, variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
