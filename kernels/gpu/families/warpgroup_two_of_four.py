"""2:4 sparse matmul by warpgroups (``wgmma.mma_async.sp``) with an epilogue, for sm_90a.

One warpgroup copies slices of the matrix, positions and rows of x by tensor maps; two others
multiply.  The matrix is the left operand, so sums are transposed in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import tensor_core_matmul, two_of_four_matmul
from tracea_graph.kernels.gpu.families.fast_gelu import last_gelu, without_last
from tracea_graph.kernels.gpu.families.two_of_four_matmul import epilogue_arguments, product_of
from tracea_graph.kernels.gpu.families.warpgroup_matmul import MOST_PARTS
from tracea_graph.kernels.gpu.launch import (
    MAP_ALIGN,
    Launch,
    constant_buffer_flag,
    divisor,
    i32,
    pointer,
    tensor_map,
)
from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access, matrix_load, prove_free
from tracea_graph.kernels.gpu.semantic.epilogue_strips import TransposedStrip
from tracea_graph.kernels.gpu.semantic.fragment_layouts import WARP, MatrixLoad
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import BarrierMode, Ring, prove
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import LINE, RUN, Layout, SwizzleMode
from tracea_graph.kernels.gpu.semantic.wgmma_descriptors import (
    Instruction,
    MatrixOperand,
    SparseOperand,
    prove_read,
)
from tracea_graph.kernels.gpu.two_of_four_storage import BLOCK_ROWS, STEPS
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View

__all__ = ["launch", "name", "parameters", "refusal", "shared"]

_ROWS = 64
"""Columns of the matrix that one instruction multiplies."""
_STRIP = 64
"""Rows of x whose sums a warpgroup transposes at a time."""
_LINES = 8 * LINE
"""Alignment of what tensor maps copy: the period of their swizzle, in bytes."""
_BAND = 8
"""Number of tiles of a column that are computed before those of the next column."""
_PRODUCER, _CONSUMER = 24, 240
"""Registers of a thread that copies, and of one that multiplies."""
_BARRIER, _WORD = 8, 4
_MOST_SUMS = 192 * 128
"""Sums of a tile that leave registers for a norm of x beside one of the residual."""


@dataclass(frozen=True)
class Tile:
    """Shared memory of a tile of ``m`` rows of x and ``n`` columns of the matrix."""

    m: int
    n: int
    stages: int
    halves: bool
    """Whether sums are rounded to 16 bits before they are transposed."""
    normed: bool = False
    """Whether rows of x are normalised, whose moments each warpgroup keeps."""
    heights: int = 0
    """Number of operands of the epilogue with one number for each row."""
    counted: bool = False
    """Whether rows of the result are summed."""

    @property
    def a(self) -> SparseOperand:
        return SparseOperand(self.n)

    @property
    def b(self) -> MatrixOperand:
        return MatrixOperand(self.m, STEPS, True)

    @property
    def positions_bytes(self) -> int:
        return self.n // BLOCK_ROWS * LINE

    @property
    def x_at(self) -> int:
        return self.a.nbytes + -(-self.positions_bytes // _LINES) * _LINES

    @property
    def stage_bytes(self) -> int:
        return self.x_at + self.b.nbytes

    @property
    def ring(self) -> Ring:
        return Ring(self.stages, BarrierMode.MBARRIER)

    @property
    def tall(self) -> int:
        """Number of instructions along the columns of the matrix that one warpgroup computes."""
        return self.n // _ROWS // 2

    @property
    def strip(self) -> TransposedStrip:
        """Layout of the sums of a strip in float32."""
        return TransposedStrip(_STRIP, _ROWS)

    @property
    def lines(self) -> Layout:
        """Layout of a strip in 16 bits: 64 columns of a row of y are a line."""
        return Layout(LINE, SwizzleMode.XOR8)

    @property
    def strip_bytes(self) -> int:
        """Half of what a warpgroup transposes sums in."""
        return _STRIP * LINE if self.halves else 2 * self.strip.words

    @property
    def strips_at(self) -> int:
        return self.stages * self.stage_bytes

    @property
    def barriers_at(self) -> int:
        return self.strips_at + 4 * self.strip_bytes

    @property
    def rows_at(self) -> int:
        """Offset of the numbers that belong to rows, of one warpgroup after the other."""
        return self.barriers_at + -(-2 * self.stages * _BARRIER // RUN) * RUN

    @property
    def row_bytes(self) -> int:
        """Bytes of a warpgroup's moments and of the operands with a number for each row."""
        return self.m * _WORD * (2 * self.normed + self.heights)

    @property
    def sums_at(self) -> int:
        """Offset of sums of rows: those of two tiles, of both warpgroups."""
        return self.rows_at + 2 * self.row_bytes

    @property
    def shared(self) -> int:
        return self.sums_at + 4 * self.m * 2 * _WORD * self.counted


