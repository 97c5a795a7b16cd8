"""Kernel variants: one entry per op, element type, instruction set and register tile.

An op may list several tiles for one type and level.  A library holds one of them: the tile that
was requested, or else the first in the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tracea_graph.kernels.cpu.isa_levels import isa_of
from tracea_graph.kernels.program import Call
from tracea_graph.ops.int16 import LIMIT, RUN

__all__ = [
    "NO_TILES",
    "VARIANTS",
    "KernelVariant",
    "Tiles",
    "conv_bf16_tile",
    "conv_tile",
    "find_variant",
    "gemm_bf16_tile",
    "gemm_int8_tile",
    "gemm_nbits_tile",
    "gemm_tile",
    "kernels_with_variant_at",
]  # fmt: skip

PANEL = 16
"""Columns of one packed weight panel (``TRACEA_PANEL``)."""

_NOTHING: Mapping[str, object] = MappingProxyType({})
_ELEMENTS = MappingProxyType({"int8": "i8", "int16": "i16", "bf16x2": "bf16"})
"""Element type in C symbols, where it differs from the dtype of the call."""
Tiles = Mapping[tuple[str, str], str]
"""Requested tiles by kernel and level."""
NO_TILES: Tiles = MappingProxyType({})


@dataclass(frozen=True)
class KernelVariant:
    """One kernel for one instruction set.

    ``tile`` is the register tile, as symbols name it.  ``params`` are the parameters of the
    template, ``functions`` the sections of the vector headers that it uses.  ``dtype`` is spelled
    as in call schemas.
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
        """The op and element type as one name, such as ``gemm_bf16``."""
        return Call.name_of(self.op, self.dtype)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """A unique key."""
        return self.op, self.dtype, self.isa, self.tile

    @property
    def element(self) -> str:
        """The type of the multiplied elements."""
        return _ELEMENTS.get(self.dtype, self.dtype.partition("_by_")[0])

    def symbol(self, name: str) -> str:
        """``tracea_<element>_<name>[_<tile>]__<isa>``."""
        tile = f"_{self.tile}" if self.tile else ""
        return f"tracea_{self.element}_{name}{tile}__{self.isa}"


def _gemm(isa: str, mr: int, nv: int, dot_rows: int) -> KernelVariant:
    """A GEMM on register tiles of up to ``mr`` rows by ``nv`` panels.

    ``dot_rows``: rows per tile where the right operand is stored ``[N, K]``.
    """
    params = {"mr": mr, "nv": nv, "dot_rows": dot_rows}
    functions = frozenset({"hreduce", "transpose"})
    return KernelVariant("gemm", isa, "gemm.cpp.in", f"{mr}x{nv * PANEL}", params, functions)


def _gemm_bf16(isa: str, mr: int, nv: int) -> KernelVariant:
    """A GEMM with a packed vnni2 bf16 right operand; the left operand is bf16 or fp32."""
    params = {"mr": mr, "nv": nv, "amx": False}
    functions = frozenset({"bf16", "vnni2"})
    tile = f"{mr}x{nv * PANEL}"
    return KernelVariant("gemm", isa, "gemm_bf16.cpp.in", tile, params, functions, "bf16")


def _gemm_int16(isa: str, mr: int, nv: int) -> KernelVariant:
    """A GEMM on vnni2 16-bit integers, with the tile of the fp32 GEMM."""
    params = {"mr": mr, "nv": nv, "run": RUN, "limit": LIMIT}
    functions, tile = frozenset({"int16"}), f"{mr}x{nv * PANEL}"
    return KernelVariant("gemm", isa, "gemm_int16.cpp.in", tile, params, functions, "int16")


def _gemm_f16(isa: str, mr: int) -> KernelVariant:
    """A GEMM on fp16 panels and rows, with the tile of the fp32 GEMM."""
    return KernelVariant("gemm", isa, "gemm_f16.cpp.in", f"{mr}x{PANEL}", {"mr": mr}, dtype="f16")


def _gemm_int8(isa: str, mr: int, nv: int) -> KernelVariant:
    """A GEMM on 8-bit integers, four steps of k to a lane."""
    params, tile = {"mr": mr, "nv": nv, "amx": False}, f"{mr}x{nv * PANEL}"
    return KernelVariant(
        "gemm", isa, "gemm_int8.cpp.in", tile, params, frozenset({"int8"}), "int8"
    )


