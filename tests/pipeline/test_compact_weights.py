"""What structure in weights saves is told group by group, whether it was kept or not."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from models.zero_blocks import block_mask
from tests.graphs import APART, Net, every_phase, normal
from tracea_graph.pipeline.reporting import storage_rows
from tracea_graph.pipeline.result_assembly import Assembly, assemble_result
from tracea_graph.policy import CostModel, Machine
from tracea_graph.rewrite import schedule_rewrites
from tracea_graph.target import BACKENDS
from tracea_graph.views import Report, render_report


def assembly(w: np.ndarray) -> Assembly:
    net = Net()
    x = net.input("x", "rows", w.shape[0])
    graph = net.graph(net("MatMul", x, net.const(w)))
    schedule_rewrites(graph, every_phase(), CostModel(Machine(), {"rows": 128}), APART)
    return assemble_result(graph, BACKENDS[0])


def test_zero_blocks() -> None:
    mask = block_mask((768, 320), 0.75, (16, 16), "random")
    planned = assembly(normal(768, 320) * mask)
    (row,) = storage_rows(planned, set())
    blocks = 48 * 20 // 4
    assert (row.technique, row.count, row.kept) == ("zero blocks, 16 × 16", 1, False)
    assert (row.dense, row.stored) == (768 * 320 * 4, blocks * (16 * 16 * 4 + 4))
    assert storage_rows(planned, planned.groups.keys())[0].kept


def test_exact_rank() -> None:
    w = (normal(512, 20) @ normal(20, 256, seed=2)).astype(np.float32)
    rows = storage_rows(assembly(w), set())
    assert {row.technique for row in rows} == {"exact rank"}
    assert sum(row.dense for row in rows) == 512 * 256 * 4
    assert sum(row.stored for row in rows) == (512 + 256) * 32 * 4


def test_dense_weights_save_nothing() -> None:
    assert storage_rows(assembly(normal(256, 256)), set()) == ()


def test_the_report_shows_them() -> None:
    mask = block_mask((768, 320), 0.9, (16, 16), "bands")
    rows = storage_rows(assembly(normal(768, 320) * mask), set())
    report = Report(
        "m.onnx", "m.tracea.onnx", "kept original", "it was slower", compact_weights=rows
    )
    page = io.StringIO()
    Console(width=160, file=page).print(render_report(report))
    text = page.getvalue()
    assert "compact weights" in text and "zero blocks, 16 × 16" in text and "no" in text
