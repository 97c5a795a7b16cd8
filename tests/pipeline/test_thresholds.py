"""What is compared with thresholds later is computed as before, bit by bit."""

from __future__ import annotations

from pathlib import Path

from onnx import numpy_helper, parser

from tests.graphs import normal, ops
from tracea_graph import Options, load
from tracea_graph.pipeline.planning import Planner, values_rounded_later

TREES = """
<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]> g (float[n, 8] x) => (float[n, 1] y) {
    scaled = ai.onnx.ml.Scaler <offset = [0.1], scale = [2.0]> (x)
    turned = MatMul(scaled, w)
    tree = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1, nodes_treeids = [0, 0, 0],
        nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0], nodes_values = [0.1, 0.0, 0.0],
        nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids = [1, 0, 0],
        nodes_falsenodeids = [2, 0, 0], target_treeids = [0, 0], target_nodeids = [1, 2],
        target_ids = [0, 0], target_weights = [1.0, 2.0]> (turned)
    product = MatMul(scaled, v)
    beside = Relu(product)
    y = Add(tree, beside) }
"""


def test_what_trees_compare_stays_and_what_is_beside_them_does_not(tmp_path: Path) -> None:
    model = parser.parse_model(TREES)
    for name, columns in (("w", 8), ("v", 1)):
        model.graph.initializer.append(numpy_helper.from_array(normal(8, columns), name))
    path = tmp_path / "trees.onnx"
    path.write_bytes(model.SerializeToString())
    graph = load(path)
    assert [str(graph.spec(v)) for v in ("scaled", "tree")] == ["f32[n,8]", "f32[n,1]"]
    found = values_rounded_later(graph)
    assert set(found) == {"turned", "scaled"}
    assert set(found.values()) == {
        "'turned' is compared with thresholds, where a change of one bit can alter the result"
    }
    plan = Planner(graph, Options(tmp_path, keep="all"), {"n": 2}).plan()
    left = ops(plan.graph)
    assert "MatMul" in left and "FusedGemm" in left and "Relu" not in left
