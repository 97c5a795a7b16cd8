"""Matmuls of many rows in fp32 and tf32 by warpgroups, in whole models on the driver's double."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.graphs import Net
from tracea_graph import Options, api
from tracea_graph.kernels.gpu import tile_choice
from tracea_graph.kernels.gpu.tile_choice import LEAST_MANY

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("double_backend")]
DEPTH, FILTERS = 32, 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "least", "most"), [("fp32", 0.0, 3e-6), ("tf32", 1e-5, 1e-3)]
)
def test_a_matmul_of_many_rows(
    tmp_path: Path, precision: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So few tiles would share the depth otherwise."""
    monkeypatch.setattr(tile_choice, "_LEAST_BLOCKS", 1)
    net = Net()
    x = net.input("x", LEAST_MANY, DEPTH)
    y = net("Relu", net("Add", net("MatMul", x, net.weight(DEPTH, FILTERS)), net.weight(FILTERS)))
    options = Options(target="double:sm_90", keep="all", precision=precision, max_error=most)
    report = api.optimize(net.save(tmp_path / "m.onnx", y), options)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    assert not report.warnings
    assert least <= (report.error or 0) <= most
    assert b"_wgmma_nk_" in Path(report.library).read_bytes()
