"""Choose the tile of a GPU kernel by the sizes of a call; plans and policy share this rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf
from types import MappingProxyType

__all__ = [
    "BLOCK_TILES", "BYTE_TILES", "CONVOLUTION_TILES", "CYCLES", "DEPTH_TILES", "FEW_CODED_COLUMNS",
    "FEW_CODED_ROWS", "FEW_KEYS", "FEW_PIXEL_TILES", "FEW_TILES", "GATED_TILES", "H100_SMS",
    "LANE_WINDOWS", "LARGE_WINDOW", "LEAST_FILTERS", "LEAST_MANY", "LEAST_MLP_ROWS",
    "LEAST_SIDE", "LONG_ROWS", "LOW_RANK_TILES", "MANY_PIXELS", "MANY_ROWS", "MANY_SHARED",
    "MEASURED_BYTES", "MLP_TILES", "MOST_FEW", "MOST_PROJECTION_CLUSTERS", "NORMED_TILES",
    "ONE_CODED_ROW", "ONE_ROW_TILES", "PROMOTED_TILE", "SHARED_W", "SHARED_X", "SHORT",
    "SPLIT_TILES", "SQUARE_WINDOW", "STRIDED_LANES", "TF32_TILES", "TWO_TAP_TILES",
    "TYPICAL_FEW", "WARPGROUP_TILES", "WHOLE_KEYS", "WIDE", "WINDOW_TILES", "FewTile", "OneRow",
    "WarpgroupTile",
    "choose_concurrent_tile", "choose_few_tile", "choose_tile", "choose_warpgroup_tiles",
    "choose_wide_rows", "few_blocks", "few_microseconds", "most_few", "one_row_width",
    "tile_cycles",
]  # fmt: skip

WarpgroupTile = tuple[int, ...]
"""Tile of a warpgroup kernel: rows, columns, stages, 1 if two tiles alternate, else 0, and which
operand two blocks of a cluster share: 0 (none), ``SHARED_X`` or ``SHARED_W``.  Where blocks of a
cluster share the depth of a tile, their number follows.
"""
SHARED_X, SHARED_W = 1, 2

CONVOLUTION_TILES: tuple[WarpgroupTile, ...] = (
    (128, 256, 4, 0, 0), (128, 192, 5, 0, 0), (128, 128, 6, 1, 0), (128, 128, 6, 0, 0),
    (128, 96, 7, 0, 0), (128, 64, 8, 0, 0), (128, 32, 9, 0, 0),
)  # fmt: skip
TWO_TAP_TILES: tuple[WarpgroupTile, ...] = (
    (128, 128, 6, 0, 0), (128, 64, 8, 0, 0), (128, 32, 9, 0, 0),
)  # fmt: skip
"""Tiles of convolutions of up to 32 channels, whose steps have those of two taps."""
WARPGROUP_TILES: tuple[WarpgroupTile, ...] = (
    *CONVOLUTION_TILES[:2], (128, 192, 5, 1, 0), *CONVOLUTION_TILES[2:], (64, 192, 6, 1, 0),
    (64, 192, 6, 1, SHARED_X), (128, 192, 5, 0, SHARED_X),
)  # fmt: skip
DEPTH_TILES: tuple[WarpgroupTile, ...] = (
    (128, 128, 5, 0, 0, 2), (128, 128, 4, 0, 0, 4), (128, 128, 4, 0, 0, 8),
)  # fmt: skip
"""Tiles whose depth blocks of a cluster share, for fewer tiles than SMs.

