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
OTHERS = 20  # instructions of addresses, prefetches and the loop itself; of USMMLA's, to zip B
each_tile = pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.kernel}-{t.level}")


@each_tile
def test_factors_come_from_lanes_and_sums_stay_in_registers(tile: Tile) -> None:
    """A vector is loaded once, and a register of the left operand serves four steps."""
    loop, blocks = inner_loop(tile), tile.multiply == "usmmla"
    assert len(loop.products) == tile.products
    assert loop.loads <= (8 if blocks else 16) + tile.rows
    assert not loop.spills
    assert loop.others <= OTHERS


@pytest.mark.skipif(model_analyzer() is None, reason="needs llvm-mca")
@pytest.mark.parametrize("core", ["neoverse-v1", "apple-m1"])
@each_tile
def test_the_multiplying_units_are_busy(tile: Tile, core: str) -> None:
    """USMMLA does twice the work of a product by lanes, beside what zips vectors of B."""
    least = 0.6 if tile.multiply == "usmmla" else 0.85
    assert share(inner_loop(tile), core, model_analyzer() or "") >= least
