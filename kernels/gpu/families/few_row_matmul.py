"""Matmul of few rows by a warpgroup (``wgmma``) for sm_90a: fp16 and bf16.

A tile has 64 rows; a block computes it, or a cluster of blocks that share its depth.  Rows of x
are normalised during the matmul if the call asks for it: ``norm(x) · w`` with gamma in w is
``(x · w − mean · column sums of w) / deviation``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.families import tensor_core_matmul
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES, chain_of, views_by_operand
from tracea_graph.kernels.gpu.families.warpgroup_tile import Vector
from tracea_graph.kernels.gpu.launch import (
    MAP_ALIGN,
    Argument,
    Launch,
    constant_buffer_flag,
    divisor,
    i32,
    pointer,
    tensor_map,
)
from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access, prove_free
from tracea_graph.kernels.gpu.semantic.fragment_layouts import WARP
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import BarrierMode, Ring, prove
from tracea_graph.kernels.gpu.semantic.wgmma_descriptors import (
    Instruction,
    MatrixOperand,
    prove_read,
)
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View

__all__ = [
    "behind",
    "launch",
    "launch_over",
    "name",
    "parameters",
    "refusal",
    "refusal_of_epilogue",
    "shared",
]

_DEPTH, _ROWS = 64, 64
"""Depth of one copied block of the operands, and rows of a tile."""
_LINE = 128
_MOST_STAGES = 24
HALF = 113 << 10
"""Maximum shared memory of a block: two blocks fit an SM, so that the next kernel starts early."""
_WORD = 4


@dataclass(frozen=True)
class EpilogueMatrix:
    """A matrix that the epilogue reads or writes; ``held`` is its element type in registers."""

    name: str
    element: str
    held: str
    size: int


@dataclass(frozen=True)
class Tile:
    """Shared memory of a block after the ring: received sums, moments, vectors and barriers.

    The received sums come from the other blocks of a cluster, which share the tile's depth.
    """

    n: int
    split: int
    normed: bool

    @property
    def columns(self) -> int:
        """Number of columns, a multiple of 8, whose epilogue one of ``split`` blocks computes."""
        return 8 * ceil(self.n / 8 / self.split)

    @property
    def a(self) -> MatrixOperand:
        return MatrixOperand(_ROWS, _DEPTH, True)

    @property
    def b(self) -> MatrixOperand:
        return MatrixOperand(self.n, _DEPTH, True)

    @property
    def received(self) -> int:
        return (self.split - 1) * self.columns * _ROWS * 4

    @property
    def moments_at(self) -> int:
        return self.received + (self.split * _ROWS * 8 if self.normed and self.split > 1 else 0)

    @property
    def vectors_at(self) -> int:
        return self.moments_at + (_ROWS * 8 if self.normed else 0)

    def reads(self) -> list[Access]:
        """Return the accesses of a warp that computes the moments of rows, two lanes per row."""
        found = []
        for j in range(4):
            at = tuple(self.a.layout.offset(i // 2, (i % 2 * 4 + j) * 16) for i in range(WARP))
            found.append(Access("moments", 16, at))
        return found


@cache
def _proved(tile: Tile) -> Tile:
    """Prove a tile's layouts and pipeline; raises GraphError otherwise."""
    prove_read(tile.a, _ROWS)
    prove_read(tile.b, tile.n)
    prove_free(tile.reads())
    for stages in (1, 3):
        prove(Ring(stages, BarrierMode.MBARRIER))
    return tile


def _tile(call: Call, variant: Variant) -> Tile:
    normed = tensor_core_matmul.norm_of(call) != "none"
    return Tile(variant.params["n"], variant.params["split"], normed)


