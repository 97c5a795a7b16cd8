"""Index ramps; each thread computes one element."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.launch import Launch, divisor, f32, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View

__all__ = ["launch", "name", "parameters", "shared"]

_ELEMENTS = {
    "f32": ("float", DType.F32), "i32": ("i32", DType.I32), "i64": ("i64", DType.I64),
}  # fmt: skip
"""Element type name in templates, and DType, of each result type."""


def _y(call: Call) -> View:
    view = CALLS.of(call).named(call)["y"]
    assert isinstance(view, View)
    return view


def name(call: Call) -> str:
    return f"iota_{call.attributes['y_type']}_rank{len(_y(call).dims)}"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    (element, _), rank = _ELEMENTS[str(call.attributes["y_type"])], len(_y(call).dims)
    place = " + ".join(f"(i64)i{axis} * y_{axis}" for axis in range(rank))
    return {"element": element, "rank": rank, "place": place}


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    y, a = _y(call), call.attributes
    _, dtype = _ELEMENTS[str(a["y_type"])]
    count = product(y.dims)
    made = [pointer(y, dtype), *map(i32, y.strides), *map(divisor, y.dims[1:]), i32(count)]
    skipped = CALLS.of(call).named(call)["skipped"]
    made.append(i32(skipped.dims[0] if isinstance(skipped, View) else 0))
    made += map(f32, map(float, (a["start"], *a["steps"])))
    blocks = combine("ceildiv", count, variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
