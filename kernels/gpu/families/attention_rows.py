"""Attention with every mask, order and window, in the type its operands have: a warp a query."""

from __future__ import annotations

from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu import chains
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.products import TYPES
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, f32, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.attention import LOWEST

__all__ = ["launch", "name", "parameters", "shared"]

LARGEST_HEAD = 256
_MASKS = {"add": DType.F32, "bool": DType.BOOL}


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _heads(call: Call) -> tuple[int, int]:
    """The columns of a head of queries and keys, and of values.

    Raises GraphError where they are not known, or more than a warp holds.
    """
    named = _named(call)
    sizes = named["q"].dims[-1], named["v"].dims[-1]
    if not all(isinstance(n, int) and 1 <= n <= LARGEST_HEAD for n in sizes):
        raise GraphError(f"Attention takes heads of 1 to {LARGEST_HEAD} columns, not {sizes}.")
    return sizes


def _y_type(call: Call) -> DType:
    return TYPES[str(call.attributes["y_type"])]


def name(call: Call) -> str:
    depth, depth_v = _heads(call)
    a = call.attributes
    words = [f"attention_rows_d{depth}v{depth_v}", str(a["mask_kind"]), str(a["order"])]
    words += [str(a["zero_rows"]), str(a["y_type"])]
    words += ["capped"] * (a["softcap"] > 0) + ["windowed"] * (a["before"] >= 0)
    return "_".join(words)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    a, (depth, depth_v) = call.attributes, _heads(call)
    lowest = f"{LOWEST.hex()}f" if a["zero_rows"] != "infinite" else "-__builtin_inff()"
    return {
        "element": chains.ELEMENTS[TYPES[call.dtype]],
        "y_element": chains.ELEMENTS[_y_type(call)],
        "mask": a["mask_kind"],
        "mask_element": chains.ELEMENTS[_MASKS.get(str(a["mask_kind"]), DType.F32)],
        "order": a["order"],
        "zero_rows": a["zero_rows"],
        "capped": a["softcap"] > 0,
        "windowed": a["before"] >= 0,
        "masked": lowest,
        "head_size": depth,
        "head_v": depth_v,
    }


def shared(call: Call, variant: Variant) -> int:
    return variant.threads // 32 * (_heads(call)[0] + 32) * 4


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, a, own = _named(call), call.attributes, TYPES[call.dtype]
    q: View = named["q"]
    batch, heads, queries, _ = q.dims
    heads_k, keys = named["k"].dims[1:3]
    made: list[Argument] = []
    for view in (q, named["k"], named["v"]):
        made += [pointer(view, own), *map(i32, view.strides)]
    if a["mask_kind"] != "none":
        mask: View = named["mask"]
        made += [pointer(mask, _MASKS[str(a["mask_kind"])]), *map(i32, mask.strides)]
    if a["order"] == "placed":
        made += [pointer(named["places"], DType.I64), i32(named["places"].strides[0])]
    made += [pointer(named["y"], _y_type(call)), *map(i32, named["y"].strides)]
    rows = product((batch, heads, queries))
    made += [divisor(queries), divisor(heads), divisor(combine("floordiv", heads, heads_k))]
    made += map(i32, (rows, keys, a["before"], a["behind"], a["everywhere"]))
    made += [f32(float(a[name])) for name in ("scale", "fill", "softcap")]
    blocks = combine("ceildiv", rows, variant.threads // 32)
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), tuple(made))