Tiles of 128 × 192 shared by two and four blocks were the fastest at none of 13 sizes
(``python -m tests.gpu.timing depth``, one H100).
"""
GATED_TILES: tuple[WarpgroupTile, ...] = (
    (128, 256, 4, 0, 0), (128, 192, 5, 0, 0), (128, 128, 6, 1, 0), (128, 128, 6, 0, 0),
)  # fmt: skip
"""Tiles of a gate and the matmul that it multiplies, half of the columns each."""
LOW_RANK_TILES: tuple[tuple[int, int, int, int], ...] = (
    (192, 64, 6, 0), (128, 64, 10, 0), (192, 128, 6, 0), (128, 128, 6, 0),
    (192, 128, 7, 1), (128, 128, 7, 1), (192, 64, 8, 1), (128, 64, 12, 1),
)  # fmt: skip
"""Tiles of two matmuls by factors of a matrix: columns of a tile, those of the first product that
a block of two computes, stages, and 1 if a block computes half of the depth, not of the columns.
"""
TF32_TILES = tuple(tile for tile in CONVOLUTION_TILES if not tile[3])
"""Tiles of a matmul of tf32 numbers.  None alternate: float32 epilogues need the registers."""
SPLIT_TILES: tuple[WarpgroupTile, ...] = ((128, 128, 4, 0, 0), (128, 64, 6, 0, 0))
"""Tiles of a matmul whose numbers are sums of two tf32 numbers."""
BYTE_TILES: tuple[WarpgroupTile, ...] = (
    (128, 256, 4, 0, SHARED_W), (128, 192, 5, 0, SHARED_W), (128, 256, 4, 0, 0),
    (128, 192, 5, 0, 0), (128, 128, 6, 0, 0), (128, 96, 7, 0, 0), (128, 64, 8, 0, 0),
    (128, 32, 9, 0, 0), (64, 192, 6, 1, 0),
)  # fmt: skip
"""Tiles of a matmul of 8-bit integers.

4096³ with float32 results takes 112.9 µs by pairs of blocks that share w, 129.2 by single ones,
and 168 by tiles of 128 × 128 that alternate; 4096 × 3072 × 768 19.4, 20.5 and 23.7 (one H100).
"""

NORMED_TILES = ((96, 6), (128, 4), (192, 3))
"""Columns of a warpgroup, a quarter of a row's, and stages of a matmul of bytes with a norm."""
PROMOTED_TILE: WarpgroupTile = (128, 128, 6, 0, SHARED_W)
"""Tile of a matmul of 8-bit floats whose sums are promoted, besides the narrower ones of these."""
BLOCK_TILES: tuple[WarpgroupTile, ...] = ((256, 64, 5, 0, 0), (128, 64, 8, 0, 0))
"""Tiles of a matmul over blocks of 64 columns; the first moves less data, for many tiles."""

TwoOfFourTile = tuple[int, int, int]
"""Tile of a 2:4 sparse matmul: rows, columns and stages."""
TWO_OF_FOUR_TILES: tuple[TwoOfFourTile, ...] = ((128, 256, 5), (192, 128, 5))
"""4096³ takes 125.6 and 169.7 µs by them, 126.3 by pairs of blocks that share the matrix, and
162.5 by tiles of 128 × 128 that alternate; 4096 × 2304 × 768 21.7, 18.9, 21.6 and 20.1 (one H100).
"""

FewTile = tuple[int, int]
"""Tile of a matmul of few rows: columns, and number of blocks that share the depth."""

