"""Choose the kernels of depthwise convolutions and pools, by their windows and images."""

from __future__ import annotations

from math import prod
from typing import Any

from tracea_graph.ir import Extent, combine
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import launch_of
from tracea_graph.kernels.gpu.families import depthwise_and_pooling
from tracea_graph.kernels.gpu.tile_choice import (
    H100_SMS,
    LANE_WINDOWS,
    LARGE_WINDOW,
    MANY_PIXELS,
    SQUARE_WINDOW,
    WINDOW_TILES,
)
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import Call

__all__ = ["window_choices"]

_ANY = Target(CUDA, ARCHITECTURES["sm_90a"])


def window_choices(call: Call) -> list[tuple[Variant, Extent]]:
    """Return the window kernels whose threads read whole runs of channels.

    Those whose threads compute several pixels come first, for calls with many results.
    """
    tiled = ["{}x{}".format(*tile) for tile in WINDOW_TILES]
    tiles = [] if depthwise_and_pooling.refusal(call) else tiled
    tiles = tiles if depthwise_and_pooling.refusal_large(call) else [LARGE_WINDOW, *tiles]
    lanes = ["{}x{}x32".format(*tile) for tile in LANE_WINDOWS]
    if call.op == "depthwise" and not depthwise_and_pooling.refusal_lanes(call):
        tiles = [lanes[_small(call)], *tiles]
    square = "{}x{}".format(*SQUARE_WINDOW)
    if not depthwise_and_pooling.refusal_square(call):
        tiles = [square, *tiles]
    if not depthwise_and_pooling.refusal_whole(call):
        tiles = ["512" if prod(call.attributes["kernel"]) < MANY_PIXELS else "512x4"]
    found = list[tuple[Variant, Extent]]()
    for tile in tiles:
        variant = next(
            v for v in VARIANTS if (v.op, v.dtype, v.tile) == (call.op, call.dtype, tile)
        )
        blocks = launch_of(call, variant, _ANY).grid[0]
        many = tile in (tiled[0], square, LARGE_WINDOW, *lanes)
        # several pixels a thread, if more blocks are left than one for each SM
        when = combine("sub", blocks, H100_SMS) if many else 1
        found.append((variant, when))
    return found


def _small(call: Call) -> bool:
    """Whether a side of a depthwise convolution's result fits the smaller tile of lanes."""
    named: dict[str, Any] = CALLS.of(call).named(call)
    side = max(LANE_WINDOWS[1])
    return any(isinstance(dim, int) and dim <= side for dim in named["y"][0].dims[1:3])
