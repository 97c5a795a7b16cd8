"""Two matmuls of the same rows whose results are multiplied, one behind an activation, for sm_90a.

A tile has as many columns of the gate's matrix as of the other one, so a thread has sums of both
for the same numbers of the result.  A call stands for one of two matmuls (``part``): kernels of
their own compute them where this one does not; where it does, the last one launches it and the
other launches nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS, GATE_PARTS
from tracea_graph.kernels.gpu.families import warpgroup_matmul
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Launch, constant_buffer_flag, tensor_map
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call
from tracea_graph.ops.chain import FULL, Chain, Step

__all__ = ["CHAIN_ATTRIBUTES", "chain_of_part", "launch", "name", "parameters", "part_of",
           "refusal", "shared", "with_sizes"]  # fmt: skip

CHAIN_ATTRIBUTES = ("activation",)
"""Attributes that give the chain of a part which the call does not hold."""
_PANEL = 64
"""Columns of a matrix stored as ``[K, N]`` that one copy brings."""


def chain_of_part(part: str, activation: str, dtype: str) -> Chain:
    """Return the chain of a matmul that a call stands for, which calls do not hold."""
    own = TYPES[dtype]
    if part == GATE_PARTS[0]:
        return Chain((FULL,), (Step(activation, (0,)),), (1,), (), (own,))
    return Chain((FULL, FULL), (Step("mul", (1, 0)),), (2,), (TYPES["f32"], own), (own,))


def part_of(call: Call) -> Call:
    """Return the matmul that a call stands for."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    part, a = str(call.attributes["part"]), call.attributes
    first = part == GATE_PARTS[0]
    chain = chain_of_part(part, str(a["activation"]), call.dtype)
    made = CALLS.make(
        "gemm", call.dtype, x=named["x"], w=named["w" if first else "v"],
        inputs=[] if first else [named["gate"]], y=[named["gate" if first else "y"]],
        partial=named["partial"], arrivals=named["arrivals"], layout=a["layout"], chain=chain,
    )  # fmt: skip
    return replace(made, step=call.step)


def _product(call: Call) -> Call:
    """Return a matmul of as many columns as the result has, in place of both."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    chain = Chain((FULL,), (), (0,), (), (TYPES[call.dtype],))
    return CALLS.make("gemm", call.dtype, x=named["x"], w=named["w"], y=[named["y"]],
                      layout=call.attributes["layout"], chain=chain)  # fmt: skip


def with_sizes(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton``: the kernel's source does not depend on sizes."""
    return skeleton


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    named, product = dict[str, Any](CALLS.of(call).named(call)), _product(call)
    if call.attributes["layout"] == "kn" and variant.params["n"] % (2 * _PANEL):
        return "w is stored as [K, N], and half of the tile's columns are no multiple of 64"
    if named["x"].buffer.kind != "temp":  # the first part could not know which kernel is launched
        return "rows are those of an input, which may lie at any address"
    operands = [named[one] for one in ("x", "w", "v")]
    if not all(isinstance(n, int) for v in operands for n in (v.strides[0], v.offset)):
        return "it is not known whether tensor maps can copy the operands"
    if isinstance(step := named["y"].strides[0], int) and step % (16 // 2):
        return "rows of the result are not aligned to 16 bytes"
    other = replace(product, views=tuple(named["v"] if v is named["w"] else v
                                         for v in product.views))  # fmt: skip
    found = (warpgroup_matmul.refusal(one, variant) for one in (product, other))
    return next((why for why in found if why), "")


def name(call: Call) -> str:
    return f"wgmma_gated_{call.attributes['layout']}_{call.attributes['activation']}"


def shared(call: Call, variant: Variant) -> int:
    return warpgroup_matmul.shared(_product(call), variant)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    activation = str(call.attributes["activation"])
    own = Chain((FULL, FULL), (Step(activation, (1,)), Step("mul", (2, 0))), (3,), (),
                (TYPES[call.dtype],))  # fmt: skip
    return {
        **warpgroup_matmul.parameters(_product(call), variant),
        **chain_parameters.chain_template_parameters(own),
        "operands_of": ["sums[i][(first / 8 + j) * 4 + h * 2 + e]"],
    }


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    """Return the launch of a call; that of the first part has no blocks."""
    product = _product(call)
    if call.attributes["part"] == GATE_PARTS[0]:
        taken = warpgroup_matmul.shared(product, variant)
        return Launch(symbol, (0, 1, 1), variant.threads, taken, ())
    named: dict[str, Any] = CALLS.of(call).named(call)
    own, tile = TYPES[call.dtype], warpgroup_matmul.shared_layout(product, variant)
    height, width = tile.b.box
    box = (height // 2, width) if tile.by_depth else (height, width)
    maps = [tensor_map(named["x"], own, tile.a.box)]
    maps += [tensor_map(named[one], own, box) for one in ("w", "v")]
    return warpgroup_matmul.launch_over(product, variant, symbol, maps, named["x"].dims[-1],
                                        [constant_buffer_flag(named["v"])])  # fmt: skip
