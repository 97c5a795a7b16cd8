"""Elementwise steps on int32 and int64; each thread computes one element."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View

__all__ = ["launch", "name", "parameters", "shared"]

_ELEMENTS = MappingProxyType({"i32": "i32", "i64": "i64", "bool": "bool"})
_EXPRESSIONS = MappingProxyType(
    {
        "Add": "a + b", "Sub": "a - b", "Mul": "a * b", "Max": "a > b ? a : b",
        "Min": "a < b ? a : b", "Less": "a < b", "LessOrEqual": "a <= b", "Greater": "a > b",
        "GreaterOrEqual": "a >= b", "Equal": "a == b", "Where": "a ? b : c", "Cast": "a",
        "Div": "b == 0 ? 0 : b == -1 ? (i64)(0 - (u64)a) : a / b",
        "Mod": "b == 0 || b == -1 ? 0 : a % b + (a % b != 0 && (a ^ b) < 0 ? b : 0)",
    }
)  # fmt: skip
_WRAPS = ("Add", "Sub", "Mul")
"""Steps whose results wrap around, which C++ defines for unsigned numbers only."""


def _views(call: Call) -> tuple[list[View], View]:
    """Return the operands and the result."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    return list(named["x"]), named["y"]


def _types(call: Call) -> list[str]:
    """Return the element types of the operands and of the result."""
    (views, _), own = _views(call), call.dtype
    found = [own] * len(views)
    if call.attributes["step"] == "Where":
        found[0] = "bool"
    return [*found, str(call.attributes["y_type"])]


def name(call: Call) -> str:
    a, rank = call.attributes, len(_views(call)[1].dims)
    return f"integer_{str(a['step']).lower()}_{a['y_type']}_rank{rank}"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    (views, y), step = _views(call), str(call.attributes["step"])
    rank, tensors = len(y.dims), list[dict[str, str]]()
    names = [*(f"x{i}" for i in range(len(views))), "y"]
    for one, dtype, value in zip(names, _types(call), [*"abc"[: len(views)], ""], strict=True):
        place = " + ".join(f"(i64)i{axis} * {one}_{axis}" for axis in range(rank))
        tensors.append({"name": one, "element": _ELEMENTS[dtype], "place": place, "value": value})
    expression = _EXPRESSIONS[step]
    if step in _WRAPS:
        wide = "u64" if call.dtype == "i64" else "u32"
        expression = f"({wide})a {expression[2]} ({wide})b"
    return {"rank": rank, "tensors": tensors, "expression": expression, "step": step}


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    views, y = _views(call)
    made = list[Argument]()
    for view, dtype in zip((*views, y), _types(call), strict=True):
        made += [pointer(view, DType.from_short(dtype)), *map(i32, view.strides)]
    count = product(y.dims)
    made += [*map(divisor, y.dims[1:]), i32(count)]
    blocks = combine("ceildiv", count, variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, tuple(made))
