"""The kernel variants: one line per op, element type, instruction set and tile.

Several tiles of one op, type and level may stand side by side.  A library holds one of them: the
one it is asked for, else the first that is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tracea_graph.kernels.cpu.levels import isa_of
from tracea_graph.kernels.program import Call
from tracea_graph.ops.int16 import LIMIT, RUN

__all__ = [
    "NO_TILES",
    "VARIANTS",
    "Tiles",
    "Variant",
    "conv_bf16_tile",
    "conv_tile",
    "find",
    "gemm_bf16_tile",
    "gemm_tile",
]  # fmt: skip

PANEL = 16
"""Columns of one packed weight panel (``TRACEA_PANEL``)."""

_NOTHING: Mapping[str, object] = MappingProxyType({})
_ELEMENTS = MappingProxyType({"int16": "i16", "bf16x2": "bf16"})
"""Element types that are called otherwise than what a kernel multiplies."""
Tiles = Mapping[tuple[str, str], str]
"""Tiles that are asked for, by kernel and level."""
NO_TILES: Tiles = MappingProxyType({})


@dataclass(frozen=True)
class Variant:
    """One kernel for one instruction set.

    ``tile`` is the part of the symbol that tells the tile; ``params`` are what the template asks
    for beyond it; ``functions`` the vector functions its text uses; ``dtype`` what it multiplies,
    as records of calls say it.
    """

    op: str
    isa: str
    template: str
    tile: str
    params: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    functions: frozenset[str] = frozenset()
    dtype: str = "f32"

    @property
    def kernel(self) -> str:
        """Its op and element type, in one word."""
        return Call.name_of(self.op, self.dtype)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What no two variants have in common."""
        return self.op, self.dtype, self.isa, self.tile

    @property
    def element(self) -> str:
        """The type of the numbers it multiplies."""
        return _ELEMENTS.get(self.dtype, self.dtype)

    def symbol(self, name: str) -> str:
        """``tracea_<element>_<name>[_<tile>]__<isa>``."""
        tile = f"_{self.tile}" if self.tile else ""
        return f"tracea_{self.element}_{name}{tile}__{self.isa}"


def _gemm(isa: str, mr: int, nv: int, dot_rows: int) -> Variant:
    """A product on tiles up to ``mr`` rows by ``nv`` panels; all accumulators fit registers.

    ``dot_rows``: rows at once where the right operand is read along k.
    """
    params = {"mr": mr, "nv": nv, "dot_rows": dot_rows}
    functions = frozenset({"sums", "transpose"})
    return Variant("gemm", isa, "gemm.cpp.in", f"{mr}x{nv * PANEL}", params, functions)


def _gemm_bf16(isa: str, mr: int, nv: int) -> Variant:
    """The same on pairs of bf16, right operand packed; the left one in bf16 or float32."""
    params = {"mr": mr, "nv": nv, "matrix": False}
    functions = frozenset({"halves", "pairs"})
    tile = f"{mr}x{nv * PANEL}"
    return Variant("gemm", isa, "gemm_bf16.cpp.in", tile, params, functions, "bf16")


def _gemm_int16(isa: str, mr: int, nv: int) -> Variant:
    """The same on pairs of 16-bit integers, the tile that of float32."""
    params = {"mr": mr, "nv": nv, "run": RUN, "limit": LIMIT}
    functions, tile = frozenset({"int16"}), f"{mr}x{nv * PANEL}"
    return Variant("gemm", isa, "gemm_int16.cpp.in", tile, params, functions, "int16")


def _gemm_bf16x2(isa: str, mr: int, nv: int, matrix: bool = False) -> Variant:
    """The same on sums of two numbers in bf16: three products in bf16 (``split_bf16``)."""
    params = {"mr": mr, "nv": nv, "matrix": matrix}
    functions, tile = frozenset({"halves", "pairs"}), f"{mr}x{nv * PANEL}"
    return Variant("gemm", isa, "gemm_bf16x2.cpp.in", tile, params, functions, "bf16x2")


def _gemm_blocks(isa: str, *rows: int) -> Variant:
    """A product by stored blocks, on tiles of one of ``rows``: largest first, ending in 1."""
    steps = 2 if isa == "avx2" else 4  # of k at once; with four, gcc runs out of registers there
    params = {"rows": rows, "dtype": "f32", "steps": steps}
    return Variant("gemm_block_sparse", isa, "gemm_block_sparse.cpp.in", f"{rows[0]}x16", params)


