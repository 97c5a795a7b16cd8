"""2:4 sparse matmul on tensor cores (``mma.sp``) with an epilogue: fp16 and bf16.

The matrix is the left operand, so fragments hold the transpose of the result.  Zeros that are not
stored are not multiplied: where x has an infinity or NaN, the dense product is NaN in all columns,
this one only in those whose stored numbers meet it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import tensor_core_matmul
from tracea_graph.kernels.gpu.launch import (
    Argument,
    Launch,
    constant_buffer_flag,
    divisor,
    i32,
    pointer,
)
from tracea_graph.kernels.gpu.semantic.bank_conflicts import matrix_load, prove_free
from tracea_graph.kernels.gpu.semantic.epilogue_strips import TransposedStrip
from tracea_graph.kernels.gpu.semantic.fragment_layouts import ATOMS, MatrixLoad
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import BarrierMode, Ring, prove
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import LINE, Layout, SwizzleMode
from tracea_graph.kernels.gpu.two_of_four_storage import BLOCK_ROWS, STEPS
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View

__all__ = ["epilogue_arguments", "launch", "name", "parameters", "product_of", "shared"]


@dataclass(frozen=True)
class Tile:
    """Shared-memory layout of a tile of ``m`` rows of x and ``n`` columns of the matrix."""

    m: int
    n: int
    wm: int
    wn: int
    stages: int

    @property
    def values(self) -> Layout:
        """Layout of the matrix: 64 bytes a column; stored lines hold two columns."""
        return Layout(LINE // 2, SwizzleMode.XOR4)

    @property
    def lines(self) -> Layout:
        """Layout in which lines of the matrix, and rows of x, are copied."""
        return Layout(LINE, SwizzleMode.XOR8)

    @property
    def values_bytes(self) -> int:
        return self.n * self.values.pitch

    @property
    def positions_bytes(self) -> int:
        return self.n // BLOCK_ROWS * LINE

    @property
    def stage_bytes(self) -> int:
        return self.values_bytes + self.positions_bytes + self.m * LINE

    @property
    def ring(self) -> Ring:
        return Ring(self.stages, BarrierMode.GROUPS)

    @property
    def strip(self) -> TransposedStrip:
        return TransposedStrip(self.wm, self.wn)

    @property
    def shared(self) -> int:
        warps = self.m // self.wm * (self.n // self.wn)
        return max(self.stages * self.stage_bytes, warps * self.strip.words * 4)


@cache
def _proved(tile: Tile, run: int) -> Tile:
    """Prove a tile free of bank conflicts and its pipeline safe; raises GraphError otherwise."""
    a = MatrixLoad(((0, 0), (8, 0), (0, 8), (8, 8)))
    b = MatrixLoad(((0, 0), (0, 8), (0, 16), (0, 24)))
    prove_free([matrix_load("a", a, tile.values, row, k) for row in range(0, tile.n, BLOCK_ROWS)
                for k in (0, 16)])  # fmt: skip
    prove_free(
        [matrix_load("b", b, tile.lines, row, k) for row in range(0, tile.m, 8) for k in (0, 32)]
    )
    prove_free(tile.strip.accesses(run))
    prove(tile.ring)
    return tile


def _tile(variant: Variant) -> Tile:
    p = variant.params
    return Tile(p["m"], p["n"], p["wm"], p["wn"], p["stages"])


def product_of(call: Call) -> Call:
    """Return the dense matmul of the same shapes and norm; its matrix is a placeholder."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    size = named["y"][0].dims[-1], named["x"].dims[-1]
    w = View(named["values"].buffer, size, (size[1], 1))
    normed = {one: named[one] for one in ("column_sums", "mean", "inverse")}
    return CALLS.make(
        "gemm", call.dtype, layout="nk", chain=call.chain, bias=named["bias"], x=named["x"], w=w,
        inputs=named["inputs"], y=named["y"], **normed, **call.attributes,
    )  # fmt: skip


def name(call: Call) -> str:
    return tensor_core_matmul.name(product_of(call)).replace("gemm_nk", "gemm_two_of_four", 1)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    made = product_of(call)
    tile = _proved(_tile(variant), tensor_core_matmul.vector_length(made))
    return {
        **tensor_core_matmul.epilogue(made),
        "values": tile.values,
        "lines": tile.lines,
        "values_bytes": tile.values_bytes,
        "positions_bytes": tile.positions_bytes,
        "stage_bytes": tile.stage_bytes,
        "ring": tile.ring,
        "strip": tile.strip,
        "span": STEPS,
        "atom": ATOMS[f"m16n8k16.{call.dtype}"],
        "kind": call.dtype,
        "warps_n": tile.n // tile.wn,
        "moments_at": tile.shared,
    }


def shared(call: Call, variant: Variant) -> int:
    normed = tensor_core_matmul.norm_of(call) != "none"
    return _tile(variant).shared + 8 * int(variant.params["m"]) * normed


def epilogue_arguments(call: Call) -> list[Argument]:
    """Return the arguments for the bias, the operands and results of the chain, and the norm."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    chain, made = tensor_core_matmul.chain_of(product_of(call)), list[Argument]()
    if named["bias"] is not None:
        made += [pointer(named["bias"], DType.F32), i32(named["bias"].strides[-1])]
    types = (*chain.operand_types[1:], *chain.result_types)
    for view, dtype in zip((*named["inputs"], *named["y"]), types, strict=True):
        made += [pointer(view, dtype), *map(i32, tensor_core_matmul.strides_of(view, 0))]
    return made + tensor_core_matmul.norm_arguments(product_of(call))


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, values, positions = named["x"], named["values"], named["positions"]
    own, (rows, cols) = tensor_core_matmul.TYPES[call.dtype], named["y"][0].dims
    p = variant.params
    made = [pointer(x, own), pointer(values, own), pointer(positions, DType.U8)]
    made += [*map(i32, x.strides), i32(values.dims[1]), *epilogue_arguments(call)]
    tiles_m, tiles_n = combine("ceildiv", rows, p["m"]), combine("ceildiv", cols, p["n"])
    made += [i32(rows), i32(cols), i32(x.dims[-1]), divisor(tiles_n)]
    made += [constant_buffer_flag(values), constant_buffer_flag(positions)]
    blocks = combine("mul", tiles_m, tiles_n)
    taken = shared(call, variant)
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
