"""Choose the kernels of depthwise convolutions and pools, by their windows and images."""

from __future__ import annotations

from math import prod
from typing import Any

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import launch_of
from tracea_graph.kernels.gpu.families import (
    depthwise_and_pooling,
    depthwise_projection,
    expanded_depthwise,
)
from tracea_graph.kernels.gpu.families.convolution import is_of_volumes
from tracea_graph.kernels.gpu.tile_choice import (
    H100_SMS,
    LANE_WINDOWS,
    LARGE_WINDOW,
    MANY_PIXELS,
    MANY_SHARED,
    SQUARE_WINDOW,
    STRIDED_LANES,
    WINDOW_TILES,
)
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import Call

__all__ = ["PROJECTED", "expansion_choices", "projects_early", "window_choices", "with_tap_sizes"]

PROJECTED = "depthwise_projection"
"""Op of a depthwise convolution with the 1 × 1 convolution behind it."""
_GROUP = 32
"""Channels that a warp computes at a time."""
_POOL_OF_MANY, _MANY_POOLS = "128x32", 4
"""Tile of pools over many whole images, few threads for each, and its minimum blocks of an SM:
256 × 7² × 2048 takes 21.2 µs instead of 42.7 (one H100).
"""
_MOST_EXPANSION_BLOCKS = 300
"""Maximum number of blocks of few images: one or two images, as timed."""
_ANY = Target(CUDA, ARCHITECTURES["sm_90a"])


def window_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the window kernels whose threads read whole runs of channels, best first.

    Those whose threads compute several pixels come first, for calls with many results.  Windows
    of volumes that lie apart share too little: 2 × 16 × 28² × 112 by two take 6.1 µs by single
    pixels, 9.1 by four; a pool of 32 × 64² × 32 6.0 instead of 8.9 (one H200).
    """
    if call.op == PROJECTED:
        return _projection_choices(call)
    tiled = ["{}x{}".format(*tile) for tile in WINDOW_TILES]
    apart = is_of_volumes(call) and max(call.attributes["strides"]) > 1
    tiles = [] if depthwise_and_pooling.refusal(call) else tiled[1:] if apart else tiled
    tiles = tiles if depthwise_and_pooling.refusal_large(call) else [LARGE_WINDOW, *tiles]
    lanes = ["{}x{}x32".format(*tile) for tile in (*LANE_WINDOWS, STRIDED_LANES)]
    if not depthwise_and_pooling.refusal_lanes(call):
        strided = max(call.attributes["strides"]) > 1
        tiles = [lanes[-1 if strided else _small(call)], *tiles]
    square = "{}x{}".format(*SQUARE_WINDOW)
    if not apart and not depthwise_and_pooling.refusal_square(call):
        tiles = [square, *tiles]
    if not depthwise_and_pooling.refusal_whole(call):
        few = prod(call.attributes["kernel"]) < MANY_PIXELS
        tiles = [_POOL_OF_MANY, "512"] if few else ["512x4"]
    found = list[tuple[Variant, Extent]]()
    for tile in tiles:
        variant = next(
            v for v in VARIANTS if (v.op, v.dtype, v.tile) == (call.op, call.dtype, tile)
        )
        blocks = launch_of(call, variant, _ANY).grid[0]
        # several pixels a thread, if more blocks are left than one for each SM
        least = dict.fromkeys((tiled[0], square, LARGE_WINDOW, *lanes), H100_SMS)
        least[_POOL_OF_MANY] = _MANY_POOLS * H100_SMS
        when = combine("sub", blocks, least[tile]) if tile in least else 1
        found.append((variant, when))
    return found


def with_tap_sizes(skeleton: Call, call: Call) -> Call:
    """Return ``skeleton`` with the sizes of a call's windows on which its source depends."""
    return depthwise_projection.with_sizes(skeleton, call) if call.op == PROJECTED else skeleton


def projects_early(call: Call, rows: int) -> bool:
    """Whether one launch of both convolutions is faster than two; 0 ``rows`` are unknown.

    On an H100, 16 images of 112² × 32 to 16 take 12.0 µs instead of 15.9, of 112² × 96 by two to
    24 17.5 instead of 24.5, of 56² × 144 to 24 12.7 instead of 19.9; but 32 images of 28² × 192 to
    32 take 14.3 instead of 13, and one of 56² × 144 to 24 7.1 instead of 4.3.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    return rows >= MANY_SHARED or named["w"].dims[-1] <= _GROUP


def _projection_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernel of a depthwise convolution with the 1 × 1 convolution behind it."""
    known = [v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype)]
    if max(call.attributes["strides"]) == 1:
        known.reverse()  # the one with fewer registers first
    return [(known[0], 1)]


def expansion_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the kernel of a 1×1 and a depthwise convolution in one; both parts name it.

    For many images the kernels of the parts are faster.
    """
    (known,) = (v for v in VARIANTS if (v.op, v.dtype) == (call.op, call.dtype))
    if expanded_depthwise.refusal(call, known):
        return []
    blocks = launch_of(call, known, _ANY).grid[0]
    when = combine("sub", _MOST_EXPANSION_BLOCKS + 1, blocks)
    return [(known, when)] if not isinstance(when, int) or when > 0 else []


def _small(call: Call) -> bool:
    """Whether a side of a depthwise convolution's result fits the smaller tile of lanes."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    side = max(LANE_WINDOWS[1])
    return any(isinstance(dim, int) and dim <= side for dim in named["y"][0].dims[1:3])
