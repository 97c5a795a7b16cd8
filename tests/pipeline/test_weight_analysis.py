"""What weights hold is reported with what it saves and whether it was used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.graphs import Net, normal
from tracea_graph import Options, api
from tracea_graph.onnx_io import load
from tracea_graph.passes.sparse.zero_structure import WeightScan
from tracea_graph.pipeline.reporting import WeightProperty, analyze_weights

pytestmark = pytest.mark.usefixtures("highest_level")

Array = npt.NDArray[Any]


def found(net: Net, y: str, path: Path) -> dict[str, WeightProperty]:
    """By weight; the graph is read as a file is."""
    net.save(path, y)
    every = analyze_weights(load(path).graph, WeightScan())
    return {f"{f.weight}: {f.found}": f for f in every}


def test_each_kind_is_named_with_what_it_saves(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", "batch", 256)
    lines = normal(256, 256)
    lines[:, :64] = 0
    pairs = normal(256, 256, seed=2).reshape(64, 4, 256)
    pairs[:, ::2] = 0
    low = normal(256, 8) @ normal(8, 256, seed=1)
    y = net("Relu", net("MatMul", x, net.const(lines)))
    y = net("MatMul", y, net.const(pairs.reshape(256, 256)))
    y = net("MatMul", y, net.const(low))
    told = found(net, y, tmp_path / "m.onnx")
    columns, pattern, rank = (
        told["w0: 64 of 256 outputs zero"],
        next(f for words, f in told.items() if words.startswith("w1: ")),
        told["w2: exactly of rank 8"],
    )
    assert columns.after == columns.before * 3 // 4
    assert "128 of 256 inputs zero" in pattern.found  # half of all lines: a pattern too
    assert rank.after == 4 * 2 * 8 * 256
    assert "w1: 2:4 along the inputs" in told


def test_copies_and_transposes_are_found(tmp_path: Path) -> None:
    net, table = Net(), normal(400, 64)
    ids = net.ids("ids", "batch")
    x = net("Gather", net.const(table), ids)
    square = normal(64, 400, seed=3)
    y = net("Add", net("MatMul", x, net.const(square)), net("MatMul", x, net.const(square)))
    y = net("Add", y, net("MatMul", x, net.const(table.T.copy())))
    told = found(net, y, tmp_path / "m.onnx")
    assert "w2: a copy of 'w1'" in told and "w3: the transpose of 'w0'" in told
    assert told["w3: the transpose of 'w0'"].after == 0


def test_channels_of_zero_scale(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", "batch", 64)
    gamma = normal(64)
    gamma[5:9] = 0
    y = net("LayerNormalization", x, net.const(gamma), net.weight(64))
    assert "w0: 4 of 64 channels have scale zero" in found(net, y, tmp_path / "m.onnx")


@pytest.mark.compiler
def test_the_report_says_what_was_used(tmp_path: Path) -> None:
    net = Net()
    x = net.input("x", "batch", 256)
    first, other = normal(256, 256), normal(256, 256, seed=7)
    first[:, 32:224] = 0
    other *= np.random.default_rng(0).random((256, 256)) < 0.7
    hidden = net("Relu", net("Add", net("MatMul", x, net.const(first)), net.weight(256)))
    y = net(
        "MatMul", net("Softmax", net("MatMul", hidden, net.weight(256, 256))), net.const(other)
    )
    net.save(tmp_path / "m.onnx", y)
    report = api.optimize(tmp_path / "m.onnx", Options(keep="all", threads=(1,)))
    used = {f"{row.weight}: {row.structure}": row.applied for row in report.weight_analysis}
    assert used["w0: 192 of 256 outputs zero"] == "dead-channels"
    (rest,) = (why for words, why in used.items() if "unstructured" in words)
    assert rest.startswith("no")
    assert any("NaN or an infinity" in note for note in report.notes)
    assert report.error is not None and report.error < 1e-4
