"""Matmuls and convolutions of 8-bit integers with exact sums in int32; matmuls of 8-bit floats.

Both operands are contiguous along the depth.  Zero points are corrected in the sums: for this, a
warp adds up the bytes of its fragments while it multiplies.  Depthwise convolutions subtract zero
points before they multiply.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.convolution import as_pixel_rows
from tracea_graph.kernels.gpu.families.tensor_core_matmul import EpilogueTensor
from tracea_graph.kernels.gpu.launch import (
    Argument,
    Launch,
    constant_buffer_flag,
    divisor,
    i32,
    pointer,
)
from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access, matrix_load, prove_free
from tracea_graph.kernels.gpu.semantic.epilogue_strips import EpilogueStrip
from tracea_graph.kernels.gpu.semantic.fragment_layouts import ATOMS, MatrixLoad
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import BarrierMode, Ring, prove
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import Layout, SwizzleMode
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import FLOATS8, Chain

__all__ = ["launch", "name", "parameters", "shared"]

_TYPES = {"u8": DType.U8, "i8": DType.I8, **{t.short: t for t in FLOATS8}}
_ATOM = ATOMS["m16n8k32.s8"]
_WINDOWS = ("integer_depthwise", "integer_pool")
_STEP = 2 * 16
"""Bytes along the depth that one instruction multiplies."""


@dataclass(frozen=True)
class Tile:
    """Shared-memory layout of a tile; sizes are in elements, which are bytes."""

    m: int
    n: int
    k: int
    wm: int
    wn: int
    stages: int

    @property
    def rows(self) -> Layout:
        """Layout of the rows of x, and of the columns of w."""
        return Layout(self.k, SwizzleMode.XOR4 if self.k == 64 else SwizzleMode.XOR8)

    @property
    def stage_bytes(self) -> int:
        return (self.m + self.n) * self.rows.pitch

    @property
    def ring(self) -> Ring:
        return Ring(self.stages, BarrierMode.GROUPS)

    @property
    def strip(self) -> EpilogueStrip:
        return EpilogueStrip(self.wn)

    @property
    def shared(self) -> int:
        warps = self.m // self.wm * (self.n // self.wn)
        return max(self.stages * self.stage_bytes, warps * self.strip.words * 4)

    def loads(self) -> list[Access]:
        """Return the accesses that read fragments from the pipeline's stages."""
        a = MatrixLoad(((0, 0), (8, 0), (0, 16), (8, 16)))
        b = MatrixLoad(((0, 0), (0, 16), (8, 0), (8, 16)))
        steps = range(0, self.k, _STEP)
        return [
            matrix_load(side, load, self.rows, row, k, 1)
            for side, load, size in (("a", a, self.m), ("b", b, self.n))
            for row in range(0, size, 16)
            for k in steps
        ]


@cache
def _proved(tile: Tile, run: int) -> Tile:
    """Prove a tile free of bank conflicts and its pipeline safe; raises GraphError otherwise."""
    prove_free(tile.loads())
    prove_free(tile.strip.accesses(run))
    prove(tile.ring)
    return tile


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _tile(variant: Variant) -> Tile:
    p = variant.params
    return Tile(p["m"], p["n"], p["k_bytes"], p["wm"], p["wn"], p["stages"])


def _right(call: Call) -> DType:
    """Return the element type of w."""
    return _TYPES[str(call.attributes["w_type"])] if call.op == "float8_gemm" else DType.I8


def _kinds(call: Call) -> dict[str, str]:
    """Return the names of the element types of x, of w and of sums in the templates."""
    kind, right = (chain_parameters.ELEMENTS[t] for t in (_TYPES[call.dtype], _right(call)))
    return {"kind": kind, "right": right, "sum": "i32" if right == "i8" else "float"}


def _convolves(call: Call) -> bool:
    return call.op not in ("integer_gemm", "float8_gemm")


def _matrix(call: Call, view: View) -> View:
    """View a tensor of the epilogue as a matrix of rows and columns."""
    return as_pixel_rows(view) if _convolves(call) else view