FEW_TILES: tuple[FewTile, ...] = (
    (16, 1), (24, 1), (32, 1), (48, 1), (96, 1), (16, 2), (32, 2), (48, 2), (64, 2), (96, 2),
    (24, 3), (48, 3), (72, 3), (96, 3), (32, 4), (64, 4), (96, 6), (64, 8),
)  # fmt: skip
FEW_PIXEL_TILES: tuple[FewTile, ...] = (
    (16, 1), (24, 1), (32, 1), (48, 1), (64, 1), (96, 1), (128, 1), (16, 2), (32, 2), (48, 2),
    (64, 2), (96, 2), (128, 2), (24, 3), (48, 3), (96, 3), (16, 4), (32, 4), (64, 4), (32, 8),
    (64, 8),
)  # fmt: skip
FEW_KEYS = (128, 256)
"""Maximum numbers of keys of the kernels whose warps share the keys of 16 queries."""
WHOLE_KEYS = MappingProxyType({128: 3, 208: 3, 256: 2})
"""Maximum numbers of keys of the kernels whose warpgroups hold the scores of all keys at once, and
blocks of an SM that registers and shared memory leave room for.  Images of 14 × 14 patches and a
class token have 197 keys.
"""
MOST_FEW, TYPICAL_FEW = 256, 128
"""Maximum rows of the kernels of few rows, and a lower limit with a tile of its own."""
_FEW_OF_WIDE, WIDE = 64, 16384
"""Maximum rows of the kernels of few rows if there are at least ``WIDE`` columns: with more rows
they would read the weight more than once.
"""
LARGE_WINDOW = "7x7"
"""Pixels that a thread computes of a depthwise convolution with a large window."""
LANE_WINDOWS = ((14, 14), (7, 7))
"""Pixels of a block whose lanes have one channel each of 7 × 7 pixels, for 16-bit numbers.

On an H100, batch 32, 7 × 7 windows, µs: 56² × 96 takes 35.9 and 38.2, 47.5 by threads of two
channels, 28² × 192 19.8, 20.3 and 24.0, 14² × 384 12.4, 13.1 and 19.1, 7² × 768 12.8, 7.6, 15.1.
"""
STRIDED_LANES = (8, 14)
"""The same where a stride is 2, whose lanes have 4 rows: 56² × 144 by 5 × 5 takes 19.8 µs instead
of 23.7, 14² × 672 7.9 instead of 9.5.
"""
H100_SMS = 132
"""SMs of an H100, for which kernels and tiles are chosen."""
FEW_CODED_ROWS = ((1, 16), (1, 8), (8, 8), (16, 8))
"""Maximum rows of the kernels that dequantize codes in registers, and their warps.

Of those of one row, more warps are for matmuls with at most ``FEW_CODED_COLUMNS``: one tile of 16
columns for each SM of an H100.
"""
FEW_CODED_COLUMNS = 16 * H100_SMS
OneRow = tuple[int, int, int, int]
"""How one row is multiplied: warps of a block, blocks of an SM, chunks of a warp's ring, and
blocks whose registers an SM holds.
"""
ONE_ROW_TILES: tuple[OneRow, OneRow] = ((8, 2, 3, 3), (8, 2, 2, 3))
"""For matrices of 16-bit numbers.

Llama-3.2-1B's shape took 979 µs a token on an H100 with the first, 1043 with the second, for GPUs
with less shared memory (``python -m tests.gpu.decoder --bits 16 --float``).
"""
ONE_CODED_ROW: tuple[OneRow, OneRow, OneRow] = ((8, 3, 2, 3), (16, 1, 2, 1), (4, 6, 2, 6))
"""For codes of four bits: usually, if each SM has a block and each warp a chunk of the depth, and
for the many columns of a vocabulary.

In their places 2048 columns by 8192 steps take 6.1 µs by the second and 7.5 by one of 8 warps;
128,256 by 2048 steps take 64.5 µs by the third and 73.6 by the first.  16,384 by 2048 steps take
1.0 µs less by the second, whose blocks read x once for an SM, and 1.5 more by the third.
"""
MANY_PIXELS = 512
"""Minimum pixels of an image for pooling kernels in which many threads read the same channels."""
WINDOW_TILES: tuple[tuple[int, int], ...] = ((1, 4), (1, 1))
"""Pixels that a thread of a depthwise convolution or pool computes: vertically, horizontally."""
SQUARE_WINDOW = (2, 2)
"""The same for depthwise convolutions in 16 bits whose filter fits into registers, and whose
result has even sides: 32 × 14² × 384 by 3 × 3 takes 5.7 µs instead of 6.3 on an H100, 32 × 56² ×
144 31.9 instead of 34.1, 32 × 28² × 240 by two 4.7 instead of 6.6.
"""

_FEW_OPERANDS = 2
"""Maximum operands of a chain before a norm for which one warp has enough registers."""
LONG_ROWS, MANY_ROWS = 1024, 1024
"""Maximum columns of a row that one warp reduces, and minimum rows for large tiles."""
_SHORT_ROWS, _RUN = MappingProxyType({"16x8": 256, "8x16": 512}), 8
"""Maximum columns of a row that part of a warp reduces; columns are a multiple of ``_RUN``."""
_SHORT_HEAD, _LONG_HEAD = 64, 128


_ONLY_TILES = MappingProxyType({
    "mlp": ("192x1", "both weights fit into shared memory"),
    "expanded_depthwise": ("2x32", "one or two images"),
    "attention_projection": ("16x6", "a cluster computes 16 rows"),
    "quantized_attention": ("64x128", "a block holds all of few keys"),
    "squeeze_excite": ("512x1", "one block per image"),
    "elementwise": ("256x16", "16 bytes per thread"),
})  # fmt: skip
"""Tiles of other ops, and why they are chosen."""


