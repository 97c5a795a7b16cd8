"""Branches of an If are one program each, as is what computes the condition.

Shown on a test double of the CUDA driver.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.graphs import normal
from tracea_graph import Options, api

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("double_backend")]
HERE = Options(target="double:sm_90", keep="all")
MODEL = """<ir_version: 8, opset_import: ["": 17]>
branched (float[b, 64] x) => (float[b, 64] y) {
    r0 = MatMul(x, w)  r = Relu(r0)
    mean = ReduceMean <keepdims = 0> (r)  chosen = Greater(mean, half)
    z = If(chosen) <
        then_branch = yes () => (float[b, 64] t) { t0 = MatMul(r, w)  t = Softmax(t0) },
        else_branch = no () => (float[b, 64] e) { e0 = MatMul(x, w)  e = LogSoftmax(e0) }>
    y = MatMul(z, w)
}"""


@pytest.mark.parametrize("half", [0.0, 100.0])
def test_each_branch_is_one_program(half: float, tmp_path: Path) -> None:
    """The program in front of the If returns floats and the truth value that chooses."""
    model = onnx.parser.parse_model(MODEL)
    constants = {"w": 0.2 * normal(64, 64), "half": np.float32(half)}
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    onnx.save(model, tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", HERE)
    assert (report.outcome, report.status) == ("improved", "passed"), report.reason
    nodes = onnx.load(report.output, load_external_data=False).graph.node
    first, choice, _ = nodes
    assert first.op_type.startswith("FusedRegion") and choice.op_type == "If"
    for branch in choice.attribute:
        (program,) = branch.g.node
        assert program.op_type.startswith("FusedRegion")