def _gemm_blocks_bf16(isa: str, *rows: int) -> Variant:
    """The same in pairs of bf16."""
    same = _gemm_blocks(isa, *rows)
    params, functions = (
        {**same.params, "dtype": "bf16", "steps": 2},
        frozenset({"halves", "pairs"}),
    )
    return replace(same, params=params, functions=functions, dtype="bf16")


def _gemm_masked(isa: str, rows: int, sums: int) -> tuple[Variant, Variant]:
    """Products by stored numbers, in float32 and in bf16: up to ``rows`` rows at once, steps of k
    in ``sums`` sums."""
    params = {"rows": rows, "sums": sums, "dtype": "f32"}
    functions = frozenset({"expand"})
    same = Variant("gemm_bitmap", isa, "gemm_bitmap.cpp.in", f"{rows}x16", params, functions)
    half = {**params, "dtype": "bf16"}
    return same, replace(same, params=half, functions=functions | {"halves"}, dtype="bf16")


def _gemm_amx(isa: str, mr: int, nv: int) -> Variant:
    """Pairs on 2 x 2 matrix tiles of 16 x 16; a left operand in float32 on ``mr`` by ``nv``."""
    params = {"mr": mr, "nv": nv, "matrix": True}
    functions = frozenset({"halves", "pairs"})
    return Variant("gemm", isa, "gemm_bf16.cpp.in", "32x32", params, functions, "bf16")


def _norm(isa: str, rows: int) -> Variant:
    tile = f"{rows}x{isa_of(isa).width}"
    return Variant("norm", isa, "norm.cpp.in", tile, {"rows": rows}, frozenset({"halves"}))


def _gather(isa: str) -> Variant:
    return Variant("gather", isa, "gather.cpp.in", f"1x{isa_of(isa).width}")


def _copy(isa: str) -> Variant:
    width = isa_of(isa).width
    return Variant("copy", isa, "copy.cpp.in", f"{width}x{width}", functions=frozenset({"turn"}))


def _attention(isa: str, rows: tuple[int, ...], panels: tuple[int, ...]) -> Variant:
    """Register tiles of ``rows`` by ``panels``, each largest first and ending in 1."""
    params: dict[str, object] = {
        "dtype": "f32", "query_block": 24, "key_block": 256, "rows": rows, "panels": panels,
        "matrix": False,
    }  # fmt: skip
    functions = frozenset({"exp_neg", "exp_fast", "sums", "tanh", "transpose"})
    return Variant("attention", isa, "attention.cpp.in", "24x256", params, functions)


def _attention_bf16(
    isa: str, rows: tuple[int, ...], panels: tuple[int, ...], matrix: bool = False
) -> Variant:
    """The same with both products in bf16, perhaps on ``matrix`` tiles of 16 x 16."""
    same = _attention(isa, rows, panels)
    functions = same.functions - {"sums"} | {"halves", "pairs"}
    return replace(
        same,
        dtype="bf16",
        params={**same.params, "dtype": "bf16", "matrix": matrix},
        functions=functions,
    )


def _conv(isa: str, pixels: int, nv: int) -> Variant:
    """A convolution on tiles up to ``pixels`` (even) outputs by ``nv`` channel blocks.

    Where there are few output channels, about ``sums`` vectors are summed at once.
    """
    sums = {1: 4, 8: 10, 16: 22}[isa_of(isa).width]
    eights = isa_of(isa).width == 16 and nv > 1
    params = {"pixels": pixels, "nv": nv, "sums": sums, "eights": eights}
    functions = frozenset({"sums", "eights"} if eights else {"sums"})
    return Variant("conv", isa, "conv.cpp.in", f"{pixels}x{nv * PANEL}", params, functions)


def _depthwise(isa: str, *widths: int) -> Variant:
    """Lines in pieces of one of ``widths`` outputs: largest first, ending in 1."""
    params = {"dtype": "f32", "widths": widths, "pairs": False}
    return Variant("depthwise", isa, "depthwise.cpp.in", f"{widths[0]}x16", params)


