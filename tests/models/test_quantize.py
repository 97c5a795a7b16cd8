"""Quantized models of the zoo run in integers and give what the original gives."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from models.make import make
from tracea_graph import Options, optimize


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("form", ["dynamic", "qdq"])
def test_a_quantized_transformer_is_one_program(form: str, tmp_path: Path) -> None:
    path = make(f"tiny-bert-{form}", tmp_path)
    report = optimize(path, Options(keep="all"))
    assert report.status == "passed", report.status_reason
    left = {node.op_type for node in onnx.load(report.output).graph.node}
    assert not left & {"MatMulInteger", "DynamicQuantizeLinear", "MatMul", "QuantizeLinear"}
    assert sum(kind.startswith("FusedRegion") for kind in left) == 1