def choose_tile(
    op: str,
    dtype: str,
    rows: int,
    columns: int,
    operands: int = 1,
    head: int = 0,
    permuted: bool = False,
) -> tuple[str, str]:
    """Return the tile of an op, and the reason; two empty strings if the op has only one tile.

    ``rows``, ``columns`` and ``head`` are 0 if they vary at run time.  ``operands`` is the number
    of tensors that the chain before a norm reads.  ``head`` is the larger head size of attention.
    The input and output of a ``permuted`` copy are contiguous along different axes.
    """
    if op in ("norm", "softmax", "reduce"):
        if not columns or columns > LONG_ROWS:
            return "1x256", "rows may be long: a whole block reduces each row"
        if operands > _FEW_OPERANDS:
            return "1x256", f"{operands} operands need the registers of a whole block"
        for tile, most in _SHORT_ROWS.items():
            if columns <= most and columns % _RUN == 0:
                return tile, f"rows of {columns} elements would leave most of a warp idle"
        return "4x32", f"rows of {columns} elements fit the registers of one warp"
    if op in ("gemm", "conv"):
        wide = rows >= MANY_ROWS
        which = f"{rows} rows" if rows else "rows whose number varies"
        why = f"{which} {'fill large tiles' if wide else 'leave large tiles empty'}"
        if dtype == "f32":
            return "128x128x8" if wide and op == "gemm" else "64x64x8", why
        if dtype in ("tf32", "tf32x3"):
            small = "32x64x32x4" if op == "gemm" else "64x64x32x3"
            return "128x64x16x4" if wide else small, why
        small = "32x64x64x4" if op == "gemm" else "64x64x64x3"
        return "128x128x32x4" if wide else small, why
    if op in ("integer_gemm", "integer_conv", "float8_gemm"):
        wide = rows >= MANY_ROWS
        which = f"{rows} rows" if rows else "rows whose number varies"
        why = f"{which} {'fill tiles of 64' if wide else 'leave tiles of 64 empty'}"
        return "64x64x128x3" if wide else "32x64x128x4", why
    if op == "gemm_two_of_four":
        wide = rows >= MANY_ROWS
        which = f"{rows} rows" if rows else "rows whose number varies"
        why = f"{which} {'fill' if wide else 'leave'} tiles of 128{'' if wide else ' empty'}"
        return "128x128x64x4" if wide else "64x64x64x4", why
    if op == "gemm_nbits":
        wide = rows >= MANY_ROWS and not dtype.startswith("tf32")
        why = "codes are dequantized into tiles in shared memory"
        side = "64x64x32x3" if dtype.startswith("tf32") else "64x64x64x3"
        return "128x128x64x3" if wide else side, why
    if op == "attention":
        short, wide = 0 < head <= _SHORT_HEAD, dtype.startswith("tf32")
        which = f"heads of {head} columns" if head else "heads of any size"
        queries, keys = 64 if short or not wide else 32, (64 if short else 32) // (1 + wide)
        if head > _LONG_HEAD:
            queries, keys = 32, 16
        end = f"{keys} keys at a time{'' if short else ', to fit into shared memory'}"
        return f"{queries}x{keys}", f"{which}: {end}"
    if op == "copy":
        if permuted:
            return "32x32", "input and output contiguous along different axes: a transpose"
        return "256x16", "input and output contiguous along the same axis"
    return _ONLY_TILES.get(op, ("", ""))


MOST_PROJECTION_CLUSTERS = 8
"""Maximum number of clusters of attention and its projection: that of 128 rows, as timed."""


MLP_TILES, LEAST_MLP_ROWS = ((3, 0), (2, 0), (2, 1)), 10240
"""Numbers of warpgroups of a block that computes two matmuls behind a norm, and whether weights
pass through shared memory for each tile; and the minimum number of rows.

Tiles of one wave take as long as separate kernels with so many rows: 12.4 µs and the start for
132 × 192 rows of 96 columns, 22.9 µs for 132 × 128 of 192, where these take 1.0 and 2.3 µs a
thousand rows (one H100).
"""