def _conv_bf16(isa: str, pixels: int, nv: int, matrix: bool = False) -> Variant:
    """The same on pairs of bf16, or of float32 with results in bf16.

    On ``matrix`` tiles pairs take 2 x 2 of 16 x 16; ``pixels`` and ``nv`` are those of float32.
    """
    same = _conv(isa, pixels, nv)
    eights = not matrix and same.params["eights"]
    return replace(
        same, template="conv_bf16.cpp.in", dtype="bf16",
        tile="32x32" if matrix else same.tile,
        params={**same.params, "matrix": matrix, "eights": eights},
        functions=frozenset({"halves", "pairs"} | ({"eights"} if eights else set())),
    )  # fmt: skip


def _conv_bf16x2(isa: str, pixels: int, nv: int, matrix: bool = False) -> Variant:
    """The same on sums of two numbers in bf16."""
    same = _conv_bf16(isa, pixels, nv, matrix)
    return replace(
        same, template="conv_bf16x2.cpp.in", dtype="bf16x2",
        params={**same.params, "eights": False}, functions=frozenset({"halves", "pairs"}),
    )  # fmt: skip


def _depthwise_bf16(isa: str, *widths: int) -> Variant:
    """The same with inputs in bf16; sums stay in float32, and weights where no instruction
    multiplies pairs of bf16, or one is slower than two in float32, as beside matrix tiles."""
    same = _depthwise(isa, *widths)
    pairs = isa == "avx512bf16"
    params = {**same.params, "dtype": "bf16", "pairs": pairs}
    functions = frozenset({"halves", "pairs"} if pairs else {"halves"})
    return replace(same, params=params, functions=functions, dtype="bf16")


def _winograd_bf16(isa: str) -> Variant:
    """Winograd's transforms from and to bf16."""
    params, functions = {"dtype": "bf16"}, frozenset({"halves"})
    return Variant("winograd", isa, "winograd.cpp.in", "", params, functions, "bf16")


def _convs_int16(isa: str, pixels: int, nv: int) -> tuple[Variant, Variant]:
    """The same on pairs of 16-bit integers, and Winograd's transforms to and from them."""
    same, functions = _conv(isa, pixels, nv), frozenset({"int16"})
    params = {**same.params, "eights": False}
    return replace(
        same, template="conv_int16.cpp.in", params=params, functions=functions, dtype="int16"
    ), Variant("winograd", isa, "winograd.cpp.in", "", {"dtype": "int16"}, functions, "int16")


def _blocked(isa: str) -> tuple[Variant, ...]:
    """What only moves or joins blocked values, and the convolution of plain ones."""
    turn = frozenset({"transpose"} if isa != "scalar" else ())
    rows, vectors = {1: (4, 2), 8: (4, 3), 16: (8, 3)}[isa_of(isa).width]
    plain = {"rows": rows, "vectors": vectors}
    taken = frozenset({"mask", "any"})
    pool = Variant("pool", isa, "pool.cpp.in", "4x16", {"pixels": 4, "dtype": "f32"}, taken)
    half = {**pool.params, "dtype": "bf16"}
    return (
        pool,
        replace(pool, params=half, functions=taken | {"halves"}, dtype="bf16"),
        Variant("resize", isa, "resize.cpp.in", "1x16"),
        Variant(
            "channel_shuffle",
            isa,
            "channel_shuffle.cpp.in",
            "1x16",
            functions=frozenset({"permute"}),
        ),
        Variant("reorder", isa, "reorder.cpp.in", "", functions=turn),
        Variant("conv_plain", isa, "conv_plain.cpp.in", f"{rows}x{vectors}", plain),
        Variant("winograd", isa, "winograd.cpp.in", "", {"dtype": "f32"}),
    )


def _reduce(isa: str) -> Variant:
    functions = frozenset({"nan_max"})
    return Variant("reduce", isa, "reduce.cpp.in", f"{isa_of(isa).width}", functions=functions)


def _arg(isa: str, vectors: int) -> Variant:
    """``vectors`` of columns at once."""
    tile, params = f"{vectors}x{isa_of(isa).width}", {"vectors": vectors}
    return Variant(
        "arg_reduce", isa, "arg_reduce.cpp.in", tile, params, frozenset({"mask", "places"})
    )


