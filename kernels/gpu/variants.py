"""Table of the GPU kernels: op, dtype and tile, with the template and its requirements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tracea_graph.errors import GraphError
from tracea_graph.kernels.gpu.architecture import Architecture
from tracea_graph.kernels.gpu.call_operands import BYTES, FLOATS8
from tracea_graph.kernels.gpu.tile_choice import (
    BLOCK_TILES,
    BYTE_TILES,
    CONVOLUTION_TILES,
    DEPTH_TILES,
    FEW_CODED_ROWS,
    FEW_KEYS,
    FEW_PIXEL_TILES,
    FEW_TILES,
    GATED_TILES,
    LANE_WINDOWS,
    LARGE_WINDOW,
    LOW_RANK_TILES,
    MLP_TILES,
    NORMED_TILES,
    ONE_CODED_ROW,
    ONE_ROW_TILES,
    PROMOTED_TILE,
    SPLIT_TILES,
    SQUARE_WINDOW,
    STRIDED_LANES,
    TF32_TILES,
    TWO_OF_FOUR_TILES,
    TWO_TAP_TILES,
    WARPGROUP_TILES,
    WHOLE_KEYS,
    WINDOW_TILES,
    OneRow,
    WarpgroupTile,
)
from tracea_graph.kernels.program import Call

__all__ = ["PROJECTION_TILES", "VARIANTS", "Variant", "candidates", "find"]

PROJECTION_TILES: tuple[tuple[str, int, int], ...] = (("64x1", 64, 4), ("128x1", 128, 3))
"""Kernels of a depthwise convolution with the 1 × 1 convolution behind it: pixels of a block,
threads, and blocks of an SM.