def _vectors(call: Call, variant: Variant) -> tuple[Vector, ...]:
    named, found = views_by_operand(call), list[tuple[str, DType]]()
    found += [(name, DType.F32) for name in ("bias", "column_sums") if named[name] is not None]
    listed = chain_parameters.operands(chain_of(call))[1:]
    found += [(f"x{x.index}", x.dtype) for x in listed if x.kind == "row"]
    tile, made = _tile(call, variant), list[Vector]()
    at = tile.vectors_at
    for one, dtype in found:
        element = chain_parameters.ELEMENTS[dtype]
        made.append(Vector(one, element, element, int(dtype.size), at))
        at += -(-tile.columns * int(dtype.size) // 16) * 16
    return tuple(made)


def _view_of(call: Call, vector: str) -> View:
    named = views_by_operand(call)
    if vector in ("bias", "column_sums"):
        return named[vector]  # type: ignore[no-any-return]
    return named["inputs"][int(vector[1:]) - 1]  # type: ignore[no-any-return]


def _barriers_at(call: Call, variant: Variant) -> int:
    ends = [v.at + -(-_tile(call, variant).columns * v.size // 16) * 16
            for v in _vectors(call, variant)]  # fmt: skip
    return max(ends, default=_tile(call, variant).vectors_at)


def behind(call: Call, variant: Variant) -> int:
    """Return the bytes of shared memory after the ring."""
    return _barriers_at(call, variant) + 8 * (2 * _MOST_STAGES + 2)


def _steps(call: Call, variant: Variant) -> tuple[int, int, int]:
    """Return operand blocks per chunk, chunks per thread block, and chunks held at a time."""
    own = int(views_by_operand(call)["x"].dims[-1]) // _DEPTH // variant.params["split"]
    most = (HALF - behind(call, variant)) // ((_ROWS + variant.params["n"]) * _LINE)
    if own > most:
        return 1, own, max(1, min(most, _MOST_STAGES))
    deep = 2 if own % 2 == 0 else 3 if own % 3 == 0 and own > 3 else 1
    return deep, own // deep, own // deep


def name(call: Call) -> str:
    word = f"few{views_by_operand(call)['x'].dims[-1]}"
    return tensor_core_matmul.name(tensor_core_matmul.without_parts(call)).replace("gemm", word, 1)


def with_depth(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton`` with the depth of ``call``, on which the kernel's source depends."""
    x = skeleton.views[0]
    assert x is not None
    x = replace(x, dims=(x.dims[0], views_by_operand(call)["x"].dims[-1]))
    return replace(skeleton, views=(x, *skeleton.views[1:]))


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    named = views_by_operand(call)
    x, w, depth = named["x"], named["w"], named["x"].dims[-1]
    if len(named["y"][0].dims) > 2 or len(x.dims) > 2 or len(w.dims) > 2:
        return "the kernel computes one matrix, not a batch"
    if call.attributes["layout"] != "nk" or x.strides[-1] != 1 or w.strides[-1] != 1:
        return "tensor maps need operands that are contiguous along the depth"
    if not isinstance(depth, int) or not depth or depth % (_DEPTH * variant.params["split"]):
        return f"the depth of each block is not a known multiple of {_DEPTH}"
    if why := refusal_of_epilogue(call):
        return why
    step = MAP_ALIGN // int(TYPES[call.dtype].size)
    for view in (x, w):
        known = [s for s in (view.strides[0], view.offset) if isinstance(s, int)]
        if any(s % step for s in known):
            return f"tensor maps need row strides that are multiples of {MAP_ALIGN} bytes"
    if shared(call, variant) > ARCHITECTURES["sm_90a"].block_shared:
        return "the epilogue's vectors leave no shared memory for the tile"
    return ""


def refusal_of_epilogue(call: Call) -> str:
    """Return why kernels of few rows cannot compute a matmul's epilogue, or "" if they can."""
    named, chain = views_by_operand(call), chain_of(call)
    taken = [v for v, kind in zip(named["inputs"], chain.operands[1:], strict=True)
             if kind in ("full", "row")]  # fmt: skip
    if any(v.strides[-1] != 1 for v in (*taken, *named["y"])):
        return "the epilogue needs tensors that are contiguous along their last axis"
    if any(int(t.size) > _WORD for t in (*chain.operand_types, *chain.result_types)):
        return "the epilogue has elements of more than 4 bytes"
    return ""


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    call = tensor_core_matmul.without_parts(call)
    tile, chain = _proved(_tile(call, variant)), chain_of(call)
    epilogue = tensor_core_matmul.epilogue(call)
    deep, count, stages = _steps(call, variant)
    narrow = all(dtype in (DType.F16, DType.BF16) for dtype in chain.result_types)
    taken = [x for x in chain_parameters.operands(chain)[1:] if x.kind == "full"]
    small = {
        f"x{x.index}" for x in chain_parameters.operands(chain)[1:] if x.kind in ("col", "scalar")
    }
    words = {"full": "two_x{0}[j][h].at[e]", "row": "at_x{0}.at[e]", "scalar": "ahead_x{0}[h]",
             "col": "ahead_x{0}[h]"}  # fmt: skip
    return {
        **epilogue,
        **chain_parameters.chain_template_parameters(replace(chain,
            fast_math=True) if narrow else chain),
        "strided": False,
        "conv": False,
        "volume": False,
        "read": [EpilogueMatrix(f"x{x.index}", x.element, x.held, int(x.dtype.size))
                 for x in taken],
        "written": [EpilogueMatrix(f"y{y.index}", y.element, y.held, int(y.dtype.size))
                    for y in chain_parameters.results(chain)],
        "narrow": [x for x in epilogue["tensors"] if x.operand and x.name in small],
        "operands_of": [
            words[x.kind].format(x.index) for x in chain_parameters.operands(chain)[1:]
        ],
        "kind": call.dtype,
        "instructions": [Instruction(tile.n, False, True)],
        "a": tile.a,
        "b": tile.b,
        "finishing": tile.n // tile.columns,
        "nb": tile.columns,
        "nj": tile.columns // 8,
        "deep": deep,
        "chunks": count,
        "stages": stages,
        "received_at": 0,
        "received_bytes": tile.received,
        "sent_at": tile.received,
        "moments_at": tile.moments_at,
        "vectors": _vectors(call, variant),
        "barriers_at": _barriers_at(call, variant),
    }  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    line = (_ROWS + variant.params["n"]) * _LINE
    deep, _, stages = _steps(call, variant)
    return stages * deep * line + behind(call, variant)


def _map(view: View, dtype: DType, deep: int, rows: int) -> Argument:
    """Return a tensor map whose copies transfer ``deep`` swizzled blocks of a matrix at a time."""
    height, depth = view.dims[-2:]
    assert isinstance(depth, int)
    blocks = (depth // _DEPTH, height, _DEPTH)
    own = View(view.buffer, blocks, (_DEPTH, view.strides[-2], 1), view.offset)
    return tensor_map(own, dtype, (deep, rows, _DEPTH))


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    call = tensor_core_matmul.without_parts(call)
    named, own, tile = views_by_operand(call), TYPES[call.dtype], _tile(call, variant)
    deep, _, _ = _steps(call, variant)
    maps = [_map(named["x"], own, deep, _ROWS), _map(named["w"], own, deep, tile.n)]
    return launch_over(call, variant, symbol, maps, [], shared(call, variant))


def launch_over(
    call: Call,
    variant: Variant,
    symbol: str,
    maps: Sequence[Argument],
    more: Sequence[Argument],
    taken: int,
) -> Launch:
    """Return the launch of a matmul whose operands are the tensor maps ``maps``.

    ``more`` are further arguments.  A block uses ``taken`` bytes of shared memory.
    """
    named, tile, chain = views_by_operand(call), _tile(call, variant), chain_of(call)
    rows, cols, made = named["x"].dims[-2], named["y"][0].dims[-1], list(maps)
    if named["bias"] is not None:
        made += [pointer(named["bias"], DType.F32), i32(named["bias"].strides[-1])]
    types = (*chain.operand_types[1:], *chain.result_types)
    for view, dtype in zip((*named["inputs"], *named["y"]), types, strict=True):
        made += [pointer(view, dtype), i32(view.strides[-2])]
    made += tensor_core_matmul.norm_arguments(call)
    made += [constant_buffer_flag(_view_of(call, v.name)) for v in _vectors(call, variant)]
    tiles_n = combine("ceildiv", cols, tile.n)
    made += [i32(rows), i32(cols), divisor(tiles_n), *more, constant_buffer_flag(named["w"])]
    blocks = product((combine("ceildiv", rows, _ROWS), tiles_n, tile.split))
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
