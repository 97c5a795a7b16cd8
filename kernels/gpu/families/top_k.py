"""The k largest or smallest elements of rows; one block computes each row."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]


def name(call: Call) -> str:
    return "top_k_smallest" if call.attributes["smallest"] else "top_k_largest"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    return {
        "element": chain_parameters.ELEMENTS[DType.from_short(call.dtype)],
        "load": "number" if call.dtype in TYPES else "",
        "smallest": call.attributes["smallest"],
    }


def shared(call: Call, variant: Variant) -> int:
    """Return the bytes that hold a key for each thread: the order of a number, and its index."""
    return (16 if call.dtype == "i64" else 8) * variant.threads


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, y, index = named["x"], named["y"], named["index"]
    own = DType.from_short(call.dtype)
    made = (
        pointer(x, own), *map(i32, x.strides), pointer(y, own), *map(i32, y.strides),
        pointer(index, DType.I64), *map(i32, index.strides), i32(x.dims[1]), i32(y.dims[1]),
    )  # fmt: skip
    return Launch(symbol, (x.dims[0], 1, 1), variant.threads, shared(call, variant), made)
