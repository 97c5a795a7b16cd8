"""Which regions are fused over row tiles, and of how many rows: from shapes, footprint and traffic
alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.ttg.models import blur, gemm, named, rows
from tracea_graph.errors import GraphError
from tracea_graph.ttg import (
    MemoryLevel,
    Region,
    RowReuse,
    TileGraph,
    row_tiling,
    row_tiling_of,
    row_tilings,
)
from tracea_graph.ttg.row_tiling import _Candidate

L2 = MemoryLevel("L2", 1 << 20)


def row_reuse(region: Region) -> RowReuse | None:
    """Products walk their rows once for each 48 of 96 columns, in whole sixteens."""
    return RowReuse(2, 16) if region.op.startswith("gemm") else RowReuse()


def mlp(count: int, width: int, inner: int) -> TileGraph:
    return named([gemm(count, inner, width, "XWH"), gemm(count, width, inner, "HVY")])


def test_a_value_that_stays_near_is_left_alone() -> None:
    """512 KB in between fit a level of 1 MiB; 8 MB do not."""
    assert row_tilings(mlp(128, 256, 1024), {}, L2, row_reuse) == []
    (tiling,) = row_tilings(mlp(2048, 256, 1024), {}, L2, row_reuse)
    assert tiling.regions == ("n0", "n1") and tiling.rows % 16 == 0 and tiling.iterations > 1
    between = 4 * 2048 * 1024 - L2.bytes
    assert tiling.saved == between * (2 + 2)
    constants = 2 * 4 * 256 * 1024
    assert tiling.streamed == constants * (tiling.iterations - 1)
    assert tiling.resident <= 2.5 * L2.bytes


def test_less_cache_makes_smaller_tiles() -> None:
    graph = mlp(2048, 256, 1024)
    ((long,), (short,)) = (
        row_tilings(graph, {}, L2, row_reuse, cache_fraction) for cache_fraction in (2.5, 1.0)
    )
    assert short.rows < long.rows and short.resident <= L2.bytes < long.resident
    same = row_tiling_of(graph, graph.regions(), {}, short.rows, L2, row_reuse)
    assert same == short


def test_large_weights_are_not_read_again_for_it() -> None:
    """Constants read again in every iteration may cost more than row tiling saves."""
    assert row_tilings(mlp(512, 4096, 4096), {}, L2, row_reuse) == []


def test_a_window_needs_rows_of_its_neighbours() -> None:
    graph = named([rows(4096, 1024, "x", "v"), blur(4096, 1024, "v", "y")])
    (tiling,) = row_tilings(graph, {}, L2, row_reuse)
    assert tiling.resident == 4 * 1024 * (tiling.rows + 2)
    assert tiling.rows == max(r for r in iterations(4096) if 4096 * (r + 2) <= 2.5 * L2.bytes)


def iterations(count: int) -> list[int]:
    return [-(-count // n) for n in range(2, count + 1)]


def test_shared_values_and_untileable_regions_end_a_tiling() -> None:
    chain = [rows(4096, 1024, "x", "v"), rows(4096, 1024, "v", "w"), rows(4096, 1024, "w", "y")]
    names = ("first", "second", "third")
    models = [replace(m, name=n) for m, n in zip(chain, names, strict=True)]
    assert [b.regions for b in row_tilings(named(models), {}, L2, row_reuse)] == [
        ("n0", "n1", "n2")
    ]
    shown = named(models, ("v", "y"))
    assert [b.regions for b in row_tilings(shown, {}, L2, row_reuse)] == [("n1", "n2")]
    assert (
        row_tilings(named(models), {}, L2, lambda r: None if r.op == "second" else RowReuse())
        == []
    )


def test_symbols_have_to_be_bound() -> None:
    graph = named([gemm("s", 1024, 256, "XWH"), gemm("s", 256, 1024, "HVY")])
    assert row_tilings(graph, {"s": 4096}, L2, row_reuse)
    with pytest.raises(GraphError, match="'s'"):
        row_tilings(graph, {}, L2, row_reuse)


@pytest.mark.parametrize("lines", [100_003, 1 << 18])
def test_halving_finds_the_tile_that_trying_all_finds(
    lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = named([gemm("s", 1024, 256, "XWH"), gemm("s", 256, 1024, "HVY")])
    found = row_tilings(graph, {"s": lines}, L2, row_reuse)
    monkeypatch.setattr(row_tiling, "_MANY_LINES", lines)
    assert found and row_tilings(graph, {"s": lines}, L2, row_reuse) == found


@pytest.mark.parametrize("step", [1, 4, 6])
def test_every_tile_of_a_number_of_equal_parts_is_a_choice(step: int) -> None:
    for lines in (1, 2, 3, 17, 64, 1000):
        made = _Candidate((), (), frozenset(), lines, 1, step, 0.0, L2)
        parts = (-(-lines // count) for count in range(2, lines + 1))
        assert [*made.choices()] == [*dict.fromkeys(-(-rows // step) * step for rows in parts)]
    huge = replace(made, lines=1 << 33)
    assert sum(1 for _ in huge.choices()) < 1 << 18
