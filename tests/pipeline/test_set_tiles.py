"""Tiles set by hand: what they leave out is masked, and kernels visit no others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import tracea_graph as tg
from tests.graphs import (
    APART,
    Net,
    evaluate,
    every_phase,
    normal,
    only,
    optimized,
    reasons,
    relative_error,
    session,
)
from tracea_graph.errors import GraphError, ModelError, UsageError
from tracea_graph.kernels.cpu.panels import PANELS, BlockSparsePanels
from tracea_graph.onnx_io import load, write_masked
from tracea_graph.ttg import Region, TileGraph, TileMetadata, TileSet

Array = npt.NDArray[Any]


def saved(net: Net, folder: Path, *outputs: str) -> TileGraph:
    """The net as a file, loaded for users."""
    return tg.load(net.save(folder / "net.onnx", *outputs))


def masked(graph: TileGraph) -> TileGraph:
    """The graph of the masked model."""
    assert graph.source is not None
    out = graph.source.with_suffix(".tiles.onnx")
    write_masked(load(graph.source), graph.patterns, out)
    return load(out).graph


def run(graph: TileGraph, feeds: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime computes for the file of a graph."""
    assert graph.source is not None
    return list(session(graph.source, optimized=True).run(None, dict(feeds)))


def strips(n: int, k: int, places: Iterable[tuple[int, int, int]], width: int = 1) -> TileSet:
    """Tiles (column, first k, end of k) of a matrix."""
    builder = tg.TTGBuilder(1, n, k, (1, width, 1))
    for column, start, end in places:
        builder.add_tile(TileMetadata(0, column, start, end))
    return builder.build_sparse()