The second, with fewer registers, is for strides of 1: 32 × 56² × 144 to 24 takes 30.2 µs on an
H100, 33.5 by the first; 32 × 112² × 96 by two to 24 takes 37.3 by the first.
"""
_NOTHING: Mapping[str, int] = MappingProxyType({})
_OF_BYTES = (("integer_gemm", BYTES), ("integer_conv", BYTES), ("float8_gemm", FLOATS8))
"""Matmuls and convolutions of 8-bit numbers, and the types of their left operands."""
_WINDOWS_OF_BYTES = ("integer_depthwise", "integer_pool")
_TILES_OF_BYTES = MappingProxyType({
    "integer_gemm": BYTE_TILES, "integer_conv": CONVOLUTION_TILES,
    "float8_gemm": (*BYTE_TILES, PROMOTED_TILE), "grouped_integer_gemm": BYTE_TILES,
})  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One kernel.

    ``threads`` is the block size, ``params`` are parameters of the template, ``needs`` the
    features that an architecture must have.
    """

    op: str
    dtype: str
    template: str
    tile: str
    threads: int
    params: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    needs: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the kernel runs on exactly one architecture, and not on later ones."""
        return "wgmma" in self.needs

    def refusal(self, architecture: Architecture) -> str | None:
        """Return why an architecture cannot run the kernel, as a clause, or None if it can."""
        missing = [feature for feature in self.needs if not architecture.has(feature)]
        return f"{architecture.name} has no {', '.join(missing)}" if missing else None


def _elementwise(width: int) -> Variant:
    """Elementwise kernel whose threads process ``width`` bytes of the narrowest float type."""
    params = {"bytes": width}
    return Variant("elementwise", "f32", "elementwise.cu.in", f"256x{width}", 256, params)


def _rows(op: str, dtype: str) -> tuple[Variant, ...]:
    """Kernels that process each row by part of a warp, by a warp or by a block.

    Each thread holds 32 elements in registers.
    """
    return tuple(
        Variant(op, dtype, "rows.cu.in", f"{rows}x{team}", rows * team,
                {"rows": rows, "team": team, "held": 32 * team, "blocks": 640 // (rows * team)})
        for rows, team in ((16, 8), (8, 16), (4, 32), (1, 256), (1, 512))
    )  # fmt: skip


def _gemm(dtype: str, m: int, n: int, k: int, stages: int, wm: int, wn: int,
          blocks: int) -> Variant:  # fmt: skip
    """Tensor-core matmul with tiles of m × n × k; each warp computes wm × wn results."""
    size = 4 if dtype.startswith("tf32") else 2
    needs = ("bf16",) if dtype in ("bf16", "tf32") else ()
    params = {"m": m, "n": n, "k_bytes": k * size, "stages": stages, "wm": wm, "wn": wn,
              "blocks": blocks}  # fmt: skip
    threads = m // wm * (n // wn) * 32
    return Variant("gemm", dtype, "gemm.cu.in", f"{m}x{n}x{k}x{stages}", threads, params, needs)


def _bytes(op: str, dtype: str, m: int, n: int, k: int, stages: int, wm: int, wn: int,
           blocks: int) -> Variant:  # fmt: skip
    """Matmul or convolution of 8-bit numbers with tiles of m × n × k."""
    params = {"m": m, "n": n, "k_bytes": k, "stages": stages, "wm": wm, "wn": wn,
              "blocks": blocks}  # fmt: skip
    threads, template = m // wm * (n // wn) * 32, f"{op.partition('_')[2]}_bytes.cu.in"
    needs = ("float8",) if dtype in FLOATS8 else ()
    return Variant(op, dtype, template, f"{m}x{n}x{k}x{stages}", threads, params, needs)


def _wgmma(dtype: str, m: int, n: int, stages: int, pingpong: int, pair: int = 0,
           depths: int = 0, *, depth: int = 64) -> Variant:  # fmt: skip
    """Warpgroup matmul: one tile of m × n × depth at a time; with ``pingpong``, two alternate.

    With ``pair``, two blocks of a cluster share an operand, and ``depths`` blocks of a cluster
    share the depth of a tile; see :data:`WarpgroupTile`.
    """
    halves = {"halves": 1} if depth < 64 and dtype in ("f16", "bf16") else {}  # two taps a step
    params = {"m": m, "n": n, "stages": stages, "pingpong": pingpong, "pair": pair,
              "depths": depths, "gated": 0, **halves}  # fmt: skip
    tile = f"{m}x{n}x{depth}x{stages}x{1 + pingpong}{('', 'x', 'w')[pair]}"
    tile += f"d{depths}" * (depths > 0)
    return Variant("gemm", dtype, "gemm_wgmma.cu.in", tile, 384, params, ("wgmma",))


def _grouped(dtype: str, threads: int, cluster: int) -> Variant:
    """Attention to caches by tensor cores: tiles of 16 queries, whose keys blocks share."""
    params, tile, needs = {"cluster": cluster}, f"16x{threads}x{cluster}", ("clusters",)
    return Variant(
        "attention_cached", dtype, "attention_grouped.cu.in", tile, threads, params, needs
    )


def _gated(dtype: str, tile: WarpgroupTile) -> Variant:
    """Warpgroup matmul by two matrices: half of a tile's columns are those of each."""
    own = _wgmma(dtype, *tile)
    return replace(own, op="gated_gemm", template="gemm_gated_wgmma.cu.in",
                   params={**own.params, "gated": 1})  # fmt: skip


def _wgmma_bytes(op: str, dtype: str, tile: WarpgroupTile) -> Variant:
    """Warpgroup kernel of 8-bit numbers; ``grouped_integer_gemm`` takes ``gemm_grouped``."""
    how, _, what = op.partition("_")
    template = f"gemm_{how}_wgmma.cu.in" if "_" in what else f"{what}_bytes_wgmma.cu.in"
    return replace(_wgmma(dtype, *tile, depth=128), op=op, template=template)


def _normed(dtype: str, n: int, stages: int) -> Variant:
    """Matmul of bytes with a norm behind it: each of a block's warpgroups has n columns."""
    own = _wgmma_bytes("normed_integer_gemm", dtype, (64, n, stages, 0))
    return replace(own, tile=f"64x{2 * n}x128x{stages}", params={**own.params, "normed": 1})