def _top_k(isa: str) -> Variant:
    functions = frozenset({"mask", "any"})
    return Variant("top_k", isa, "top_k.cpp.in", f"{isa_of(isa).width}", functions=functions)


def _softmax(isa: str, rows: int) -> Variant:
    functions = frozenset({"exp_neg", "mantissa", "log1", "log"})
    tile = f"{rows}x{isa_of(isa).width}"
    return Variant("softmax", isa, "softmax.cpp.in", tile, {"rows": rows}, functions)


def _recurrent(isa: str, vectors: int, lstm: int, gru: int, few: int) -> Variant:
    """``vectors`` of units of each gate for up to ``lstm`` or ``gru`` rows; for a ``few``, where
    gates alone would leave registers empty, several times as many."""
    cells = {
        "lstm": (lstm, 0, 1), "gru": (gru, few, 2), "gru_gates": (gru, few, 2),
        "gru_state": (gru, few, 4),
    }  # fmt: skip
    functions = frozenset({"sigmoid", "tanh"})
    tile = f"{lstm}x{vectors * isa_of(isa).width}"
    ends = {name: name.title().replace("_", "") for name in cells}
    params = {"vectors": vectors, "cells": cells, "ends": ends}
    return Variant("recurrent", isa, "recurrent.cpp.in", tile, params, functions)


_BASES = ("scalar", "avx2", "avx512")
_ALL = (*_BASES, "avx512bf16")
VARIANTS = (
    _gemm("scalar", 4, 1, 2),
    _gemm("avx2", 6, 1, 2),
    _gemm("avx512", 8, 3, 4),
    _gemm_bf16("scalar", 4, 1),
    _gemm_bf16("avx2", 6, 1),
    _gemm_bf16("avx512", 8, 3),
    _gemm_bf16("avx512bf16", 8, 3),
    _gemm_amx("amxbf16", 8, 3),
    _gemm_int16("scalar", 4, 1),
    _gemm_int16("avx2", 6, 1),
    _gemm_int16("avx512", 8, 3),
    _gemm_int16("avx512bf16", 8, 3),
    _gemm_bf16x2("scalar", 4, 1),
    _gemm_bf16x2("avx2", 6, 1),
    _gemm_bf16x2("avx512", 8, 3),
    _gemm_bf16x2("avx512bf16", 8, 3),
    _gemm_bf16x2("amxbf16", 32, 2, matrix=True),
    *(_norm(isa, 4) for isa in _ALL),
    *map(_gather, _BASES),
    *map(_copy, _BASES),
    _attention("scalar", (4, 1), (1,)),
    _attention("avx2", (6, 4, 2, 1), (1,)),
    _attention("avx512", (6, 4, 2, 1), (4, 2, 1)),
    _attention_bf16("scalar", (4, 1), (1,)),
    _attention_bf16("avx2", (6, 4, 2, 1), (1,)),
    _attention_bf16("avx512", (6, 4, 2, 1), (4, 2, 1)),
    _attention_bf16("avx512bf16", (6, 4, 2, 1), (4, 2, 1)),
    _attention_bf16("amxbf16", (), (), matrix=True),
    _conv("scalar", 2, 1),
    _conv("avx2", 6, 1),
    _conv("avx512", 14, 2),
    _depthwise("scalar", 4, 1),
    _depthwise("avx2", 7, 4, 1),
    _depthwise("avx512", 14, 7, 5, 3, 1),
    _conv_bf16("scalar", 2, 1),
    _conv_bf16("avx2", 6, 1),
    _conv_bf16("avx512", 14, 2),
    _conv_bf16("avx512bf16", 14, 2),
    _conv_bf16("amxbf16", 14, 2, matrix=True),
    _conv_bf16x2("scalar", 2, 1),
    _conv_bf16x2("avx2", 6, 1),
    _conv_bf16x2("avx512", 14, 2),
    _conv_bf16x2("avx512bf16", 14, 2),
    _conv_bf16x2("amxbf16", 14, 2, matrix=True),
    _depthwise_bf16("scalar", 4, 1),
    _depthwise_bf16("avx2", 7, 4, 1),
    _depthwise_bf16("avx512", 14, 7, 4, 1),
    _depthwise_bf16("avx512bf16", 14, 7, 4, 1),
    _depthwise_bf16("amxbf16", 14, 7, 4, 1),
    _winograd_bf16("scalar"),
    _winograd_bf16("avx2"),
    _winograd_bf16("avx512"),
    _winograd_bf16("avx512bf16"),
    *_convs_int16("scalar", 2, 1),
    *_convs_int16("avx2", 6, 1),
    *_convs_int16("avx512", 14, 2),
    *_convs_int16("avx512bf16", 14, 2),
    *(variant for isa in _BASES for variant in _blocked(isa)),
    *map(_reduce, _BASES),
    _arg("scalar", 4),
    _arg("avx2", 4),
    _arg("avx512", 8),
    *map(_top_k, _BASES),
    _softmax("scalar", 2),
    _softmax("avx2", 2),
    _softmax("avx512", 4),
    _recurrent("scalar", 4, 1, 1, 0),
    _recurrent("avx2", 1, 2, 2, 0),
    _recurrent("avx512", 1, 6, 8, 4),
    _gemm_blocks("scalar", 4, 2, 1),
    _gemm_blocks("avx2", 6, 4, 2, 1),
    _gemm_blocks("avx512", 16, 8, 4, 2, 1),
    _gemm_blocks_bf16("scalar", 4, 2, 1),
    _gemm_blocks_bf16("avx2", 6, 4, 2, 1),
    _gemm_blocks_bf16("avx512", 16, 8, 4, 2, 1),
    _gemm_blocks_bf16("avx512bf16", 16, 8, 4, 2, 1),
    *_gemm_masked("scalar", 1, 1),
    *_gemm_masked("avx2", 2, 2),
    *_gemm_masked("avx512", 4, 4),
    *(Variant("chain", isa, "chain.cpp.in", "") for isa in _BASES),
    *(Variant("chain", isa, "chain.cpp.in", "", dtype="bf16") for isa in _ALL),
)