_FLOPS, _BYTES, _SLOWER = 2048, 61, 1.25
"""Figures of an H100: multiply-adds, and bytes from L2, per SM and cycle; slowdown factor."""
_PER_TILE, _PER_SUM, _PER_STEP, _PER_READ, _ALONE = 600, 0.12, 0.01, 0.125, 3.4
"""Cycles of a tile in addition to its products; cycles of an epilogue per sum, per step of its
chain, and per matrix that it reads; and the factor by which an epilogue takes longer if one of
two warpgroups computes it.

Fitted to 60 products and convolutions of five models at batch 32, with each tile
(``python -m tests.gpu.peers --alone --tiles``, one H100): the tiles that the model picks take 1 %
longer than the best tiles.
"""
_CLUSTERS = MappingProxyType({2: 66, 4: 30, 8: 15})
"""Clusters that an H100 runs at a time, by their number of blocks, one on each SM."""
_MEETING, _PER_SENT = 2300, 0.15
"""Cycles until all blocks that share a tile's depth have started and ended, and those in which a
block receives a sum of another one.  With them the rule chooses the fastest tile at ten sizes
(``python -m tests.gpu.timing depth`` and ``conv f16 b8``, one H100).
"""
_LEAST_BLOCKS = H100_SMS // 2
"""Fewest tiles of products of tf32 numbers: other kernels share the depth of fewer."""
_PER_PART = 330
"""Cycles of a stage whose numbers become sums of two, in addition to its products.

4096³ takes 1366 µs by tiles of 128 columns and 1608 by those of 64 (one H100).
"""
_HIDDEN, _PER_EXCESS = 5, 0.03
"""Steps of an epilogue that do not delay the products beside it, and cycles by which each further
step does, per sum.

Behind a norm and with a GELU, 4096 × 3072 × 768 takes 35.6 µs in tiles 128x256x64x4x1 and 38.3 in
128x128x64x6x2; with a GELU of single steps 6304 × 3072 × 768 takes 97.5 and 108.2 (one H100).
"""
LEAST_MANY, _DOUBLINGS, _MOST_TILES = MOST_FEW + 1, 17, 6
"""Minimum rows for which the rule uses warpgroup kernels.  If the number of rows varies at run
time, a tile is chosen for each power of two, up to 2 to ``_DOUBLINGS``, with at most
``_MOST_TILES`` different tiles.
"""
LEAST_SIDE, LEAST_FILTERS = 64, 16
"""Minimum length of both sides of the weight for warpgroup kernels, and of the shorter one of
filters and of weights for many rows.
"""


def choose_warpgroup_tiles(
    batch: int,
    rows: int,
    columns: int,
    depth: int,
    tiles: Sequence[WarpgroupTile],
    side: int = LEAST_SIDE,
    image: int = 1,
    steps: int = 0,
    reads: int = 0,
    products: int = 0,
    fastest: Mapping[tuple[int, int, int, int], WarpgroupTile] | None = None,
) -> list[tuple[WarpgroupTile, int]]:
    """Choose tiles of warpgroup kernels for a 16-bit matmul; return each with its minimum rows.

    ``batch`` and ``rows`` are 0 if they vary at run time; the number of rows is then a multiple of
    ``image``.  Minimum rows are counted over all matrices of the batch.  ``side`` is the minimum
    of columns and depth.  ``steps`` is the cost of the epilogue, counted in cheap steps of its
    chain; ``reads`` is the number of matrices that it reads.  ``products`` is how many products of
    tf32 numbers a product takes, 0 in 16 bits.  ``fastest`` are the tiles that were measured,
    by default those in 16 bits.  Returns an empty list if other kernels are better at all sizes.
    """
    known = batch * rows
    fewest = most_few(columns) + 1
    if not tiles or min(columns, depth) < side or 0 < known < fewest:
        return []

    def cycles(count: int, height: int) -> dict[WarpgroupTile, float]:
        known_tiles = _MEASURED_MANY if fastest is None else fastest
        measured = known_tiles.get((count * ceil(height / 128), columns, depth, reads))
        if measured and measured in tiles and not products:
            able = [measured]
        else:
            least = _LEAST_BLOCKS if products else 0
            able = [t for t in tiles if _blocks(t, count, height, columns) >= least]
        return {
            t: tile_cycles(t, count, height, columns, depth, steps, reads, products)
            for t in able if t == measured or t not in _MEASURED_ALONE
        }  # fmt: skip

    if known:
        own = cycles(batch, rows)
        return [(min(own, key=lambda tile: own[tile]), 1)] if own else []
    ladder = {max(image << i, fewest) for i in range(_DOUBLINGS + 1)}
    heights = sorted(n for n in ladder if n <= max(image, 1 << _DOUBLINGS))
    times = [cycles(1, height) for height in heights]
    few = sum(not one for one in times)  # the lowest
    heights, times = heights[few:], times[few:]
    starts = _few_ranges(times)
    return [(min(times[i], key=lambda tile: times[i][tile]), heights[i]) for i in starts[::-1]]


