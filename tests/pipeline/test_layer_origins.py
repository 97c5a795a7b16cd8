"""Reports name layers by nodes of the model, also where passes write nodes of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tracea_graph import Options, optimize

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]


def two_convolutions(named: bool) -> onnx.ModelProto:
    model = parser.parse_model("""
        < ir_version: 7, opset_import: ["": 13] >
        f (float[1, 64, 28, 28] x) => (float[1, 64, 28, 28] y) {
          a = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (x, w)
          b = Relu (a)
          c = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (b, v)
          y = Relu (c)
        }""")
    for seed, name in enumerate("wv"):
        held = np.random.default_rng(seed).standard_normal((64, 64, 3, 3), np.float32) / 24
        model.graph.initializer.append(numpy_helper.from_array(held, name))
    for node in model.graph.node:
        node.name = f"layers/{node.output[0]}" if named else ""
    return model


@pytest.mark.parametrize("named", [False, True])
def test_layers_in_integers_go_by_the_models_nodes(named: bool, tmp_path: Path) -> None:
    model = two_convolutions(named)
    onnx.save(model, tmp_path / "m.onnx")
    options = Options(tmp_path / "out", keep="all", precision="int8", verify=False)
    report = optimize(tmp_path / "m.onnx", options)
    originals = [name for row in report.groups for name in row.originals]
    assert {*originals} == {node.name or node.output[0] for node in model.graph.node}
    for row in report.groups:
        assert len(row.originals) == len({*row.originals})