def _shifted(call: Call) -> bool:
    return bool(call.attributes.get("shifted", False))


def _chain(call: Call) -> Chain:
    """Return a call's epilogue; that of a pool stores the maxima unchanged."""
    return call.chain or Chain(("full",), (), (0,), (), (_TYPES[call.dtype],))


def _run(chain: Chain) -> int:
    return chain_parameters.vector_length(*chain.operand_types[1:], *chain.result_types)


def name(call: Call) -> str:
    words = [call.op.replace("integer_", "")]
    words += ["by_e5m2"] * (_right(call) is DType.F8E5M2)
    words += ["shifted"] * _shifted(call)
    words += ["zeros"] * (_named(call).get("w_zeros") is not None)
    words += [f"{call.chain.key:016x}"] if call.chain else []
    return "_".join(words)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    chain = _chain(call)
    listed = [
        (f"x{x.index}", x.element, True, x.wide) for x in chain_parameters.operands(chain)[1:]
    ]
    listed += [(f"y{y.index}", y.element, False, True) for y in chain_parameters.results(chain)]
    made = {
        **chain_parameters.chain_template_parameters(chain),
        "tensors": [EpilogueTensor(*one, "0") for one in listed],
        "strided": True, "bias": False, "batch": 0, "run": _run(chain), **_kinds(call),
        "shifted": _shifted(call), "own_zeros": _named(call).get("w_zeros") is not None,
        "pool": call.op == "integer_pool",
    }  # fmt: skip
    if call.op in _WINDOWS:
        return made
    tile = _proved(_tile(variant), _run(chain))
    down = variant.threads * 16 // tile.k
    if tile.m % down or down % 16:
        raise GraphError(f"A tile of {variant.tile} does not give each thread whole rows.")
    return {
        **made,
        "a": tile.rows, "b": tile.rows, "a_bytes": tile.m * tile.rows.pitch,
        "stage_bytes": tile.stage_bytes, "ring": tile.ring, "strip": tile.strip,
        "fragment": _ATOM.d, "atom": _ATOM,
        "warps_m": tile.m // tile.wm, "warps_n": tile.n // tile.wn,
    }  # fmt: skip


def shared(call: Call, variant: Variant) -> int:
    return 0 if call.op in _WINDOWS else _tile(variant).shared


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, chain, a = _named(call), _chain(call), call.attributes
    x, w = named["x"], named.get("w")
    ys = [named["y"]] if w is None else named["y"]
    rows, cols = _matrix(call, ys[0]).dims
    made: list[Argument] = [pointer(x, _TYPES[call.dtype])]
    if w is not None:
        made.append(pointer(w, _right(call)))
        made += map(i32, w.strides if _convolves(call) else (*x.strides, *w.strides))
    types = (*chain.operand_types[1:], *chain.result_types)
    for view, dtype in zip((*named.get("inputs", ()), *ys), types, strict=True):
        made += [pointer(view, dtype), *map(i32, _matrix(call, view).strides)]
    if _shifted(call):
        made += [pointer(named["x_zero"], _TYPES[call.dtype]), i32(int(a["zero"]))]
    if (own := named.get("w_zeros")) is not None:
        made += [pointer(own, DType.I8), i32(own.strides[0])]
    made += map(i32, (rows, cols, product(tuple(a["kernel"])) if w is None else w.dims[1]))
    if call.op in _WINDOWS:
        across = combine("ceildiv", cols, _run(chain))
        blocks = combine("ceildiv", combine("mul", rows, across), variant.threads)
    else:
        across = combine("ceildiv", cols, variant.params["n"])
        blocks = product((combine("ceildiv", rows, variant.params["m"]), across))
    made.append(divisor(across))
    if _convolves(call):
        _, high, wide, _ = ys[0].dims
        made += map(i32, (*x.strides, *x.dims[1:3]))
        made += map(divisor, (x.dims[3], a["kernel"][1], combine("mul", high, wide), wide))
        made += map(i32, (*a["strides"], *a["dilations"], *a["pads"]))
    made.append(constant_buffer_flag(x if w is None else w))
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), tuple(made))
