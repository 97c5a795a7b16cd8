"""Fused attention by warpgroups (``wgmma``), for sm_90a: heads of up to 256 columns in 16 bits.

After Shah et al.: FlashAttention-3, 2024.  Tensor maps transfer keys and values.  The scores of
the next keys are computed at the same time as the softmax weights of the current keys; warpgroups
take turns at the tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.families import attention
from tracea_graph.kernels.gpu.families.attention import MASKS, heads_of, views_by_operand
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import (
    MAP_ALIGN,
    Launch,
    divisor,
    i32,
    pointer,
    tensor_map,
)
from tracea_graph.kernels.gpu.semantic.bank_conflicts import prove_free
from tracea_graph.kernels.gpu.semantic.epilogue_exchanges import Exchange
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import BarrierMode, Ring, prove
from tracea_graph.kernels.gpu.semantic.wgmma_descriptors import (
    Instruction,
    MatrixOperand,
    prove_read,
)
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call

__all__ = [
    "STRIP", "launch", "mask_is_flat", "name", "parameters", "proved", "refusal", "shared",
]  # fmt: skip

_ROWS, _WIDE = 64, 64
"""Number of queries per warpgroup, and of columns per copy."""
_BAND = 16
"""Heads that share L2 in windows."""
STRIP = 16 * 128
"""Bytes in which a warp orders 16 rows of the result."""
_REGISTERS = {1: (0, 0), 2: (24, 240), 3: (32, 160)}
"""Registers of a thread that copies, and of one that multiplies, by the number of warpgroups that
multiply; a single warpgroup copies for itself.
"""


@dataclass(frozen=True)
class HeadTile:
    """Shared memory of queries, of a ring of keys and values, and of strips for results.

    Each warp has a ``strip`` of so many bytes, which holds masks before.
    """

    groups: int
    keys: int
    stages: int
    depth: int
    depth_v: int
    strip: int = STRIP

    @property
    def panels(self) -> int:
        return -(-self.depth // _WIDE)

    @property
    def panels_v(self) -> int:
        return -(-self.depth_v // _WIDE)

    @property
    def q(self) -> MatrixOperand:
        return MatrixOperand(_ROWS, _WIDE, True)

    @property
    def k(self) -> MatrixOperand:
        return MatrixOperand(self.keys, _WIDE, True)

    @property
    def v(self) -> MatrixOperand:
        return MatrixOperand(self.panels_v * _WIDE, self.keys, False)

    @property
    def q_bytes(self) -> int:
        return self.groups * self.panels * self.q.nbytes

    @property
    def k_bytes(self) -> int:
        return self.panels * self.k.nbytes

    @property
    def ring(self) -> Ring:
        return Ring(self.stages, BarrierMode.MBARRIER)

    @property
    def strips_at(self) -> int:
        return self.q_bytes + self.stages * (self.k_bytes + self.v.nbytes)

    @property
    def barriers_at(self) -> int:
        return self.strips_at + 4 * self.groups * self.strip

    @property
    def shared(self) -> int:
        return self.barriers_at + 8 * (2 + 4 * self.stages + 1)  # and the number of a tile


_EXCHANGE = Exchange("y", "", "", 2, _WIDE)


@cache
def proved(tile: HeadTile) -> HeadTile:
    """Prove a tile's layouts and pipelines; raises GraphError otherwise."""
    prove_read(tile.q, _ROWS)
    prove_read(tile.k, tile.keys)
    prove_read(tile.v, tile.v.extent)
    prove_free(_EXCHANGE.accesses())
    prove(tile.ring)
    prove(Ring(1, BarrierMode.MBARRIER))  # queries
    return tile


