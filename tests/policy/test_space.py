"""Search spaces: legal configurations, why others are not, seeds first, then modelled time."""

from __future__ import annotations

import pytest

from tracea_graph.policy import Config, SearchSpace

SPACE = (
    SearchSpace()
    .tile_m([1, 2, 4])
    .tile_n([8, 16])
    .stages([1, 2])
    .require("at most 64 results", lambda c: c["tile_m"] * c["tile_n"] * c["stages"] <= 64)
)


def modelled(config: Config) -> float:
    return 100.0 / (config["tile_m"] * config["tile_n"]) + config["stages"]


def test_legal_configurations_are_enumerated() -> None:
    assert SPACE.size == 12
    found = list(SPACE.legal())
    assert len(found) == 11 and {"tile_m": 4, "tile_n": 16, "stages": 2} not in found
    assert all(not SPACE.reason(c) for c in found)


def test_others_say_why() -> None:
    assert SPACE.reason({"tile_m": 4, "tile_n": 16, "stages": 2}) == "at most 64 results"
    assert (
        SPACE.reason({"tile_m": 3, "tile_n": 8, "stages": 1}) == "tile_m is 3, not one of 1, 2, 4"
    )
    with pytest.raises(ValueError, match="'tile_k' needs at least one value"):
        SPACE.tile_k([])


def test_seeds_go_first_then_modelled_time() -> None:
    space = SPACE.seed(tile_m=1, tile_n=8).seed(tile_m=4, tile_n=16, stages=2)
    ranked = space.ranked(modelled, limit=3)
    assert ranked == [
        {"tile_m": 1, "tile_n": 8, "stages": 1},
        {"tile_m": 4, "tile_n": 16, "stages": 1},
        {"tile_m": 2, "tile_n": 16, "stages": 1},
    ]
    assert len(space.ranked(modelled)) == 11


def test_a_space_is_data_and_never_changes() -> None:
    narrow = SPACE.stages([1])
    assert (narrow.size, SPACE.size) == (6, 12)
    assert narrow.to_dict() == {
        "axes": {"tile_m": [1, 2, 4], "tile_n": [8, 16], "stages": [1]},
        "constraints": ["at most 64 results"],
        "seeds": [],
    }
