"""Inner loops of Arm's kernels, cross-compiled: multiplications, loads, and what a model of a
processor makes of them."""

from __future__ import annotations

import importlib.util

import pytest

from models.modelled_tiles import TILES, Tile, inner_loop, model_analyzer, share

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ziglang") is None, reason="needs the ziglang wheel"
    ),
]
STEPS, VECTORS = 4, 4  # of k in one turn of the loops; of a row of B
OTHERS = 16  # instructions of addresses, prefetches and the loop itself
each_tile = pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.kernel}-{t.level}")


@each_tile
def test_factors_come_from_lanes_and_sums_stay_in_registers(tile: Tile) -> None:
    """A vector is loaded once, and a register of the left operand serves four steps."""
    loop = inner_loop(tile)
    spilled = 2 if tile.kernel == "gemm_int8" else 0  # one sum: the loop stands there twice
    assert len(loop.products) == STEPS * VECTORS * tile.rows
    assert loop.loads <= STEPS * VECTORS + tile.rows + spilled
    assert len(loop.spills) <= spilled
    assert loop.others <= OTHERS


@pytest.mark.skipif(model_analyzer() is None, reason="needs llvm-mca")
@pytest.mark.parametrize("core", ["neoverse-v1", "apple-m1"])
@each_tile
def test_the_multiplying_units_are_busy(tile: Tile, core: str) -> None:
    assert share(inner_loop(tile), core, model_analyzer() or "") >= 0.85
