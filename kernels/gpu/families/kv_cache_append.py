"""Append rows to caches of keys and values; each item of the batch has its own position."""

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


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _run(call: Call) -> int:
    return chain_parameters.vector_length(TYPES[call.dtype])


def name(call: Call) -> str:
    return "kv_append" if _named(call)["past"] is not None else "kv_append_first"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    element = chain_parameters.ELEMENTS[TYPES[call.dtype]]
    return {"element": element, "past": _named(call)["past"] is not None, "run": _run(call)}


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, own = _named(call), TYPES[call.dtype]
    new, past, y = named["new"], named["past"], named["y"]
    batch, heads, slots, size = y.dims
    made = [pointer(new, own), *map(i32, new.strides), i32(new.dims[2])]
    if past is not None:
        made += [pointer(past, own), *map(i32, past.strides), i32(past.dims[2])]
    made += [pointer(named["positions"], DType.I64), i32(named["positions"].strides[0])]
    made += [pointer(y, own), *map(i32, y.strides)]
    rows, runs = product((batch, heads, slots)), combine("ceildiv", size, _run(call))
    made += [*map(divisor, (heads, slots, runs)), i32(rows), i32(size)]
    blocks = combine("ceildiv", combine("mul", rows, runs), variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
