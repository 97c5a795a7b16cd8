"""Steps of LSTM and GRU cells; one block per direction and sequence keeps the state."""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "shared"]

_GATES = {"lstm": 4, "gru": 3, "gru_before": 3}
_TOGETHER = 8
"""Rows of the recurrent weight matrix that a warp multiplies at a time."""
_OPTIONAL = ("rest", "h0", "c0", "y", "h", "c")


def _present(call: Call) -> list[str]:
    """Return the names of the optional operands and results that a call has."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    return [name for name in _OPTIONAL if named[name] is not None]


def name(call: Call) -> str:
    a = call.attributes
    return f"{a['kind']}_{a['hidden']}_{'_'.join(_present(call))}"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    kind = str(call.attributes["kind"])
    return {
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "kind": kind, "gates": _GATES[kind],
        "hidden": call.attributes["hidden"], "together": _TOGETHER, "present": _present(call),
    }  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    """Return the bytes that hold the state, the state after a reset, and the gates' products."""
    return 4 * int(call.attributes["hidden"]) * (3 + _GATES[str(call.attributes["kind"])])


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    p, r = named["p"], named["r"]
    directions, steps, batch, _ = p.dims
    made: list[Argument] = [pointer(p, DType.F32), *map(i32, p.strides)]
    made += [pointer(r, TYPES[call.dtype]), *map(i32, r.strides)]
    for one in _present(call):
        made += [pointer(named[one], DType.F32), *map(i32, named[one].strides)]
    made += [i32(steps), divisor(batch), i32(call.attributes["reverse"])]
    blocks = combine("mul", directions, batch)
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), tuple(made))
