"""Embedding sums, GatherElements along the last axis, and bytewise comparison."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]

_RUN = 4
_EACH = 4
"""Elements that one thread of GatherElements picks."""
_BYTES = 16
"""Number of bytes that one thread compares."""
_TYPES = {**TYPES, "u8": DType.U8, "i8": DType.I8}


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def name(call: Call) -> str:
    if call.op == "same":
        return "same"
    a = call.attributes
    if call.op == "take":
        return f"take_{a['index_type']}"
    return f"embedding_{a['count']}_{a['table_type']}_{a['index_type']}"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    if call.op == "same":
        return {}
    a = call.attributes
    if call.op == "take":
        own = chain_parameters.ELEMENTS[DType.from_short(call.dtype)]
        missing = '__builtin_nanf("")' if call.dtype in TYPES else ""
        return {"element": own, "index_element": a["index_type"], "missing": missing,
                "each": _EACH}  # fmt: skip
    return {
        "count": a["count"],
        "element": chain_parameters.ELEMENTS[_TYPES[call.dtype]],
        "table_element": chain_parameters.ELEMENTS[_TYPES[str(a["table_type"])]],
        "missing": "0.0f" if call.dtype in ("u8", "i8") else '__builtin_nanf("")',
        "index_element": a["index_type"],
        "run": _RUN,
    }


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, a = _named(call), call.attributes
    made: list[Argument]
    if call.op == "same":
        (count,) = named["x"].dims
        made = [pointer(named[one], DType.U8) for one in ("x", "reference", "y")]
        made.append(i32(count))
        blocks = combine("ceildiv", count, _BYTES * variant.threads)
        return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
    if call.op == "take":
        return _taken(call, variant, symbol)
    made = []
    kind, index = _TYPES[str(a["table_type"])], DType.from_short(str(a["index_type"]))
    for table, ids in zip(named["tables"], named["ids"], strict=True):
        made += [pointer(table, kind), *map(i32, (*table.strides, table.dims[0]))]
        made += [pointer(ids, index), *map(i32, ids.strides)]
    y = named["y"]
    rows, cols = y.dims
    runs = combine("ceildiv", cols, _RUN)
    made += [pointer(y, _TYPES[call.dtype]), *map(i32, (*y.strides, rows, cols)), divisor(runs)]
    made.append(divisor(named["ids"][0].dims[1]))
    blocks = combine("ceildiv", combine("mul", rows, runs), variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))


def _taken(call: Call, variant: Variant, symbol: str) -> Launch:
    named, own = _named(call), DType.from_short(call.dtype)
    types = {"x": own, "ids": DType.from_short(str(call.attributes["index_type"])), "y": own}
    made = list[Argument]()
    for one, dtype in types.items():
        made += [pointer(named[one], dtype), *map(i32, named[one].strides)]
    _, second, third, cols = named["y"].dims
    count = product(named["y"].dims)
    made += [*map(divisor, (second, third, cols)), i32(count), i32(named["x"].dims[-1])]
    blocks = combine("ceildiv", count, variant.threads * _EACH)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
