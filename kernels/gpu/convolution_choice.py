"""Choose the kernels of convolutions that copy their operands by tensor maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import Any

from tracea_graph.ir import Extent, combine, product
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families import few_pixel_convolution, warpgroup_convolution
from tracea_graph.kernels.gpu.families.convolution import groups_of, is_of_volumes
from tracea_graph.kernels.gpu.tile_choice import (
    CYCLES,
    H100_SMS,
    LEAST_FILTERS,
    LEAST_MANY,
    SHORT,
    FewTile,
    WarpgroupTile,
    choose_warpgroup_tiles,
    few_blocks,
    few_microseconds,
    tile_cycles,
)
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import Call

__all__ = [
    "FEW_PIXELS",
    "PRODUCTS",
    "WINDOWS",
    "choose_few_pixels",
    "convolution_choices",
    "warpgroup_tile_of",
]

WINDOWS, FEW_PIXELS = "conv_wgmma.cu.in", "conv_few.cu.in"
PRODUCTS = {"tf32": 1, "tf32x3": 3}
"""Number of products of tf32 numbers that a product takes, by type."""
_UNSHARED = 5
"""Numbers of a warpgroup tile whose depth one block computes."""
_PER_COLUMN = 0.006
"""Modelled microseconds of a column in an epilogue."""
_LARGEST, _BESIDE, _SHARED, _CROWD = 108 << 10, 5 << 10, 227 << 10, 4
"""Bytes of shared memory: maximum of a block's ring, the rest of a block, and of an SM; and the
maximum number of blocks on an SM.
"""
_L2 = 6.2e6
"""Bytes that L2 gives all blocks of few pixels in a microsecond.

At batch 1 and by windows of 3, 64 pixels of 1280 channels load 60 MB in 10.7 µs, where tiles whose
depth is shared take 14.5; 256 of 1024 load 130 MB in 21.1 (15.7); 4 × 7² of 512 load 113 MB in
29.3 (17.9), as boxes of 7 pixels come more slowly (``python -m tests.gpu.timing
"conv f16 b1 16x16"``, ``… "conv3d f16 b1"``, one H200).
"""


def convolution_choices(call: Call, steps: int, reads: int) -> list[tuple[Variant, Extent]]:
    """Return kernels for a convolution, best first, each with a condition.

    ``steps`` is the cost of the epilogue in cheap steps, ``reads`` the number of matrices that it
    reads.  Conditions are those of ``kernel_selection.variants_of``.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    *pixels, filters = named["y"][0].dims
    rows, depth = product(tuple(pixels)), product(named["w"].dims[1:])
    height, width, deep = (n if isinstance(n, int) else 0 for n in (rows, filters, depth))
    image = prod(n for n in pixels[1:] if isinstance(n, int))
    fit = [v for v in VARIANTS if v.template == WINDOWS and v.dtype == call.dtype
           and not warpgroup_convolution.refusal(call, v)]  # fmt: skip
    by_two = [v for v in fit if "halves" in v.params and is_of_volumes(call)]
    fit = by_two or [v for v in fit if "halves" not in v.params]
    able = {warpgroup_tile_of(v): v for v in fit}
    tiles = choose_warpgroup_tiles(
        g := groups_of(call), height, width // g, deep * (1 + (call.dtype in PRODUCTS)), [*able],
        LEAST_FILTERS, image, steps, reads, PRODUCTS.get(call.dtype, 0),
    )  # fmt: skip
    many = [(able[tile], combine("sub", rows, least - 1)) for tile, least in tiles]
    return [*_few_pixel_choices(call, rows, able, steps, reads), *many]


def warpgroup_tile_of(variant: Variant) -> WarpgroupTile:
    """Return the tile of a warpgroup kernel."""
    p = variant.params
    return p["m"], p["n"], p["stages"], p["pingpong"], p["pair"], *filter(None, [p["depths"]])


def _few_pixel_choices(
    call: Call, rows: Extent, large: Mapping[WarpgroupTile, Variant], steps: int, reads: int
) -> list[tuple[Variant, Extent]]:
    """Return the kernel of few pixels for a convolution.

    It is chosen for one image if the number of images varies at run time.  If the number of
    images is known, it may be one of the ``large`` tiles, whose depth several blocks share.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    _, *image, filters = named["y"][0].dims
    pixels = rows if isinstance(rows, int) else product(tuple(image))
    able = {(v.params["n"], v.params["split"]): v for v in VARIANTS if v.template == FEW_PIXELS
            and v.dtype == call.dtype and not few_pixel_convolution.refusal(call, v)}  # fmt: skip
    if not able or not isinstance(pixels, int) or not pixels or not isinstance(filters, int):
        return []
    deep = few_pixel_convolution.steps_of(call)
    found = choose_few_pixels(pixels, filters, deep, list(able))
    if found is None:
        return []
    tile, most = found
    if not isinstance(rows, int):
        return [(able[tile], combine("sub", most + 1, rows))]
    times = {shared: tile_cycles(shared, 1, rows, filters, 64 * deep, steps, reads) / CYCLES
             for shared in large if len(shared) > _UNSHARED}  # fmt: skip
    best = min(times, key=lambda shared: times[shared], default=None)
    if best and times[best] < _loaded(rows, filters, deep, tile) / _L2:
        return [(large[best], 1)]
    return [(able[tile], 1)]


def choose_few_pixels(
    rows: int, columns: int, steps: int, tiles: Sequence[FewTile]
) -> tuple[FewTile, int] | None:
    """Choose the tile of a convolution with few results; return the tile and its maximum rows.

    ``rows`` is the number of pixels of one image's result, ``steps`` the number of steps over the
    depth.  Returns None if no tile lets all blocks be resident at the same time, or if the
    convolution is bound by arithmetic rather than latency.
    """
    found = dict[FewTile, float]()
    for n, split in tiles:
        if few_blocks(rows, columns, (n, split)) <= _at_once(ceil(steps / split), n):
            time = few_microseconds(rows, columns, 64 * steps, n, split)
            found[n, split] = time + max(8, n / split) * _PER_COLUMN
    if not found:
        return None
    tile = n, split = min(found, key=lambda tile: found[tile])
    if rows >= LEAST_MANY and found[tile] > SHORT:
        return None
    fitting = _at_once(ceil(steps / split), n) // (ceil(columns / n) * split)
    return tile, max(64 * fitting, LEAST_MANY - 1)


def _at_once(steps: int, n: int) -> int:
    """Return the number of blocks that are resident at a time, limited by their shared memory."""
    taken = min(_LARGEST, steps * (64 + n) * 128) + _BESIDE
    return H100_SMS * min(_CROWD, _SHARED // taken)


def _loaded(rows: int, columns: int, steps: int, tile: FewTile) -> int:
    """Return the bytes of operands that all blocks of few pixels load."""
    n, split = tile
    return few_blocks(rows, columns, tile) * 128 * (64 + n) * ceil(steps / split)
