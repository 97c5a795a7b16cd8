"""Fused attention: scores stay on chip, and a block reads each key and value once.

Matmuls are in 16 bits, sums and softmax in float32.  The row maximum is subtracted before scores
are scaled to base 2, so that masks down to the lowest float32 number stay finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any

from tracea_graph.errors import GraphError
from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.tensor_core_matmul import TYPES
from tracea_graph.kernels.gpu.launch import Argument, Launch, divisor, f32, i32, pointer
from tracea_graph.kernels.gpu.semantic.bank_conflicts import matrix_load, prove_free
from tracea_graph.kernels.gpu.semantic.fragment_layouts import ATOMS, MatrixLoad
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import BarrierMode, Ring, prove
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import Layout, SwizzleMode
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.attention import LOWEST
from tracea_graph.ops.chain import FLOAT8

__all__ = [
    "BAND_BYTES",
    "LARGEST_HEAD",
    "LARGEST_HELD",
    "LISTED_SIDE",
    "MASKS",
    "balanced_band",
    "column_step",
    "element_of_result",
    "heads_of",
    "is_balanced",
    "is_listed",
    "is_windowed",
    "launch",
    "limits",
    "name",
    "operands_of",
    "parameters",
    "refusal",
    "register_refusal",
    "result_of",
    "sees_globals",
    "shared",
    "skips",
    "views_by_operand",
    "visited_keys",
    "visits",
]

LARGEST_HEAD, LARGEST_HELD = 256, 128
"""Largest head size, and that of queries which a thread holds; others are read for each tile."""
LISTED_SIDE = 128
"""Queries and keys of a tile of scores that a list of key tiles names."""
BAND_BYTES = 32 << 20
"""Bytes of keys and values that share L2 if attention is causal."""
MASKS = {"add": DType.F32, "bool": DType.BOOL}
_RUN = 16
_LEAST_HELD = 64
"""Queries of a tile that registers hold for all heads of up to 128 columns in 16 bits."""
_MOST_HELD, _MOST_ALTERED = 160, 128
"""Registers of a thread that queries, scores and sums may take before others spill: plain scores,
and scores with a mask, causal order or cap.  Found from cubins, for sm_80 with heads of 16 to 128
columns, for the others at the limits: beyond them 16 to 680 bytes of a thread spill, below at most
24.
"""
_MOST_FLOATS = 72
"""The same of scores and sums in float32, whose products take more registers."""


@dataclass(frozen=True)
class Tile:
    """Shared-memory layout of queries, keys and values; head sizes are padded to 16."""

    queries: int
    keys: int
    depth: int
    depth_v: int
    stages: int
    size: int = 2
    """Bytes of a number."""

    @property
    def layout_k(self) -> Layout:
        """Layout of keys and of queries."""
        return _layout(self.size * self.depth)

    @property
    def layout_v(self) -> Layout:
        return _layout(self.size * self.depth_v)

    @property
    def ring(self) -> Ring:
        return Ring(self.stages, BarrierMode.GROUPS)

    @property
    def holds_queries(self) -> bool:
        """Whether registers hold the queries of a block; else each tile of keys reads them."""
        return self.size == 2 and self.depth <= LARGEST_HELD

    @property
    def q_bytes(self) -> int:
        return self.queries * self.layout_k.pitch

    @property
    def k_bytes(self) -> int:
        return self.keys * self.layout_k.pitch

    @property
    def stage_bytes(self) -> int:
        return self.k_bytes + self.keys * self.layout_v.pitch

    @property
    def shared(self) -> int:
        return self.q_bytes + self.stages * self.stage_bytes


def _layout(wide: int) -> Layout:
    """Return the layout of rows of ``wide`` bytes; a row that cannot be swizzled gets padding."""
    modes = {32: SwizzleMode.XOR2, 64: SwizzleMode.XOR4, 128: SwizzleMode.XOR8,
             256: SwizzleMode.XOR8}  # fmt: skip
    return Layout(wide, modes[wide]) if wide in modes else Layout(wide + _RUN)


@cache
def _proved(tile: Tile) -> Tile:
    """Prove a tile free of bank conflicts and its pipeline safe; raises GraphError otherwise."""
    a = MatrixLoad(((0, 0), (8, 0), (0, 8), (8, 8)))
    nk = MatrixLoad(((0, 0), (0, 8), (8, 0), (8, 8)))
    kn = MatrixLoad(((0, 0), (8, 0), (0, 8), (8, 8)), transposed=True)
    pairs = tile.size * tile.depth // 2  # a fragment of float32 has half as many columns
    for row in range(0, tile.queries, 16):
        columns = range(0, pairs, 16)
        prove_free([matrix_load("queries", a, tile.layout_k, row, c) for c in columns])
    for row in range(0, tile.keys, 16):
        columns = range(0, pairs, 16)
        prove_free([matrix_load("keys", nk, tile.layout_k, row, c) for c in columns])
        columns = range(0, tile.depth_v if tile.size == 2 else 0, 16)
        prove_free([matrix_load("values", kn, tile.layout_v, row, c) for c in columns])
    prove(tile.ring)
    return tile


def views_by_operand(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def heads_of(call: Call, most: int = LARGEST_HEAD) -> tuple[int, int]:
    """Return the head size of queries and keys, and of values.

    Raises GraphError if a head size is symbolic or larger than ``most``.
    """
    named = views_by_operand(call)
    sizes = named["q"].dims[-1], named["v"].dims[-1]
    if not all(isinstance(n, int) and 1 <= n <= most for n in sizes):
        raise GraphError(f"Attention kernels need head sizes of 1 to {most}, not {sizes}.")
    return sizes


def shared_layout(call: Call, variant: Variant) -> Tile:
    """Return the shared-memory layout of a call's operands."""
    p, (depth, depth_v) = variant.params, heads_of(call)
    up = -(-depth // 16) * 16, -(-depth_v // 16) * 16
    return Tile(p["queries"], p["keys"], *up, p["stages"], int(TYPES[call.dtype].size))


def refusal(call: Call, variant: Variant) -> str:
    """Return why a variant cannot compute a call, or "" if it can."""
    tile, a = shared_layout(call, variant), call.attributes
    altered = a["mask_kind"] != "none" or a["order"] != "none" or a["softcap"] > 0
    altered = altered or is_windowed(call)
    return register_refusal(tile, variant, altered)


def register_refusal(tile: Tile, variant: Variant, altered: bool) -> str:
    """Return why a thread's registers do not hold a tile, or "" if they do."""
    halves = tile.size == 2
    if tile.holds_queries and tile.queries < _LEAST_HELD:
        return f"registers hold tiles of {_LEAST_HELD} queries"
    queries = tile.depth // 4 if tile.holds_queries else 0
    held: int = variant.params["tall"] * (queries + tile.depth_v // 2 + tile.keys // 2)
    most = _MOST_ALTERED if altered and tile.holds_queries else _MOST_HELD
    most = most if halves else _MOST_FLOATS
    if held <= most:
        return ""
    return f"a thread would hold {held} registers of queries, scores and sums; {most} fit"


def name(call: Call) -> str:
    depth, depth_v = heads_of(call)
    a = call.attributes
    words = [f"attention_d{depth}" if depth == depth_v else f"attention_d{depth}v{depth_v}"]
    words += [str(a["mask_kind"])] * (a["mask_kind"] != "none")
    words += [f"causal{a['order']}" + "skips" * skips(call)] * (a["order"] != "none")
    words += ["near"] * is_windowed(call) + ["global"] * sees_globals(call)
    words += ["listed"] * is_listed(call)
    words += ["capped"] * (a["softcap"] > 0) + [str(a["zero_rows"])] * (a["zero_rows"] != "none")
    words += ["rounded"] * bool(a["factor"])
    return "_".join(words)


def skips(call: Call) -> bool:
    """Whether a block of queries skips key tiles in which it sees no key."""
    a = call.attributes
    return is_windowed(call) or bool(a["order"] != "none" and a["fill"] == -inf)


def is_windowed(call: Call) -> bool:
    """Whether queries see only the keys of a window."""
    return bool(call.attributes["window_left"] >= 0)


def sees_globals(call: Call) -> bool:
    """Whether all queries of a window see the first keys too, and the first queries all keys."""
    return is_windowed(call) and bool(call.attributes["global_keys"] > 0)


def is_listed(call: Call) -> bool:
    """Whether a list names the key tiles that blocks of queries visit."""
    return views_by_operand(call)["listed"] is not None


def visits(call: Call) -> dict[str, Any]:
    """Return the template parameters that say which keys a block of queries visits."""
    a, windowed = call.attributes, is_windowed(call)
    return {
        "order": a["order"],
        "balanced": is_balanced(call),
        "skips": skips(call),
        "windowed": windowed,
        "globals": sees_globals(call),
        "outside": _outside(call),
        "from_end": a["order"] == "bottom" or (windowed and a["order"] == "none"),
        "mapped": is_listed(call),
        "capped": a["softcap"] > 0,
        "zero_rows": a["zero_rows"],
        "lowest": f"{LOWEST.hex()}f",
        "guarded": a["zero_rows"] != "none",
    }


def _outside(call: Call) -> str:
    """Return the condition under which a window excludes a key ``behind`` a query's position.

    It also names the ``key`` and the ``place`` of the query where some are seen by all.
    """
    beyond = "behind < -window_left || behind > window_right"
    if not sees_globals(call):
        return beyond
    beyond = f"(({beyond}) && key >= global_keys && place >= global_keys)"
    return beyond + (" || behind > 0" if call.attributes["order"] != "none" else "")


def column_step(call: Call) -> int | str:
    """Return the distance of masks of adjacent keys: 1, or the argument that holds it."""
    mask = views_by_operand(call)["mask"]
    return 1 if mask is not None and mask.strides[-1] == 1 else "mask_col"


def visited_keys(call: Call) -> list[Argument]:
    """Return the arguments that follow the mask: key tiles to visit, and positions of queries."""
    named, made = views_by_operand(call), list[Argument]()
    if is_listed(call):
        made.append(pointer(named["listed"], DType.I32))
    if call.attributes["order"] == "placed":
        made += [pointer(named["positions"], DType.I64), i32(named["positions"].strides[0])]
    return made


def element_of_result(call: Call) -> str:
    """Return the C++ type in which the result is stored: that of the operands, or e4m3."""
    own = FLOAT8 if call.attributes["factor"] else TYPES[call.dtype]
    return chain_parameters.ELEMENTS[own]


def result_of(call: Call, strides: Sequence[Extent]) -> list[Argument]:
    """Return the arguments of the result: its address, ``strides``, and a factor if it has one."""
    named, factor = views_by_operand(call), float(call.attributes["factor"])
    own = FLOAT8 if factor else TYPES[call.dtype]
    return [pointer(named["y"], own), *map(i32, strides), *([f32(factor)] if factor else [])]


def limits(call: Call) -> list[Argument]:
    """Return the last arguments: numbers that change scores, and the sides of a window."""
    a = call.attributes
    made = [f32(float(a[name])) for name in ("scale", "fill", "softcap")]
    made += [i32(a[name]) for name in ("window_left", "window_right") if is_windowed(call)]
    return made + [i32(a["global_keys"])] * sees_globals(call)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    tile, (depth, depth_v) = _proved(shared_layout(call, variant)), heads_of(call)
    a = call.attributes
    return {
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
        "result": element_of_result(call),
        "rounded": bool(a["factor"]),
        "kind": call.dtype,
        "wide": tile.size == 4,
        "held": tile.holds_queries,
        "split": call.dtype == "tf32x3",
        "run": _RUN // tile.size,
        "mask": a["mask_kind"],
        "mask_element": chain_parameters.ELEMENTS[MASKS.get(str(a["mask_kind"]), DType.F32)],
        **visits(call),
        "column_step": column_step(call),
        "granule": LISTED_SIDE,
        "head_size": depth,
        "head_v": depth_v,
        "depth": tile.depth,
        "depth_v": tile.depth_v,
        "layout_k": tile.layout_k,
        "layout_v": tile.layout_v,
        "ring": tile.ring,
        "q_bytes": tile.q_bytes,
        "k_bytes": tile.k_bytes,
        "stage_bytes": tile.stage_bytes,
        "fragment": ATOMS["m16n8k16.f16"].d,
    }


def shared(call: Call, variant: Variant) -> int:
    return shared_layout(call, variant).shared


def operands_of(call: Call) -> list[Argument]:
    """Return the first arguments of attention kernels: q, k, v and mask, each with its strides."""
    named, kind, made = views_by_operand(call), str(call.attributes["mask_kind"]), list[Argument]()
    for view in (named["q"], named["k"], named["v"]):
        made += [pointer(view, TYPES[call.dtype]), *map(i32, view.strides)]
    if kind != "none":
        made += [pointer(named["mask"], MASKS[kind]), *map(i32, named["mask"].strides)]
    return made


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named = views_by_operand(call)
    q: View = named["q"]
    batch, heads, queries, _ = q.dims
    heads_k, keys = named["k"].dims[1:3]
    made = operands_of(call)
    made += visited_keys(call)
    made += result_of(call, named["y"].strides)
    tiles = combine("ceildiv", queries, variant.params["queries"])
    group = combine("floordiv", heads, heads_k)
    made += [divisor(tiles), divisor(heads), divisor(group)]
    if is_balanced(call):
        band = balanced_band(call)
        made += [
            divisor(combine("mul", tiles, band)),
            i32(band),
            i32(combine("mul", batch, heads)),
        ]
    made += [i32(queries), i32(keys)]
    made += limits(call)
    blocks = product((batch, heads, tiles))
    return Launch(symbol, (blocks, 1, 1), variant.threads, shared(call, variant), tuple(made))


def is_balanced(call: Call) -> bool:
    """Whether tiles take unlike times, so that long ones come first."""
    return call.attributes["order"] != "none" and not is_windowed(call)


def balanced_band(call: Call) -> Extent:
    """Return the number of heads whose keys and values L2 holds at a time."""
    named = views_by_operand(call)
    batch, heads, _, _ = named["q"].dims
    heads_k, keys = named["k"].dims[1:3]
    row = int(TYPES[call.dtype].size) * sum(heads_of(call))
    each = combine("mul", combine("max", keys, 1), row)
    held = combine("max", combine("floordiv", BAND_BYTES, each), 1)
    alike = combine("floordiv", heads, heads_k)  # heads that share keys
    whole = combine("mul", batch, heads)
    return combine("max", combine("min", combine("mul", held, alike), whole), 1)
