"""Sums by op type before and after the passes, and how they are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.graphs import Net
from tests.tiny import product
from tracea_graph.cli import main
from tracea_graph.commands.inspect import explain
from tracea_graph.options import Options
from tracea_graph.views.op_type_table import OpTypeRow, op_type_table

ROWS, K, N = 7, 32, 48
ITEM = 4


def test_the_flops_of_a_product_stay_and_its_sums_and_views_go(tmp_path: Path) -> None:
    told = explain(product(tmp_path / "m.onnx", K, N), Options(shapes=({"rows": ROWS},)))
    before = {row.op: row for row in told.before}
    (after,) = told.after
    assert before.keys() == {"MatMul", "Add", "Relu"} and after.op == "FusedGemm"
    product_flops, each = 2 * ROWS * K * N, ITEM * ROWS * N
    assert before["MatMul"].flops == product_flops and before["Add"].flops == ROWS * N
    assert before["MatMul"].bytes == ITEM * (ROWS * K + K * N) + each
    assert after.count == 1 and after.flops >= product_flops
    assert after.bytes < sum(row.bytes for row in told.before)
    assert after.us < sum(row.us for row in told.before)


@pytest.mark.parametrize("target", ["host", "cuda:sm_90"])
def test_the_times_of_a_program_and_of_its_steps_are_equal(tmp_path: Path, target: str) -> None:
    """Starting kernels takes most of a GPU's time for so small a model."""
    net = Net()
    y = net.input("x", 4, 64)
    for _ in range(3):
        y = net("Relu", net("MatMul", y, net.weight(64, 64)))
    told = explain(net.save(tmp_path / "m.onnx", y), Options(target=target))
    (program,) = told.regions
    assert program.op == "FusedRegion" and [row.op for row in told.after] == ["FusedGemm"]
    assert sum(row.us for row in told.after) == pytest.approx(program.after_us)


def test_a_table_adds_up_what_has_no_row() -> None:
    rows = [(f"op{i}", OpTypeRow(f"op{i}", 2, 1e6, 1e3, float(i))) for i in range(14)]
    table = op_type_table("title", rows, "µs")
    assert [str(c) for c in table.rows[0]] == ["op13", "2", "1", "1 kB", "13", "14.3%"]
    assert [str(c) for c in table.rows[-1]] == ["4 others", "8", "4", "4 kB", "6", "6.6%"]


def test_explain_prints_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(product(tmp_path / "m.onnx"))]) == 0
    out = capsys.readouterr().out
    assert "op types before" in out and "op types after" in out