def warpgroup_cycles(
    rows: int, columns: int, depth: int, steps: int = 0, reads: int = 0,
    tiles: Sequence[WarpgroupTile] = WARPGROUP_TILES,
) -> float:  # fmt: skip
    """Return the modelled cycles of a dense matmul in 16 bits by the best warpgroup kernel.

    Arguments are those of :func:`choose_warpgroup_tiles`; infinity if other kernels are better.
    """
    found = choose_warpgroup_tiles(1, rows, columns, depth, tiles, steps=steps, reads=reads)
    return min(
        (tile_cycles(t, 1, rows, columns, depth, steps, reads) for t, _ in found), default=inf
    )


def pixels_of_a_row(rows: int, image: int, filters: int, channels: int) -> int:
    """Return how many pixels share a row of the matmul that a 1 × 1 convolution becomes.

    ``rows`` is the number of all pixels, ``image`` of those of one image.  Where there are many,
    both sides of the block-diagonal weight get at least ``_LEAST_SHARED`` numbers.
    """
    count = 1
    while rows >= MANY_SHARED and min(filters, channels) * count < _LEAST_SHARED:
        if image % (2 * count):
            break
        count *= 2
    return count


MANY_SHARED, _LEAST_SHARED = 50000, 48
"""Minimum pixels for which copies rather than latency bound a 1 × 1 convolution, and minimum sides
of its weight.  With 1, 2, 4, 8 and 16 pixels a row 401,408 × 32 → 16 takes 16.7, 12.1, 11.4, 11.2
and 15.8 µs on an H100; with 1, 2 and 4 100,352 × 144 → 24 takes 15.9, 11.0 and 12.3, and
25,088 × 144 → 32 takes 3.8, 3.8 and 4.4.
"""


def _few_ranges(times: Sequence[Mapping[WarpgroupTile, float]]) -> list[int]:
    """Return the indices at which another tile becomes best.

    ``times`` holds the time of each tile at each index, or of one that is measured.  If there are
    too many such indices, those whose removal costs the least time are removed.
    """
    best = [min(own, key=lambda tile: own[tile]) for own in times]
    starts = [i for i in range(len(best)) if i == 0 or best[i] != best[i - 1]]

    def loss(k: int) -> float:
        end = starts[k + 1] if k + 1 < len(starts) else len(best)
        before = best[starts[k - 1]]
        return sum(
            times[i].get(before, inf) / times[i][best[i]] - 1 for i in range(starts[k], end)
        )

    while len(starts) > _MOST_TILES:
        del starts[min(range(1, len(starts)), key=loss)]
    return starts


def most_few(columns: int) -> int:
    """Return the number of rows up to which a matmul counts as one of few rows.

    ``columns`` is 0 if unknown.
    """
    return _FEW_OF_WIDE if columns >= WIDE else MOST_FEW


def one_row_width(columns: int, depth: int) -> int:
    """Return which of ``ONE_CODED_ROW`` multiplies one row by a matrix; 0 columns are unknown."""
    if 0 < columns <= FEW_CODED_COLUMNS and depth >= _LONG:
        return 1
    if columns > _VOCABULARY and depth >= _SHORTEST:
        return 2
    return int(columns >= _WIDE and (depth == _SHORTEST or (depth > 0 and depth % _LONG == 0)))


_VOCABULARY, _WIDE, _SHORTEST, _LONG = 32768, 4 * FEW_CODED_COLUMNS, 2048, 4096
"""Columns above which a matrix counts as one of a vocabulary; least columns for which each SM has
two tiles twice; the least depth of both, with a chunk of 256 steps for each of 8 warps; and the
least depth with one for each of 16.
"""