def _gemm_int8_amx(isa: str, mr: int, nv: int) -> KernelVariant:
    """A GEMM on 8-bit integers on 2 x 2 AMX tiles of 16 x 16; up to ``mr`` rows take vectors."""
    same = _gemm_int8(isa, mr, nv)
    params = {**same.params, "amx": True}
    return replace(same, tile=f"32x{nv * PANEL}", params=params)


def _gemm_nbits(isa: str, mr: int, nv: int, ahead: int = 0) -> KernelVariant:
    """A GEMM on codes of 2, 4 or 8 bits with scales by blocks.

    ``mr`` rows of bytes by ``nv`` panels; a single row takes twice as many panels.  ``ahead``:
    bytes from the codes of one row's tile to those that are prefetched.
    """
    params = {"mr": mr, "mr3": max(1, mr // 3), "nv": nv, "ahead": ahead}
    functions, tile = frozenset({"int8", "nbits"}), f"{mr}x{nv * PANEL}"
    return KernelVariant("gemm_nbits", isa, "gemm_nbits.cpp.in", tile, params, functions)


def _gemm_bf16x2(isa: str, mr: int, nv: int, amx: bool = False) -> KernelVariant:
    """A GEMM on bf16x2 (hi + lo) operands: three bf16 products (``split_bf16``).

    Unless ``amx``, the tile is that of the bf16 GEMM.
    """
    params = {"mr": mr, "nv": nv, "amx": amx}
    functions, tile = frozenset({"bf16", "vnni2"}), f"{mr}x{nv * PANEL}"
    return KernelVariant("gemm", isa, "gemm_bf16x2.cpp.in", tile, params, functions, "bf16x2")


def _gemm_blocks(isa: str, *rows: int) -> KernelVariant:
    """A block-sparse GEMM on tiles of ``rows`` rows, listed largest first and ending in 1."""
    steps = (
        2 if isa == "avx2" else 4
    )  # of k unrolled; with four, gcc runs out of registers on AVX2
    params = {"rows": rows, "dtype": "f32", "steps": steps}
    return KernelVariant(
        "gemm_block_sparse", isa, "gemm_block_sparse.cpp.in", f"{rows[0]}x16", params
    )


def _gemm_blocks_bf16(isa: str, *rows: int) -> KernelVariant:
    """A block-sparse GEMM on vnni2 bf16."""
    same = _gemm_blocks(isa, *rows)
    params, functions = (
        {**same.params, "dtype": "bf16", "steps": 2},
        frozenset({"bf16", "vnni2"}),
    )
    return replace(same, params=params, functions=functions, dtype="bf16")


def _gemm_masked(isa: str, rows: int, sums: int) -> tuple[KernelVariant, KernelVariant]:
    """Bitmap-sparse GEMMs in fp32 and bf16 on up to ``rows`` rows, with ``sums`` independent
    accumulators along k."""
    params = {"rows": rows, "sums": sums, "dtype": "f32"}
    functions = frozenset({"expand"})
    same = KernelVariant("gemm_bitmap", isa, "gemm_bitmap.cpp.in", f"{rows}x16", params, functions)
    half = {**params, "dtype": "bf16"}
    return same, replace(same, params=half, functions=functions | {"bf16"}, dtype="bf16")


def _gemm_amx(isa: str, mr: int, nv: int) -> KernelVariant:
    """A bf16 GEMM on 2 x 2 AMX tiles of 16 x 16; ``mr`` x ``nv`` tiles for fp32 left operands."""
    params = {"mr": mr, "nv": nv, "amx": True}
    functions = frozenset({"bf16", "vnni2"})
    return KernelVariant("gemm", isa, "gemm_bf16.cpp.in", "32x32", params, functions, "bf16")


def _norm(isa: str, rows: int) -> KernelVariant:
    tile = f"{rows}x{isa_of(isa).width}"
    return KernelVariant("norm", isa, "norm.cpp.in", tile, {"rows": rows}, frozenset({"bf16"}))


def _gather(isa: str) -> KernelVariant:
    return KernelVariant("gather", isa, "gather.cpp.in", f"1x{isa_of(isa).width}")


def _copy(isa: str) -> KernelVariant:
    width = isa_of(isa).width
    return KernelVariant(
        "copy", isa, "copy.cpp.in", f"{width}x{width}", functions=frozenset({"transpose_tile"})
    )


def _attention(
    isa: str,
    rows: tuple[int, ...],
    panels: tuple[int, ...],
    whole: tuple[tuple[int, tuple[int, ...]], ...] = (),
) -> KernelVariant:
    """Attention on register tiles of ``rows`` by ``panels``, listed largest first, ending in 1.

    ``whole`` are wider tiles, panels and rows, for values that are read where they lie.
    """
    params: dict[str, object] = {
        "dtype": "f32", "query_block": 24, "key_block": 256, "rows": rows, "panels": panels,
        "whole": whole, "amx": False, "stored": "",
    }  # fmt: skip
    functions = frozenset({"exp_neg", "exp_fast", "hreduce", "tanh", "transpose"})
    return KernelVariant("attention", isa, "attention.cpp.in", "24x256", params, functions)


def _attention_by(stored: str) -> tuple[KernelVariant, ...]:
    """Attention of float32 queries that reads keys and values of type ``stored``."""
    dtype, needs = f"f32_by_{stored}", {"ints" if stored == "i8" else stored}
    same = (replace(v, dtype=dtype, functions=v.functions | needs) for v in _ATTENTION)
    return tuple(replace(v, params={**v.params, "stored": stored}) for v in same)


def _attention_bf16(
    isa: str, rows: tuple[int, ...], panels: tuple[int, ...], amx: bool = False
) -> KernelVariant:
    """Attention with both matrix multiplications in bf16, on AMX tiles if ``amx``."""
    same = _attention(isa, rows, panels)
    functions = same.functions - {"hreduce"} | {"bf16", "vnni2"}
    params = {**same.params, "dtype": "bf16", "amx": amx}
    return replace(same, dtype="bf16", params=params, functions=functions)


def _conv(isa: str, pixels: int, nv: int) -> KernelVariant:
    """A convolution on tiles of up to ``pixels`` (even) outputs by ``nv`` channel blocks.

    With few output channels, about ``sums`` vectors are accumulated at once.
    """
    sums = {1: 4, 4: 22, 8: 10, 16: 22}[isa_of(isa).width]
    half_tile = isa_of(isa).width == 16 and nv > 1
    params = {"pixels": pixels, "nv": nv, "sums": sums, "half_tile": half_tile}
    functions = frozenset({"hreduce", "half_tile"} if half_tile else {"hreduce"})
    return KernelVariant("conv", isa, "conv.cpp.in", f"{pixels}x{nv * PANEL}", params, functions)


def _depthwise(isa: str, *widths: int) -> KernelVariant:
    """A depthwise convolution on ``widths`` outputs of a row, largest first, ending in 1."""
    params = {"dtype": "f32", "widths": widths, "vnni2": False}
    return KernelVariant("depthwise", isa, "depthwise.cpp.in", f"{widths[0]}x16", params)


def _conv_bf16(isa: str, pixels: int, nv: int, amx: bool = False) -> KernelVariant:
    """A convolution on vnni2 bf16, or on fp32 with bf16 results.

    With ``amx``, bf16 inputs take 2 x 2 tiles of 16 x 16, and ``pixels`` and ``nv`` are those of
    fp32 inputs.
    """
    same = _conv(isa, pixels, nv)
    half_tile = not amx and same.params["half_tile"]
    return replace(
        same, template="conv_bf16.cpp.in", dtype="bf16",
        tile="32x32" if amx else same.tile,
        params={**same.params, "amx": amx, "half_tile": half_tile},
        functions=frozenset({"bf16", "vnni2"} | ({"half_tile"} if half_tile else set())),
    )  # fmt: skip


def _conv_bf16x2(isa: str, pixels: int, nv: int, amx: bool = False) -> KernelVariant:
    """A convolution on bf16x2 (hi + lo) inputs and filters, with the tile of the fp32 one."""
    same = _conv_bf16(isa, pixels, nv, amx)
    return replace(
        same, template="conv_bf16x2.cpp.in", dtype="bf16x2",
        params={**same.params, "half_tile": False}, functions=frozenset({"bf16", "vnni2"}),
    )  # fmt: skip


def _depthwise_bf16(isa: str, *widths: int) -> KernelVariant:
    """A depthwise convolution on bf16 inputs with fp32 accumulators.

    Weights stay in fp32 unless the level multiplies vnni2 bf16 faster than fp32, which AMX levels
    do not.
    """
    same = _depthwise(isa, *widths)
    vnni2 = isa == "avx512bf16"
    params = {**same.params, "dtype": "bf16", "vnni2": vnni2}
    functions = frozenset({"bf16", "vnni2"} if vnni2 else {"bf16"})
    return replace(same, params=params, functions=functions, dtype="bf16")


def _winograd_bf16(isa: str) -> KernelVariant:
    """Winograd transforms from and to bf16."""
    params, functions = {"dtype": "bf16"}, frozenset({"bf16"})
    return KernelVariant("winograd", isa, "winograd.cpp.in", "", params, functions, "bf16")


def _convs_int16(isa: str, pixels: int, nv: int) -> tuple[KernelVariant, KernelVariant]:
    """A convolution on vnni2 16-bit integers, with the tile of the fp32 one, and the Winograd
    transforms to and from them."""
    same, functions = _conv(isa, pixels, nv), frozenset({"int16"})
    params = {**same.params, "half_tile": False}
    return replace(
        same, template="conv_int16.cpp.in", params=params, functions=functions, dtype="int16"
    ), KernelVariant(
        "winograd", isa, "winograd.cpp.in", "", {"dtype": "int16"}, functions, "int16"
    )


def _conv_f16(isa: str, pixels: int) -> KernelVariant:
    """A convolution on fp16 inputs and filters, with the tile of the fp32 one."""
    same = _conv(isa, pixels, 1)
    return replace(same, template="conv_f16.cpp.in", functions=frozenset(), dtype="f16")


def _blocked(isa: str) -> tuple[KernelVariant, ...]:
    """Kernels that move or pool blocked values, plain convolution and fp32 Winograd transforms."""
    turn = frozenset({"transpose"} if isa != "scalar" else ())
    rows, vectors = {1: (4, 2), 4: (4, 4), 8: (4, 3), 16: (8, 3)}[isa_of(isa).width]
    plain = {"rows": rows, "vectors": vectors}
    taken = frozenset({"mask", "any"})
    pool = KernelVariant("pool", isa, "pool.cpp.in", "4x16", {"pixels": 4, "dtype": "f32"}, taken)
    half = {**pool.params, "dtype": "bf16"}
    return (
        pool,
        replace(pool, params=half, functions=taken | {"bf16"}, dtype="bf16"),
        KernelVariant("resize", isa, "resize.cpp.in", "1x16"),
        KernelVariant(
            "channel_shuffle",
            isa,
            "channel_shuffle.cpp.in",
            "1x16",
            functions=frozenset({"permute"}),
        ),
        KernelVariant("reorder", isa, "reorder.cpp.in", "", functions=turn),
        KernelVariant("conv_plain", isa, "conv_plain.cpp.in", f"{rows}x{vectors}", plain),
        KernelVariant("winograd", isa, "winograd.cpp.in", "", {"dtype": "f32"}),
    )


def _reduce(isa: str) -> KernelVariant:
    functions = frozenset({"nan_max"})
    return KernelVariant(
        "reduce", isa, "reduce.cpp.in", f"{isa_of(isa).width}", functions=functions
    )


def _arg(isa: str, vectors: int) -> KernelVariant:
    """An argmax or argmin over ``vectors`` vectors of columns at once."""
    tile, params = f"{vectors}x{isa_of(isa).width}", {"vectors": vectors}
    return KernelVariant(
        "arg_reduce", isa, "arg_reduce.cpp.in", tile, params, frozenset({"mask", "lane_index"})
    )


def _top_k(isa: str) -> KernelVariant:
    functions = frozenset({"mask", "any"})
    return KernelVariant("top_k", isa, "top_k.cpp.in", f"{isa_of(isa).width}", functions=functions)


def _softmax(isa: str, rows: int) -> KernelVariant:
    functions = frozenset({"exp_neg", "mantissa", "log1", "log"})
    tile = f"{rows}x{isa_of(isa).width}"
    return KernelVariant("softmax", isa, "softmax.cpp.in", tile, {"rows": rows}, functions)


def _recurrent(isa: str, vectors: int, lstm: int, gru: int, few: int) -> KernelVariant:
    """Recurrent cells: ``vectors`` vectors of units per gate for up to ``lstm`` or ``gru`` rows.

    GRUs on up to ``few`` rows, whose gates alone would leave registers unused, take several times
    as many units.
    """
    cells = {
        "lstm": (lstm, 0, 1), "gru": (gru, few, 2), "gru_gates": (gru, few, 2),
        "gru_state": (gru, few, 4),
    }  # fmt: skip
    functions = frozenset({"sigmoid", "tanh"})
    tile = f"{lstm}x{vectors * isa_of(isa).width}"
    ends = {name: name.title().replace("_", "") for name in cells}
    params = {"vectors": vectors, "cells": cells, "ends": ends}
    return KernelVariant("recurrent", isa, "recurrent.cpp.in", tile, params, functions)


_BASES = ("scalar", "avx2", "avx512", "neon")
_ALL = (*_BASES, "avx512bf16", "neonbf16")
_ATTENTION = (
    _attention("scalar", (1,), (1,)),
    _attention("avx2", (6, 4, 2, 1), (1,), ((8, (1,)), (4, (1,)))),
    _attention("avx512", (6, 4, 2, 1), (4, 2, 1), ((8, (2, 1)),)),
    _attention("neon", (6, 4, 2, 1), (1,), ((4, (1,)),)),
)

VARIANTS = (
    _gemm("scalar", 4, 1, 2),
    _gemm("avx2", 6, 1, 2),
    _gemm("avx512", 8, 3, 4),
    _gemm("neon", 6, 1, 4),
    _gemm_bf16("scalar", 4, 1),
    _gemm_bf16("avx2", 6, 1),
    _gemm_bf16("avx512", 8, 3),
    _gemm_bf16("avx512bf16", 8, 3),
    _gemm_amx("amxbf16", 8, 3),
    _gemm_bf16("neon", 6, 1),
    _gemm_bf16("neonbf16", 6, 1),
    _gemm_int16("scalar", 4, 1),
    _gemm_int16("avx2", 6, 1),
    _gemm_int16("avx512", 8, 3),
    _gemm_int16("avx512bf16", 8, 3),
    _gemm_int16("neon", 6, 1),
    _gemm_int8("scalar", 4, 1),
    _gemm_int8("avx2", 3, 1),
    _gemm_int8("avxvnni", 6, 1),
    _gemm_int8("avx512", 6, 2),
    _gemm_int8("avx512vnni", 8, 3),
    _gemm_int8_amx("amxint8", 4, 4),
    _gemm_int8_amx("amxbf16", 4, 4),
    _gemm_nbits("scalar", 3, 1),
    _gemm_nbits("avx2", 3, 1, 2048),
    _gemm_nbits("avxvnni", 3, 1, 2048),
    _gemm_nbits("avx512", 6, 2, 2048),
    _gemm_nbits("avx512vnni", 6, 2, 2048),
    _gemm_int8("neon", 2, 1),
    _gemm_int8("neondot", 5, 1),
    _gemm_int8("neoni8mm", 6, 1),
    _gemm_nbits("neon", 2, 1, 1024),
    _gemm_nbits("neondot", 3, 1, 1024),
    _gemm_nbits("neoni8mm", 3, 1, 1024),
    _gemm_bf16x2("scalar", 4, 1),
    _gemm_bf16x2("avx2", 6, 1),
    _gemm_bf16x2("avx512", 8, 3),
    _gemm_bf16x2("avx512bf16", 8, 3),
    _gemm_bf16x2("amxbf16", 32, 2, amx=True),
    _gemm_bf16x2("neon", 6, 1),
    _gemm_bf16x2("neonbf16", 6, 1),
    *(_norm(isa, 4) for isa in _ALL),
    *map(_gather, _BASES),
    *map(_copy, _BASES),
    *_ATTENTION,
    *(v for stored in ("f16", "bf16", "i8") for v in _attention_by(stored)),
    _attention_bf16("scalar", (4, 1), (1,)),
    _attention_bf16("avx2", (6, 4, 2, 1), (1,)),
    _attention_bf16("avx512", (6, 4, 2, 1), (4, 2, 1)),
    _attention_bf16("avx512bf16", (6, 4, 2, 1), (4, 2, 1)),
    _attention_bf16("amxbf16", (), (), amx=True),
    _attention_bf16("neon", (6, 4, 2, 1), (1,)),
    _attention_bf16("neonbf16", (6, 4, 2, 1), (1,)),
    _conv("scalar", 2, 1),
    _conv("avx2", 6, 1),
    _conv("avx512", 14, 2),
    _conv("neon", 6, 1),
    _depthwise("scalar", 4, 1),
    _depthwise("avx2", 7, 4, 1),
    _depthwise("avx512", 14, 7, 5, 3, 1),
    _depthwise("neon", 6, 4, 2, 1),
    _conv_bf16("scalar", 2, 1),
    _conv_bf16("avx2", 6, 1),
    _conv_bf16("avx512", 14, 2),
    _conv_bf16("avx512bf16", 14, 2),
    _conv_bf16("amxbf16", 14, 2, amx=True),
    _conv_bf16("neon", 6, 1),
    _conv_bf16("neonbf16", 6, 1),
    _conv_bf16x2("scalar", 2, 1),
    _conv_bf16x2("avx2", 6, 1),
    _conv_bf16x2("avx512", 14, 2),
    _conv_bf16x2("avx512bf16", 14, 2),
    _conv_bf16x2("amxbf16", 14, 2, amx=True),
    _conv_bf16x2("neon", 6, 1),
    _conv_bf16x2("neonbf16", 6, 1),
    _depthwise_bf16("scalar", 4, 1),
    _depthwise_bf16("avx2", 7, 4, 1),
    _depthwise_bf16("avx512", 14, 7, 4, 1),
    _depthwise_bf16("avx512bf16", 14, 7, 4, 1),
    _depthwise_bf16("amxbf16", 14, 7, 4, 1),
    _depthwise_bf16("neon", 6, 4, 2, 1),
    _depthwise_bf16("neonbf16", 6, 4, 2, 1),
    _winograd_bf16("scalar"),
    _winograd_bf16("avx2"),
    _winograd_bf16("avx512"),
    _winograd_bf16("avx512bf16"),
    _winograd_bf16("neon"),
    _winograd_bf16("neonbf16"),
    *_convs_int16("scalar", 2, 1),
    *_convs_int16("avx2", 6, 1),
    *_convs_int16("avx512", 14, 2),
    *_convs_int16("avx512bf16", 14, 2),
    *_convs_int16("neon", 6, 1),
    *(variant for isa in _BASES for variant in _blocked(isa)),
    *map(_reduce, _BASES),
    _arg("scalar", 4),
    _arg("avx2", 4),
    _arg("avx512", 8),
    _arg("neon", 8),
    *map(_top_k, _BASES),
    _softmax("scalar", 2),
    _softmax("avx2", 2),
    _softmax("avx512", 4),
    _softmax("neon", 4),
    _recurrent("scalar", 4, 1, 1, 0),
    _recurrent("avx2", 1, 2, 2, 0),
    _recurrent("avx512", 1, 6, 8, 4),
    _recurrent("neon", 1, 6, 8, 4),
    _gemm_blocks("scalar", 4, 2, 1),
    _gemm_blocks("avx2", 6, 4, 2, 1),
    _gemm_blocks("avx512", 16, 8, 4, 2, 1),
    _gemm_blocks("neon", 6, 4, 2, 1),
    _gemm_blocks_bf16("scalar", 4, 2, 1),
    _gemm_blocks_bf16("avx2", 6, 4, 2, 1),
    _gemm_blocks_bf16("avx512", 16, 8, 4, 2, 1),
    _gemm_blocks_bf16("avx512bf16", 16, 8, 4, 2, 1),
    _gemm_blocks_bf16("neon", 6, 4, 2, 1),
    _gemm_blocks_bf16("neonbf16", 6, 4, 2, 1),
    *_gemm_masked("scalar", 1, 1),
    *_gemm_masked("avx2", 2, 2),
    *_gemm_masked("avx512", 4, 4),
    *_gemm_masked("neon", 2, 2),
    *(KernelVariant("chain", isa, "chain.cpp.in", "") for isa in _BASES),
    *(KernelVariant("chain", isa, "chain.cpp.in", "", dtype="bf16") for isa in _ALL),
    _gemm_f16("scalar", 4),
    _gemm_f16("neon", 6),
    _gemm_f16("neonfp16", 6),
    _conv_f16("scalar", 2),
    _conv_f16("neon", 6),
    _conv_f16("neonfp16", 6),
)


def _by_kernel(
    variants: Iterable[KernelVariant],
) -> Mapping[tuple[str, str], tuple[KernelVariant, ...]]:
    """Variants by kernel and level, in their order.  Raises ValueError if two have one key."""
    found: dict[tuple[str, str], tuple[KernelVariant, ...]] = {}
    for variant in variants:
        others = found.get((variant.kernel, variant.isa), ())
        if any(other.key == variant.key for other in others):
            raise ValueError(f"two variants have the key {' '.join(variant.key)}")
        found[variant.kernel, variant.isa] = (*others, variant)
    return MappingProxyType(found)


_KNOWN = _by_kernel(VARIANTS)


def find_variant(kernel: str, isa: str, tiles: Tiles = NO_TILES) -> KernelVariant:
    """Return the variant of a kernel for the level ``isa``, or for its nearest base that has one.

    If there are several tiles, ``tiles`` chooses one; the default is the first in the list.
    Raises KeyError if there is no variant, or none with the requested tile.
    """
    if known := _KNOWN.get((kernel, isa)):
        wanted = tiles.get((kernel, isa), known[0].tile)
        for variant in known:
            if variant.tile == wanted:
                return variant
        listed = ", ".join(v.tile for v in known)
        raise KeyError(f"{kernel} has no tile {wanted} for {isa}, only {listed}")
    if base := isa_of(isa).base:
        return find_variant(kernel, base, tiles)
    raise KeyError(f"there is no kernel {kernel} for {isa}")


def kernels_with_variant_at(isa: str) -> frozenset[str]:
    """The kernels that have a variant for exactly this level."""
    return frozenset(kernel for kernel, level in _KNOWN if level == isa)


def gemm_tile(isa: str, tiles: Tiles = NO_TILES) -> tuple[int, int]:
    """Rows and 16-wide panels of the level's largest register tile."""
    return _tile("gemm", isa, tiles)


def gemm_bf16_tile(isa: str, tiles: Tiles = NO_TILES) -> tuple[int, int]:
    """Rows and 16-wide panels of the largest register tile of a GEMM on bf16 operands."""
    return _tile("gemm_bf16", isa, tiles)


def gemm_int8_tile(isa: str, tiles: Tiles = NO_TILES) -> tuple[int, int]:
    """Rows and 16-wide panels of the largest register tile of a GEMM on 8-bit integers."""
    return _tile("gemm_int8", isa, tiles)


def gemm_nbits_tile(isa: str, tiles: Tiles = NO_TILES) -> tuple[int, int]:
    """Rows of bytes and 16-wide panels of the largest tile of a GEMM on codes."""
    return _tile("gemm_nbits", isa, tiles)


def conv_tile(isa: str, tiles: Tiles = NO_TILES) -> tuple[int, int]:
    """Outputs and 16-wide channel blocks of the level's largest convolution tile."""
    return _tile("conv", isa, tiles)


def conv_bf16_tile(isa: str, tiles: Tiles = NO_TILES) -> tuple[int, int]:
    """Outputs and 16-wide channel blocks of the level's largest tile of bf16 convolutions."""
    return _tile("conv_bf16", isa, tiles)


def _tile(kernel: str, isa: str, tiles: Tiles) -> tuple[int, int]:
    rows, columns = find_variant(kernel, isa, tiles).tile.split("x")
    return int(rows), int(columns) // PANEL
