"""Attention over tiles of the scores: set by hand, or left by a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.attention_tile import attend, attention_inputs, attention_reference
from tests.kernels.conformance import Array, address, close
from tracea_graph.ops.attention import LOWEST


def _tiles(rows: int, size: int, keys: int, width: int, kept: Array) -> dict[str, Any]:
    """Fields for the tiles ``kept``, rows by keys; adjacent ones are one span."""
    spans, starts = list[tuple[int, int]](), [0]
    for row in kept[: -(-rows // size)]:
        for at in np.flatnonzero(row).tolist():
            low, high = at * width, min((at + 1) * width, keys)
            if len(spans) > starts[-1] and spans[-1][1] == low:
                low = spans.pop()[0]
            spans.append((low, high))
        starts.append(len(spans))
    made = np.array(spans or [(0, 0)], np.int64), np.array(starts, np.int64)
    _KEPT_ALIVE.append(made)
    return {
        "spans": address(made[0]),
        "starts": address(made[1]),
        "tile_rows": size,
        "tiles_mask": 1,
    }


_KEPT_ALIVE: list[Any] = []
"""Arrays that tiles point to."""


@pytest.mark.parametrize("mask", ["none", "bool", -1e4, -1e9, LOWEST, -np.inf])
@pytest.mark.parametrize(("size", "width"), [(24, 64), (40, 16), (7, 10), (1, 300), (64, 256)])
def test_queries_see_the_keys_of_their_tiles(
    isa: str, size: int, width: int, mask: str | float
) -> None:
    """Also rows without tiles, and rows all of whose keys in tiles are masked."""
    rng = np.random.default_rng([size, width])
    for queries, keys in ((1, 40), (3, 90), (30, 30), (100, 700)):
        q, k, v = (rng.standard_normal((n, 20), np.float32) for n in (queries, keys, keys))
        kept = rng.random((-(-queries // size), -(-keys // width))) < 0.4
        inside = kept[np.arange(queries) // size][:, np.arange(keys) // width]
        given, bias = None, np.zeros((queries, keys))
        if mask == "bool":
            given = rng.random((queries, keys)) < 0.5
            bias = np.where(given, 0, -np.inf)
        elif mask != "none":
            given = np.where(rng.random((queries, keys)) < 0.5, mask, 0).astype(np.float32)
            given[queries // 2] = mask
            bias = given.astype(np.float64)
        # the mask joins the scores in float32, which leaves nothing of them beside -1e9
        scores = (q.astype(np.float64) @ k.T / 20**0.5 + bias).astype(np.float32)
        scores = np.where(inside, scores, -np.inf).astype(np.float64)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(1, keepdims=True))
            expected = np.nan_to_num(weights / weights.sum(1, keepdims=True)) @ v
        more = {"zero_rows": "guarded", **_tiles(queries, size, keys, width, kept)}
        close(attend(isa, q, k, v, given, **more), expected)
        close(attend(isa, q, k, v, given, direct=int(queries <= 4), **more), expected)


def test_a_row_without_tiles_is_no_number_unless_guarded(isa: str) -> None:
    q, k, v = attention_inputs(40, 64, 16, 16)
    kept = np.array([[True], [False]])
    y = attend(isa, q, k, v, **_tiles(40, 20, 64, 64, kept))
    close(y[:20], attention_reference(q, k, v)[:20])
    assert np.isnan(y[20:]).all()


def test_tiles_that_cover_all_keys_change_no_bit(isa: str) -> None:
    q, k, v = attention_inputs(101, 700, 16, 16)
    tiles = _tiles(101, 24, 700, 64, np.ones((5, 11), bool))
    np.testing.assert_array_equal(attend(isa, q, k, v, **tiles), attend(isa, q, k, v))


def test_a_row_does_not_depend_on_the_rows_beside_it_in_tiles(isa: str) -> None:
    """However threads divide the queries, the same bits."""
    rng = np.random.default_rng(1)
    q, k, v = attention_inputs(96, 300, 16, 16)
    tiles = _tiles(96, 32, 300, 48, rng.random((3, 7)) < 0.5)
    whole = attend(isa, q, k, v, zero_rows="guarded", **tiles)
    for first, end in ((0, 17), (17, 50), (50, 96)):
        part = attend(isa, q[first:end], k, v, zero_rows="guarded", first_query=first, **tiles)
        np.testing.assert_array_equal(part, whole[first:end])


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_value_outside_every_tile_still_counts_if_it_is_no_number(isa: str, odd: float) -> None:
    q, k, v = attention_inputs(60, 300, 16, 16)
    v[299, 2] = odd
    kept = np.zeros((2, 5), bool)
    kept[:, :2] = True
    y = attend(isa, q, k, v, **_tiles(60, 30, 300, 64, kept))
    assert np.isnan(y[:, 2]).all() and np.isfinite(y[:, [0, 1, 3]]).all()


def _mask_in_tiles(kind: str, kept: Array, rng: np.random.Generator) -> Array:
    """A mask of 60 queries by 300 keys that drops what is not in ``kept``, and some keys in it."""
    seen = np.kron(kept, np.ones((24, 16), bool))[:60, :300] & (rng.random((60, 300)) < 0.7)
    return seen if kind == "bool" else np.where(seen, 0.5, float(kind)).astype(np.float32)


@pytest.mark.parametrize("kind", ["bool", "-1e4", "-1e9", str(LOWEST), "-inf"])
@pytest.mark.parametrize("factor", [0.1, 1e2, 1e8, 1e25])
def test_tiles_a_mask_drops_are_left_out_where_that_changes_nothing(
    isa: str, kind: str, factor: float
) -> None:
    """Also where scores are too large for the mask, and where every key of a row is masked."""
    rng = np.random.default_rng(5)
    q, k, v = attention_inputs(60, 300, 16, 16)
    q *= np.float32(factor)
    kept = rng.random((3, 19)) < 0.3
    kept[2] = False
    mask = _mask_in_tiles(kind, kept, rng)
    more = _tiles(60, 24, 300, 16, kept) | {"tiles_mask": 0}
    if kind == "bool":
        more |= {"fill": -1e4}
    else:
        more |= {"beyond": float(kind)}
    plain = {name: more[name] for name in ("fill",) if name in more}
    expected = attend(isa, q, k, v, mask, **plain)
    got = attend(isa, q, k, v, mask, **more)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    close(np.nan_to_num(got), np.nan_to_num(expected).astype(np.float64))


def test_a_value_in_a_dropped_tile_still_counts_if_it_is_no_number(isa: str) -> None:
    rng = np.random.default_rng(6)
    q, k, v = attention_inputs(60, 300, 16, 16)
    kept = np.zeros((3, 19), bool)
    kept[:, :5] = True
    mask = _mask_in_tiles("-inf", kept, rng)
    v[299, 1] = np.inf
    tiles = _tiles(60, 24, 300, 16, kept) | {"tiles_mask": 0, "beyond": -np.inf}
    assert np.isnan(attend(isa, q, k, v, mask, **tiles)[:, 1]).all()