def _low_rank(dtype: str, n: int, first: int, stages: int, half: int) -> Variant:
    """Two matmuls by factors, 64 rows and n columns at a time, ``first`` of the first one."""
    own, tile = _wgmma(dtype, 64, n, stages, 1), f"64x{n}x{first}x{stages}{'x2' * half}"
    params = {**own.params, "first": first, "half_depth": half}
    template = f"gemm_low_rank{'_depth' * half}_wgmma.cu.in"
    return replace(own, op="low_rank_gemm", template=template, tile=tile, params=params)


def _two_of_four(dtype: str, m: int, n: int, stages: int, wm: int, wn: int) -> Variant:
    """2:4 sparse matmul with tiles of m × n; each warp computes wm × wn results."""
    params = {"m": m, "n": n, "stages": stages, "wm": wm, "wn": wn}
    threads, tile = m // wm * (n // wn) * 32, f"{m}x{n}x64x{stages}"
    template = "gemm_two_of_four.cu.in"
    return Variant("gemm_two_of_four", dtype, template, tile, threads, params, ("sparse",))


def _two_of_four_wgmma(dtype: str, m: int, n: int, stages: int) -> Variant:
    """2:4 sparse matmul by warpgroups with tiles of m × n, half of the columns each."""
    params = {"m": m, "n": n, "stages": stages}
    tile, template = f"{m}x{n}x64x{stages}x1", "gemm_two_of_four_wgmma.cu.in"
    return Variant("gemm_two_of_four", dtype, template, tile, 384, params, ("wgmma",))


def _few(dtype: str, n: int, split: int) -> Variant:
    """Matmul of few rows: tiles of 64 × n, whose depth ``split`` blocks of a cluster share."""
    tile = f"64x{n}x{split}"
    params = {"n": n, "split": split}
    return Variant("gemm", dtype, "gemm_few.cu.in", tile, 256, params, ("wgmma",))


def _few_pixels(dtype: str, n: int, split: int) -> Variant:
    """Convolution with few results: tiles as in :func:`_few`; a separate warp copies."""
    tile = f"64x{n}x{split}"
    params = {"n": n, "split": split}
    return Variant("conv", dtype, "conv_few.cu.in", tile, 160, params, ("wgmma",))


def _few_coded(dtype: str, rows: int, warps: int) -> Variant:
    """Matmul of few rows with a block-quantized matrix: warps share the depth of 16 columns."""
    params = {"rows": rows}
    needs = ("bf16",) if dtype in ("bf16", "tf32") else ()
    tile = f"{rows}x16" + f"x{warps}" * (rows == 1)
    return Variant("gemm_nbits", dtype, "gemm_nbits_few.cu.in", tile, 32 * warps, params, needs)


def _one_row(op: str, dtype: str, shape: OneRow, width: int = 0) -> Variant:
    """Matmul of one row: each warp has a ring of chunks of 16 columns.

    ``width`` is the place of ``shape`` in :data:`ONE_CODED_ROW`.  The rings need the shared memory
    of architectures with clusters; others take the kernels of few rows.
    """
    warps, crowd, stages, resident = shape
    steps = 128 if op == "gemm" else 256
    params = {"rows": 1, "resident": resident, "crowd": crowd, "stages": stages,
              "width": width}  # fmt: skip
    tile, template = f"1x16x{warps}x{steps}x{stages}", f"{op}_one.cu.in"
    return Variant(op, dtype, template, tile, 32 * warps, params, ("clusters",))


def _windows(op: str, dtype: str) -> tuple[Variant, ...]:
    """Window kernels: one for all windows, and those whose threads compute several pixels."""
    return (
        Variant(op, dtype, "window.cu.in", "256", 256),
        *(
            Variant(op, dtype, "window_tile.cu.in", f"{down}x{across}", 128,
                    {"down": down, "across": across, "blocks": 3})
            for down, across in (*WINDOW_TILES, *[SQUARE_WINDOW] * (op == "depthwise"))
            if (down, across) != SQUARE_WINDOW or dtype != "f32"
        ),
    )  # fmt: skip


