"""Hand-built tile graphs: accepted ones, and the error messages of others."""

from __future__ import annotations

import numpy as np
import pytest

from tracea_graph.errors import GraphError
from tracea_graph.ttg import EdgeKind, TileMetadata, TileRole, TTGBuilder


def tile(
    m: int, n: int, start: int = 0, end: int = 8, role: TileRole = TileRole.MAIN
) -> TileMetadata:
    return TileMetadata(m, n, start, end, role)


def _full(m: int, n: int) -> TTGBuilder:
    builder = TTGBuilder(m, n)
    for i in range(m):
        for j in range(n):
            builder.add_tile(tile(i, j, 0, 4)).add_tile(tile(i, j, 4, 8))
    return builder


def test_dense_is_the_identity_map() -> None:
    tiles = _full(2, 3).build_dense()
    assert tiles.l1_map.tolist() == list(range(12))
    assert tiles[0] == tile(0, 0, 0, 4) and tiles[11] == tile(1, 2, 4, 8)


def test_sparse_links_over_gaps_and_leaves_skipped_tiles_out() -> None:
    builder = TTGBuilder(1, 4)
    for n, role in ((0, TileRole.MAIN), (1, TileRole.SKIP), (3, TileRole.BOUNDARY)):
        builder.add_tile(tile(0, n, role=role))
    tiles = builder.build_sparse()
    assert tiles.l1_map.tolist() == [0, 2]
    assert tiles.edges.tolist() == [(0, 2, EdgeKind.ROW_ADJACENT)]


def test_block_sparse_k_is_pipelined_over_the_hole() -> None:
    builder = TTGBuilder(1, 1).add_tile(tile(0, 0, 16, 24)).add_tile(tile(0, 0, 0, 8))
    tiles = builder.build_sparse()
    assert [t.k_start for t in tiles] == [0, 16]
    assert tiles.edges.tolist() == [(0, 1, EdgeKind.K_PIPELINE)]


def test_an_edge_changes_the_launch_order() -> None:
    builder = TTGBuilder(2, 2)
    for m in range(2):
        for n in range(2):
            builder.add_tile(tile(m, n))
    tiles = builder.add_edge(tile(1, 1), tile(0, 0)).build_dense()
    assert [(t.region_m, t.region_n) for t in tiles] == [(0, 1), (1, 0), (1, 1), (0, 0)]
    assert (3, 0, EdgeKind.DATA) in tiles.edges.tolist()


def test_out_of_range() -> None:
    with pytest.raises(GraphError, match=r"main tile \(2, 0\) k \[0, 8\) lies outside the 2x2"):
        TTGBuilder(2, 2).add_tile(tile(2, 0))
    with pytest.raises(GraphError, match="ends beyond k=6"):
        TTGBuilder(2, 2, 6).add_tile(tile(0, 0))
    with pytest.raises(GraphError, match="empty or negative slice"):
        TTGBuilder(2, 2).add_tile(tile(0, 0, 4, 4))
    with pytest.raises(GraphError, match="every size must be at least 1"):
        TTGBuilder(0, 2)


def test_active_tiles_are_numbered_in_the_whole_grid() -> None:
    active = np.array([[[True, False], [False, True], [True, True]]])
    tiles = TTGBuilder(1, 3, 7, (8, 16, 4)).build_active(active)
    assert tiles.l1_map.tolist() == [0, 3, 4, 5]
    assert [(t.region_n, t.k_start, t.k_end) for t in tiles] == [
        (0, 0, 4), (1, 4, 7), (2, 0, 4), (2, 4, 7),
    ]  # fmt: skip
    with pytest.raises(GraphError, match="needs k"):
        TTGBuilder(1, 3).build_active(active)
    with pytest.raises(GraphError, match="do not fit 1x3 tiles"):
        TTGBuilder(1, 3, 9, (8, 16, 4)).build_active(active)


def test_overlap() -> None:
    builder = TTGBuilder(1, 1).add_tile(tile(0, 0, 0, 8)).add_tile(tile(0, 0, 6, 12))
    with pytest.raises(GraphError, match=r"k \[6, 12\) overlaps main tile \(0, 0\) k \[0, 8\)"):
        builder.build_sparse()


def test_gaps() -> None:
    with pytest.raises(GraphError, match=r"no tile covers \(0, 1\)"):
        TTGBuilder(1, 2).add_tile(tile(0, 0)).build_dense()
    with pytest.raises(GraphError, match=r"k \[8, 9\) before main tile"):
        TTGBuilder(1, 1).add_tile(tile(0, 0)).add_tile(tile(0, 0, 9, 12)).build_dense()
    with pytest.raises(GraphError, match=r"k \[0, 2\) before main tile"):
        TTGBuilder(1, 1).add_tile(tile(0, 0, 2, 8)).build_dense()
    with pytest.raises(GraphError, match=r"k \[8, 10\) has no tile at \(0, 0\)"):
        TTGBuilder(1, 1, 10).add_tile(tile(0, 0)).build_dense()
    with pytest.raises(GraphError, match="no tile covers"):
        TTGBuilder(1, 1).build_dense()


def test_cycles() -> None:
    builder = TTGBuilder(1, 2).add_tile(tile(0, 0)).add_tile(tile(0, 1))
    builder.add_edge(tile(0, 0), tile(0, 1)).add_edge(tile(0, 1), tile(0, 0))
    with pytest.raises(GraphError, match=r"wait for each other: main tile \(0, 0\)"):
        builder.build_dense()


def test_a_slice_cannot_wait_for_a_later_one() -> None:
    builder = TTGBuilder(1, 1).add_tile(tile(0, 0, 0, 4)).add_tile(tile(0, 0, 4, 8))
    with pytest.raises(GraphError, match="wait for each other"):
        builder.add_edge(tile(0, 0, 4, 8), tile(0, 0, 0, 4)).build_dense()


def test_edges_must_name_tiles_once() -> None:
    builder = TTGBuilder(1, 3).add_tile(tile(0, 0)).add_tile(tile(0, 1)).add_tile(tile(0, 2))
    builder.add_edge(tile(0, 0), tile(0, 2)).add_edge(tile(0, 1), tile(0, 2))
    with pytest.raises(GraphError, match="waits for several tiles"):
        builder.build_dense()
    with pytest.raises(GraphError, match="which was not added"):
        TTGBuilder(1, 1).add_tile(tile(0, 0)).add_edge(tile(0, 0), tile(0, 0, 0, 4)).build_dense()


def test_tiles_by_hand_have_no_boxes() -> None:
    with pytest.raises(GraphError, match="hand-built tiles"):
        _full(1, 1).build_dense().ranges()
