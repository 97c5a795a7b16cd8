"""Pack images of few channels: pixels of 8 or 16 bytes, channels last, with zeros around them."""

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


def name(call: Call) -> str:
    a = call.attributes
    chain = f"_{call.chain.key:016x}" if call.chain else ""
    return f"pack_{a['x_type']}_{a['lines']}x{a['held']}{chain}"


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    a, chain = call.attributes, {}
    if call.chain is not None:
        chain = chain_parameters.chain_template_parameters(call.chain, rounded_by_sums=True)
    return {
        **chain,
        "chained": call.chain is not None,
        "source": chain_parameters.ELEMENTS[_source(call)],
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "lines": a["lines"],
        "held": a["held"],
    }


def _source(call: Call) -> DType:
    return DType.from_short(str(call.attributes["x_type"]))


def shared(call: Call, variant: Variant) -> int:
    return 0


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, y, a = named["x"], named["y"], call.attributes
    pixels = product(y.dims[:3])
    made = (
        pointer(x, _source(call)), pointer(y, TYPES[call.dtype]), *map(i32, x.strides),
        *map(i32, x.dims[1:]), divisor(product(y.dims[1:3])), divisor(y.dims[2]),
        i32(a["top"]), i32(a["left"]), i32(pixels),
    )  # fmt: skip
    blocks = combine("ceildiv", pixels, variant.threads)
    return Launch(symbol, (blocks, 1, 1), variant.threads, 0, made)
