"""Matmuls over the nonzero blocks of a constant matrix by warpgroups, for sm_90a.

The kernel is that of :mod:`warpgroup_matmul`; tiles have the 64 columns of a block, and the
producer reads from the L1 map which slices of x and blocks of w a tile multiplies.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import tensor_core_matmul, warpgroup_matmul
from tracea_graph.kernels.gpu.families.block_sparse_matmul import product_of
from tracea_graph.kernels.gpu.launch import (
    Launch,
    constant_buffer_flag,
    i32,
    pointer,
    tensor_map,
)
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.gpu.zero_block_storage import SIDE
from tracea_graph.kernels.program import Call

__all__ = ["launch", "name", "parameters", "refusal", "shared"]


def name(call: Call) -> str:
    return warpgroup_matmul.name(product_of(call)).replace("wgmma_nk", "wgblocks", 1)


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    return warpgroup_matmul.refusal(product_of(call), variant)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    return {**warpgroup_matmul.parameters(product_of(call), variant), "blocks_of": True}


def shared(call: Call, variant: Variant) -> int:
    return warpgroup_matmul.shared(product_of(call), variant)


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    made, own = product_of(call), tensor_core_matmul.TYPES[call.dtype]
    x, stored = named["x"], tensor_core_matmul.views_by_operand(made)["w"]
    tile = warpgroup_matmul.shared_layout(made, variant)
    boxes = warpgroup_matmul.boxes_of(tile, variant)
    maps = [tensor_map(x, own, boxes[0]), tensor_map(stored, own, boxes[1])]
    tiles_n = combine("ceildiv", named["y"][0].dims[-1], SIDE)
    more = [pointer(named["map"], DType.I32), pointer(named["odd"], DType.F32), pointer(x, own),
            i32(x.strides[0]), i32(tiles_n), constant_buffer_flag(named["map"])]  # fmt: skip
    return warpgroup_matmul.launch_over(made, variant, symbol, maps, x.dims[-1], more)