def choose_few_tile(rows: int, columns: int, depth: int, tiles: Sequence[FewTile]) -> FewTile:
    """Choose the tile of a matmul of few rows: the fastest measured, else the fastest modelled."""
    found = _MEASURED.get((ceil(rows / 64), columns, depth))
    if found is not None and found in tiles:
        return found
    times = [few_microseconds(rows, columns, depth, *tile) for tile in tiles]
    return tiles[times.index(min(times))]


def choose_concurrent_tile(
    rows: int, columns: int, depth: int, tiles: Sequence[FewTile], runs: int
) -> FewTile:
    """Choose the tile of a matmul of few rows for a GPU that ``runs`` runs share.

    What counts then is how long blocks occupy multiprocessors, and less how long one run waits for
    its last block.
    """

    def cost(tile: FewTile) -> float:
        n, split = tile
        occupied = _PER_BLOCK + 2 * (64 + n) * depth / split * _PER_SHARED_BYTE
        occupied += split * _PER_PARTNER if split > 1 else 0
        blocks = few_blocks(rows, columns, tile)
        return occupied * (blocks / (2 * H100_SMS) + 1 / (2 * runs))

    return min(tiles, key=cost)


def few_blocks(rows: int, columns: int, tile: FewTile) -> int:
    """Return the number of blocks of a matmul of few rows, or of few pixels."""
    n, split = tile
    return ceil(rows / 64) * ceil(columns / n) * split


def few_microseconds(rows: int, columns: int, depth: int, n: int, split: int) -> float:
    """Return the modelled µs of a matmul of few rows in tiles of 64 × n, without its launch."""
    blocks = few_blocks(rows, columns, (n, split))
    crowd = max(1.0, blocks / H100_SMS)  # blocks of an SM share its shared memory
    loaded = 2 * (64 + n) * depth / split
    return crowd * (loaded * _PER_BYTE + 4 * 64 * n * (split - 1) / split * _PER_EXCHANGED)


def choose_wide_rows(
    rows: int, columns: int, depth: int, tiles: Sequence[FewTile]
) -> FewTile | None:
    """Choose a few-row tile for a matmul that has more rows than the tile.

    Returns None unless each SM gets at most one block, and blocks have little work or were
    measured to be faster than warpgroup kernels.
    """
    measured = _MEASURED.get((ceil(rows / 64), columns, depth))
    if measured is not None and measured in tiles:
        return measured
    found = {
        tile: few_microseconds(rows, columns, depth, *tile)
        for tile in tiles
        if few_blocks(rows, columns, tile) <= H100_SMS
    }
    best = min(found, key=lambda tile: found[tile], default=None)
    return best if best and found[best] <= SHORT else None


SHORT, CYCLES = 2.0, 1755
"""Modelled microseconds of half a launch, and cycles of an SM in one microsecond."""
_PER_BYTE, _PER_EXCHANGED = 1.05e-5, 4.4e-5
"""Microseconds in which an SM receives a byte of the operands, and a byte of other blocks' sums;
fitted to graph replays with different tiles.
"""
_PER_BLOCK, _PER_SHARED_BYTE, _PER_PARTNER = 0.45, 3.9e-5, 0.8
"""Microseconds that a block occupies half of an SM in a GPU full of runs: in any case, for a byte
of the operands, and for a block of its cluster, as these start together and wait for each other's
sums.  Fitted to BERT-base in eight streams with 8 tiles of each product
(``python -m tests.gpu.chain bert-base --streams 8 --tiles``, one H100).
"""
_MEASURED: Mapping[tuple[int, int, int], FewTile] = MappingProxyType({
    (2, 1152, 384): (48, 3), (2, 384, 384): (16, 2), (2, 1536, 384): (64, 2),
    (2, 384, 1536): (32, 4), (2, 2304, 768): (72, 3), (2, 768, 768): (24, 3),
    (2, 3072, 768): (64, 2), (2, 768, 3072): (64, 8), (4, 2304, 768): (96, 2),
    (4, 768, 768): (32, 2), (4, 3072, 768): (96, 2), (4, 768, 3072): (96, 6),
    (5, 768, 3072): (64, 2),
})  # fmt: skip
"""Tiles that minimise the replay time of MiniLM, BERT-base, GPT-2 and ViT-base.  Keys are the
number of row tiles, columns and depth (``python -m tests.gpu.chain --tiles``, one H100).
"""


