"""2:4 sparse matrices whose rows are multiplied by numbers: those of a norm, before a matmul."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]

_NUMBERS = 8
"""Stored numbers of a thread."""


def name(call: Call) -> str:
    return "scaled_two_of_four"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    return {"element": chain_parameters.ELEMENTS[TYPES[call.dtype]]}


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    values, own = named["values"], TYPES[call.dtype]
    made = [pointer(values, own), pointer(named["positions"], DType.U8)]
    made += [pointer(named["gamma"], DType.F32), i32(named["gamma"].strides[0])]
    count = combine("floordiv", product(values.dims), _NUMBERS)
    made += [pointer(named["y"], own), divisor(named["positions"].dims[1]), i32(count)]
    blocks = combine("ceildiv", count, variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
