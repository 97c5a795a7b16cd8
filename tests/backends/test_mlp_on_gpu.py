"""A norm and two small matmuls in one launch, in plans: on a test double of the CUDA driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends import test_double
from tests.graphs import Net, normal
from tracea_graph.kernels.gpu import row_choice
from tracea_graph.kernels.gpu.lowering import row_mlp

pytestmark = pytest.mark.compiler
_LEAST = 64


@pytest.fixture(autouse=True)
def few_rows(double_backend: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (row_choice, row_mlp):
        monkeypatch.setattr(module, "LEAST_MLP_ROWS", _LEAST)


def block(net: Net) -> str:
    """Build a matmul, whose rows are added to those of an MLP of 32, 64 and 32 columns."""
    x = net("MatMul", net.input("x", "batch", 40, 48), net.weight(48, 32))
    affine = net.weight(32), net.weight(32)
    normed = net("LayerNormalization", net("Relu", x), *affine, axis=-1)
    h = net("Relu", net("Add", net("MatMul", normed, net.weight(32, 64)), net.weight(64)))
    h = net("Add", net("MatMul", h, net.weight(64, 32)), net.weight(32))
    h = net("Add", net("Mul", h, net.weight(32)), x)
    return net("MatMul", h, net.weight(32, 10))


def test_runs_of_many_and_few_rows(tmp_path: Path) -> None:
    """Few rows take three launches of the same plan."""
    _, report = test_double.improved_in_fp16(block, tmp_path, [{"batch": 4}])
    assert b"_mlp_32x64x32_relu_" in Path(str(report.library)).read_bytes()
    feeds = {f"{i}": {"x": normal(n, 40, 48)} for i, n in enumerate((4, 1, 0, 5, 4))}
    found, told = test_double.run(report, feeds, tmp_path)
    assert not told["error"] and test_double.close(report, found, feeds, test_double.HALF)
    many, few = (
        test_double.run(report, {"0": {"x": normal(n, 40, 48)}}, tmp_path)[1]["launches"]
        for n in (4, 1)
    )
    assert few == many + 2
