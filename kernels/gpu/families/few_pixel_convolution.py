"""Implicit-GEMM convolution with few results by a warpgroup, for sm_90a: fp16 and bf16.

The matmul is that of :mod:`few_row_matmul` without a norm.  A tile has 64 pixels; a block computes
it, or a cluster of blocks that share its depth.  Tensor maps transfer the pixels of each tap, 64
channels at a time.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from tracea_graph.ir import product
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import (
    few_row_matmul,
    tensor_core_matmul,
    warpgroup_convolution,
)
from tracea_graph.kernels.gpu.families.convolution import (
    groups_of,
    is_of_volumes,
    product_of,
)
from tracea_graph.kernels.gpu.families.warpgroup_convolution import CHANNELS
from tracea_graph.kernels.gpu.launch import Launch, i32
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "refusal", "shared", "steps_of"]

_ROWS, _LINE, _ALIGN = 64, 128, 1024
_MOST_STAGES = 12


def _product(call: Call, variant: Variant) -> Call:
    """Return the matmul, with a placeholder for the depth, which the kernel does not depend on."""
    made = tensor_core_matmul.without_parts(product_of(call))
    x, *rest = made.views
    assert x is not None
    depth = CHANNELS * variant.params["split"]
    x = replace(x, dims=(x.dims[0], depth), strides=(depth, 1), offset=0)
    return replace(made, views=(x, *rest))


def steps_of(call: Call) -> int:
    """Return the number of steps over the depth; each covers up to 64 channels of one tap.

    Returns 0 if the number varies at run time.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    taps, channels = product(named["w"].dims[1:-1]), named["w"].dims[-1]
    known = isinstance(taps, int) and isinstance(channels, int)
    return taps * ceil(channels / CHANNELS) if known else 0


def _ring_at(call: Call, variant: Variant) -> int:
    """Return the bytes before the ring.  The ring is last: its length differs between launches."""
    taken = few_row_matmul.behind(_product(call, variant), variant)
    return -(-taken // _ALIGN) * _ALIGN


def _stages(call: Call, variant: Variant) -> int:
    line = (_ROWS + variant.params["n"]) * _LINE
    return min(_MOST_STAGES, (few_row_matmul.HALF - _ring_at(call, variant)) // line)


def name(call: Call) -> str:
    made = tensor_core_matmul.without_parts(product_of(call))
    own = "conv3d" if is_of_volumes(call) else "conv"
    return tensor_core_matmul.name(made).replace("gemm_nk", f"few{own}", 1)


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    if why := warpgroup_convolution.refusal_of_image(call):
        return why
    if groups_of(call) > 1:
        return "the kernel computes one group of channels"
    if steps_of(call) < variant.params["split"]:
        return f"the depth lacks a step of {CHANNELS} channels for each block"
    made = _product(call, variant)
    if why := few_row_matmul.refusal_of_epilogue(made):
        return why
    if shared(call, variant) > ARCHITECTURES["sm_90a"].block_shared:
        return "the epilogue's vectors leave no shared memory for the tile"
    return ""


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    return {
        **few_row_matmul.parameters(_product(call, variant), variant),
        "conv": True,
        "volume": is_of_volumes(call),
        "stages": _stages(call, variant),
        "ring_at": _ring_at(call, variant),
    }


def shared(call: Call, variant: Variant) -> int:
    """Return the most shared memory of a block in bytes; launches of short depth use less."""
    line = (_ROWS + variant.params["n"]) * _LINE
    return _ring_at(call, variant) + _stages(call, variant) * line


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    n, split = variant.params["n"], variant.params["split"]
    maps, more, steps = warpgroup_convolution.operands(call, _ROWS, n)
    known = steps_of(call)
    stages = min(_stages(call, variant), ceil(known / split)) if known else _stages(call, variant)
    taken = _ring_at(call, variant) + stages * (_ROWS + n) * _LINE
    own = [i32(steps), i32(stages), *more]
    return few_row_matmul.launch_over(_product(call, variant), variant, symbol, maps, own, taken)
