"""Which regions take turns, and for how many rows: from shapes, footprint and traffic alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ttg.models import blur, gemm, named, rows

from tracea_graph.errors import GraphError
from tracea_graph.ttg import MemoryLevel, Region, TileGraph, Walk, band_of, bands

L2 = MemoryLevel("L2", 1 << 20)


def walks(region: Region) -> Walk | None:
    """Products walk their rows once for each 48 of 96 columns, in whole sixteens."""
    return Walk(2, 16) if region.op.startswith("gemm") else Walk()


def mlp(count: int, width: int, inner: int) -> TileGraph:
    return named([gemm(count, inner, width, "XWH"), gemm(count, width, inner, "HVY")])


def test_a_value_that_stays_near_is_left_alone() -> None:
    """512 KB in between fit a level of 1 MiB; 8 MB do not."""
    assert bands(mlp(128, 256, 1024), {}, L2, walks) == []
    (band,) = bands(mlp(2048, 256, 1024), {}, L2, walks)
    assert band.regions == ("n0", "n1") and band.rows % 16 == 0 and band.turns > 1
    between = 4 * 2048 * 1024 - L2.bytes
    assert band.saved == between * (2 + 2)
    constants = 2 * 4 * 256 * 1024
    assert band.streamed == constants * (band.turns - 1)
    assert band.resident <= 2.5 * L2.bytes


def test_less_room_makes_shorter_turns() -> None:
    graph = mlp(2048, 256, 1024)
    ((long,), (short,)) = (bands(graph, {}, L2, walks, room) for room in (2.5, 1.0))
    assert short.rows < long.rows and short.resident <= L2.bytes < long.resident
    same = band_of(graph, graph.regions(), {}, short.rows, L2, walks)
    assert same == short


def test_large_weights_are_not_read_again_for_it() -> None:
    """What passes through in every turn may cost more than what stays."""
    assert bands(mlp(512, 4096, 4096), {}, L2, walks) == []


def test_a_window_needs_rows_of_its_neighbours() -> None:
    graph = named([rows(4096, 1024, "x", "v"), blur(4096, 1024, "v", "y")])
    (band,) = bands(graph, {}, L2, walks)
    assert band.resident == 4 * 1024 * (band.rows + 2)
    assert band.rows == max(r for r in turns(4096) if 4096 * (r + 2) <= 2.5 * L2.bytes)


def turns(count: int) -> list[int]:
    return [-(-count // n) for n in range(2, count + 1)]


def test_what_others_read_or_cannot_take_turns_ends_a_band() -> None:
    chain = [rows(4096, 1024, "x", "v"), rows(4096, 1024, "v", "w"), rows(4096, 1024, "w", "y")]
    names = ("first", "second", "third")
    models = [replace(m, name=n) for m, n in zip(chain, names, strict=True)]
    assert [b.regions for b in bands(named(models), {}, L2, walks)] == [("n0", "n1", "n2")]
    shown = named(models, ("v", "y"))
    assert [b.regions for b in bands(shown, {}, L2, walks)] == [("n1", "n2")]
    assert bands(named(models), {}, L2, lambda r: None if r.op == "second" else Walk()) == []


def test_symbols_have_to_be_bound() -> None:
    graph = named([gemm("s", 1024, 256, "XWH"), gemm("s", 256, 1024, "HVY")])
    assert bands(graph, {"s": 4096}, L2, walks)
    with pytest.raises(GraphError, match="'s'"):
        bands(graph, {}, L2, walks)
