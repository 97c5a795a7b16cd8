"""Matmuls with block-quantized matrices (codes of 2, 4 or 8 bits) on tensor cores.

For few rows the codes are dequantized in registers: a code minus its zero point is exact in every
type, and sums of a block are scaled in float32.  For many rows a tile of the matrix is dequantized
into the shared memory of ``tensor_core_matmul``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu.block_quantized_storage import GRANULE, WINDOW
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import one_row_matmul, tensor_core_matmul
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import (
    Argument,
    Launch,
    constant_buffer_flag,
    divisor,
    f32,
    i32,
    late,
    pointer,
)
from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access, prove_free
from tracea_graph.kernels.gpu.semantic.fragment_layouts import ATOMS, WARP
from tracea_graph.kernels.gpu.tile_choice import FEW_CODED_COLUMNS, one_row_width
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View

__all__ = [
    "FEW",
    "ONE",
    "codes_of",
    "launch",
    "name",
    "parameters",
    "refusal",
    "shared",
    "with_norm",
]

FEW, ONE = "gemm_nbits_few.cu.in", "gemm_nbits_one.cu.in"
_COLUMNS, _LANES, _FLOAT, _GROUP = 16, 4, 4, 32
_ATOM = ATOMS["m16n8k16.f16"]
_CHUNK, _STAGES, _RING, _STAGED = 128, 2, 60 << 10, 16 << 10
"""Bytes of a column's codes that a warp copies at a time, chunks that it asks for ahead, most
bytes of these of all warps, and of one row of x in shared memory.
"""
_STEPS, _ONE_STAGED, _ONE_BESIDE = 256, 32 << 10, 64
"""Steps of a chunk of the kernel of one row, most bytes of its row of x, and bytes beside it."""
_THREADS_OF_WIDE = 256
"""Threads of a block that multiplies one row by a matrix of many columns."""
_CROWD, _MOST_HELD = 16, 20
"""Warps whose registers an SM holds on every architecture; half as many with float32 rows, or if
a lane holds more registers of codes, scales and zero points of a window.
"""
_BASE = MappingProxyType({"f16": "1024.0f"})
"""Number whose last bits are a code, by type; float32 has 2^23."""


@dataclass(frozen=True)
class WarpSums:
    """Shared memory for the sums of the warps of a kernel of few rows: [warp][row][column]."""

    warps: int
    height: int
    pitch: int = 20

    @property
    def bytes(self) -> int:
        return self.warps * self.height * self.pitch * 4

    def stores(self) -> list[Access]:
        """Return the accesses of a warp that stores sums; columns of w are rows of fragments."""
        elements, lanes = range(_ATOM.d.count), range(WARP)
        places = (tuple(self._offset(_ATOM.d.at(lane, e)) for lane in lanes) for e in elements)
        return [Access("sums of a warp", 4, at) for at in places]

    def _offset(self, element: tuple[int, int]) -> int:
        column, row = element
        return (row * self.pitch + column) * 4

    def loads(self, run: int) -> list[Access]:
        """Return the accesses that read the sums of ``run`` adjacent columns."""
        lanes = [(at % self.height, at // self.height * run) for at in range(WARP)]
        lanes = [one for one in lanes if one[1] < _COLUMNS]
        return [
            Access(
                "sums of a block", 16, tuple(self._offset((col + q, row)) for row, col in lanes)
            )
            for q in range(0, run, 4)
        ]


@cache
def _proved(sums: WarpSums, run: int) -> WarpSums:
    """Prove the accesses to sums free of bank conflicts; raises BankConflict otherwise."""
    prove_free([*sums.stores(), *sums.loads(run)])
    return sums


@cache
def _proved_stores(tile: tensor_core_matmul.Tile) -> None:
    """Prove stores of dequantized numbers free of bank conflicts; raises BankConflict if not."""
    found = []
    for granule in range(tile.k // GRANULE):
        at = []
        for lane in range(WARP):
            of, slot = lane % _LANES, lane // _LANES
            row = slot % 2 * 4 + slot // 2 % 2 * 2 + slot // 4 % 2
            at.append(tile.b.offset(row, (granule * GRANULE + of * 4) * tile.size))
        found.append(Access("dequantized numbers", 4 * tile.size, tuple(at)))
    prove_free(found)


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _product(call: Call) -> Call:
    """Return the dense matmul of the same shapes, for its epilogue and tile."""
    named = _named(call)
    columns, depth = named["y"][0].dims[-1], named["x"].dims[-1]
    w = View(named["w"].buffer, (columns, depth), (named["w"].strides[0], 1))
    return CALLS.make(
        "gemm", call.dtype, layout="nk", chain=call.chain, bias=named["bias"], x=named["x"],
        w=w, inputs=named["inputs"], y=named["y"],
    )  # fmt: skip


def _second(call: Call) -> int:
    """Return the number of the chain's operand that is the sums of a second matrix, or 0."""
    return int(call.attributes["second"])


