"""Tile sets: tables, orders, edges, dependences, and a million tiles in arrays."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from tests.ttg.models import blur, gemm, rows
from tracea_graph.errors import GraphError
from tracea_graph.ttg import (
    ORDERS,
    EdgeKind,
    TileMetadata,
    TileReuse,
    TileRole,
    TileSet,
    TTGBuilder,
    data_edges,
    dependence_kind,
    expand_tiles,
)
from tracea_graph.ttg import dependences as needs_of

KINDS = (EdgeKind.ROW_ADJACENT, EdgeKind.COL_ADJACENT, EdgeKind.K_PIPELINE)


def _edges(tiles: TileSet) -> set[tuple[int, int, int]]:
    return set(map(tuple, tiles.edges.tolist()))


def _expected_edges(tiles: TileSet) -> set[tuple[int, int, int]]:
    """By definition: the nearest active tile that agrees in the other coordinates."""
    active = [(i, *row) for i, row in enumerate(tiles.table.tolist()) if row[4] != TileRole.SKIP]
    found = set()
    for i, m, n, k, *_ in active:
        row = [(u, j) for j, t, u, s, *_ in active if (t, s) == (m, k) and u > n]
        column = [(t, j) for j, t, u, s, *_ in active if (u, s) == (n, k) and t > m]
        chain = [(s, j) for j, t, u, s, *_ in active if (t, u) == (m, n) and s > k]
        for kind, group in zip(KINDS, (row, column, chain), strict=True):
            if group:
                found.add((i, min(group)[1], int(kind)))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_edges_lead_to_the_next_active_tile(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = rng.integers(1, 20, 3).tolist()
    tiles = expand_tiles(gemm(m, n, k).bind({}), (4, 3, 5))
    tiles = tiles.skipping(rng.random(len(tiles)) < 0.4)
    assert _edges(tiles) == _expected_edges(tiles)
    assert max(Counter(tiles.edges["source"].tolist()).values(), default=0) <= 4


def test_roles_mark_cut_tiles() -> None:
    tiles = expand_tiles(gemm("m", 8, 10).bind({"m": 9}), (4, 4, 4))
    assert tiles.grid == (3, 2) and len(tiles) == 18
    for tile in tiles:
        cut = tile.region_m == 2 or tile.k_end - tile.k_start < 4
        assert tile.role == (TileRole.BOUNDARY if cut else TileRole.MAIN)
    assert str(tiles) == "3x2 tiles of (4, 4, 4): 8 MAIN, 10 BOUNDARY"


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 3), (8, 8), (6, 9)])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_visits_every_tile_once(order: str, shape: tuple[int, int]) -> None:
    tiles = expand_tiles(gemm(*shape, 2).bind({}), (1, 1, 1), order)
    assert sorted(tiles.l1_map.tolist()) == list(range(2 * shape[0] * shape[1]))
    visited = [(t.region_m, t.region_n, t.k_start) for t in tiles]
    assert visited[::2] == [(m, n, k - 1) for m, n, k in visited[1::2]]


def _path(order: str, size: int) -> list[tuple[int, int]]:
    return [
        (t.region_m, t.region_n)
        for t in expand_tiles(gemm(size, size, 1).bind({}), (1, 1, 1), order)
    ]


def test_orders_are_what_they_are_called() -> None:
    assert _path("row-major", 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert _path("column-major", 2) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert _path("z-order", 4)[:8] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3),
    ]  # fmt: skip
    hilbert = _path("hilbert", 16)
    steps = {abs(a - c) + abs(b - d) for (a, b), (c, d) in itertools.pairwise(hilbert)}
    assert steps == {1}
    assert [m + n for m, n in _path("wavefront", 3)] == [0, 1, 1, 2, 2, 2, 3, 3, 4]


def test_the_critical_path_comes_first() -> None:
    """Three slices of one sum: what most slices wait for starts first, on all places alike."""
    tiles = expand_tiles(gemm(2, 2, 12).bind({}), (1, 1, 5))
    assert tiles.critical_path == 12
    first = tiles.ordered("critical-path")
    assert [t.k_start for t in first] == [0] * 4 + [5] * 4 + [10] * 4
    assert expand_tiles(
        gemm(2, 2, 12).bind({}), (1, 1, 5), "critical-path"
    ).order.tolist() == list(first.order)
    at = np.argsort(first.order)
    waits = first.edges[first.edges["kind"] == EdgeKind.K_PIPELINE]
    assert (at[waits["source"]] < at[waits["target"]]).all()


def test_edges_by_hand_are_on_the_critical_path() -> None:
    builder = TTGBuilder(1, 3)
    a, b, c = (TileMetadata(0, n, 0, k) for n, k in enumerate((8, 8, 32)))
    tiles = (
        builder.add_tile(a).add_tile(b).add_tile(c).add_edge(b, a).build_sparse("critical-path")
    )
    assert [t.region_n for t in tiles] == [2, 1, 0] and tiles.critical_path == 32


def test_hints_say_which_operand_stays() -> None:
    tiles = expand_tiles(gemm(2, 2, 8).bind({}), (1, 1, 4))
    rows, result = int(TileReuse.ROWS), int(TileReuse.RESULT)
    # (0,0) two slices, (0,1) two slices …: the sum stays within a place, nothing between
    assert tiles.reuse.tolist() == [0, result, 0, result, 0, result, 0, result]
    whole = expand_tiles(gemm(2, 2, 8).bind({}), (1, 1, 0))
    assert whole.reuse.tolist() == [0, rows, 0, rows]
    snake = expand_tiles(gemm(2, 2, 8).bind({}), (1, 1, 0), "hilbert").reuse
    assert sorted(snake[1:].tolist()) == [rows, rows, int(TileReuse.COLUMNS)] or (
        sorted(snake[1:].tolist()) == [rows, int(TileReuse.COLUMNS), int(TileReuse.COLUMNS)]
    )


def test_an_unknown_order_is_named() -> None:
    with pytest.raises(GraphError, match="unknown tile order 'spiral': choose one of row-major"):
        expand_tiles(gemm(2, 2, 2).bind({}), order="spiral")


@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 4), (4, 0, 4), (4, 4, 0), (0, 0, 0)])
def test_zero_extents(m: int, n: int, k: int) -> None:
    tiles = expand_tiles(gemm(m, n, k).bind({}), (2, 2, 2))
    assert len(tiles) == (4 if m and n else 0)
    assert not len(tiles) or set(tiles.table["k_end"].tolist()) == {0}
    assert len(tiles.ranges()[0]) == len(tiles) and len(tiles.edges) == len(tiles)


def test_ranges_cover_the_space_once() -> None:
    model = gemm(7, 9, 5).bind({})
    count = np.zeros((7, 9, 5), int)
    starts, stops = expand_tiles(model, (3, 4, 2), "hilbert").ranges()
    for a, b in zip(starts.tolist(), stops.tolist(), strict=True):
        count[tuple(map(slice, a, b))] += 1
    assert (count == 1).all()


def test_dependences_name_their_kind() -> None:
    producer = expand_tiles(gemm(16, 24, 8).bind({}), (4, 8, 0))

    def kind(model: object, tile: tuple[int, int, int]) -> str:
        consumer = expand_tiles(model.bind({}), tile)  # type: ignore[attr-defined]
        return dependence_kind(needs_of(producer, consumer, "C"), producer)

    assert kind(gemm(16, 8, 24, "CDE"), (4, 8, 8)) == "one-to-one"
    assert kind(gemm(16, 8, 24, "CDE"), (4, 8, 0)) == "row"
    assert kind(gemm(8, 24, 16, "DCE"), (4, 8, 0)) == "column"
    assert kind(gemm(8, 24, 16, "DCE"), (4, 0, 0)) == "all"
    assert kind(rows(16, 24, "C", "y"), (4, 8, 0)) == "row"
    assert kind(blur(16, 24, "C", "y"), (4, 8, 0)) == "halo"


def test_dependences_are_the_tiles_that_write_what_is_read() -> None:
    producer = expand_tiles(gemm(14, 9, 3).bind({}), (4, 2, 0))
    consumer = expand_tiles(blur(14, 9, "C", "y").bind({}), (3, 4, 0), "z-order")
    for tile, m0, m1, n0, n1 in needs_of(producer, consumer, "C").tolist():
        meta = consumer[tile]
        rows_read = range(max(3 * meta.region_m - 1, 0), min(3 * meta.region_m + 4, 14))
        cols_read = range(4 * meta.region_n, min(4 * meta.region_n + 4, 9))
        assert set(range(m0, m1)) == {r // 4 for r in rows_read}
        assert set(range(n0, n1)) == {c // 2 for c in cols_read}
    edges = data_edges(producer, consumer, "C")
    assert sorted(edges["target"].tolist()) == sorted(consumer.order.tolist())
    with pytest.raises(GraphError, match="'nothing' is not passed"):
        needs_of(producer, consumer, "nothing")


def test_networkx_view_holds_everything() -> None:
    tiles = expand_tiles(gemm(4, 4, 4).bind({}), (2, 2, 2), "column-major")
    view = tiles.to_networkx()
    assert view.number_of_nodes() == 8 and view.number_of_edges() == len(tiles.edges)
    assert view.nodes[2]["region_n"] == 1 and view.nodes[2]["position"] == 4
    assert view.edges[0, 1, "K_PIPELINE"]["kind"] is EdgeKind.K_PIPELINE


def test_too_many_tiles_and_bad_sizes_are_refused() -> None:
    with pytest.raises(GraphError, match="too many: choose larger tiles"):
        expand_tiles(gemm(1 << 20, 1 << 20, 1).bind({}), (1, 1, 1))
    with pytest.raises(GraphError, match="must not be negative"):
        expand_tiles(gemm(4, 4, 4).bind({}), (-1, 1, 1))
    with pytest.raises(GraphError, match=r"mask has shape \(3,\)"):
        expand_tiles(gemm(4, 4, 4).bind({}), (2, 2, 2)).skipping(np.zeros(3, bool))


MILLION = """
from pathlib import Path
from tests.ttg.models import gemm
from tracea_graph.ttg import expand_tiles
model = gemm(16 * 1024, 16 * 1024, 512).bind({})
def peak():  # ru_maxrss would count the process that started this one
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])
before = peak()
tiles = expand_tiles(model, (16, 16, 0))
edges = len(tiles.edges)
grown = peak() - before
print(len(tiles), edges, grown // 1024)
"""


def test_a_million_tiles_are_arrays() -> None:
    result = subprocess.run(
        [sys.executable, "-c", MILLION], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )  # fmt: skip
    tiles, edges, mebibytes = map(int, result.stdout.split())
    assert tiles == 1 << 20 and edges == 2 * 1023 * 1024
    assert mebibytes < 200