def visited(graph: TileGraph, region: Region) -> set[tuple[int, int, int]]:
    """Blocks (panel, first k, end of k) that a product's kernel reads."""
    layout, k = region.params.layout, region.params.k
    assert isinstance(layout, BlockSparsePanels)
    places = graph.weights[region.operands[-1]].array()
    depth = -(-k // layout.block)
    starts = [(p // depth, p % depth * layout.block) for p in places.tolist()]
    return {(panel, s, min(s + layout.block, k)) for panel, s in starts}


# ---- products ----------------------------------------------------------------------------

PLACES = [(0, 0, 32), (0, 64, 96), (1, 32, 64), (2, 0, 32)]


@pytest.mark.parametrize("across", [False, True])
def test_the_kernel_visits_exactly_the_tiles_of_a_matrix(tmp_path: Path, across: bool) -> None:
    net, w = Net(), normal(96, 48)
    x, y = net.input("x", "rows", 96), normal(7, 96, seed=1)
    made = (
        net("Gemm", x, net.const(w.T), net.weight(48), transB=1)
        if across
        else net("Add", net("MatMul", x, net.const(w)), net.weight(48))
    )
    graph = saved(net, tmp_path, net("Relu", made))
    product = next(r for r in graph.regions() if r.op in ("MatMul", "Gemm"))
    graph.set_tiles(product, strips(3, 96, PLACES))
    after = masked(graph)
    mask = np.zeros((96, 48))
    for column, start, end in PLACES:
        mask[start:end, 16 * column : 16 * column + 16] = 1
    (expected,) = run(after, {"x": y})
    bias = net.weights[[*net.weights][1]]
    assert relative_error(expected, np.maximum(y @ (w * mask) + bias, 0)) < 1e-5
    optimized(after, every_phase())
    region = only(after, "FusedGemm")
    assert region.params.layout == BlockSparsePanels(32)
    assert visited(after, region) == {*PLACES}
    assert relative_error(evaluate(after, {"x": y})[0], expected) < 1e-5


def test_any_cut_along_k_is_visited_exactly(tmp_path: Path) -> None:
    net = Net()
    graph = saved(net, tmp_path, net("MatMul", net.input("x", "rows", 70), net.weight(70, 40)))
    graph.set_tiles("v0", strips(2, 70, [(0, 3, 9), (1, 0, 1), (1, 69, 70)], 32))
    after = masked(graph)
    (expected,) = run(after, {"x": normal(5, 70)})
    optimized(after, every_phase())
    region = only(after, "FusedGemm")
    panels = {(p, s, s + 1) for p in (0, 1) for s in range(3, 9)} | {(2, 0, 1), (2, 69, 70)}
    assert visited(after, region) == panels
    assert relative_error(evaluate(after, {"x": normal(5, 70)})[0], expected) < 1e-5


def test_zeros_inside_a_tile_are_visited_and_products_stay_apart(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", "rows", 64)
    parts = [net("MatMul", x, net.const(np.zeros((64, 32)))) for _ in range(3)]
    graph = saved(net, tmp_path, *parts)
    graph.set_tiles(parts[1], strips(2, 64, [(0, 0, 64), (1, 16, 32)]))
    after = masked(graph)
    optimized(after, every_phase(), APART)
    found = [r for r in after.regions() if r.rule == "tiled-gemm"]
    assert [visited(after, r) for r in found] == [
        {*((0, s, s + 16) for s in range(0, 64, 16)), (1, 16, 32)}
    ]


def test_columns_that_are_no_panels_run_dense_with_a_reason(tmp_path: Path) -> None:
    net = Net()
    graph = saved(net, tmp_path, net("MatMul", net.input("x", 4, 64), net.weight(64, 48)))
    graph.set_tiles("v0", strips(6, 64, [(1, 0, 64)]))
    after = masked(graph)
    (expected,) = run(after, {"x": normal(4, 64)})
    trace = optimized(after, every_phase())
    assert only(after, "FusedGemm").params.layout == PANELS
    assert reasons(trace, "tiled-gemm") == {"tiles of 8 columns do not fill panels of 16"}
    assert relative_error(evaluate(after, {"x": normal(4, 64)})[0], expected) < 1e-5


@pytest.mark.compiler
def test_the_result_is_compared_with_the_masked_model(tmp_path: Path) -> None:
    """Also: tiles that no kernel can keep to are masked, and the report says so."""
    net = Net()
    x = net("Relu", net("MatMul", net.input("x", "rows", 64), net.weight(64, 48), name="up"))
    graph = saved(net, tmp_path, net("MatMul", x, net.weight(48, 48), name="down"))
    graph.set_tiles("up", strips(3, 64, [(0, 0, 32), (2, 16, 64)]))
    graph.set_tiles("down", strips(6, 48, [(0, 0, 48), (3, 16, 32)]))
    report = tg.optimize(graph, tg.Options(keep="all"))
    assert Path(report.input) == tmp_path / "net.tiles.onnx" and report.status == "passed"
    assert {row.rule: row.count for row in report.rules}["tiled-gemm"] == 1
    (warning,) = [w for w in report.warnings if "tiles" in w]
    assert "no kernel keeps to the tiles of 'down'" in warning
    feeds = {"x": normal(7, 64)}
    (expected,) = session(report.input, optimized=True).run(None, feeds)
    assert relative_error(tg.session(report.output).run(None, feeds)[0], expected) < 1e-5


# ---- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("region", "tiles", "message"),
    [
        ("nothing", strips(3, 64, []), "no region 'nothing'"),
        ("act", strips(3, 64, []), r"\(Relu\) takes no tiles"),
        ("both", strips(3, 64, []), r"\(MatMul\) takes no tiles"),
        ("y", strips(5, 64, [], 16), "5 tiles of 16 columns do not cover 48 columns"),
        ("y", strips(3, 80, [(0, 32, 80)]), r"\(0, 0\) k \[32, 80\) lies outside k \[0, 64\)"),
        ("y", tg.TTGBuilder(2, 3).build_sparse(), "lie in one grid row, not 2"),
    ],
)
def test_patterns_that_do_not_fit_say_why(
    tmp_path: Path, region: str, tiles: TileSet, message: str
) -> None:
    net = Net()
    x = net.input("x", 4, 64)
    y = net("MatMul", x, net.weight(64, 48), name="y")
    graph = saved(net, tmp_path, net("Relu", y, name="act"),
                  net("MatMul", x, net("Transpose", x, perm=(1, 0)), name="both"))  # fmt: skip
    with pytest.raises(GraphError, match=message):
        graph.set_tiles(region, tiles)
    assert not graph.patterns


def test_overlapping_tiles_of_another_origin_are_found(tmp_path: Path) -> None:
    net = Net()
    graph = saved(net, tmp_path, net("MatMul", net.input("x", 4, 64), net.weight(64, 48)))
    tiles = strips(3, 64, [(0, 0, 32), (0, 32, 64)])
    table = tiles.table.copy()
    table["k_end"][0] = 40
    with pytest.raises(GraphError, match=r"k \[32, 64\) overlaps main tile \(0, 0\) k \[0, 40\)"):
        graph.set_tiles("v0", TileSet(table, tiles.order, tiles.grid))


def test_a_region_of_another_graph_is_unknown(tmp_path: Path) -> None:
    net = Net()
    graph = saved(net, tmp_path, net("MatMul", net.input("x", 4, 64), net.weight(64, 48)))
    other = tg.load(tmp_path / "net.onnx")
    with pytest.raises(GraphError, match="no region"):
        graph.set_tiles(other.regions()[0], strips(3, 64, []))


def test_a_graph_without_a_file_cannot_be_optimized() -> None:
    net = Net()
    graph = net.graph(net("Relu", net.input("x", 4)))
    with pytest.raises(UsageError, match="not loaded from a file"):
        tg.optimize(graph)
    with pytest.raises(GraphError, match=r"tracea_graph\.load"):
        graph.set_tiles("v0", strips(1, 1, []))


def test_damaged_tiles_in_a_model_are_an_error(tmp_path: Path) -> None:
    net = Net()
    net.graph(net("Relu", net.input("x", 4)))
    entry = net.model.metadata_props.add()
    entry.key, entry.value = "tracea.tiles", '{"y": {"kind": "matrix"}}'
    onnx.save(net.model, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"tiles .* are damaged"):
        tg.load(tmp_path / "net.onnx")


# ---- attention ---------------------------------------------------------------------------


def attention(
    folder: Path, rows: int | str, keys: int | str, mask: str = "none", scale: float = 0.25
) -> tuple[TileGraph, str, str]:
    """Attention of 2 heads of 16; also its scores and its Softmax."""
    net = Net()
    q, k, v = (net.input(n, 1, s, 32) for n, s in (("q", rows), ("k", keys), ("v", keys)))

    def heads(x: str, *perm: int) -> str:
        return net("Transpose", net("Reshape", x, net.ints(0, 0, 2, 16)), perm=perm)

    scores = net("MatMul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1), name="scores")
    last = net("Mul", scores, scale)
    if mask == "add":
        last = net("Add", last, net.input("mask", 1, 1, 1, keys))
    p = net("Softmax", last, axis=-1, name="shares")
    merged = net("Transpose", net("MatMul", p, heads(v, 0, 2, 1, 3)), perm=(0, 2, 1, 3))
    return saved(net, folder, net("Reshape", merged, net.ints(0, 0, 32))), scores, p


def grid(m: int, n: int, size: tuple[int, int], places: Iterable[tuple[int, int]]) -> TileSet:
    builder = tg.TTGBuilder(m, n, tile=(*size, 1))
    for row, column in places:
        builder.add_tile(TileMetadata(row, column, 0, 16))
    return builder.build_sparse()


SPARSE = [(0, 0), (1, 0), (1, 1), (2, 2), (3, 0), (3, 3)]


@pytest.mark.parametrize("by", ["scores", "shares"])
@pytest.mark.parametrize("mask", ["none", "add"])
@pytest.mark.parametrize("size", [(40, 40), ("s", "t"), (37, 40), (1, 9)])
@pytest.mark.parametrize("places", [SPARSE, SPARSE[1:]])
def test_attention_visits_exactly_the_tiles_of_scores(
    tmp_path: Path,
    by: str,
    mask: str,
    size: tuple[int | str, int | str],
    places: list[tuple[int, int]],
) -> None:
    graph, *values = attention(tmp_path, *size, mask)
    rows, keys = (s if isinstance(s, int) else n for s, n in zip(size, (23, 31), strict=True))
    m, n = (
        -(-s // 10) if isinstance(d, int) else 4 for d, s in zip(size, (rows, keys), strict=True)
    )
    inside = [(a, b) for a, b in places if a < m and b < n]
    graph.set_tiles(values[by == "shares"], grid(m, n, (10, 10), inside))
    after = masked(graph)
    feeds = {
        "q": normal(1, rows, 32),
        "k": normal(1, keys, 32, seed=1),
        "v": normal(1, keys, 32, seed=2),
    }
    if mask == "add":
        feeds["mask"] = np.where(normal(1, 1, 1, keys, seed=3) > 0.5, -1e4, 0).astype(np.float32)
    (expected,) = run(after, feeds)
    kept = np.zeros((10 * m, 10 * n), bool)
    for a, b in inside:
        kept[10 * a : 10 * a + 10, 10 * b : 10 * b + 10] = True
    q, k, v = (feeds[x].astype(float).reshape(1, -1, 2, 16).transpose(0, 2, 1, 3) for x in "qkv")
    scores = np.where(
        kept[:rows, :keys], 0.25 * q @ k.swapaxes(2, 3) + feeds.get("mask", 0), -np.inf
    )
    with np.errstate(invalid="ignore"):
        w = np.exp(scores - scores.max(-1, keepdims=True))
        w /= w.sum(-1, keepdims=True)
    y = (np.nan_to_num(w) @ v).transpose(0, 2, 1, 3).reshape(1, rows, 32)
    assert relative_error(expected, y) < 1e-5
    optimized(after, every_phase())
    region = only(after, "FusedAttention")
    assert after.weights[region.operands[-1]].array().tolist() == [
        a * n + b for a, b in sorted(inside)
    ]
    assert len(after.regions()) == 1 and region.params.mask == mask
    assert relative_error(evaluate(after, feeds)[0], y) < 1e-5


@pytest.mark.parametrize(
    ("tiles", "message"),
    [
        (grid(4, 4, (10, 10), []), "4 tiles of 10 rows do not cover 128 rows"),
        (grid(2, 4, (1, 1), []), None),
        (tg.TTGBuilder(1, 1).add_tile(TileMetadata(0, 0, 8, 16)).build_sparse(),
         r"\(0, 0\) k \[8, 16\) splits k, but tiles of scores must cover all of it"),
    ],
)  # fmt: skip
def test_patterns_of_scores_that_do_not_fit(
    tmp_path: Path, tiles: TileSet, message: str | None
) -> None:
    graph, scores, _ = attention(tmp_path, 128, 128)
    if message is None:
        graph.set_tiles(scores, tiles)
        return
    with pytest.raises(GraphError, match=message):
        graph.set_tiles(scores, tiles)


def test_scores_of_any_size_need_a_tile_size(tmp_path: Path) -> None:
    graph, scores, _ = attention(tmp_path, "s", "s")
    with pytest.raises(GraphError, match="number of rows is not fixed: give the size of a tile"):
        graph.set_tiles(scores, grid(4, 4, (1, 1), []))
