"""Cumulative sums of lines, and updates of a line's elements where indices say."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.indexed_slices import COMBINED
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _held(call: Call) -> DType:
    """Return the type of sums: float32 for floats, else that of the elements."""
    return DType.F32 if call.dtype in TYPES else DType.from_short(call.dtype)


def name(call: Call) -> str:
    a = call.attributes
    if call.op == "cumulative_sum":
        return (
            "cumulative_sum" + "_exclusive" * bool(a["exclusive"]) + "_back" * bool(a["reverse"])
        )
    return f"scatter_elements_{a['reduction']}_{a['index_type']}"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    a, floating = call.attributes, call.dtype in TYPES
    own, held = chain_parameters.ELEMENTS[DType.from_short(call.dtype)], _held(call)
    if call.op == "cumulative_sum":
        return {
            "element": own, "held": chain_parameters.ELEMENTS[held],
            "load": "number" if floating else "", "exclusive": a["exclusive"],
            "reverse": a["reverse"],
        }  # fmt: skip
    return {
        "element": own, "index_element": a["index_type"], "floating": floating,
        "sum": chain_parameters.ELEMENTS[held],
        "combined": COMBINED[str(a["reduction"])][0 if floating else 1],
    }  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    return int(_held(call).size) * variant.threads if call.op == "cumulative_sum" else 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, own = _named(call), DType.from_short(call.dtype)
    made = list[Argument]()
    if call.op == "cumulative_sum":
        for one in ("x", "y"):
            made += [pointer(named[one], own), *map(i32, named[one].strides)]
        outer, inner, cols = named["x"].dims
        made += [divisor(inner), i32(cols)]
        lines = combine("mul", outer, inner)
        return Launch(symbol, (lines, 1, 1), variant.threads, shared(call, variant), tuple(made))
    index = DType.from_short(str(call.attributes["index_type"]))
    for one, dtype in {"x": own, "ids": index, "updates": own, "y": own}.items():
        made += [pointer(named[one], dtype), *map(i32, named[one].strides)]
    _, second, third, cols = named["y"].dims
    count = product(named["y"].dims)
    made += [*map(divisor, (second, third, cols)), i32(count), i32(named["ids"].dims[-1])]
    blocks = combine("ceildiv", count, variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
