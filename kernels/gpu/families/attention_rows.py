"""Attention with any mask, causal order and window, in the operands' type: one warp per query."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.families.attention import (
    MASKS,
    heads_of,
    operands_of,
    views_by_operand,
)
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, divisor, f32, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.attention import LOWEST

__all__ = ["launch", "name", "parameters", "shared"]

LARGEST_HEAD = 1024
"""Maximum head size, of whose results each lane holds a 32nd in registers."""


def _y_type(call: Call) -> DType:
    return TYPES[str(call.attributes["y_type"])]


def name(call: Call) -> str:
    depth, depth_v = heads_of(call, LARGEST_HEAD)
    a = call.attributes
    words = [f"attention_rows_d{depth}v{depth_v}", str(a["mask_kind"]), str(a["order"])]
    words += [str(a["zero_rows"]), str(a["y_type"])]
    words += ["capped"] * (a["softcap"] > 0) + ["windowed"] * (a["window_left"] >= 0)
    return "_".join(words)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    a, (depth, depth_v) = call.attributes, heads_of(call, LARGEST_HEAD)
    lowest = f"{LOWEST.hex()}f" if a["zero_rows"] != "infinite" else "-__builtin_inff()"
    return {
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "y_element": chain_parameters.ELEMENTS[_y_type(call)],
        "mask": a["mask_kind"],
        "mask_element": chain_parameters.ELEMENTS[MASKS.get(str(a["mask_kind"]), DType.F32)],
        "order": a["order"],
        "zero_rows": a["zero_rows"],
        "capped": a["softcap"] > 0,
        "windowed": a["window_left"] >= 0,
        "masked": lowest,
        "head_size": depth,
        "run": chain_parameters.vector_length(TYPES[call.dtype]),
        "head_v": depth_v,
    }


def shared(call: Call, variant: Variant) -> int:
    return variant.threads // 32 * (heads_of(call, LARGEST_HEAD)[0] + 32) * 4


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, a = views_by_operand(call), call.attributes
    q: View = named["q"]
    batch, heads, queries, _ = q.dims
    heads_k, keys = named["k"].dims[1:3]
    made = operands_of(call)
    if a["order"] == "placed":
        made += [pointer(named["positions"], DType.I64), i32(named["positions"].strides[0])]
    made += [pointer(named["y"], _y_type(call)), *map(i32, named["y"].strides)]
    rows = product((batch, heads, queries))
    made += [divisor(queries), divisor(heads), divisor(combine("floordiv", heads, heads_k))]
    made += map(i32, (rows, keys, a["window_left"], a["window_right"], a["global_keys"]))
    made += [f32(float(a[name])) for name in ("scale", "fill", "softcap")]
    blocks = combine("ceildiv", rows, variant.threads // 32)
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), tuple(made))
