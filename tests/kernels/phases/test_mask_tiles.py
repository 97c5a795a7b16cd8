"""Attention gets the map of the tiles in which a constant mask keeps a key."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.graphs import Net, assert_same, every_phase, normal, only, optimized, reasons
from tracea_graph.config import AttentionWindow
from tracea_graph.ops.attention import LOWEST
from tracea_graph.rewrite import DecisionTrace
from tracea_graph.ttg import TileGraph

Array = npt.NDArray[Any]


def attention(mask: Array | None) -> tuple[Net, TileGraph]:
    """Two heads of 16 over as many queries and keys as the mask has, or any."""
    net = Net()
    rows, keys = mask.shape[-2:] if mask is not None else ("s", "s")
    q, k, v = (net.input(n, 1, 2, s, 16) for n, s in (("q", rows), ("k", keys), ("v", keys)))
    scores = net("Mul", net("MatMul", q, net("Transpose", k, perm=(0, 1, 3, 2))), 0.25)
    if mask is None:
        scores = net("Add", scores, net.input("mask", 1, 1, rows, keys))
    elif mask.dtype == np.bool_:
        scores = net("Where", net.const(mask, np.bool_), scores, -np.inf)
    else:
        scores = net("Add", scores, net.const(mask))
    return net, net.graph(net("MatMul", net("Softmax", scores, axis=-1), v))


def planned(mask: Array | None, **request: Any) -> tuple[Net, TileGraph, DecisionTrace]:
    net, graph = attention(mask)
    return net, graph, optimized(graph, every_phase(**request))


def blocks(rows: int, keys: int) -> Array:
    """Block-causal with the first block for everyone: holes in most rows."""
    i, j = np.arange(rows)[:, None] // 48, np.arange(keys) // 48
    return (j == 0) | ((j <= i) & (j >= i - 1))


@pytest.mark.parametrize("fill", [-1e4, -1e9, LOWEST, -np.inf, "bool"])
@pytest.mark.parametrize("shape", [(240, 240), (200, 230)])
def test_the_map_holds_the_tiles_with_a_kept_key(
    fill: float | str, shape: tuple[int, int]
) -> None:
    kept = blocks(*shape)
    mask = kept if fill == "bool" else np.where(kept, 0, fill).astype(np.float32)
    net, graph, trace = planned(mask)
    assert trace.applied()["mask-tiles"] == 1
    region = only(graph, "FusedAttention")
    grid, active = region.params.tiles, graph.weights[region.operands[-1]].array()
    assert (grid.rows, grid.keys) == (24, 16) and not grid.masks
    inside = grid.kept(active, *shape)
    assert inside[kept].all() and grid.beyond == (-np.inf if fill == "bool" else np.float32(fill))
    for tile in set(range(grid.count)) - {*active.tolist()}:
        row, key = 24 * (tile // grid.key_tiles), 16 * (tile % grid.key_tiles)
        assert not kept[row : row + 24, key : key + 16].any()
    sizes = zip("qkv", (shape[0], shape[1], shape[1]), strict=True)
    assert_same(net, graph, {n: normal(1, 2, s, 16, seed=i) for i, (n, s) in enumerate(sizes)})


def test_a_tile_that_one_head_needs_is_left() -> None:
    mask = np.full((1, 2, 96, 96), -np.inf, np.float32)
    mask[0, 0, :, :16] = mask[0, 1, :24, 80:] = 0
    _, graph, _ = planned(mask)
    region = only(graph, "FusedAttention")
    assert graph.weights[region.operands[-1]].array().tolist() == [0, 5, 6, 12, 18]


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (np.zeros((96, 96), np.float32), "leaves only 0% of the tiles to skip"),
        (np.full((96, 96), -100.0, np.float32), "leaves only 0% of the tiles to skip"),
        (np.full((96, 96), np.nan, np.float32), "leaves only 0% of the tiles to skip"),
        (None, "'mask' is not constant"),
    ],
)
def test_other_masks_say_why(mask: Array | None, reason: str) -> None:
    _, graph, trace = planned(mask)
    assert only(graph, "FusedAttention").params.tiles is None
    (why,) = reasons(trace, "mask-tiles")
    assert reason in why


def test_a_window_that_was_asked_for_comes_alone() -> None:
    mask = np.where(blocks(240, 240), 0, -np.inf).astype(np.float32)
    _, graph, _ = planned(mask, windows=(AttentionWindow(64),))
    region = only(graph, "FusedAttention")
    assert region.params.window == (32, 32) and region.params.tiles is None