def shared_layout(call: Call, variant: Variant) -> HeadTile:
    """Return the shared-memory layout of a call's operands."""
    p, (depth, depth_v) = variant.params, heads_of(call)
    up = -(-depth // 16) * 16, -(-depth_v // 16) * 16
    return HeadTile(
        p["groups"], p["keys"], p["stages"], *up, _mask_bytes(call, p["keys"]) or STRIP
    )


def _mask_bytes(call: Call, keys: int) -> int:
    """Return the bytes of a warp's masks in shared memory: 0 if all queries have the same."""
    kind = str(call.attributes["mask_kind"])
    if kind == "none" or mask_is_flat(call):
        return 0
    return max(STRIP, 16 * keys * int(MASKS[kind].size))


def mask_is_flat(call: Call) -> bool:
    """Whether all queries have the same mask."""
    mask = views_by_operand(call)["mask"]
    return mask is not None and mask.strides[-2] == 0


def name(call: Call) -> str:
    word = attention.name(call).replace("attention", "flash", 1)
    return f"{word}_flat" if mask_is_flat(call) else word


def _altered(call: Call) -> bool:
    """Whether scores are capped, masked, or filled with a finite number."""
    a = call.attributes
    skips = a["order"] == "none" or attention.skips(call)
    return bool(a["mask_kind"] != "none" or a["softcap"] > 0 or not skips)


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can at some sizes."""
    named, p = views_by_operand(call), variant.params
    views = named["q"], named["k"], named["v"]
    if any(v.strides[-1] != 1 for v in (*views, named["y"])):
        return "tensor maps need operands that are contiguous along their last axis"
    step = MAP_ALIGN // 2
    steps = [s for v in views for s in (*v.strides[:-1], v.offset) if isinstance(s, int)]
    if any(s % step for s in steps):
        return f"tensor maps need row strides that are multiples of {MAP_ALIGN} bytes"
    if call.attributes["scale"] <= 0:
        return "the scale is not positive"
    short, shared_keys = max(heads_of(call)) <= _WIDE, attention.sees_globals(call)
    if shared_keys and short:
        return "beside global keys mma.sync is faster with short heads"
    if p["groups"] == 2 and p["keys"] != (most := _keys_of_a_tile(call)):
        return f"tiles of such heads have {most} keys"
    if p["groups"] > 2 and (not short or _altered(call)):
        return "three warpgroups need short heads, and scores without cap or mask"
    return ""


def _keys_of_a_tile(call: Call) -> int:
    """Return the most keys whose scores registers hold beside sums, and shared memory the rest."""
    widest = max(heads_of(call))
    if widest <= 2 * _WIDE:
        return 128
    masked = _mask_bytes(call, 128) > 0
    if widest > 3 * _WIDE:
        return 32 if masked else 64
    return 64 if masked or attention.is_listed(call) else 96  # a list names tiles of 128 keys


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    tile, a = proved(shared_layout(call, variant)), call.attributes
    producer, consumer = _REGISTERS[tile.groups]
    return {
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "result": attention.element_of_result(call),
        "rounded": bool(a["factor"]),
        "kind": call.dtype,
        "instructions": _instructions(tile),
        "mask": a["mask_kind"],
        "mask_flat": mask_is_flat(call),
        "mask_element": chain_parameters.ELEMENTS[MASKS.get(str(a["mask_kind"]), DType.F32)],
        "column_step": attention.column_step(call),
        **attention.visits(call),
        "granule": attention.LISTED_SIDE,
        "altered": _altered(call),
        "staged": _mask_bytes(call, tile.keys) > 0,
        "mask_size": int(MASKS.get(str(a["mask_kind"]), DType.F32).size),
        "apart": attention.is_listed(call) and not a["softcap"],
        "head_v": heads_of(call)[1],
        "depth": tile.depth,
        "depth_v": tile.depth_v,
        "panels": tile.panels,
        "panels_v": tile.panels_v,
        "q": tile.q,
        "k": tile.k,
        "v": tile.v,
        "q_bytes": tile.q_bytes,
        "k_bytes": tile.k_bytes,
        "v_bytes": tile.v.nbytes,
        "ring": tile.ring,
        "band": _BAND if a["order"] != "none" else 1,
        "exchange": _EXCHANGE,
        "strips_at": tile.strips_at,
        "strip_bytes": tile.strip,
        "barriers_at": tile.barriers_at,
        "producer_registers": producer,
        "consumer_registers": consumer,
    }


def _instructions(tile: HeadTile) -> list[Instruction]:
    """Return the instructions for queries times keys, and for softmax weights times values."""
    return [Instruction(tile.keys, False, True), Instruction(tile.depth_v, True, False)]


def shared(call: Call, variant: Variant) -> int:
    return shared_layout(call, variant).shared


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, a, own = views_by_operand(call), call.attributes, TYPES[call.dtype]
    tile = shared_layout(call, variant)
    batch, heads, queries, _ = named["q"].dims
    heads_k, keys = named["k"].dims[1:3]
    made = [tensor_map(named["q"], own, (1, 1, _ROWS, _WIDE))]
    made += [tensor_map(named[n], own, (1, 1, tile.keys, _WIDE)) for n in ("k", "v")]
    if a["mask_kind"] != "none":
        made += [pointer(named["mask"], MASKS[str(a["mask_kind"])])]
        made += map(i32, named["mask"].strides)
    made += attention.visited_keys(call)
    made += attention.result_of(call, named["y"].strides[:-1])
    tiles = combine("ceildiv", queries, _ROWS * tile.groups)
    whole = combine("mul", batch, heads)
    shared_heads = combine("floordiv", heads, heads_k)
    band: Extent = _BAND if a["order"] != "none" else 1
    if attention.is_balanced(call):
        band = attention.balanced_band(call)
    made += [divisor(tiles), divisor(heads), divisor(shared_heads)]
    blocks = product((whole, tiles))
    made += [divisor(combine("mul", tiles, band)), *[i32(band)] * attention.is_balanced(call)]
    made += [i32(whole), i32(blocks)]
    made += [i32(queries), i32(keys)]
    made += attention.limits(call)
    taken = shared(call, variant)
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made), persistent=1)
