"""ArgMax and ArgMin of rows of floats or integers; a block computes a long row, or short ones."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]

_INDEX, _BYTES = 4, 16
"""Bytes of shared memory per thread for an index, beside the number itself; those of a vector."""
_SHORT, _TEAMS = 2048, 8
"""Maximum columns of rows of which a block computes several, and their number."""


def _held(call: Call) -> DType:
    """Return the type that numbers are compared in, which holds each of them exactly."""
    return DType.F32 if call.dtype in TYPES else DType.from_short(call.dtype)


def name(call: Call) -> str:
    return f"arg_{call.attributes['kind']}" + "_last" * bool(call.attributes["last"])


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    a = call.attributes
    held = _held(call)
    return {
        "element": chain_parameters.ELEMENTS[DType.from_short(call.dtype)],
        "held": chain_parameters.ELEMENTS[held],
        "load": "number" if held is DType.F32 else "",
        "kind": a["kind"],
        "last": a["last"],
        "run": _BYTES // int(DType.from_short(call.dtype).size),
    }


def shared(call: Call, variant: Variant) -> int:
    return (int(_held(call).size) + _INDEX) * variant.threads


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, y = named["x"], named["y"]
    rows, cols = x.dims
    short = combine("min", 1, combine("floordiv", _SHORT, combine("max", cols, 1)))
    teams = combine("add", combine("mul", short, _TEAMS - 1), 1)
    made = (
        pointer(x, DType.from_short(call.dtype)), *map(i32, x.strides), pointer(y, DType.I64),
        i32(y.strides[0]), i32(cols), i32(rows), i32(teams),
    )  # fmt: skip
    blocks = combine("ceildiv", rows, teams)
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), made)