def _by_kernel(variants: Iterable[Variant]) -> Mapping[tuple[str, str], tuple[Variant, ...]]:
    """Variants by kernel and level, in their order.  Raises ValueError if two have one key."""
    found: dict[tuple[str, str], tuple[Variant, ...]] = {}
    for variant in variants:
        others = found.get((variant.kernel, variant.isa), ())
        if any(other.key == variant.key for other in others):
            raise ValueError(f"two variants are {' '.join(variant.key)}")
        found[variant.kernel, variant.isa] = (*others, variant)
    return MappingProxyType(found)


_KNOWN = _by_kernel(VARIANTS)


def find(kernel: str, isa: str, tiles: Tiles = NO_TILES) -> Variant:
    """The variant of a kernel for the level ``isa``, or for the nearest base that has one: of
    several tiles the one asked for, else the first that is listed.

    Raises KeyError when there is none, and for a tile that does not exist.
    """
    if known := _KNOWN.get((kernel, isa)):
        wanted = tiles.get((kernel, isa), known[0].tile)
        for variant in known:
            if variant.tile == wanted:
                return variant
        listed = ", ".join(v.tile for v in known)
        raise KeyError(f"{kernel} has no tile {wanted} for {isa}, but {listed}")
    if base := isa_of(isa).base:
        return find(kernel, base, tiles)
    raise KeyError(f"there is no kernel {kernel} for {isa}")


def gemm_tile(isa: str, tiles: Tiles = NO_TILES) -> tuple[int, int]:
    """Rows and 16-wide panels of the level's largest register tile."""
    return _tile("gemm", isa, tiles)


def gemm_bf16_tile(isa: str, tiles: Tiles = NO_TILES) -> tuple[int, int]:
    """The same where both operands are in bf16."""
    return _tile("gemm_bf16", isa, tiles)


def conv_tile(isa: str, tiles: Tiles = NO_TILES) -> tuple[int, int]:
    """Outputs and 16-wide channel blocks of the level's largest convolution tile."""
    return _tile("conv", isa, tiles)


def conv_bf16_tile(isa: str, tiles: Tiles = NO_TILES) -> tuple[int, int]:
    """The same of convolutions in bf16."""
    return _tile("conv_bf16", isa, tiles)


def _tile(kernel: str, isa: str, tiles: Tiles) -> tuple[int, int]:
    rows, columns = find(kernel, isa, tiles).tile.split("x")
    return int(rows), int(columns) // PANEL