def _epilogue(call: Call) -> dict[str, Any]:
    """Return the parameters of ``templates/epilogue.h``."""
    made, second = tensor_core_matmul.epilogue(_product(call)), _second(call)
    tensors = [replace(t, second=bool(second) and t.name == f"x{second}") for t in made["tensors"]]
    return {**made, "tensors": tensors, "second": bool(second)}


def _normed(call: Call) -> bool:
    return _named(call)["gamma"] is not None


def with_norm(call: Call, variant: Variant) -> Call:
    """Return the call that a variant computes: of the rows before their norm, or of x."""
    if not _normed(call):
        return call
    if variant.params.get("rows") != 1:
        return tensor_core_matmul.without_operands(call, "raw", "gamma")
    raw = _named(call)["raw"]
    if raw is None:
        return call
    listed = list(call.views)
    listed[CALLS.of(call).slices(call)["x"].start] = raw
    return tensor_core_matmul.without_operands(replace(call, views=tuple(listed)), "raw")


def _whole_windows(depth: int) -> int:
    return -(-depth // WINDOW) * WINDOW


def _refusal_of_one(call: Call, variant: Variant) -> str:
    """Return why a kernel of one row that reads 4-bit codes does not compute a call, or ""."""
    depth, columns = _named(call)["x"].dims[-1], _named(call)["w"].dims[0]
    a = call.attributes
    wide = a["group"] > _GROUP or (a["group"] == _GROUP and not a["divided"])
    if a["bits"] != 4 or a["zero_kind"] != "middle" or not wide:
        return f"codes do not have 4 bits, a zero point in the middle, and blocks of {_GROUP}"
    most = _STAGED if _normed(call) else _ONE_STAGED
    if not isinstance(depth, int) or _chunks(depth) * _STEPS * 2 > most:
        return f"a row of x does not fit {most} bytes"
    if variant.params["width"] != one_row_width(columns if isinstance(columns, int) else 0, depth):
        return f"another number of warps suits {columns} columns"
    return ""


def _chunks(depth: int) -> int:
    return -(-depth // _STEPS)


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    if variant.template == ONE:
        return _refusal_of_one(call, variant)
    if variant.params.get("rows") == 1:
        depth, size = _named(call)["x"].dims[-1], int(TYPES[call.dtype].size)
        if not isinstance(depth, int) or _whole_windows(depth) * size > _STAGED:
            return f"a row of x does not fit {_STAGED} bytes"
        columns = _named(call)["w"].dims[0]
        few = isinstance(columns, int) and columns <= FEW_CODED_COLUMNS
        if few != (variant.threads > _THREADS_OF_WIDE):
            return f"another number of warps suits {columns} columns"
    if _second(call) and variant.params.get("rows") != 1:
        return "two matrices are multiplied by one row alone"
    if variant.template == FEW and call.attributes["zero_kind"] == "float":
        return "zero points that are not integers are not exact in registers"
    return ""


def _width(call: Call) -> int:
    """Return the number of columns of the result that a block computes at a time."""
    return _COLUMNS // (1 + bool(_second(call)))


def _sums(call: Call, variant: Variant) -> WarpSums:
    run = tensor_core_matmul.vector_length(_product(call))
    return _proved(WarpSums(variant.threads // WARP, max(variant.params["rows"], 8)), run)


def codes_of(call: Call, steps: int) -> dict[str, Any]:
    """Return the parameters of ``templates/codes.h``, for a part of a window."""
    bits, group = int(call.attributes["bits"]), int(call.attributes["group"])
    size = steps // _LANES * bits // 8
    kind = str(call.attributes["zero_kind"])
    return {
        "bits": bits, "middle": 1 << (bits - 1), "group": group, "window": WINDOW,
        "divided": bool(call.attributes["divided"]), "zeros": "" if kind == "middle" else kind,
        "words": max(1, size // 4),
        "carrier": "u32" if size >= 4 else "u16", "sums": max(1, steps // group),
    }  # fmt: skip


def _blocks(call: Call, variant: Variant) -> int:
    """Return the number of blocks that an SM runs at a time."""
    codes = codes_of(call, WINDOW)
    held = 2 * (codes["words"] + codes["sums"] * (1 + bool(codes["zeros"])))
    crowded = TYPES[call.dtype] is DType.F32 or held > _MOST_HELD
    return max(1, _CROWD // (1 + crowded) * WARP // variant.threads)


def _ring(call: Call, variant: Variant) -> dict[str, int]:
    """Return the ring of chunks of a warp: windows of a chunk, pitches, and bytes of a stage."""
    codes = codes_of(call, WINDOW)
    chunk = _CHUNK // (codes["bits"] * WINDOW // 8)
    pitch_codes, pitch_scales = _CHUNK + 8 * codes["bits"], (chunk + 1) * codes["sums"]
    numbers = 1 + bool(codes["zeros"])
    stage = _COLUMNS * (pitch_codes + 4 * pitch_scales * numbers)
    of_block = stage * variant.threads // WARP
    return {
        "chunk": chunk, "pitch_codes": pitch_codes, "pitch_scales": pitch_scales,
        "stage_bytes": stage, "stages": max(1, min(_STAGES, _RING // of_block)),
        "blocks": _blocks(call, variant),
    }  # fmt: skip


@cache
def _proved_reads(bits: int, sums: int, pitch_codes: int, pitch_scales: int) -> None:
    """Prove reads of codes and scales free of bank conflicts; raises BankConflict otherwise."""
    size, lanes = 2 * bits, [(lane // _LANES, lane % _LANES) for lane in range(WARP)]
    codes = tuple(own * pitch_codes + of * size for own, of in lanes)
    scales = tuple(4 * own * pitch_scales for own, _ in lanes)
    prove_free([Access("codes", size, codes), Access("scales", 4 * sums, scales)])


def name(call: Call) -> str:
    a = call.attributes
    words = [f"nbits{a['bits']}x{a['group']}"]
    words += ["divided"] * bool(a["divided"])
    words += [f"{a['zero_kind']}_zeros"] * (a["zero_kind"] != "middle")
    words += ["normed"] * _normed(call)
    words += [f"second{_second(call)}"] * bool(_second(call))
    return tensor_core_matmul.name(_product(call)).replace("gemm_nk", "_".join(words), 1)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    if variant.template == ONE:
        group, divided = int(call.attributes["group"]), bool(call.attributes["divided"])
        return {
            **_epilogue(call), "run": 1, "group": group, "divided": divided, "middle": 8,
            "normed": _normed(call), "columns": _width(call), "warps": variant.threads // WARP,
            "stage_bytes": _stage_of_one(call),
        }  # fmt: skip
    if variant.template == FEW:
        sums, codes = _sums(call, variant), codes_of(call, WINDOW)
        ring = _ring(call, variant)
        _proved_reads(codes["bits"], codes["sums"], ring["pitch_codes"], ring["pitch_scales"])
        return {
            **_epilogue(call),
            **codes,
            **ring,
            "size": int(TYPES[call.dtype].size),
            "kind": "tf32" if TYPES[call.dtype] is DType.F32 else call.dtype,
            "split": call.dtype == "tf32x3",
            "base": _BASE.get(call.dtype, "8388608.0f"),
            "height": sums.height, "tall": sums.height // 8, "warps": sums.warps,
            "pitch": sums.pitch, "staged": variant.params["rows"] == 1,
            "normed": _normed(call), "columns": _width(call),
            "run_x": 16 // int(TYPES[call.dtype].size),
        }  # fmt: skip
    made = tensor_core_matmul.parameters(_product(call), variant)
    tile = tensor_core_matmul.shared_layout(_product(call), variant)
    _proved_stores(tile)
    return {
        **made, **codes_of(call, tile.k), "granules": tile.k // GRANULE,
        "parts": tile.n * _LANES // variant.threads,
    }  # fmt: skip


def _stage_of_one(call: Call) -> int:
    """Return the bytes of a chunk of codes, and of a scale for each group or window."""
    return _COLUMNS * (_STEPS // 2 + _FLOAT * _STEPS // min(int(call.attributes["group"]), WINDOW))


def _shared_of_one(call: Call, variant: Variant) -> int:
    """Return the bytes of rings, of sums of two tiles, of a row of x, and of gamma."""
    depth, normed = _named(call)["x"].dims[-1], _normed(call)
    most = (_STAGED if normed else _ONE_STAGED) // 2
    steps = _chunks(depth) * _STEPS if isinstance(depth, int) else most
    warps = variant.threads // WARP
    rings = warps * variant.params["stages"] * _stage_of_one(call)
    return (
        rings + 2 * warps * _COLUMNS * _FLOAT + 2 * steps + _ONE_BESIDE + _FLOAT * steps * normed
    )


def shared(call: Call, variant: Variant) -> int:
    if variant.template == ONE:
        return _shared_of_one(call, variant)
    if variant.template == FEW:
        ring = _ring(call, variant)
        held = ring["stages"] * ring["stage_bytes"] * variant.threads // WARP
        staged = _STAGED if variant.params["rows"] == 1 else 0
        if _normed(call):
            depth, size = _named(call)["x"].dims[-1], int(TYPES[call.dtype].size)
            # the kernel has no depth of its own: the most that a call may have
            steps = _whole_windows(depth) if isinstance(depth, int) else _STAGED // size
            staged = steps * (size + _FLOAT)
        return held + _sums(call, variant).bytes + staged
    return tensor_core_matmul.shared(_product(call), variant)


def _numbers(call: Call) -> list[Argument]:
    """Return the arguments of scales and zero points, which have one stride."""
    scales, zeros = (_named(call)[one] for one in ("scales", "zeros"))
    made = [pointer(scales, DType.F32), i32(scales.strides[0])]
    return made + ([] if zeros is None else [pointer(zeros, DType.F32)])


def _sums_of_blocks(call: Call) -> list[Argument]:
    """Return the number of blocks of a column, and the number of sums of a block."""
    a = call.attributes
    return [i32(_named(call)["scales"].dims[1]), divisor(int(a["block"]) // int(a["group"]))]


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, taken = _named(call), shared(call, variant)
    x, w = named["x"], named["w"]
    fixed = [constant_buffer_flag(one) for one in (w, named["scales"])]
    if variant.template not in (FEW, ONE):
        p = variant.params
        blocks, made = tensor_core_matmul.arguments(_product(call), p["m"], p["n"])
        made[1] = pointer(w, DType.U8)
        made += [*_numbers(call), *_sums_of_blocks(call), *fixed]
        return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
    chain, (rows, depth) = tensor_core_matmul.chain_of(call), x.dims
    cols = named["y"][0].dims[-1]
    made = [pointer(x, TYPES[call.dtype]), *map(i32, x.strides)]
    made += [pointer(w, DType.U8), i32(w.strides[0])]
    made += _numbers(call)
    if _normed(call):
        gamma = named["gamma"]
        made += [pointer(gamma, DType.F32), f32(float(call.attributes["epsilon"]))]
        made.append(constant_buffer_flag(gamma))
    if named["bias"] is not None:
        made += [pointer(named["bias"], DType.F32), i32(named["bias"].strides[-1])]
    types = (*chain.operand_types[1:], *chain.result_types)
    listed = list(zip((*named["inputs"], *named["y"]), types, strict=True))
    if _second(call):
        del listed[_second(call) - 1]
    for view, dtype in listed:
        made += [pointer(view, dtype), *map(i32, view.strides)]
    tiles = combine("ceildiv", cols, _width(call))
    made += [i32(rows), i32(cols), i32(depth), *_sums_of_blocks(call)]
    if variant.template == ONE:
        assert isinstance(depth, int)
        warps = variant.threads // WARP
        abreast, each = one_row_matmul.warps_of_tiles(_chunks(depth), warps)
        made += [i32(tiles), i32(abreast), i32(each), *fixed, late()]
        blocks = product((rows, combine("ceildiv", tiles, abreast)))  # none without a row
        return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made),
                      persistent=variant.params["crowd"])  # fmt: skip
    whole = product((combine("ceildiv", rows, variant.params["rows"]), tiles))
    made += [divisor(tiles), i32(whole), *fixed]
    each = _blocks(call, variant)
    return Launch(symbol, (whole, 1, 1), variant.threads, taken, tuple(made), persistent=each)