def _lanes(dtype: str, down: int, across: int) -> Variant:
    """Depthwise convolution with a large window: a lane has 7 pixels of up to 7 rows."""
    side, group = 7, 32
    tall = min(side, down if down % side == 0 else down // 2)
    warps = down * across // (side * tall)
    params = {"down": down, "across": across, "side": side, "tall": tall, "group": group,
              "blocks": 16 // warps}  # fmt: skip
    tile, needs = f"{down}x{across}x{group}", ("bf16",) * (dtype == "bf16")
    return Variant("depthwise", dtype, "depthwise_lanes.cu.in", tile, 32 * warps, params, needs)


def _attention(dtype: str, queries: int, keys: int, tall: int) -> Variant:
    """Attention with 16 · ``tall`` queries per warp, and double-buffered keys and values."""
    params = {"queries": queries, "keys": keys, "stages": 2, "tall": tall, "blocks": 1}
    needs = ("bf16",) if dtype == "bf16" else ()
    tile, threads = f"{queries}x{keys}", queries // (16 * tall) * 32
    return Variant("attention", dtype, "attention.cu.in", tile, threads, params, needs)


def _flash(dtype: str, groups: int, keys: int, stages: int) -> Variant:
    """Attention by ``groups`` warpgroups with 64 queries each."""
    params = {"groups": groups, "keys": keys, "stages": stages}
    tile = f"{64 * groups}x{keys}x{stages}"
    threads = 128 * (groups + 1)
    return Variant("attention", dtype, "attention_wgmma.cu.in", tile, threads, params, ("wgmma",))


def _attend(dtype: str, keys: int) -> Variant:
    """Attention of 64 queries at a time to at most ``keys`` keys."""
    params = {"groups": 1, "keys": keys, "stages": 1, "blocks": WHOLE_KEYS[keys]}
    tile = f"64x{keys}x1"
    return Variant("attention", dtype, "attention_few.cu.in", tile, 128, params, ("wgmma",))


_ROUNDED = ((1, 128, 1, 128, 3), (1, 256, 1, 256, 2), (2, 64, 8, 2048, 2))
"""Attention of 8-bit integers: warpgroups, keys of a tile, stages, most keys, blocks of an SM."""


def _rounded_attention(dtype: str, numbers: tuple[int, ...]) -> Variant:
    params = dict(zip(("groups", "keys", "stages", "most", "blocks"), numbers, strict=True))
    groups, keys, stages, *_ = numbers
    many, ring = ("_many", f"x{stages}") if stages > 1 else ("", "")
    tile, template = f"{64 * groups}x{keys}{ring}", f"attention_quantized{many}.cu.in"
    return Variant("quantized_attention", dtype, template, tile, 128 * groups, params, ("wgmma",))


def _split(dtype: str, keys: int) -> Variant:
    """Attention of 16 queries per block to at most ``keys`` keys; each warp takes 32 keys."""
    params = {"groups": 1, "keys": keys, "stages": 1}
    template, tile = "attention_split.cu.in", f"16x{keys}"
    return Variant("attention", dtype, template, tile, keys, params, ("wgmma",))


def _fma(op: str, m: int, n: int, k: int, blocks: int) -> Variant:
    """Float32 matmul or convolution by fused multiply-adds; 256 threads share an m × n tile."""
    params = {"m": m, "n": n, "k": k, "blocks": blocks}
    return Variant(op, "f32", f"{op}_fma.cu.in", f"{m}x{n}x{k}", 256, params)


VARIANTS = (
    _elementwise(16),
    _elementwise(8),
    *(
        v
        for op in ("norm", "softmax", "reduce")
        for d in ("f32", "f16", "bf16")
        for v in _rows(op, d)
    ),
    _gemm("f16", 128, 128, 32, 4, 64, 64, 2),
    _gemm("f16", 128, 128, 64, 3, 64, 64, 2),
    _gemm("f16", 128, 256, 32, 4, 64, 64, 1),
    _gemm("f16", 128, 256, 64, 3, 64, 64, 1),
    _gemm("f16", 64, 64, 64, 3, 32, 32, 2),
    _gemm("f16", 32, 64, 64, 4, 16, 32, 2),
    _gemm("bf16", 128, 128, 32, 4, 64, 64, 2),
    _gemm("bf16", 64, 64, 64, 3, 32, 32, 2),
    _gemm("bf16", 32, 64, 64, 4, 16, 32, 2),
    *(_wgmma(d, *tile) for d in ("f16", "bf16") for tile in (*WARPGROUP_TILES, *DEPTH_TILES)),
    *(_gated(d, tile) for d in ("f16", "bf16") for tile in GATED_TILES),
    *(_low_rank(d, *tile) for d in ("f16", "bf16") for tile in LOW_RANK_TILES),
    *(_wgmma("tf32", *tile, depth=32) for tile in TF32_TILES),
    *(_wgmma("tf32x3", *tile, depth=32) for tile in SPLIT_TILES),
    *(_few(d, *tile) for d in ("f16", "bf16") for tile in FEW_TILES),
    *(_one_row("gemm", d, shape) for d in ("f16", "bf16") for shape in ONE_ROW_TILES),
    *(
        Variant(op, f"b{size}", template, tile, 256, params)
        for size in (1, 2, 4, 8)
        for op, template, tile, params in (
            ("copy", "move.cu.in", "256x16", {}),
            ("copy", "transpose.cu.in", "32x32", {"side": 32}),
            ("concat", "concat.cu.in", "256x16", {"blocks": 8}),
        )
    ),
    *(
        replace(_gemm(d, *tile), op="gemm_blocks", template="gemm_blocks.cu.in")
        for types, tile in (
            (("f16", "bf16"), (64, 64, 64, 3, 32, 32, 2)),
            (("tf32", "tf32x3"), (64, 64, 32, 3, 32, 32, 2)),
        )
        for d in types
    ),
    *(
        replace(_wgmma(d, *tile), op="gemm_blocks", template="gemm_blocks_wgmma.cu.in")
        for d in ("f16", "bf16")
        for tile in BLOCK_TILES
    ),
    *(
        _two_of_four(d, *tile)
        for d in ("f16", "bf16")
        for tile in ((64, 64, 4, 32, 32), (128, 128, 4, 64, 32))
    ),
    *(_two_of_four_wgmma(d, *tile) for d in ("f16", "bf16") for tile in TWO_OF_FOUR_TILES),
    *(_one_row("gemm_nbits", "f16", shape, i) for i, shape in enumerate(ONE_CODED_ROW)),
    *(_few_coded(d, *tile) for d in ("f16", "bf16", "tf32", "tf32x3") for tile in FEW_CODED_ROWS),
    *(
        replace(_gemm(d, *tile), op="gemm_nbits", template="gemm_nbits.cu.in")
        for types, tile in (
            (("f16", "bf16"), (64, 64, 64, 3, 32, 32, 2)),
            (("f16", "bf16"), (128, 128, 64, 3, 64, 32, 1)),
            (("tf32", "tf32x3"), (64, 64, 32, 3, 32, 32, 2)),
        )
        for d in types
    ),
    *(
        _bytes(op, d, *tile)
        for op, types in _OF_BYTES
        for d in types
        for tile in (
            (128, 128, 64, 4, 64, 32, 1),
            (64, 64, 128, 3, 32, 32, 2),
            (32, 64, 128, 4, 16, 32, 2),
        )
    ),
    *(
        _wgmma_bytes(op, d, t)
        for op, types in (*_OF_BYTES, ("grouped_integer_gemm", BYTES))
        for d in types
        for t in _TILES_OF_BYTES[op]
    ),
    *(_normed(d, *tile) for d in BYTES for tile in NORMED_TILES),
    *(Variant(op, d, "window_bytes.cu.in", "256", 256) for op in _WINDOWS_OF_BYTES for d in BYTES),
    *(v for op in ("depthwise", "pool") for d in ("f32", "f16", "bf16") for v in _windows(op, d)),
    *(_lanes(d, *tile) for d in ("f16", "bf16") for tile in (*LANE_WINDOWS, STRIDED_LANES)),
    *(
        Variant(
            "depthwise",
            d,
            "depthwise_large.cu.in",
            LARGE_WINDOW,
            128,
            {"down": 7, "across": 7, "channels": 2, "blocks": 3},
        )
        for d in ("f32", "f16", "bf16")
    ),
    *(
        Variant("pool", d, "pool_whole.cu.in", tile, n, {"runs": runs, "groups": n // runs})
        for d in ("f32", "f16", "bf16")
        for tile, n, runs in (("512", 512, 16), ("512x4", 512, 4), ("128x32", 128, 32))
    ),
    *(
        replace(_gemm(d, *tile), op="conv", template="conv.cu.in")
        for d in ("f16", "bf16")
        for tile in ((128, 128, 32, 4, 64, 64, 2), (64, 64, 64, 3, 32, 32, 2))
    ),
    *(
        replace(_wgmma(d, *tile, depth=depth), op="conv", template="conv_wgmma.cu.in")
        for d, depth, tiles in (
            *((d, 64, (*CONVOLUTION_TILES, *DEPTH_TILES)) for d in ("f16", "bf16")),
            *((d, 32, TWO_TAP_TILES) for d in ("f16", "bf16")),
            *(("tf32", 32, TF32_TILES), ("tf32x3", 32, SPLIT_TILES)),
        )
        for tile in tiles
    ),
    *(_few_pixels(d, *tile) for d in ("f16", "bf16") for tile in FEW_PIXEL_TILES),
    *(
        replace(_gemm(d, *tile), op="conv", template="conv.cu.in")
        for d in ("tf32", "tf32x3")
        for tile in ((128, 64, 16, 4, 64, 32, 2), (64, 64, 32, 3, 32, 32, 2))
    ),
    *(
        _attention(d, *tile)
        for d in ("f16", "bf16")
        for tile in ((64, 64, 1), (64, 32, 1), (128, 64, 2), (128, 32, 2), (32, 16, 1))
    ),
    *(
        _attention(d, *tile)
        for d in ("tf32", "tf32x3")
        for tile in ((64, 32, 1), (64, 16, 1), (32, 16, 1))
    ),
    *(_split(d, keys) for d in ("f16", "bf16") for keys in FEW_KEYS),
    *(_attend(d, keys) for d in ("f16", "bf16") for keys in WHOLE_KEYS),
    *(
        _flash(d, groups, keys, 2)
        for d in ("f16", "bf16")
        for groups, keys in ((3, 128), (2, 128), (2, 96), (2, 64), (2, 32))
    ),
    *(
        Variant(
            "attention_cached",
            d,
            "attention_cached.cu.in",
            f"256x{cluster}",
            256,
            {"cluster": cluster},
            ("clusters",) * (cluster > 1),
        )
        for d in ("f32", "f16", "bf16")
        for cluster in (1, 8)
    ),
    *(
        _grouped(d, threads, cluster)
        for d in ("f16", "bf16")
        for threads, cluster in ((256, 8), (128, 8), (128, 4), (128, 2))
    ),
    *(
        Variant(op, d, f"{op}.cu.in", str(threads), threads)
        for op, threads in (
            ("attention_rows", 128),
            ("embedding", 256),
            ("take", 256),
            ("gather_nd", 256),
            ("scatter_nd", 256),
            ("arg", 256),
            ("top_k", 256),
            ("resize", 256),
            ("grid_sample", 256),
            ("cumulative_sum", 256),
            ("scatter_elements", 256),
            ("kv_append", 256),
            ("recurrent", 512),
            ("value_range", 256),
        )
        for d in ("f32", "f16", "bf16")
    ),
    *(
        Variant(op, d, f"{op}.cu.in", "256", 256)
        for op in ("kv_append_rotated", "dequantize")
        for d in ("f16", "bf16")
    ),
    *(Variant("embedding", d, "embedding.cu.in", "256", 256) for d in ("u8", "i8")),
    *(
        Variant(op, d, f"{op}.cu.in", "256", 256)
        for op in (
            "take",
            "gather_nd",
            "scatter_nd",
            "arg",
            "top_k",
            "cumulative_sum",
            "scatter_elements",
        )
        for d in ("i32", "i64")
    ),
    *(Variant("pack", d, "pack.cu.in", "256", 256) for d in ("f16", "bf16")),
    *(
        Variant(
            "squeeze_excite",
            d,
            "squeeze_excite.cu.in",
            f"512x{cluster}",
            512,
            {"cluster": cluster},
            ("wgmma",) * (cluster > 1),
        )
        for d in ("f16", "bf16")
        for cluster in (1, 8)
    ),
    *(
        Variant(
            "depthwise_projection",
            d,
            "depthwise_projection.cu.in",
            tile,
            threads,
            {"blocks": blocks},
            ("bf16",) * (d == "bf16"),
        )
        for d in ("f16", "bf16")
        for tile, threads, blocks in PROJECTION_TILES
    ),
    *(
        Variant(
            "mlp",
            d,
            "mlp.cu.in",
            f"{64 * groups}x{1 + streamed}",
            128 * (groups + streamed),
            {"groups": groups, "streamed": streamed},
            ("wgmma",),
        )
        for d in ("f16", "bf16")
        for groups, streamed in MLP_TILES
    ),
    *(
        Variant(
            "attention_projection",
            d,
            "attention_projection.cu.in",
            "16x6",
            256,
            {"cluster": 6},
            ("wgmma",),
        )
        for d in ("f16", "bf16")
    ),
    *(_rounded_attention(d, numbers) for d in ("f16", "bf16") for numbers in _ROUNDED),
    *(
        Variant(
            "expanded_depthwise",
            d,
            "depthwise_expanded.cu.in",
            "2x32",
            256,
            {"across": 2, "channels": 32, "blocks": 2},
            ("bf16",) * (d == "bf16"),
        )
        for d in ("f16", "bf16")
    ),
    Variant("update_order", "i32", "update_order.cu.in", "256", 256),
    *(Variant("integer_step", d, "integer_step.cu.in", "256", 256) for d in ("i32", "i64")),
    Variant("iota", "f32", "iota.cu.in", "256", 256),
    *(
        Variant("scaled_two_of_four", d, "scaled_two_of_four.cu.in", "256x8", 256, needs=needs)
        for d, needs in (("f16", ()), ("bf16", ("bf16",)))
    ),
    Variant("same", "b1", "same.cu.in", "256", 256),
    *(_fma(op, *tile) for op in ("gemm", "conv") for tile in ((128, 128, 8, 1), (64, 64, 8, 2))),
    *(
        _gemm(d, *tile)
        for d in ("tf32", "tf32x3")
        for tile in (
            (128, 64, 16, 4, 64, 32, 2),
            (64, 64, 32, 3, 32, 32, 2),
            (32, 64, 32, 4, 16, 32, 2),
        )
    ),
)


def candidates(call: Call, architecture: Architecture) -> tuple[Variant, ...]:
    """Return every variant that computes a call on an architecture."""
    return tuple(
        v
        for v in VARIANTS
        if (v.op, v.dtype) == (call.op, call.dtype) and v.refusal(architecture) is None
    )


def find(call: Call, architecture: Architecture, tile: str = "") -> Variant:
    """Find the variant of a call by its tile.  Raises GraphError unless exactly one matches."""
    found = [v for v in candidates(call, architecture) if not tile or v.tile == tile]
    if len(found) == 1:
        return found[0]
    known = [v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)]
    why = [f"{v.tile} ({v.refusal(architecture) or 'fits'})" for v in known]
    what = f"{call.name} on {architecture.name}" + (f" in tiles of {tile}" if tile else "")
    raise GraphError(f"{len(found)} kernels compute {what}; there are {', '.join(why) or 'none'}.")