@cache
def _proved(tile: Tile, run: int) -> Tile:
    """Prove a tile's layouts and pipeline; raises GraphError otherwise."""
    prove_read(tile.a, _ROWS)
    prove_read(tile.b, tile.m)
    if tile.halves:
        blocks = MatrixLoad(((0, 0), (0, 8), (8, 0), (8, 8)))
        prove_free([matrix_load("blocks", blocks, tile.lines, row, col)
                    for row in range(0, _STRIP, 16) for col in range(0, _ROWS, 16)])  # fmt: skip
        runs = [tuple(tile.lines.offset(row + lane // 8, lane % 8 * RUN) for lane in range(WARP))
                for row in range(0, _STRIP, 4)]  # fmt: skip
        prove_free([Access("runs", RUN, at) for at in runs])
        rows = MatrixLoad(((0, 0), (8, 0), (0, 8), (8, 8)))
        prove_free([matrix_load("rows", rows, tile.lines, row, col)
                    for row in range(0, _STRIP, 16) for col in range(0, _ROWS, 16)])  # fmt: skip
    else:
        prove_free(tile.strip.accesses(run))
    prove(tile.ring)
    return tile


def _tile(call: Call, variant: Variant) -> Tile:
    p, product = variant.params, product_of(call)
    halves = _in_halves(product)
    heights = len(_heights(product)) if halves else 0
    normed = tensor_core_matmul.norm_of(call) != "none"
    return Tile(p["m"], p["n"], p["stages"], halves, normed, heights, _sums(call)[1] is not None)


def _sums(call: Call) -> tuple[View | None, View | None]:
    """Return the views ``x_sums`` and ``y_sums`` of a call; None for one that it does not have."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    return named["x_sums"], named["y_sums"]


def _heights(product: Call) -> list[str]:
    """Return the operands of the epilogue that have one number for each row."""
    listed = chain_parameters.operands(tensor_core_matmul.chain_of(product))[1:]
    return [f"x{x.index}" for x in listed if x.kind == "col"]


def _in_halves(product: Call) -> bool:
    """Whether the epilogue writes one result of 16 bits, and reads such a matrix at most."""
    chain = tensor_core_matmul.chain_of(product)
    read = [t for t, kind in zip(chain.operand_types[1:], chain.operands[1:], strict=True)
            if kind == "full"]  # fmt: skip
    sizes = {int(t.size) for t in (*read, *chain.result_types)}
    return len(read) <= 1 and len(chain.result_types) == 1 and sizes == {2}


def name(call: Call) -> str:
    own = two_of_four_matmul.name(call).replace("gemm", "wgmma", 1)
    return f"{own}_summed" if _sums(call)[1] is not None else own


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    x = named["x"]
    if x.strides[-1] != 1:
        return "tensor maps need operands that are contiguous along their last axis"
    step = MAP_ALIGN // int(tensor_core_matmul.TYPES[call.dtype].size)
    for view in (x, named["values"]):
        if any(isinstance(s, int) and s % step for s in (*view.strides[:-1], view.offset)):
            return f"tensor maps need row strides that are multiples of {MAP_ALIGN} bytes"
    columns = named["values"].dims[1] * 2
    if not isinstance(columns, int) or columns % variant.params["n"]:
        return f"{columns} stored columns are no multiple of the tile's"
    if why := _refusal_of_sums(call, variant):
        return why
    if shared(call, variant) > ARCHITECTURES["sm_90a"].block_shared:
        return "a tile takes more shared memory than a block can have"
    return ""


def _refusal_of_sums(call: Call, variant: Variant) -> str:
    """Return why a variant cannot normalise rows of x, or sum rows of the result; else ""."""
    (taken, made), product = _sums(call), product_of(call)
    named: dict[str, Any] = CALLS.of(call).named(call)
    if tensor_core_matmul.norm_of(call) != "none" and taken is None:
        return "the kernel normalises rows only by sums of their parts"
    if taken is not None and not (isinstance(taken.dims[1], int) and taken.dims[1] <= MOST_PARTS):
        return f"the kernel adds up at most {MOST_PARTS} partial sums of a row"
    crowded = variant.params["n"] * variant.params["m"] > _MOST_SUMS
    if crowded and taken is not None and made is not None and _heights(product):
        return "accumulators leave no registers for two norms"
    if made is not None and not _in_halves(product):
        return "only rows of one result of 16 bits are summed"
    width = named["y"][0].dims[-1]
    if made is not None and combine("mul", made.dims[1], variant.params["n"]) != width:
        return "partial sums are requested of columns that are not those of one tile"
    return ""


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    made = product_of(call)
    tile = _proved(_tile(call, variant), tensor_core_matmul.vector_length(made))
    epilogue, chain = tensor_core_matmul.epilogue(made), tensor_core_matmul.chain_of(made)
    full = [i for i, kind in enumerate(chain.operands) if kind == "full"][1:]
    tensors = {t.name: t for t in epilogue["tensors"]}
    gelu = last_gelu(chain) if tile.halves else None
    if gelu:
        own = without_last(chain, 1)
        epilogue |= chain_parameters.chain_template_parameters(own)
    return {
        **epilogue,
        "gelu": gelu,
        "halves": tile.halves,
        "read": tensors[f"x{full[0]}"] if full else None,
        "heights": [tensors[one] for one in _heights(made)] if tile.halves else [],
        "rows_at": tile.rows_at,
        "row_bytes": tile.row_bytes,
        "sums_at": tile.sums_at,
        "counted": tile.counted,
        "most_parts": MOST_PARTS,
        "written": tensors["y0"],
        "lines": tile.lines,
        "strip_bytes": tile.strip_bytes,
        "a": tile.a,
        "b": tile.b,
        "ring": tile.ring,
        "strip": tile.strip,
        "tall": tile.tall,
        "kind": call.dtype,
        "span": STEPS,
        "instructions": [Instruction(tile.m, False, True, sparse=True)],
        "positions_at": tile.a.nbytes,
        "x_at": tile.x_at,
        "stage_bytes": tile.stage_bytes,
        "copied_bytes": tile.a.nbytes + tile.positions_bytes + tile.b.nbytes,
        "strips_at": tile.strips_at,
        "barriers_at": tile.barriers_at,
        "band": _BAND,
        "producer_registers": _PRODUCER,
        "consumer_registers": _CONSUMER,
    }


def shared(call: Call, variant: Variant) -> int:
    return _tile(call, variant).shared


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, values, positions = named["x"], named["values"], named["positions"]
    own, (rows, cols) = tensor_core_matmul.TYPES[call.dtype], named["y"][0].dims
    tile = _tile(call, variant)
    made = [
        tensor_map(values, own, (1, tile.n // 2, STEPS)),
        tensor_map(positions, DType.U8, (1, tile.n // BLOCK_ROWS, LINE)),
        tensor_map(x, own, tile.b.box),
    ]
    made += epilogue_arguments(call)
    made += [one for sums in _sums(call) if sums is not None
             for one in (pointer(sums, DType.F32), i32(sums.dims[1]))]  # fmt: skip
    tiles_m, tiles_n = combine("ceildiv", rows, tile.m), combine("ceildiv", cols, tile.n)
    blocks = combine("mul", tiles_m, tiles_n)
    made += [*map(i32, (rows, cols, x.dims[-1], blocks, tiles_m))]
    made += [divisor(combine("mul", tiles_n, _BAND))]
    made += [constant_buffer_flag(values), constant_buffer_flag(positions)]
    taken = shared(call, variant)
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made), persistent=1)