_MEASURED_ALONE: tuple[WarpgroupTile, ...] = (
    (64, 192, 6, 1, 0), (64, 192, 6, 1, SHARED_X), (128, 192, 5, 0, SHARED_X),
)  # fmt: skip
"""Tiles that are chosen only where they were measured: the model is 30 % off for them."""
_MEASURED_MANY: Mapping[tuple[int, int, int, int], WarpgroupTile] = MappingProxyType({
    (32, 2304, 768, 0): (128, 192, 5, 1, 0), (32, 768, 768, 1): (64, 192, 6, 1, SHARED_X),
    (32, 1152, 384, 0): (64, 192, 6, 1, 0), (32, 1536, 384, 0): (64, 192, 6, 1, 0),
    (32, 384, 1536, 1): (64, 192, 6, 1, SHARED_X), (32, 384, 384, 1): (64, 192, 6, 1, 0),
    (32, 768, 3072, 1): (128, 192, 5, 0, SHARED_X),
})  # fmt: skip
"""Fastest tiles of BERT-base's and MiniLM's matmuls at batch 32, where the model of costs finds
tiles that are 1 to 20 % slower.

Keys are the number of tiles of 128 rows, columns, depth, and the number of matrices that the
epilogue reads (``python -m tests.gpu.timing wgmma nk``, one H100).
"""

MEASURED_BYTES: Mapping[tuple[int, int, int, int], WarpgroupTile] = MappingProxyType({
    (32, 1152, 192, 0): (64, 192, 6, 1, 0), (32, 1536, 192, 0): (64, 192, 6, 1, 0),
    (32, 768, 384, 1): (64, 192, 6, 1, 0), (32, 768, 1536, 1): (128, 192, 5, 0, 0),
    (32, 3072, 384, 0): (128, 256, 4, 0, 0),
})  # fmt: skip
"""The same of matmuls of 8-bit integers, whose depth is counted in 64 for each step of 128.

MiniLM's 4096 × 1152 × 384 takes 8.4 µs instead of 9.8, 4096 × 1536 × 384 11.3 instead of 11.9;
BERT-base's 4096 × 768 × 768 9.7 instead of 10.6, 4096 × 768 × 3072 17.9 instead of 18.5 and
4096 × 3072 × 768 26.2 instead of 26.5 (with the epilogues of their QDQ models, one H100).
"""


def _blocks(tile: WarpgroupTile, batch: int, rows: int, columns: int) -> int:
    """Return the number of tiles of a matmul."""
    return batch * ceil(rows / tile[0]) * ceil(columns / tile[1])


def tile_cycles(
    tile: WarpgroupTile, batch: int, rows: int, columns: int, depth: int, steps: int, reads: int,
    products: int = 0,
) -> float:  # fmt: skip
    """Return the modelled cycles of a tiled matmul on the SM that takes longest."""
    m, n, _, pingpong, pair, *shared = tile
    depths = shared[0] if shared else 1
    down, across = 1 + (pair == SHARED_W), 1 + (pair == SHARED_X)  # tiles of a cluster
    tiles = batch * ceil(rows / m / down) * ceil(columns / n / across)
    loaded = 128 * (m / across + n / down)
    work = max(products, 1) * 64 * m * n / _FLOPS + _PER_PART * (products > 1)
    each = ceil(depth / 64 / depths) * max(work, loaded / _BYTES) * _SLOWER
    each += _PER_TILE
    after = m * n / depths * (_PER_SUM + steps * _PER_STEP + reads * _PER_READ)
    count = ceil(tiles * down * across / H100_SMS)
    if depths > 1:
        each += _MEETING + m * n * (1 - 1 / depths) * _PER_SENT
        count = ceil(tiles / _CLUSTERS[depths])
    if not pingpong:
        return count * (each + after)
    # half of the warps finish a tile while the others multiply: one of both is the longer
    each += m * n * max(0, steps - _HIDDEN) * _PER_EXCESS
    return max(count * each + _ALONE * after, ceil(count / 2) * (each + _ALONE * after))
