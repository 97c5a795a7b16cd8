"""Tiles set by hand: what they leave out is masked, and kernels visit no others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from graphs import (
    APART,
    Net,
    evaluate,
    every_phase,
    normal,
    only,
    optimized,
    reasons,
    relative_error,
)

import tracea_graph as tg
from tracea_graph.errors import GraphError, ModelError, UsageError
from tracea_graph.kernels.cpu.panels import PANELS, BlockSparsePanels
from tracea_graph.onnx_io import load, write_masked
from tracea_graph.ttg import Region, TileGraph, TileMetadata, TileSet

Array = npt.NDArray[Any]


def saved(net: Net, folder: Path, *outputs: str) -> TileGraph:
    """The net as a file, loaded for users."""
    net.graph(*outputs)
    onnx.save(net.model, folder / "net.onnx")
    return tg.load(folder / "net.onnx")


def masked(graph: TileGraph) -> TileGraph:
    """The graph of the masked model."""
    assert graph.source is not None
    out = graph.source.with_suffix(".tiles.onnx")
    write_masked(load(graph.source), graph.patterns, out)
    return load(out).graph


def run(graph: TileGraph, feeds: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime computes for the file of a graph."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return list(onnxruntime.InferenceSession(graph.source, options).run(None, dict(feeds)))


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
    assert reasons(trace, "tiled-gemm") == {"tiles of 8 columns are no whole panels of 16"}
    assert relative_error(evaluate(after, {"x": normal(4, 64)})[0], expected) < 1e-5


# ---- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("region", "tiles", "message"),
    [
        ("nothing", strips(3, 64, []), "no region 'nothing'"),
        ("act", strips(3, 64, []), r"\(Relu\) takes no tiles"),
        ("both", strips(3, 64, []), r"\(MatMul\) takes no tiles"),
        ("y", strips(5, 64, [], 16), "5 tiles of 16 columns do not cover 48 columns"),
        ("y", strips(3, 80, [(0, 32, 80)]), r"\(0, 0\) k \[32, 80\) lies outside k \[0, 64\)"),
        ("y", tg.TTGBuilder(2, 3).build_sparse(), "lie in one row, not 2"),
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
